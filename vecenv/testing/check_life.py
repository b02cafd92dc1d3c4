"""Checks of life: envs are made and closed, also after mistakes and errors."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vecenv.base import BaseVectorEnv
from vecenv.errors import ClosedError
from vecenv.testing.envs import CountingEnv, ExitsOnStep, RaisesInConstructor, RaisesOnStep
from vecenv.testing.model import Factory, N, Twins, assert_raises

CLOSE_BOUND = 10.0


def check_rejected_calls(factory: Factory) -> None:
    """A call with a mistake in it raises before any env is touched."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        venv.reset()
        before = venv.get_env_attr("calls")
        calls: list[tuple[type[Exception], str, Callable[[], Any]]] = [
            (ValueError, "two actions for three envs", lambda: venv.step([0, 1], [0, 1, 2])),
            (ValueError, "no action", lambda: venv.step(None)),
            (IndexError, "an id out of range", lambda: venv.step([0, 0], [0, N])),
            (ValueError, "an id given twice", lambda: venv.step([0, 0, 0], [1, 2, 1])),
            (TypeError, "a float id", lambda: venv.reset(1.0)),
            (ValueError, "too few seeds", lambda: venv.seed([1, 2])),
        ]
        for expected, what, call in calls:
            assert_raises(expected, what, call)
        after = venv.get_env_attr("calls")
        assert after == before, f"rejected calls reached the envs: they were called {after} times, {before} before"


def check_env_errors(factory: Factory) -> None:
    """An env's error arrives as itself, the others' results in `partial`; then the env takes nothing but reset."""
    twins = Twins(infos=False)
    env_fns = [*twins.env_fns[:2], functools.partial(RaisesOnStep, 2, at=2, infos=False), *twins.env_fns[3:]]
    with factory(env_fns) as venv:
        venv.reset()
        for i in range(N):
            twins.reset(i)
        twins.compare(range(N), venv.step([0] * N), [twins.step(i, 0) for i in range(N)])
        error = assert_raises(ValueError, "an env that raises", lambda: venv.step([4] * N))
        assert "boom in step" in str(error), f"the text of the env's error is lost: {error}"
        partial = getattr(error, "partial", None)
        assert partial is not None, "the results of the other envs are lost: the error has no partial"
        others = [0, 1, 3, 4]
        twins.compare(others, partial[1:], [twins.step(i, 4) for i in others])
        assert venv.failed_id == [2], f"failed_id is {venv.failed_id}, expected [2]"
        assert venv.ready_id == others, f"ready_id is {venv.ready_id}, expected {others}"
        assert_raises(ValueError, "a step of a failed env", lambda: venv.step([0, 0], [1, 2]))
        twins.compare([1], venv.step([6], [1]), [twins.step(1, 6)])
        twins.compare([2], venv.reset([2]), [twins.reset(2)])
        twins.compare([4, 2], venv.step([8, 9], [4, 2]), [twins.step(4, 8), twins.step(2, 9)])


def check_workers_that_end(factory: Factory) -> None:
    """The end of an env's process is an error, `alive` tells it, and a reset makes the env again.

    Envs in the process of the test, which would end with it, pass at once.
    """
    twins = Twins(infos=False)
    env_fns = [*twins.env_fns[:2], functools.partial(_EndsItsProcess, 2, at=2, infos=False), *twins.env_fns[3:]]
    with factory(env_fns) as venv:
        if venv.get_env_attr("pid", 2) == [os.getpid()]:
            return
        venv.reset()
        venv.step([0] * N)
        assert_raises(Exception, "a step in which a worker ends", lambda: venv.step([4] * N))
        alive, lost = venv.alive(), venv.failed_id
        assert not alive[2], f"alive is {alive} after the process of env 2 has ended"
        assert 2 in lost, f"failed_id is {lost}, expected env 2 and those that shared its worker"
        assert_raises(Exception, "a step of a lost env", lambda: venv.step([0], [2]))
        for i in lost:
            twins.envs[i] = CountingEnv(i, infos=False)
        twins.compare(lost, venv.reset(lost), [twins.reset(i) for i in lost])
        assert all(venv.alive()), f"alive is {venv.alive()} after a reset of all that were lost"
        twins.compare(lost, venv.step([7] * len(lost), lost), [twins.step(i, 7) for i in lost])


class _EndsItsProcess(ExitsOnStep):
    """Names the process that it is in."""

    @property
    def pid(self) -> int:
        return os.getpid()


def check_errors_of_constructors(factory: Factory) -> None:
    """The error of an env_fn arrives as itself."""
    error = assert_raises(
        ValueError, "an env_fn that raises", lambda: factory([CountingEnv, RaisesInConstructor]).close()
    )
    assert "boom in __init__" in str(error), f"the text of the constructor's error is lost: {error}"


def check_env_fns_are_called_once(factory: Factory) -> None:
    """Each env_fn is called exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        with factory([functools.partial(_noted, folder, i) for i in range(N)]) as venv:
            venv.reset()
        calls = [len(list(Path(folder).glob(f"{i}-*"))) for i in range(N)]
        assert calls == [1] * N, f"the env_fns were called {calls} times"


def check_close(factory: Factory) -> None:
    """`close` closes the envs, also in flight, is idempotent and bounded, and ends all but `len` and `is_closed`; no
    pickling.
    """
    for in_flight in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            _check_close(factory([functools.partial(_NotesClose, folder, i) for i in range(N)]), in_flight)
            closed = sorted(int(path.name) for path in Path(folder).iterdir())
            assert closed == list(range(N)), f"close closed the envs {closed}, expected all {N}"


def _check_close(venv: BaseVectorEnv, in_flight: bool) -> None:
    venv.reset()
    if in_flight:
        venv.send([0] * N)
    assert_raises(TypeError, "pickling a vector env", lambda: pickle.dumps(venv))
    begin = time.monotonic()
    for _ in range(2):
        venv.close()
    took = time.monotonic() - begin
    assert took < CLOSE_BOUND, f"close took {took:.1f} s"
    assert venv.is_closed, "is_closed is False after close"
    assert len(venv) == N, f"len is {len(venv)} after close"
    calls = (
        venv.reset,
        lambda: venv.step([0] * N),
        lambda: venv.seed(0),
        lambda: venv.get_env_attr("t"),
        lambda: venv.action_space,
    )
    for call in calls:
        assert_raises(ClosedError, "a call after close", call)


class _NotesClose(CountingEnv):
    """Leaves a file when it is closed."""

    def __init__(self, folder: str, env_id: int) -> None:
        super().__init__(env_id)
        self.folder = folder

    def close(self) -> None:
        Path(self.folder, str(self.env_id)).touch()


def _noted(folder: str, i: int) -> CountingEnv:
    """Make an env, and a file that says so."""
    tempfile.NamedTemporaryFile(prefix=f"{i}-", dir=folder, delete=False).close()
    return CountingEnv(i)
