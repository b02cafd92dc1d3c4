"""Weights of policies."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class PolicyWeights:
    """Weights of the collector's network, updated in place, and the number of updates.

    An update during a batch, from another thread or the policy, takes effect after the batch.
    """

    def __init__(self, policy: Any, module: Any) -> None:
        self.version = 0
        self._policy = policy
        self._module = module
        self._lock = threading.RLock()
        self._collecting = 0
        """Number of batches in progress, including nested batches."""
        self._waiting: dict[str, Any] = {}
        """Weights of the last update that is not applied yet."""
        self._updates = 0
        """Number of updates that are not applied yet."""
        self._last_counters = self._counters()

    def update(self, source: Any) -> None:
        """Copy the weights of `source`: a module, a mapping of names to tensors or arrays, or `None` for the user's
        policy.

        An error leaves all weights unchanged.
        """
        if self._module is None:
            raise RuntimeError("there are no weights to update: the policy is not a torch module")
        weights = self._weights_of(self._policy if source is None else source)
        with self._lock:
            self._updates += 1
            self._waiting = copy.deepcopy(weights) if self._collecting else weights
            _wait_for(self._waiting.values())
            self._apply()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"policy_version": self.version}
        if hasattr(self._network, "state_dict"):
            state["policy_state_dict"] = self._network.state_dict()
        return state

    def load(self, weights: Any, strict: bool) -> None:
        """Load all weights of a `state_dict`, or raise and change no weight."""
        policy = self._network
        if not hasattr(policy, "load_state_dict"):
            raise RuntimeError("the state has weights of a policy, but this collector's policy takes none")
        before = copy.deepcopy(policy.state_dict())
        try:
            policy.load_state_dict(weights, strict=strict)
        except BaseException:
            policy.load_state_dict(before)  # torch loads some weights before it raises
            raise
        self._last_counters = self._counters()

    @property
    def _network(self) -> Any:
        return self._policy if self._module is None else self._module

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Delay updates until the end of the `with` block."""
        with self._lock:
            if not self._collecting and (counters := self._counters()) != self._last_counters:
                # A learner changed the module in place. (Making the parameters of a lazy module is not an update.)
                self.version, self._last_counters = self.version + bool(self._last_counters), counters
            self._collecting += 1
        try:
            yield
        finally:
            with self._lock:
                self._collecting -= 1
                self._apply()

    def _weights_of(self, source: Any) -> dict[str, Any]:
        found = flat_names(source.state_dict() if hasattr(source, "state_dict") else source)
        own = self._module.state_dict()
        required = {name for name, _ in self._module.named_parameters()}
        if unknown := found.keys() - own.keys():
            raise ValueError(f"the policy has no weights named {sorted(unknown)}; it has {sorted(own)}")
        if missing := required - found.keys():
            raise ValueError(f"weights are missing: {sorted(missing)}")
        weights = {
            name: value if _is_extra_state(name) else _as_weight(name, value, own[name])
            for name, value in found.items()
        }
        # Omit the network's own tensors. A copy applied after the batch would undo a learner's later steps.
        return {name: value for name, value in weights.items() if not _is_same(value, own[name])}

    def _apply(self) -> None:
        if self._collecting or not self._updates:
            return
        (weights, self._waiting), (updates, self._updates) = (self._waiting, {}), (self._updates, 0)
        # Extra state first: if the module refuses it, no weight has changed.
        for is_first in (True, False):
            part = {name: value for name, value in weights.items() if _is_extra_state(name) == is_first}
            self._module.load_state_dict(part, strict=False)
        _wait_for([*self._module.state_dict().values(), *weights.values()])
        self.version, self._last_counters = self.version + updates, self._counters()

    def _counters(self) -> list[tuple[int, int]]:
        if self._module is None:
            return []
        parameters = list(self._module.parameters())
        if any(hasattr(each, "materialize") for each in parameters):
            return []
        return [change_count(each) for each in parameters if not each.is_inference()]


