"""Replacements for tianshou's wrappers and for torchrl's ParallelEnv, SerialEnv and step_mdp."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from vecenv.arguments import check_count
from vecenv.base import BaseVectorEnv
from vecenv.creator import EnvCreator, Kwargs
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv

CreateEnvFn = Callable[..., Any] | Sequence[Callable[..., Any]]
REWARD_KEYS = frozenset({"reward", "rew"})
END_KEYS = frozenset({"done", "terminated", "truncated"})
ACTION_KEYS = frozenset({"action", "act"})
NEXT = "next"


class ContinuousToDiscrete(gymnasium.ActionWrapper, RecordConstructorArgs):
    """Wrapper that offers a Box action space as MultiDiscrete (as in tianshou).

    The choices 0, 1, ... of a dimension stand for evenly spaced values from low to high. The values are float64,
    or have the Box's dtype if the numbers of choices differ.

    Arguments:
        env: its action space is a Box of floats, with shape (d,) and finite bounds. Other spaces raise TypeError
            or ValueError.
        action_per_dim: number of choices per dimension: an int for all dimensions, or a list.

    >>> env = ContinuousToDiscrete(gymnasium.make("Pendulum-v1"), action_per_dim=5)
    >>> env.action_space, env.action(np.array([1]))
    (MultiDiscrete([5]), array([-1.]))
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
        choices = [np.linspace(*bounds) for bounds in zip(box.low, box.high, counts, strict=True)]
        self.mesh = np.array(choices, dtype=object)
        """Value of each choice, per action dimension."""
        self.action_space = spaces.MultiDiscrete(counts)

    def action(self, action: Any) -> np.ndarray:
        """Return the values of the choices `action`, int (d,) or (n, d). Raises ValueError for an unknown choice."""
        choices = np.asarray(action)
        counts = [len(values) for values in self.mesh]
        if choices.dtype.kind not in "iu" or choices.ndim not in (1, 2) or choices.shape[-1] != len(counts):
            raise ValueError(
                f"an action must be integers of shape ({len(counts)},) or (n, {len(counts)}), got {action!r}"
            )
        if (choices < 0).any() or (choices >= counts).any():
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        values = [[self.mesh[i][choice] for i, choice in enumerate(row)] for row in np.atleast_2d(choices)]
        return np.array(values if choices.ndim == 2 else values[0])


class MultiDiscreteToDiscrete(gymnasium.ActionWrapper, RecordConstructorArgs):
    """Wrapper that offers a MultiDiscrete action space as Discrete (as in tianshou).

    The actions 0, 1, 2, 3, ... stand for [0, 0], [0, 1], [0, 2], [1, 0], ... of MultiDiscrete([2, 3]).

    Arguments:
        env: its action space is a MultiDiscrete of shape (d,). Other spaces raise TypeError or ValueError.

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
        """Return the choices (d,) for a number, or (n, d) for n numbers. Raises ValueError for an unknown number."""
        number = np.asarray(action)
        if number.dtype.kind not in "iu":
            raise ValueError(f"an action must be an integer, got {action!r}")
        choices = np.stack(np.unravel_index(number, self._counts), axis=-1)
        return (choices + self._start).astype(self._dtype)


def _counts(action_per_dim: Any, dimensions: int) -> list[int]:
    is_one = isinstance(action_per_dim, (int, np.integer))
    counts = [action_per_dim] * dimensions if is_one else list(action_per_dim)
    if len(counts) != dimensions:
        raise ValueError(f"action_per_dim has {len(counts)} entries, the action space {dimensions} dimensions")
    try:
        return [check_count("action_per_dim", count) for count in counts]
    except (TypeError, ValueError):
        raise ValueError(f"action_per_dim must be positive integers, got {action_per_dim!r}") from None


class TruncatedAsTerminated(gymnasium.Wrapper, RecordConstructorArgs):
    """Wrapper that reports `terminated or truncated` as `terminated` (as in tianshou).

    >>> env = TruncatedAsTerminated(gymnasium.make("Pendulum-v1", max_episode_steps=1))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(env.action_space.sample())[2:4]
    (True, True)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, truncated, info


