"""What a policy is, and the random one.

A policy is any callable that takes a batch of observations `(k, ...)`, one row for each environment that is about to
step, and returns one of

- the actions, `(k, ...)`;
- a distribution over them (anything with `sample` and `log_prob`, as in `torch.distributions`), from which the
  exploration type picks: a sample, the mode or the mean;
- a dict with `action` (either of the above) and whatever else is to be stored beside it, `(k, ...)` each;
- a tuple: the action and then what else is to be stored, as `output1`, `output2`, ...

A `torch.nn.Module`, and any policy for which a policy device was named, gets tensors; every other one numpy arrays.
Either may return tensors or arrays. What is stored has no gradient; bfloat16, which numpy does not have, is stored (and
done) as float32, which holds every value of it.

Modules of tensordict get a `TensorDict`, and so does a policy whose only argument is called `tensordict` or `td`, or
whose first one is annotated as a `TensorDict` or `TensorDictBase`.

What a policy is called with depends on the names of its parameters:

- where observations are a dict and all its required parameters are keys of it, it gets those entries, else the whole;
- `env_id`: the environments that the rows belong to, int64 `(k,)`;
- `state`: what it returned as `state` (in a dict, or second in a tuple of two) for these environments in the step
  before. In the first step of an episode that is zeros, or a row of `policy.initial_state(k)` where it has that method;
  where it has none, it gets None the very first time. The state may be a tree of `(k, ...)` arrays or tensors.

How many rows there are changes from call to call: environments that are being reset have none. So a policy that draws
from one random stream gives other data when other environments step together: in `AsyncDataCollector`, or where it is
asked for other numbers of episodes.
`RandomPolicy` does not: it has a stream for each environment, which is what `env_id` is for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.policy.exploration import ExplorationType as ExplorationType
from collector.policy.exploration import choose

Policy = Callable[..., Any]


def read_output(output: Any, exploration: ExplorationType) -> dict[str, Any]:
    """A policy's output as a dict that holds `action`.

    Raises `TypeError` where the output is a dict without `action`.
    """
    if isinstance(output, tuple):
        output = {("action" if i == 0 else f"output{i}"): value for i, value in enumerate(output)}
    if not isinstance(output, dict):
        return {"action": choose(output, exploration)}
    if "action" not in output:
        raise TypeError(f"the policy returned a dict without 'action'; its keys are {sorted(map(str, output))}")
    return {**output, "action": choose(output["action"], exploration)}


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
            first = action_spaces[0]
            if (space.shape, space.dtype) != (first.shape, first.dtype):
                raise TypeError(
                    f"random actions need spaces of one shape and dtype; that of environment {env_id} is {space}, "
                    f"that of environment 0 {first}"
                )
        self._spaces = [copy.deepcopy(space) for space in action_spaces]
        self._ids = np.arange(len(self._spaces))
        self._block: np.ndarray | None = None
        self._used = np.full(len(self._spaces), self.BLOCK)
        self._sure = 0
        """So many more actions can be drawn for each environment before a block has to be filled."""

    def __call__(self, obs: Any, env_id: Any = None) -> np.ndarray:
        """One action for each environment of `env_id` (None: all of them): `(k, ...)`, of the spaces' dtype."""
        ids = self._ids if env_id is None else np.asarray(env_id)
        if self._sure == 0:
            for i in np.flatnonzero(self._used == self.BLOCK).tolist():
                self._refill(i)
            self._sure = self.BLOCK - int(self._used.max())
        self._sure -= 1
        assert self._block is not None
        actions = self._block[ids, self._used[ids]]
        self._used[ids] += 1
        return actions

    def draw_like(self, action_spaces: Sequence[spaces.Space[Any]]) -> None:
        """Draw from copies of the random streams of these spaces from now on: they have been seeded."""
        for own, seeded in zip(self._spaces, action_spaces, strict=True):
            own._np_random = copy.deepcopy(seeded.np_random)
        self._used[:], self._sure = self.BLOCK, 0

    def _refill(self, env_id: int) -> None:
        drawn = draw(self._spaces[env_id], self.BLOCK)
        if self._block is None:
            self._block = np.empty((len(self._spaces), *drawn.shape), drawn.dtype)
        self._block[env_id] = drawn
        self._used[env_id] = 0


def draw(space: spaces.Space[Any], size: int) -> np.ndarray:
    """What `size` calls of `space.sample()` give, stacked: `(size, ...)`; in one draw where the space allows it."""
    if isinstance(space, spaces.Discrete) and space.dtype.itemsize >= 4:  # smaller ones share a draw of 32 bits
        return space.start + space.np_random.integers(space.n, size=size, dtype=space.dtype.type)
    if isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f" and space.is_bounded():
        return space.np_random.uniform(space.low, space.high, (size, *space.shape)).astype(space.dtype)
    return np.stack([space.sample() for _ in range(size)])
