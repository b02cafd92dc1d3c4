"""`make_vec`, `SyncVectorEnv` and `AsyncVectorEnv`, with gymnasium's arguments.

For `gym.make_vec`, register the env with this module and the id as `vector_entry_point`:

    gym.register("My-v0", entry_point="my_package:MyEnv", vector_entry_point="vecenv.facades.make_vec:My-v0")
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from vecenv import venvs
from vecenv.arguments import check_count, check_env_fns, option_meant
from vecenv.base import BaseVectorEnv
from vecenv.envs.gym_env import find_spec
from vecenv.facades.async_calls import AnyVectorEnv
from vecenv.facades.stepper import check_facade_options
from vecenv.facades.to_gymnasium import GymnasiumVectorEnv, check_facade_arguments
from vecenv.tuning.auto_backend import ONLY_PROCESSES, make_auto
from vecenv.venvs import DummyVectorEnv, ProcessVectorEnv, ShmemVectorEnv, SubprocVectorEnv

EnvFns = Sequence[Callable[[], Any] | str]
FACADE_OPTIONS = ("final_info_format", "seed_episodes", "random_initial_steps")


class _OwningVectorEnv(GymnasiumVectorEnv):
    env_fns: EnvFns
    _kind: type[BaseVectorEnv]

    def __init__(
        self,
        env_fns: EnvFns,
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        self.env_fns = env_fns
        arguments = {"copy": copy, "observation_mode": observation_mode, "autoreset_mode": autoreset_mode}
        self._open(self._kind, check_env_fns(env_fns), options, **arguments)

    def _open(self, kind: Any, env_fns: EnvFns, options: dict[str, Any], **arguments: Any) -> None:
        check_facade_options(type(self), kind, options)
        arguments |= {name: options.pop(name) for name in FACADE_OPTIONS if name in options}
        check_facade_arguments(**arguments)
        venv = kind(env_fns, copy=arguments["copy"], **options)
        try:
            super().__init__(venv, **arguments)
        except BaseException:
            venv.close()
            raise


class SyncVectorEnv(_OwningVectorEnv, AnyVectorEnv):
    """Vector env with all envs in this process, with the arguments of `gymnasium.vector.SyncVectorEnv`.

    Other keyword arguments belong to GymnasiumVectorEnv or DummyVectorEnv.

    >>> import gymnasium as gym
    >>> with_seeds = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, seed_episodes=True)
    >>> obs, infos = with_seeds.reset(seed=7)
    >>> with_seeds, obs.dtype, with_seeds.envs[1].unwrapped.gravity
    (SyncVectorEnv(num_envs=2), dtype('float32'), 9.8)
    >>> with_seeds.close()
    """

    _refused_calls = frozenset()
    """Empty, because gymnasium's SyncVectorEnv allows `call("reset")`."""

    _kind = DummyVectorEnv

    @property
    def envs(self) -> list[Any]:
        """Env objects."""
        return self.venv.envs


