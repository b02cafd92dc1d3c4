"""`WorkerArgs`: data that a worker receives at its start."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import forkserver
from typing import Any

import gymnasium
import numpy as np

from vecenv.backends.ipc.serialization import LARGE, Descriptor, dumps_and_modules, dumps_by_value, loads_by_value
from vecenv.backends.memory.shared_memory import LargeData
from vecenv.backends.memory.shared_state import SharedState
from vecenv.backends.worker.reporting import Reporting
from vecenv.portability import UNTRACKED, allow_cpus


@dataclass
class WorkerSetup:
    """Env functions of a worker, and settings that `apply` makes in the worker's process."""

    env_fns: list[Callable[[], Any]]
    """The functions themselves if the worker is forked, else `PickledEnvFn` objects."""
    registered: list[bytes]
    """Pickled specs of the parent's gymnasium registry, because the worker does not run the user's script."""
    paths: Sequence[str] = ()
    environ: dict[str, str] | None = None
    affinity: set[int] | None = None
    states: Sequence[SharedState] = ()
    large: Descriptor | None = None
    """File with large data of the env functions."""
    reporting: Reporting | None = None

    def apply(self) -> None:
        if self.reporting is not None:
            self.reporting.apply()
        sys.path += [path for path in self.paths if path not in sys.path]
        if self.environ is not None:
            set_environment(self.environ)
        if self.affinity is not None:
            allow_cpus(self.affinity)
        if self.registered:
            self._register()

    def finish(self) -> None:
        """After the envs are made, close the file with large data, and let warning filters raise errors."""
        if self.large is not None:
            os.close(self.large.fd)
        if self.reporting is not None:
            self.reporting.apply_filters(raises=True)

    def _register(self) -> None:
        """Register the parent's envs with gymnasium, now and before each call of an env_fn.

        Unpickling an env_fn may import a package that registers the same ids. Hide gymnasium's warning about this.
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
    """Env function that is unpickled when called, so that an error of unpickling becomes a failure of the env."""

    blob: bytes | memoryview
    """Pickle, or empty if the pickle is the first part in `large`."""
    modules: frozenset[str] = frozenset()
    place: int | None = None
    """Index of this env_fn if `blob` is a list of all env_fns, else `None`."""
    file: Descriptor | None = None
    """File of a `LargeData`, or `None` if all data are in `blob`."""
    large: Sequence[slice] = ()
    """Places of large data in `file`."""

    def load(self) -> Callable[[], Any]:
        parts: list[memoryview] = []
        if self.file is not None:  # map the file for each env, because an env may change its arrays
            memory = memoryview(mmap.mmap(self.file.fd, 0, access=mmap.ACCESS_COPY, **UNTRACKED))
            parts = [memory[place] for place in self.large]
        found: Any = loads_by_value(self.blob or parts.pop(0), parts)
        env_fn: Callable[[], Any] = found if self.place is None else found[self.place]
        return env_fn

    def __call__(self) -> Any:
        return self.load()()


MUCH = 1 << 20
"""Bytes. If the first env_fn's pickle is larger, env_fns that share objects are pickled together."""


def pickle_env_fns(env_fns: Sequence[Callable[[], Any]], file: LargeData | None = None) -> list[PickledEnvFn]:
    """Pickle env functions so that each env gets separate objects, because envs may change their objects.

    file: receives large data, or `None` to put all data into the pickles.
    """
    found: dict[int, PickledEnvFn] = {}
    for i, env_fn in enumerate(env_fns):
        if id(env_fn) not in found:
            arrays: list[np.ndarray] = []
            pickled = found[id(env_fn)] = pickle_env_fn(i, env_fn, None if file is None else arrays)
            if i == 0 and len(pickled.blob) >= MUCH and (together := _pickle_together(env_fns, pickled, file)):
                return together
            if file is not None:
                _move_large_data(pickled, arrays, file, f"the data of env_fns[{i}]")
    return [found[id(env_fn)] for env_fn in env_fns]


