"""Checks of attributes, seeds, errors and closing, for `check_vector_env`."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenv.arguments import seed_chain
from vecenv.base import BaseVectorEnv
from vecenv.errors import ClosedError
from vecenv.testing.envs import CountingEnv, ExitsOnStep, RaisesInConstructor, RaisesOnStep
from vecenv.testing.model import Factory, N, ReferenceEnvs, assert_raises, assert_same


def check_attributes(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
        assert venv.get_env_attr("env_id", [3, 1]) == [3, 1], (
            f"get_env_attr of 3 and 1 gave {venv.get_env_attr('env_id', [3, 1])}"
        )
        venv.set_env_attr("length", 9, [2])
        assert venv.get_env_attr("length") == [5, 5, 9, 5, 5], "set_env_attr on env 2 must change env 2 and no other"
        assert_raises(AttributeError, "an unknown attribute", lambda: venv.get_env_attr("nope"))
        mine = [1]
        venv.set_env_attr("mine", mine)
        for value in (mine, *venv.get_env_attr("mine")):
            value.append(2)
        assert venv.get_env_attr("mine") == [[1]] * N, "an env shares the value of an attribute with the caller"
        options = {"t": 3}
        got = tuple(venv.call("reset", id=[4, 1], options=options))
        assert_same(got, tuple(reference.reset(i, options=options)[::4] for i in (4, 1)), "the result of call('reset')")
        assert venv.get_env_attr("t") == [0, 3, 0, 0, 3], f"call of reset on 4 and 1 left t at {venv.get_env_attr('t')}"
        assert venv.call("length") == [5, 5, 9, 5, 5], "call() of an attribute did not return its value"
        assert (len(venv), venv.num_envs, venv.env_num) == (N, N, N), (
            "len, num_envs and env_num differ from the number of envs"
        )


def check_reports(factory: Factory) -> None:
    env = _Described()
    with factory([functools.partial(_Described, i) for i in range(N)]) as venv:
        for name in ("observation_space", "action_space", "metadata", "spec"):
            got, want = getattr(venv, name), [getattr(env, name)] * N
            assert got == want, f"{name} is {got}, expected {want}"


def check_frames(factory: Factory) -> None:
    with factory([functools.partial(_Described, i) for i in range(N)]) as venv:
        for arguments, shade in (({}, 0), ({"shade": 7}, 7)):
            frames = [int(frame[0, 0, 0]) for frame in venv.render(**arguments)]
            want = [i + shade for i in range(N)]
            assert frames == want, f"render(**{arguments}) gave frames of {frames}, expected {want}"


def check_seeds(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
        assert venv.seed(3) == [3, 4, 5, 6, 7], "seed(3) did not return the seeds of the envs"
        assert venv.get_env_attr("seeded") == [3, 4, 5, 6, 7], f"seed(3) gave the envs {venv.get_env_attr('seeded')}"
        first = [space.sample() for space in venv.action_space]
        venv.seed(3)
        assert first == [space.sample() for space in venv.action_space], "seed does not seed the action spaces"
        wanted = []
        for i, twin in enumerate(reference.envs):
            twin.action_space.seed(3 + i)
            wanted.append(twin.action_space.sample())
        assert first == wanted, f"action spaces give {first} after seed(3), expected {wanted}"
        chain = seed_chain(9, N)
        for static, wanted_seeds, following in ((False, chain[:-1], chain[-1]), (True, [9] * N, 9)):
            got = venv.set_seed(9, static)
            assert got == following, f"set_seed(9, {static}) returned {got}, expected {following}"
            seeded = venv.get_env_attr("seeded")
            assert seeded == wanted_seeds, f"set_seed(9, {static}) gave the envs {seeded}, expected {wanted_seeds}"


def check_stats(factory: Factory) -> None:
    with factory(ReferenceEnvs().env_fns) as venv:
        venv.reset()
        venv.step([0] * N)
        venv.step([0, 0], [3, 1])
        venv.step([0] * N, reset=[2])
        stats = venv.stats()
        want = {"rounds": 4, "steps": N + 2 + N - 1, "resets": N + 1, "restarts": 0, "absorbed": 0}
        got = {name: stats.get(name) for name in want}
        assert got == want, f"stats say {got}, expected {want}"
        for name in ("dispatch_s", "wait_s"):
            assert stats.get(name, -1.0) >= 0, f"stats say {name}={stats.get(name)}, expected seconds"


class _Described(CountingEnv):
    spec = EnvSpec("Described-v0")

    def render(self, shade: int = 0) -> np.ndarray:
        return super().render() + np.uint8(shade)


CLOSE_BOUND = 10.0


def check_rejected_calls(factory: Factory) -> None:
    reference = ReferenceEnvs()
    with factory(reference.env_fns) as venv:
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
    reference = ReferenceEnvs(infos=False)
    env_fns = [*reference.env_fns[:2], functools.partial(RaisesOnStep, 2, at=2, infos=False), *reference.env_fns[3:]]
    with factory(env_fns) as venv:
        venv.reset()
        for i in range(N):
            reference.reset(i)
        reference.compare(range(N), venv.step([0] * N), [reference.step(i, 0) for i in range(N)])
        error = assert_raises(ValueError, "an env that raises", lambda: venv.step([4] * N))
        assert "boom in step" in str(error), f"the text of the env's error is lost: {error}"
        partial = getattr(error, "partial", None)
        assert partial is not None, "the results of the other envs are lost: the error has no partial"
        others = [0, 1, 3, 4]
        reference.compare(others, partial[1:], [reference.step(i, 4) for i in others])
        assert venv.failed_id == [2], f"failed_id is {venv.failed_id}, expected [2]"
        assert venv.ready_id == others, f"ready_id is {venv.ready_id}, expected {others}"
        assert_raises(ValueError, "a step of a failed env", lambda: venv.step([0, 0], [1, 2]))
        reference.compare([1], venv.step([6], [1]), [reference.step(1, 6)])
        reference.compare([2], venv.reset([2]), [reference.reset(2)])
        reference.compare([4, 2], venv.step([8, 9], [4, 2]), [reference.step(4, 8), reference.step(2, 9)])


def check_workers_that_end(factory: Factory) -> None:
    """Check that a step raises when a worker process ends, and that a reset recreates the worker's envs."""
    reference = ReferenceEnvs(infos=False)
    env_fns = [*reference.env_fns[:2], functools.partial(_EndsItsProcess, 2, at=2, infos=False), *reference.env_fns[3:]]
    with factory(env_fns) as venv:
        if venv.get_env_attr("pid", 2) == [os.getpid()]:
            return
        venv.reset()
        venv.step([0] * N)
        assert_raises(Exception, "a step in which a worker ends", lambda: venv.step([4] * N))
        alive, lost = venv.alive(), venv.failed_id
        assert not alive[2], f"alive is {alive} after the process of env 2 has ended"
        assert 2 in lost, f"failed_id is {lost}, expected env 2 and the other envs of its worker"
        assert_raises(Exception, "a step of a lost env", lambda: venv.step([0], [2]))
        for i in lost:
            reference.envs[i] = CountingEnv(i, infos=False)
        reference.compare(lost, venv.reset(lost), [reference.reset(i) for i in lost])
        assert all(venv.alive()), f"alive is {venv.alive()} after a reset of all lost envs"
        reference.compare(lost, venv.step([7] * len(lost), lost), [reference.step(i, 7) for i in lost])


