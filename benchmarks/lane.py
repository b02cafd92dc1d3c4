"""Run one contender in a separate process, the lane. The benchmark sends commands over a pipe.

    benchmark --(method name, arguments)--> lane process --> contender --> its workers
              <-------- result or traceback ----

Between commands the lane blocks on the pipe, so it uses no CPU while another lane is measured.
Each lane leads a process group, so that one kill ends the lane and its workers.
"""

from __future__ import annotations

import importlib
import multiprocessing as mp
import os
import signal
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from benchmarks.bound import Bound
from benchmarks.drive import AsyncDriver, Driver, SyncDriver
from benchmarks.envs import EnvSpec
from benchmarks.ours import CONTENDERS
from benchmarks.peers import Contender

OPEN_TIMEOUT = 180.0
CALL_TIMEOUT = 120.0
CLOSE_TIMEOUT = 30.0


class LaneError(RuntimeError):
    """Raised if a contender failed, hung or could not be built. The message has the traceback."""


class Spec(Protocol):
    """Description of a contender. The lane unpickles the description and builds the driver."""

    @property
    def title(self) -> str:
        """Name of the lane in tables and files."""

    @property
    def settle(self) -> float:
        """Seconds to wait after a measurement, because workers of this contender still use CPU."""

    def missing(self) -> str:
        """Return the reason if the contender cannot run, for example a missing library, or an empty string."""

    def build(self) -> Any:
        """Build the driver: an object with `measure(seconds)`, which returns a `Sample`, and `close()`.

        `close` returns the seconds that it took.
        """


@dataclass(frozen=True)
class LaneSpec:
    """Description of a lane that only steps `count` envs. `contender` is a name, or `bound(W)`."""

    contender: str
    env: EnvSpec
    count: int
    options: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or self.contender

    @property
    def settle(self) -> float:
        kind = self._kind()
        return kind.settle if kind else 0.0

    def missing(self) -> str:
        kind = self._kind()
        if kind is None:
            return ""
        if kind.cartpole_only and self.env.kind != "cartpole":
            return f"it has no {self.env.kind} environment"
        return "" if kind.available() else f"{kind.needs} is not installed"

    def build(self) -> Any:
        kind = self._kind()
        if kind is None:
            return Bound(self.env, self.count, int(self.contender[6:-1]))
        importlib.import_module(kind.needs)

        def build() -> Driver:
            contender = kind(self.env.env_fns(self.count), **self.options)
            style = AsyncDriver if "wait_num" in self.options else SyncDriver
            return style(contender, self.count)

        begun = time.perf_counter()
        driver = build()
        driver.opened_in = time.perf_counter() - begun
        driver.rebuild = build
        return driver

    def _kind(self) -> type[Contender] | None:
        """Return the class of the contender, or None for the bound."""
        return None if self.contender.startswith("bound(") else CONTENDERS[self.contender]


class Lane:
    """Process of a lane. `call` runs a method of the driver and waits for the result."""

    def __init__(self, spec: Spec) -> None:
        context = mp.get_context("spawn")
        self.spec = spec
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_lane_main, args=(there, spec, mp.get_start_method()))
        self._process.start()
        there.close()  # so that a dead lane reads as the end of the file
        try:
            self._receive(OPEN_TIMEOUT)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(self, method: str, *args: Any, timeout: float = CALL_TIMEOUT) -> Any:
        self._pipe.send((method, args))
        return self._receive(timeout)

    def close(self) -> float:
        """Close the contender, by force after half a minute. Return the seconds."""
        begun = time.perf_counter()
        try:
            return float(self.call("close", timeout=CLOSE_TIMEOUT))
        except (LaneError, OSError):  # the lane has failed or hangs, and is killed below
            return time.perf_counter() - begun
        finally:
            self._pipe.close()
            self._process.join(5)
            self.kill()

    def kill(self) -> None:
        """Kill the lane and every process of its group."""
        with suppress(ProcessLookupError):  # the group has ended
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()  # the process may not lead its group yet
        self._process.join(5)

    def _receive(self, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            raise LaneError(f"{self.spec.title}: no answer within {timeout:.0f} s")
        try:
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise LaneError(f"{self.spec.title}: its process died") from None
        if kind == "error":
            raise LaneError(f"{self.spec.title}: {value}")
        return value


def _lane_main(pipe: Connection, spec: Spec, start_method: str) -> None:
    os.setpgid(0, 0)
    # A spawned process makes "spawn" its own default; give the libraries the platform's default.
    mp.set_start_method(start_method, force=True)
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        driver = spec.build()
        pipe.send(("value", None))
        while True:
            method, args = pipe.recv()
            pipe.send(("value", getattr(driver, method)(*args)))
            if method == "close":
                return
    except (EOFError, BrokenPipeError):
        os.killpg(0, signal.SIGKILL)  # the benchmark has ended, so end the workers too
    except BaseException:
        with suppress(OSError):
            pipe.send(("error", traceback.format_exc()))
