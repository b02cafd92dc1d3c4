"""`python -m vecenv.worker`: a worker for envs that run in another interpreter, in a container or on another host.

    SubprocVectorEnv(["my_envs:make"] * 8, worker_command=["/opt/sim/bin/python", "-m", "vecenv.worker"])
    SubprocVectorEnv(["my_envs:make"] * 8, worker_command=["ssh", "gpu-7", "python", "-m", "vecenv.worker"])

The program of the vector env starts this command, and exchanges frames with it over the standard streams. What envs
print goes to stderr. The worker ends when its stdin closes. It needs Python 3.10 or newer, vecenv, numpy and gymnasium.
Where vecenv cannot be installed, use the file vecenv/worker_numpy.py.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from vecenv.backends.ipc.messages import ANSWERS, Frame
from vecenv.backends.ipc.waiting import SpinWait
from vecenv.backends.memory.shared_memory import BUSY_NS
from vecenv.backends.subproc import SubprocServer
from vecenv.backends.worker.main import end_group, serve
from vecenv.backends.worker.plain_code import PLAIN, own_name
from vecenv.backends.worker.worker_setup import WorkerArgs, WorkerSetup
from vecenv.seeds import seed_generators
from vecenv.worker_numpy import AnyGym, Stream, encode, make_env, space_as_value, start_guard


class CommandServer(SubprocServer):
    code = PLAIN


class WorkerStream(Stream):
    """Stream with the methods of a worker's channel."""

    def __init__(self) -> None:
        super().__init__()
        self._poller = select.poll()
        self._poller.register(self.input, select.POLLIN)

    def write(self, kind: int, number: int, *parts: Any) -> None:
        super().write(kind, self.line[BUSY_NS] if kind == ANSWERS else number, *parts)

    def read(self, looking: SpinWait | None = None) -> Frame:
        if looking is not None:
            looking.until(self._has_arrived)
        return Frame(*self.read_frame())

    def _has_arrived(self) -> bool:
        return bool(self._poller.poll(0))


class OldEnv(AnyGym):
    """Env of the package gym, with spaces of gymnasium."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space, self.action_space = map(_of_gymnasium, (self.observation_space, self.action_space))


def _of_gymnasium(space: Any) -> Any:
    return PLAIN.loads(encode(space, space_as_value))


def _make(name: str, kwargs: dict[str, Any]) -> Any:
    env = make_env(name, kwargs)
    space = getattr(env, "observation_space", None)
    is_old = any(cls.__name__ == "Space" for cls in type(space).__mro__) and not isinstance(space, gymnasium.Space)
    return OldEnv(env) if is_old else env


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the envs that the other end of the standard streams names, and return the exit code."""
    if (argv := sys.argv[1:] if argv is None else argv) or os.isatty(0):
        sys.stderr.write(f"{__doc__}\n")
        return 0 if argv == ["--help"] else 2
    stream = WorkerStream()
    try:
        start = stream.greet(own_name(), gymnasium=gymnasium.__version__)
        start_guard(stream, start["step_timeout"])
        try:
            _serve(stream, start)
        finally:
            end_group()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other end is gone
    return 0


def _serve(stream: WorkerStream, start: dict[str, Any]) -> None:
    seeds = seed_of_numpy, seed_of_python = start["seeds"]
    seed_generators((seed_of_numpy, seed_of_python))
    env_fns: list[Callable[[], Any]] = [partial(_make, name, kwargs) for name, kwargs in start["envs"]]
    args = WorkerArgs(WorkerSetup(env_fns, []), start["first_id"], start["eager"], seeds, CommandServer)
    serve(args, stream, stream.line)


if __name__ == "__main__":
    sys.exit(main())
