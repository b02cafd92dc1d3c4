"""Arguments that say how many."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """`value` as an int; TypeError for what is no integer, ValueError for one below 1 or above `most`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1 or (most is not None and value > most):
        expected = "at least 1" if most is None else f"in [1, {most}]"
        raise ValueError(f"{name} must be {expected}, got {value}")
    return int(value)


def check_frame_skip(frame_skip: Any) -> int:
    """`frame_skip` as an int, 1 for None; ValueError for all but integers of at least 1."""
    if frame_skip is None:
        return 1
    try:
        return check_count("frame_skip", frame_skip)
    except (TypeError, ValueError):
        raise ValueError(f"frame_skip must be an integer of at least 1 or None, got {frame_skip!r}") from None
