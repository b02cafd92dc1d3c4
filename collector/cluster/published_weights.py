"""The policy's weights on their way to the actors: kept by the driver, put into Ray's store once a version."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

from collector.policy.weights import PolicyWeights


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
