"""From a model folder to a model that runs."""

from pathlib import Path

import torch

from engine_core.layers.loading import LayerLoader
from engine_core.models.architecture import find_architecture
from engine_core.models.checkpoint import Checkpoint
from engine_core.models.config import ArchitectureConfig
from engine_core.models.decoder import DecoderModel
from engine_core.models.dummy import DummyWeights
from ipc.errors import ConfigError
from kernels.ops import Ops, Quantization


def load_model(
    folder: Path,
    config: ArchitectureConfig,
    *,
    dtype: torch.dtype,
    load_format: str,
    seed: int,
    max_model_len: int,
    ops: Ops,
    device: torch.device,
    quantization: Quantization | None = None,
) -> DecoderModel:
    """Read, convert and pack the weights of ``folder``, whose config is ``config``.

    ``dtype``: of linears and KV. ``load_format``: "auto", or "dummy" for random weights from ``seed``.
    ``quantization`` int8: all linears, the head included, are quantized as they are loaded.
    ``max_model_len`` in tokens: positions from there on cannot be computed. Raises ConfigError, one line naming
    file and tensor, for missing, misshapen, damaged or surplus weights.
    """
    found = find_architecture([config.architecture])
    if found is None:
        raise ConfigError(f"{folder}: no architecture serves {config.architecture}")
    build = found[1].build
    if load_format == "dummy":
        return build(config, LayerLoader(DummyWeights(seed), ops, dtype, device, quantization), max_model_len)
    with Checkpoint(folder) as checkpoint:
        return build(config, LayerLoader(checkpoint, ops, dtype, device, quantization), max_model_len)
