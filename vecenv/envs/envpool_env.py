"""`EnvPoolVectorEnv`, and torchrl's names for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenv.arguments import check_count, check_mapping
from vecenv.backends.envpool_backend import EnvPoolBackend, quiet_spaces
from vecenv.backends.native_backend import library_makes_env
from vecenv.base import BaseVectorEnv

_POOL_PARTS = ("config", "observation_space", "action_space", "_state_keys", "_send", "_recv", "_reset")

# Arguments of torchrl that have no effect here: {argument: (accepted values, advice for other values)}.
_WITHOUT_EFFECT: dict[str, tuple[tuple[Any, ...], str]] = {
    "categorical_action_encoding": (
        (True, None),
        "actions are integers, as with categorical_action_encoding=True; encode them as one-hot vectors in the policy",
    ),
    "disable_env_checker": ((True, None), "EnvPool's envs have no checker; see vecenv.testing.check_vector_env"),
    "frame_skip": (
        (1, None),
        'some tasks of EnvPool repeat actions themselves: pass create_env_kwargs={"frame_skip": ...}, or frame_skip '
        "to envpool.make",
    ),
    "device": (("cpu", None), "results are numpy arrays; the device of a policy is an argument of the collector"),
    "allow_done_after_reset": (
        (False, None),
        "no env of EnvPool is done after a reset; use BaseVectorEnv for envs that are",
    ),
}


class EnvPoolVectorEnv(BaseVectorEnv):
    """Vector env around an EnvPool pool. It can step some envs, and resets envs only if you ask.

    `pool` must be new, made with env_type="gymnasium", and have one player per env. Do not use `pool` afterwards. If
    the pool's `batch_size` is below `num_envs`, `wait_num` is `batch_size`, and a pool with `batch_size - 1` spare envs
    replaces `pool`, because EnvPool waits for `batch_size` results.

    Rewards are float64, and `info` has a dict per env. Reset finished envs with `reset(ids)` or
    `step(action, reset=ids)`. A step of a finished env raises RuntimeError, because EnvPool would reset the env.
    With `episodic_life=True`, the reset of an env whose episode is over continues the game, until no life is left.
    A reset within an episode begins a new game.

    Unknown ids and wrong actions (outside a Discrete space, fractions for integers, wrong shapes) raise errors, because
    EnvPool would crash, hang or guess.

    `seed`, `set_seed` and `reset(seed=...)` make a new pool. So after `seed` or `set_seed`, reset the envs. Seeds for
    only some envs raise ValueError. Seeds are taken modulo 2**31. Env i with seed s equals env i of
    `envpool.make(..., seed=[..., s, ...])`.

    The C++ envs have no Python attributes. If an env crashes, this process ends. Raises TypeError unless `pool` is a
    pool, and ValueError for several players. Without EnvPool, `make` raises ImportError: `pip install
    'vecenv[envpool]'`.
    """

    seeds_together = True

    def __init__(self, pool: Any) -> None:
        check_pool(pool)
        backend = EnvPoolBackend(pool)
        wait_num = None if backend.is_sync else backend.batch_size
        super().__init__([library_makes_env] * backend.env_num, wait_num=wait_num, backend=backend, strict=True)

    @classmethod
    def make(cls, task_id: str, num_envs: int, **kwargs: Any) -> Any:
        """Make a vector env on a new pool. `kwargs` go to `envpool.make`."""
        return cls(make_pool(task_id, num_envs, **kwargs))


def check_pool(pool: Any) -> None:
    if not all(hasattr(type(pool), name) for name in _POOL_PARTS):  # not `pool`, because reading its spaces may warn
        raise TypeError(
            f'expected a pool of envpool.make(..., env_type="gymnasium"), got an object of {type(pool).__name__}'
        )
    players = pool.config["max_num_players"]
    if players != 1:
        raise ValueError(f"the envs of this pool have up to {players} players each; only one is supported")


def make_pool(task_id: str, num_envs: int, **kwargs: Any) -> Any:
    if not isinstance(task_id, str):
        raise TypeError(f"the task must be the id of an EnvPool task (a str), got {task_id!r}")
    num_envs = check_count("num_envs", num_envs)
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            f"this needs EnvPool, which cannot be imported ({error}): pip install 'vecenv[envpool]'"
        ) from error
    pool = envpool.make(task_id.removeprefix("ALE/"), env_type="gymnasium", num_envs=num_envs, **kwargs)
    quiet_spaces(pool)
    return pool


class MultiThreadedEnvWrapper(EnvPoolVectorEnv):
    """Vector env with the arguments of torchrl's MultiThreadedEnvWrapper.

    `env` is a pool. Other objects raise TypeError. An asynchronous pool raises ValueError: use EnvPoolVectorEnv.
    `num_workers` is the number of envs.

    torchrl's other arguments have no effect, so they must be `frame_skip=1`, `device="cpu"`,
    `categorical_action_encoding=True`, `disable_env_checker=True`, `allow_done_after_reset=False`, or `None`. Other
    values raise ValueError with advice. In contrast to torchrl, `set_seed` seeds the envs.
    """

    def __init__(self, env: Any = None, **kwargs: Any) -> None:
        _refuse_without_effect(type(self).__name__, kwargs)
        if env is None:
            raise TypeError(f"{type(self).__name__} needs env, a pool of envpool.make(..., num_envs=n)")
        check_pool(env)
        if env.config["batch_size"] not in (0, env.config["num_envs"]):
            raise ValueError(
                f"this pool is asynchronous, {env.config['batch_size']} of {env.config['num_envs']} envs at a time; "
                "use EnvPoolVectorEnv, or make the pool without batch_size"
            )
        super().__init__(env)
        self.num_workers = self.env_num

    @property
    def batch_size(self) -> tuple[int]:
        """Shape of a batch of rewards."""
        return (self.env_num,)


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """Vector env with `num_workers` envs of EnvPool's task `env_name` (arguments of torchrl's MultiThreadedEnv).

    `env_name` may begin with "ALE/". `create_env_kwargs` has arguments of `envpool.make`. Raises ValueError for
    arguments that this class sets.
    """

    def __init__(
        self, num_workers: int, env_name: str, *, create_env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        _refuse_without_effect(type(self).__name__, kwargs)
        num_workers = check_count("num_workers", num_workers)
        options = check_mapping("create_env_kwargs", create_env_kwargs)
        if decided := sorted(options.keys() & {"task_id", "env_type", "num_envs", "batch_size", "max_num_players"}):
            raise ValueError(f"create_env_kwargs must not have {decided}, because MultiThreadedEnv sets them")
        super().__init__(make_pool(env_name, num_workers, **options))
        self.env_name = env_name.removeprefix("ALE/")


def _refuse_without_effect(name: str, arguments: Mapping[str, Any]) -> None:
    for argument, value in arguments.items():
        if argument not in _WITHOUT_EFFECT:
            raise TypeError(f"{name} got an unexpected argument {argument!r}")
        accepted, instead = _WITHOUT_EFFECT[argument]
        if value not in accepted:
            raise ValueError(f"{name} cannot do {argument}={value!r}: {instead}")
