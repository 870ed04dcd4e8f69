"""/tokenize and /detokenize, in vLLM's shapes."""

from typing import Any

import msgspec

from gateway.schema.chat import ChatMessage
from gateway.schema.tools import Tool
from ipc.errors import RequestError

CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "tools")


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Either ``prompt``, or ``messages`` with the template's options."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    def check(self) -> None:
        """Raises RequestError unless exactly one of the two forms is there."""
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("exactly one of prompt and messages must be given", param="prompt")
        if self.messages is None:
            for name in CHAT_FIELDS:
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} is only allowed with messages", param=name)


class TokenizeResponse(msgspec.Struct):
    """The ids, how many, and how many fit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids to turn into text, special tokens included."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of the ids."""

    prompt: str


tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)
