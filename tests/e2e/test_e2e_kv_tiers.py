"""A server whose KV cache is too small, with host memory and a disk below it: the texts are those of one with room."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_http import COMP, comp, post
from e2e_process import ServerProcess

Start = Callable[..., ServerProcess]
SMALL = ("--max-model-len", "512", "--max-num-seqs", "4", "--num-kv-blocks", "24", "--max-num-batched-tokens", "128")
STORY = "It was a dark and stormy night; the rain fell in torrents. " * 2
PROMPTS = [f"Chapter {number}. {STORY}" for number in range(6)]


def texts_of(server: ServerProcess) -> list[str]:
    """All prompts at once, each with an answer as long."""
    texts = [""] * len(PROMPTS)

    def ask(index: int) -> None:
        body = comp(PROMPTS[index], max_tokens=150, ignore_eos=True, seed=index, temperature=1)
        texts[index] = post(server, COMP, body)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """Once the engine has reported that it is idle; it does so on becoming it."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = server.http.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith(f"octavo:{name}{{") and all(label in line for label in wanted))
    return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def expected(main_process: ServerProcess) -> list[str]:
    """From the server with room for everything."""
    return texts_of(main_process)


@pytest.mark.parametrize("overlap", ["--async-scheduling", "--no-async-scheduling"])
def test_swapped_requests_and_a_restart_change_no_text(
    start: Start, tmp_path: Path, expected: list[str], overlap: str
) -> None:
    tiers = ("--kv-host-memory-bytes", "64MiB", "--kv-disk-path", str(tmp_path / "kv"), "--preemption-mode", "swap")
    for turn in range(2):
        server = start(*SMALL, overlap, *tiers).wait_ready()
        assert texts_of(server) == expected
        assert metric(server, "preemptions_by_kind_total", kind="recompute") == 0
        if turn == 1:
            assert metric(server, "kv_tier_hits_total", tier="disk") > 0
            assert metric(server, "kv_disk_corrupt_files_total") == 0
        server.terminate()
        assert server.wait_exit(30) == 0
        assert "Fatal" not in server.log
        assert list((tmp_path / "kv").rglob("*.kv"))
