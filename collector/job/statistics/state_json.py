"""What transforms have learnt, as JSON: numbers and lists of numbers by name."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_json(state: Any) -> Any:
    """The state of a transform as JSON types; floats keep every bit, and NaN and infinities are texts.

    TypeError for what is neither array, number, text nor a dict of these.

    >>> to_json({"mean": np.array([0.5, np.inf]), "count": 3.0})
    {'mean': [0.5, 'inf'], 'count': 3.0}
    """
    if isinstance(state, dict):
        return {str(name): to_json(each) for name, each in state.items()}
    if isinstance(state, (np.ndarray, np.generic)):
        array = np.asarray(state)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"the state of a transform has an array of {array.dtype}, and only numbers can be stored")
        finite = array.dtype.kind != "f" or np.isfinite(array).all()
        return array.tolist() if finite else _texts(array.tolist())
    if isinstance(state, float):
        return _texts(state)
    if isinstance(state, (bool, int, str, type(None))):
        return state
    raise TypeError(f"the state of a transform has a {type(state).__name__}, and only numbers can be stored")


def from_json(state: Any) -> Any:
    """What `to_json` was given, with arrays of int64, float64 and bool. ValueError for lists that are no arrays.

    >>> from_json({"mean": [0.5, "inf"], "count": 3.0})
    {'mean': array([0.5, inf]), 'count': 3.0}
    """
    if isinstance(state, dict):
        return {name: from_json(each) for name, each in state.items()}
    if not isinstance(state, list):
        return float(state) if state in ("nan", "inf", "-inf") else state
    array = np.array(state) if state else np.zeros(0)
    return array if array.dtype.kind in "bif" else np.array(state, np.float64)


def _texts(values: Any) -> Any:
    """Numbers, or texts where JSON has none."""
    if isinstance(values, list):
        return [_texts(each) for each in values]
    return values if np.isfinite(values) else str(values)
