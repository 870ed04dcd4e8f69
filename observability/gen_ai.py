"""The one table of OpenTelemetry's gen_ai attributes (semantic conventions v1.41.1), and the few names of our own.

Knows the names on both sides, ours and the convention's, and which values say nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

AttributeValue = str | bool | int | float | Sequence[str]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
PROVIDER: Final = "octavo"

ATTRIBUTES: Final[Mapping[str, str]] = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "output_type": "gen_ai.output.type",
    "stream": "gen_ai.request.stream",
    "n": "gen_ai.request.choice.count",
    "seed": "gen_ai.request.seed",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stop": "gen_ai.request.stop_sequences",
    "response_id": "gen_ai.response.id",
    "response_model": "gen_ai.response.model",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "time_to_first_token": "gen_ai.response.time_to_first_chunk",  # seconds
    "num_prompt_tokens": "gen_ai.usage.input_tokens",
    "num_cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "num_generation_tokens": "gen_ai.usage.output_tokens",
    "num_reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "token_type": "gen_ai.token.type",
    "input_messages": "gen_ai.input.messages",  # text: only if it is to be captured
    "output_messages": "gen_ai.output.messages",
    "server_address": "server.address",
    "server_port": "server.port",
    "error_type": "error.type",
}

OWN_ATTRIBUTES: Final[Mapping[str, str]] = {
    "engine_request_id": "octavo.engine.request_id",  # what ``by`` of another request's event ``preempted`` names
    "tenant": "octavo.tenant",
}

_NAMES: Final = {**ATTRIBUTES, **OWN_ATTRIBUTES}


def gen_ai_attributes(values: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """Our names to the convention's. None is left out, and so is ``n`` of 1; a zero is a value.

    Raises KeyError on a name that the tables do not have.
    """
    return {
        _NAMES[name]: value for name, value in values.items() if value is not None and not (name == "n" and value == 1)
    }
