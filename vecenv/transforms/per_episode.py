"""Transforms with a state along an episode: CatFrames, StepCounter, TimeLimit, RewardSum, NormalizeReward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.engine.arguments.checks import check_count
from vecenv.nest import as_array
from vecenv.running_mean_std import RunningMeanStd
from vecenv.transforms.arrays import Array, EnvRows, cast, concat, like, namespace, zeros
from vecenv.transforms.parts import bounds_of, box, part, with_part
from vecenv.transforms.shapes import axis_of
from vecenv.transforms.transform import Freezable, NoPartTransform, Place, Rows, Transform


class TimeLimit(NoPartTransform):
    """Truncates an episode after `max_episode_steps` steps (as gymnasium's TimeLimit).

    In a TransformedVectorEnv the worker does not know of that end: see there.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), TimeLimit(1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[2:4]
    (False, True)
    """

    has_state = True
    ends_episodes = True

    def __init__(self, max_episode_steps: int) -> None:
        super().__init__()
        self.max_episode_steps = check_count("max_episode_steps", max_episode_steps)
        self._counts = np.zeros(1, np.int64)

    def clear(self) -> None:
        self._counts = np.zeros(self.num_envs, np.int64)

    def reset(self, rows: Rows) -> None:
        self._counts[rows.ids] = 0

    def step(self, rows: Rows) -> None:
        self._counts[rows.ids] += 1
        truncate(rows, self._counts[rows.ids] >= self.max_episode_steps)

    def __repr__(self) -> str:
        return f"TimeLimit({self.max_episode_steps})"


class StepCounter(NoPartTransform):
    """Adds the number of steps since the reset to the observation: int64 (1,) (as torchrl's StepCounter).

    An observation that is no dict becomes one, with the key "observation".

    Arguments:
        max_steps: truncate the episode after that many steps; None: never.
        step_count_key: the key of the number.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), StepCounter())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["step_count"]
    array([1])
    """

    has_state = True

    def __init__(self, max_steps: int | None = None, step_count_key: str = "step_count") -> None:
        super().__init__()
        self.max_steps = None if max_steps is None else check_count("max_steps", max_steps)
        self.ends_episodes = max_steps is not None
        self.step_count_key = step_count_key
        self._counts = np.zeros(1, np.int64)

    def clear(self) -> None:
        self._counts = np.zeros(self.num_envs, np.int64)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return with_entry(space, self.step_count_key, spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64), self)

    def reset(self, rows: Rows) -> None:
        self._counts[rows.ids] = 0
        self._add(rows)

    def step(self, rows: Rows) -> None:
        self._counts[rows.ids] += 1
        if self.max_steps is not None:
            truncate(rows, self._counts[rows.ids] >= self.max_steps)
        self._add(rows)

    def _add(self, rows: Rows) -> None:
        counts = like(self._counts[rows.ids][:, None], first_leaf(rows.obs))
        rows.obs = with_part(rows.obs, (self.step_count_key,), counts)


class RewardSum(NoPartTransform):
    """Adds the sum of rewards since the reset to the observation: float32 (1,) (as torchrl's RewardSum).

    An observation that is no dict becomes one, with the key "observation". The key is the only one of `out_keys`,
    "episode_reward" by default. Sums are kept in the dtype of the rewards. ValueError for rewards that are vectors.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gym.make("CartPole-v1"), RewardSum())
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[0]["episode_reward"]
    array([1.], dtype=float32)
    """

    has_state = True

    def __init__(self, in_keys: Sequence[str] | None = None, out_keys: Sequence[str] | None = None) -> None:
        super().__init__()
        if in_keys is not None and list(in_keys) != ["reward"]:
            raise ValueError(f'RewardSum sums "reward" alone, got in_keys={in_keys!r}')
        names = ["episode_reward"] if out_keys is None else list(out_keys)
        if len(names) != 1:
            raise ValueError(f"RewardSum writes one entry, got out_keys={out_keys!r}")
        self.out_key = names[0]
        self._sums = EnvRows(1)

    def clear(self) -> None:
        self._sums = EnvRows(self.num_envs)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return with_entry(space, self.out_key, spaces.Box(-np.inf, np.inf, (1,), np.float32), self)

    def reset(self, rows: Rows) -> None:
        self._sums.clear(rows.ids)
        self._add(rows, zeros((len(rows.ids),), first_leaf(rows.obs), "float32"))

    def step(self, rows: Rows) -> None:
        if rows.reward.ndim != 1:
            raise ValueError(f"RewardSum needs rewards that are numbers, got the shape {tuple(rows.reward.shape[1:])}")
        before = self._sums.take(rows.ids)
        sums = rows.reward if before is None else before + rows.reward
        self._sums.put(rows.ids, sums)
        self._add(rows, sums)

    def _add(self, rows: Rows, sums: Array) -> None:
        rows.obs = with_part(rows.obs, (self.out_key,), cast(sums, "float32")[:, None])


class NormalizeReward(Freezable, NoPartTransform):
    """Rewards divided by the running deviation of the discounted return (as norm_reward of SB3's VecNormalize; the name
    is gymnasium's).

    The return of an env is `gamma * return + reward` from the reset to the end of the episode. A batch first adds its
    returns to the statistics, in float64, then `reward / sqrt(var + epsilon)` is clipped to `clip` (None: not). Nothing
    is subtracted, so signs stay, and so does what is optimal. (`VecNorm` subtracts the mean.)

    In a `TransformedVectorEnv` it sees whole batches; in workers each env has statistics of its own. `freeze` ends the
    updates, and a test env takes `frozen_copy()`, or none of it, to see the rewards of the task. `state_dict` has the
    statistics. ValueError for rewards that are vectors.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> from vecenv.transforms.transformed_vector_env import TransformedVectorEnv
    >>> venv = TransformedVectorEnv(DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 4), NormalizeReward(gamma=0.99))
    >>> obs, info = venv.reset(seed=0)
    >>> obs, rew, terminated, truncated, info = venv.step([[0.0]] * 4)
    >>> venv.transform[0].return_rms.count
    4.0
    >>> venv.close()
    """

    has_state = True

    def __init__(self, gamma: float = 0.99, epsilon: float = 1e-8, clip: float | None = 10.0) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        if not epsilon > 0 or (clip is not None and not clip > 0):
            raise ValueError(f"epsilon and clip must be above 0, got epsilon={epsilon} and clip={clip}")
        self.gamma, self.epsilon, self.clip = float(gamma), float(epsilon), clip
        self.frozen = False
        self.return_rms = RunningMeanStd()
        """The statistics of the returns."""
        self._returns = EnvRows(1)

    def clear(self) -> None:
        self._returns = EnvRows(self.num_envs)

    def reset(self, rows: Rows) -> None:
        self._returns.clear(rows.ids)

    def step(self, rows: Rows) -> None:
        if rows.reward.ndim != 1:
            raise ValueError(
                f"NormalizeReward needs rewards that are numbers, got the shape {tuple(rows.reward.shape[1:])}"
            )
        if not self.frozen:
            before = self._returns.take(rows.ids)
            returns = rows.reward if before is None else before * self.gamma + rows.reward
            self.return_rms.update(as_array(returns))
            xp = namespace(returns)
            ends = rows.terminated | rows.truncated | ~xp.isfinite(returns)
            self._returns.put(rows.ids, xp.where(ends, xp.zeros_like(returns), returns))
        scaled = rows.reward / float(np.sqrt(self.return_rms.var + self.epsilon))
        rows.reward = scaled if self.clip is None else namespace(scaled).clip(scaled, -self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        """The statistics: copies, safe to keep."""
        return self.return_rms.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; ValueError for anything else."""
        self.return_rms.load_state_dict(state, shape=())

    merged = staticmethod(RunningMeanStd.merged)

    def __repr__(self) -> str:
        return f"NormalizeReward(gamma={self.gamma}{', frozen' if self.frozen else ''})"


