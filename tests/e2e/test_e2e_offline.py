"""``from octavo import LLM``: the same engine and the same text as the server's, without HTTP."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_http import CHAT, COMP, chat, comp, post
from e2e_process import ServerProcess, is_alive, own_core, processes_with, wait_until

from ipc.errors import ConfigError, EngineError, RequestError
from octavo import LLM, SamplingParams

PROMPTS = ["The lighthouse keeper", "A kettle sings", "Every morning the baker"]
SAMPLED = SamplingParams(temperature=1, seed=4, max_tokens=12, ignore_eos=True)


def make_llm(model: Path) -> LLM:
    """On one core, as the servers are."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {own_core(allowed)})
    try:
        return LLM(str(model), load_format="dummy", dtype="float32", max_model_len=32768, num_kv_blocks=8192)
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with make_llm(tiny_model) as llm:
        yield llm


def test_results_are_the_servers(llm: LLM, server: ServerProcess) -> None:
    fields = {"temperature": 1, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    expected = [choice["text"] for choice in post(server, COMP, comp(PROMPTS, **fields))["choices"]]
    found = llm.generate(PROMPTS, SAMPLED, use_tqdm=False)
    assert [output.outputs[0].text for output in found] == expected
    assert [output.prompt for output in found] == PROMPTS
    assert [output.outputs[0].finish_reason for output in found] == ["length"] * 3
    assert all(len(output.outputs[0].token_ids) == 12 for output in found)
    by_ids = llm.generate([output.prompt_token_ids for output in found], SAMPLED, use_tqdm=False)
    assert [output.outputs for output in by_ids] == [output.outputs for output in found]

    message = post(server, CHAT, chat("Which way?", max_tokens=10))["choices"][0]["message"]["content"]
    conversation = [{"role": "user", "content": "Which way?"}]
    greedy = SamplingParams(temperature=0, max_tokens=10)
    (one,) = llm.chat(conversation, greedy, use_tqdm=False)
    assert one.outputs[0].text == message
    both = llm.chat([conversation, conversation], greedy, use_tqdm=False)
    assert [output.outputs[0].text for output in both] == [message] * 2


def test_one_prompt_and_params_for_each(llm: LLM) -> None:
    (one,) = llm.generate(PROMPTS[0], SAMPLED, use_tqdm=False)
    (same,) = llm.generate(one.prompt_token_ids, SAMPLED, use_tqdm=False)
    assert same.outputs == one.outputs
    lengths = [1, 5, 9]
    params = [SamplingParams(max_tokens=length, ignore_eos=True, temperature=0) for length in lengths]
    found = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in found] == lengths
    with pytest.raises(ValueError, match="3 prompts, but 2 params"):
        llm.generate(PROMPTS, params[:2], use_tqdm=False)
    assert llm.generate([], SAMPLED, use_tqdm=False) == []


