"""instructor: a Pydantic model as the answer, by a forced tool or by a schema."""

import asyncio
from collections.abc import Iterator
from typing import Any

import instructor
import openai
import pytest
from clients_cases import API_KEY, DESCRIBE, MODEL, City

MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": DESCRIBE,
    "temperature": 0,
    "max_tokens": 200,
    "max_retries": 0,  # the first answer must fit
}


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0, timeout=60) as client:
        yield client


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_response_model(client: openai.OpenAI, mode: instructor.Mode) -> None:
    asking = instructor.from_openai(client, mode=mode)
    city, raw = asking.chat.completions.create_with_completion(response_model=City, **ASKED)
    assert isinstance(city, City)
    message = raw.choices[0].message
    assert bool(message.tool_calls) is (mode is instructor.Mode.TOOLS)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_partial_models_of_a_stream(client: openai.OpenAI, mode: instructor.Mode) -> None:
    asking = instructor.from_openai(client, mode=mode)
    parts = list(asking.chat.completions.create_partial(response_model=City, **ASKED))
    assert len(parts) > 1
    City.model_validate(parts[-1].model_dump())


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_async(base_url: str, mode: instructor.Mode) -> None:
    async def ask() -> City:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=API_KEY, max_retries=0, timeout=60) as client:
            asking = instructor.from_openai(client, mode=mode)
            found: City = await asking.chat.completions.create(response_model=City, **ASKED)
            return found

    assert isinstance(asyncio.run(ask()), City)
