"""What every client asks for: the same models, tools and messages, and what must be true of any answer.

The demo model is weak, so each outcome is forced by a schema or a tool choice, and checked by its structure.
"""

import json
from typing import Any, Literal

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

MODEL = "smollm2"
API_KEY = "the-key-of-the-clients"
FRANCE: list[Any] = [{"role": "user", "content": "Name the capital of France."}]
ANSWER = "The capital of France is Paris."
DESCRIBE: list[Any] = [{"role": "user", "content": "Describe Paris as JSON: its name, country and number of people."}]
ASK_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
TOO_LONG: list[Any] = [{"role": "user", "content": "word " * 5000}]


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    country: str = Field(max_length=20)
    people: int = Field(ge=0, le=99_999_999)
    size: Literal["small", "medium", "large"]


class GetWeather(BaseModel):
    """The weather in a place now."""

    model_config = ConfigDict(extra="forbid")

    place: str = Field(max_length=20, description="Name of a town")
    unit: Literal["celsius", "fahrenheit"]


class GetTime(BaseModel):
    """The time of day in a time zone."""

    model_config = ConfigDict(extra="forbid")

    zone: Literal["Europe/Paris", "Asia/Tokyo", "America/Lima"]


TOOL_MODELS: dict[str, type[BaseModel]] = {"GetWeather": GetWeather, "GetTime": GetTime}


def as_tool(model: type[BaseModel]) -> Any:
    """A function tool, as written by hand: without ``strict``."""
    schema = model.model_json_schema()
    function = {"name": model.__name__, "description": schema.pop("description"), "parameters": schema}
    return {"type": "function", "function": function}


TOOLS: list[Any] = [as_tool(GetWeather), as_tool(GetTime)]


def named(model: type[BaseModel]) -> Any:
    """``tool_choice`` by name."""
    return {"type": "function", "function": {"name": model.__name__}}


def check_call(name: str | None, arguments: str | dict[str, Any] | None) -> BaseModel:
    """The arguments of a call as the tool's model: JSON of its schema."""
    assert name in TOOL_MODELS
    values = json.loads(arguments) if isinstance(arguments, str) else arguments
    model = TOOL_MODELS[name]
    Draft202012Validator(model.model_json_schema()).validate(values)
    return model.model_validate(values)
