"""Pairs of blocks into runs, and the bytes that they move between device and host."""

import random

import pytest
import torch

from engine_core.device.staging import DirectStage
from engine_core.runner.block_copies import BlockCopier, CopyPlanner, CopyRun, split_into_runs
from kernels.ops import load

NUM_BLOCKS, NUM_HOST, NUM_LAYERS, SIZE = 6, 4, 3, 40


def test_a_run_copies_in_one_direction() -> None:
    runs = split_into_runs([(0, 7), (1, 6), (8, 0), (2, 3), (3, 9)], 6)
    assert runs == [
        CopyRun(False, True, [0, 1], [1, 0]),
        CopyRun(True, False, [2], [0]),
        CopyRun(False, False, [2], [3]),
        CopyRun(False, True, [3], [3]),
    ]


@pytest.mark.parametrize(
    ("copies", "num_runs"),
    [([(0, 1), (1, 2)], 2), ([(0, 1), (2, 1)], 2), ([(0, 1), (2, 0)], 1), ([(0, 1), (0, 2)], 1), ([], 0)],
)
def test_a_run_ends_where_one_copy_needs_another(copies: list[tuple[int, int]], num_runs: int) -> None:
    assert len(split_into_runs(copies, 6)) == num_runs


@pytest.mark.parametrize("num_spare", [0, 1])
def test_the_bytes_go_where_the_pairs_say_one_after_the_other(num_spare: int) -> None:
    rng = random.Random(1)
    planner = CopyPlanner(NUM_LAYERS, NUM_BLOCKS, NUM_BLOCKS + num_spare)
    for _ in range(50):
        caches = torch.randint(0, 256, (NUM_LAYERS, NUM_BLOCKS + num_spare, SIZE), dtype=torch.uint8)
        host = torch.randint(0, 256, (NUM_HOST, NUM_LAYERS, SIZE), dtype=torch.uint8)
        places = [caches[:, index] for index in range(NUM_BLOCKS)] + list(host)
        expected = [place.clone() for place in places]
        copies = []
        for _ in range(12):
            source, destination = rng.sample(range(NUM_BLOCKS + NUM_HOST), 2)
            if source < NUM_BLOCKS or destination < NUM_BLOCKS:
                copies.append((source, destination))
                expected[destination] = expected[source].clone()
        BlockCopier(caches, host, load("reference"))(planner(copies, DirectStage()))
        assert all(torch.equal(place, one) for place, one in zip(places, expected, strict=True))


def test_the_host_copies_nothing_inside_itself() -> None:
    with pytest.raises(ValueError, match="inside itself"):
        split_into_runs([(2, 3)], 2)
