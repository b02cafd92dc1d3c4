"""`WorkerSetup`: everything that a worker gets at its start: envs, options, environment, seeds."""

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

from vecenv.backends.ipc.serialization import Descriptor, dumps_by_value, loads_by_value
from vecenv.backends.ipc.used_modules import dumps_and_modules
from vecenv.backends.memory.shared_state import SharedState
from vecenv.portability import allow_cpus


@dataclass
class WorkerSetup:
    """The env_fns of a worker and its surroundings; but for the env_fns of forked workers, plain pickle carries it."""

    env_fns: list[Callable[[], Any]]
    """As they are, which a forked worker inherits, or as `PickledEnvFn`."""
    registered: list[bytes]
    """The specs in the parent's registry of gymnasium: the worker does not run the script that may have changed it."""
    paths: Sequence[str] = ()
    """Further folders of modules."""
    environ: dict[str, str] | None = None
    affinity: set[int] | None = None
    states: Sequence[SharedState] = ()
    """States that the pickled env_fns refer to by name. Each start of a worker brings its descriptors anew."""

    def apply(self) -> None:
        """Give this process the environment variables, the affinity and the registry of the program."""
        sys.path += [path for path in self.paths if path not in sys.path]
        if self.environ is not None:
            set_environment(self.environ)
        if self.affinity is not None:
            allow_cpus(0, self.affinity)
        if self.registered:
            self._register()

    def _register(self) -> None:
        """Register the program's envs, and keep them registered as the program has them.

        The import of a package of envs may come later. It registers the same ids again: no reason for a warning here.
        """
        specs = {spec.id: spec for spec in map(loads_by_value, self.registered)}
        warnings.filterwarnings("ignore", f".*{OVERRIDING}")
        gymnasium.registry.update(specs)
        self.env_fns = [partial(_call_registered, env_fn, specs) for env_fn in self.env_fns]


def set_environment(environ: dict[str, str]) -> None:
    """Give this process these environment variables, and no others."""
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


OVERRIDING = "Overriding environment .* already in registry"
"""Warning of gymnasium if an id is registered again."""


def _call_registered(env_fn: Any, specs: dict[str, Any]) -> Any:
    """Call an env_fn, whose modules are imported, while these specs are registered."""
    if isinstance(env_fn, PickledEnvFn):
        env_fn = env_fn.load()
    gymnasium.registry.update(specs)
    return env_fn()


@dataclass
class PickledEnvFn:
    """An env_fn that is unpickled when it is called, so that a failure is the failure of its env."""

    blob: bytes
    modules: frozenset[str] = frozenset()
    """The modules that it needs and that take long to import."""

    def load(self) -> Callable[[], Any]:
        """The env_fn; its modules are imported."""
        return loads_by_value(self.blob)

    def __call__(self) -> Any:
        return self.load()()


def pickle_env_fn(i: int, env_fn: Callable[[], Any]) -> PickledEnvFn:
    """TypeError if `env_fn` cannot be pickled."""
    try:
        blob, modules = dumps_and_modules(env_fn)
        return PickledEnvFn(blob, frozenset(modules))
    except Exception as error:
        raise TypeError(
            f"env_fns[{i}] cannot be sent to a worker: {type(error).__name__}: {error}. "
            'Create what it refers to inside the function, or pass context="fork": forked workers inherit it.'
        ) from error


def registered_envs() -> list[bytes]:
    """The specs in gymnasium's registry, as far as they can be pickled: the program may have put its own into the place
    of gymnasium's.
    """
    blobs = []
    for spec in list(gymnasium.registry.values()):
        with contextlib.suppress(Exception):
            blobs.append(dumps_by_value(spec))
    return blobs


@dataclass
class WorkerArgs:
    """The arguments of `main`; they travel once, before there is a channel."""

    index: int
    num_workers: int
    first_id: int
    count: int
    """Number of envs that it hosts."""
    eager: bool
    """True if each env is announced as it finishes."""
    control: Descriptor
    stacks: Descriptor
    setup: WorkerSetup
    seeds: tuple[bytes, bytes]
    """Of the global random generators, numpy's and Python's."""
    server: Any
    """The `RoundServer` class of the transport."""
    transport: Any
    """Further arguments of the transport."""
    method: str = ""
    """The start method of a process."""
    starter: int = 0
    """The parent, if its main thread starts the process; else 0."""
    socket: Any = None


_launches = itertools.count()
"""Of all vector envs of this process: neither a second one nor a replaced worker repeats what was drawn."""


def worker_seeds(index: int) -> tuple[bytes, bytes]:
    """Seeds of numpy's and of Python's generator in the worker that is launched next; ours are read, not advanced."""
    states = np.random.get_state(legacy=False), random.getstate()
    where = index, next(_launches)
    of_numpy, of_python = (hashlib.sha256(pickle.dumps((state, where))).digest() for state in states)
    return of_numpy, of_python


def seed_generators(seeds: tuple[bytes, bytes]) -> None:
    of_numpy, of_python = seeds
    np.random.seed(np.frombuffer(of_numpy, np.uint32))
    random.seed(of_python)


def leave_forkserver() -> None:
    """Close the descriptor that keeps the forkserver running. Held open here, it would do so after the parent's end."""
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
