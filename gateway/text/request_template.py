"""A chat template that a request brings: parsed here, compiled and run in a process of its own.

No bound inside this process would hold: one expression of a template (``"x" * n``, ``|center``, ``"%999d" % 1``) can
take the GIL and the memory as long and as much as it likes, already while it is compiled. The kernel can end a process.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, nodes

from gateway.text.jinja_environment import chat_template_environment
from gateway.text.template_process import MAX_CPU_SECONDS
from ipc.errors import RequestError

MAX_SOURCE_CHARS = 64 * 1024
MAX_WALL_SECONDS = 10.0
"""For a machine with too much to do; what counts otherwise is MAX_CPU_SECONDS."""

_PARAM = "chat_template"


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """``names``: every variable that it mentions."""

    source: str
    names: frozenset[str]

    @classmethod
    def parse(cls, source: str) -> "RequestTemplate":
        """Raises RequestError. Only parses: compiling already computes what is constant."""
        if len(source) > MAX_SOURCE_CHARS:
            _refuse(f"may have at most {MAX_SOURCE_CHARS} characters")
        try:
            names = frozenset(name.name for name in chat_template_environment().parse(source).find_all(nodes.Name))
        except TemplateSyntaxError as error:
            _refuse(f"line {error.lineno}: {str(error.message)[:200]}")
        except RecursionError:
            _refuse("is nested too deeply")
        except (ValueError, SyntaxError):
            _refuse("holds a number or a text that cannot be read")
        return cls(source, names)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text, within about a second. ``variables`` are JSON. Blocks; raises RequestError."""
        job = json.dumps({"source": self.source, "variables": variables}).encode()
        # -P: what stands in the folder of the user must not be imported.
        command = [sys.executable, "-P", "-m", "gateway.text.template_process"]
        try:
            process = subprocess.run(
                command, input=job, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=MAX_WALL_SECONDS
            )
        except subprocess.TimeoutExpired:
            _refuse("takes too long to render")
        if process.returncode in (-signal.SIGPROF, -signal.SIGXCPU):
            _refuse(f"takes more than {MAX_CPU_SECONDS} seconds to render")
        if process.returncode != 0:
            _refuse("takes too much memory to render, or cannot be compiled")
        kind, text = process.stdout[:1], process.stdout[1:].decode("utf-8", "surrogatepass")
        if kind != b"=":
            _refuse(text)
        return text


def _refuse(why: str) -> NoReturn:
    raise RequestError(f"{_PARAM} {why}", param=_PARAM)
