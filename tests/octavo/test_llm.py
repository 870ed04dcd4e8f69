"""The offline class around a stub of an engine: order, errors, threads and ends. Its text is the e2e suite's."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from octavo_stubs import is_alive, make_executable, make_model, started, token_id, until

from ipc.errors import ConfigError, EngineError, RequestError
from octavo import LLM, SamplingParams

LONG = SamplingParams(max_tokens=400)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a model folder; engines started in the test are stubs, their sockets in ``tmp_path``."""
    monkeypatch.setattr("sys.executable", make_executable(tmp_path))
    return lambda **orders: make_model(tmp_path / "model", **orders)


def texts(llm: LLM, prompts: Any, params: Any) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]


def test_results_come_in_the_order_of_the_prompts(model: Callable[..., Path]) -> None:
    with LLM(str(model())) as llm:
        params = [SamplingParams(max_tokens=length) for length in (30, 2, 10)]
        assert texts(llm, ["xa", "b", "c"], params) == ["a" * 30, "b" * 2, "c" * 10]
        assert texts(llm, "a", None) == ["a" * 16]
        assert texts(llm, [], None) == []
        (output,) = llm.generate("a", SamplingParams(n=2, max_tokens=3, stop="aa"), use_tqdm=False)
        assert [(choice.text, choice.finish_reason, choice.stop_reason) for choice in output.outputs] == [
            ("", "stop", "aa"),
            ("", "stop", "aa"),
        ]
        (ids,) = {tuple(llm.generate("ab", use_tqdm=False)[0].prompt_token_ids)}
        (output,) = llm.generate(list(ids), SamplingParams(max_tokens=1), use_tqdm=False)
        assert (output.prompt, output.prompt_token_ids, output.outputs[0].text) == (None, list(ids), "b")
        (chat,) = llm.chat([{"role": "user", "content": "xyz"}], SamplingParams(max_tokens=2), use_tqdm=False)
        assert chat.outputs[0].text == "zz"
        with pytest.raises(ValueError, match="1 prompts, but 2 params"):
            llm.generate("a", [LONG, LONG])


def test_the_first_failure_is_raised_as_itself_and_ends_the_others(model: Callable[..., Path]) -> None:
    """Not as a group, and with nothing left running: the next call is served at once."""
    with LLM(str(model(fail_on=token_id("a")))) as llm:
        with pytest.raises(EngineError, match="not a number"):
            llm.generate(["b", "a", "c"], LONG, use_tqdm=False)
        assert llm._client.num_in_flight == 0
        with pytest.raises(RequestError) as caught:
            llm.generate(["b", ""], LONG, use_tqdm=False)
        assert caught.value.param == "prompt"
        assert texts(llm, "b", SamplingParams(max_tokens=2)) == ["bb"]


def test_an_engine_that_dies(model: Callable[..., Path]) -> None:
    folder = model(die_on=token_id("a"))
    llm = LLM(str(folder))
    with pytest.raises(EngineError, match="the engine died"):
        llm.generate(["b", "a"], LONG, use_tqdm=False)
    with pytest.raises(EngineError, match="the engine died"):
        llm.generate("b", LONG, use_tqdm=False)
    llm.close()
    llm.close()
    assert not is_alive(started(folder)["pid"])


def test_closing_ends_calls_of_other_threads(model: Callable[..., Path]) -> None:
    folder = model()
    llm = LLM(str(folder))
    errors: list[EngineError] = []

    def ask() -> None:
        with pytest.raises(EngineError) as caught:
            llm.generate(["a"] * 20, SamplingParams(max_tokens=500), use_tqdm=False)
        errors.append(caught.value)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: llm._client.num_in_flight == 60)
    llm.close()
    for thread in threads:
        thread.join(10)
    assert [error.code for error in errors] == ["closed"] * 3
    assert not is_alive(started(folder)["pid"])
    with pytest.raises(EngineError, match="closed"):
        llm.generate([], LONG)


def test_an_interrupted_call_does_not_go_on(model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while results are awaited: what would take minutes is over at once."""
    with LLM(str(model(seconds_per_token=0.1))) as llm:

        class Interrupted:
            def __init__(self, future: Any) -> None:
                self.cancel = future.cancel

            def result(self) -> None:
                until(lambda: llm._client.num_in_flight == 2)
                raise KeyboardInterrupt

        really = asyncio.run_coroutine_threadsafe
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: Interrupted(really(work, loop)))
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["a", "b"], SamplingParams(max_tokens=500), use_tqdm=False)
        until(lambda: llm._client.num_in_flight == 0)
        assert texts(llm, "b", SamplingParams(max_tokens=2)) == ["bb"]


@pytest.mark.parametrize("status", [1, 2])
def test_an_engine_that_does_not_come_up(model: Callable[..., Path], status: int) -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match=f"status {status}"):
        LLM(str(model(exit=status)))
    assert threading.active_count() <= before + 1  # asyncio's thread that waited for the process may be ending


def test_options_are_the_flags_that_concern_an_engine_or_text(model: Callable[..., Path]) -> None:
    folder = str(model())
    for options, message in (
        ({"port": 1}, "'port'"),
        ({"api_key": ("x",)}, "'api_key'"),
        ({"max_num_seq": 4}, "'max_num_seq'"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"chat_template": "/none"}, "--chat-template"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(folder, **options)
    with LLM(folder, max_num_seqs=4, generation_config="none", log_level="error") as llm:
        assert texts(llm, "b", SamplingParams(max_tokens=1)) == ["b"]
