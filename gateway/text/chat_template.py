"""Renders chats to prompts with the model's own Jinja template, and encodes them so that content stays content.

Owns the templates of one model, compiled once. Rendering and encoding block: long chats belong into an executor.
Templates of the model folder and of the operator run here; a request's own runs in a process of its own.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateSyntaxError, meta

from gateway.text.chat_messages import normalize_messages
from gateway.text.jinja_environment import TEMPLATE_FAILURES, chat_template_environment, failure_text
from gateway.text.model_files import read_json_object, read_text
from gateway.text.request_template import RequestTemplate
from gateway.text.tokenizer import Tokenizer
from ipc.errors import ConfigError, RequestError

MAX_RENDERED_CHARS = 64 * 1024 * 1024
_RESERVED_NAMES = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "raise_exception",
    "strftime_now",
)

Render = Callable[[Mapping[str, Any]], str]
"""A template as a function of its variables. Raises RequestError."""


class ChatTemplate:
    """The chat templates of a model: "default" and perhaps "tool_use" for requests with tools."""

    def __init__(
        self,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        origin: str = "chat template",
        default_template_kwargs: Mapping[str, Any] | None = None,
        max_rendered_chars: int = MAX_RENDERED_CHARS,
    ) -> None:
        """``sources`` by name; none at all means that the model has no chat template.

        Raises ConfigError, beginning with ``origin``, for a broken template and for default kwargs that are not
        the template's own.
        """
        environment = chat_template_environment()
        self.sources = dict(sources)
        self._templates: dict[str, Render] = {}
        self._names: set[str] = set()
        for name, source in sources.items():
            try:
                self._templates[name] = partial(_run, environment.from_string(source), max_rendered_chars)
                self._names |= meta.find_undeclared_variables(environment.parse(source))
            except TemplateSyntaxError as error:
                raise ConfigError(f"{origin}: template {name!r}, line {error.lineno}: {error.message}") from error
        if sources and "default" not in sources:
            raise ConfigError(f"{origin}: none of the chat templates ({', '.join(sources)}) is named default")
        self._names_developer = any("developer" in source for source in sources.values())
        self._tokenizer = tokenizer
        self._default_kwargs = dict(default_template_kwargs or {})
        if reserved := self._reserved_names(self._default_kwargs):
            raise ConfigError(f"default chat template kwargs must not set {reserved[0]}")

    @classmethod
    def of_request(cls, source: str, tokenizer: Tokenizer) -> "ChatTemplate":
        """The template that a request brought. Raises RequestError (``chat_template``) if it is none; so does whatever
        goes wrong in it later."""
        template, own = cls({}, tokenizer), RequestTemplate.parse(source)
        template.sources, template._names = {"default": source}, set(own.names)
        template._templates = {"default": own.render}
        template._names_developer = "developer" in source
        return template

    @classmethod
    def load(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        *,
        template_file: Path | None = None,
        default_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "ChatTemplate":
        """The template in ``template_file``, else what the model folder has. Raises ConfigError naming the file."""
        sources = {"default": read_text(template_file)} if template_file else read_template_sources(folder)
        origin = str(template_file or folder)
        return cls(sources, tokenizer, origin=origin, default_template_kwargs=default_template_kwargs)

    @property
    def is_available(self) -> bool:
        """False for a model without any chat template: it serves completions only."""
        return bool(self._templates)

    def reads(self, name: str) -> bool:
        """Whether a template looks at the variable ``name``."""
        return name in self._names

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. Raises RequestError if the request or the template does not allow it.

        With ``continue_final_message`` the prompt ends with the last message's content, for the model to go on.
        """
        variables = self._variables(messages, tools, add_generation_prompt, continue_final_message, template_kwargs)
        return self._render(variables, continue_final_message)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        """The prompt as token ids, in which only the template makes control tokens.

        A special token that is spelled in anything a request brings (content, names, tools, template_kwargs) is
        encoded as ordinary text. Without such text these are the ids of the rendered prompt.
        A prompt that has certainly more than ``max_tokens`` tokens is refused before it is tokenized.
        """
        variables = self._variables(messages, tools, add_generation_prompt, continue_final_message, template_kwargs)
        control_tokens = self._tokenizer.control_tokens
        try:
            is_escaped = control_tokens.may_occur_in(variables)
            variables = control_tokens.escape(variables) if is_escaped else variables
        except RecursionError as error:
            raise RequestError("The messages are nested too deeply.", param="messages") from error
        rendered = self._render(variables, continue_final_message)
        if max_tokens is not None:
            text = control_tokens.unescape(rendered) if is_escaped else rendered
            self._tokenizer.refuse_too_long(text, max_tokens, param="messages")
        if is_escaped:
            return self._tokenizer.encode_template_text(rendered, param="messages")
        return self._tokenizer.encode(rendered, add_special_tokens=False, param="messages")

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """What the request brings, checked, under the names that templates know."""
        if not self._templates:
            raise RequestError(
                "This model has no chat template; the server can be given one with --chat-template.", param="messages"
            )
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message needs add_generation_prompt to be false.", param="continue_final_message"
            )
        if reserved := self._reserved_names(template_kwargs or {}):
            raise RequestError(f"chat_template_kwargs must not set {reserved[0]}.", param="chat_template_kwargs")
        normalized = normalize_messages(messages)
        if not self._names_developer:
            for message in normalized:  # OpenAI's newer name; models of before it were trained on "system"
                message["role"] = "system" if message["role"] == "developer" else message["role"]
        return {
            **(template_kwargs or {}),
            "messages": normalized,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }

    def _reserved_names(self, template_kwargs: Mapping[str, Any]) -> list[str]:
        """Names among the kwargs that are not the template's own to read."""
        return [name for name in template_kwargs if name in _RESERVED_NAMES or name in self._tokenizer.special_tokens]

    def _render(self, variables: dict[str, Any], continue_final_message: bool) -> str:
        variables = self._tokenizer.special_tokens | self._default_kwargs | variables
        name = "tool_use" if variables["tools"] and "tool_use" in self._templates else "default"
        render = self._templates[name]
        if not continue_final_message:
            return render(variables)
        *earlier, last = variables["messages"]
        # The end of the content is found again by a tag that no content can hold; the space after it tells whether
        # the template trims content.
        tag = f"{secrets.randbelow(10**30):030d}"
        tagged = last | {"content": f"{last['content']}{tag} "}
        rendered = render(variables | {"messages": [*earlier, tagged]})
        prompt, found, rest = rendered.rpartition(tag)
        if not found or last["content"].strip() not in prompt:
            raise RequestError(
                "The chat template does not print the final message as it is, so it cannot be continued.",
                param="continue_final_message",
            )
        return prompt if rest.startswith(" ") else prompt.rstrip()


