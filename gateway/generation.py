"""One prompt's generation as text: engine outputs in, deltas of text, tokens and log-probabilities out.

Shared by the HTTP routes and the offline class. Knows the engine client and ``gateway.text``; must not know HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec

from gateway.engine_client import EngineClient
from gateway.engine_stream import ChoiceOutput, EngineStream, GenerationRequest
from gateway.logprobs import TokenLogprob, unpack_logprobs, unpack_ranked
from gateway.notifier import Notifier
from gateway.recorder import RequestRecorder
from gateway.text.detokenizer import IncrementalDetokenizer
from gateway.text.tokenizer import Tokenizer
from ipc.errors import CapacityError, EngineError, OctavoError, RequestError
from ipc.messages import FinishReason


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How tokens become text. ``with_offsets``: every delta says where in the text each token begins."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    with_offsets: bool = False


class ChoiceDelta(msgspec.Struct, gc=False):
    """What was new of one choice.

    ``text`` may lag behind ``token_ids``: half a character and what may be the beginning of a stop string are
    held back. ``offsets``: where each token begins, in characters of the choice's generated text before a stop
    string is cut off. ``finish_reason`` (stop, length, deadline, abort) is set in the last one, with the stop text or
    the request's own stop token id as ``stop_reason``.
    """

    choice: int
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    offsets: list[int] = []
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, later: "ChoiceDelta") -> None:
        """Both as one."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.offsets += later.offsets
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


class Generation:
    """An async context manager around one request; leaving it aborts what has not ended.

    ``prompt_logprobs`` (positions 1 …) and ``num_cached_tokens`` are known from the first delta on,
    ``num_output_tokens`` counts all choices. ``notifier`` is told when ``take`` has news; it may be replaced before
    the request begins, by one that others notify, too. Everything of a request's text happens where it is taken, so an
    error of it ends that request alone.
    """

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        options: TextOptions,
        tokenizer: Tokenizer,
        recorder: RequestRecorder,
    ) -> None:
        self.request = request
        self.prompt_logprobs: list[TokenLogprob] | None = None
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.notifier = Notifier()
        self._client, self._recorder = client, recorder
        self._with_offsets = options.with_offsets
        self._include_stop = options.include_stop_str_in_output
        self._stop_ids = request.params.stop_set
        self._texts = [
            IncrementalDetokenizer(
                tokenizer,
                skip_special_tokens=options.skip_special_tokens,
                stop=options.stop,
                include_stop_str_in_output=options.include_stop_str_in_output,
                min_tokens=request.params.min_tokens,
            )
            for _ in range(request.n)
        ]
        self._finish_reasons: list[str | None] = [None] * request.n
        self._num_open = request.n
        self._is_accepted = False

    async def __aenter__(self) -> "Generation":
        try:
            self._stream: EngineStream = self._client.submit(self.request, self.notifier)
        except OctavoError as error:
            self._recorder.refuse(error)
            raise
        self._recorder.request_id = self._stream.request_id
        if self._recorder.captures_content:
            self._recorder.texts = self._shown_texts
        await self._stream.__aenter__()
        return self

    async def accepted(self) -> None:
        """Waits until the engine has the request in its queue.

        Raises RequestError, CapacityError or EngineError if it does not take it.
        """
        await self._stream.accepted()
        self._is_accepted = True
        self._recorder.accepted()

    @property
    def is_finished(self) -> bool:
        """All choices have ended."""
        return not self._num_open

    def take(self) -> list[ChoiceDelta]:
        """What is new, at most one delta a choice, perhaps none. Raises EngineError when the request failed."""
        outputs = self._stream.take() if self._num_open else None
        return self._convert(outputs) if outputs else []

    async def deltas(self) -> list[ChoiceDelta]:
        """What ``take`` returns, as soon as that is something. Empty when all choices have ended."""
        while self._num_open:
            if deltas := self._convert(await self._stream.outputs()):
                return deltas
        return []

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._num_open:
            if isinstance(error, RequestError | CapacityError) and not self._is_accepted:
                self._recorder.refuse(error)
            elif isinstance(error, Exception):
                self._recorder.end("error", self._finish_reasons, error)
            else:
                self._recorder.end("abort", self._finish_reasons)
        await self._stream.__aexit__(kind, error, trace)

    def _convert(self, outputs: Sequence[ChoiceOutput]) -> list[ChoiceDelta]:
        self._recorder.observe(outputs)
        deltas: dict[int, ChoiceDelta] = {}
        for output in outputs:
            choice = output.choice
            if output.prompt_logprobs is not None and self.prompt_logprobs is None:
                self.prompt_logprobs = unpack_ranked(output.prompt_logprobs, self.request.prompt_ids[1:])
            if choice == 0 and output.num_cached_tokens > self.num_cached_tokens:
                self.num_cached_tokens = output.num_cached_tokens
            if self._finish_reasons[choice] is not None:
                continue  # it ended at a stop string; what the engine computed since is not wanted
            delta = self._delta(output)
            if choice in deltas:
                deltas[choice].add(delta)
            elif delta.token_ids or delta.text or delta.finish_reason:
                deltas[choice] = delta
        if not self._num_open:
            reasons = [reason for reason in self._finish_reasons if reason is not None]
            self._recorder.end(reasons[-1], reasons)
        return list(deltas.values())

    def _shown_texts(self) -> list[str]:
        return [text.text for text in self._texts]

    def _delta(self, output: ChoiceOutput) -> ChoiceDelta:
        text = self._texts[output.choice]
        num_before = text.num_tokens
        token_ids, finish = output.token_ids, output.finish
        ends_by_id = finish is FinishReason.STOP and bool(token_ids) and token_ids[-1] in self._stop_ids
        new_text = text.push(token_ids[:-1] if ends_by_id and not self._include_stop else token_ids)
        if finish is not None:
            new_text += text.finish()
        reason: str | None = None
        stop_reason: str | int | None = None
        match = text.stop_match
        if match is not None:
            token_ids = token_ids[: match.num_tokens - num_before]
            reason, stop_reason = "stop", match.stop
            if finish is None:
                self._stream.finish_choice(output.choice, match.num_tokens)
        elif finish is not None:
            reason, stop_reason = _finish_name(finish), output.stop_token_id
        if reason is not None:
            self._finish_reasons[output.choice] = reason
            self._num_open -= 1
        self.num_output_tokens += len(token_ids)
        logprobs = None if output.logprobs is None else unpack_logprobs(output.logprobs, token_ids)
        offsets = self._offsets(text, num_before, len(token_ids)) if self._with_offsets else []
        return ChoiceDelta(output.choice, new_text, token_ids, logprobs, offsets, reason, stop_reason)

    def _offsets(self, text: IncrementalDetokenizer, num_before: int, num_tokens: int) -> list[int]:
        offsets = list(text.token_offsets[num_before : num_before + num_tokens])
        # The token that ended the output was not shown: it begins where the text ends.
        return offsets + [len(text.text)] * (num_tokens - len(offsets))


def _finish_name(finish: FinishReason) -> str:
    if finish is FinishReason.ERROR:
        raise EngineError("the engine could not finish this request")
    return finish.name.lower()
