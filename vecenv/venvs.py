"""The vector env classes: `BaseVectorEnv` with each backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from vecenv.backends.backend import Backend
from vecenv.backends.dummy import DummyBackend
from vecenv.backends.ray_backend import RayBackend
from vecenv.backends.shmem import ShmemBackend
from vecenv.backends.subproc import SubprocBackend
from vecenv.backends.thread import ThreadBackend
from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import check_options, check_timeout

EnvFns = Sequence[Callable[[], Any] | str]
START_TIMEOUT = 120.0
SET_BY_SUBCLASS = ("backend", "worker_fn")
"""Arguments of BaseVectorEnv that the classes below set themselves."""


class DummyVectorEnv(BaseVectorEnv):
    """All envs in this process, one after the other, for debugging and for very cheap envs.

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
        """Env objects (as `envs` of gymnasium's SyncVectorEnv and SB3's DummyVecEnv)."""
        backend = vars(self.engine).get("backend")  # a closed engine has no backend
        return backend.envs if isinstance(backend, DummyBackend) else []

    @property
    def workers(self) -> list[Any]:
        """One object per env, with the env as its `env` (as tianshou's workers)."""
        return [SimpleNamespace(env=env) for env in self.envs]


class WorkersVectorEnv(BaseVectorEnv):
    """Base of the vector envs with workers, and their shared arguments."""

    backend_class: Callable[..., Backend]
    """Function that makes the backend from the two timeouts."""

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
    """Base of SubprocVectorEnv and ShmemVectorEnv, with the arguments for worker processes."""

    def __init__(
        self,
        env_fns: EnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        context: str | None = None,
        affinity: bool = False,
        release_openmp: bool = True,
        **options: Any,
    ) -> None:
        self.backend_class = partial(
            self.backend_class, context=context, affinity=affinity, release_openmp=release_openmp
        )
        super().__init__(env_fns, wait_num, timeout, **options)


class SubprocVectorEnv(ProcessVectorEnv):
    """Envs in worker processes that exchange arrays through sockets, without shared memory.

    The arguments are as in ShmemVectorEnv. With `share_memory` (tianshou's argument), the workers write into shared
    memory as in ShmemVectorEnv.

    >>> import gymnasium as gym
    >>> with SubprocVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2) as venv:
    ...     obs, info = venv.reset([0, 3])
    >>> obs.shape, info[1]["env_id"]
    ((2, 4), 3)
    """

    backend_class: Callable[..., Backend] = SubprocBackend

    def __init__(
        self,
        env_fns: EnvFns,
        wait_num: int | None = None,
        timeout: float | None = None,
        share_memory: bool = False,
        context: str | None = None,
        **options: Any,
    ) -> None:
        if share_memory:
            self.backend_class = ShmemBackend
        super().__init__(env_fns, wait_num, timeout, context=context, **options)


class ShmemVectorEnv(ProcessVectorEnv):
    """Envs in worker processes that write results into shared memory. The fastest backend for most envs.

    Arguments besides BaseVectorEnv's:
        context: "forkserver" (default), "fork" or "spawn". No `if __name__ == "__main__"` guard is needed. With "fork",
            env_fns need not be picklable.
        start_timeout: seconds for the constructors of all envs (120).
        step_timeout: seconds until a hanging worker is killed and a WorkerTimeoutError shows the env's stack. The time
            counts between calls too; a call that waits (up to a fifth later) or the next call raises. By default,
            vecenv waits, and a warning shows the stack each minute.
        affinity: bind each worker to one CPU.
        release_openmp: end OpenMP threads of this process (torch's) and let OpenBLAS's (numpy's) sleep sooner, if they
            take the workers' CPUs by spinning.

    >>> import gymnasium as gym
    >>> with ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step([1] * 8)
    >>> rew
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    backend_class = ShmemBackend


class ThreadVectorEnv(WorkersVectorEnv):
    """Envs in threads of this process, for envs that wait (for example for a server) or that release the interpreter
    lock.

    Each env stays in one thread. Nothing is pickled. Envs that use the global generators of `random` or `numpy.random`
    are not reproducible.

    Envs must be thread-safe. pygame's gfxdraw (gymnasium's CartPole) is not, so vecenv serialises `render` and
    `from_pixels`. Put envs that render within a step into processes.

    Arguments besides BaseVectorEnv's:
        num_workers: number of threads. Default: one per CPU, or one per env with `wait_num` or `timeout`. Use one per
            env for envs that wait.
        start_timeout, step_timeout: as in ShmemVectorEnv, but a hanging env is abandoned, because a thread cannot be
            killed. Its thread ends when the step returns.

    >>> import gymnasium as gym
    >>> with ThreadVectorEnv([lambda: gym.make("CartPole-v1")] * 4, wait_num=2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.send([1] * 4)
    ...     len(venv.recv()[0]) >= 2
    True
    """

    backend_class = ThreadBackend


class RayVectorEnv(WorkersVectorEnv):
    """Envs in Ray actors, on one machine or a cluster (see docs/guides/collecting.md).

    Uses the cluster of `ray.init` or `RAY_ADDRESS`, else a local cluster, which ends with the last vector env on it.
    Actors on this node share memory with this process. On other nodes, a round is a call of the actors.

    Arguments besides BaseVectorEnv's:
        num_workers: number of actors. Default: the number that there is room for, up to one per env.
        num_cpus, resources, runtime_env: for each actor, as in `ray.remote`.
        scheduling: "SPREAD" (over the nodes), "DEFAULT" (nodes are filled in turn), or a strategy of Ray.
        placement_group: bundles for the actors, used in place of `scheduling`.
        start_timeout: seconds to place all actors and construct their envs (120).
        step_timeout: seconds until a hanging actor is ended and a WorkerTimeoutError names it. By default, vecenv
            waits. A host without power is noticed after 2 s, a silent host after about 65 s or `step_timeout`. `reset`
            then uses another host.
        release_openmp: as in ShmemVectorEnv.

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
        **options: Any,
    ) -> None:
        self.backend_class = partial(
            RayBackend,
            num_cpus=num_cpus,
            resources=resources,
            runtime_env=runtime_env,
            scheduling=scheduling,
            placement_group=placement_group,
            release_openmp=release_openmp,
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
