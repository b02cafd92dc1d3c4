"""EnvPoolVectorEnv: an EnvPool pool with the interface of every other vector env."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.base import BaseVectorEnv
from vecenv.engine.actions import batch_actions
from vecenv.engine.checks import check_count
from vecenv.engine.results import Step
from vecenv.envs.pools.pool_backend import PoolBackend, quiet_spaces

_POOL_PARTS = ("config", "observation_space", "action_space", "_state_keys", "_send", "_recv", "_reset")


class EnvPoolVectorEnv(BaseVectorEnv):
    """Runs the envs of an EnvPool pool as any other vector env: ids, partial steps, no autoreset, float64 rewards.

        venv = EnvPoolVectorEnv(envpool.make("Pong-v5", env_type="gymnasium", num_envs=64))
        venv = EnvPoolVectorEnv.make("Pong-v5", 64)  # the same
        obs, info = venv.reset(seed=0)
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs), reset=done)
            done = terminated | truncated

    `pool` is made with env_type="gymnasium", has one player an env, and was not used yet; from now on it belongs to
    the vector env. If its `batch_size` is smaller than `num_envs`, the vector env is async with that `wait_num`, on a
    new pool of the same configuration with `batch_size - 1` spare envs, so that a reset of few never waits for more.
    Results are those of every BaseVectorEnv; `info` has a dict for each env, with `elapsed_step` and what else the
    task says.

    There are no ghost transitions. EnvPool answers the step of an env whose episode is over with a reset, and drops
    the action; here such a step is a RuntimeError: reset the env by `reset(ids)`, or by `step(action, reset=ids)` in
    the same round as the others, which costs nothing.

    Refused before anything is sent, because EnvPool would crash, hang or guess: ids that do not exist, actions outside
    of a Discrete space, fractions for whole numbers, wrong shapes. Unbounded observations have infinite bounds.

    Seeds are fixed when a pool is made: `seed`, `set_seed` and `reset(seed=)` make a new pool and close the old one.
    They are for all envs together (ValueError for some), and reduced modulo 2**31. Env i with the seed s does what env
    i does in `envpool.make(..., seed=[..., s, ...])`. After `seed` and `set_seed` the envs have to be reset.

    The envs are C++: they have no attributes, and what fails in them ends the process. TypeError for what is no pool,
    ValueError for several players, ImportError without EnvPool: `pip install 'vecenv[envpool]'`.
    """

    _backend: PoolBackend

    def __init__(self, pool: Any) -> None:
        self._check_pool(pool)
        backend = PoolBackend(pool)
        wait_num = None if backend.is_sync else backend.batch_size
        super().__init__([_in_the_pool] * backend.env_num, wait_num=wait_num, backend=backend, strict=True)
        backend.fresh = self._unreset
        space = self._reports[0].action_space
        self._choices = range(space.start, space.start + space.n) if isinstance(space, spaces.Discrete) else None

    @classmethod
    def make(cls, task_id: str, num_envs: int, **kwargs: Any) -> Any:
        """A vector env on a new pool; `kwargs` are those of `envpool.make`."""
        return cls(make_pool(task_id, num_envs, **kwargs))

    def step(
        self, action: Any, id: Any = None, *, env_id: Any = None, reset: Any = None, autoreset: bool = False
    ) -> Step:
        self._check_open()
        if id is None and env_id is None and action is not None and not autoreset and not self.is_async:
            result = self._step_all(action, reset)
            if result is not None:
                return result
        return super().step(action, id, env_id=env_id, reset=reset, autoreset=autoreset)

    step.__doc__ = BaseVectorEnv.step.__doc__

    def _step_all(self, action: Any, reset: Any) -> Step | None:
        """A usual round of all envs, without the detour through the arena; None for one that is unusual, or wrong."""
        if self._status.tobytes() != self._all_idle:
            return None
        batch = batch_actions(action, self._all_ids, self._action_leaf)
        if isinstance(batch, list) or not self._in_range(batch):
            return None
        chosen = None if reset is None else self._reset_rows(None, reset)
        # The pool resets those whose episode is over, and only those: they must be the ones to be reset.
        if True in (self._unreset if chosen is None else self._unreset != chosen).tobytes():
            return None
        begin = perf_counter()
        obs, reward, terminated, truncated, info = self._backend.step_all(batch, self._all_ids)
        self._wait_time += perf_counter() - begin
        resets = 0 if chosen is None else chosen.tobytes().count(True)
        self._rounds += 1
        self._resets += resets
        self._steps += len(batch) - resets
        return _cast(obs, self._arena.obs), reward.astype(np.float64), terminated, truncated, info

    def _check_pool(self, pool: Any) -> None:
        if not all(hasattr(type(pool), name) for name in _POOL_PARTS):  # on the type: reading the spaces may warn
            raise TypeError(
                f'expected a pool of envpool.make(..., env_type="gymnasium"), got an object of {type(pool).__name__}'
            )
        players = pool.config["max_num_players"]
        if players != 1:
            raise ValueError(f"the envs of this pool have up to {players} players each; only one is supported")

    def _send_steps(self, ids: np.ndarray | None, action: Any, resets: np.ndarray | None, *rest: Any) -> None:
        asked = self._all_ids if ids is None else ids.tolist()
        batch = batch_actions(action, asked, self._action_leaf)
        stepped = [j for j in range(len(asked)) if resets is None or not resets[j]]
        if not isinstance(batch, list) and not self._in_range(batch[stepped]):
            space = self._reports[0].action_space
            wrong = next(j for j in stepped if not self._in_range(batch[j : j + 1]))
            raise ValueError(f"the action for env {asked[wrong]} is {batch[wrong]}, which is not in {space}")
        super()._send_steps(ids, batch, resets, *rest)

    def _in_range(self, batch: np.ndarray) -> bool:
        """Whether the actions are those of the space if it is Discrete: others make EnvPool read where it must not."""
        choices = self._choices
        if choices is None or not len(batch):
            return True
        if not choices.start and 0 <= np.bitwise_or.reduce(batch) < choices.stop:  # half the cost, and mostly enough
            return True
        return bool(batch.min() >= choices.start and batch.max() < choices.stop)

    def _reset_arguments(self, asked: list[int], kwargs: dict[str, Any]) -> dict[int, dict[str, Any]]:
        unknown = sorted(kwargs.keys() - {"seed", "options"})
        if unknown or kwargs.get("options") is not None:
            raise TypeError(f"the reset of a pool takes nothing but seed, got {unknown or ['options']}")
        args = super()._reset_arguments(asked, kwargs)
        seeds = [args[i].get("seed") for i in asked]
        if any(seed is not None for seed in seeds) and (None in seeds or len(asked) < self.env_num):
            raise ValueError(
                f"the seeds of a pool are set for all its {self.env_num} envs at once, got {seeds} for envs {asked}"
            )
        return args

    def _seed_all(self, seeds: Sequence[int | None]) -> None:
        super()._seed_all(seeds)
        if any(seed is not None for seed in seeds):
            self._unreset[:] = True


def make_pool(task_id: str, num_envs: int, **kwargs: Any) -> Any:
    """A new pool of `num_envs` envs."""
    if not isinstance(task_id, str):
        raise TypeError(f"the task must be a str, the id of one of EnvPool's, got {task_id!r}")
    num_envs = check_count("num_envs", num_envs)
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            f"this needs EnvPool, which cannot be imported ({error}): pip install 'vecenv[envpool]'"
        ) from error
    pool = envpool.make(task_id, env_type="gymnasium", num_envs=num_envs, **kwargs)
    quiet_spaces(pool)
    return pool


def _in_the_pool() -> None:
    """In the place of the env_fns, which a pool does not have."""


def _cast(obs: Any, rows: Any) -> Any:
    """The observations in the dtype of their space."""
    if isinstance(rows, dict):
        return {key: _cast(obs[key], child) for key, child in rows.items()}
    return obs.astype(rows.dtype, copy=False)
