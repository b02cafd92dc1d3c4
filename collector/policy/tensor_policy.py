"""Policies on tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from collector.basics.timing import Clock
from collector.batch.step_extras import InfoExtras
from collector.device.tensors import Transfer, torch
from collector.policy.array_policy import ArrayPolicy, OutputCheck
from collector.policy.collector_policy import Outputs
from collector.policy.policy_call import ExplorationType, PolicyCall
from vecenv import nest


class TensorPolicy(ArrayPolicy):
    """Policy on tensors. Takes the arguments of `ArrayPolicy`, and:

    policy: the policy on its device. transfer: moves rows to the device and back. on_device: returns the tensors of
        `obs` that are still on the device, or `None`. storing_device: device of the batches, or `None` for arrays.
    """

    def __init__(
        self,
        call: PolicyCall,
        check: OutputCheck,
        clock: Clock,
        threads: int | None,
        columns: InfoExtras | None,
        policy: Any,
        transfer: Transfer,
        on_device: Callable[[Any], Any] | None,
        storing_device: Any = None,
    ) -> None:
        super().__init__(call, check, clock, threads if transfer.device.type == "cpu" else None, columns)
        self.keeps_inputs = not transfer.is_staged  # the device gets a copy of the observations
        self.places_obs = storing_device == transfer.device and transfer.device.type != "cpu"
        self.module = policy if isinstance(policy, torch.nn.Module) else None
        self._transfer: Any = transfer
        self._on_device = on_device
        self._inputs_device: Any = None
        self._is_simulated_here = False
        """True if the last observations to `place` were tensors of the policy's device."""
        self._returns_tensors = False
        """True if outputs stay on the device, where the simulator takes the actions."""

    def batch(self, wanted: ExplorationType) -> AbstractContextManager[None]:
        self._returns_tensors = self._is_simulated_here  # not within a batch, because a column has one type
        return super().batch(wanted)

    def place(self, obs: Any) -> Any:
        device = self._transfer.device
        self._is_simulated_here = all(getattr(leaf, "device", None) == device for leaf in nest.leaves(obs))
        placed = self._transfer.to_device(self._placed(obs))
        self._clock.lap("transfer")
        return placed

    def _placed(self, obs: Any) -> Any:
        tensors = None if self._on_device is None else self._on_device(obs)
        return obs if tensors is None else tensors

    def _arrays(self, inputs: Any) -> Outputs:
        # Not inference mode: a learner could not use tensors that the policy makes in a call and keeps, such as the
        # parameters of a lazy module, or a cache.
        with torch.no_grad():
            transfer = self._transfer  # `close`, which a policy may call, clears `self._transfer`
            tensors = transfer.to_device(inputs)
            self._clock.lap("transfer")
            outputs = self._call_policy(tensors)
            if self._inputs_device is None:
                self._inputs_device = next(nest.leaves(tensors)).device
            for name, value in outputs.items():
                if isinstance(value, torch.Tensor) and value.device != self._inputs_device:
                    raise ValueError(
                        f"the policy returned {name!r} on {value.device}; it must be on {self._inputs_device}, where "
                        "its observations were (see policy_device)"
                    )
            if self._returns_tensors:
                return {name: _kept_on_device(value) for name, value in outputs.items()}
            arrays: Outputs = transfer.to_numpy(outputs)
            return arrays

    def close(self) -> None:
        super().close()
        self._transfer = self._on_device = None


def _kept_on_device(value: Any) -> Any:
    """Return a tensor without gradient, or an array of other values. bfloat16 becomes float32, as in arrays."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return nest.as_array(value)
    return value.detach().float() if value.dtype is torch.bfloat16 else value.detach()
