"""Gates: hold envs in the middle of a step, and let them go on in the order that a test wants, without any sleep."""

from __future__ import annotations

import functools
import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vecenv.testing.envs import CountingEnv


class GateEnv(CountingEnv):
    """A CountingEnv that waits at its gate in each of `ops` ("step", "reset", "echo"). Made by `Gates.env_fn`.

    `ran_in` is the process and the thread of the last step or reset.
    """

    def __init__(self, folder: str, env_id: int, ops: Sequence[str] = ("step", "reset"), **options: Any) -> None:
        super().__init__(env_id, **options)
        self._ops = tuple(ops)
        self._gate, self._arrived = (os.open(path, os.O_RDWR) for path in _pipes(folder, env_id))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._pass("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._pass("step")
        return super().step(action)

    def echo(self, value: Any) -> Any:
        """Wait at the gate and return the value, to be called through the vector env."""
        self._pass("echo")
        return value

    def close(self) -> None:
        for fd in (self._gate, self._arrived):
            os.close(fd)

    def _pass(self, op: str) -> None:
        self.ran_in = os.getpid(), threading.get_ident()
        if op in self._ops:
            os.write(self._arrived, b".")
            os.read(self._gate, 1)


class Gates:
    """`n` gates for `n` envs, closed at first. They are named pipes, so that they work in any process.

        with Gates(2) as gates, ShmemVectorEnv(gates.env_fns, wait_num=1) as venv: ...

    `options` go to every GateEnv. Open what is in flight before the vector env is closed, or the worker is killed.
    """

    def __init__(self, n: int, **options: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="vecenv-gates-")
        self._options = options
        self._fds: list[tuple[int, int]] = []
        for i in range(n):
            paths = _pipes(self.folder, i)
            for path in paths:
                os.mkfifo(path)
            # Open for both directions: neither side waits for the other, and what is written stays until it is read.
            self._fds.append((os.open(paths[0], os.O_RDWR), os.open(paths[1], os.O_RDWR)))

    @property
    def env_fns(self) -> list[Callable[[], GateEnv]]:
        """One function for each gate that makes its env."""
        return [self.env_fn(i) for i in range(len(self._fds))]

    def env_fn(self, i: int) -> Callable[[], GateEnv]:
        """A function that makes the env behind gate i."""
        return functools.partial(GateEnv, self.folder, i, **self._options)

    def open(self, *ids: int, times: int = 1) -> None:
        """Let each env of `ids` (default all) through its gate `times` times, now or when it comes to it."""
        for i in ids or range(len(self._fds)):
            os.write(self._fds[i][0], b"." * times)

    def await_arrival(self, i: int, timeout: float = 30.0) -> None:
        """Wait until env i has come to its gate once more; TimeoutError if it does not."""
        if not select.select([self._fds[i][1]], [], [], timeout)[0]:
            raise TimeoutError(f"env {i} did not come to its gate within {timeout} s")
        os.read(self._fds[i][1], 1)

    def close(self) -> None:
        """Remove the pipes."""
        for pair in self._fds:
            for fd in pair:
                os.close(fd)
        self._fds = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Gates:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _pipes(folder: str, env_id: int) -> tuple[Path, Path]:
    """The pipe that opens the gate of an env, and the one in which it says that it has come to it."""
    return Path(folder, f"gate-{env_id}"), Path(folder, f"arrived-{env_id}")
