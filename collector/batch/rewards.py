"""The shape of rewards, and a check that none of them is NaN."""

from __future__ import annotations

import numpy as np

from collector.batch.rollout import FlatRollout, Rollout
from vecenv import nest


class RewardError(ValueError):
    """A reward is NaN. `traj_id` is its episode; `policy`: whether the policy is to blame, which returned NaN."""

    traj_id = -1
    policy = False


class RewardShape:
    """The reward shape of a vector env: `(m,)` once an env has returned a vector, `()` before."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def fit(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards `(k, ...)` in that shape. Where all k envs failed before they returned a vector, they are `(k,)`."""
        shape = rewards.shape[1:]
        if shape == self._shape:
            return rewards
        if not shape:
            return np.zeros((len(rewards), *self._shape))
        self._shape = shape
        return rewards


def check_rewards(batch: Rollout | FlatRollout) -> None:
    """Raise `RewardError`, a `ValueError`, where a reward is NaN."""
    reward = batch.reward
    if reward.dtype.kind != "f" or not np.isnan(reward).any():
        return
    at = tuple(np.argwhere(np.isnan(reward))[0][: len(batch.shape)])
    action = nest.take(batch.action, at)
    by_policy = any(leaf.dtype.kind == "f" and bool(np.isnan(leaf).any()) for leaf in nest.leaves(action))
    cause = " (the policy returned NaN)" if by_policy else ""
    error = RewardError(
        f"env {batch.env_ids[at[0]]} returned a reward of NaN in step {batch.step_count[at]} of its episode "
        f"{batch.traj_ids[at]}, for the action {action}{cause}"
    )
    error.traj_id, error.policy = int(batch.traj_ids[at]), by_policy
    raise error
