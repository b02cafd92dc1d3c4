"""Vector env classes: `BaseVectorEnv` with each backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from vecenv.arguments import (
    check_command,
    check_count,
    check_options,
    check_resources,
    check_timeout,
    named_env_fns,
)
from vecenv.backends.backend import Backend, WorkerInfo
from vecenv.backends.dummy import DummyBackend
from vecenv.backends.ray_backend import RayBackend
from vecenv.backends.recycling import recycle_rule
from vecenv.backends.shmem import ShmemBackend
from vecenv.backends.subproc import SubprocBackend
from vecenv.backends.thread import ThreadBackend
from vecenv.base import BaseVectorEnv

EnvFns = Sequence[Callable[[], Any] | str]
NamedEnvFns = Sequence[str | tuple[str, Mapping[str, Any]]]
RecycleAfter = int | str | Callable[[WorkerInfo], bool] | None
START_TIMEOUT = 120.0
SET_BY_SUBCLASS = ("backend", "worker_fn")
"""Arguments of BaseVectorEnv that callers may not pass."""


class DummyVectorEnv(BaseVectorEnv):
    """Vector env with all envs in this process, for debugging and very cheap envs.

    >>> import gymnasium as gym
    >>> with DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     gravity = venv.envs[1].unwrapped.gravity
    >>> obs.shape, gravity
    ((2, 4), 9.8)
    """

    _warns_unclosed = False

    def __init__(
        self, env_fns: EnvFns, wait_num: int | None = None, timeout: float | None = None, **options: Any
    ) -> None:
        check_options(type(self), options, hidden=SET_BY_SUBCLASS)
        super().__init__(env_fns, wait_num=wait_num, timeout=timeout, backend=DummyBackend, **options)

    @property
    def envs(self) -> list[Any]:
        """Env objects, or an empty list if closed."""
        backend = vars(self.engine).get("backend")  # a closed engine has no backend
        return backend.envs if isinstance(backend, DummyBackend) else []

    @property
    def workers(self) -> list[Any]:
        """Objects with an attribute `env`, one per env (as tianshou's workers)."""
        return [SimpleNamespace(env=env) for env in self.envs]


class WorkersVectorEnv(BaseVectorEnv):
    backend_class: Callable[..., Backend]
    """Function (start_timeout, step_timeout) -> backend."""

    def __init__(
        self,
        env_fns: EnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        num_workers: int | None = None,
        start_timeout: float = START_TIMEOUT,
        step_timeout: float | None = None,
        **options: Any,
    ) -> None:
        check_options(type(self), options, hidden=SET_BY_SUBCLASS)
        backend = partial(
            self.backend_class,
            start_timeout=check_timeout(start_timeout, "start_timeout") or START_TIMEOUT,
            step_timeout=check_timeout(step_timeout, "step_timeout"),
        )
        super().__init__(
            env_fns, wait_num=wait_num, timeout=timeout, backend=backend, num_workers=num_workers, **options
        )


class ProcessVectorEnv(WorkersVectorEnv):
    def __init__(
        self,
        env_fns: EnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        context: str | None = None,
        affinity: bool = False,
        release_openmp: bool = True,
        recycle_after: RecycleAfter = None,
        spare_envs: int = 0,
        **options: Any,
    ) -> None:
        self.backend_class = partial(
            self.backend_class,
            context=context,
            affinity=affinity,
            release_openmp=release_openmp,
            rule=recycle_rule(recycle_after),
            spare_envs=check_count("spare_envs", spare_envs, least=0),
        )
        super().__init__(env_fns, wait_num, timeout, **options)


class SubprocVectorEnv(ProcessVectorEnv):
    """Vector env with worker processes that exchange arrays through sockets.

    The arguments are as in ShmemVectorEnv. `share_memory=True` (as in tianshou) uses shared memory instead of sockets.

    `worker_command`: a list of words that starts each worker, for example in another Python, in a container or on
    another host (see docs/guides/elsewhere.md). Then `env_fns` has a name per env: "module:function", a gymnasium id,
    or a tuple of a name and keyword arguments.

    >>> import gymnasium as gym
    >>> with SubprocVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2) as venv:
    ...     obs, info = venv.reset([0, 3])
    >>> obs.shape, info[1]["env_id"]
    ((2, 4), 3)
    """

    backend_class: Callable[..., Backend] = SubprocBackend

    def __init__(
        self,
        env_fns: EnvFns | NamedEnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        *,
        worker_command: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        if share_memory:
            self.backend_class = ShmemBackend
        if worker_command is None:
            fns: Any = env_fns
            super().__init__(fns, wait_num, timeout, context=context, **options)
            return
        local = {"share_memory": share_memory, "context": context}
        local |= {name: options.pop(name, None) for name in ("affinity", "recycle_after", "spare_envs")}
        if given := [name for name, value in local.items() if value]:
            raise TypeError(f"{given[0]} is for worker processes of this program, so worker_command cannot have it")
        from vecenv.backends.command import CommandBackend  # slow to import

        self.backend_class = partial(
            CommandBackend,
            command=check_command(worker_command),
            release_openmp=options.pop("release_openmp", True),
        )
        WorkersVectorEnv.__init__(self, named_env_fns(env_fns), wait_num, timeout, **options)


class ShmemVectorEnv(ProcessVectorEnv):
    """Vector env with worker processes that write results into shared memory. The fastest class for most envs.

    Arguments besides BaseVectorEnv's:
        context: "forkserver" (default), "fork" or "spawn". Scripts never need `if __name__ == "__main__"`. With
            "fork", env_fns need not be picklable.
        start_timeout: seconds for the constructors of all envs (120).
        step_timeout: seconds that an env may take for a call. If the env takes longer, vecenv kills the worker. The
            call that waits for the env raises WorkerTimeoutError with the env's stack, at most 20 % later. If calls
            are rare, a later call raises this error. By default, only a warning shows the stack each minute.
        affinity: bind each worker to one CPU.
        release_openmp: end idle OpenMP threads (of torch) in this process, and let idle OpenBLAS threads (of numpy)
            sleep sooner. These threads wait in busy loops, which take CPUs.
        recycle_after: replace a worker between episodes, because its envs leak memory: a number of episodes per env,
            the memory of a worker and its child processes ("2 GiB"), or a function of a worker (with the attributes
            `ids`, `pid`, `episodes` and `memory`) that returns a bool. See docs/guides/failures.md.
        spare_envs: number of envs per worker that have a second instance. A thread of the worker resets this instance
            while the first instance steps, so that a slow reset takes no time of a round. See
            docs/guides/waiting-envs.md.

    >>> import gymnasium as gym
    >>> with ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step([1] * 8)
    >>> rew
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    backend_class = ShmemBackend


class ThreadVectorEnv(WorkersVectorEnv):
    """Vector env with threads, for envs that wait (for example for a server) or release the interpreter lock.

    Coroutine envs, whose `reset` and `step` are `async def`, share one event loop in one thread, and need no
    `num_workers` (see docs/guides/agent-envs.md). Each other env stays in one thread.

    Nothing is pickled. Envs that use the global generators of `random` or `numpy.random` are not reproducible.

    Envs must be thread-safe. pygame's gfxdraw (used by gymnasium's CartPole) is not, so only one thread at a time
    renders for `render` and `from_pixels`. Use processes for envs that render in `step`.

    Arguments besides BaseVectorEnv's:
        num_workers: number of threads. Use one per env for envs that wait.
        start_timeout: seconds for the constructors of each thread's envs (120). Threads make envs one after the other.
        step_timeout: as in ShmemVectorEnv. But a hanging thread cannot be killed, and runs until the env returns. The
            task of a coroutine env is cancelled.

    >>> import gymnasium as gym
    >>> with ThreadVectorEnv([lambda: gym.make("CartPole-v1")] * 4, wait_num=2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.send([1] * 4)
    ...     len(venv.recv()[0]) >= 2
    True
    """

    backend_class = ThreadBackend


class RayVectorEnv(WorkersVectorEnv):
    """Vector env with Ray actors, on one machine or a cluster (see docs/guides/collecting.md).

    Uses the cluster of `ray.init` or `RAY_ADDRESS`. Without these, starts a local cluster, which ends when its last
    vector env closes. Actors on this node share memory with this process. A step calls each actor on other nodes once.

    Arguments besides BaseVectorEnv's:
        num_workers: number of actors. Default: one per env, or fewer if the cluster lacks room.
        num_cpus, resources, runtime_env: for each actor, as in `ray.remote`.
        scheduling: "SPREAD" (over the nodes), "DEFAULT" (nodes are filled in turn), or a strategy of Ray.
        placement_group: bundles for the actors, used in place of `scheduling`.
        start_timeout: seconds to place all actors and construct their envs (120).
        step_timeout: seconds that an env may take for a call. If the env takes longer, vecenv ends the actor and
            raises WorkerTimeoutError. By default, vecenv waits. A host without power is noticed after 2 s,
            and a host that does not answer after `step_timeout`, by default about 65 s. The next `reset` uses a
            different host.
        release_openmp, recycle_after, spare_envs: as in ShmemVectorEnv.

    Raises ImportError without ray, and WorkerTimeoutError if the cluster has no room for the actors.
    """

    def __init__(
        self,
        env_fns: EnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        num_cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        scheduling: Any = "SPREAD",
        placement_group: Any = None,
        release_openmp: bool = True,
        recycle_after: RecycleAfter = None,
        spare_envs: int = 0,
        **options: Any,
    ) -> None:
        check_resources(num_cpus, 0, resources, runtime_env)
        self.backend_class = partial(
            RayBackend,
            num_cpus=num_cpus,
            resources=resources,
            runtime_env=runtime_env,
            scheduling=scheduling,
            placement_group=placement_group,
            release_openmp=release_openmp,
            rule=recycle_rule(recycle_after),
            spare_envs=check_count("spare_envs", spare_envs, least=0),
        )
        super().__init__(env_fns, wait_num, timeout, **options)


BACKENDS: dict[str, type[BaseVectorEnv]] = {
    "dummy": DummyVectorEnv,
    "subproc": SubprocVectorEnv,
    "shmem": ShmemVectorEnv,
    "thread": ThreadVectorEnv,
    "ray": RayVectorEnv,
}
"""Vector env class of each `backend` name. Register a new backend here."""
