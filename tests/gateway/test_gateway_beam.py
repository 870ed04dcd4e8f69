"""Beam search over HTTP: what reaches the engine, and the fields that do not go with it, each refused by name."""

from typing import Any

import pytest
from gateway_fakes import CHAT, COMP, EOS, FakeEngineClient, call, chat, comp

from gateway.engine_stream import GenerationRequest
from ipc.params import MAX_BEAM_WIDTH, BeamParams

FORCED = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}


def sent(app: Any, engine: FakeEngineClient, path: str, **fields: Any) -> GenerationRequest:
    answer = call(app, path, (chat if path == CHAT else comp)(**fields))
    assert answer.status == 200, answer.body
    return engine.streams[-1].request


@pytest.mark.parametrize("path", [CHAT, COMP])
def test_n_beams_are_searched_and_returned(app: Any, engine: FakeEngineClient, path: str) -> None:
    assert sent(app, engine, path).beam is None
    assert sent(app, engine, path, use_beam_search=False, length_penalty=1).beam is None
    assert sent(app, engine, path, use_beam_search=True).beam == BeamParams(1)
    request = sent(app, engine, path, use_beam_search=True, n=3, length_penalty=-0.5, stop_token_ids=[7])
    assert (request.beam, request.n, request.params.stop_set) == (BeamParams(3, -0.5), 3, {EOS, 7})
    neutral = {"temperature": 0, "top_k": -1, "top_p": 1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}
    lists: dict[str, Any] = {"repetition_penalty": 1, "logit_bias": {}, "min_tokens": 0, "stop": [], "bad_words": []}
    sent(app, engine, path, use_beam_search=True, ignore_eos=True, seed=None, **neutral, **lists)
    sent(app, engine, path, use_beam_search=True, temperature=1)


def test_best_of_beams_are_searched_and_n_of_them_returned(app: Any, engine: FakeEngineClient) -> None:
    engine.answer("one", "two", "three")
    answer = call(app, COMP, comp(["a", "b"], use_beam_search=True, n=2, best_of=5))
    assert [choice["text"] for choice in answer.json["choices"]] == ["one", "two"] * 2
    assert answer.json["usage"]["completion_tokens"] == 2 * (len("one") + 1 + len("two") + 1)
    for stream in engine.streams:
        assert (stream.request.beam, stream.request.n, stream.request.params.num_logprobs) == (BeamParams(5), 2, -1)


def test_logprobs_and_echo_go_with_it(app: Any, engine: FakeEngineClient) -> None:
    answer = call(app, COMP, comp("ab", use_beam_search=True, n=2, logprobs=2, echo=True, prompt_logprobs=1))
    assert answer.status == 200
    assert engine.streams[-1].request.num_prompt_logprobs == 2
    assert len(answer.json["choices"]) == 2
    answer = call(app, CHAT, chat(use_beam_search=True, logprobs=True, top_logprobs=1))
    assert answer.json["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("path", [CHAT, COMP])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"temperature": 0.5}, "temperature"),
        ({"top_k": 5}, "top_k"),
        ({"top_p": 0.9}, "top_p"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"seed": 0}, "seed"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"stop": "x"}, "stop"),
        ({"stop": ["x"]}, "stop"),
        ({"allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": MAX_BEAM_WIDTH + 1}, "n"),
        ({"n": 0}, "n"),
        ({"length_penalty": 10.1}, "length_penalty"),
        ({"length_penalty": -11}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"length_penalty": 2, "use_beam_search": False}, "length_penalty"),
        ({"length_penalty": 2, "use_beam_search": None}, "length_penalty"),
        ({"use_beam_search": "yes"}, "use_beam_search"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(
    app: Any, engine: FakeEngineClient, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = call(app, path, (chat if path == CHAT else comp)(**{"use_beam_search": True, **fields}))
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert engine.streams == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(use_beam_search=True, **FORCED), "tools"),
        (COMP, comp(use_beam_search=True, n=3, best_of=2), "best_of"),
        (COMP, comp(use_beam_search=True, best_of=MAX_BEAM_WIDTH + 1), "best_of"),
    ],
)
def test_what_only_one_route_has(app: Any, engine: FakeEngineClient, path: str, body: Any, param: str) -> None:
    answer = call(app, path, body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert engine.streams == []
