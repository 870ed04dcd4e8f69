"""From what a client wrote to token ids: long work in the executor, hopeless lengths refused before any work."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from gateway.schema.chat import ChatMessage, plain_messages
from gateway.schema.resolve import ModelLimits, check_token_ids
from gateway.state import GatewayState
from ipc.errors import RequestError

T = TypeVar("T")

INLINE_CHARS = 4096
"""Texts up to this length are tokenized on the event loop (about a millisecond), longer ones in a thread."""


async def encode_texts(
    state: GatewayState, limits: ModelLimits, texts: Sequence[str], *, add_special_tokens: bool, param: str
) -> list[list[int]]:
    """The ids of each text. Raises RequestError (``param``) for one that cannot fit the context."""
    for text in texts:
        _check_length(state, limits, text, param)

    def encode_all() -> list[list[int]]:
        encode = state.tokenizer.encode
        return [encode(text, add_special_tokens=add_special_tokens, param=param) for text in texts]

    return await off_loop(state, sum(map(len, texts)), encode_all)


async def encode_chat(
    state: GatewayState,
    limits: ModelLimits,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_kwargs: dict[str, object] | None,
) -> list[int]:
    """The ids of the rendered conversation."""
    plain = plain_messages(messages)
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    num_chars = 0
    for message in messages:
        content = message.content
        parts = [part.text or "" for part in content] if isinstance(content, list) else [content]
        for text in parts:
            if isinstance(text, str):
                _check_length(state, limits, text, "messages")
                num_chars += len(text)

    def encode() -> list[int]:
        return state.chat_template.encode_chat(
            plain,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=bool(continue_final_message),
            template_kwargs=template_kwargs,
        )

    # A conversation of many short messages takes long too, and so may large template arguments.
    return await off_loop(state, num_chars + 64 * len(messages) + 512 * len(template_kwargs or ()), encode)


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


def _check_length(state: GatewayState, limits: ModelLimits, text: str, param: str) -> None:
    if len(text) <= INLINE_CHARS:
        return
    num_tokens = state.tokenizer.min_tokens(text)
    if num_tokens > limits.max_model_len:
        _refuse_length(limits, num_tokens, param)


def _refuse_length(limits: ModelLimits, num_tokens: int, param: str) -> NoReturn:
    raise RequestError(
        f"the model's context is {limits.max_model_len} tokens, but {param} alone has at least {num_tokens}",
        param=param,
        code="context_length_exceeded",
    )
