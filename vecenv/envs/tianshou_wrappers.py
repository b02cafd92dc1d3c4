"""Wrappers of tianshou: continuous actions as grids, several choices as one, truncated episodes as terminated ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from vecenv.engine.arguments import check_count


class ContinuousToDiscrete(gymnasium.ActionWrapper, RecordConstructorArgs):
    """Offers an env with a Box action space as MultiDiscrete (as tianshou's wrapper).

    In dimension i, the choices 0 .. action_per_dim[i] - 1 are evenly spaced values from its low to its high.

    Arguments:
        env: an env whose action space is a Box of shape (d,) with finite bounds; TypeError or ValueError otherwise.
        action_per_dim: how many choices in each dimension: an int for all, or one for each.

    >>> env = ContinuousToDiscrete(gymnasium.make("Pendulum-v1"), action_per_dim=5)
    >>> env.action_space, env.action(np.array([1]))
    (MultiDiscrete([5]), array([-1.], dtype=float32))
    """

    def __init__(self, env: gymnasium.Env[Any, Any], action_per_dim: int | Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, action_per_dim=action_per_dim)
        gymnasium.ActionWrapper.__init__(self, env)
        box = env.action_space
        if not isinstance(box, spaces.Box):
            raise TypeError(f"ContinuousToDiscrete needs an env with a Box action space, got {box}")
        if len(box.shape) != 1 or not np.issubdtype(box.dtype, np.floating):
            raise ValueError(f"ContinuousToDiscrete needs an action space of floats with one dimension, got {box}")
        if not box.is_bounded():
            raise ValueError(f"ContinuousToDiscrete needs an action space with finite bounds, got {box}")
        counts = _counts(action_per_dim, box.shape[0])
        self.mesh = [np.linspace(*bounds, dtype=box.dtype) for bounds in zip(box.low, box.high, counts, strict=True)]
        """The values to choose from in each dimension."""
        self.action_space = spaces.MultiDiscrete(counts)

    def action(self, action: Any) -> np.ndarray:
        """The values of the choices `action`, int (d,) or a batch (n, d); ValueError for one that does not exist."""
        choices = np.asarray(action)
        counts = [len(values) for values in self.mesh]
        if choices.dtype.kind not in "iu" or choices.ndim not in (1, 2) or choices.shape[-1] != len(counts):
            raise ValueError(
                f"an action must be integers of shape ({len(counts)},) or (n, {len(counts)}), got {action!r}"
            )
        if (choices < 0).any() or (choices >= counts).any():
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        return np.stack([values[choices[..., i]] for i, values in enumerate(self.mesh)], axis=-1)


class MultiDiscreteToDiscrete(gymnasium.ActionWrapper, RecordConstructorArgs):
    """Offers an env with a MultiDiscrete action space as Discrete (as tianshou's wrapper).

    Each combination has a number, and the last dimension changes fastest: with MultiDiscrete([2, 3]), 0 .. 5 are
    [0, 0], [0, 1], [0, 2], [1, 0], [1, 1] and [1, 2].

    Arguments:
        env: an env whose action space is a MultiDiscrete of shape (d,); TypeError or ValueError otherwise.

    >>> env = MultiDiscreteToDiscrete(ContinuousToDiscrete(gymnasium.make("Pendulum-v1"), 5))
    >>> env.action_space, env.action(3)
    (Discrete(5), array([3]))
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.ActionWrapper.__init__(self, env)
        space = env.action_space
        if not isinstance(space, spaces.MultiDiscrete):
            raise TypeError(f"MultiDiscreteToDiscrete needs an env with a MultiDiscrete action space, got {space}")
        if space.nvec.ndim != 1:
            raise ValueError(f"MultiDiscreteToDiscrete needs an action space with one dimension, got {space}")
        self._counts = tuple(space.nvec.tolist())
        self._start, self._dtype = space.start, space.dtype
        combinations = math.prod(self._counts)
        if combinations > np.iinfo(np.int64).max:
            raise ValueError(f"{space} has {combinations} combinations, more than an int64 can count")
        self.action_space = spaces.Discrete(combinations)

    def action(self, action: Any) -> np.ndarray:
        """The choices (d,) of a combination, or (n, d) for a batch (n,); ValueError for one that does not exist."""
        number = np.asarray(action)
        if number.dtype.kind not in "iu":
            raise ValueError(f"an action must be an integer, got {action!r}")
        choices = np.stack(np.unravel_index(number, self._counts), axis=-1)
        return (choices + self._start).astype(self._dtype)


def _counts(action_per_dim: Any, dimensions: int) -> list[int]:
    """The number of choices in each dimension, checked."""
    is_one = isinstance(action_per_dim, (int, np.integer))
    counts = [action_per_dim] * dimensions if is_one else list(action_per_dim)
    if len(counts) != dimensions:
        raise ValueError(f"action_per_dim has {len(counts)} entries, the action space {dimensions} dimensions")
    try:
        return [check_count("action_per_dim", count) for count in counts]
    except (TypeError, ValueError):
        raise ValueError(f"action_per_dim must be positive integers, got {action_per_dim!r}") from None


class TruncatedAsTerminated(gymnasium.Wrapper, RecordConstructorArgs):
    """Reports an episode that was cut off as terminated too (as tianshou's wrapper): `terminated or truncated`.

    Goes around an env that cuts episodes off, such as `gymnasium.wrappers.TimeLimit`. `truncated` stays what it is.

    >>> env = TruncatedAsTerminated(gymnasium.make("Pendulum-v1", max_episode_steps=1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(env.action_space.sample())[2:4]
    (True, True)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The env's own step, with `terminated` true at every end."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info
