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
DECIDED = ("backend", "worker_fn")
"""Arguments of BaseVectorEnv that its ready-made subclasses decide."""


class DummyVectorEnv(BaseVectorEnv):
    """All envs in this process, one after the other: for debugging, and for envs that cost less than a message.

    `envs` are the envs themselves.

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
        check_options(type(self), options, hidden=DECIDED)
        super().__init__(env_fns, wait_num=wait_num, timeout=timeout, backend=DummyBackend, **options)

    @property
    def envs(self) -> list[Any]:
        """The envs themselves (as `envs` of gymnasium's SyncVectorEnv and SB3's DummyVecEnv)."""
        backend = vars(self.engine).get("backend")  # which a closed engine has not
        return backend.envs if isinstance(backend, DummyBackend) else []

    @property
    def workers(self) -> list[Any]:
        """One object an env, with the env as its `env` (as tianshou's workers)."""
        return [SimpleNamespace(env=env) for env in self.envs]


class WorkersVectorEnv(BaseVectorEnv):
    """The base of the vector envs whose envs are in workers, with the arguments that all of these take."""

    backend_class: Callable[..., Backend]
    """Makes the backend, of the two timeouts."""

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
        check_options(type(self), options, hidden=DECIDED)
        backend = partial(
            self.backend_class,
            start_timeout=check_timeout(start_timeout, "start_timeout") or START_TIMEOUT,
            step_timeout=check_timeout(step_timeout, "step_timeout"),
        )
        super().__init__(
            env_fns, wait_num=wait_num, timeout=timeout, backend=backend, num_workers=num_workers, **options
        )


class ProcessVectorEnv(WorkersVectorEnv):
    """The base of SubprocVectorEnv and ShmemVectorEnv: worker processes, and the arguments for them."""

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
    """Envs in worker processes that exchange arrays through sockets: nothing is shared.

    The arguments are those of ShmemVectorEnv. With `share_memory` (an argument of tianshou) the workers write into
    shared memory, as those of ShmemVectorEnv do.

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
    """Envs in worker processes that write their results into shared memory: the fastest.

    Arguments besides those of BaseVectorEnv:
        context: "forkserver" (default), "fork" or "spawn". None needs an `if __name__ == "__main__"` guard. Forked
            workers inherit the env_fns, which then need not be picklable.
        start_timeout: seconds that the constructors of the envs may take, all together (120).
        step_timeout: seconds after which the worker of an env that does not return is killed, and a WorkerTimeoutError
            shows the env's stack. None waits, and a warning shows the stack each minute. The time of an env counts
            between calls too, also with `wait_num` and `timeout`; the error is raised while a call waits, up to a fifth
            of `step_timeout` late, or by the first call after that time.
        affinity: bind each worker to one CPU.
        release_openmp: OpenMP threads of this process (torch's) and OpenBLAS's (numpy's) spin for milliseconds after
            each operation. Where they keep workers from their CPUs, end the former before each round, and have the
            latter sleep sooner from now on, in the whole process; False leaves both.

    >>> import gymnasium as gym
    >>> with ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     obs, rew, terminated, truncated, info = venv.step([1] * 8)
    >>> rew
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    backend_class = ShmemBackend


class ThreadVectorEnv(WorkersVectorEnv):
    """Envs in threads of this process: for envs that wait (for a socket, a sandbox, a language model, a simulator
    behind a port), or that compute for long without the interpreter lock. Nothing is pickled.

    Each env is made, stepped, called, rendered and closed in one and the same thread. Envs share the global generators
    of `random` and `numpy.random` with the program: only envs with generators of their own are reproducible.

    Envs have to be thread-safe. pygame's gfxdraw, with which gymnasium's CartPole and others draw, is not: the frames
    of `render`, and of GymEnv's `from_pixels` once gfxdraw is imported, are made one after the other. Envs that render
    by themselves in a step, as with gymnasium's AddRenderObservation, belong in processes.

    Arguments besides those of BaseVectorEnv:
        num_workers: the number of threads. By default one an env with `wait_num` or `timeout`, else one a CPU; envs
            that wait should have one each.
        start_timeout: seconds that the constructors of the envs may take, all together (120).
        step_timeout: seconds after which an env that does not return is abandoned, and a WorkerTimeoutError shows its
            stack. Threads cannot be killed: the old one goes on until that step returns, closes its envs and ends, and
            its results are discarded. None waits, and a warning shows the stack each minute.

    >>> import gymnasium as gym
    >>> with ThreadVectorEnv([lambda: gym.make("CartPole-v1")] * 4, wait_num=2) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.send([1] * 4)
    ...     len(venv.recv()[0]) >= 2
    True
    """

    backend_class = ThreadBackend


class RayVectorEnv(WorkersVectorEnv):
    """Envs in actors of Ray, on one machine or on the nodes of a cluster. docs/guides/collecting.md is its guide.

    Connects to the cluster of `ray.init` or of `RAY_ADDRESS`, else starts a local one, which ends when the last vector
    env that uses it is closed. Actors on the node of this process share memory with it, as workers of ShmemVectorEnv
    do; a round of those on other nodes is one call of each actor.

    Arguments besides those of BaseVectorEnv:
        num_workers: how many actors share the envs; by default as many as the nodes, or the bundles of the placement
            group, have free CPUs and resources for, at most one an env.
        num_cpus, resources, runtime_env: what each actor reserves and needs, as in `ray.remote`.
        scheduling: "SPREAD" (over the nodes), "DEFAULT" (nodes are filled one after the other), or a strategy of Ray.
        placement_group: its bundles take the actors; `scheduling` is then not used.
        start_timeout: seconds in which Ray has to place all actors and their envs have to be constructed (120).
        step_timeout: seconds after which the actor of an env that does not return is ended, and a WorkerTimeoutError
            names it. None waits. A host that is powered off is noticed after 2 s. A host that falls silent is noticed
            after about 65 s, when Ray declares it dead, or after `step_timeout`. `reset` then starts its envs on a host
            that answers.
        release_openmp: as that of ShmemVectorEnv.

    Raises ImportError where ray is not installed, and WorkerTimeoutError if the cluster has no place for the actors.
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
"""The names that `backend` arguments accept, with the vector env class of each: the one place for a new backend."""
