"""From tokens to text over the wire: characters in pieces, stop strings anywhere, the same text in both modes."""

from dataclasses import dataclass
from typing import Any

import pytest
from e2e_http import CHAT, COMP, chat, comp, post, stream
from e2e_models import CORPUS
from e2e_process import ServerProcess

NUM_TOKENS = 40


@dataclass(frozen=True)
class Answer:
    """The text of one choice, why it ended, and its usage."""

    text: str
    finish_reason: str
    stop_reason: Any
    num_tokens: int


def both_modes(server: ServerProcess, path: str, body: dict[str, Any]) -> Answer:
    """The answer, which must be the same streamed and whole."""
    whole = post(server, path, body)
    (choice,) = whole["choices"]
    text = choice["text"] if path == COMP else choice["message"]["content"]
    streamed = stream(server, path, {**body, "stream_options": {"include_usage": True}})
    assert streamed.text() == text
    assert streamed.finish_reasons() == [choice["finish_reason"]]
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    return Answer(text, choice["finish_reason"], choice["stop_reason"], whole["usage"]["completion_tokens"])


class Reference:
    """A text of whole words that the model writes if nothing stops it, with its tokens."""

    def __init__(self, server: ServerProcess, path: str) -> None:
        self._server, self.path = server, path
        words = post(server, "/tokenize", {"prompt": " ".join(CORPUS[index] for index in (0, 1, 4))})["tokens"]
        self.fields = {
            "allowed_token_ids": sorted(set(words)),
            "temperature": 1,
            "seed": 11,
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
        }
        body = self.body(logprobs=0 if path == COMP else True)
        (choice,) = post(server, path, body)["choices"]
        if path == COMP:
            self.text, self.tokens = choice["text"], choice["logprobs"]["tokens"]
        else:
            self.text = choice["message"]["content"]
            self.tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert "".join(self.tokens) == self.text
        assert len(self.tokens) == NUM_TOKENS

    def body(self, **fields: Any) -> dict[str, Any]:
        return (comp if self.path == COMP else chat)(**{**self.fields, **fields})

    def check(self, *stops: str) -> None:
        """The text ends at the earliest place where one of the stops is complete, in every mode."""
        found = {stop: self.text.find(stop) for stop in stops if stop in self.text}
        # The stop whose last character comes first is seen first, as a reader of the stream sees it.
        first = min(found, key=lambda stop: found[stop] + len(stop))
        end = found[first] + len(first)
        num_tokens = next(n for n in range(NUM_TOKENS + 1) if len("".join(self.tokens[:n])) >= end)
        cut = both_modes(self._server, self.path, self.body(stop=list(stops)))
        assert cut == Answer(self.text[: found[first]], "stop", first, num_tokens)
        kept = both_modes(self._server, self.path, self.body(stop=list(stops), include_stop_str_in_output=True))
        assert kept == Answer(self.text[:end], "stop", first, num_tokens)

    def border(self, first: int) -> int:
        """The index of a token from ``first`` on that has two characters, as its successor does."""
        return next(i for i in range(first, NUM_TOKENS) if min(len(self.tokens[i]), len(self.tokens[i + 1])) >= 2)


@pytest.fixture(scope="module", params=[CHAT, COMP])
def reference(request: pytest.FixtureRequest, main_process: ServerProcess) -> Reference:
    return Reference(main_process, request.param)


def test_stop_across_a_token_border(server: ServerProcess, reference: Reference) -> None:
    border = reference.border(8)
    reference.check(reference.tokens[border][-2:] + reference.tokens[border + 1][:2])


def test_stop_inside_a_token(server: ServerProcess, reference: Reference) -> None:
    token = max(reference.tokens, key=len)
    assert len(token) >= 4
    reference.check(token[1:-1])


def test_stop_across_three_tokens(server: ServerProcess, reference: Reference) -> None:
    reference.check("".join(reference.tokens[17:20]))


def test_the_first_of_several_stops_ends_it(server: ServerProcess, reference: Reference) -> None:
    early, late = "".join(reference.tokens[6:9]), "".join(reference.tokens[25:28])
    reference.check(late, early)
    reference.check("never in the text", late)


