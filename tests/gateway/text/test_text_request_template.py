"""Templates that requests bring: what honest ones give, and that no other one lives longer than about a second."""

import signal
import subprocess
import time
from typing import Any

import pytest
import text_models
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text import request_template, template_process
from gateway.text.chat_template import ChatTemplate
from gateway.text.request_template import MAX_SOURCE_CHARS, RequestTemplate
from gateway.text.tokenizer import Tokenizer
from ipc.errors import RequestError

MESSAGES = [{"role": "user", "content": "hé 🙂"}]
VARIABLES: dict[str, Any] = {"messages": MESSAGES, "add_generation_prompt": True}

SLOW = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "product of texts": "{% set n = 10 ** 10 %}{{ messages[0].content * n }}",
    "constant product": "{{ 'a' * 10 ** 10 }}",
    "product of lists": "{{ ([1] * 10 ** 9) | length }}",
    "power": "{% set n = 9 ** 9 %}{{ n ** n }}",
    "constant power": "{{ 10 ** (10 ** 10) }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{{ ns.x | length }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "percent format": "{{ '%9999999999d' % 1 }}",
    "format": "{{ '{:9999999999}'.format(1) }}",
    "replace": "{% set x = 'a' * 9999999 %}{{ x | replace('a', x) | length }}",
    "sort": "{{ (range(99999) | list * 99) | sort | length }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 10, 'big') | length }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "indented json": "{{ [[1]] | tojson(indent=10 ** 9) | length }}",
    "long output": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
}
WRONG = {
    "syntax": "line one\n{% for %}",
    "unknown tag": "{% import 'x' %}",
    "attributes": "{{ ''.__class__.__mro__ }}",
    "refusal": "{{ raise_exception('roles must alternate') }}",
    "changing": "{% set _ = messages.append(1) %}",
    "parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "blocks": "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "signs": "{{ " + "-" * 60_000 + "1 }}",
    "chain": "{{ x" + ".a" * 30_000 + " }}",
    "digits": "{{ " + "9" * 50_000 + " }}",
    "size": "x" * (MAX_SOURCE_CHARS + 1),
}


def render(source: str, **more: Any) -> str:
    return RequestTemplate.parse(source).render(VARIABLES | more)


def test_the_text_is_that_of_the_models_own_template(byte_level: Tokenizer) -> None:
    own = ChatTemplate({"default": text_models.CHATML}, byte_level)
    brought = ChatTemplate.of_request(text_models.CHATML, byte_level)
    messages = [*MESSAGES, {"role": "assistant", "content": "x<|im_end|>y"}]
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "continue_final_message": True},
    ):
        assert brought.render(messages, **options) == own.render(messages, **options)  # type: ignore[arg-type]
        assert brought.encode_chat(messages, **options) == own.encode_chat(messages, **options)  # type: ignore[arg-type]


def test_what_a_template_looks_at(byte_level: Tokenizer) -> None:
    source = "{% for t in tools %}{{ t }}{% endfor %}{% if mood is defined %}{{ mood.x }}{% endif %} documents"
    assert RequestTemplate.parse(source).names == {"t", "tools", "mood"}
    template = ChatTemplate.of_request(source, byte_level)
    assert [template.reads(name) for name in ("tools", "mood", "documents")] == [True, True, False]


def test_the_same_filters_and_functions_are_there() -> None:
    assert render("{{ {'é': '<b>'} | tojson }}{% generation %}{{ 1 }}{% endgeneration %}") == '{"é": "<b>"}1'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"


@settings(max_examples=5, deadline=None)
@given(st.text(max_size=50))
def test_any_text_comes_through(text: str) -> None:
    assert render("{{ x }}", x=text) == text


def test_kwargs_cannot_shadow(byte_level: Tokenizer) -> None:
    template = ChatTemplate.of_request("{{ messages }}", byte_level)
    with pytest.raises(RequestError, match="messages") as caught:
        template.encode_chat(MESSAGES, template_kwargs={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("name", list(SLOW))
def test_bounds(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError) as caught:
        render(SLOW[name])
    assert time.monotonic() - started < 8  # about one second where nothing else runs
    assert (caught.value.status, caught.value.param) == (400, "chat_template")
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_templates(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(WRONG[name])
    assert (caught.value.status, caught.value.param) == (400, "chat_template")
    assert len(caught.value.message) < 400
    assert "\n" not in caught.value.message


def test_why_is_told() -> None:
    for name, text in (
        ("syntax", "line 2"),
        ("refusal", "roles must alternate"),
        ("size", "65536 characters"),
        ("blocks", "nested too deeply"),
    ):
        with pytest.raises(RequestError, match=text):
            render(WRONG[name])
    with pytest.raises(RequestError, match=r"more than 0\.75 seconds"):
        render(SLOW["nested loops"])


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGSEGV, 1])
def test_a_process_that_dies_otherwise(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(args, status, b"=half")

    monkeypatch.setattr(request_template.subprocess, "run", run)
    with pytest.raises(RequestError) as caught:
        render("x")
    assert caught.value.param == "chat_template"


def test_a_machine_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_template, "MAX_WALL_SECONDS", 0.001)
    with pytest.raises(RequestError, match="too long"):
        render("x")


def test_the_process_answers_in_its_protocol() -> None:
    assert template_process.render("{{ a }}", {"a": "é"}) == "=é"
    assert template_process.render("{% if %}", {}).startswith("!line 1")
    assert template_process.render("{{ raise_exception('a\nb') }}", {}) == "!failed: a b"
    source = "{% for _ in range(9) %}{{ 'x' * 1000000 }}{% endfor %}"
    assert template_process.render(source, {}).startswith("!makes a text of more than")
