"""A policy that works on tensors, with arrays in and arrays out (see `collector.device.transfer`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collector.device.tensors import is_lazy, resolve_device, tensors_of, torch
from collector.device.transfer import Direct, Staged
from collector.policy.cuda_graphs import GraphedPolicy
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy, read_output
from collector.policy.prepare import prepare_policy


class TorchPolicy:
    """Asks a policy that works on tensors: arrays in, arrays out, in inference mode.

    A module whose parameters are not on `device` is copied there, and the original is left as it is; `module` is the
    one that is asked, or None where the policy is no module. `rows` is the largest number of rows of a call; `memory`
    as for `Staged`; `cudagraph` and `compile` as for `prepare_policy`.
    """

    def __init__(
        self,
        policy: Policy,
        device: Any,
        rows: int,
        exploration: ExplorationType,
        *,
        memory: Sequence[np.ndarray] = (),
        cudagraph: bool | dict[str, Any] = False,
        compile: bool | dict[str, Any] = False,
    ) -> None:
        target = _home(policy) if device is None else resolve_device(device)
        moved = _on_device(policy, target)
        self.module = moved if isinstance(moved, torch.nn.Module) else None
        self.policy = prepare_policy(moved, target, cudagraph, compile, rows=rows, exploration=exploration)
        self._exploration = exploration
        self._inference = torch.inference_mode()  # one for all calls: making it costs as much as entering it
        # Lazy modules make their parameters in the first call: made in inference mode, they could not be trained.
        self._guard: Any = torch.no_grad() if is_lazy(policy) else self._inference
        self._transfer = Staged(target, rows, memory=memory) if target.type == "cuda" else Direct(target)

    def __call__(self, obs: Any) -> dict[str, np.ndarray]:
        """The policy's outputs for `(k, ...)` observations; valid until the next call."""
        return self.carry(lambda tensors: read_output(self.policy(tensors), self._exploration), obs)

    def carry(self, ask: Callable[[Any], dict[str, Any]], obs: Any) -> dict[str, np.ndarray]:
        """What `ask`, called with the observations on the device, returns; valid until the next call."""
        with self._guard:
            outputs = self._transfer.to_numpy(ask(self._transfer.to_device(obs)))
        self._guard = self._inference
        return outputs

    def close(self) -> None:
        """Let go of what was kept for the next calls: page-locked memory, buffers on the device, graphs."""
        self._transfer.close()
        if isinstance(self.policy, GraphedPolicy):
            self.policy.close()


def _home(policy: Policy) -> torch.device:
    """Where a policy's tensors are; the CPU for one that has none."""
    return next((tensor.device for tensor in tensors_of(policy)), torch.device("cpu"))


def _on_device(policy: Policy, device: torch.device) -> Policy:
    if all(tensor.device == device for tensor in tensors_of(policy)):
        return policy
    assert isinstance(policy, torch.nn.Module)
    # The copy draws from the module's own generators: whoever seeds one means this policy too.
    values = [value for module in policy.modules() for value in vars(module).values()]
    kept = {id(value): value for value in values if isinstance(value, torch.Generator)}
    return copy.deepcopy(policy, kept).to(device)
