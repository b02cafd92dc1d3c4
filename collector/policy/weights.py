"""Update the weights of the policy between batches, in this process or in actors."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class PolicyWeights:
    """Copies new weights into the network that the collector calls, in place, and counts the updates.

    An update that comes while a batch is being collected (from another thread, or from the policy itself) is kept and
    applied when that batch is complete: no batch is collected with half of them.
    """

    def __init__(self, policy: Any, module: Any) -> None:
        self.version = 0
        self._policy = policy
        self._module = module
        self._lock = threading.RLock()
        self._collecting = 0
        """The number of batches that are being collected now, nested calls included."""
        self._waiting: dict[str, Any] | None = None
        self._updates = 0
        """The number of updates that wait; the weights are those of the last."""
        self._seen = self._counters()

    def update(self, source: Any) -> None:
        """Take the weights of `source`: a module, a mapping of names to tensors or arrays, or None for the original
        policy.

        Raises `RuntimeError` where there is no module to update, `TypeError` for what is no weight, `ValueError` where
        names, shapes or dtypes do not fit; nothing is changed then.
        """
        if self._module is None:
            raise RuntimeError("there are no weights to update: the policy is not a torch module")
        weights = self._weights_of(self._policy if source is None else source)
        with self._lock:
            if self._collecting:
                self._updates += 1
                self._waiting = copy.deepcopy(weights)
                _wait_for(self._waiting.values())
            else:
                self._apply(weights, 1)

    def state_dict(self) -> dict[str, Any]:
        """The version and, where the policy has some, the weights: entries of a collector's `state_dict`."""
        state: dict[str, Any] = {"policy_version": self.version}
        if hasattr(self._called, "state_dict"):
            state["policy_state_dict"] = self._called.state_dict()
        return state

    def load(self, weights: Any, strict: bool) -> None:
        """Load the weights of a `state_dict`, all of them or none. Raises `RuntimeError` where the policy takes none,
        and what its own `load_state_dict` does.
        """
        policy = self._called
        if not hasattr(policy, "load_state_dict"):
            raise RuntimeError("the state has weights of a policy, but this collector's policy takes none")
        before = copy.deepcopy(policy.state_dict())
        try:
            policy.load_state_dict(weights, strict=strict)
        except BaseException:
            policy.load_state_dict(before)  # torch loads what fits before it raises for the rest
            raise
        self._seen = self._counters()

    @property
    def _called(self) -> Any:
        """The network, or a policy that is no module, but may have weights."""
        return self._policy if self._module is None else self._module

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Weights do not change inside the `with` block."""
        with self._lock:
            if not self._collecting and (counters := self._counters()) != self._seen:
                # A learner that shares them has stepped; or a lazy module has made them, which is no update.
                self.version, self._seen = self.version + bool(self._seen), counters
            self._collecting += 1
        try:
            yield
        finally:
            with self._lock:
                self._collecting -= 1
                if self._waiting is not None and not self._collecting:
                    weights, self._waiting = self._waiting, None
                    updates, self._updates = self._updates, 0
                    self._apply(weights, updates)

    def _weights_of(self, source: Any) -> dict[str, Any]:
        """The weights by name, each as it can be copied."""
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
        # What lies in the same memory needs no copy; one that waits would undo what a learner does there meanwhile.
        return {name: value for name, value in weights.items() if not _is_same(value, own[name])}

    def _apply(self, weights: dict[str, Any], updates: int) -> None:
        # Extra state goes first: the module may refuse it.
        self._module.load_state_dict({name: weights[name] for name in weights if _is_extra_state(name)}, strict=False)
        own = self._module.state_dict()
        for name, value in weights.items():
            if not _is_extra_state(name):
                own[name].copy_(value)
        _wait_for([*own.values(), *weights.values()])
        self.version, self._seen = self.version + updates, self._counters()

    def _counters(self) -> list[tuple[int, int]]:
        """Memory and torch's version counter of each parameter: one that is changed in place has another counter.
        Empty where a lazy module has not made its parameters yet.
        """
        parameters = [] if self._module is None else list(self._module.parameters())
        if any(hasattr(each, "materialize") for each in parameters):
            return []
        return [(each.data_ptr(), each._version) for each in parameters if not each.is_inference()]


class PublishedWeights(PolicyWeights):
    """The weights that actors collect with.

    policy: the driver's policy, which is never changed. put: puts an object into the store, and returns a reference.
    """

    def __init__(self, policy: Any, put: Callable[[Any], Any]) -> None:
        self.policy = on_cpu(policy)
        """The policy as it travels to the actors: a copy on the CPU, where the policy is a module."""
        super().__init__(policy, self.policy if is_module(policy) else None)
        self.puts = 0
        """Number of times that weights were put into the store."""
        self._put = put
        self._reference: Any = None
        self._sent: int | None = 0
        """The version of the weights in the store; None where they have been loaded since."""

    def load(self, weights: Any, strict: bool) -> None:
        super().load(weights, strict)
        self._sent = None

    def reference(self) -> tuple[int, Any]:
        """The version of the weights, and a reference to them in the store; None for those that actors start with."""
        with self.kept():  # an update from another thread waits, so that no half of it is put
            if self.version != self._sent:
                self._reference = None  # the store may drop the old ones before it gets the new ones
                weights = self.policy.state_dict()
                if is_module(self.policy):  # arrays, which the actors of one node read from the same memory
                    weights = {name: _as_array(value) for name, value in weights.items()}
                self._reference = self._put(weights)
                self.puts += 1
                self._sent = self.version
            return self.version, self._reference


def take_over(collector: Any, weights: Any) -> None:
    """Give a local collector, whose policy came from the driver, weights that were sent."""
    if is_module(collector.policy):
        collector.update_policy_weights_(weights)
    else:
        collector.policy.load_state_dict(weights)


def on_cpu(policy: Any) -> Any:
    """A copy of a module with its weights on the CPU, made without a second copy on their device; anything else as it
    is.
    """
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
    """True for a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)