class CatFrames(Transform):
    """The last `N` observations of an episode joined along a dimension, the newest last (as torchrl's CatFrames).

    Arguments:
        N: how many.
        dim: along which dimension; the batch is not counted. -3 is that of the channels of images (C, H, W). Where
            there is none to join along, add it by `UnsqueezeTransform` first.
        in_keys, out_keys: see `Transform`.
        padding: what stands before the first observation of an episode: "same", that observation again (gymnasium's
            "reset"), or "constant", the number `padding_value`.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> TransformedEnv(gym.make("CartPole-v1"), CatFrames(4, -1)).observation_space.shape
    (16,)
    """

    has_state = True

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
        padding: str = "same",
        padding_value: float = 0,
    ) -> None:
        if isinstance(N, bool) or not isinstance(N, (int, np.integer)) or N < 1:
            raise ValueError(f"N must be an integer of at least 1, got {N!r}")
        if padding not in ("same", "constant"):
            raise ValueError(f'padding must be "same" or "constant", got {padding!r}')
        self.N, self.dim, self.padding, self.padding_value = int(N), dim, padding, padding_value
        self._frames: dict[Place, EnvRows] = {}
        super().__init__(in_keys, out_keys)

    def clear(self) -> None:
        self._frames = {}

    def reset(self, rows: Rows) -> None:
        self._each(rows, self._first)

    def step(self, rows: Rows) -> None:
        self._each(rows, self._next)

    def _each(self, rows: Rows, joined: Any) -> None:
        if self._places is None:
            self._places = self.places(rows.obs)
        for place in self._places:
            kept = self._frames.get(place)
            if kept is None:
                kept = self._frames[place] = EnvRows(self.num_envs)
            stack = joined(part(rows.obs, place[0]), kept, rows.ids)
            kept.put(rows.ids, stack)
            rows.obs = with_part(rows.obs, place[1], stack)

    def _first(self, frame: Array, kept: EnvRows, ids: np.ndarray) -> Array:
        before = frame if self.padding == "same" else zeros(frame.shape, frame) + self.padding_value
        return concat([*[before] * (self.N - 1), frame], axis_of(self.dim, frame.ndim, self))

    def _next(self, frame: Array, kept: EnvRows, ids: np.ndarray) -> Array:
        older = kept.take(ids)
        if older is None:  # no env was ever reset
            return self._first(frame, kept, ids)
        axis = axis_of(self.dim, frame.ndim, self)
        newer = (*[slice(None)] * axis, slice(frame.shape[axis], None), ...)
        return concat([older[newer], frame], axis)

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        low, high = bounds_of(space)
        axis = axis_of(self.dim, low.ndim + 1, self) - 1
        if self.padding == "constant":
            fill = np.asarray(self.padding_value, low.dtype)
            older = np.minimum(low, fill), np.maximum(high, fill)
        else:
            older = low, high
        ends = (np.concatenate([*[old] * (self.N - 1), new], axis) for old, new in zip(older, (low, high), strict=True))
        return box(*ends)

    def __repr__(self) -> str:
        return f"CatFrames({self.N}, dim={self.dim})"


def truncate(rows: Rows, over: np.ndarray) -> None:
    """Mark these rows as truncated."""
    rows.truncated = rows.truncated | like(over, rows.truncated)


def first_leaf(obs: Any) -> Array:
    """An array of the observation."""
    return next(nest.leaves(obs))


def with_entry(space: Any, key: str, entry: spaces.Space[Any], transform: Any) -> spaces.Space[Any]:
    """The space with one more entry; ValueError where it has that already or cannot have it."""
    if isinstance(space, spaces.Tuple):
        raise ValueError(f"{transform} adds an entry to the observation, which cannot be a Tuple")
    if isinstance(space, spaces.Dict) and key in space.spaces:
        raise ValueError(f"{transform} adds {key!r}, which the observation has already; give it another key")
    added: spaces.Space[Any] = with_part(space, (key,), entry)
    return added
