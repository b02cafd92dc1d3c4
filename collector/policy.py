"""What a policy is, and the random one.

A policy is any callable that takes a batch of observations `(k, ...)`, one row for each environment that is about to
step, and returns one of

- the actions, `(k, ...)`;
- a distribution over them (anything with `sample` and `log_prob`, as in `torch.distributions`), from which the
  exploration type picks: a sample, the mode or the mean;
- a dict with `action` (either of the above) and whatever else is to be stored beside it, `(k, ...)` each.

A `torch.nn.Module`, and any policy for which a policy device was named, gets tensors; every other one numpy arrays.

How many rows there are changes from call to call: environments that are being reset have none. So a policy that draws
from one random stream gives other data when other environments step together, as with another `frames_per_batch`.
`RandomPolicy` does not: it has a stream for each environment.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

Policy = Callable[[Any], Any]


class ExplorationType(enum.Enum):
    """What is taken from a distribution that a policy returns."""

    RANDOM = "random"
    MODE = "mode"
    MEAN = "mean"


def read_output(output: Any, exploration: ExplorationType) -> dict[str, Any]:
    """A policy's output as a dict that holds `action`.

    Raises `TypeError` where the output is a dict without `action`.
    """
    if not isinstance(output, dict):
        return {"action": _choose(output, exploration)}
    if "action" not in output:
        raise TypeError(f"the policy returned a dict without 'action'; its keys are {sorted(map(str, output))}")
    return {**output, "action": _choose(output["action"], exploration)}


def _choose(action: Any, exploration: ExplorationType) -> Any:
    if not (hasattr(action, "sample") and hasattr(action, "log_prob")):
        return action
    return action.sample() if exploration is ExplorationType.RANDOM else getattr(action, exploration.value)


class RandomPolicy:
    """Uniform random actions, reproducible whatever the number of environments that step together.

    Environment i gets the actions that `action_spaces[i].sample()` would give, one after another, drawn ahead in blocks
    from a copy of the space: the space that was passed in is not advanced. Array spaces only (Box, Discrete,
    MultiDiscrete, MultiBinary); others raise `TypeError`.

    Example::

        policy = RandomPolicy(venv.action_space)
        actions = policy(obs)                     # one for each environment
        actions = policy(obs, env_id=[0, 3])      # for these two: `obs` has two rows
    """

    BLOCK = 256

    def __init__(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        for env_id, space in enumerate(action_spaces):
            if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
                raise TypeError(f"random actions are drawn from array spaces; that of environment {env_id} is {space}")
        self._spaces = [copy.deepcopy(space) for space in action_spaces]
        self._ids = np.arange(len(self._spaces))
        self._block: np.ndarray | None = None
        self._used = np.full(len(self._spaces), self.BLOCK)

    def __call__(self, obs: Any, env_id: Any = None) -> np.ndarray:
        """One action for each environment of `env_id` (None: all of them): `(k, ...)`, of the spaces' dtype."""
        ids = self._ids if env_id is None else np.asarray(env_id)
        empty = ids[self._used[ids] == self.BLOCK]
        for i in empty:
            self._refill(i)
        assert self._block is not None
        actions = self._block[ids, self._used[ids]]
        self._used[ids] += 1
        return actions

    def _refill(self, env_id: int) -> None:
        drawn = draw(self._spaces[env_id], self.BLOCK)
        if self._block is None:
            self._block = np.empty((len(self._spaces), *drawn.shape), drawn.dtype)
        self._block[env_id] = drawn
        self._used[env_id] = 0


def draw(space: spaces.Space[Any], size: int) -> np.ndarray:
    """What `size` calls of `space.sample()` give, stacked: `(size, ...)`; in one draw where the space allows it."""
    if isinstance(space, spaces.Discrete):
        return space.start + space.np_random.integers(space.n, size=size, dtype=space.dtype.type)
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f" and space.is_bounded():
        return space.np_random.uniform(space.low, space.high, (size, *space.shape)).astype(space.dtype)
    return np.stack([space.sample() for _ in range(size)])