def _as_array(value: Any) -> Any:
    try:
        return value.detach().numpy()
    except (AttributeError, TypeError):  # extra state; what numpy has no dtype for, as bfloat16
        return value


def _wait_for(values: Iterable[Any]) -> None:
    """Wait until what this thread has queued on the devices of these tensors has run: another thread uses them next, on
    its own stream.
    """
    devices = {value.device for value in values if getattr(value, "is_cuda", False)}
    if devices:
        import torch

        for device in devices:
            torch.cuda.current_stream(device).synchronize()


def _as_weight(name: str, value: Any, own: Any) -> Any:
    """The value as a tensor that can be copied into `own`."""
    import torch

    from collector.device.tensors import as_tensor

    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name!r} is no weight, but {type(value).__name__}: {error}") from None
    if tensor.shape != own.shape:
        raise ValueError(f"{name!r} has the shape {tuple(tensor.shape)}; it must be {tuple(own.shape)}")
    if not torch.can_cast(tensor.dtype, own.dtype):
        raise ValueError(f"{name!r} has the dtype {tensor.dtype}, which does not fit {own.dtype}")
    if tensor.is_meta:
        raise ValueError(f"{name!r} is on the device meta, where tensors have no values; pass one that has")
    return tensor


def _is_same(value: Any, own: Any) -> bool:
    """Return whether a weight is the one that it is to be copied into."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and isinstance(own, torch.Tensor)
        and value.device == own.device
        and value.data_ptr() == own.data_ptr() != 0
        and value.stride() == own.stride()
    )


def _is_extra_state(name: str) -> bool:
    """Return whether it is the extra state of a module (`get_extra_state`), which may be any object."""
    return name.rpartition(".")[2] == "_extra_state"


def flat_names(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Weights by name, those of nested mappings (a `TensorDict` of parameters) with dots in their names.

    Raises `TypeError` where `tree` is no mapping.
    """
    if not hasattr(tree, "items"):
        raise TypeError(f"weights are a module, or a mapping of names to tensors; got {type(tree).__name__}")
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if hasattr(value, "items") and not _is_extra_state(name):
            found.update(flat_names(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
