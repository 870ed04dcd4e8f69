"""The host's part of a step, and the core in this process that it and the engine's figures are made with."""

import pytest

from benchmarks import engine, host
from benchmarks.host import HostEngine, HostStep, phase_table, run_case
from benchmarks.local_core import LocalChannel
from ipc.errors import ConfigError
from ipc.messages import Failed


def test_a_case_has_both_phases_and_everybody_in_each_decode() -> None:
    steps = run_case(3, 2, 4)
    assert [step.num_sequences for step in steps["decode"]] == [3] * 4
    assert sum(step.num_sequences for step in steps["prefill"]) >= 3
    assert all(min(step.schedule, step.build, step.commit) > 0 for step in steps["decode"])


def test_waiting_requests_wait() -> None:
    local = HostEngine(2, 5, 8).local
    local.step_until(lambda: local.core.times.num_steps == 3)
    assert (len(local.core.scheduler.running), local.core.scheduler.num_waiting) == (2, 5)


def test_a_sequence_that_has_ended_spoils_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "HostEngine", lambda running, waiting, outputs: HostEngine(running, waiting, 3))
    with pytest.raises(RuntimeError, match="3 sequences were to decode, there were 0"):
        run_case(3, 0, 4)


def test_the_table_has_medians_of_rounds() -> None:
    rounds = [[HostStep(32, 1000, 2000, 3000)] * 2 + [HostStep(32, 9000, 9000, 9000)], [HostStep(32, 3000, 2000, 3000)]]
    (row,) = phase_table("decode", {(32, 10): rounds}, 2).rows
    assert row[:4] == ["32", "10", "32", "2 (1 - 3)"]
    assert row[6:] == ["7 (6 - 8)", "27", "0.22", "300"]


def test_decode_and_prefill_of_the_engines_figures() -> None:
    local = HostEngine(4, 0, 60).local
    local.step_until(lambda: local.core.is_idle)
    result = engine.decode(local, 3, 5, None)
    assert 0 < result.host < result.step
    assert result.context == host.PROMPT_TOKENS + 1 + engine.WARM_UP_STEPS + 5 / 2
    assert local.core.is_idle
    local.core.scheduler.check_integrity()
    assert engine.prefill(local, 40) > 0


def test_decode_of_sequences_that_cannot_last_fails() -> None:
    local = HostEngine(2, 0, 60).local
    local.step_until(lambda: local.core.is_idle)
    with pytest.raises(RuntimeError, match="idle before"):
        local.step_until(lambda: False)
    with pytest.raises(RuntimeError, match="only 1 of 3 sequences"):
        engine.decode(local, 3, 1, None)


def test_a_failed_request_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="request 3 failed: too long"):
        LocalChannel().send(b"", Failed(3, -1, "impossible", "too long"))


def test_outputs_last_until_the_steps_are_done() -> None:
    assert engine.num_output_tokens(64, 32, 2048) >= 64 * engine.PROMPT_TOKENS / 2048 + 32
    with pytest.raises(ConfigError, match="leaves nothing"):
        engine.num_output_tokens(64, 32, 64)


def test_the_engines_configuration_takes_what_is_said() -> None:
    config = engine.engine_config(model={"model": "x", "quantization": None}, cache={"block_size": 32}, scheduler={})
    assert (config.model.quantization, config.cache.block_size) == (None, 32)
    with pytest.raises(ConfigError, match="block_size"):
        engine.engine_config(model={"model": "x"}, cache={"block_size": 33})
