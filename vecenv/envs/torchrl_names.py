"""ParallelEnv, SerialEnv and step_mdp: names of torchrl, with its first arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vecenv.base import BaseVectorEnv
from vecenv.creator import EnvCreator, Kwargs
from vecenv.engine.arguments import check_count
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv

CreateEnvFn = Callable[..., Any] | Sequence[Callable[..., Any]]
REWARDS = frozenset({"reward", "rew"})
ENDS = frozenset({"done", "terminated", "truncated"})
ACTIONS = frozenset({"action", "act"})
NEXT = "next"


class _MadeByCreators(BaseVectorEnv):
    """A vector env of the creators of its envs: base of both."""

    def __init__(
        self,
        num_workers: int,
        create_env_fn: CreateEnvFn,
        *,
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        lazy: bool = True,
        **options: Any,
    ) -> None:
        self._creators = _creators(num_workers, create_env_fn, create_env_kwargs)
        super().__init__(self._creators, lazy=lazy, **options)

    def update_kwargs(self, kwargs: Kwargs | Sequence[Kwargs]) -> None:
        """Replace these arguments, of all envs or (with a list) of each, from the next start on.

        Raises ValueError for a list that has not one entry for each env.
        """
        for creator, own in zip(self._creators, _one_each(kwargs, len(self._creators)), strict=True):
            creator.update_kwargs(own)


class ParallelEnv(_MadeByCreators, ShmemVectorEnv):
    """`num_workers` envs in worker processes, which are started when they are needed (arguments of torchrl's).

    It has the methods of a `ShmemVectorEnv`: `reset` and `step` return batches, and attributes of the envs are reached
    by `get_env_attr("frame_skip")` and `call("method")`, where torchrl has `env.frame_skip` and `env.method()`.
    `collector.rollout(env, 20)` takes the place of `env.rollout(20)`. (`ParallelVectorEnv` is another thing: many
    agents, for PettingZoo.)

    Arguments:
        num_workers: the number of envs (as many processes as there are CPUs host them).
        create_env_fn: a function, class or `EnvCreator` that makes an env, or a list of such, one an env.
        create_env_kwargs: a dict of arguments for it, or a list of dicts, one an env. Those of an `EnvCreator` itself
            come before them.
        lazy: False starts the processes now, and refuses to start them again after `close`.
        options: as those of `ShmemVectorEnv`.

    Raises ValueError, with both numbers, for a list that has not one entry for each env.

    >>> import gymnasium as gym
    >>> with ParallelEnv(2, gym.make, create_env_kwargs=[{"id": "Pendulum-v1", "g": g} for g in (9.8, 1.6)]) as env:
    ...     env.start()
    ...     env.get_env_attr("g")
    [9.8, 1.6]
    """


class SerialEnv(_MadeByCreators, DummyVectorEnv):
    """`ParallelEnv` with all envs in this process, one after the other: for debugging.

    >>> import gymnasium as gym
    >>> env = SerialEnv(3, lambda: gym.make("CartPole-v1"))
    >>> obs, info = env.reset()
    >>> obs.shape
    (3, 4)
    """


def _creators(
    num_workers: int, create_env_fn: CreateEnvFn, create_env_kwargs: Kwargs | Sequence[Kwargs] | None
) -> list[EnvCreator]:
    """The creator of each env. Those of an `EnvCreator` share its state, others share nothing."""
    n = check_count("num_workers", num_workers)
    fns = [create_env_fn] * n if callable(create_env_fn) else list(create_env_fn)
    every_kwargs = _one_each({} if create_env_kwargs is None else create_env_kwargs, n)
    if len(fns) != n:
        raise ValueError(f"create_env_fn has {len(fns)} entries, expected one for each of {n} envs")
    owned = [fn.for_env(i, n) if isinstance(fn, EnvCreator) else fn for i, fn in enumerate(fns)]
    return [
        EnvCreator(fn, kwargs, share_memory=isinstance(fn, EnvCreator))
        for fn, kwargs in zip(owned, every_kwargs, strict=True)
    ]


def _one_each(kwargs: Kwargs | Sequence[Kwargs], n: int) -> list[Kwargs]:
    each = [kwargs] * n if isinstance(kwargs, dict) else list(kwargs)
    if len(each) != n:
        raise ValueError(f"create_env_kwargs has {len(each)} entries, expected one for each of {n} envs")
    return each


def step_mdp(
    batch: Mapping[str, Any],
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
) -> dict[str, Any]:
    """Make the entries of `batch["next"]` those of a new dict (as torchrl's `step_mdp`); arrays are not copied.

    `batch` holds one step: what there was before it, the action, and under "next" what came of it. `exclude_reward`
    (default), `exclude_done` and `exclude_action` (default) leave out "reward" or "rew"; "done", "terminated" and
    "truncated"; "action" or "act". `keep_other` keeps the entries of `batch` that "next" has not; else only those of
    "next", and the action if it is not left out, are there. KeyError without "next".

    >>> step_mdp({"obs": 0, "action": 1, "key": "kept", "next": {"obs": 2, "reward": 1.0, "terminated": False}})
    {'obs': 2, 'key': 'kept', 'terminated': False}
    """
    if NEXT not in batch:
        raise KeyError(f"the batch has no entry {NEXT!r}; it has {sorted(batch)}")
    excluded = (REWARDS if exclude_reward else set()) | (ENDS if exclude_done else set())
    excluded |= (ACTIONS if exclude_action else set()) | {NEXT}
    own = batch if keep_other else {name: batch[name] for name in batch if name in ACTIONS}
    return {name: value for name, value in {**own, **batch[NEXT]}.items() if name not in excluded}
