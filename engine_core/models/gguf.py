"""``python -m engine_core.models.gguf IN.gguf OUT_FOLDER``: a GGUF file as a model folder.

Runs as a process of its own; nothing that serves imports it. Quantized tensors are stored as float32, their exact
values (4 bytes a weight: 538 MB for SmolLM2-135M); F32, F16 and BF16 tensors keep their dtype. Memory: one tensor
at a time. Whether the folder is complete is the caller's business: write to a temporary name and rename.
"""

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_core.models.gguf_config import architecture, generation_config, model_config
from engine_core.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from ipc.errors import ConfigError

# Part of the key under which a converted folder is cached: raise it with every change of what is written.
VERSION = 1

_ROPE_FACTORS = "rope_freqs.weight"
_KEPT_DTYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def checkpoint_name(name: str) -> str:
    """The safetensors name of a GGUF tensor; ``ConfigError`` for one that these models do not have."""
    stem, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if stem in _NAMES:
            return f"{_NAMES[stem]}.{kind}"
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if layer and layer[2] in _LAYER_NAMES:
            return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{kind}"
    raise ConfigError(f"tensor {name} of this GGUF is not one of the supported models'")


def restore_rows(array: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Rows [num_heads * head_dim, ...] of q or k back in the order of the checkpoint.

    llama.cpp rotates neighbouring rows (2i, 2i + 1) of a head, the checkpoints of the Llama family rows
    (i, i + head_dim / 2); its converter reorders the rows of architecture "llama" for that.
    """
    if array.shape[0] % (2 * num_heads):
        raise ConfigError(f"{array.shape[0]} rows of q or k do not divide into {num_heads} heads")
    by_pair = array.reshape(num_heads, array.shape[0] // num_heads // 2, 2, *array.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(array.shape)


def convert(source: Path, folder: Path, report: Callable[[int, int], None]) -> None:
    """Writes the model folder. ``report(done, total)`` is called with bytes of weights after each tensor.

    Raises ``ConfigError`` for a model that is not supported or does not fit on the disk.
    """
    import gguf

    if source.stat().st_size < 24:
        raise ConfigError("not a GGUF file")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError("not a GGUF file")
    reader = gguf.GGUFReader(source)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture(metadata)
    tensors = [tensor for tensor in reader.tensors if tensor.name != _ROPE_FACTORS]
    shapes = {tensor.name: _shape(tensor) for tensor in tensors}
    factors = next((tensor.data.tolist() for tensor in reader.tensors if tensor.name == _ROPE_FACTORS), None)
    stored = {_stored_dtype(tensor) for tensor in tensors if len(_shape(tensor)) > 1}
    dtype = _TORCH_DTYPES[stored.pop()] if len(stored) == 1 else "float32"

    folder.mkdir(parents=True, exist_ok=True)
    config = model_config(metadata, shapes, factors, dtype)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    _write_text(folder / "tokenizer.json", build_tokenizer(metadata).to_str())
    heads = {}
    if metadata["general.architecture"] == "llama":
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    _write_safetensors(folder / "model.safetensors", tensors, heads, report)


def _shape(tensor: Any) -> tuple[int, ...]:
    """Rows first; GGUF counts dimensions from the innermost."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _stored_dtype(tensor: Any) -> str:
    return _KEPT_DTYPES.get(tensor.tensor_type.name, "F32")


def _write_safetensors(
    path: Path, tensors: list[Any], heads: Mapping[str, int], report: Callable[[int, int], None]
) -> None:
    """One tensor after the other, so that a large model needs no large memory.

    Format (safetensors documentation): a length (u64 LE), a JSON header, the bytes.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for tensor in tensors:
        dtype = _stored_dtype(tensor)
        size = int(np.prod(_shape(tensor), dtype=np.int64)) * _NUM_BYTES[dtype]
        name = checkpoint_name(tensor.name)
        header[name] = {"dtype": dtype, "shape": _shape(tensor), "data_offsets": [total, total + size]}
        total += size
    free = shutil.disk_usage(path.parent).free
    if free < total:
        raise ConfigError(f"{total / 1e9:.1f} GB needed in {path.parent}, {free / 1e9:.1f} GB free")
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            file.write(_values(tensor, heads).tobytes())
            report(file.tell() - 8 - len(encoded), total)
        _sync(file)
    if path.stat().st_size != 8 + len(encoded) + total:
        raise ConfigError("the GGUF file is damaged: a tensor is shorter than its shape says")


def _values(tensor: Any, heads: Mapping[str, int]) -> NDArray[Any]:
    """The tensor's values in rows; BF16 as raw bytes, since numpy has no such type."""
    import gguf

    values: NDArray[Any] = tensor.data
    if tensor.tensor_type.name not in _KEPT_DTYPES:
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ConfigError(f"tensor type {tensor.tensor_type.name} of {tensor.name} is not supported") from None
    operator = tensor.name.split(".")[-2]
    if operator in heads:
        rows = values.reshape(_shape(tensor)[0], -1)
        values = restore_rows(rows, heads[operator])
    return values


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        _sync(file)


def _sync(file: Any) -> None:
    """A folder that is renamed into place must not turn out empty after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def _report_on_stdout(done: int, total: int) -> None:
    # Also how a converter whose caller died ends: the pipe is closed.
    sys.stdout.write(f"{done} {total}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0, 2 with one line on stderr, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="engine_core.models.gguf", description="GGUF file to model folder.")
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--report-progress", action="store_true", help="lines 'done total' in bytes on stdout")
    options = parser.parse_args(arguments)
    try:
        convert(options.source, options.folder, _report_on_stdout if options.report_progress else lambda *_: None)
    except ImportError as error:
        reason = f"package {error.name} is not installed; pip install 'octavo[gguf]'"
    except ConfigError as error:
        reason = str(error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - process edge: a damaged file fails in many ways, all of them one line
        reason = f"{type(error).__name__}: {error}"
    else:
        return 0
    sys.stderr.write(f"cannot convert {options.source}: {' '.join(reason.split())}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
