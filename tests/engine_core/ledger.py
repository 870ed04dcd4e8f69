"""What a gateway knows of its requests. Every message is checked against the oracle when it comes."""

import re
from dataclasses import dataclass, field

from fake_model import Expected, generate, search

from ipc.codec import unpack_floats, unpack_ids
from ipc.messages import Abort, Accepted, Add, EventKind, Failed, Finish, FinishReason, Output, Outputs, ToGateway

# QUEUED, then BLOCKED until GRAMMAR_READY and ADMITTED, perhaps a CACHE_HIT; CHUNKs; PREEMPTED, BLOCKED until RESUMED,
# and so on.
STORY = re.compile(r"qb*(gb*)?(a h? c* (p b* r c*)* (p b*)?)?".replace(" ", ""))
# A beam search tells of its first step, and of the later ones only what went wrong; in its first choice.
BEAM_STORY = re.compile(r"(qb*(ah?[bhcpr]*)?)?")
LETTERS = {
    EventKind.QUEUED: "q",
    EventKind.BLOCKED: "b",
    EventKind.ADMITTED: "a",
    EventKind.CACHE_HIT: "h",
    EventKind.CHUNK: "c",
    EventKind.PREEMPTED: "p",
    EventKind.PREEMPTED_BY_SWAP: "p",
    EventKind.GRAMMAR_READY: "g",
    EventKind.RESUMED: "r",
}


@dataclass(slots=True)
class Choice:
    """One choice so far. ``wanted``: the end that the gateway has asked for."""

    expected: Expected
    token_ids: list[int]
    finish: FinishReason | None = None
    wanted: FinishReason | None = None
    num_tokens_at_first: int = 0
    story: str = ""
    times: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    """One request so far."""

    add: Add
    prompt_ids: list[int]
    choices: dict[int, Choice]
    is_accepted: bool = False
    failure: str | None = None
    prompt_logprobs: list[tuple[float, int]] | None = None

    @property
    def is_ended(self) -> bool:
        return self.failure is not None or all(choice.finish is not None for choice in self.choices.values())


class Ledger:
    """One gateway's requests."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.num_tokens = 0

    def submit(self, add: Add) -> Entry:
        """The request is on its way."""
        prompt_ids = unpack_ids(add.prompt_ids)
        choices = {
            index: Choice(
                _expect(add, prompt_ids, index),
                unpack_ids(output),
                num_tokens_at_first=len(add.prompt_ids + output) // 4,
            )
            for index, output in add.choices
        }
        entry = self.entries[add.request_id] = Entry(add, prompt_ids, choices)
        return entry

    def want(self, message: Finish | Abort) -> None:
        """The gateway sends this."""
        entry = self.entries[message.request_id]
        for index, choice in entry.choices.items():
            if isinstance(message, Abort) or index == message.choice:
                choice.wanted = FinishReason.ABORT if isinstance(message, Abort) else FinishReason(message.reason)

    def take(self, message: ToGateway) -> None:
        """The engine has sent this."""
        match message:
            case Accepted():
                entry = self.entries[message.request_id]
                assert not entry.is_accepted
                assert not entry.is_ended
                entry.is_accepted = True
            case Failed():
                entry = self.entries[message.request_id]
                assert not entry.is_ended, "a request ends once"
                entry.failure = message.code
                if entry.is_accepted:
                    self._check_failure(entry, message)
            case Outputs():
                for output in message.outputs:
                    self._take_output(output)
            case _:
                raise AssertionError(f"unexpected {message}")

    def _check_failure(self, entry: Entry, message: Failed) -> None:
        assert message.code in ("corrupt_logits", "no_token_left", "grammar_failed", "impossible")
        broken = [c for c in entry.choices.values() if c.expected.finish is None]
        assert any(len(c.token_ids) == len(c.expected.token_ids) for c in broken), "it failed too early"

    def _take_output(self, output: Output) -> None:
        entry = self.entries[output.request_id]
        choice = entry.choices[output.choice]
        assert entry.is_accepted
        assert entry.failure is None, "nothing comes after a failure"
        assert choice.finish is None, "a choice ends once"
        token_ids = unpack_ids(output.token_ids)
        choice.token_ids += token_ids
        self.num_tokens += len(token_ids)
        expected = choice.expected
        assert choice.token_ids == expected.token_ids[: len(choice.token_ids)], f"not {expected.token_ids}"
        self._check_logprobs(entry, choice, output, token_ids)
        self._check_story(choice, output, STORY if entry.add.beam is None else BEAM_STORY)
        assert output.num_cached_tokens < max(1, choice.num_tokens_at_first)
        assert token_ids or output.finish is not None
        if output.finish is not None:
            self._finish(entry, choice, output, token_ids)

    def _finish(self, entry: Entry, choice: Choice, output: Output, token_ids: list[int]) -> None:
        assert output.finish is not None
        choice.finish = finish = FinishReason(output.finish)
        if finish is FinishReason.DEADLINE:
            assert entry.add.deadline_ns, "it had none"
            assert not token_ids
            return
        if choice.wanted is not None and not token_ids:
            assert finish is choice.wanted
            return
        assert choice.token_ids == choice.expected.token_ids
        assert finish is choice.expected.finish
        params = entry.add.params
        is_own = finish is FinishReason.STOP and choice.token_ids[-1] in params.stop_token_ids
        is_own = is_own and choice.token_ids[-1] not in params.eos_token_ids
        assert output.stop_token_id == (choice.token_ids[-1] if is_own else None)
        if entry.add.num_prompt_logprobs >= 0 and output.choice == entry.add.choices[0][0]:
            assert entry.prompt_logprobs is not None, "the prompt's log-probabilities never came"

    def _check_logprobs(self, entry: Entry, choice: Choice, output: Output, token_ids: list[int]) -> None:
        found = output.logprobs
        if entry.add.params.num_logprobs >= 0 and token_ids:
            assert found is not None
            first = len(entry.prompt_ids) + len(choice.token_ids) - len(token_ids)
            if choice.expected.logprobs is None:
                assert unpack_floats(found.logprobs) == list(range(first, first + len(token_ids)))
                assert unpack_ids(found.ranks) == token_ids
            else:
                assert unpack_floats(found.logprobs) == choice.expected.logprobs
        else:
            assert found is None
        if output.prompt_logprobs is not None:
            assert entry.add.num_prompt_logprobs >= 0
            assert output.choice == entry.add.choices[0][0]
            assert entry.prompt_logprobs is None, "the prompt's log-probabilities came twice"
            positions = unpack_floats(output.prompt_logprobs.logprobs)
            entry.prompt_logprobs = list(zip(positions, unpack_ids(output.prompt_logprobs.ranks), strict=True))
            assert entry.prompt_logprobs == list(enumerate(entry.prompt_ids))[1:]

    def _check_story(self, choice: Choice, output: Output, pattern: re.Pattern[str]) -> None:
        choice.story += "".join(LETTERS[EventKind(kind)] for kind, _, _ in output.events)
        choice.times += [time_ns for _, time_ns, _ in output.events]
        assert pattern.fullmatch(choice.story), choice.story
        assert all(value < 2**64 for _, _, value in output.events), "an id that gateways do not know"
        assert choice.times == sorted(choice.times)


def _expect(add: Add, prompt_ids: list[int], index: int) -> Expected:
    if add.beam is None:
        return generate(prompt_ids, add.params, index, None if add.grammar is None else add.grammar[1])
    found = search(prompt_ids, add.params, add.beam, len(add.choices))
    return found[index] if len(found) == len(add.choices) else Expected([], None)
