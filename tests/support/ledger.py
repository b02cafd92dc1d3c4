"""Helpers of the fault tests: vector envs in each mode, and a ledger that predicts each env's next row."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.backends import FULL, RAY
from tests.support.commands import CommandVectorEnv
from tests.support.local_ray import FAR, NEAR
from vecenv import BaseVectorEnv, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

N = 4
SEEN = 4.0
"""Seconds within which vecenv must notice a dead worker. It takes 0.1 or less, but test machines are busy."""
CLOSED = 9.0
"""Seconds that close may take. Close waits 5 seconds for the envs, and then kills their workers."""


@dataclass(frozen=True, eq=False)
class Column:
    """A vector env class with the options of one mode."""

    backend: type[BaseVectorEnv]
    mode: str
    options: dict[str, Any]

    @contextmanager
    def open(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> Iterator[Ledger]:
        """Open a vector env as a ledger. At the end, check that close is fast enough."""
        venv = self.backend(env_fns, **{**self.options, **options})
        try:
            yield Ledger(venv)
        finally:
            begin = time.monotonic()
            venv.close()
            assert time.monotonic() - begin < CLOSED

    @property
    def is_async(self) -> bool:
        return "wait_num" in self.options

    @property
    def remote(self) -> bool:
        return not issubclass(self.backend, (DummyVectorEnv, ThreadVectorEnv))

    def cause(self, of_a_process: str) -> str:
        """Return the cause in the error of a dead worker. Ray does not know the signal."""
        return "ActorDiedError" if self.backend is RayVectorEnv else of_a_process

    @property
    def title(self) -> str:
        """Name of the column in test ids."""
        return f"{self.backend.__name__.removesuffix('VectorEnv')}-{self.mode.replace(' ', '-')}"

    @property
    def placed(self) -> str:
        """Mode without the place of the actors."""
        return self.mode.removesuffix(" near").removesuffix(" far")


_MODES = {
    "blocks": {"num_workers": 2},
    "single": {"num_workers": N},
    "async": {"wait_num": 1},
    "async blocks": {"wait_num": 2, "num_workers": 2},
}
_PROCESS = [
    Column(backend, mode, options) for backend in (SubprocVectorEnv, ShmemVectorEnv) for mode, options in _MODES.items()
]
_COMMAND = [Column(CommandVectorEnv, mode, options) for mode, options in _MODES.items()]
_RAY = [
    Column(RayVectorEnv, f"{mode}{place}", {**options, **where})
    for place, where in ((" near", NEAR), (" far", FAR), ("", {}))
    for mode, options in _MODES.items()
]
"""Places of actors: on the driver's node (they share the arena), on a second node (they get calls), and on both."""
_THREAD = [Column(ThreadVectorEnv, mode, options) for mode, options in _MODES.items()]
_DUMMY = [Column(DummyVectorEnv, "sync", {}), Column(DummyVectorEnv, "async", {"wait_num": 2})]


def columns(*modes: str, **options: Any) -> pytest.MarkDecorator:
    """Run a test in each of these columns, see `column_params`."""
    return pytest.mark.parametrize("column", column_params(*modes, **options))


def column_params(
    *modes: str,
    dummy: bool = True,
    ray: bool = True,
    far: bool = True,
    command: bool = True,
    quick: bool = False,
    only: type | None = None,
) -> list[Any]:
    """Return columns as parameters of a test, for all modes or the given modes, and for all classes or `only`.

    The quick tier has Dummy, which starts no process. The full tier has a column of each class; `quick` moves some of
    these to the quick tier. All other combinations are slow tests, because transports do not depend on modes.
    `command`: include workers of a command, which take no pickles.
    `dummy`: include Dummy and threads. `ray`: include actors (`make test-ray`). `far`: also actors on another node.
    """
    known = [*_DUMMY, *_PROCESS, *_COMMAND, *_THREAD] if dummy else [*_PROCESS, *_COMMAND]
    known = [column for column in known if only in (None, column.backend) and (command or column not in _COMMAND)]
    if modes:  # Dummy has no workers, so only sync and async differ
        waits = any("async" in mode for mode in modes)
        known = [c for c in known if c.mode in modes or (c in _DUMMY and (waits or not c.is_async))]
    first = _first_tier(known)
    marks = {c: [pytest.mark.slow] if c not in first else [FULL] for c in known}
    marks |= {
        c: []
        for c in known
        if c in _DUMMY or (quick and c not in _COMMAND and (c.mode == "blocks" or c in _THREAD[:3]))
    }
    actors = [c for c in _RAY if ray and only in (None, RayVectorEnv) and (not modes or c.placed in modes)]
    known += _some_actors([c for c in actors if far or c.mode.endswith(" near")])
    marks |= {c: RAY[:1] for c in actors if quick and only is not None and c.mode == "blocks near"}
    return [pytest.param(c, id=c.title, marks=marks.get(c, RAY)) for c in known]


