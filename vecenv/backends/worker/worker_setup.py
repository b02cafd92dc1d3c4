"""`WorkerSetup`: data that a worker receives at its start: env_fns, options, environment, seeds."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from typing import Any

import gymnasium
import numpy as np

from vecenv.backends.ipc.serialization import Descriptor, dumps_and_modules, dumps_by_value, loads_by_value
from vecenv.backends.memory.shared_state import SharedState
from vecenv.portability import allow_cpus


@dataclass
class WorkerSetup:
    """Env_fns of a worker and data for its environment."""

    env_fns: list[Callable[[], Any]]
    """Inherited functions of a forked worker, or `PickledEnvFn` objects."""
    registered: list[bytes]
    """Specs in the parent's gymnasium registry. The worker needs these, because it does not run the user's script."""
    paths: Sequence[str] = ()
    environ: dict[str, str] | None = None
    affinity: set[int] | None = None
    states: Sequence[SharedState] = ()

    def apply(self) -> None:
        sys.path += [path for path in self.paths if path not in sys.path]
        if self.environ is not None:
            set_environment(self.environ)
        if self.affinity is not None:
            allow_cpus(self.affinity)
        if self.registered:
            self._register()

    def _register(self) -> None:
        """Register the program's envs, and keep them registered.

        Hides gymnasium's warning, because an import of an env package may register the same ids later.
        """
        specs = {spec.id: spec for spec in map(loads_by_value, self.registered)}
        warnings.filterwarnings("ignore", f".*{OVERRIDING}")
        gymnasium.registry.update(specs)
        self.env_fns = [partial(_call_registered, env_fn, specs) for env_fn in self.env_fns]


def set_environment(environ: dict[str, str]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


OVERRIDING = "Overriding environment .* already in registry"


def _call_registered(env_fn: Any, specs: dict[str, Any]) -> Any:
    if isinstance(env_fn, PickledEnvFn):
        env_fn = env_fn.load()
    gymnasium.registry.update(specs)
    return env_fn()


@dataclass
class PickledEnvFn:
    """Env_fn that is unpickled when it is called, so that an error becomes the failure of its env."""

    blob: bytes | memoryview
    modules: frozenset[str] = frozenset()
    place: int | None = None
    """Index of the env_fn, if `blob` is the pickle of all env_fns."""

    def load(self) -> Callable[[], Any]:
        found: Any = loads_by_value(self.blob)
        env_fn: Callable[[], Any] = found if self.place is None else found[self.place]
        return env_fn

    def __call__(self) -> Any:
        return self.load()()


def pickle_env_fn(i: int, env_fn: Callable[[], Any]) -> PickledEnvFn:
    try:
        blob, modules = dumps_and_modules(env_fn)
        return PickledEnvFn(blob, frozenset(modules))
    except Exception as error:
        raise TypeError(
            f"env_fns[{i}] cannot be sent to a worker: {type(error).__name__}: {error}. "
            'Create what it refers to inside the function, or pass context="fork": forked workers inherit it.'
        ) from error


def registered_envs() -> list[bytes]:
    blobs = []
    for spec in list(gymnasium.registry.values()):
        with contextlib.suppress(Exception):
            blobs.append(dumps_by_value(spec))
    return blobs


@dataclass
class WorkerArgs:
    index: int
    num_workers: int
    first_id: int
    count: int
    eager: bool
    control: Descriptor
    stacks: Descriptor
    setup: WorkerSetup
    seeds: tuple[bytes, bytes]
    server: Any
    transport: Any
    method: str = ""
    starter: int = 0
    """Pid of the parent if its main thread starts the process, else 0."""
    socket: Any = None


_launches = itertools.count()
"""Count of launches in this process, so that no two workers get the same seeds."""


def worker_seeds(index: int) -> tuple[bytes, bytes]:
    """Return seeds of numpy's and Python's generators for the next worker. This process's generators do not advance."""
    states = np.random.get_state(legacy=False), random.getstate()
    where = index, next(_launches)
    of_numpy, of_python = (hashlib.sha256(pickle.dumps((state, where))).digest() for state in states)
    return of_numpy, of_python


def seed_generators(seeds: tuple[bytes, bytes]) -> None:
    """Seed numpy's and Python's generators of this process."""
    of_numpy, of_python = seeds
    np.random.seed(np.frombuffer(of_numpy, np.uint32))
    random.seed(of_python)


def leave_forkserver(server: Any = forkserver._forkserver) -> None:
    """Close the descriptor that keeps a forkserver running, so that the forkserver can end with the parent."""
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
