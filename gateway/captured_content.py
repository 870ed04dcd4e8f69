"""The text of a request as OpenTelemetry's gen_ai convention writes it into a span; made only where it is asked for.

Knows messages as plain values; must not know HTTP or the trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from observability.gen_ai import AttributeValue

MAX_CHARS: Final = 32_768
"""Of text in one attribute; what comes after is cut, and says so."""

CUT: Final = "…[cut]"

Message = dict[str, Any]


@dataclass(slots=True)
class Room:
    """How many characters still fit."""

    left: int = MAX_CHARS

    def take(self, text: str) -> str:
        """As much of it as fits."""
        taken = text if len(text) <= self.left else text[: self.left] + CUT
        self.left = max(0, self.left - len(text))
        return taken


@dataclass(frozen=True, slots=True)
class ChatContent:
    """``messages``: as the chat template gets them. Implements ``gateway.recorder.CapturedContent``."""

    messages: Sequence[Mapping[str, Any]]

    def values(self, texts: Sequence[str], finish_reasons: Sequence[str | None]) -> dict[str, AttributeValue | None]:
        """Both attributes."""
        room = Room()
        messages = [_message(message, room) for message in self.messages if room.left]
        return {"input_messages": _json(messages), "output_messages": _output(texts, finish_reasons)}


@dataclass(frozen=True, slots=True)
class PromptContent:
    """``text``: the prompt. Implements ``gateway.recorder.CapturedContent``."""

    text: str

    def values(self, texts: Sequence[str], finish_reasons: Sequence[str | None]) -> dict[str, AttributeValue | None]:
        """Both attributes."""
        prompt = {"role": "user", "parts": [_text(self.text, Room())]}
        return {"input_messages": _json([prompt]), "output_messages": _output(texts, finish_reasons)}


def _message(message: Mapping[str, Any], room: Room) -> Message:
    parts: list[Message] = []
    if (thoughts := message.get("reasoning") or message.get("reasoning_content")) is not None:
        parts.append({"type": "reasoning", "content": room.take(str(thoughts))})
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
    if message["role"] == "tool":
        answer = room.take("".join(texts))
        parts.append({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": answer})
    else:
        parts += [_text(text, room) for text in texts]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = room.take(function["arguments"])
        parts.append({"type": "tool_call", "id": call.get("id"), "name": function["name"], "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def _output(texts: Sequence[str], finish_reasons: Sequence[str | None]) -> str:
    room = Room()
    reasons = [*finish_reasons, *([None] * (len(texts) - len(finish_reasons)))]
    return _json(
        [
            {"role": "assistant", "parts": [_text(text, room)], "finish_reason": reason or "error"}
            for text, reason in zip(texts, reasons, strict=True)
        ]
    )


def _text(text: str, room: Room) -> Message:
    return {"type": "text", "content": room.take(text)}


def _json(messages: Sequence[Message]) -> str:
    return msgspec.json.encode(messages).decode()
