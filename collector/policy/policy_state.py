"""Hash of a policy's weights, and marks that show if a policy changes while it acts."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from collector.policy.weights import is_module
from vecenv.nest import as_array


def hash_of(policy: Any) -> str | None:
    """Return the hash of a policy's weights, or of its source code if it has no weights. `None` if neither is known."""
    if policy is None:
        return None
    digest = hashlib.sha256()
    if hasattr(policy, "state_dict"):
        for name, value in sorted(policy.state_dict().items()):
            for part in _parts(name, value):
                digest.update(part)
    else:
        try:
            digest.update(inspect.getsource(policy if inspect.isroutine(policy) else type(policy)).encode())
        except (OSError, TypeError):
            return None
    return digest.hexdigest()


def _parts(name: str, value: Any) -> Iterator[bytes]:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().contiguous()
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode()
        yield tensor.flatten().view(sys.modules["torch"].uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _parts(f"{name}.{key}", inner)
    else:
        yield f"{name} ".encode() + pickle.dumps(value)


def marks_of(policy: Any) -> list[tuple[str, Any]] | None:
    """Return a mark for each value that a policy may carry from call to call. Equal marks mean equal values.

    Values are buffers, weights, and attributes that are arrays, tensors, numbers or random generators. Returns `None`
    for a lazy module without parameters.
    """
    holder = getattr(policy, "__self__", policy)  # of a bound method
    marks = []
    for part in holder.modules() if is_module(holder) else [holder]:
        own = getattr(part, "__dict__", {})
        for name, value in own.get("_parameters", {}).items():
            if hasattr(value, "materialize"):
                return None
            if value is not None:  # torch counts changes, and hashing weights is slow
                marks.append((name, (value.data_ptr(), value if value.is_inference() else value._version)))
        marks += [(name, _mark(value)) for name, value in [*own.items(), *own.get("_buffers", {}).items()]]
    return marks


def _mark(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return repr(value)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state())
    if hasattr(value, "get_state") and type(value).__module__ == "torch":  # torch.Generator
        value = value.get_state()
    try:
        if isinstance(value, np.ndarray) or hasattr(value, "detach"):
            return hash(as_array(value).tobytes())
    except (RuntimeError, TypeError, NotImplementedError):  # for example a tensor on the meta device
        pass
    return None
