"""The official Python client's asynchronous half: the same answers, many at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import openai
import pytest
from clients_cases import (
    ANSWER,
    API_KEY,
    ASK_WEATHER,
    DESCRIBE,
    FRANCE,
    MODEL,
    City,
    GetWeather,
    check_call,
    named,
)

T = TypeVar("T")


def with_client(base_url: str, work: Callable[[openai.AsyncOpenAI], Awaitable[T]], api_key: str = API_KEY) -> T:
    async def run() -> T:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60) as client:
            return await work(client)

    return asyncio.run(run())


async def streamed(client: openai.AsyncOpenAI, **fields: Any) -> str:
    stream = await client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, stream=True, **fields)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


def test_models_and_chat(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in client.models.list()] == [MODEL]
        answer = await client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
        assert answer.choices[0].message.content == ANSWER
        text = await client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=4)
        assert text.choices[0].text.startswith(" four")

    with_client(base_url, work)


def test_many_streams_at_once(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        texts = await asyncio.gather(*(streamed(client) for _ in range(8)))
        assert texts == [ANSWER] * 8

    with_client(base_url, work)


def test_parse_beside_a_stream(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        parse = client.chat.completions.parse(
            model=MODEL, messages=DESCRIBE, response_format=City, temperature=0, max_tokens=200
        )
        parsed, text = await asyncio.gather(parse, streamed(client))
        assert isinstance(parsed.choices[0].message.parsed, City)
        assert text == ANSWER

    with_client(base_url, work)


def test_stream_helper(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        asked: dict[str, Any] = {"model": MODEL, "messages": DESCRIBE, "temperature": 0, "max_tokens": 200}
        kinds = []
        async with client.chat.completions.stream(**asked, response_format=City) as stream:
            async for event in stream:
                kinds.append(event.type)
            final = await stream.get_final_completion()
        assert kinds.count("content.done") == 1
        assert kinds.count("content.delta") > 3
        assert isinstance(final.choices[0].message.parsed, City)

    with_client(base_url, work)


def test_tools(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        tools: list[Any] = [openai.pydantic_function_tool(GetWeather)]
        asked: dict[str, Any] = {"model": MODEL, "messages": ASK_WEATHER, "tools": tools, "max_tokens": 200}
        asked |= {"tool_choice": named(GetWeather), "temperature": 0}
        name, arguments = "", ""
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        check_call(name, arguments)

    with_client(base_url, work)


def test_errors(base_url: str) -> None:
    async def work(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await streamed(client, top_p=2)
        assert caught.value.param == "top_p"

    async def unauthorized(client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await streamed(client)

    with_client(base_url, work)
    with_client(base_url, unauthorized, api_key="wrong")
