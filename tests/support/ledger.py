"""Shared by the fault tests: the columns of their matrix, and a ledger that knows what every env has to show next."""

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
from tests.support.local_ray import FAR, NEAR
from vecenv import BaseVectorEnv, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

N = 4
SEEN = 2.0
"""Seconds within which the death of a worker has to be noticed: the promise is 0.1, but machines that test are busy."""
CLOSED = 7.0
"""The same for close, which gives the envs 5 and then uses force."""
STARTED = 30.0
"""The same for an actor that takes the place of another one."""


@dataclass(frozen=True, eq=False)
class Column:
    """A vector env class with the options of one mode."""

    backend: type[BaseVectorEnv]
    mode: str
    options: dict[str, Any]

    @contextmanager
    def open(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> Iterator[Ledger]:
        """A vector env as a ledger; it is closed at the end, within bounds."""
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
        return self.backend not in (DummyVectorEnv, ThreadVectorEnv)

    def cause(self, of_a_process: str) -> str:
        """The cause that the error names of the end of a worker: Ray does not know the signal."""
        return "ActorDiedError" if self.backend is RayVectorEnv else of_a_process

    @property
    def title(self) -> str:
        """The name in the id of a test."""
        return f"{self.backend.__name__.removesuffix('VectorEnv')}-{self.mode.replace(' ', '-')}"

    @property
    def placed(self) -> str:
        """The mode, without the place of actors."""
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
_RAY = [
    Column(RayVectorEnv, f"{mode}{place}", {**options, **where})
    for place, where in ((" near", NEAR), (" far", FAR), ("", {}))
    for mode, options in _MODES.items()
]
"""Actors on the driver's node, which share its arena; on another one, which calls reach; and on both."""
_THREAD = [Column(ThreadVectorEnv, mode, options) for mode, options in _MODES.items()]
_DUMMY = [Column(DummyVectorEnv, "sync", {}), Column(DummyVectorEnv, "async", {"wait_num": 2})]


def columns(*modes: str, **options: Any) -> pytest.MarkDecorator:
    """Runs a test in each of these columns, see `column_params`."""
    return pytest.mark.parametrize("column", column_params(*modes, **options))


def column_params(
    *modes: str, dummy: bool = True, ray: bool = True, far: bool = True, quick: bool = False, only: type | None = None
) -> list[Any]:
    """Columns as parameters: all modes or those named, all classes or the one named.

    Dummy is in the quick tier, as it starts nothing; columns of each class are in the full tier, with `quick` some of
    them in the quick one; the whole product is slow, because transports and modes do not know of each other.
    `dummy`: also in this process, by Dummy and in threads. `ray`: also in actors, by `make test-ray`; `far`: on another
    node too.
    """
    known = [*_DUMMY, *_PROCESS, *_THREAD] if dummy else _PROCESS
    known = [column for column in known if only is None or column.backend is only]
    if modes:  # Dummy has no workers: it is in async mode where some other column is
        waits = any("async" in mode for mode in modes)
        known = [c for c in known if c.mode in modes or (c in _DUMMY and (waits or not c.is_async))]
    first = _first_tier(known)
    marks = {c: [pytest.mark.slow] if c not in first else [FULL] for c in known}
    marks |= {c: [] for c in known if c in _DUMMY or (quick and (c.mode == "blocks" or c in _THREAD[:3]))}
    actors = [c for c in _RAY if ray and only in (None, RayVectorEnv) and (not modes or c.placed in modes)]
    known += _some_actors([c for c in actors if far or c.mode.endswith(" near")])
    marks |= {c: RAY[:1] for c in actors if quick and only is not None and c.mode == "blocks near"}
    return [pytest.param(c, id=c.title, marks=marks.get(c, RAY)) for c in known]


def _some_actors(actors: Sequence[Column]) -> list[Column]:
    """The columns that differ most: starting actors takes long."""
    wanted = ("blocks near", "async near", "blocks far", "async far", "blocks")
    return [c for c in actors if c.mode in wanted] or [c for c in actors if c.mode.endswith((" near", " far"))][:2]


def _first_tier(known: Sequence[Column]) -> list[Column]:
    """Columns of the full tier, where a test has more: each mode with blocks or one worker an env, each class."""
    pairs = {(ShmemVectorEnv, "blocks"), (SubprocVectorEnv, "async")}
    pairs |= {(ThreadVectorEnv, "blocks"), (ThreadVectorEnv, "async")}
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
    """Drives counters (`faulty.Counter`) and checks every row that comes back against what that env must show.

    Guarantees, once `round` or `reset` returns: each row belonged to the request it answers, and every env that was
    asked has answered, by a row or by an error.
    """

    def __init__(self, venv: Any) -> None:
        self.venv = venv
        self.n = len(venv)
        self.episode = [0] * self.n
        self.t = [0] * self.n
        self.sent: dict[int, int] = {}
        self.rows: dict[int, dict[str, Any]] = {}
        self._calls = 0

    def begin(self) -> None:
        """Reset all, and one step, which must go well."""
        self.reset()
        assert self.round() == []

    def reset(self, ids: Sequence[int] | None = None, **kwargs: Any) -> None:
        """Reset envs; every row has to be there."""
        asked = list(range(self.n)) if ids is None else list(ids)
        for i in asked:
            self._expect_reset(i)
        obs, info = self.venv.reset(None if ids is None else asked, **kwargs)
        zeros = np.zeros(len(asked))
        assert [row["env_id"] for row in info] == asked
        self.check(obs, zeros, zeros, zeros, info)

    def reset_fails(self, kind: type[BaseException], ids: Sequence[int] | None = None, **kwargs: Any) -> Any:
        """A reset that raises `kind`; the rows of the others have to be in `partial`. Returns the error."""
        for i in range(self.n) if ids is None else ids:
            self._expect_reset(i)
        with pytest.raises(kind) as caught:
            self.venv.reset(None if ids is None else list(ids), **kwargs)
        self._settle(caught.value)
        return caught.value

    def round(self, ids: Sequence[int] | None = None, reset: Sequence[int] = ()) -> list[Any]:
        """Step envs (those in `reset` are reset) and receive until all have answered; returns the errors.

        In turn with actions as a list, as an array, and by `step`, which is the same as the two halves.
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
        """A round in which exactly one error is raised, of the class `kind`."""
        errors = self.round(ids)
        assert [type(error) for error in errors] == [kind], errors
        return errors[0]

    def send(self, ids: Sequence[int] | None = None, reset: Sequence[int] = ()) -> None:
        asked, actions, resets = self._request(ids, reset)
        self.venv.send(actions, None if ids is None else asked, reset=resets)
        self._expect(asked, actions, reset)

    def _request(self, ids: Sequence[int] | None, reset: Sequence[int]) -> tuple[list[int], Any, Any]:
        """The envs to ask, with what: as lists, or as the arrays of which the vector env makes the least work."""
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
        """Each row is the answer to what was asked last of its env; it is not expected again."""
        assert len(obs) == len(rew) == len(terminated) == len(truncated) == len(info)
        for row in range(len(info)):
            i = info[row]["env_id"]
            assert i in self.sent, f"a row of env {i}, which was not asked"
            action = self.sent.pop(i)
            self.rows[i] = info[row]
            if info[row].get("restarted"):
                assert (rew[row], bool(terminated[row]), bool(truncated[row])) == (0, False, True)
                continue
            numbers = obs[row]["numbers"] if isinstance(obs[row], dict) else obs[row]
            wanted = [i, self.episode[i], self.t[i], -1 if isinstance(obs[row], dict) else action]
            assert numbers.tolist() == wanted
            assert rew[row] == (0 if action == -1 else self.t[i] + i / 1000)
            assert not terminated[row]
            assert not truncated[row]

    def born_again(self, ids: Sequence[int]) -> None:
        """These envs have been made anew, or will be before their next reset."""
        for i in ids:
            self.episode[i] = 0

    def catch_up(self) -> None:
        """Go on from what the envs are at now, which have all been reset."""
        self.sent.clear()
        self.episode, self.t = self.venv.get_env_attr("episode"), self.venv.get_env_attr("t")

    def goes_on(self, failed: Sequence[int], kind: type[BaseException]) -> None:
        """The failed envs refuse steps with a `kind`, which steps no env; once they are reset, all is well."""
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
        """An env that did not answer with a row must be known to have failed."""
        assert set(self.sent) <= set(self.venv.failed_id), (
            f"no answer from {sorted(self.sent)}, failed are {self.venv.failed_id}"
        )
        self.sent.clear()


def said(error: BaseException) -> str:
    """All that an error says: its text, its notes, its cause."""
    try:
        text = str(error)
    except RuntimeError:  # one of the zoo has none
        text = ""
    return "\n".join([text, *getattr(error, "__notes__", []), str(error.__cause__ or "")])


def pids(venv: Any) -> list[int]:
    """The process of each env."""
    return venv.get_env_attr("pid")


def block_of(venv: Any, i: int) -> list[int]:
    """The envs that share a worker with env i."""
    every = pids(venv)
    return [j for j, pid in enumerate(every) if pid == every[i]]


def kill(pid: int) -> None:
    """Kill a process, and return when it is gone, with all its threads and descriptors."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([process], [], [], 30.0)[0]
    os.close(process)


def gone(pid: int, within: float = 10.0) -> bool:
    """Waits until the process has ended; a zombie has."""
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
    """Waits for what no event announces."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, text
        time.sleep(0.002)


def appears(path: Any, within: float = 20.0) -> None:
    """Waits until the file is there."""
    wait_until(lambda: os.path.exists(path), within, f"{path} did not appear")


def reply_begins(venv: Any, i: int, within: float = 20.0) -> None:
    """Waits until the worker of env i has begun to send a message, of which nothing is read."""
    fd = next(worker.channel.fileno() for worker in venv.engine.backend.pool.workers if i in worker.ids)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(within * 1000), "no reply"
