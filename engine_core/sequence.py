"""Requests and sequences: the host state of what runs.

A request is what was asked; each of its choices is one sequence. Tokens that a launched step has drawn but
the host has not seen are only counted (``num_pending``): hashes, stop checks and grammars see known tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from engine_core.kv_cache.block import BlockTable
from engine_core.kv_cache.manager import Fork
from engine_core.kv_cache.tiers import Swapped
from ipc.messages import Event, EventKind, FinishReason, TokenLogprobs, WaitReason
from ipc.params import BeamParams, SamplingParams

MAX_EVENTS = 256


class GrammarError(ValueError):
    """A grammar that cannot be compiled or followed; the text says why, in the client's terms."""


class Grammar(Protocol):
    """A constraint on one sequence's output, advanced by committed tokens only. Its methods raise GrammarError."""

    def accept(self, token_ids: tuple[int, ...]) -> None:
        """The sequence went on by these tokens."""

    @property
    def is_complete(self) -> bool:
        """Nothing may follow: the sequence ends, whatever its minimum length."""

    def mask(self) -> bytes:
        """Which ids may come next: one bit an id, lowest bit first, padded to whole 32-bit words.

        It alone says whether the sequence may end here.
        """


class SequenceStatus(Enum):
    """Where a sequence is. FINISHED ones keep slot and blocks until no launched step uses them."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """What was asked for. ``owner`` is the gateway's socket identity."""

    request_id: int
    owner: bytes
    arrival_ns: int
    params: SamplingParams
    num_prompt_tokens: int
    priority: int = 0
    tenant: str = ""
    weight: float = 1.0
    deadline_ns: int = 0
    is_resumed: bool = False  # an engine before this one had begun it
    num_prompt_logprobs: int = -1
    extra_keys: bytes = b""
    stop_set: frozenset[int] = frozenset()
    grammar: tuple[str, str] | None = None  # (kind, source), see ipc.grammar
    beam: BeamParams | None = None
    sequences: list[Sequence] = field(default_factory=list)
    continues: Request | None = None  # an ended one, at whose ``fork`` the first choice may begin
    is_continued: bool = False  # when it ends by its length its KV is held, for those that continue it
    fork: Fork | None = None  # computed tokens, held for sequences that have not begun
    num_forks_to_begin: int = 0  # sequences that may begin at ``fork``, and who may still add such
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the chunks computed so far
    is_prompt_sent: bool = False  # its log-probabilities were delivered

    @property
    def is_finished(self) -> bool:
        """All choices have ended."""
        return all(seq.is_finished for seq in self.sequences)


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation. ``token_ids`` are prompt and known output; positions count from the prompt's first token."""

    request: Request
    choice: int
    token_ids: list[int]
    output_limit: int = 0  # most output tokens; the scheduler knows it once the request is added
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    num_computed_tokens: int = 0  # their KV is written by the steps launched so far
    num_pending: int = 0  # tokens drawn by launched steps and not yet known here
    steps_in_flight: int = 0
    slot: int = -1
    block_table: BlockTable = field(default_factory=BlockTable)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published_blocks: int = 0
    num_sent_blocks: int = 0  # of the table, known to the device
    num_cached_tokens: int = 0  # at the first admission
    was_admitted: bool = False
    swapped: Swapped | None = None  # its KV while it is preempted, unless that is computed again
    was_sought_on_disk: bool = False  # since it began to wait
    waits_for_fork: bool = False  # not in the policy's set yet: the prompt is not computed
    grammar: Grammar | None = None
    wait_reason: WaitReason | None = None
    events: list[Event] = field(default_factory=list)  # not sent yet
    device_ns: float = 0.0  # its share of the steps' time
    kv_block_ns: int = 0  # blocks held × time, until ``charged_ns``
    charged_ns: int = 0
    committed_ns: int = 0  # when its last step was done

    @property
    def is_finished(self) -> bool:
        """Its last output has been made; nothing more will be."""
        return self.status is SequenceStatus.FINISHED

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return self.request.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        """Known output tokens."""
        return len(self.token_ids) - self.request.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Known tokens and those on their way."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_uncomputed_tokens(self) -> int:
        """How far the computed tokens are behind."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prompt_computed(self) -> bool:
        """All of the prompt is computed, or launched."""
        return self.num_computed_tokens >= self.request.num_prompt_tokens

    @property
    def has_prompt_logprobs_to_compute(self) -> bool:
        """Its prompt must go through the model even where its KV is known."""
        request = self.request
        return request.num_prompt_logprobs >= 0 and self is request.sequences[0] and not request.is_prompt_sent

    def record(self, kind: EventKind, time_ns: int, value: int = 0) -> None:
        """Note what happened, for the next output; a wait that flickers does not fill memory."""
        if len(self.events) < MAX_EVENTS:
            self.events.append((int(kind), time_ns, value))

    def take_events(self) -> tuple[Event, ...]:
        """The events not sent yet; they are handed over once."""
        events, self.events = tuple(self.events), []
        return events
