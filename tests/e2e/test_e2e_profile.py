"""Profiles of a running server: what the files say, who may not have one, and that no token is another for it."""

import gzip
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_http import complete
from e2e_process import ServerProcess, wait_until

Start = Callable[..., ServerProcess]
SIZES = ("--max-model-len", "512", "--max-num-seqs", "4", "--num-kv-blocks", "128")
START, STOP = "/admin/profile/start", "/admin/profile/stop"
STAGES = {"octavo.schedule", "octavo.launch", "octavo.wait", "octavo.commit"}
PARTS = {"octavo.forward", "octavo.sample", "octavo.read"}


def ask(server: ServerProcess, path: str, body: Any = None) -> tuple[int, Any]:
    response = server.http.post(path, json=body) if body is not None else server.http.post(path)
    return response.status_code, response.json()


def refused(server: ServerProcess, path: str, body: Any = None) -> tuple[int, str]:
    """Status and code."""
    status, answer = ask(server, path, body)
    return status, answer["error"]["code"]


def events(trace: str | Path) -> list[Any]:
    """The ranges of a trace."""
    data = json.loads(gzip.decompress(Path(trace).read_bytes()))
    return [event for event in data["traceEvents"] if event.get("ph") == "X"]


def generate(server: ServerProcess) -> tuple[str, Any]:
    """Text and log-probabilities."""
    choice = complete(server, max_tokens=24, ignore_eos=True, temperature=1, seed=5, logprobs=2)
    return choice["text"], choice["logprobs"]


@pytest.mark.parametrize(
    "flags",
    [("--api-server-count", "1"), ("--api-server-count", "2", "--async-scheduling")],
    ids=["one gateway", "several gateways and overlap"],
)
def test_profiles(start: Start, tmp_path: Path, flags: tuple[str, ...]) -> None:
    folder = tmp_path / "profiles"
    server = start(*SIZES, *flags, "--profile-dir", str(folder)).wait_ready()
    assert refused(server, STOP) == (409, "profile_conflict")
    assert not folder.exists()
    plain = generate(server)

    status, begun = ask(server, START)
    assert (status, begun["status"], begun["num_steps"], begun["max_seconds"]) == (200, "started", 1000, 60.0)
    assert refused(server, START) == (409, "profile_conflict")
    assert generate(server) == plain
    status, written = ask(server, STOP)
    assert (status, written["status"], written["files"]) == (200, "written", begun["files"])
    assert 23 <= written["num_steps"] <= 26
    assert 0 < written["seconds"] < 60
    assert refused(server, STOP) == (409, "profile_conflict")
    assert generate(server) == plain

    trace, stacks = map(Path, written["files"])
    assert sorted(folder.iterdir()) == sorted((trace, stacks))
    found = events(trace)
    names = {event["name"] for event in found}
    assert names >= STAGES | PARTS
    assert names & {"linear", "aten::mm", "aten::linear"}  # native kernels, or the reference's
    assert any(name.startswith("aten::") for name in names)
    prepared = [event["name"] for event in found if event["name"].startswith("octavo.prepare step")]
    steps = [int(re.search(r"step (\d+):", name).group(1)) for name in prepared]  # type: ignore[union-attr]
    assert len(steps) >= 23
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert all(event["dur"] >= 0 for event in found)
    lines = stacks.read_text().splitlines()
    assert all(re.fullmatch(r".+;.+ \d+", line) for line in lines)
    assert any("EngineCore.run" in line for line in lines)

    # One of a few steps ends by itself.
    status, few = ask(server, START, {"num_steps": 5})
    assert (status, few["num_steps"]) == (200, 5)
    assert generate(server) == plain
    wait_until(Path(few["files"][1]).exists, 60, "the profile is written")
    assert sum(event["name"] == "octavo.commit" for event in events(few["files"][0])) == 5
    status, answer = ask(server, STOP)
    assert status == 409
    assert few["files"][0] in answer["error"]["message"]
    server.check_healthy()


def test_a_step_by_its_number_and_an_engine_that_dies(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    flags = ("--profile-dir", str(folder), "--profile-step", "10")
    server = start(*SIZES, "--no-async-scheduling", *flags).wait_ready()
    plain = generate(server)
    wait_until(lambda: len(list(folder.glob("*.stacks.txt"))) == 1, 60, "the step is written")
    (trace,) = folder.glob("*.trace.json.gz")
    assert "-engine1-step10." in trace.name
    found = [event["name"] for event in events(trace)]
    assert all(found.count(name) == 1 for name in ("octavo.launch", "octavo.commit", "octavo.forward"))
    assert [name for name in found if name.startswith("octavo.prepare")] == ["octavo.prepare step 10: 1 tokens of 1"]

    status, lost = ask(server, START)
    assert status == 200
    (engine,) = server.engine_pids()
    os.kill(engine, signal.SIGKILL)
    assert generate(server) == plain  # by another engine
    assert refused(server, STOP) == (409, "profile_conflict")
    assert generate(server) == plain
    assert not any(Path(file).exists() for file in lost["files"])
    assert len(list(folder.iterdir())) == 2, "the second engine has its tenth step behind it"
    status, begun = ask(server, START)
    assert (status, "-engine2-" in begun["files"][0]) == (200, True)
    assert ask(server, STOP)[0] == 200


def test_without_a_folder(server: ServerProcess) -> None:
    for path in (START, STOP):
        status, answer = ask(server, path)
        assert (status, answer["error"]["code"]) == (400, "no_profile_dir")
        assert "--profile-dir" in answer["error"]["message"]
    for body, param in (({"num_steps": 0}, "num_steps"), ({"profile_dir": "/tmp"}, "profile_dir")):
        status, answer = ask(server, START, body)
        assert (status, answer["error"]["param"]) == (400, param)
    page = server.http.post(START, headers={"Origin": "https://page.example"})
    assert (page.status_code, page.json()["error"]["code"]) == (403, "insufficient_scope")


def test_a_folder_that_cannot_be_made(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = start(*SIZES, "--profile-dir", str(tmp_path / "file" / "folder")).wait_ready()
    status, answer = ask(server, START)
    assert (status, answer["error"]["code"]) == (500, "failed")
    assert "cannot begin" in answer["error"]["message"]
    server.check_healthy()
