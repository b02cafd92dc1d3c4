"""Pickling of user objects, with cloudpickle where plain pickle fails."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Pickle; with cloudpickle where plain pickle cannot (classes and functions of the user's script)."""
    try:
        return pickle.dumps(value, protocol=5)
    except RecursionError:
        raise
    except Exception:
        return cloudpickle.dumps(value)
