"""Wrappers around a whole vector env."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.memory.layout import ObjectLeaf, merge_trees, space_tree
from vecenv.base import BaseVectorEnv
from vecenv.engine.results import Step
from vecenv.errors import Partial
from vecenv.running_mean_std import RunningMeanStd


def forwarded(name: str) -> Any:
    """A property that returns the attribute `name` of `self.venv`, with its docstring in BaseVectorEnv."""
    return property(attrgetter(f"venv.{name}"), doc=getattr(BaseVectorEnv, name).__doc__)


class VectorEnvWrapper(BaseVectorEnv):
    """Wraps a vector env: methods and attributes that a subclass does not define are those of `venv`.

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

    def __getattr__(self, name: str) -> Any:
        """Forward what only the wrapped object has."""
        if name == "venv":  # used in the constructor of a subclass before it is set
            raise AttributeError(f"{type(self).__name__} has no venv yet: call super().__init__(venv) first")
        return getattr(self.venv, name)

    # The names that BaseVectorEnv defines, so that `__getattr__` is not called for them.

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.reset(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.step(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> None:
        self.venv.send(*args, **kwargs)

    def recv(self) -> Any:
        return self.venv.recv()

    def get_env_attr(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self.venv.get_env_attr(*args, **kwargs)

    def set_env_attr(self, *args: Any, **kwargs: Any) -> None:
        self.venv.set_env_attr(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self.venv.call(*args, **kwargs)

    def render(self, **kwargs: Any) -> list[Any]:
        return self.venv.render(**kwargs)

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.seed(*args, **kwargs)

    def set_seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.set_seed(*args, **kwargs)

    def get_state(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self.venv.get_state(*args, **kwargs)

    def set_state(self, *args: Any, **kwargs: Any) -> None:
        self.venv.set_state(*args, **kwargs)

    def start(self) -> None:
        self.venv.start()

    def alive(self) -> list[bool]:
        return self.venv.alive()

    def stats(self) -> dict[str, Any]:
        return self.venv.stats()

    def close(self) -> None:
        self.venv.close()

    action_space = forwarded("action_space")
    observation_space = forwarded("observation_space")
    metadata = forwarded("metadata")
    spec = forwarded("spec")
    reward_range = forwarded("reward_range")
    workers = forwarded("workers")
    num_envs = forwarded("num_envs")
    is_closed = forwarded("is_closed")
    ready_id = forwarded("ready_id")
    waiting_id = forwarded("waiting_id")
    failed_id = forwarded("failed_id")

    def __len__(self) -> int:
        return len(self.venv)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"


def check_send_and_recv(venv: Any, user: str) -> None:
    """TypeError if a wrapper or subclass overrides `step` or `reset` but neither `send` nor `recv`, as those written
    for tianshou do: `user`, which calls `send` and `recv`, would bypass it.
    """
    while True:
        for cls in type(venv).__mro__:
            if cls in (BaseVectorEnv, VectorEnvWrapper):
                break
            if cls.__module__.startswith("vecenv."):  # the overrides of vecenv itself are consistent
                continue
            own = vars(cls).keys()
            if own & {"step", "reset"} and not own & {"send", "recv"}:
                raise TypeError(
                    f"{cls.__name__} defines {' and '.join(sorted(own & {'step', 'reset'}))}, but {user} steps envs by "
                    f"send and recv: define these in {cls.__name__} too"
                )
        if not isinstance(venv, VectorEnvWrapper):
            return
        venv = venv.venv


class VectorEnvNormObs(VectorEnvWrapper):
    """Normalises observations by their running mean and deviation (as tianshou's, also of Dict and Tuple spaces).

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
        """Return what `call` returns, or raise its error, with observations (in `partial`: of an error) normalised."""
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
        """Update the statistics, and return the rows normalised; `final_obs` in `info` is normalised in place."""
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
        """Use these statistics, not a copy; with None observations are not normalised."""
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
    engine = getattr(venv, "engine", None)  # an object that only has the methods of a vector env has none
    if isinstance(tree, (dict, tuple)) and engine is not None and engine.results.splits:
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
