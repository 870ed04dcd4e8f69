"""Figures of repeated measurements as a report shows them. Knows nothing of what was measured."""

import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 … 1) of them do not exceed: nearest rank. NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Median and the range around it."""
    shown = [f"{value * scale:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} - {shown[2]})"
