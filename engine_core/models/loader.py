"""From a model folder to a model that runs."""

from collections.abc import Callable
from pathlib import Path

import structlog
import torch

from engine_core.layers.loading import LayerLoader, LayerSource, PackingSource
from engine_core.models.architecture import find_architecture
from engine_core.models.checkpoint import Checkpoint
from engine_core.models.config import ArchitectureConfig
from engine_core.models.decoder import DecoderModel
from engine_core.models.dummy import DummyWeights
from engine_core.models.packed_weights import RecordingSource, RestoringSource
from engine_core.models.packed_weights_cache import PackedWeightsCache
from engine_core.models.packed_weights_file import UnusableFile
from ipc.errors import ConfigError
from kernels.ops import Ops, Quantization

log = structlog.get_logger("octavo.engine")


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
    model_digest: bytes | None = None,
) -> DecoderModel:
    """Read, convert and pack the weights of ``folder``, whose config is ``config``, or find them packed in the cache.

    ``dtype``: of linears and KV. ``load_format``: "auto", or "dummy" for random weights from ``seed``.
    ``quantization`` int8 or int4: all linears are quantized as they are loaded, the head in int8 at most.
    ``max_model_len`` in tokens: positions from there on cannot be computed. ``model_digest``: that of ``folder``;
    without it the cache is not used. Raises ConfigError, one line naming file and tensor, for missing, misshapen,
    damaged or surplus weights.
    """
    found = find_architecture([config.architecture])
    if found is None:
        raise ConfigError(f"{folder}: no architecture serves {config.architecture}")

    def build(source: LayerSource) -> DecoderModel:
        return found[1].build(config, LayerLoader(source, ops, dtype, device, quantization), max_model_len)

    if load_format == "dummy":
        return build(PackingSource(DummyWeights(seed), ops, device))
    cache = None
    if model_digest is not None:
        cache = PackedWeightsCache.find(folder, model_digest, ops, dtype, quantization)
    if cache is not None and (model := _restore(cache, build, device)) is not None:
        return model
    with Checkpoint(folder) as checkpoint:
        source = PackingSource(checkpoint, ops, device)
        if cache is None:
            return build(source)
        recording = RecordingSource(source, cache.packed_format)
        model = build(recording)
    cache.keep(recording)
    return model


def _restore(
    cache: PackedWeightsCache, build: Callable[[LayerSource], DecoderModel], device: torch.device
) -> DecoderModel | None:
    """The model, or None if the cache has not exactly what it asks for."""
    try:
        file = cache.read()
        return build(RestoringSource(file, cache.packed_format, device)) if file is not None else None
    except UnusableFile as error:
        log.warning("packed weights cannot be used, so they are made again", file=str(cache.path), reason=str(error))
        return None
