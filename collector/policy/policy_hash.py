"""Hash of a policy, with which data sets name their policy."""

from __future__ import annotations

import hashlib
import inspect
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def hash_of(policy: Any) -> str | None:
    """Return the hash of a policy's weights or, without weights, of its source code. Without source, `None`."""
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
