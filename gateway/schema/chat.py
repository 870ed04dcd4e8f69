"""/v1/chat/completions: the request, the whole response, and the messages as ``gateway.text`` takes them."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.schema.common import GenerationFields, Usage, generation_params
from gateway.schema.prompt_logprobs import PromptLogprobs
from gateway.schema.sampling import GenerationParams
from gateway.schema.tools import Tool, ToolChoice
from ipc.errors import RequestError

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message's content. Known other kinds are decoded so that they can be refused by name."""

    type: str
    text: str | None = None
    refusal: Any = None
    image_url: Any = None
    input_audio: Any = None
    audio_url: Any = None
    video_url: Any = None
    file: Any = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """The call of a function in an assistant message; ``arguments`` is JSON in a string."""

    name: str
    arguments: str = "{}"
    parsed_arguments: Any = None  # what the SDK made of them; sent back with the message


class ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    """One tool call of an assistant message of the history."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message. Whether it makes sense is ``gateway.text.chat_messages``'s to say."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    type: Literal["message", "text"] | None = None  # some clients write it; it says nothing
    content: str | list[ContentPart] | None | UnsetType = UNSET
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None  # the content once more, as OpenAI's client reads it
    audio: Any = None
    function_call: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatCompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None  # no effect without tools
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    documents: list[dict[str, Any]] | None = None

    echo: bool | None = None  # false only
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    verbosity: Any = None

    def to_params(self, max_logprobs: int) -> GenerationParams:
        """The sampling parameters. Raises RequestError naming the field."""
        if self.echo:
            raise RequestError("echo is not supported in chat", param="echo", code="unsupported_parameter")
        if self.top_logprobs is not None:
            if not 0 <= self.top_logprobs <= max_logprobs:
                raise RequestError(f"top_logprobs must be from 0 to {max_logprobs}", param="top_logprobs")
            if self.top_logprobs and not self.logprobs:
                raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
        return generation_params(self, (self.top_logprobs or 0) if self.logprobs else None, self.prompt_logprobs)


decoder = msgspec.json.Decoder(ChatCompletionRequest)


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The conversation as plain values, without the fields that say nothing.

    Raises RequestError with the path of a field whose effect this server does not have.
    """
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain_message(message: ChatMessage, path: str) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise RequestError(f"{path}.{name} is not supported by this server", param=f"{path}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise RequestError("only an assistant message may hold tool_calls", param=f"{path}.tool_calls")
    plain: dict[str, Any] = {"role": message.role}
    if message.content is None and message.refusal is not None:
        plain["content"] = message.refusal
    elif isinstance(message.content, list):
        plain["content"] = [_plain_part(part, f"{path}.content[{index}]") for index, part in enumerate(message.content)]
    elif message.content is not UNSET:
        plain["content"] = message.content
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    if message.tool_calls:
        plain["tool_calls"] = msgspec.to_builtins(message.tool_calls)
        for call in plain["tool_calls"]:
            del call["function"]["parsed_arguments"]  # the same as arguments
    return plain


def _plain_part(part: ContentPart, path: str) -> dict[str, Any]:
    plain = {name: value for name, value in msgspec.to_builtins(part).items() if value is not None}
    if part.type in ("text", "refusal"):
        for name in plain:
            if name not in ("type", part.type):
                raise RequestError(f"a part of type {part.type} must not hold {name}", param=f"{path}.{name}")
    return plain


class TopLogprob(msgspec.Struct):
    """An alternative for one token. ``bytes`` is its UTF-8, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct):
    """The drawn token, its log-probability, and the most likely ones in descending order."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct):
    """Log-probabilities of one choice, an entry a token."""

    content: list[ContentLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct):
    """``arguments``: JSON as the model wrote it; cut off where the answer was."""

    name: str
    arguments: str


class ResponseToolCall(msgspec.Struct):
    """One tool call of the answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class ResponseMessage(msgspec.Struct):
    """The answer. ``content`` is null where there are tool calls and no text."""

    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ResponseToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """More of a call; ``name`` in its first delta."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """More of the call ``index``; ``id`` and ``type`` in its first delta."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class MessageDeltaFields(msgspec.Struct, omit_defaults=True):
    """``delta`` of a chunk: what there is nothing of is absent."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = []


class ChatChoice(msgspec.Struct):
    """One choice of a whole response. ``stop_reason``: the stop text or stop token id that ended it."""

    index: int
    message: ResponseMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The body of a whole response."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None | UnsetType = UNSET