def test_choices_logprobs_and_stops(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1, seed=4, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    (alone,) = llm.generate(PROMPTS[0], SAMPLED, use_tqdm=False)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({choice.text for choice in output.outputs}) == 3
    assert output.outputs[0].text == alone.outputs[0].text
    assert output.prompt_logprobs is not None
    assert [entry.token_id for entry in output.prompt_logprobs] == output.prompt_token_ids[1:]
    for choice in output.outputs:
        assert choice.logprobs is not None
        assert [entry.token_id for entry in choice.logprobs] == choice.token_ids
        assert all(len(entry.top) >= 2 and entry.logprob <= 0 for entry in choice.logprobs)
    stop = alone.outputs[0].text[3:5]
    params = SamplingParams(temperature=1, seed=4, max_tokens=12, ignore_eos=True, stop=stop)
    (cut,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    found = cut.outputs[0]
    assert found.text == alone.outputs[0].text[: alone.outputs[0].text.index(stop)]
    assert (found.finish_reason, found.stop_reason) == ("stop", stop)


def test_errors_name_what_is_wrong_and_leave_it_working(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([5] * 40_000, SAMPLED, use_tqdm=False)
    assert caught.value.code == "context_length_exceeded"
    for prompt in ("", [99999], [-1]):
        with pytest.raises(RequestError) as caught:
            llm.generate([prompt], SAMPLED, use_tqdm=False)
        assert caught.value.param == "prompt"
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(RequestError) as caught:
        llm.chat([{"role": "user"}], use_tqdm=False)
    assert (caught.value.param or "").startswith("messages")
    assert llm.generate(PROMPTS[0], SAMPLED, use_tqdm=False)[0].outputs[0].text


def test_structured_outputs(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=1, max_tokens=20)
    (output,) = llm.generate(["ab"], params, structured_outputs={"regex": "[ab]{4}"}, use_tqdm=False)
    assert re.fullmatch("[ab]{4}", output.outputs[0].text)
    messages = [{"role": "user", "content": "ja?"}]
    (output,) = llm.chat(messages, params, structured_outputs={"choice": ["ja", "nein"]}, use_tqdm=False)
    assert output.outputs[0].text in ("ja", "nein")
    for wrong in ({"regex": "("}, {"regex": 5}, {"regex": "a", "choice": ["b"]}, {"poem": "x"}):
        with pytest.raises(RequestError, match="structured_outputs"):
            llm.generate(["ab"], params, structured_outputs=wrong, use_tqdm=False)


def test_a_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, SAMPLED)
    shown = capsys.readouterr()
    assert "3/3" in shown.err
    assert not shown.out


def test_from_several_threads(llm: LLM) -> None:
    expected = [output.outputs for output in llm.generate(PROMPTS, SAMPLED, use_tqdm=False)]
    found: dict[int, Any] = {}

    def ask(index: int) -> None:
        found[index] = llm.generate(PROMPTS[index], SAMPLED, use_tqdm=False)[0].outputs

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(3)] == expected


def test_what_cannot_be_loaded(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        LLM(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="'port'"):
        LLM(str(tiny_model), port=8000)
    with pytest.raises(ConfigError, match="'max_modle_len'"):
        LLM(str(tiny_model), max_modle_len=8)
    with pytest.raises(ConfigError, match="status 2"):
        LLM(str(tiny_model))  # it has no weights
    assert not [thread for thread in threading.enumerate() if thread.name == "octavo-llm" and thread.daemon is False]


def test_an_engine_that_is_killed_and_an_llm_that_is_closed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls under way end with an error, so do later ones; closing works all the same, and twice."""
    sockets = Path("/tmp") / f"e2e-llm-{os.getpid()}"
    sockets.mkdir()
    monkeypatch.setenv("TMPDIR", str(sockets))
    monkeypatch.setattr("tempfile.tempdir", None)
    endless = SamplingParams(max_tokens=30_000, ignore_eos=True)
    try:
        llm = make_llm(tiny_model)
        (engine,) = (pid for pid in processes_with(sockets) if pid != os.getpid())
        killer = threading.Timer(0.5, os.kill, (engine, signal.SIGKILL))
        killer.start()
        with pytest.raises(EngineError, match="the engine died"):
            llm.generate(PROMPTS, endless, use_tqdm=False)
        killer.join()
        assert not is_alive(engine)
        with pytest.raises(EngineError, match="the engine died"):
            llm.generate(PROMPTS, endless, use_tqdm=False)
        llm.close()
        llm.close()

        llm = make_llm(tiny_model)
        (engine,) = (pid for pid in processes_with(sockets) if pid != os.getpid())
        closer = threading.Timer(0.5, llm.close)
        closer.start()
        with pytest.raises(EngineError, match="closed"):
            llm.generate(PROMPTS, endless, use_tqdm=False)
        closer.join()
        assert not is_alive(engine)
        with pytest.raises(EngineError, match="closed"):
            llm.generate([], endless, use_tqdm=False)
        assert list(sockets.iterdir()) == []
    finally:
        sockets.rmdir()


SCRIPT = """
import logging, sys
handlers = list(logging.getLogger().handlers)
from octavo import LLM, SamplingParams
llm = LLM(sys.argv[1], load_format="dummy", dtype="float32", max_model_len=32768, num_kv_blocks=8192)
assert logging.getLogger().handlers == handlers
print("up", flush=True)
endless = int(sys.argv[2])
print(len(llm.generate([[5, 6]], SamplingParams(max_tokens=endless, ignore_eos=True))[0].outputs[0].token_ids))
"""


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_script_that_never_closes_it(tiny_model: Path, tmp_path: Path, is_interrupted: bool) -> None:
    """It ends by itself, or by Ctrl-C, and leaves neither a process nor a file."""
    sockets = Path("/tmp") / f"e2e-script-{os.getpid()}"
    sockets.mkdir()
    log = tmp_path / "log.txt"
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(tiny_model), "30000" if is_interrupted else "5"],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "TMPDIR": str(sockets)},
                start_new_session=True,
            )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            if is_interrupted:
                os.killpg(process.pid, signal.SIGINT)
            rest = process.stdout.read()
        assert process.returncode == (-signal.SIGINT if is_interrupted else 0), log.read_text()
        assert rest == ("" if is_interrupted else "5\n")
        wait_until(lambda: not processes_with(sockets), 5, "all processes have ended")
        assert list(sockets.iterdir()) == []
    finally:
        sockets.rmdir()
