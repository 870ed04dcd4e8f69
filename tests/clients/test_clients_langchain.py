"""LangChain's ChatOpenAI."""

import asyncio
from typing import Any, Literal

import pytest
from clients_cases import ANSWER, API_KEY, DESCRIBE, FRANCE, MODEL, TOO_LONG, City, GetTime, GetWeather, check_call
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

QUESTION = FRANCE[0]["content"]
WEATHER = "What is the weather in Paris, in celsius?"


@pytest.fixture
def model(base_url: str) -> ChatOpenAI:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "max_retries": 0, "timeout": 60}
    return ChatOpenAI(base_url=base_url, api_key=API_KEY, model=MODEL, **options)


def test_invoke(model: ChatOpenAI) -> None:
    answer = model.invoke(QUESTION)
    assert answer.content == ANSWER
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == MODEL
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_stream(model: ChatOpenAI) -> None:
    chunks = list(model.stream(QUESTION, stream_usage=True))
    assert len(chunks) > 3
    assert "".join(str(chunk.content) for chunk in chunks) == ANSWER
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


def test_batch_and_async(model: ChatOpenAI) -> None:
    assert [answer.content for answer in model.batch([QUESTION] * 4)] == [ANSWER] * 4

    async def ask() -> tuple[str, str]:
        streamed = "".join([str(chunk.content) async for chunk in model.astream(QUESTION)])
        return str((await model.ainvoke(QUESTION)).content), streamed

    assert asyncio.run(ask()) == (ANSWER, ANSWER)


@pytest.mark.parametrize("strict", [None, True])
def test_bound_tools(model: ChatOpenAI, strict: bool | None) -> None:
    bound = model.bind_tools([GetWeather, GetTime], tool_choice="required", strict=strict, parallel_tool_calls=False)
    answer = bound.invoke(WEATHER)
    assert answer.invalid_tool_calls == []
    (call,) = answer.tool_calls
    check_call(call["name"], call["args"])
    whole = None
    for chunk in bound.stream(WEATHER):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [(call["name"], call["args"])]


def test_the_result_of_a_call_goes_back(model: ChatOpenAI) -> None:
    question = HumanMessage(WEATHER)
    called = model.bind_tools([GetWeather], tool_choice="GetWeather").invoke([question])
    (call,) = called.tool_calls
    result = ToolMessage("21 degrees", tool_call_id=call["id"])
    answer = model.bind_tools([GetWeather]).invoke([question, called, result])
    assert answer.content or answer.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    structured = model.with_structured_output(City, method=method)
    found = structured.invoke(DESCRIBE[0]["content"])
    assert isinstance(found, City)
    *_, last = structured.stream(DESCRIBE[0]["content"])
    assert last == found


def test_structured_output_with_the_raw_message(model: ChatOpenAI) -> None:
    structured = model.with_structured_output(City, method="json_schema", strict=True, include_raw=True)
    found = structured.invoke(DESCRIBE[0]["content"])
    assert isinstance(found, dict)
    assert found["parsing_error"] is None
    assert City.model_validate_json(found["raw"].content) == found["parsed"]


def test_a_prompt_that_is_too_long(model: ChatOpenAI) -> None:
    with pytest.raises(ContextOverflowError):
        model.invoke(TOO_LONG)