def test_what_was_held_back_for_a_stop_is_sent_at_the_end(server: ServerProcess, reference: Reference) -> None:
    """The text ends in the middle of what could have been the stop."""
    beginning = "".join(reference.tokens[-3:])
    answer = both_modes(server, reference.path, reference.body(stop=beginning + "####"))
    assert answer == Answer(reference.text, "length", None, NUM_TOKENS)


def test_text_held_back_is_sent_before_the_models_own_end(server: ServerProcess, reference: Reference) -> None:
    fields = {"ignore_eos": False, "logit_bias": {"2": 100}, "min_tokens": 12, "allowed_token_ids": None}
    bias = {**fields, "stop": "".join(reference.tokens[9:12]) + "####"}
    words = [*reference.fields["allowed_token_ids"], 2]  # type: ignore[misc]
    answer = both_modes(server, reference.path, reference.body(**{**bias, "allowed_token_ids": words}))
    assert answer == Answer("".join(reference.tokens[:12]), "stop", None, 13)


def test_logprobs_end_with_the_token_that_completed_the_stop(server: ServerProcess) -> None:
    reference = Reference(server, COMP)
    stop = "".join(reference.tokens[10:12])
    num_tokens = next(n for n in range(NUM_TOKENS) if stop in "".join(reference.tokens[:n]))
    (choice,) = post(server, COMP, reference.body(stop=stop, logprobs=2))["choices"]
    assert choice["logprobs"]["tokens"] == reference.tokens[:num_tokens]
    streamed = stream(server, COMP, reference.body(stop=stop, logprobs=2))
    tokens = [token for part in streamed.choice() if part["logprobs"] for token in part["logprobs"]["tokens"]]
    assert tokens == reference.tokens[:num_tokens]


def test_stop_token_ids(server: ServerProcess) -> None:
    reference = Reference(server, COMP)
    (stop_id,) = post(server, "/tokenize", {"prompt": reference.tokens[20]})["tokens"]
    first = reference.tokens.index(reference.tokens[20])
    for fields, text in (
        ({}, reference.tokens[:first]),
        ({"include_stop_str_in_output": True}, reference.tokens[: first + 1]),
    ):
        answer = both_modes(server, COMP, reference.body(stop_token_ids=[stop_id], **fields))
        assert answer == Answer("".join(text), "stop", stop_id, first + 1)


@pytest.mark.parametrize("seed", range(4))
def test_characters_in_pieces(server: ServerProcess, seed: int) -> None:
    """Bytes of emoji and CJK in any order: the text is what they decode to, and no stream shows more or less."""
    ids = post(server, "/tokenize", {"prompt": "ok 🙂🌶 日本é שלום"})["tokens"]
    body = chat(temperature=1, seed=seed, max_tokens=60, ignore_eos=True, allowed_token_ids=ids, logprobs=True)
    entries = post(server, CHAT, body)["choices"][0]["logprobs"]["content"]
    written = b"".join(bytes(entry["bytes"]) for entry in entries)
    answer = both_modes(server, CHAT, body)
    assert answer.text == written.decode("utf-8", errors="replace")
    assert any(character in answer.text for character in "🙂🌶日本é")


@pytest.mark.parametrize("max_tokens", [1, 6])
def test_a_character_that_is_never_completed(server: ServerProcess, max_tokens: int) -> None:
    first, *_ = post(server, "/tokenize", {"prompt": "🙂"})["tokens"]
    bytes_of_it = post(server, CHAT, chat(logit_bias={str(first): 100}, max_tokens=1, logprobs=True))
    piece = bytes(bytes_of_it["choices"][0]["logprobs"]["content"][0]["bytes"])
    assert piece == "🙂".encode()[: len(piece)] != "🙂".encode()
    answer = both_modes(server, COMP, comp("a", logit_bias={str(first): 100}, max_tokens=max_tokens))
    assert answer == Answer((piece * max_tokens).decode(errors="replace"), "length", None, max_tokens)
    assert answer.text
