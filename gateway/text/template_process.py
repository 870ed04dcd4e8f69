"""``python -m gateway.text.template_process``: renders one template that is not trusted, and ends.

Standard input: JSON of {source, variables}. Standard output: ``=`` and the text, or ``!`` and why there is none, in
UTF-8. The kernel ends it at its limits of time and memory. Knows no tokenizer and no server.
"""

import json
import resource
import signal
import sys
from typing import Any

from jinja2 import TemplateSyntaxError

from gateway.text.jinja_environment import TEMPLATE_FAILURES, chat_template_environment, failure_text

MAX_CPU_SECONDS = 0.75
MAX_MEMORY_BYTES = 512 * 1024 * 1024
MAX_RENDERED_CHARS = 8 * 1024 * 1024


def main() -> None:
    """The whole process."""
    limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_CORE, 0)
    job = json.load(sys.stdin.buffer)
    # Without a handler the signal ends the process, also inside of one long operation.
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    answer = render(job["source"], job["variables"])
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write(answer.encode("utf-8", "surrogatepass"))


def limit(kind: int, value: int) -> None:
    """Not to be raised again."""
    resource.setrlimit(kind, (value, value))


def render(source: str, variables: dict[str, Any]) -> str:
    """``=`` and the text, or ``!`` and the reason."""
    parts = ["="]
    num_left = MAX_RENDERED_CHARS
    try:
        for part in chat_template_environment().from_string(source).generate(variables):
            num_left -= len(part)
            if num_left < 0:
                return f"!makes a text of more than {MAX_RENDERED_CHARS} characters"
            parts.append(part)
        return "".join(parts)
    except TemplateSyntaxError as error:
        return f"!line {error.lineno}: {failure_text(error)}"
    except TEMPLATE_FAILURES as error:
        return f"!failed: {failure_text(error)}"
    except MemoryError:
        return "!takes too much memory to render"


if __name__ == "__main__":
    main()
