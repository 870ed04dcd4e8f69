"""The official Python client, its helpers included: parse, stream, tools from Pydantic models, error classes."""

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
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
    GetTime,
    GetWeather,
    check_call,
    named,
)

STRICT_TOOLS: list[Any] = [openai.pydantic_function_tool(GetWeather), openai.pydantic_function_tool(GetTime)]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=API_KEY, max_retries=0, timeout=60) as client:
        yield client


# ---- text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "octavo"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.system_fingerprint


def test_chat_streamed(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=FRANCE, temperature=0, stream=True, stream_options=options
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


def test_a_stream_that_is_left(client: openai.OpenAI) -> None:
    """The ``server`` fixture sees that nothing of it is left."""
    asked: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"


def test_completions(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**asked)
    assert whole.choices[0].text.startswith(" four")
    assert whole.choices[0].finish_reason == "length"
    assert "".join(c.choices[0].text for c in client.completions.create(**asked, stream=True)) == whole.choices[0].text
    both = client.completions.create(**asked | {"prompt": [asked["prompt"]] * 2})
    assert [(choice.index, choice.text) for choice in both.choices] == [
        (0, whole.choices[0].text),
        (1, both.choices[0].text),
    ]


def test_n_and_seed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "temperature": 1, "max_tokens": 16, "seed": 7}
    three = [choice.message.content for choice in client.chat.completions.create(**asked, n=3).choices]
    assert len(set(three)) == 3
    assert [choice.message.content for choice in client.chat.completions.create(**asked, n=3).choices] == three
    assert client.chat.completions.create(**asked).choices[0].message.content == three[0]


def test_stop_and_max_completion_tokens(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": FRANCE, "temperature": 0}
    stopped = client.chat.completions.create(**asked, stop=" is").choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (ANSWER.partition(" is")[0], "stop")
    cut = client.chat.completions.create(**asked, max_completion_tokens=2)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 2


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode().startswith(ANSWER)
    for entry in logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0] <= 0
        assert sum(map(math.exp, values)) <= 1 + 1e-6


# ---- structured output


def test_parse(client: openai.OpenAI) -> None:
    for create in (client.chat.completions.parse, client.beta.chat.completions.parse):
        answer = create(model=MODEL, messages=DESCRIBE, response_format=City, temperature=0, max_tokens=200)
        message = answer.choices[0].message
        assert isinstance(message.parsed, City)
        assert message.refusal is None
        assert message.content is not None
        assert City.model_validate_json(message.content) == message.parsed


def test_parse_of_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=DESCRIBE, response_format=City, temperature=1, seed=1, n=3, max_tokens=200
    )
    assert all(isinstance(choice.message.parsed, City) for choice in answer.choices)
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_parse_of_a_cut_answer(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(model=MODEL, messages=DESCRIBE, response_format=City, max_tokens=3)
    assert caught.value.completion.choices[0].finish_reason == "length"


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=DESCRIBE, response_format={"type": "json_object"}, temperature=0, max_tokens=300
    )
    (choice,) = answer.choices
    assert choice.message.content is not None
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.finish_reason == "length"
        assert choice.message.content.lstrip().startswith("{")


def test_stream_helper_parses(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": DESCRIBE, "temperature": 0, "max_tokens": 200}
    text, done = "", []
    with client.chat.completions.stream(**asked, response_format=City) as stream:
        for event in stream:
            if event.type == "content.delta":
                text += event.delta
                assert event.snapshot == text
            elif event.type == "content.done":
                done.append(event)
        final = stream.get_final_completion()
    (event,) = done
    assert event.content == text
    assert isinstance(event.parsed, City)
    message = final.choices[0].message
    assert message.parsed == event.parsed
    assert message.content == client.chat.completions.parse(**asked, response_format=City).choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


# ---- tools


@pytest.mark.parametrize("tools", [TOOLS, STRICT_TOOLS], ids=["loose", "strict"])
@pytest.mark.parametrize("choice", ["required", named(GetWeather), named(GetTime)], ids=["required", "weather", "time"])
def test_a_forced_call(client: openai.OpenAI, choice: Any, tools: list[Any]) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK_WEATHER,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
    )
    message = answer.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.id
    check_call(call.function.name, call.function.arguments)
    if choice == "required":
        assert answer.choices[0].finish_reason == "tool_calls"
    else:
        assert call.function.name == choice["function"]["name"]
        assert answer.choices[0].finish_reason == "stop"  # as OpenAI says it of a named choice


