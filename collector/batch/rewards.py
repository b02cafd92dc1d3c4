"""Rewards: in which shape environments pay, and that none is NaN."""

from __future__ import annotations

import numpy as np

from collector.batch.flat_rollout import FlatRollout
from collector.batch.rollout import Rollout


class Payment:
    """The shape in which the environments of a collector pay: a number each, or vectors of one shape."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] | None = None

    def in_shape(self, reward: np.ndarray, env_ids: np.ndarray) -> np.ndarray:
        """Rewards of a round in that shape; `ValueError` where these environments pay in several.

        Where all of a round failed, or paid nothing, it says nothing of that shape.
        """
        shape = reward.shape[1:]
        if reward.dtype != object:
            if shape == self._shape:
                return reward
            if not shape and not reward.any():
                return np.zeros((len(reward), *self._shape)) if self._shape else reward
            if self._shape is None:
                self._shape = shape
                return reward
        found = dict(zip(env_ids.tolist(), map(np.shape, reward), strict=True))
        before = "" if self._shape is None else f", and {self._shape} before"
        raise ValueError(f"a batch needs rewards of one shape; by environment they are {found}{before}")


def check_rewards(batch: Rollout | FlatRollout) -> None:
    """Raise `ValueError` where a reward is NaN."""
    reward = batch.reward
    if reward.dtype.kind != "f" or not np.isnan(reward).any():
        return
    at = tuple(np.argwhere(np.isnan(reward))[0][: len(batch.shape)])
    action = batch.action[at]
    blame = " (the policy returned NaN)" if action.dtype.kind == "f" and np.isnan(action).any() else ""
    raise ValueError(
        f"env {batch.env_ids[at[0]]} returned a reward of NaN in step {batch.step_count[at]} of its episode "
        f"{batch.traj_ids[at]}, for the action {action}{blame}"
    )
