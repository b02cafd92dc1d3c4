"""The policy's weights on their way to the actors: kept by the driver, put into Ray's store once a version."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

from collector.policy.weights import PolicyWeights


class PublishedWeights:
    """The weights that actors collect with. `update` and `state_dict` are those of a local collector.

    policy: the driver's policy, which is never changed. put: puts an object into the store, and returns a reference.
    """

    def __init__(self, policy: Any, put: Callable[[Any], Any]) -> None:
        self.policy = on_cpu(policy)
        """What travels to the actors: a copy on the CPU, where the policy is a module."""
        self.weights = PolicyWeights(policy, self.policy if is_module(policy) else None)
        self.puts = 0
        """How often weights were put into the store."""
        self._put = put
        self._reference: Any = None
        self._sent: tuple[int, int] = (0, 0)
        self._loads = 0

    @property
    def stamp(self) -> tuple[int, int]:
        """Equal for equal weights. That of the weights with which actors start is `(0, 0)`."""
        return self._loads, self.weights.version

    def load(self, weights: Any, strict: bool) -> None:
        """Load the weights of a `state_dict`."""
        self.weights.load(weights, strict)
        self._loads += 1

    def reference(self) -> tuple[tuple[int, int], Any]:
        """The stamp of the weights, and a reference to them in the store; None for those that actors start with."""
        with self.weights.kept():  # an update from another thread waits, so that no half of it is put
            stamp = self.stamp
            if stamp != self._sent:
                self._reference = None  # the store may drop the old ones before it gets the new ones
                self._reference = self._put(as_sent(self.policy))
                self.puts += 1
                self._sent = stamp
            return stamp, self._reference


def on_cpu(policy: Any) -> Any:
    """A copy of a module with its weights on the CPU, made without a second copy on their device; anything else as it
    is.
    """
    if not is_module(policy):
        return policy
    import torch

    moved: dict[int, Any] = {}
    for each in (*policy.parameters(), *policy.buffers()):
        if each.device.type not in ("cpu", "meta"):
            here = each.detach().cpu()
            moved[id(each)] = torch.nn.Parameter(here, each.requires_grad) if _is_parameter(each) else here
    return copy.deepcopy(policy, moved)


def as_sent(policy: Any) -> Any:
    """The weights of a policy; those of a module as arrays, which the actors of one node read from the same memory.
    What numpy has no dtype for stays a tensor.
    """
    weights = policy.state_dict()
    return {name: _as_array(value) for name, value in weights.items()} if is_module(policy) else weights


def take_over(collector: Any, weights: Any) -> None:
    """Give a local collector, whose policy came from the driver, weights that were sent."""
    if is_module(collector.policy):
        collector.update_policy_weights_(weights)
    else:
        collector.policy.load_state_dict(weights)


def _as_array(value: Any) -> Any:
    try:
        return value.detach().numpy()
    except (AttributeError, TypeError):  # extra state; bfloat16
        return value


def is_module(policy: Any) -> bool:
    """Whether it is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)


def _is_parameter(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.nn.Parameter)
