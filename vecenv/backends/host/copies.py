"""Copies of what passes between a caller and envs of one process, so that neither sees the changes of the other."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np


def own_copy(value: Any) -> Any:
    """A copy, because the caller may still change what it passed; the value itself where it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def plain_copy(value: Any) -> Any:
    """A copy of data, as from a worker; any other object is the env's original, for inspection while debugging."""
    return own_copy(value) if isinstance(value, (np.ndarray, list, dict, set, tuple)) else value
