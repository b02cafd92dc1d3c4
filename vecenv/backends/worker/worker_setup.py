"""WorkerSetup: what a worker gets from the program. A forked worker inherits it, to others it travels pickled."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value
from vecenv.backends.memory.shared_state import SharedState
from vecenv.portability import allow_cpus


@dataclass
class WorkerSetup:
    """The env_fns of a worker and its surroundings; but for the env_fns of forked workers, plain pickle carries it."""

    env_fns: list[Callable[[], Any]]
    """As they are, which a forked worker inherits, or as `PickledEnvFn`."""
    registered: list[bytes]
    """gymnasium specs that the parent registered: the worker does not run the user's script, which may have done it."""
    paths: Sequence[str] = ()
    """Where else modules are looked for."""
    environ: dict[str, str] | None = None
    affinity: set[int] | None = None
    states: Sequence[SharedState] = ()
    """What the pickled env_fns refer to by name. Each start of a worker brings its descriptors anew."""

    def apply(self) -> None:
        """Give this process the environment variables, the affinity and the registry of the program."""
        sys.path += [path for path in self.paths if path not in sys.path]
        if self.environ is not None:
            for name in os.environ.keys() - self.environ.keys():
                del os.environ[name]
            os.environ.update(self.environ)
        if self.affinity is not None:
            allow_cpus(0, self.affinity)
        for blob in self.registered:
            spec = loads_by_value(blob)
            gymnasium.registry.setdefault(spec.id, spec)


@dataclass
class PickledEnvFn:
    """An env_fn that is unpickled when it is called, so that a failure is the failure of its env."""

    blob: bytes

    def __call__(self) -> Any:
        return loads_by_value(self.blob)()


def pickle_env_fn(i: int, env_fn: Callable[[], Any]) -> PickledEnvFn:
    """TypeError if `env_fn` cannot be pickled."""
    try:
        return PickledEnvFn(dumps_by_value(env_fn))
    except Exception as error:
        raise TypeError(
            f"env_fns[{i}] cannot be sent to a worker: {type(error).__name__}: {error}. "
            'Create what it refers to inside the function, or pass context="fork": forked workers inherit it.'
        ) from error


def registered_by_user() -> list[bytes]:
    """The specs that the program added to gymnasium's registry, as far as they can be pickled."""
    blobs = []
    for spec in list(gymnasium.registry.values()):
        if str(spec.entry_point).startswith(("gymnasium.", "shimmy.")):
            continue
        try:
            blobs.append(dumps_by_value(spec))
        except Exception:
            continue
    return blobs