class AsyncVectorEnv(_OwningVectorEnv, AnyVectorEnv):
    """Vector env with worker processes, with the arguments of `gymnasium.vector.AsyncVectorEnv`.

    By default, there is a worker process per CPU. Arguments that differ from gymnasium:

        shared_memory: True for ShmemVectorEnv, False for SubprocVectorEnv. Both support every space.
        context: "forkserver" (also `None`), "fork" or "spawn".
        daemon: no effect. Workers end with this process, and may start processes.
        worker: must be None. Use `BaseVectorEnv(env_fns, worker_fn)`.
        max_concurrency: number of workers, at most one per env. A smaller `num_workers` replaces it.

    Other keyword arguments, such as `seed_episodes`, `num_workers` or `on_error="restart"`, belong to
    GymnasiumVectorEnv or ShmemVectorEnv.

    >>> import gymnasium as gym
    >>> envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4, max_concurrency=2)
    >>> obs, infos = envs.reset(seed=7)
    >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1, 1, 0])
    >>> rewards, infos
    (array([1., 1., 1., 1.]), {})
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: EnvFns,
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise ValueError(
                "a `worker` is a loop for the processes of gymnasium's AsyncVectorEnv, which are not used here; "
                "to change how envs are driven, make a BaseVectorEnv(env_fns, worker_fn) with your own EnvWorker "
                "and wrap it: GymnasiumVectorEnv(venv); to change resets, wrap the envs or choose an autoreset_mode"
            )
        self.env_fns, fns = env_fns, check_env_fns(env_fns)
        self.shared_memory, self.context, self.daemon = shared_memory, context, daemon
        self.worker, self.max_concurrency = worker, max_concurrency
        if max_concurrency is not None:
            options = {**options, "num_workers": _as_workers(max_concurrency, len(fns), options.get("num_workers"))}
        arguments = {"copy": copy, "observation_mode": observation_mode, "autoreset_mode": autoreset_mode}
        kind = ShmemVectorEnv if shared_memory else SubprocVectorEnv
        self._open(kind, fns, {**options, "context": context}, **arguments)

    @property
    def processes(self) -> list[Any]:
        """Worker processes, each with one or more envs."""
        return self._stepper.processes

    @property
    def observations(self) -> Any:
        """Latest observations of all envs. With `copy=False`, views."""
        return self._joined(self._episodes.latest_obs())


def _as_workers(max_concurrency: Any, n: int, num_workers: int | None) -> int:
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    if num_workers is None:
        return min(int(max_concurrency), n)
    if num_workers > max_concurrency:
        raise ValueError(
            f"num_workers={num_workers} is above max_concurrency={max_concurrency}: pass only max_concurrency"
        )
    return num_workers


# Arguments of AsyncVectorEnv with their defaults. Any other value makes "auto" choose worker processes.
ONLY_ASYNC = {**ONLY_PROCESSES, "shared_memory": True, "daemon": True, "worker": None, "max_concurrency": None}


def auto_facade(env_fns: Sequence[Callable[[], Any]], **options: Any) -> GymnasiumVectorEnv:
    envs: GymnasiumVectorEnv = make_auto(env_fns, options, BACKENDS, ONLY_ASYNC)
    return envs


def _facade_of(kind: type[BaseVectorEnv]) -> Callable[..., GymnasiumVectorEnv]:
    if issubclass(kind, ProcessVectorEnv):
        return AsyncVectorEnv if kind is ShmemVectorEnv else functools.partial(AsyncVectorEnv, shared_memory=False)
    if kind is DummyVectorEnv:
        return SyncVectorEnv

    class Facade(_OwningVectorEnv, AnyVectorEnv):
        _kind = kind

    Facade.__name__ = Facade.__qualname__ = kind.__name__
    return Facade


BACKENDS = {name: _facade_of(kind) for name, kind in venvs.BACKENDS.items()} | {"auto": auto_facade}
MODE = "vector_entry_point"


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    *,
    backend: str = "shmem",
    wrappers: Sequence[Callable[[Any], Any]] | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    venv_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> GymnasiumVectorEnv:
    """Return a gymnasium VectorEnv of `num_envs` envs, like `gym.make_vec`.

    Arguments:
        id: a registered id (by default the latest version), "module:id" to import a module first, or a spec. The spec
            of an earlier result makes equal envs, also in `gym.make_vec` unless `wrappers` was given.
        backend: "shmem", "subproc", "thread", "dummy", "ray" or "auto". "auto" measures an additional env in a worker,
            and chooses the faster of "dummy" and "shmem", or of "dummy" and "thread" for pure Python envs on
            free-threaded Python. If `venv_kwargs` has an argument that only worker processes support, "auto" is
            "shmem".
        wrappers: functions that take an env and return an env, applied in this order.
        venv_kwargs: for "shmem" and "subproc", arguments of AsyncVectorEnv. For other backends, arguments of
            SyncVectorEnv and of the backend's class.
        vector_kwargs: gymnasium's name for `venv_kwargs`.
        kwargs: arguments of `gym.make`.

    Raises ValueError for an unknown backend or `num_envs` below 1, TypeError for wrong types or both `venv_kwargs` and
    `vector_kwargs`, and gymnasium's errors for an unknown id.

    >>> envs = make_vec("CartPole-v1", 3, backend="dummy", venv_kwargs={"autoreset_mode": "SameStep"})
    >>> envs
    SyncVectorEnv(CartPole-v1, num_envs=3)
    >>> envs.close()
    """
    if "vectorization_mode" in kwargs:
        raise TypeError(f"make_vec has no argument 'vectorization_mode': pass backend= with one of {list(BACKENDS)}")
    spec = _find_spec(id)
    kept, spec.kwargs = spec.kwargs, {}  # arguments of make_vec (removed below) and of gym.make
    kept.pop("vectorization_mode", None)
    asked: dict[str, Any] = {
        "num_envs": num_envs,
        "backend": backend,
        "wrappers": wrappers,
        "vector_kwargs": vector_kwargs,
        "venv_kwargs": venv_kwargs,
    }
    asked = {name: kept.pop(name, value) for name, value in asked.items()}
    kwargs = {**kept, **kwargs}
    _check(**asked)
    asked["venv_kwargs"] = asked.pop("vector_kwargs") or asked["venv_kwargs"]
    env_fn = functools.partial(_make, copy.deepcopy(spec), asked["wrappers"] or (), kwargs)
    try:
        envs = BACKENDS[asked["backend"]]([env_fn] * asked["num_envs"], **(asked["venv_kwargs"] or {}))
    except TypeError as error:
        _add_misplaced_hint(error, kwargs)
        raise
    spec.kwargs = {**kwargs, **{name: value for name, value in asked.items() if value}, "vectorization_mode": MODE}
    spec.vector_entry_point = f"{__name__}:{spec.id}"
    envs.spec = spec
    return envs


def _check(num_envs: Any, backend: Any, wrappers: Any, **options: Any) -> None:
    check_count("num_envs", num_envs)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {list(BACKENDS)}, got {backend!r}")
    if wrappers is not None and not (isinstance(wrappers, Sequence) and all(map(callable, wrappers))):
        raise TypeError(f"wrappers must be a sequence of functions that take an env, got {wrappers!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} must be a dict of arguments, got {value!r}")
    if len(given) > 1:
        raise TypeError("venv_kwargs and vector_kwargs are two names of one argument: pass only one")


def _add_misplaced_hint(error: TypeError, kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if repr(name) in str(error) and (meant := option_meant(name, AsyncVectorEnv, ShmemVectorEnv)) is not None:
            where = f"make_vec(venv_kwargs={{{meant!r}: {value!r}}}) is for the vector env"
            error.args = (f"{where}, and {name}={value!r} went to the constructor of the env: {error}",)


def _find_spec(id: str | EnvSpec) -> EnvSpec:
    if isinstance(id, EnvSpec):
        return copy.deepcopy(id)
    if not isinstance(id, str):
        raise TypeError(
            f"id must be the id of a registered env or a spec, got {id!r}; for functions that make envs use "
            "AsyncVectorEnv([env_fn] * num_envs)"
        )
    return copy.deepcopy(find_spec(id))


def _make(spec: EnvSpec, wrappers: Sequence[Callable[[Any], Any]], kwargs: dict[str, Any]) -> Any:
    env: Any = gymnasium.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def __getattr__(name: str) -> Any:
    """Return the function that makes a vector env of the id `name`, for a `vector_entry_point`."""
    if name in gymnasium.registry:
        spec = _find_spec(name)
        spec.kwargs = {}  # gymnasium passes these to the function
        return functools.partial(make_vec, spec)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and no env with this id is registered")