class PublishedWeights(PolicyWeights):
    """Weights for Ray actors. `put` stores an object in Ray. Updates do not change the user's module."""

    def __init__(self, policy: Any, put: Callable[[Any], Any]) -> None:
        self.policy = on_cpu(policy)
        """Policy that is sent to the actors. A module is copied to the CPU."""
        super().__init__(policy, self.policy if is_module(policy) else None)
        self.puts = 0
        self._put = put
        self._reference: Any = None
        self._sent: int | None = 0
        """Version of the weights in Ray's store (0: only in `policy`), or `None` after `load`."""

    def load(self, weights: Any, strict: bool) -> None:
        if self._module is None:
            self.policy = self._policy = copy.deepcopy(self._policy)  # the user's object stays unchanged
        super().load(weights, strict)
        self._sent = None

    def reference(self) -> tuple[int, Any]:
        """Return the version and a Ray reference to the weights. The reference is `None` for the initial weights."""
        with self.kept():
            if self.version != self._sent:
                self._reference = None  # first let Ray's store drop the old weights
                weights = self.policy.state_dict()
                if is_module(self.policy):  # actors of a node share numpy arrays
                    weights = {name: _as_array(value) for name, value in weights.items()}
                self._reference = self._put(weights)
                self.puts += 1
                self._sent = self.version
            return self.version, self._reference


def take_over(collector: Any, weights: Any) -> None:
    if is_module(collector.policy):
        collector.update_policy_weights_(weights)
    else:
        collector.policy.load_state_dict(weights)


def on_cpu(policy: Any) -> Any:
    """Return a copy of a module on the CPU, without making a copy on its device."""
    if not is_module(policy):
        return policy
    from torch.nn import Parameter

    moved: dict[int, Any] = {}
    for each in (*policy.parameters(), *policy.buffers()):
        if each.device.type not in ("cpu", "meta"):
            here = each.detach().cpu()
            moved[id(each)] = Parameter(here, each.requires_grad) if isinstance(each, Parameter) else here
    return copy.deepcopy(policy, moved)


def is_module(policy: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)


def _as_array(value: Any) -> Any:
    try:
        return value.detach().numpy()
    except (AttributeError, TypeError):  # extra state, or bfloat16, which numpy does not have
        return value


def _wait_for(values: Iterable[Any]) -> None:
    """Wait for queued operations, because a thread with another stream may use these tensors."""
    from collector.device.tensors import stream_module, torch

    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    for device in devices:
        if (module := stream_module(device)) is not None:
            module.current_stream(device).synchronize()


def _as_weight(name: str, value: Any, own: Any) -> Any:
    import torch

    from collector.device.tensors import as_tensor

    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name!r} is not a weight, but {type(value).__name__}: {error}") from None
    if tensor.shape != own.shape:
        raise ValueError(f"{name!r} has the shape {tuple(tensor.shape)}; it must be {tuple(own.shape)}")
    if not torch.can_cast(tensor.dtype, own.dtype):
        raise ValueError(f"{name!r} has the dtype {tensor.dtype}, which does not fit {own.dtype}")
    if tensor.is_meta:
        raise ValueError(f"{name!r} is on the device meta, where tensors have no values; pass a tensor with values")
    return tensor


def _is_same(value: Any, own: Any) -> bool:
    import torch

    return (
        isinstance(value, torch.Tensor)
        and isinstance(own, torch.Tensor)
        and value.device == own.device
        and value.data_ptr() == own.data_ptr() != 0
        and value.stride() == own.stride()
    )


def _is_extra_state(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def flat_names(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return weights by name. Nested mappings become names with dots. Raises `TypeError` if `tree` is not a mapping."""
    if not hasattr(tree, "items"):
        raise TypeError(f"weights are a module, or a mapping of names to tensors; got {type(tree).__name__}")
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if hasattr(value, "items") and not _is_extra_state(name):
            found.update(flat_names(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def change_count(parameter: Any) -> tuple[int, int]:
    """Return address and version. Torch increments the version at each change in place."""
    return parameter.data_ptr(), parameter._version