def _some_actors(actors: Sequence[Column]) -> list[Column]:
    """Choose the columns that differ most, because actors start slowly."""
    wanted = ("blocks near", "async near", "blocks far", "async far", "blocks")
    return [c for c in actors if c.mode in wanted] or [c for c in actors if c.mode.endswith((" near", " far"))][:2]


def _first_tier(known: Sequence[Column]) -> list[Column]:
    """Choose the columns of the full tier: every class, and blocks as well as one worker per env."""
    pairs = {(ShmemVectorEnv, "blocks"), (SubprocVectorEnv, "async")}
    pairs |= {(ThreadVectorEnv, "blocks"), (ThreadVectorEnv, "async"), (CommandVectorEnv, "blocks")}
    modes = {column.mode for column in known}
    if "async" not in modes:
        pairs |= {(SubprocVectorEnv, "blocks")}
    if "blocks" not in modes:
        pairs |= {(ShmemVectorEnv, "async")}
    return [c for c in known if (c.backend, c.mode) in pairs] or list(known)


def _outcome(call: Callable[[], Any]) -> Any:
    """Return the result of the call, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


class Ledger:
    """Drives `faulty.Counter` envs, and compares every returned row with the expected row of the env.

    When `round` or `reset` returns, each row has matched its request, and each requested env has answered with a row or
    an error.
    """

    def __init__(self, venv: Any) -> None:
        self.venv = venv
        self.n = len(venv)
        self.episode = [0] * self.n
        self.t = [0] * self.n
        self.sent: dict[int, int] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self.last: dict[int, list[int]] = {}
        """Latest observation of each env."""
        self._calls = 0

    def begin(self) -> None:
        """Reset all envs, and step them once without a failure."""
        self.reset()
        assert self.round() == []

    def reset(self, ids: Sequence[int] | None = None, **kwargs: Any) -> None:
        """Reset envs, and check that every row is returned."""
        asked = list(range(self.n)) if ids is None else list(ids)
        for i in asked:
            self._expect_reset(i)
        obs, info = self.venv.reset(None if ids is None else asked, **kwargs)
        zeros = np.zeros(len(asked))
        assert [row["env_id"] for row in info] == asked
        self.check(obs, zeros, zeros, zeros, info)

    def reset_fails(self, kind: type[BaseException], ids: Sequence[int] | None = None, **kwargs: Any) -> Any:
        """Reset envs, expect an error of class `kind` with the other rows in `partial`, and return the error."""
        for i in range(self.n) if ids is None else ids:
            self._expect_reset(i)
        with pytest.raises(kind) as caught:
            self.venv.reset(None if ids is None else list(ids), **kwargs)
        self._settle(caught.value)
        return caught.value

    def round(self, ids: Sequence[int] | None = None, reset: Sequence[int] = ()) -> list[Any]:
        """Step envs, or reset the envs of `reset`, until all envs have answered. Return the errors.

        Calls alternate between actions as a list, actions as an array, and `step` in place of `send` and `recv`.
        """
        if self._calls % 3 == 2 and ids is None and not self.venv.is_async:
            asked, actions, resets = self._request(ids, reset)
            before = self.venv.stats()["rounds"]
            outcome = _outcome(partial(self.venv.step, actions, reset=resets))
            if isinstance(outcome, Exception) and self.venv.stats()["rounds"] == before:
                raise outcome  # refused: no env was stepped
            self._expect(asked, actions, reset)
        else:
            self.send(ids, reset)
            outcome = _outcome(self.venv.recv)
        errors = []
        for _ in range(self.n + 1):
            if isinstance(outcome, Exception):
                errors.append(outcome)
                self._take(outcome)
            else:
                self.check(*outcome)
            if not self.venv.waiting_id:
                break
            outcome = _outcome(self.venv.recv)
        self._lose()
        return errors

    def fails(self, kind: type[BaseException], ids: Sequence[int] | None = None) -> Any:
        """Run a round that raises exactly one error, of class `kind`. Return the error."""
        errors = self.round(ids)
        assert [type(error) for error in errors] == [kind], errors
        return errors[0]

    def send(self, ids: Sequence[int] | None = None, reset: Sequence[int] = ()) -> None:
        asked, actions, resets = self._request(ids, reset)
        self.venv.send(actions, None if ids is None else asked, reset=resets)
        self._expect(asked, actions, reset)

    def _request(self, ids: Sequence[int] | None, reset: Sequence[int]) -> tuple[list[int], Any, Any]:
        """Return ids, actions and resets, as lists or as the arrays that the vector env handles fastest."""
        asked = list(range(self.n)) if ids is None else list(ids)
        self._calls += 1
        actions = [self._calls * 100 + i for i in asked]
        if self._calls % 3 == 1:
            return asked, actions, list(reset) or None
        mask = np.isin(np.arange(self.n), list(reset))
        return asked, np.array(actions), mask if len(reset) else None

    def _expect(self, asked: Sequence[int], actions: Sequence[int], reset: Sequence[int]) -> None:
        for i, action in zip(asked, actions, strict=True):
            if i in reset:
                self._expect_reset(i)
            else:
                self.t[i] += 1
                self.sent[i] = int(action)

    def check(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Check that each row answers the last request of its env, and remove the request."""
        assert len(obs) == len(rew) == len(terminated) == len(truncated) == len(info)
        for row in range(len(info)):
            i = info[row]["env_id"]
            assert i in self.sent, f"a row of env {i}, which was not asked"
            action = self.sent.pop(i)
            self.rows[i] = info[row]
            if info[row].get("restarted"):
                assert (rew[row], bool(terminated[row]), bool(truncated[row])) == (0, False, True)
                assert obs[row].tolist() == self.last[i]
                continue
            self.last[i] = [i, self.episode[i], self.t[i], action]
            assert obs[row].tolist() == self.last[i]
            assert rew[row] == (0 if action == -1 else self.t[i] + i / 1000)
            assert not terminated[row]
            assert not truncated[row]

    def born_again(self, ids: Sequence[int]) -> None:
        """Expect new env objects for these ids from their next reset on."""
        for i in ids:
            self.episode[i] = 0

    def goes_on(self, failed: Sequence[int], kind: type[BaseException]) -> None:
        """Check that failed envs refuse steps with a `kind` without stepping any env, and work after a reset."""
        assert self.venv.failed_id == list(failed)
        with pytest.raises(kind) as refused:
            self.send()
        assert f"env {failed[0]}" in said(refused.value) or f"envs {list(failed)}" in said(refused.value)
        if good := [i for i in range(self.n) if i not in failed]:
            assert self.round(good) == []
        self.reset(failed)
        assert self.venv.failed_id == []
        assert self.round() == []

    def _expect_reset(self, i: int) -> None:
        self.episode[i] += 1
        self.t[i] = 0
        self.sent[i] = -1

    def _take(self, error: BaseException) -> None:
        partial = getattr(error, "partial", None)
        if partial is not None:
            assert [row["env_id"] for row in partial.info] == partial.env_id.tolist()
            self.check(*partial[1:])

    def _settle(self, error: BaseException) -> None:
        self._take(error)
        self._lose()

    def _lose(self) -> None:
        """Check that every env without an answer is in `failed_id`."""
        assert set(self.sent) <= set(self.venv.failed_id), (
            f"no answer from {sorted(self.sent)}, failed are {self.venv.failed_id}"
        )
        self.sent.clear()


