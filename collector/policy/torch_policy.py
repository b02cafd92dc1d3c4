"""A policy on tensors, with arrays in and arrays out (see `collector.device.transfer`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collector.device.tensors import is_lazy, resolve_device, tensors_of, torch
from collector.device.transfer import make_transfer
from collector.policy.cuda_graphs import GraphedPolicy
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy
from collector.policy.prepare import prepare_policy
from vecenv import nest


class TorchPolicy:
    """Brings inputs to the device of a policy, which is called in inference mode, and its outputs back.

    `module` is the network (a copy where the parameters were not on `device`; the original does not change), or None
    where the policy is no module; `policy` is what to call. `rows` is the largest number of rows of a call; `memory` as
    for `PinnedTransfer`; the options as for `prepare_policy`.
    """

    def __init__(
        self,
        policy: Policy,
        device: Any,
        rows: int,
        exploration: ExplorationType,
        memory: Sequence[np.ndarray] = (),
        **options: Any,
    ) -> None:
        home = next((tensor.device for tensor in tensors_of(policy)), torch.device("cpu"))
        self.device = target = home if device is None else resolve_device(device)
        """Where the policy runs."""
        moved = _on_device(policy, target)
        self.module = moved if isinstance(moved, torch.nn.Module) else None
        self._prepare = partial(prepare_policy, moved, target, rows=rows, **options)
        self._prepared: dict[ExplorationType, Policy] = {}
        self.explore(exploration)
        self._inference = torch.inference_mode()  # one for all calls: making it costs as much as entering it
        # Lazy modules make their parameters in the first call: made in inference mode, they could not be trained.
        self._guard: Any = torch.no_grad() if is_lazy(policy) else self._inference
        self._transfer = make_transfer(target, rows, memory=memory)
        self._inputs_device: Any = None  # once there were some

    def __call__(self, call: Callable[[Any], dict[str, Any]], inputs: Any) -> dict[str, np.ndarray]:
        """What `call` returns for the inputs on the device; valid until the next call."""
        with self._guard:
            tensors = self._transfer.to_device(inputs)
            outputs = call(tensors)
            if self._inputs_device is None:
                self._inputs_device = next(nest.leaves(tensors)).device
            for name, value in outputs.items():
                if isinstance(value, torch.Tensor) and value.device != self._inputs_device:
                    raise ValueError(
                        f"the policy returned {name!r} on {value.device}; it must be on {self._inputs_device}, where "
                        "its observations were (see policy_device)"
                    )
            arrays = self._transfer.to_numpy(outputs)
        self._guard = self._inference
        return arrays

    def explore(self, wanted: ExplorationType) -> None:
        """Set `policy` to one that returns this of a distribution: what is compiled or captured returns no other."""
        if wanted not in self._prepared:
            self._prepared[wanted] = self._prepare(exploration=wanted)
        self.policy = self._prepared[wanted]

    def close(self) -> None:
        """Release what is kept for the next calls: pinned memory, buffers on the device, graphs."""
        self._transfer.close()
        for policy in self._prepared.values():
            if isinstance(policy, GraphedPolicy):
                policy.close()


def _on_device(policy: Policy, device: torch.device) -> Policy:
    """The policy, or a copy of it on the device."""
    if all(tensor.device == device for tensor in tensors_of(policy)):
        return policy
    assert isinstance(policy, torch.nn.Module)
    # The copy draws from the module's own generators: seeding one of those seeds the copy too.
    values = [value for module in policy.modules() for value in vars(module).values()]
    kept = {id(value): value for value in values if isinstance(value, torch.Generator)}
    return copy.deepcopy(policy, kept).to(device)