class _EndsItsProcess(ExitsOnStep):
    @property
    def pid(self) -> int:
        return os.getpid()


def check_errors_of_constructors(factory: Factory) -> None:
    error = assert_raises(
        ValueError, "an env_fn that raises", lambda: factory([CountingEnv, RaisesInConstructor]).close()
    )
    assert "boom in __init__" in str(error), f"the text of the constructor's error is lost: {error}"


def check_env_fns_are_called_once(factory: Factory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with factory([functools.partial(_make_counted_env, folder, i) for i in range(N)]) as venv:
            venv.reset()
        calls = [len(list(Path(folder).glob(f"{i}-*"))) for i in range(N)]
        assert calls == [1] * N, f"the env_fns were called {calls} times"


def check_close(factory: Factory) -> None:
    for in_flight in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            _check_close(factory([functools.partial(_RecordsClose, folder, i) for i in range(N)]), in_flight)
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


class _RecordsClose(CountingEnv):
    def __init__(self, folder: str, env_id: int) -> None:
        super().__init__(env_id)
        self.folder = folder

    def close(self) -> None:
        Path(self.folder, str(self.env_id)).touch()


def _make_counted_env(folder: str, i: int) -> CountingEnv:
    tempfile.NamedTemporaryFile(prefix=f"{i}-", dir=folder, delete=False).close()
    return CountingEnv(i)