def said(error: BaseException) -> str:
    """Return the text, the notes and the cause of an error."""
    return "\n".join([str(error), *getattr(error, "__notes__", []), str(error.__cause__ or "")])


def pids(venv: Any) -> list[int]:
    """Return the pid of each env's process."""
    return venv.get_env_attr("pid")


def block_of(venv: Any, i: int) -> list[int]:
    """Return the ids of the envs that share a worker with env i."""
    every = pids(venv)
    return [j for j, pid in enumerate(every) if pid == every[i]]


def kill(pid: int) -> None:
    """Kill a process, and wait until its threads and descriptors are gone."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([process], [], [], 30.0)[0]
    os.close(process)


def gone(pid: int, within: float = 10.0) -> bool:
    """Wait until the process has ended. A zombie counts as ended."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.005)
    return False


def wait_until(condition: Callable[[], Any], within: float = 20.0, text: str = "") -> None:
    """Poll a condition that no event announces."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, text
        time.sleep(0.002)


def appears(path: Any, within: float = 20.0) -> None:
    """Wait until the file exists."""
    wait_until(lambda: os.path.exists(path), within, f"{path} did not appear")


def reply_begins(venv: Any, i: int, within: float = 20.0) -> None:
    """Wait until the worker of env i has started to send a message. The message is not read."""
    fd = next(worker.channel.fileno() for worker in venv.engine.backend.pool.workers if i in worker.ids)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(within * 1000), "no reply"
