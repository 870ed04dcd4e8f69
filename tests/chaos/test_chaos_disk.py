"""A disk tier that fails under load: what should have come from it is computed, to the same tokens."""

import random
import resource
from pathlib import Path

import pytest
from chaos_load import Load, check_same
from chaos_requests import mixed_requests
from chaos_server import PATIENCE, ChaosServer, ChaosStarter, kill
from e2e_process import wait_until

NUM_REQUESTS = 24
FILE_BYTES = 40_000  # less than a block's file, more than the log


@pytest.fixture
def tiered(start: ChaosStarter, tmp_path: Path) -> ChaosServer:
    """A pool that is too small for the prompts, a little host memory, and a folder below it."""
    tiers = ("--kv-host-memory-bytes", str(8 * 2**20), "--kv-disk-path", str(tmp_path / "kv"))
    small = ("--num-kv-blocks", "200", "--max-model-len", "2048")
    return start(*small, *tiers, "--engine-max-restarts", "100").wait_ready()


def fill(folder: Path) -> None:
    """Nothing can be written there any more, nor read: not even by root."""
    folder.rename(folder.with_name("gone"))
    folder.write_text("no folder")


def damage(folder: Path, dice: random.Random) -> None:
    """Some files are short, some have other bytes, some are gone."""
    for path in sorted(folder.rglob("*.kv")):
        match dice.choice(["short", "changed", "gone", "as it was"]):
            case "short":
                path.write_bytes(path.read_bytes()[: dice.randrange(100)])
            case "changed":
                data = bytearray(path.read_bytes())
                data[dice.randrange(len(data))] ^= 1
                path.write_bytes(data)
            case "gone":
                path.unlink()


@pytest.mark.parametrize("fault", ["full", "no folder", "damaged", "killed"])
def test_a_disk_that_fails_changes_no_tokens(
    tiered: ChaosServer, tmp_path: Path, dice: random.Random, seed: int, fault: str
) -> None:
    """``full``: every write ends early, as on a full disk, but for this engine alone."""
    requests, folder, at_once = mixed_requests(seed, NUM_REQUESTS, 40), tmp_path / "kv", [0] * NUM_REQUESTS
    expected, _ = Load(requests, at_once).run(tiered)
    tiered.wait_idle(PATIENCE)
    wait_until(lambda: any(folder.rglob("*.kv")), PATIENCE, "something is on the disk")
    engine = tiered.wait_engine()
    match fault:
        case "full":
            resource.prlimit(engine, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        case "no folder":
            fill(folder)
        case "damaged":
            damage(folder, dice)
        case "killed":
            kill(engine)  # its host memory is gone, and perhaps it was writing
            tiered.wait_engine(other_than=engine)
    # Other prompts first, so that something is written and what was there is evicted.
    others = mixed_requests(seed + 1, NUM_REQUESTS, 40)
    Load(others, at_once).run(tiered)
    for _ in range(2):
        answers, _ = Load(requests, at_once).run(tiered)
        check_same(requests, answers, expected)
    values = tiered.settled_metrics()
    assert values["kv_tier_hits_total{tier=host}"] + values["kv_tier_hits_total{tier=disk}"] > 0
    if fault in ("full", "no folder"):
        assert values["kv_disk_errors_total"] > 0
        assert tiered.log.count("the disk tier of the KV cache does not work") == 1
    tiered.check_whole()
    tiered.check_quiet_log()
