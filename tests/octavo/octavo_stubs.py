"""A model folder and an engine for tests of what lies around them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

STUB = Path(__file__).with_name("stub_engine.py")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_executable(folder: Path) -> str:
    """A program that runs the stub where ``engine_core`` is wanted, to be this process's ``sys.executable``."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *engine_core*) exec "{sys.executable}" "{STUB}" "$@" ;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def make_model(folder: Path, **orders: Any) -> Path:
    """Ids are bytes in the byte-level alphabet's order, so "a" is one token. ``orders`` are the stub's."""
    folder.mkdir()
    vocabulary = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "orders.json").write_text(json.dumps(orders))
    return folder


def token_id(letter: str) -> int:
    """The id of an ASCII letter in such a folder."""
    return sorted(pre_tokenizers.ByteLevel.alphabet()).index(letter)


def until(condition: Callable[[], object]) -> None:
    """Polls; fails after a while."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def started(model: Path) -> dict[str, Any]:
    """What the last engine of that folder said of itself."""
    found: dict[str, Any] = json.loads((model / "started.json").read_text())
    return found


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
