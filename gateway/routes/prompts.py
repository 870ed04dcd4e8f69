"""From what a client wrote to token ids: long work in the executor, hopeless lengths refused before any work."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from gateway.schema.chat import ChatMessage, plain_messages
from gateway.schema.resolve import ModelLimits, check_token_ids, too_long
from gateway.state import GatewayState
from gateway.text.chat_messages import with_system_text
from gateway.text.chat_template import ChatTemplate
from gateway.tool_calls.describe import describe_tools
from ipc.errors import RequestError

T = TypeVar("T")

INLINE_CHARS = 4096
"""Texts up to this length are tokenized on the event loop (about a millisecond), longer ones in a thread."""


async def encode_texts(
    state: GatewayState, limits: ModelLimits | None, texts: Sequence[str], *, add_special_tokens: bool, param: str
) -> list[list[int]]:
    """The ids of each text. Raises RequestError (``param``) for one that cannot fit the context; with ``limits`` None
    every length is welcome."""
    for text in texts:
        _check_length(state, limits, text, param)

    def encode_all() -> list[list[int]]:
        encode = state.tokenizer.encode
        return [encode(text, add_special_tokens=add_special_tokens, param=param) for text in texts]

    return await off_loop(state, sum(map(len, texts)), encode_all)


async def encode_chat(
    state: GatewayState,
    limits: ModelLimits | None,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_kwargs: dict[str, object],
    tools: Sequence[Mapping[str, Any]] = (),
    template: ChatTemplate | None = None,
) -> list[int]:
    """The ids of the rendered conversation. Tools that the template does not look at are told in the system message.

    ``template``: the request's own. ``limits`` None: every length is welcome.
    """
    template = state.chat_template if template is None else template
    plain = plain_messages(messages)
    if tools and not template.reads("tools"):
        plain = with_system_text(plain, describe_tools(tools, state.chat_parsers.described_format))
        tools = ()
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    is_own = template is state.chat_template
    num_chars = 0
    for message in messages:
        content = message.content
        parts = [part.text or "" for part in content] if isinstance(content, list) else [content]
        for text in parts:
            if isinstance(text, str):
                _check_length(state, limits, text, "messages")
                num_chars += len(text)

    def encode() -> list[int]:
        return template.encode_chat(
            plain,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(continue_final_message),
            template_kwargs=template_kwargs,
            max_tokens=None if is_own or limits is None else limits.max_model_len,
        )

    if not is_own:
        return await state.template_workers.run(encode)
    # A conversation of many short messages takes long too, and so may large template arguments and tools.
    size = num_chars + 64 * len(messages) + 512 * (len(template_kwargs) + len(tools))
    return await off_loop(state, size, encode)


async def request_template(state: GatewayState, source: str | None) -> ChatTemplate | None:
    """The template that the request brings, if it does. Raises RequestError (``chat_template``) where none may."""
    if source is None:
        return None
    if not state.config.trust_request_chat_template:
        raise RequestError(
            "chat_template in a request needs a server that runs --trust-request-chat-template",
            param="chat_template",
            code="unsupported_parameter",
        )
    return await state.template_workers.run(lambda: ChatTemplate.of_request(source, state.tokenizer))


def check_prompt_ids(ids: list[int], limits: ModelLimits) -> list[int]:
    """The ids a client sent as prompt, unless one has no token. Far too many are refused before they are looked at."""
    if len(ids) > limits.max_model_len:
        _refuse_length(limits, len(ids), "prompt")
    check_token_ids("prompt", ids, limits)
    return ids


async def off_loop(state: GatewayState, size: int, work: Callable[[], T]) -> T:
    """``work()`` in the executor if its input is long, else here."""
    if size <= INLINE_CHARS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(state.executor, work)


def _check_length(state: GatewayState, limits: ModelLimits | None, text: str, param: str) -> None:
    if limits is None or len(text) <= INLINE_CHARS:
        return
    num_tokens = state.tokenizer.min_tokens(text)
    if num_tokens > limits.max_model_len:
        _refuse_length(limits, num_tokens, param)


def _refuse_length(limits: ModelLimits, num_tokens: int, param: str) -> NoReturn:
    raise RequestError(
        f"{too_long(limits)}, but {param} alone has at least {num_tokens}",
        param=param,
        code="context_length_exceeded",
    )
