"""LiteLLM, which takes octavo for any server that speaks OpenAI's API."""

import asyncio
from typing import Any

import litellm
import pytest
from clients_cases import (
    ANSWER,
    API_KEY,
    ASK_WEATHER,
    DESCRIBE,
    FRANCE,
    MODEL,
    TOO_LONG,
    TOOLS,
    City,
    GetWeather,
    check_call,
    named,
)

NAME = f"openai/{MODEL}"


@pytest.fixture
def asked(base_url: str) -> dict[str, Any]:
    """What every call says."""
    common: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "timeout": 60, "num_retries": 0}
    return {"model": NAME, "api_base": base_url, "api_key": API_KEY, **common}


def test_completion(asked: dict[str, Any]) -> None:
    answer = litellm.completion(messages=FRANCE, **asked)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


def test_stream(asked: dict[str, Any]) -> None:
    chunks = list(litellm.completion(messages=FRANCE, stream=True, stream_options={"include_usage": True}, **asked))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    rebuilt = litellm.stream_chunk_builder(chunks, messages=FRANCE)
    assert rebuilt.choices[0].message.content == ANSWER
    assert rebuilt.usage.completion_tokens > 0


def test_async(asked: dict[str, Any]) -> None:
    async def ask() -> tuple[str, str]:
        whole = await litellm.acompletion(messages=FRANCE, **asked)
        stream = await litellm.acompletion(messages=FRANCE, stream=True, **asked)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return whole.choices[0].message.content, streamed

    assert asyncio.run(ask()) == (ANSWER, ANSWER)


def test_text_completion(asked: dict[str, Any]) -> None:
    fields = {"model": f"text-completion-openai/{MODEL}", "max_tokens": 4}
    answer = litellm.text_completion(prompt="One, two, three,", **asked | fields)
    assert answer.choices[0].text.startswith(" four")


@pytest.mark.parametrize("choice", ["required", named(GetWeather)], ids=["required", "named"])
def test_tools(asked: dict[str, Any], choice: Any) -> None:
    tools = {"messages": ASK_WEATHER, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    answer = litellm.completion(**tools, **asked)
    (call,) = answer.choices[0].message.tool_calls
    check_call(call.function.name, call.function.arguments)
    chunks = list(litellm.completion(stream=True, **tools, **asked))
    (streamed,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages = [*ASK_WEATHER, answer.choices[0].message, result]
    message = litellm.completion(messages=messages, tools=TOOLS, **asked).choices[0].message
    assert message.content or message.tool_calls


def test_response_format(asked: dict[str, Any]) -> None:
    answer = litellm.completion(messages=DESCRIBE, response_format=City, **asked)
    City.model_validate_json(answer.choices[0].message.content)


def test_errors(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        litellm.completion(messages=FRANCE, top_p=2, **asked)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=FRANCE, **asked | {"api_key": "wrong"})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=FRANCE, **asked | {"model": "openai/gpt-x"})


def test_a_prompt_that_is_too_long(asked: dict[str, Any]) -> None:
    """Its own class, at which LiteLLM's fallbacks take another model."""
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=TOO_LONG, **asked)
