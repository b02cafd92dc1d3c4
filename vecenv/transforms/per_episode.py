"""Transforms with state per episode: `CatFrames`, `StepCounter`, `TimeLimit`, `RewardSum`, `NormalizeReward`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.arguments import check_count, check_number, whole
from vecenv.nest import as_array, cast_exactly, namespace, space_of, tree_of
from vecenv.running_mean_std import RunningMeanStd
from vecenv.transforms.arrays import (
    WHOLE,
    Array,
    EnvRows,
    box,
    cast,
    concat,
    full,
    numeric_bounds,
    part,
    replace_parts,
    with_part,
)
from vecenv.transforms.shapes import axis_of
from vecenv.transforms.transform import Freezable, Keys, Rows, Transform


class PerEpisode(Transform):
    """Base class of transforms that store values of each env during an episode: `kept[name]` has an array per env."""

    has_state = True

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__(in_keys, out_keys)
        self.kept: dict[Any, EnvRows] = {}

    def clear(self) -> None:
        self.kept = {}

    def rows_of(self, name: Any) -> EnvRows:
        """Return `kept[name]`, or make an empty store."""
        if name not in self.kept:
            self.kept[name] = EnvRows(self.num_envs)
        return self.kept[name]

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        taken = {name: each.take(ids) for name, each in self.kept.items()}
        return {"kept": {name: as_array(rows) for name, rows in taken.items() if rows is not None}}

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        for each in self.kept.values():
            each.clear(ids)
        for name, rows in state["kept"].items():
            self.rows_of(name).put(ids, rows)


class EpisodeSum(PerEpisode):
    """Base class of transforms that sum a number over the steps of each episode.

    The observation gets the sum under `key`, with shape (1,), unless `key` is `None`. The episode is truncated when the
    sum reaches `max_steps`.
    """

    def __init__(self, key: str | None, entry: spaces.Box | None = None, max_steps: int | None = None) -> None:
        super().__init__(in_keys=[])
        self.key, self.entry, self.max_steps = key, entry, max_steps
        self.dtype = "int64" if entry is None else entry.dtype.name
        self.ends_episodes = max_steps is not None

    def addend(self, rows: Rows) -> Array:
        """Return the number to add in a step, by default 1."""
        return 1

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if self.key is None:
            return space
        if self.key in (space.spaces if isinstance(space, spaces.Dict) else (WHOLE,)):
            raise ValueError(f"{self} adds {self.key!r}, which the observation already has: choose another key")
        return space_of(with_part(tree_of(space), (self.key,), self.entry))

    def reset(self, rows: Rows) -> None:
        self.rows_of("sums").clear(rows.ids)
        self.repeat(rows)

    def step(self, rows: Rows) -> None:
        kept = self.rows_of("sums")
        sums = self._sums(rows, kept, rows.reward) + self.addend(rows)
        kept.put(rows.ids, sums)
        if self.max_steps is not None:
            rows.truncated = rows.truncated | (sums >= self.max_steps)
        self._add(rows, sums)

    def repeat(self, rows: Rows) -> None:
        if self.key is not None:
            self._add(rows, self._sums(rows, self.rows_of("sums"), next(nest.leaves(rows.obs))))

    def _sums(self, rows: Rows, kept: EnvRows, among: Array) -> Array:
        sums = kept.take(rows.ids, among)
        return full((len(rows.ids),), among, 0, "int64") if sums is None else sums

    def _add(self, rows: Rows, sums: Array) -> None:
        if self.key is not None:
            rows.obs = with_part(rows.obs, (self.key,), cast(sums, self.dtype)[:, None])


class TimeLimit(EpisodeSum):
    """Truncate an episode after `max_episode_steps` steps (as gymnasium's TimeLimit).

    >>> import gymnasium as gym
    >>> from vecenv.transforms import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), TimeLimit(1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[2:4]
    (False, True)
    """

    def __init__(self, max_episode_steps: int) -> None:
        super().__init__(None, max_steps=check_count("max_episode_steps", max_episode_steps))
        self.max_episode_steps = self.max_steps


class StepCounter(EpisodeSum):
    """Add a part to the observation: the number of steps since the reset, int64 (1,).

    An observation that is not a dict becomes a dict with the key "observation".

    Arguments:
        max_steps: truncate the episode after this number of steps. `None`: never.
        step_count_key: key of the number.

    >>> import gymnasium as gym
    >>> from vecenv.transforms import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), StepCounter())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["step_count"]
    array([1])
    """

    def __init__(self, max_steps: int | None = None, step_count_key: str = "step_count") -> None:
        entry = spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)
        super().__init__(step_count_key, entry, None if max_steps is None else check_count("max_steps", max_steps))


class RewardSum(EpisodeSum):
    """Add a part to the observation: the sum of rewards since the reset, float32 (1,).

    `in_keys` can only be `["reward"]`. `out_keys` has one key, by default "episode_reward". For observations that are
    not a dict, see `StepCounter`. Raises ValueError for vector rewards.

    >>> import gymnasium as gym
    >>> from vecenv.transforms import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), RewardSum())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["episode_reward"]
    array([1.], dtype=float32)
    """

    def __init__(self, in_keys: Sequence[str] | None = None, out_keys: Sequence[str] | None = None) -> None:
        if in_keys is not None and list(in_keys) != ["reward"]:
            raise ValueError(f'RewardSum only sums "reward", got in_keys={in_keys!r}')
        names = ["episode_reward"] if out_keys is None else list(out_keys)
        if len(names) != 1:
            raise ValueError(f"RewardSum needs exactly one key, got out_keys={out_keys!r}")
        super().__init__(names[0], spaces.Box(-np.inf, np.inf, (1,), np.float32))

    def addend(self, rows: Rows) -> Array:
        rows.check_reward(self)
        return rows.reward


class NormalizeReward(PerEpisode, Freezable):
    """Divide rewards by the running standard deviation of the discounted returns (as SB3's VecNormalize).

    An env's return begins with 0 in each episode. A step sets the return to `gamma * return + reward`. The returns of a
    batch first update the statistics. Then the reward becomes `reward / sqrt(var + epsilon)`, clipped to [-clip, clip]
    unless `clip` is `None`. Unlike in `VecNorm`, no mean is subtracted, so rewards keep their sign.

    In a `TransformedEnv`, each env has separate statistics. Raises ValueError for vector rewards.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> from vecenv.transforms import TransformedVectorEnv
    >>> venv = TransformedVectorEnv(DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 4), NormalizeReward(gamma=0.99))
    >>> obs, info = venv.reset(seed=0)
    >>> obs, rew, terminated, truncated, info = venv.step([[0.0]] * 4)
    >>> venv.transform[0].return_rms.count
    4.0
    >>> venv.close()
    """

    def __init__(self, gamma: float = 0.99, epsilon: float = 1e-8, clip: float | None = 10.0) -> None:
        super().__init__(in_keys=[])
        self.gamma, self.epsilon = check_number("gamma", gamma), check_number("epsilon", epsilon, above=0)
        self.clip = None if clip is None else check_number("clip", clip, above=0, infinite=True)
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        self.return_rms = RunningMeanStd()

    def reset(self, rows: Rows) -> None:
        self.rows_of("returns").clear(rows.ids)

    def step(self, rows: Rows) -> None:
        if self.leaves_rewards:
            return
        rows.check_reward(self)
        kept = self.rows_of("returns")  # also kept up to date while frozen, for `unfreeze` within an episode
        before = kept.take(rows.ids, rows.reward)
        returns = rows.reward if before is None else before * self.gamma + rows.reward
        if not self.frozen:
            self.return_rms.update(as_array(returns))
        xp = namespace(returns)
        ends = rows.terminated | rows.truncated | ~xp.isfinite(returns)
        kept.put(rows.ids, xp.where(ends, xp.zeros_like(returns), returns))
        scaled = rows.reward / float(np.sqrt(self.return_rms.var + self.epsilon))
        rows.reward = scaled if self.clip is None else scaled.clip(-self.clip, self.clip)

    def repeat(self, rows: Rows) -> None:
        pass  # a failed step has no reward to normalise

    def state_dict(self) -> dict[str, Any]:
        return self.return_rms.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.return_rms.load_state_dict(state, shape=())

    merged = staticmethod(RunningMeanStd.merged)


class CatFrames(PerEpisode):
    """Join the last `N` observations of an episode along a dimension, the newest last.

    Arguments:
        N: number of observations.
        dim: dimension of an observation to join along, for example -3 for the channels of (C, H, W).
            `UnsqueezeTransform` adds a dimension.
        padding: content of the frames before an episode's first observation. "same": copies of the first observation
            (gymnasium's `padding_type="reset"`). "constant": `padding_value`, with ValueError if the observation's
            dtype cannot hold the value.

    >>> import gymnasium as gym
    >>> from vecenv.transforms import TransformedEnv
    >>> TransformedEnv(gym.make("CartPole-v1"), CatFrames(4, -1)).observation_space.shape
    (16,)
    """

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Keys = None,
        out_keys: Keys = None,
        padding: str = "same",
        padding_value: float = 0,
    ) -> None:
        if padding not in ("same", "constant"):
            raise ValueError(f'padding must be "same" or "constant", got {padding!r}')
        if np.ndim(padding_value) or np.asarray(padding_value).dtype.kind not in "biuf":
            raise ValueError(f"padding_value must be a number, got {padding_value!r}")
        self.N, self.dim, self.padding, self.padding_value = (
            check_count("N", N),
            whole("dim", dim),
            padding,
            padding_value,
        )
        super().__init__(in_keys, out_keys)

    def reset(self, rows: Rows) -> None:
        self._each(rows, lambda frame, kept: self._first(frame))

    def step(self, rows: Rows) -> None:
        self._each(rows, self._next)

    def repeat(self, rows: Rows) -> None:
        self._each(rows, lambda frame, kept: kept)

    def _each(self, rows: Rows, stacked: Any) -> None:
        written = []
        for source, target in self.places(rows.obs):
            kept, frame = self.rows_of((source, target)), part(rows.obs, source)
            older = kept.take(rows.ids, frame)
            stack = (
                self._first(frame) if older is None else stacked(frame, older)
            )  # `older` is None before the first reset
            kept.put(rows.ids, stack)
            written.append((target, stack))
        rows.obs = replace_parts(rows.obs, (), written)

    def _first(self, frame: Array) -> Array:
        before = frame if self.padding == "same" else full(frame.shape, frame, self.padding_value)
        return concat([*[before] * (self.N - 1), frame], axis_of(self.dim, frame.ndim, self))

    def _next(self, frame: Array, older: Array) -> Array:
        axis = axis_of(self.dim, frame.ndim, self)
        newer = (*[slice(None)] * axis, slice(frame.shape[axis], None), ...)
        return concat([older[newer], frame], axis)

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        low, high = numeric_bounds(space)
        axis = axis_of(self.dim, low.ndim + 1, self) - 1
        older = low, high
        if self.padding == "constant":
            if (fill := cast_exactly(np.asarray(self.padding_value), low.dtype)) is None:
                raise ValueError(
                    f"{self} pads with {self.padding_value!r}, which {low.dtype.name} cannot hold; the space is {space}"
                )
            older = np.minimum(low, fill), np.maximum(high, fill)
        ends = (np.concatenate([*[old] * (self.N - 1), new], axis) for old, new in zip(older, (low, high), strict=True))
        return box(*ends)
