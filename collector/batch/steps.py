"""What batches of steps have in common, whatever their shape is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collector.batch.flat_rollout import FlatRollout
    from collector.batch.rollout import Rollout

Self = TypeVar("Self", bound="Steps")


class Next(NamedTuple):
    """What came after each step of a batch."""

    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    step_count: Any

    @property
    def done(self) -> Any:
        """Bool: the episode was over after the step."""
        return self.terminated | self.truncated


class Steps(ABC):
    """The half of `Rollout` and `FlatRollout` that does not depend on their shape."""

    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    traj_ids: Any
    step_count: Any
    policy_version: Any
    broken_ids: np.ndarray
    """On every device."""

    @property
    def done(self) -> Any:
        """Bool, one a step: it ended its episode."""
        return self.terminated | self.truncated

    @property
    def random(self) -> Any:
        """Bool, one a step: the action was drawn at random, in place of the policy's."""
        return self.policy_version < 0

    def _followed_by(self, obs: Any) -> Next:
        """`next`, with these observations; padding, which has no episode, counts no step."""
        return Next(obs, self.reward, self.terminated, self.truncated, self.step_count + (self.traj_ids >= 0))

    @abstractmethod
    def flatten(self) -> FlatRollout:
        """The same steps in one dimension."""

    def to(self: Self, device: Any) -> Self:
        """The same batch as torch tensors on `device` (which share this memory where the device is the CPU).

        Raises `TypeError` that names the entry for which torch has no dtype (Python objects, text).
        """
        from collector.device.tensors import check_dtypes, to_device

        names = [each.name for each in fields(self) if each.name != "broken_ids"]  # type: ignore[arg-type]
        for name in names:
            check_dtypes(name.removeprefix("all_"), getattr(self, name))
        return replace(self, **{name: to_device(getattr(self, name), device) for name in names})  # type: ignore[type-var]

    def split_trajectories(self, pad_value: float = 0) -> Rollout:
        """A row for each trajectory, as long as the longest, padded; rows by env, then by time.

        `mask` says what is padding, `env_ids` whose trajectory it is. Padding has the `traj_ids` -1, and `pad_value`
        elsewhere: zero where a dtype has no such value (-1 in uint8, NaN in integers); flags: False. Trajectories that
        go on in the next batch are split there.
        """
        from collector.batch.split_trajectories import split_trajectories

        return split_trajectories(self.flatten(), pad_value)
