"""Quantiles of small samples, exactly and without interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta


def quantile(values: Sequence[timedelta], share: float) -> timedelta | None:
    """The smallest value that at least this share of the values does not exceed; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * share) - 1]
