"""Contract 1 on a device that computes as late as it may, whose decode steps are recorded, or whose memory is small."""

import json
from pathlib import Path

import pytest
from engine_harness import CONFIG, Harness, Result, make_requests, run_alone
from late_device import LateDevice, LateRecorder, SmallDevice
from msgspec import structs

from engine_core.device.queue import Device
from engine_core.hardware import Hardware
from ipc.messages import Add, Failed
from kernels.ops import load

ARITHMETIC = "reference-bfloat16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def requests() -> list[Add]:
    return make_requests(1)


@pytest.fixture(scope="module")
def expected(folder: Path, requests: list[Add]) -> dict[tuple[int, int], Result]:
    return run_alone(folder, ARITHMETIC, requests)


def make_harness(folder: Path, device: Device, *, overlap: bool, **settings: object) -> Harness:
    hardware = Hardware(device, load("reference"), overlap)
    return Harness(folder, ARITHMETIC, find_hardware=lambda config: hardware, async_scheduling=overlap, **settings)


@pytest.mark.parametrize("overlap", [False, True])
def test_nothing_is_changed_before_the_device_has_read_it(
    folder: Path, requests: list[Add], expected: dict[tuple[int, int], Result], overlap: bool
) -> None:
    device = LateDevice()
    harness = make_harness(folder, device, overlap=overlap, max_num_batched_tokens=37)
    for request in requests:
        harness.add(request)
    assert harness.run() == expected


@pytest.mark.parametrize("overlap", [False, True])
def test_recorded_decode_steps_give_the_same(
    folder: Path, requests: list[Add], expected: dict[tuple[int, int], Result], overlap: bool
) -> None:
    recorder = LateRecorder()
    harness = make_harness(folder, LateDevice(recorder), overlap=overlap)
    for round_ in range(2):  # in the second, more is recorded
        for request in requests:
            harness.add(request)
            harness.step()
        assert harness.run() == expected, round_
    assert recorder.num_recorded >= 3, "several sizes"
    assert recorder.num_replays > 20


def test_sizes_that_are_not_wanted_are_not_recorded(folder: Path, requests: list[Add]) -> None:
    recorder = LateRecorder()
    harness = make_harness(folder, LateDevice(recorder), overlap=True, cudagraph_capture_sizes=(2,))
    for request in requests:
        harness.add(request)
    harness.run()
    assert recorder.num_recorded == 1
    assert recorder.num_replays


@pytest.mark.parametrize("max_rows", [90, 30])
def test_a_step_that_is_too_large_runs_in_parts(
    folder: Path, requests: list[Add], expected: dict[tuple[int, int], Result], max_rows: int
) -> None:
    device = SmallDevice(max_rows=10**9)
    harness = make_harness(folder, device, overlap=False)
    device.max_rows = max_rows
    for request in requests:
        harness.add(request)
    failed = set()
    while not harness.engine.core.is_idle or harness.channel.inbox:
        harness.step()
    for message in list(harness.channel.sent):
        if isinstance(message, Failed):
            assert message.code == "out_of_memory"
            failed.add(message.request_id)
            harness.channel.sent.remove(message)
    found = harness.collect()
    harness.engine.core.scheduler.check_integrity()
    assert device.num_refused
    long = {request.request_id for request in requests if len(request.prompt_ids) // 4 > max_rows}
    assert failed <= long, "a request failed whose rows would have fitted alone"
    for key, result in expected.items():
        if key[0] not in failed:
            assert found[key] == result, key
    if max_rows == 90:
        assert not failed


def test_a_request_that_does_not_fit_alone_fails_alone(folder: Path, requests: list[Add]) -> None:
    device = SmallDevice(max_rows=10**9)
    harness = make_harness(folder, device, overlap=False)
    device.max_rows = 60
    long, short = requests[1], requests[0]
    assert len(long.prompt_ids) // 4 > 60
    harness.add(long)
    harness.add(structs.replace(short, prompt_ids=short.prompt_ids[:40]))
    while harness.channel.inbox or not harness.engine.core.is_idle:
        harness.step()
    failures = [message for message in harness.channel.sent if isinstance(message, Failed)]
    assert [(failure.request_id, failure.code) for failure in failures] == [(long.request_id, "out_of_memory")]
    harness.channel.sent.remove(failures[0])
    assert [key[0] for key in harness.collect()] == [short.request_id]
    harness.engine.core.scheduler.check_integrity()