def _run(template: Template, max_chars: int, variables: Mapping[str, Any]) -> str:
    parts: list[str] = []
    num_left = max_chars
    try:
        for part in template.generate(variables):
            num_left -= len(part)
            if num_left < 0:
                raise RequestError("The rendered chat is too long.", param="messages")
            parts.append(part)
    except TEMPLATE_FAILURES as error:
        text = f"The chat template refused the messages: {failure_text(error)}"
        raise RequestError(text, param="messages") from error
    return "".join(parts)


def read_template_sources(folder: Path) -> dict[str, str]:
    """Template sources of a model folder by name; empty if it has none.

    chat_template.jinja (with additional_chat_templates/NAME.jinja) comes before tokenizer_config.json, where
    chat_template is a string or a list of {name, template}.
    """
    if (folder / "chat_template.jinja").exists():
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        return {path.stem: read_text(path) for path in more} | {"default": read_text(folder / "chat_template.jinja")}
    path = folder / "tokenizer_config.json"
    declared = read_json_object(path).get("chat_template")
    if declared is None:
        return {}
    if isinstance(declared, str):
        return {"default": declared}
    if isinstance(declared, list) and all(isinstance(entry, dict) for entry in declared):
        declared = {entry.get("name"): entry.get("template") for entry in declared}
    if not isinstance(declared, dict) or not all(
        isinstance(name, str) and isinstance(source, str) for name, source in declared.items()
    ):
        raise ConfigError(f"{path}: chat_template must be a string or a list of objects with name and template")
    return declared
