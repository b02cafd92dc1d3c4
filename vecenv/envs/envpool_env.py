"""`EnvPoolVectorEnv`: an EnvPool pool as a vector env. `MultiThreadedEnv`: the same under torchrl's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vecenv.backends.gymnasium_backend import in_the_library
from vecenv.backends.pool_backend import PoolBackend, quiet_spaces
from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import check_count

_POOL_PARTS = ("config", "observation_space", "action_space", "_state_keys", "_send", "_recv", "_reset")

# Arguments of torchrl's classes that EnvPool has no use for: the values that change nothing, and the way to others.
_WITHOUT_EFFECT: dict[str, tuple[tuple[Any, ...], str]] = {
    "categorical_action_encoding": (
        (True, None),
        "actions are integers, as with categorical_action_encoding=True; encode them as one-hot vectors in the policy",
    ),
    "disable_env_checker": ((True, None), "EnvPool's envs have no checker; see vecenv.testing.check_vector_env"),
    "frame_skip": (
        (1, None),
        'EnvPool repeats actions itself, in the tasks that can: create_env_kwargs={"frame_skip": ...}, or the '
        "frame_skip of envpool.make",
    ),
    "device": (("cpu", None), "results are numpy arrays; the device of a policy is an argument of the collector"),
    "allow_done_after_reset": (
        (False, None),
        "no env of a pool is done after a reset; use BaseVectorEnv for envs that are",
    ),
}


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
        super().__init__([in_the_library] * backend.env_num, wait_num=wait_num, backend=backend, strict=True)

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
    pool = envpool.make(task_id.removeprefix("ALE/"), env_type="gymnasium", num_envs=num_envs, **kwargs)
    quiet_spaces(pool)
    return pool


class MultiThreadedEnvWrapper(EnvPoolVectorEnv):
    """An EnvPoolVectorEnv with the arguments of torchrl's MultiThreadedEnvWrapper; results are numpy arrays.

        env = MultiThreadedEnvWrapper(envpool.make("Pong-v5", env_type="gymnasium", num_envs=4))

    `env` is a synchronous pool: TypeError without it, or for anything else; ValueError for an asynchronous one, which
    EnvPoolVectorEnv takes. `num_workers` is the number of envs, `batch_size` is `(num_workers,)`.

    torchrl ignores some of its arguments here. They are accepted with the values that match what the pool does
    (`frame_skip=1`, `device="cpu"`, `categorical_action_encoding=True`, `disable_env_checker=True`,
    `allow_done_after_reset=False`, None); any other value is a ValueError that names what to use instead. `set_seed`
    seeds the envs, by a new pool, where torchrl's wrapper does nothing.
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
        """The shape of a batch of rewards."""
        return (self.env_num,)


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """`num_workers` envs of EnvPool's task `env_name` (arguments of torchrl's MultiThreadedEnv).

        env = MultiThreadedEnv(num_workers=3, env_name="Pendulum-v1")
        obs, info = env.reset(seed=0)

    `env_name` may begin with "ALE/". `create_env_kwargs` is a dict of arguments for `envpool.make`; what the other
    arguments and the synchronous pool decide (`num_envs`, `batch_size`, ...) is a ValueError there. Other arguments as
    in MultiThreadedEnvWrapper. ImportError without EnvPool.
    """

    def __init__(
        self,
        num_workers: int,
        env_name: str,
        *,
        create_env_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_without_effect(type(self).__name__, kwargs)
        num_workers = check_count("num_workers", num_workers)
        if create_env_kwargs is not None and not isinstance(create_env_kwargs, Mapping):
            raise TypeError(
                f"create_env_kwargs must be a dict of arguments for envpool.make, got {create_env_kwargs!r}"
            )
        options = dict(create_env_kwargs or {})
        if decided := sorted(options.keys() & {"task_id", "env_type", "num_envs", "batch_size", "max_num_players"}):
            raise ValueError(f"create_env_kwargs has {decided}, which num_workers and env_name decide")
        super().__init__(make_pool(env_name, num_workers, **options))
        self.env_name = env_name.removeprefix("ALE/")


def _refuse_without_effect(name: str, arguments: Mapping[str, Any]) -> None:
    """TypeError for an unknown argument, ValueError for one that would be ignored."""
    for argument, value in arguments.items():
        if argument not in _WITHOUT_EFFECT:
            raise TypeError(f"{name} got an unexpected argument {argument!r}")
        accepted, instead = _WITHOUT_EFFECT[argument]
        if not any(value is known or (type(value) is type(known) and value == known) for known in accepted):
            raise ValueError(f"{name} cannot do {argument}={value!r}: {instead}")
