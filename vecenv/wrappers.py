"""Wrappers around a whole vector env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.access import EnvAccess
from vecenv.backends.memory.layout import ObjectLeaf, merge_trees, space_tree
from vecenv.base import BaseVectorEnv
from vecenv.engine.results import Step
from vecenv.errors import Partial
from vecenv.running_mean_std import RunningMeanStd


class VectorEnvWrapper(BaseVectorEnv):
    """Wraps a vector env: everything that a subclass does not define is that of `venv`, every attribute included.

    Works on anything with the methods of a vector env, and is one itself (`isinstance(wrapper, BaseVectorEnv)`).

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> class SignOfReward(VectorEnvWrapper):
    ...     def step(self, action, id=None, **kwargs):
    ...         obs, rew, *rest = self.venv.step(action, id, **kwargs)
    ...         return obs, np.sign(rew), *rest
    >>> with SignOfReward(DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 2)) as venv:
    ...     obs, info = venv.reset()
    ...     venv.step([[1.0], [-1.0]])[1], len(venv)
    (array([-1., -1.]), 2)
    """

    def __init__(self, venv: Any) -> None:
        self.venv = venv

    def __getattribute__(self, name: str) -> Any:
        # BaseVectorEnv is a base for isinstance only: what it defines is looked up in the wrapped one.
        if name.startswith("__") or name in object.__getattribute__(self, "__dict__") or _is_own(type(self), name):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "venv"), name)

    def __len__(self) -> int:
        return len(self.venv)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _is_own(cls: type, name: str) -> bool:
    """Whether the wrapper class or a subclass defines the name."""
    return any(name in base.__dict__ for base in cls.__mro__[: cls.__mro__.index(BaseVectorEnv)])


def _delegate(name: str) -> Any:
    def method(self: VectorEnvWrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.venv, name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, getattr(BaseVectorEnv, name).__doc__
    return method


# Defined for subclasses that call `super().step(...)`.
for _name, _value in [*vars(EnvAccess).items(), *vars(BaseVectorEnv).items()]:
    if callable(_value) and not _name.startswith("_"):
        setattr(VectorEnvWrapper, _name, _delegate(_name))


class VectorEnvNormObs(VectorEnvWrapper):
    """Normalises observations by their running mean and deviation (as tianshou's, and Dict and Tuple spaces too).

    Every batch that is returned first updates the statistics, unless `update_obs_rms` is False. `get_obs_rms` and
    `set_obs_rms` share them with another wrapper, so that a test env uses those of training. float32 stays float32,
    other dtypes become float64. Envs without an observation space have one RunningMeanStd: they must return arrays of
    one shape. ValueError, before any env is touched, for a part of the observation that is no array of numbers;
    TypeError for a gymnasium env or vector env.

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
                "gymnasium VectorEnv there is gymnasium.wrappers.vector.NormalizeObservation"
            )
        super().__init__(venv)
        self.update_obs_rms = update_obs_rms
        self.obs_rms: Any = _new_statistics(venv)

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        if env_id is not None:
            kwargs["env_id"] = env_id
        return self._normed(self.venv.reset, id, **kwargs)

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Step:
        return self._normed(self.venv.step, action, id, **kwargs)

    def recv(self) -> Step:
        return self._normed(self.venv.recv)

    def _normed(self, call: Callable[..., tuple[Any, ...]], *args: Any, **kwargs: Any) -> Any:
        """What `call` returns, with its observations normalised; so are those that its error brings along."""
        try:
            obs, *rest = call(*args, **kwargs)
        except Exception as error:
            partial = getattr(error, "partial", None)
            if isinstance(partial, Partial):
                obs = self._norm_batch(partial.obs, partial.info)
                error.partial = partial._replace(obs=obs)  # type: ignore[attr-defined]
            raise
        return self._norm_batch(obs, rest[-1]), *rest

    def _norm_batch(self, obs: Any, info: np.ndarray) -> Any:
        """Count the rows, and return them normalised; last observations in `info` are normalised in their place."""
        if self.obs_rms is None:
            return obs
        if isinstance(obs, np.ndarray) and obs.dtype == object:
            raise TypeError(
                "VectorEnvNormObs got observations that cannot be stacked, expected arrays of one shape; give the envs "
                "an observation_space, or let them return such arrays"
            )
        if self.update_obs_rms:
            nest.merge(_update, [self.obs_rms, obs])
        for row in info:
            if "final_obs" in row:
                row["final_obs"] = nest.merge(_norm, [self.obs_rms, row["final_obs"]])
        return nest.merge(_norm, [self.obs_rms, obs])

    def get_obs_rms(self) -> Any:
        """The statistics: a RunningMeanStd, for Dict and Tuple spaces a tree of them."""
        return self.obs_rms

    def set_obs_rms(self, obs_rms: Any) -> None:
        """Use these statistics, shared with whoever else holds them; with None observations stay as they are."""
        self.obs_rms = obs_rms


def _new_statistics(venv: Any) -> Any:
    """A RunningMeanStd for each leaf of the observation."""
    found = getattr(venv, "observation_space", None)
    each = found if isinstance(found, list) else [found]
    if all(space is None for space in each):
        return RunningMeanStd()
    tree = merge_trees([space_tree(space, "obs") for space in each], "obs")
    for leaf in nest.leaves(tree):
        if isinstance(leaf, ObjectLeaf):
            raise ValueError(
                f"VectorEnvNormObs cannot normalise {leaf.path}: it is not an array of numbers with the same shape and "
                "dtype in all envs; take it out of the observation, with gymnasium.wrappers.FilterObservation"
            )
    hand_over = getattr(venv, "_hand_over", None)  # what is only like a vector env has none
    if isinstance(tree, (dict, tuple)) and hand_over is not None and hand_over._split:
        raise ValueError(
            "VectorEnvNormObs takes Dict and Tuple observations stacked: make the venv with stack_obs=True"
        )
    return nest.map(lambda leaf: RunningMeanStd(), tree)


def _update(statistics_and_batch: list[Any]) -> None:
    statistics, batch = statistics_and_batch
    statistics.update(batch)


def _norm(statistics_and_batch: list[Any]) -> Any:
    statistics, batch = statistics_and_batch
    return statistics.norm(batch)
