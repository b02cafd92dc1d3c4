"""EnvPoolVectorEnv: an EnvPool pool with the interface of every other vector env."""

from __future__ import annotations

from typing import Any

from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import check_count
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
    Results are those of every BaseVectorEnv; `info` has a dict for each env, with `elapsed_step` and the other infos of
    the task.

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

    def __init__(self, pool: Any) -> None:
        check_pool(pool)
        backend = PoolBackend(pool)
        wait_num = None if backend.is_sync else backend.batch_size
        super().__init__([_in_the_pool] * backend.env_num, wait_num=wait_num, backend=backend, strict=True)

    @classmethod
    def make(cls, task_id: str, num_envs: int, **kwargs: Any) -> Any:
        """A vector env on a new pool; `kwargs` are those of `envpool.make`."""
        return cls(make_pool(task_id, num_envs, **kwargs))


def check_pool(pool: Any) -> None:
    """TypeError for what is no pool, ValueError for one with several players an env."""
    if not all(hasattr(type(pool), name) for name in _POOL_PARTS):  # on the type: reading the spaces may warn
        raise TypeError(
            f'expected a pool of envpool.make(..., env_type="gymnasium"), got an object of {type(pool).__name__}'
        )
    players = pool.config["max_num_players"]
    if players != 1:
        raise ValueError(f"the envs of this pool have up to {players} players each; only one is supported")


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