class _MadeByCreators(BaseVectorEnv):
    def __init__(
        self,
        num_workers: int,
        create_env_fn: CreateEnvFn,
        *,
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        lazy: bool = True,
        num_processes: int | None = None,
        **options: Any,
    ) -> None:
        n, kwargs = check_count("num_workers", num_workers), {} if create_env_kwargs is None else create_env_kwargs
        fns = [create_env_fn] * n if callable(create_env_fn) else list(create_env_fn)
        if len(fns) != n:
            raise ValueError(f"create_env_fn has {len(fns)} entries, expected one for each of {n} envs")
        creators = [EnvCreator(fn, kwargs, share_memory=isinstance(fn, EnvCreator)) for fn in fns]
        self._creators = [creator.for_env(i, n) for i, creator in enumerate(creators)]
        if num_processes is not None:
            options["num_workers"] = check_count("num_processes", num_processes, n)
        super().__init__(self._creators, lazy=lazy, **options)

    def update_kwargs(self, kwargs: Kwargs | Sequence[Kwargs]) -> None:
        """Change arguments of `create_env_fn` for the next start. Raises ValueError for a list of wrong length."""
        n = len(self._creators)
        # Update copies first, so that wrong arguments change no creator.
        variants = [creator.make_variant() for creator in self._creators]
        each = [kwargs] * n if isinstance(kwargs, Mapping) else list(kwargs)
        if len(each) != n:
            raise ValueError(f"create_env_kwargs has {len(each)} entries, expected one for each of {n} envs")
        for creators in (variants, self._creators):
            for creator, own in zip(creators, each, strict=True):
                creator.update_kwargs(own)


class ParallelEnv(_MadeByCreators, ShmemVectorEnv):
    """Vector env in worker processes, with the arguments of torchrl's ParallelEnv.

    Use `get_env_attr("frame_skip")` for torchrl's `env.frame_skip`, `call("method")` for `env.method()`,
    `collector.rollout(env, 20)` for `env.rollout(20)`, and `ParallelVectorEnv` for PettingZoo.

    Arguments:
        num_workers: number of envs.
        create_env_fn: a function, class or `EnvCreator` that makes an env, or a list with one per env.
        create_env_kwargs: a dict of arguments, or a list with a dict per env. Arguments of an `EnvCreator` take
            precedence.
        lazy: True: `start`, `reset` or `seed` starts the processes, also after `close`. False: the constructor does.
        num_processes: number of worker processes. By default one per CPU, and in torchrl one per env.
        options: other options of `ShmemVectorEnv`.

    Raises ValueError for a list of the wrong length.

    >>> import gymnasium as gym
    >>> with ParallelEnv(2, gym.make, create_env_kwargs=[{"id": "Pendulum-v1", "g": g} for g in (9.8, 1.6)]) as env:
    ...     env.start()
    ...     env.get_env_attr("g")
    [9.8, 1.6]
    """


class SerialEnv(_MadeByCreators, DummyVectorEnv):
    """`ParallelEnv` with all envs in this process, for debugging. `num_processes` has no effect.

    >>> import gymnasium as gym
    >>> env = SerialEnv(3, lambda: gym.make("CartPole-v1"))
    >>> obs, info = env.reset()
    >>> obs.shape
    (3, 4)
    """


def step_mdp(
    batch: Mapping[str, Any],
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
) -> dict[str, Any]:
    """Return the batch for the next step: the entries of `batch["next"]`, not copied (as torchrl's `step_mdp`).

    Arguments:
        batch: values before a step, the action, and the results under "next".
        keep_other: add the other entries of `batch`. Entries of "next" take precedence. False: add only the action,
            unless `exclude_action`.
        exclude_reward: leave out "reward" and "rew".
        exclude_done: leave out "done", "terminated" and "truncated".
        exclude_action: leave out "action" and "act".

    Raises KeyError without "next".

    >>> step_mdp({"obs": 0, "action": 1, "key": "kept", "next": {"obs": 2, "reward": 1.0, "terminated": False}})
    {'obs': 2, 'key': 'kept', 'terminated': False}
    """
    if NEXT not in batch:
        raise KeyError(f"the batch has no entry {NEXT!r}; it has {sorted(batch)}")
    excluded = (REWARD_KEYS if exclude_reward else set()) | (END_KEYS if exclude_done else set())
    excluded |= (ACTION_KEYS if exclude_action else set()) | {NEXT}
    own = batch if keep_other else {name: batch[name] for name in batch if name in ACTION_KEYS}
    return {name: value for name, value in {**own, **batch[NEXT]}.items() if name not in excluded}