def test_a_function_without_parameters(client: openai.OpenAI) -> None:
    """Omitting them "defines a function with an empty parameter list", the client's documentation says."""
    tools: list[Any] = [{"type": "function", "function": {"name": "ping"}}]
    answer = client.chat.completions.create(
        model=MODEL, messages=FRANCE, tools=tools, tool_choice=tools[0], temperature=0, max_tokens=100
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {}


def test_parallel_calls_are_all_valid(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASK_WEATHER,
        tools=TOOLS,
        tool_choice="required",
        temperature=1,
        seed=3,
        n=4,
        max_tokens=300,
    )
    for choice in answer.choices:
        calls = choice.message.tool_calls or []
        if choice.finish_reason == "tool_calls":
            assert calls
        else:
            assert choice.finish_reason == "length"
            calls = calls[:-1]
        for call in calls:
            assert call.type == "function"
            check_call(call.function.name, call.function.arguments)
        assert len({call.id for call in calls}) == len(calls)


def test_parse_of_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=ASK_WEATHER,
        tools=STRICT_TOOLS,
        tool_choice=named(GetWeather),
        temperature=0,
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_stream_helper_of_tools(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": ASK_WEATHER,
        "tools": STRICT_TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 200,
    }
    arguments, done = "", []
    with client.chat.completions.stream(**asked) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                arguments += event.arguments_delta
                assert event.arguments == arguments
            elif event.type == "tool_calls.function.arguments.done":
                done.append(event)
        final = stream.get_final_completion()
    (event,) = done
    assert event.arguments == arguments
    assert event.parsed_arguments == check_call(event.name, arguments)
    (whole,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or []
    assert whole.type == "function"
    assert (whole.function.name, whole.function.arguments) == (event.name, arguments)
    (call,) = final.choices[0].message.tool_calls or []
    assert call.id
    assert final.choices[0].finish_reason == "tool_calls"


def test_the_result_of_a_call_goes_back(client: openai.OpenAI) -> None:
    """The client's own message object is sent back as it came, as its documentation shows it."""
    asked: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
    first = client.chat.completions.create(**asked, messages=ASK_WEATHER, tool_choice=named(GetWeather))
    (call,) = first.choices[0].message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 21, "sky": "clear"})}
    messages: list[Any] = [*ASK_WEATHER, first.choices[0].message, result]
    bare = client.chat.completions.create(**asked, messages=ASK_WEATHER, tool_choice="auto")
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(**asked, messages=messages, tool_choice=choice)
        message = answer.choices[0].message
        assert message.content or message.tool_calls
        assert answer.usage is not None
        assert bare.usage is not None
        if choice == "auto":
            assert answer.usage.prompt_tokens > bare.usage.prompt_tokens + 20  # the call and its result
        else:
            assert not message.tool_calls


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_parsed_call_goes_back(client: openai.OpenAI, is_stream: bool) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": STRICT_TOOLS, "temperature": 0, "max_tokens": 100}
    first = asked | {"messages": ASK_WEATHER, "tool_choice": named(GetWeather)}
    if is_stream:
        with client.chat.completions.stream(**first) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.parse(**first).choices[0].message
    (call,) = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages: list[Any] = [*ASK_WEATHER, message, result]
    answer = client.chat.completions.create(**asked, messages=messages, tool_choice="none")
    assert answer.choices[0].message.content


def test_a_parsed_answer_goes_back(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 200}
    first = client.chat.completions.parse(**asked, messages=DESCRIBE, response_format=City).choices[0].message
    messages: list[Any] = [*DESCRIBE, first, *FRANCE]
    assert client.chat.completions.create(**asked, messages=messages).choices[0].message.content


# ---- errors


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": -1}, "temperature", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field", None),
        ({"messages": TOO_LONG}, "messages", "context_length_exceeded"),
        ({"tool_choice": "required"}, "tool_choice", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
            "response_format.json_schema.schema",
            "invalid_grammar",
        ),
    ],
    ids=["range", "together", "unsupported", "unknown", "length", "tools", "schema"],
)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_bad_requests(
    client: openai.OpenAI, is_stream: bool, fields: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": FRANCE, "stream": is_stream, **fields})
    assert caught.value.status_code == 400
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.message


def test_a_model_that_is_not_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-x", messages=FRANCE)
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-x")


def test_a_wrong_key(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=FRANCE)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
