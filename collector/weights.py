"""Weights of the policy: replaced between batches, all of them or none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PolicyWeights:
    """Copies new weights into the network that the collector asks, in place, and counts the updates.

    An update that comes while a batch is being collected (from another thread, or from the policy itself) is kept and
    applied when that batch is complete: no batch is collected with half of them.
    """

    def __init__(self, policy: Any, module: Any) -> None:
        self.version = 0
        self._policy = policy
        self._module = module
        self._lock = threading.RLock()
        self._collecting = False
        self._waiting: dict[str, Any] | None = None

    def update(self, source: Any) -> None:
        """Take the weights of `source`: a module, a mapping of names to tensors, or None for the original policy.

        Raises `RuntimeError` where there is no module to update, `ValueError` where names or shapes do not fit; nothing
        is changed then.
        """
        if self._module is None:
            raise RuntimeError("there are no weights to update: the policy is not a torch module")
        weights = self._weights_of(self._policy if source is None else source)
        with self._lock:
            if self._collecting:
                self._waiting = {name: tensor.detach().clone() for name, tensor in weights.items()}
            else:
                self._apply(weights)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """No weight changes inside of `with`."""
        with self._lock:
            self._collecting = True
        try:
            yield
        finally:
            with self._lock:
                self._collecting = False
                if self._waiting is not None:
                    weights, self._waiting = self._waiting, None
                    self._apply(weights)

    def _weights_of(self, source: Any) -> dict[str, Any]:
        weights = flat_names(source.state_dict() if hasattr(source, "state_dict") else source)
        own = self._module.state_dict()
        required = {name for name, _ in self._module.named_parameters()}
        if unknown := weights.keys() - own.keys():
            raise ValueError(f"the policy has no weights named {sorted(unknown)}; it has {sorted(own)}")
        if missing := required - weights.keys():
            raise ValueError(f"weights are missing: {sorted(missing)}")
        for name, tensor in weights.items():
            if tensor.shape != own[name].shape:
                raise ValueError(f"{name!r} has the shape {tuple(tensor.shape)}; it must be {tuple(own[name].shape)}")
        return weights

    def _apply(self, weights: dict[str, Any]) -> None:
        torch = sys.modules["torch"]
        own = self._module.state_dict()
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self.version += 1


def flat_names(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A mapping whose nested entries got names with dots: a state dict, or a `TensorDict` of parameters.

    Raises `TypeError` where `tree` is no mapping.
    """
    if not hasattr(tree, "items"):
        raise TypeError(f"weights are a module, or a mapping of names to tensors; got {type(tree).__name__}")
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if hasattr(value, "items"):
            found.update(flat_names(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
