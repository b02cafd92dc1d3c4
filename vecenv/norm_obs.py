"""`VectorEnvNormObs`: normalise observations by running statistics of the whole vector env."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.memory.arena import ObjectLeaf, merge_trees, space_tree
from vecenv.wrappers import RowWiseWrapper

Self = TypeVar("Self", bound="RunningMeanStd")
PARTS = ("mean", "var", "count", "skipped")
"""The names of the arrays of statistics: float64, the last two with the shape ()."""
LARGEST = 1e100
"""Rows with a larger number are left out: the sum of its squares may be infinite."""
TINY = 1e-300
IN_ONE_CALL = deque[Any](maxlen=0).extend
SET_ITEM: Callable[..., None] = operator.setitem


class RunningMeanStd:
    """Mean and variance of all rows seen so far, and `norm` to standardise with them (as tianshou's RunningMeanStd).

    `mean` and `var` are float64 of the shape of one row, `count` the number of rows; `eps` keeps the division finite
    and `clip_max` (None for no limit) bounds what `norm` returns. Rows with a NaN, an infinity or a number beyond 1e100
    are left out, and `skipped` is how many these were. `state_dict` and `load_state_dict` carry the numbers. Updates
    are in place, so that views of `mean` and `var` stay true once there was a row.

    >>> rms = RunningMeanStd()
    >>> rms.update(np.array([[1.0], [3.0], [np.nan]]))
    >>> rms.mean, rms.var, rms.count, rms.skipped
    (array([2.]), array([1.]), 2.0, 1)
    """

    def __init__(
        self,
        mean: Any = 0.0,
        std: Any = 1.0,
        clip_max: float | None = 10.0,
        eps: float = float(np.finfo(np.float32).eps),
    ) -> None:
        self.mean = np.array(mean, dtype=np.float64)
        self.var = np.array(np.asarray(std, dtype=np.float64) ** 2)  # an array also where std is one number
        self._count, self._skipped = np.zeros(()), np.zeros(())
        self.clip_max = clip_max
        self.eps = eps

    @classmethod
    def of(cls: type[Self], arrays: Mapping[str, Any], name: str) -> Self:
        """The statistics that consist of the arrays "<name>_mean" and so on, which its updates change."""
        self = cls.__new__(cls)
        self.mean, self.var = arrays[f"{name}_mean"], arrays[f"{name}_var"]
        self._count, self._skipped = arrays[f"{name}_count"], arrays[f"{name}_skipped"]
        return self

    @property
    def count(self) -> float:
        """The number of rows seen so far; with a `decay`, their weight."""
        return float(self._count)

    @property
    def skipped(self) -> int:
        """The number of rows that were left out."""
        return int(self._skipped)

    def __repr__(self) -> str:
        skipped = f", skipped={self.skipped}" if self.skipped else ""
        return f"{type(self).__name__}(shape={self.mean.shape}, count={self.count:g}{skipped})"

    def update(self, batch: np.ndarray) -> None:
        """Add the rows of `batch` (k, ...) to the statistics; exact for any split into batches."""
        batch = np.asarray(batch, dtype=np.float64)
        if not len(batch):
            return
        if self.mean.shape != batch.shape[1:]:  # the first rows say what shape a row has
            mean, var = (np.broadcast_to(part, batch.shape[1:]).copy() for part in (self.mean, self.var))
            vars(self).update(mean=mean, var=var)  # both or none
        self.add(batch)

    def add(self, rows: Any, decay: float = 1.0) -> Any:
        """Add rows (k, ...) of float64, and return them with the new mean taken off.

        What came before counts `decay` times as much as it did. Of tensors nothing is asked on the way, so that a
        device computes on.
        """
        if isinstance(rows, np.ndarray) and (before := float(self._count) * decay):
            centred = rows - self.mean
            if _sum_of_squares(centred) < LARGEST**2:  # False for NaN; Welford's update, for a batch
                total = before + len(rows)
                shift = _sum(centred) / total
                left = centred - shift
                centred *= left
                var = self.var * (before / total)
                var += _sum(centred) / total
                self._change(self.mean + shift, var, total, self._skipped)
                return left
        xp = nest.namespace(rows)
        usable = (abs(rows) < LARGEST).reshape(len(rows), -1).all(1)
        count, mask = usable.sum(), usable.reshape(-1, *[1] * (rows.ndim - 1))
        at_least_1, zeros = count.clip(1), xp.zeros_like(rows)
        mean = xp.where(mask, rows, zeros).sum(0) / at_least_1
        centred = xp.where(mask, rows - mean, zeros)
        self.merge(count, mean, (centred * centred).sum(0) / at_least_1, decay, len(rows) - count)
        return rows - self.mean

    def merge(self, count: Any, mean: Any, var: Any, decay: float = 1.0, skipped: Any = 0) -> None:
        """Add `count` rows of this mean and variance (Chan's formula), which may be tensors."""
        total = self._count * decay + count
        new = count / (total + TINY)
        old = 1 - new
        delta = mean - self.mean
        var = self.var * old + new * (var + old * delta * delta)
        self._change(self.mean + new * delta, var, total, self._skipped + skipped)

    def _change(self, *new: Any) -> None:
        """Write all four arrays within one call of C: an interrupt comes before or after it."""
        own: Any = self.mean, self.var, self._count, self._skipped
        IN_ONE_CALL(map(SET_ITEM, own, repeat(...), new))

    def norm(self, batch: np.ndarray) -> np.ndarray:
        """`batch` with the mean taken off, divided by the deviation, clipped; floats keep their dtype, other numbers
        become float64.
        """
        batch = np.asarray(batch)
        dtype = batch.dtype if np.issubdtype(batch.dtype, np.floating) else np.dtype(np.float64)
        scaled = (batch - self.mean) / np.sqrt(self.var + self.eps)
        if self.clip_max is not None:
            scaled = np.clip(scaled, -self.clip_max, self.clip_max)
        return scaled.astype(dtype, copy=False)

    def state_dict(self) -> dict[str, Any]:
        """`{"mean", "var", "count", "skipped"}`: copies, safe to keep."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any], shape: tuple[int, ...] | None = None) -> None:
        """Take over what `state_dict` returned; ValueError for other names, and for rows of another shape than `shape`
        (None: any).
        """
        check_keys(self, PARTS, state)
        mean, var = np.array(state["mean"], dtype=np.float64), np.array(state["var"], dtype=np.float64)
        if not mean.shape == var.shape == (mean.shape if shape is None else shape):
            raise ValueError(f"the state does not fit {self}: it is of rows of shapes {mean.shape} and {var.shape}")
        count, skipped = np.array(float(state["count"])), np.array(float(state["skipped"]))
        if (mean.shape, var.shape) == (self.mean.shape, self.var.shape):
            self._change(mean, var, count, skipped)
        else:
            vars(self).update(mean=mean, var=var, _count=count, _skipped=skipped)

    @staticmethod
    def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The state of statistics that have seen the rows of each of several, of their `state_dict`s."""
        together = RunningMeanStd()
        together.load_state_dict(states[0])
        for state in states[1:]:
            mean, var = (np.asarray(state[name], np.float64) for name in ("mean", "var"))
            together.merge(float(state["count"]), mean, var, skipped=float(state["skipped"]))
        return together.state_dict()


def _sum(rows: np.ndarray) -> Any:
    return rows[0] if len(rows) == 1 else np.add.reduce(rows, 0)


def _sum_of_squares(array: np.ndarray) -> Any:
    # BLAS is quicker for few numbers; with many it would wake threads, which then keep the CPUs for milliseconds.
    return np.vdot(array, array) if array.size <= 8192 else np.einsum("i,i->", array.ravel(), array.ravel())


def check_keys(owner: Any, expected: Sequence[str], state: Mapping[str, Any]) -> None:
    """ValueError where a state has not the entries that its owner has."""
    if set(state) != set(expected):
        raise ValueError(f"the state does not fit {owner}: expected {sorted(expected)}, got {sorted(state)}")


class VectorEnvNormObs(RowWiseWrapper):
    """Normalises observations by their running mean and deviation (as tianshou's, also of Dict and Tuple spaces).

    Every batch that is returned first updates the statistics, unless `update_obs_rms` is False. `get_obs_rms` and
    `set_obs_rms` share them with another wrapper, so that a test env uses those of training. Floats keep their dtype,
    other numbers become float64. Envs without an observation space have one RunningMeanStd: they must return arrays of
    one shape. ValueError, before any env is touched, for a part of the observation that is no array of numbers;
    TypeError for a gymnasium env or vector env. For rewards there is `TransformedVectorEnv(venv, NormalizeReward())`,
    around it or within.

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

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        """The rows normalised."""
        return self._norm_batch(obs), info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """The rows, with observations normalised."""
        return self._norm_batch(obs), rew, terminated, truncated, info

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """The rows normalised by the statistics, which have seen them."""
        with self._no_updates():
            return self.map_step(obs, rew, terminated, truncated, info)

    def seeded(self, seed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The observations of the resets in it are returned to no caller, so they are not counted (as tianshou)."""
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
        """Update the statistics, and return the rows normalised."""
        if self.obs_rms is None:
            return obs
        if isinstance(obs, np.ndarray) and obs.dtype == object:
            raise TypeError(
                "VectorEnvNormObs got observations that cannot be stacked, expected arrays of one shape; give the envs "
                "an observation_space, or let them return such arrays"
            )
        if self.update_obs_rms:
            nest.merge(lambda pair: pair[0].update(pair[1]), [self.obs_rms, obs])
        return nest.merge(lambda pair: pair[0].norm(pair[1]), [self.obs_rms, obs])

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
