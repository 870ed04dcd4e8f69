"""Tables of cosines and sines for rotary embeddings (arXiv 2104.09864) and their scalings to longer contexts.

Frequencies are computed in float32, operation for operation as the models were trained with.
"""

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from engine_core.models.rope_config import RopeConfig


def build_rotary_table(rope: RopeConfig, head_size: int, max_model_len: int) -> Tensor:
    """f32 [max_model_len, head_size]: the cosines of each position's angles, then the sines.

    A type that depends on a sequence's length is fixed once, at ``max_model_len`` (design 7.3).
    """
    frequencies = inverse_frequencies(rope, head_size, max_model_len)
    angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * frequencies
    exact = angles.double()  # a float64 cosine rounds to the same float32 on every machine
    return torch.cat((exact.cos().float(), exact.sin().float()), dim=1) * rope.attention_factor


def inverse_frequencies(rope: RopeConfig, head_size: int, max_model_len: int) -> Tensor:
    """f32 [head_size / 2]: radians per position of each pair of entries."""
    match rope.type:
        case "linear":
            return _plain(rope.base, head_size) / rope.factor
        case "dynamic":
            return _plain(_dynamic_base(rope, head_size, max_model_len), head_size)
        case "llama3":
            return _llama3(rope, _plain(rope.base, head_size))
        case "yarn":
            return _yarn(rope, head_size)
        case _:
            return _plain(rope.base, head_size)


def _exponents(head_size: int) -> Tensor:
    return torch.arange(0, head_size, 2, dtype=torch.float32) / head_size


def _plain(base: float, head_size: int) -> Tensor:
    return 1.0 / (base ** _exponents(head_size))


def _dynamic_base(rope: RopeConfig, head_size: int, max_model_len: int) -> float:
    """The "dynamic NTK" base for sequences of ``max_model_len``; the plain base within the original length."""
    original = rope.original_max_position_embeddings
    length = max(max_model_len, original)
    scale = rope.factor * length / original - (rope.factor - 1)
    return float(rope.base * scale ** (head_size / (head_size - 2)))


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched, short ones kept, those between are blended."""
    original = rope.original_max_position_embeddings
    wave_lengths = 2 * pi / frequencies
    is_long = wave_lengths > original / rope.low_freq_factor
    is_short = wave_lengths < original / rope.high_freq_factor
    stretched = torch.where(is_long, frequencies / rope.factor, frequencies)
    blend = (original / wave_lengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    return torch.where(is_long | is_short, stretched, blended)


def _yarn(rope: RopeConfig, head_size: int) -> Tensor:
    """YaRN (arXiv 2309.00071): a ramp over the pairs from kept to interpolated frequencies."""

    def pair_with_rotations(num_rotations: float) -> float:
        wave_length = rope.original_max_position_embeddings / num_rotations
        return head_size * log(wave_length / (2 * pi)) / (2 * log(rope.base))

    low, high = pair_with_rotations(rope.beta_fast), pair_with_rotations(rope.beta_slow)
    if rope.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    ramp = ((torch.arange(head_size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    periods = rope.base ** _exponents(head_size)
    return (1.0 / (rope.factor * periods)) * (1 - kept) + (1.0 / periods) * kept
