"""Doubles of CUDA that copy as late, and refuse as much, as CUDA may: its rules are tested on machines without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from collector.device.copier import Copier
from collector.policy.exploration import ExplorationType
from collector.policy.interface import read_output
from collector.policy.torch_policy import TorchPolicy
from vecenv import nest


def outputs_of(policy: TorchPolicy, obs: Any) -> dict[str, np.ndarray]:
    """What the policy returns for arrays, as arrays."""
    return policy(lambda tensors: read_output(policy.policy(tensors), ExplorationType.RANDOM), obs)


class LateCopier(Copier):
    """A device on which every copy runs as late as it may: when this process waits for it, or a kernel needs it.

    Fails (`AssertionError`) where the source of a copy was written to before the copy ran. `log` names the calls
    in order. Memory comes filled with 77.
    """

    def __init__(self, device: torch.device | None = None, registers: bool = True) -> None:
        super().__init__(device or torch.device("cpu"))
        self.log: list[str] = []
        self._registers = registers
        self._queue: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.log.append("pinned")
        return torch.full(shape, 77, dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.log.append("empty")
        return torch.full(shape, 77, dtype=dtype)

    def register(self, array: np.ndarray) -> Any:
        self.log.append("register")
        return object() if self._registers else None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.log.append("copy")
        self._queue.append((target, source, source.clone()))

    def wait(self) -> None:
        self.log.append("wait")
        self.kernel()

    def kernel(self) -> None:
        """What a kernel sees that is launched now: everything that was queued before has run."""
        while self._queue:
            target, source, then = self._queue.pop(0)
            assert torch.equal(source, then), "the source of a copy was written to before the copy had run"
            target.copy_(source)


class FakeGraphs:
    """Captures like CUDA graphs: a replay reads and writes the memory that the capture saw, and nothing else.

    The run is done once to record it; the Python code of the policy is run again in each replay, which CUDA would not.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.captures += 1
        outputs = nest.map(lambda leaf: leaf.clone(), run())

        def replay() -> Any:
            self.replays += 1
            for static, new in zip(nest.leaves(outputs), nest.leaves(run()), strict=True):
                static.copy_(new)
            return outputs

        return replay
