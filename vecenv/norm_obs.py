"""`VectorEnvNormObs`: wrapper that normalises observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.layout import ObjectLeaf, common_tree
from vecenv.running_mean_std import RunningMeanStd
from vecenv.wrappers import RowWiseWrapper


class VectorEnvNormObs(RowWiseWrapper):
    """Wrapper that normalises observations by their running mean and deviation (as tianshou's, but in float64).

    Each batch first updates the statistics, unless `update_obs_rms` is False, and is then normalised. `get_obs_rms` and
    `set_obs_rms` share statistics between wrappers. Floats keep their dtype. Other numbers become float64.
    For rewards use `TransformedVectorEnv(venv, NormalizeReward())`.

    Raises ValueError if observations are not numeric or not stacked (`stack_obs=False`), and TypeError for a gymnasium
    env or vector env.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> train = VectorEnvNormObs(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 4))
    >>> obs, info = train.reset(seed=0)
    >>> test = VectorEnvNormObs(DummyVectorEnv([lambda: gym.make("CartPole-v1")]), update_obs_rms=False)
    >>> test.set_obs_rms(train.get_obs_rms())
    >>> test.obs_rms
    RunningMeanStd(shape=(4,), count=4)
    >>> train.close(), test.close()
    (None, None)
    """

    def __init__(self, venv: Any, update_obs_rms: bool = True) -> None:
        if isinstance(venv, (gymnasium.Env, gymnasium.vector.VectorEnv, list, tuple)):
            raise TypeError(
                f"VectorEnvNormObs wraps a vector env of vecenv, such as ShmemVectorEnv(env_fns), got {venv!r}; for a "
                "gymnasium VectorEnv use gymnasium.wrappers.vector.NormalizeObservation"
            )
        super().__init__(venv)
        self.update_obs_rms = update_obs_rms
        self.obs_rms: Any = _new_statistics(venv)

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        return self._norm_batch(obs), info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        return self._norm_batch(obs), rew, terminated, truncated, info

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Normalise the rows of failed steps without an update, because they repeat earlier observations."""
        with self._no_updates():
            return self.map_step(obs, rew, terminated, truncated, info)

    def seeded(self, seed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Seed the envs. Resets in `seed` do not update the statistics, as in tianshou."""
        with self._no_updates():
            return super().seeded(seed, *args, **kwargs)

    @contextmanager
    def _no_updates(self) -> Iterator[None]:
        before, self.update_obs_rms = self.update_obs_rms, False
        try:
            yield
        finally:
            self.update_obs_rms = before

    def _norm_batch(self, obs: Any) -> Any:
        if self.obs_rms is None:
            return obs
        if self.update_obs_rms:
            nest.merge(lambda pair: pair[0].update(pair[1]), [self.obs_rms, obs])
        return nest.merge(lambda pair: pair[0].norm(pair[1]), [self.obs_rms, obs])

    def get_obs_rms(self) -> Any:
        """Return the statistics: a RunningMeanStd, or a tree of these for Dict and Tuple spaces."""
        return self.obs_rms

    def set_obs_rms(self, obs_rms: Any) -> None:
        """Use these statistics. `None` turns normalisation off."""
        self.obs_rms = obs_rms


def _new_statistics(venv: Any) -> Any:
    found = getattr(venv, "observation_space", None)
    if found is None:  # a lazy vector env before its start
        return RunningMeanStd()
    tree = common_tree(found, "obs")
    for leaf in nest.leaves(tree):
        if isinstance(leaf, ObjectLeaf):
            raise ValueError(
                f"VectorEnvNormObs cannot normalise {leaf.path}: it is not an array of numbers with the same shape and "
                "dtype in all envs; take it out of the observation, with gymnasium.wrappers.FilterObservation"
            )
    if isinstance(tree, (dict, tuple)) and getattr(venv, "splits_obs", False):
        raise ValueError(
            "VectorEnvNormObs takes Dict and Tuple observations stacked: make the venv with stack_obs=True"
        )
    return nest.map(lambda leaf: RunningMeanStd(), tree)