def _pickle_together(
    env_fns: Sequence[Callable[[], Any]], first: PickledEnvFn, file: LargeData | None
) -> list[PickledEnvFn]:
    """Pickle a list of all env functions, or return an empty list if they share less than half of `first`.

    Each env unpickles the whole list.
    """
    arrays: list[np.ndarray] = []
    try:
        blob, modules = dumps_and_modules(list(env_fns), None if file is None else arrays)
    except Exception:  # pickling each function shows which one fails
        return []
    if len(blob) > 1.5 * len(first.blob):
        return []
    pickled = PickledEnvFn(blob, frozenset(modules))
    if file is not None:
        _move_large_data(pickled, arrays, file, "the data of env_fns")
    return [replace(pickled, place=i) for i in range(len(env_fns))]


def pickle_env_fn(i: int, env_fn: Callable[[], Any], large: list[np.ndarray] | None = None) -> PickledEnvFn:
    """Pickle `env_fns[i]`. For `large`, see `dumps_by_value`."""
    try:
        blob, modules = dumps_and_modules(env_fn, large)
        return PickledEnvFn(blob, frozenset(modules))
    except Exception as error:
        raise TypeError(
            f"env_fns[{i}] cannot be sent to a worker: {type(error).__name__}: {error}. "
            'Create this object inside the function, or pass context="fork", so that workers inherit the object.'
        ) from error


def _move_large_data(pickled: PickledEnvFn, arrays: Sequence[np.ndarray], file: LargeData, purpose: str) -> None:
    blob, is_large = pickled.blob, len(pickled.blob) >= LARGE
    if arrays or is_large:
        pickled.file, pickled.large = file.descriptor, [file.add(array, purpose) for array in arrays]
    if is_large:
        pickled.blob, pickled.large = b"", [file.write(blob, purpose), *pickled.large]


def registered_envs() -> list[bytes]:
    blobs = []
    for spec in list(gymnasium.registry.values()):
        with contextlib.suppress(Exception):
            blobs.append(dumps_by_value(spec))
    return blobs


@dataclass
class WorkerArgs:
    setup: WorkerSetup
    first_id: int
    eager: bool
    seeds: tuple[bytes, bytes]
    server: Any
    server_args: Any = None
    index: int = 0
    place: int = 0
    """Index of the worker's block of envs."""
    num_workers: int = 1
    shares_block: bool = False
    """True if another worker may serve envs of the block (see `Recycler`)."""
    spare_envs: int = 0
    control: Any = None
    """`Descriptor` of the file of `Control`, and that of the file for stacks. A worker command has neither."""
    stacks: Any = None
    method: str = ""
    imports: frozenset[str] = frozenset()
    """`running_files` of the parent."""
    starter: int = 0
    """Pid of the parent if its main thread starts the worker, else 0."""
    socket: Any = None


_of_starters: frozenset[str] = frozenset()
"""In a worker: `running_files` of the parent, which include files of the parent's own parents."""


def running_files(forked: bool = False) -> frozenset[str]:
    """Return the files of the main script and of imports in progress in this thread, and the files in `_of_starters`.

    `forked`: leave out this thread's files, because a forked worker does not repeat these imports.
    """
    return _of_starters if forked else _of_starters.union(_modules_in_progress())


def set_files_of_starters(files: frozenset[str]) -> None:
    global _of_starters
    _of_starters = files


def check_imports() -> None:
    """Raise RuntimeError if a module makes a vector env while this worker and a parent import the module."""
    for file, name in _modules_in_progress().items():
        if file in _of_starters and name != "__main__":
            raise RuntimeError(
                f"the module {name} makes a vector env while it is imported. The workers import {name} too, so they "
                f"would make vector envs without end. In {file}, move the code into a function, or below "
                'if __name__ == "__main__":'
            )


def _modules_in_progress() -> dict[str, str]:
    found = dict[str, str]()
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>" and isinstance(file := frame.f_globals.get("__file__"), str):
            found[file] = str(frame.f_globals.get("__name__"))
    return found


def leave_forkserver(server: Any = forkserver._forkserver) -> None:
    """Close this process's end of the pipe that keeps a forkserver running, so that the server ends with the parent."""
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
