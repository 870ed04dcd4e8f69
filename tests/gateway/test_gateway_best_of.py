"""best_of, and suffix beside it: the fields of old completions."""

from typing import Any

import pytest
from gateway_fakes import COMP, FakeEngineClient, Script, call, comp, ids

REPLIES = [ids("zero"), ids("one"), ids("two"), ids("three")]
LOGPROBS = (-0.75, -0.25, -0.5, -0.25)


def answer_differently(engine: FakeEngineClient) -> None:
    engine.script = lambda request: Script(REPLIES, choice_logprobs=LOGPROBS)


def test_the_best_come_first(app: Any, engine: FakeEngineClient) -> None:
    """Of equal ones the earlier; a longer one does not lose for its length."""
    answer_differently(engine)
    for n, texts in ((1, ["one"]), (2, ["one", "three"]), (3, ["one", "three", "two"])):
        body = call(app, COMP, comp(n=n, best_of=4)).json
        assert [choice["text"] for choice in body["choices"]] == texts
        assert [choice["index"] for choice in body["choices"]] == list(range(n))
        assert all(choice["logprobs"] is None for choice in body["choices"])
        assert body["usage"]["completion_tokens"] == sum(map(len, REPLIES)) + 4  # all, with their EOS
        request = engine.streams[-1].request
        assert (request.n, request.params.num_logprobs) == (4, 0)


def test_of_each_prompt(app: Any, engine: FakeEngineClient) -> None:
    answer_differently(engine)
    body = call(app, COMP, comp(["a", "b"], n=2, best_of=3, echo=True, return_token_ids=True)).json
    assert [choice["text"] for choice in body["choices"]] == ["aone", "atwo", "bone", "btwo"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [ids("a")] * 2 + [ids("b")] * 2


def test_asked_logprobs_are_shown(app: Any, engine: FakeEngineClient) -> None:
    answer_differently(engine)
    (choice,) = call(app, COMP, comp(best_of=4, logprobs=2)).json["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-0.25] * 4
    assert engine.streams[0].request.params.num_logprobs == 2


def test_as_many_as_n_is_nothing_special(app: Any, engine: FakeEngineClient) -> None:
    answer_differently(engine)
    for fields in ({"n": 2, "best_of": 2}, {"n": 2, "best_of": None}, {"n": 2}):
        body = call(app, COMP, comp(**fields)).json
        assert [choice["text"] for choice in body["choices"]] == ["zero", "one"]
        assert engine.streams[-1].request.params.num_logprobs == -1
    assert call(app, COMP, comp(n=2, best_of=2, stream=True)).events[-1] == "[DONE]"
    assert call(app, COMP, comp(best_of=1, stream=True)).events[-1] == "[DONE]"


def test_without_output_there_is_no_best(app: Any, engine: FakeEngineClient) -> None:
    body = call(app, COMP, comp(best_of=3, max_tokens=0)).json
    assert [choice["text"] for choice in body["choices"]] == [""]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 0}, "best_of"),
        ({"best_of": -1}, "best_of"),
        ({"best_of": 65}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": "2"}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 2, "n": 0}, "n"),
        ({"best_of": 2, "n": -1}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"suffix": 5}, "suffix"),
    ],
)
def test_refusals(app: Any, engine: FakeEngineClient, fields: dict[str, Any], param: str) -> None:
    answer = call(app, COMP, comp(**fields))
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert engine.streams == []


def test_suffix(app: Any) -> None:
    for value in (None, ""):
        assert call(app, COMP, comp(suffix=value)).status == 200
    assert "fill-in-the-middle" in call(app, COMP, comp(suffix="x")).json["error"]["message"]
