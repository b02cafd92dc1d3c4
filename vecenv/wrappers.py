"""Wrappers around a whole vector env."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv import nest
from vecenv.access import EnvAccess
from vecenv.base import BaseVectorEnv
from vecenv.running import RunningMeanStd


class VectorEnvWrapper(BaseVectorEnv):
    """Wraps a vector env: everything that a subclass does not define is that of `venv`, every attribute included.

    Works on anything with the methods of a vector env, and is one itself (`isinstance(wrapper, BaseVectorEnv)`).
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
    other dtypes become float64.
    """

    def __init__(self, venv: Any, update_obs_rms: bool = True) -> None:
        super().__init__(venv)
        self.update_obs_rms = update_obs_rms
        self.obs_rms: Any = None

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        obs, info = (
            self.venv.reset(id, env_id=env_id, **kwargs) if env_id is not None else self.venv.reset(id, **kwargs)
        )
        return self._norm_obs(obs), info

    def step(
        self, action: Any, id: Any = None, **kwargs: Any
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self._norm_step(*self.venv.step(action, id, **kwargs))

    def recv(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self._norm_step(*self.venv.recv())

    def _norm_step(
        self, obs: Any, rew: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, info: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        obs = self._norm_obs(obs)
        for row in info:
            if "final_obs" in row:
                row["final_obs"] = _zip_map(lambda rms, leaf: rms.norm(leaf), self.obs_rms, row["final_obs"])
        return obs, rew, terminated, truncated, info

    def _norm_obs(self, obs: Any) -> Any:
        if self.obs_rms is None:
            self.obs_rms = nest.map(lambda leaf: RunningMeanStd(), obs)
        if self.update_obs_rms:
            _zip_map(lambda rms, leaf: rms.update(leaf), self.obs_rms, obs)
        return _zip_map(lambda rms, leaf: rms.norm(leaf), self.obs_rms, obs)

    def get_obs_rms(self) -> Any:
        """The statistics: a RunningMeanStd, a tree of them for Dict and Tuple spaces, None before the first batch."""
        return self.obs_rms

    def set_obs_rms(self, obs_rms: Any) -> None:
        """Use these statistics, shared with whoever else holds them."""
        self.obs_rms = obs_rms


def _zip_map(function: Any, left: Any, right: Any) -> Any:
    """`function` on the leaves of two equal trees."""
    if isinstance(right, dict):
        return {key: _zip_map(function, left[key], child) for key, child in right.items()}
    if isinstance(right, tuple):
        return tuple(_zip_map(function, a, b) for a, b in zip(left, right, strict=True))
    return function(left, right)
