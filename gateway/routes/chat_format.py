"""What chat completions look like: chunks and the whole response, from each choice's text."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.chat_output import MessageDelta, MessageReader, ReasoningCount
from gateway.generation import ChoiceDelta
from gateway.logprobs import TokenLogprob
from gateway.routes.generate import ChoiceResult, Envelope
from gateway.routes.token_details import TokenDetails
from gateway.schema.chat import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChoiceLogprobs,
    ContentLogprob,
    FunctionDelta,
    MessageDeltaFields,
    ResponseMessage,
    ResponseToolCall,
    ToolCallDelta,
    TopLogprob,
)
from gateway.schema.common import Usage

_encode = msgspec.json.Encoder().encode
_OPENING = b'"delta":{"role":"assistant","content":%b},"logprobs":null,"finish_reason":null'


class ChoiceReader:
    """One choice's parsers. ``ends_as_call``: an answer that ends by itself with calls in it says ``tool_calls``."""

    def __init__(self, message: MessageReader, count: ReasoningCount | None, *, ends_as_call: bool) -> None:
        self._message, self._count = message, count
        self._ends_as_call = ends_as_call

    def read(self, text: str, offsets: list[int], *, is_last: bool) -> MessageDelta:
        """The next piece of the text, whose tokens begin at ``offsets``."""
        delta = self._message.read(text, is_last=is_last)
        if self._count is not None:
            self._count.add(offsets)
        return delta

    def finish_reason(self, reason: str) -> str:
        """Which reason the client is told."""
        return "tool_calls" if reason == "stop" and self._ends_as_call and self._message.num_calls else reason

    @property
    def num_reasoning_tokens(self) -> int:
        """So far."""
        return 0 if self._count is None else self._count.num_tokens


class ChatFormat:
    """``make_reader`` None: the text is the content, as it is. ``includes_reasoning``: else it is left out.

    ``has_content`` false: a grammar forces tool calls and nothing else.
    """

    stream_object = "chat.completion.chunk"

    def __init__(
        self,
        envelope: Envelope,
        details: TokenDetails,
        make_reader: Callable[[], ChoiceReader] | None,
        *,
        has_logprobs: bool,
        includes_reasoning: bool,
        has_content: bool = True,
    ) -> None:
        self._envelope, self._details, self._has_logprobs = envelope, details, has_logprobs
        self._make_reader, self._includes_reasoning = make_reader, includes_reasoning
        self._opening = _OPENING % (b'""' if has_content else b"null")
        self._readers: dict[int, ChoiceReader] = {}

    @property
    def num_reasoning_tokens(self) -> int:
        """Over all choices."""
        return sum(reader.num_reasoning_tokens for reader in self._readers.values())

    def opening(self, prompt_index: int) -> bytes | None:
        """The role."""
        return self._opening

    def opening_members(self) -> bytes:
        """What was asked of the prompt."""
        return self._details.prompt_members(0)

    def fields(self, prompt_index: int, delta: ChoiceDelta) -> bytes | None:
        """The next piece of the message."""
        ids = self._details.ids_member(delta.token_ids)
        if not (delta.text or delta.logprobs or delta.finish_reason or ids):
            return None
        reason = delta.finish_reason
        if self._make_reader is None:
            content = b'"delta":{"content":%b}' % _encode(delta.text) if delta.text else b'"delta":{}'
        else:
            reader = self._reader(delta.choice)
            fields = self._delta_fields(reader.read(delta.text, delta.offsets, is_last=reason is not None))
            if fields is None and not (delta.logprobs or reason or ids):
                return None
            content = b'"delta":%b' % (b"{}" if fields is None else _encode(fields))
            reason = None if reason is None else reader.finish_reason(reason)
        logprobs = b"null" if delta.logprobs is None else _encode(self._logprobs(delta.logprobs))
        if reason is None:
            return b'%b,"logprobs":%b,"finish_reason":null%b' % (content, logprobs, ids)
        finish = b'"finish_reason":%b,"stop_reason":%b' % (_encode(reason), _encode(delta.stop_reason))
        return b'%b,"logprobs":%b,%b%b' % (content, logprobs, finish, ids)

    def whole(self, results: Sequence[ChoiceResult], usage: Callable[[], Usage]) -> bytes:
        """A ``chat.completion``."""
        choices = [self._choice(result) for result in results]
        envelope = self._envelope
        return _encode(
            ChatCompletion(
                id=envelope.id,
                created=envelope.created,
                model=envelope.model,
                choices=choices,
                usage=usage(),
                system_fingerprint=envelope.system_fingerprint,
                **self._details.of_prompt(0),
            )
        )

    def _reader(self, choice: int) -> ChoiceReader:
        reader = self._readers.get(choice)
        if reader is None:
            assert self._make_reader is not None
            reader = self._readers[choice] = self._make_reader()
        return reader

    def _delta_fields(self, delta: MessageDelta) -> MessageDeltaFields | None:
        """None if there is nothing to show."""
        reasoning = delta.reasoning if self._includes_reasoning else ""
        if not (delta.content or reasoning or delta.tool_calls):
            return None
        calls = [
            ToolCallDelta(
                call.index,
                FunctionDelta(call.arguments, call.name),
                call.id,
                None if call.id is None else "function",
            )
            for call in delta.tool_calls
        ]
        return MessageDeltaFields(delta.content, reasoning, calls)

    def _choice(self, result: ChoiceResult) -> ChatChoice:
        message, reason = ResponseMessage("assistant", result.text), result.finish_reason
        if self._make_reader is not None:
            reader = self._reader(result.index)
            delta = reader.read(result.text, result.offsets, is_last=True)
            calls = [
                ResponseToolCall(call.id or "", CalledFunction(call.name or "", call.arguments))
                for call in delta.tool_calls
            ]
            message.content = delta.content or (None if calls else "")
            if calls:
                message.tool_calls = calls
            if delta.reasoning and self._includes_reasoning:
                message.reasoning = delta.reasoning
            reason = reader.finish_reason(reason)
        logprobs = self._logprobs(result.logprobs) if self._has_logprobs else None
        token_ids = self._details.ids(result.token_ids)
        return ChatChoice(result.index, message, logprobs, reason, result.stop_reason, token_ids)

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> ChoiceLogprobs:
        tokenizer, name = self._details.tokenizer, self._details.name
        content: list[ContentLogprob] = []
        for entry in logprobs:
            top = [
                TopLogprob(name(token_id), logprob, list(tokenizer.token_bytes(token_id)))
                for token_id, logprob in entry.top
                if tokenizer.has_token(token_id)
            ]
            token_bytes = list(tokenizer.token_bytes(entry.token_id))
            content.append(ContentLogprob(name(entry.token_id), entry.logprob, token_bytes, top))
        return ChoiceLogprobs(content)
