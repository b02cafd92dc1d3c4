"""Ctrl-C during a call raises KeyboardInterrupt and breaks the vector env, until a reset of all envs.

Later calls do not hang, return stale rows or step an env twice.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import vecenv.engine.engine
import vecenv.engine.lifetime
from tests.support.backends import BACKENDS, ON_RAY, PROCESS_BACKENDS, and_ray, on_this_node, one_of
from tests.support.cases import custom
from tests.support.commands import CommandVectorEnv
from tests.support.ctrl_c import (
    interrupt_at_random,
    interrupt_in_request_to_forkserver,
    interrupted,
    interrupting,
)
from tests.support.faulty import Counter, DiesOnReset, HangsInInit, HangsOnStep, RaisesElsewhere, counters
from tests.support.ledger import CLOSED, STARTED, gone, kill, pids, wait_until
from tests.support.local_ray import FAR, NEAR
from vecenv import (
    DummyVectorEnv,
    GymnasiumVectorEnv,
    InterruptedCallError,
    RayVectorEnv,
    RowWiseWrapper,
    ShmemVectorEnv,
    VectorEnvError,
    WorkerDiedError,
    from_gymnasium,
)
from vecenv.backends.ipc.messages import Channel
from vecenv.backends.pool.command_worker import CommandWorker
from vecenv.backends.pool.process_worker import ProcessWorker
from vecenv.backends.pool.ray_worker import CallChannel, RayWorker
from vecenv.backends.pool.worker_pool import WorkerPool

backend = and_ray(BACKENDS)
remote_backend = and_ray([*PROCESS_BACKENDS, CommandVectorEnv], quick=False)

ACTIONS = np.zeros(2, np.int64)
pytestmark = pytest.mark.usefixtures("ctrl_c")


def handle_of(backend: type) -> Any:
    """Return the class of the parent's side of a worker."""
    return {RayVectorEnv: RayWorker, CommandVectorEnv: CommandWorker}.get(backend, ProcessWorker)


def usable(venv: Any) -> None:
    """Check that a reset makes each env usable, without stale rows."""
    obs, _ = venv.reset()
    assert obs[:, 2].tolist() == [0] * len(obs)
    for t in (1, 2):
        assert venv.step(np.zeros(len(obs), np.int64))[0][:, 2].tolist() == [t] * len(obs)
    assert (venv.waiting_id, venv.failed_id) == ([], [])


@pytest.mark.guarantee("G8.17")
def test_after_an_interrupt_in_the_engine_a_reset_makes_all_usable(backend: Any) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "step": lambda: venv.step(ACTIONS),
        "reset": lambda: venv.reset(),
        "partial": lambda: venv.step([0], [1]),
        "recv": lambda: (venv.send(ACTIONS), venv.recv()),
    }
    with backend(counters(2), num_workers=2) as venv:
        usable(venv)
        for call, moment, first in itertools.product(calls, ("send", "wait", "take"), (True, False)):
            print(call, moment, first)
            with interrupting(venv.engine.backend, moment, first):
                calls[call]()
            assert venv.waiting_id == []
            usable(venv)


MESSAGES = [(Channel, "post"), (Channel, "receive"), (Channel, "take"), (WorkerPool, "encode_own")]
CALLS_OF_ACTORS = [(CallChannel, "start"), (CallChannel, "post"), (CallChannel, "receive"), (CallChannel, "take")]


def test_after_an_interrupt_in_the_middle_of_a_message_a_reset_makes_all_usable(remote_backend: Any) -> None:
    place = NEAR if remote_backend is RayVectorEnv else {}  # where messages are not calls
    with remote_backend(counters(4), num_workers=2, step_timeout=20, **place) as venv:
        is_usable_after_interrupts(venv, MESSAGES)


@pytest.mark.local_ray
@pytest.mark.ray
def test_after_an_interrupt_in_the_middle_of_a_call_of_an_actor_a_reset_makes_all_usable() -> None:
    with RayVectorEnv(counters(4), num_workers=2, step_timeout=20, **FAR) as venv:
        is_usable_after_interrupts(venv, CALLS_OF_ACTORS)


def is_usable_after_interrupts(venv: Any, moments: list[tuple[Any, str]]) -> None:
    venv.reset()
    for (owner, moment), first in itertools.product(moments, (True, False)):
        print(owner.__name__, moment, first)
        with interrupting(owner, moment, first):
            venv.reset(seed=1)  # with payloads, and replies
            venv.step(np.zeros(4, np.int64))
            venv.get_env_attr("t")
        usable(venv)


def refused(venv: Any) -> None:
    """Check that all calls but a reset of all envs are refused, and name this reset."""
    assert (venv.waiting_id, venv.ready_id, venv.failed_id) == ([], [], list(range(len(venv))))
    calls: list[Callable[[], Any]] = [
        lambda: venv.step(ACTIONS),
        lambda: venv.step([0], [1]),
        lambda: venv.step(ACTIONS, reset=[0, 1]),
        lambda: venv.send(ACTIONS),
        lambda: venv.recv(),
        lambda: venv.reset([1]),
        lambda: venv.get_env_attr("t"),
        lambda: venv.call("has_attr", "t"),
        lambda: venv.seed(1),
        lambda: venv.get_state(),
        lambda: venv.render(),
    ]
    for call in calls:
        with pytest.raises(InterruptedCallError, match=r"call reset\(\)"):
            call()


@pytest.mark.guarantee("G8.14")
@pytest.mark.parametrize("call", ["step", "partial", "recv", "reset", "call"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_after_an_interrupted_call_all_calls_but_a_reset_of_all_envs_are_refused(call: str, wrapped: bool) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "step": lambda: envs.step(ACTIONS),
        "partial": lambda: envs.step([0], [1]),
        "recv": lambda: (envs.send([0], [1]), envs.recv()),
        "reset": lambda: envs.reset([1]),
        "call": lambda: envs.get_env_attr("t"),
    }
    with DummyVectorEnv(counters(2)) as venv:
        envs = RowWiseWrapper(venv) if wrapped else venv
        envs.reset()
        moments: list[tuple[Any, str]] = [(venv.engine.backend, "call")]
        if call != "call":
            moments = [(venv.engine.backend, "wait"), (venv.engine.results.infos, "rows")]
            moments += [(envs, "map_reset" if call == "reset" else "map_round")] * wrapped
        for owner, moment in moments:
            with interrupting(owner, moment):
                calls[call]()
            refused(envs)
            usable(envs)


@pytest.mark.guarantee("G8.14")
def test_a_signal_handler_that_raises_any_exception_interrupts() -> None:
    class Late(Exception):
        pass

    def raise_late(*_: Any) -> None:
        raise Late

    with DummyVectorEnv(counters(2)) as venv:
        venv.reset()
        before = signal.signal(signal.SIGINT, raise_late)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(venv.engine.backend, "wait", interrupted(venv.engine.backend.wait))
            with pytest.raises(Late) as caught:
                venv.step(ACTIONS)
        signal.signal(signal.SIGINT, before)
        assert "call reset() to go on" in "".join(caught.value.__notes__)
        refused(venv)
        usable(venv)


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_the_recovery_of_an_engine_makes_resets_of_some_envs_possible(on_error: str) -> None:
    """Collectors use this recovery, because they reset envs in a step."""
    with DummyVectorEnv(counters(3), on_error=on_error) as venv:
        venv.reset()
        with interrupting(venv.engine.backend, "wait", first=True):
            venv.step([0, 0], [0, 2])
        venv.engine.recover()
        assert venv.failed_id == [0, 1, 2]
        assert venv.step([0] * 3, reset=[True] * 3)[0][:, 2].tolist() == [0, 0, 0]
        assert venv.step([0] * 3)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.guarantee("G8.16")
def test_an_env_that_does_not_return_from_an_interrupted_step_gets_a_new_worker(
    remote_backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vecenv.engine.engine, "RECOVERY_TIMEOUT", 0.3)
    seen = tmp_path / "seen"
    fns = [partial(Counter, 0), partial(HangsOnStep, 1, at=1, seen=str(seen)), partial(Counter, 2)]
    with remote_backend(fns, num_workers=2, **on_this_node(remote_backend)) as venv:
        venv.reset()
        with interrupting(venv.engine.backend, "wait", first=True) as caught:
            venv.step([0], [1])
        wait_until(seen.exists)  # before that the step would be discarded
        begin = time.monotonic()
        assert "it waits for envs [1]" in "".join(caught.value.__notes__)
        assert venv.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert time.monotonic() - begin < (STARTED if remote_backend is RayVectorEnv else CLOSED)
        assert venv.stats()["restarts"] == 1  # of the worker with env 1


@pytest.mark.guarantee("G8.15")
def test_what_is_in_flight_besides_an_interrupted_call_is_abandoned_with_it(remote_backend: Any) -> None:
    with remote_backend(counters(3), wait_num=1) as venv:
        venv.reset()
        venv.send([0] * 3)
        with interrupting(venv.engine.backend, "wait", first=True):
            venv.recv()
        assert venv.waiting_id == []
        assert venv.reset()[0][:, 2].tolist() == [0] * 3
        assert len(venv.step([0] * 3)[0]) >= 1


@pytest.mark.parametrize(("of", "moment"), [(None, "launch"), (WorkerPool, "_await_ready")])
def test_an_interrupted_constructor_leaves_no_worker(
    remote_backend: Any, of: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if an env hangs in its constructor. The fixture for leaks finds leftovers."""
    monkeypatch.setattr(vecenv.engine.lifetime, "CLOSE_TIMEOUT", 0.5)
    begin = time.monotonic()
    with interrupting(of or handle_of(remote_backend), moment, first=of is not None):
        remote_backend([partial(Counter, 0), partial(HangsInInit, 1)], num_workers=2)
    assert time.monotonic() - begin < (STARTED if remote_backend is RayVectorEnv else CLOSED)


def test_an_interrupt_while_a_worker_is_spawned_leaves_no_worker() -> None:
    resource_tracker.ensure_running()
    before = psutil.Process().children()
    with interrupting(util, "spawnv_passfds"):
        ShmemVectorEnv(counters(1), context="spawn")
    assert not set(psutil.Process().children()) - set(before)


def test_an_interrupt_while_a_worker_is_started_again_leaves_no_half_started_one(remote_backend: Any) -> None:
    with remote_backend(counters(1), **on_this_node(remote_backend)) as venv:
        venv.reset()
        pool = venv.engine.backend.pool
        for of, moment in ((handle_of(remote_backend), "launch"), (pool, "_await_ready"), (pool, "post")):
            kill(pids(venv)[0])
            with interrupting(of, moment, first=moment == "post"):
                venv.reset()
            assert not pool.workers[0].alive
            venv.reset()
            assert venv.step([0])[0][:, 2].tolist() == [1]


@pytest.mark.guarantee("G8.20")
def test_an_interrupt_between_send_and_recv_discards_nothing() -> None:
    with ShmemVectorEnv(counters(2), num_workers=2) as venv:
        venv.reset()
        venv.send([3, 4])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert venv.waiting_id == [0, 1]
        assert venv.recv()[0][:, 2:].tolist() == [[1, 3], [1, 4]]


def end_program(*_: Any) -> None:
    raise SystemExit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("cause", ["restart", "recycling"])
def test_an_interrupt_while_the_forkserver_is_asked_for_a_worker_ends_no_other_worker(cause: str, number: int) -> None:
    """The forkserver would end all workers with it."""
    before = signal.signal(signal.SIGTERM, end_program)
    options = {"recycle_after": 1} if cause == "recycling" else {}
    try:
        with ShmemVectorEnv(counters(2)) as other, ShmemVectorEnv(counters(2), num_workers=2, **options) as venv:
            first, both = pids(other), np.ones(2, bool)
            venv.reset()
            if cause == "restart":
                kill(pids(venv)[0])
            rounds = (venv.step([0, 0], reset=both) for _ in range(10_000))
            with pytest.raises((KeyboardInterrupt, SystemExit)), interrupt_in_request_to_forkserver(number):
                list(rounds)
            usable(venv)
            other.reset()
            assert pids(other) == first
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("moment", ["restart", "send"])
def test_an_interrupt_while_a_failed_reset_is_tried_again(remote_backend: Any, moment: str) -> None:
    fns = [partial(Counter, 0), partial(DiesOnReset, 1), partial(Counter, 2)]
    with remote_backend(fns, num_workers=3, on_error="restart") as venv:
        venv.reset()
        venv.send([0] * 3, reset=[1])
        with interrupting(venv.engine.backend, moment):
            venv.recv()
        assert venv.waiting_id == []
        venv.engine.recover()
        assert venv.reset([0, 2])[0][:, 2].tolist() == [0, 0]
        assert venv.step([0, 0], [0, 2])[0][:, 2].tolist() == [1, 1]


def test_an_interrupt_in_the_clean_up_of_a_dead_worker_loses_it_once(
    remote_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = handle_of(remote_backend)
    with remote_backend(counters(2), num_workers=2) as venv:
        venv.reset()
        kill(pids(venv)[0])
        with monkeypatch.context() as patch:
            patch.setattr(handle, "clean_up", interrupted(handle.clean_up))
            with pytest.raises((KeyboardInterrupt, WorkerDiedError)):
                venv.step(ACTIONS)
        assert venv.alive() == [False, True]
        usable(venv)


class InterruptsItself(Counter):
    """Env with a Ctrl-C in its second step."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.t == 2:
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("make", [*one_of(BACKENDS), custom, ON_RAY])
def test_an_interrupt_in_the_code_of_an_env_of_this_process(make: Any) -> None:
    """In a worker, the same exception is an error of the env, because a worker has no terminal."""
    with make([partial(InterruptsItself, 0), partial(Counter, 1)]) as venv:
        venv.reset()
        assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 1]
        is_users = make in (DummyVectorEnv, custom)
        with pytest.raises(KeyboardInterrupt if is_users else VectorEnvError, match=None if is_users else "Keyboard"):
            venv.step(ACTIONS)
        assert venv.failed_id == ([0, 1] if is_users else [0])
        assert venv.reset()[0][:, 2].tolist() == [0, 0]
        assert venv.step(ACTIONS)[0][:, 2].tolist() == [1, 1]


def test_interrupts_at_random_moments_of_dummy() -> None:
    envs = 8
    with DummyVectorEnv(counters(envs)) as venv:
        venv.reset()
        assert interrupt_at_random(lambda: venv.step([0] * envs), lambda: usable(venv), 200, longest=4e-4) == 200


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_after_an_interrupted_step_of_the_gymnasium_facade_a_reset_is_enough(mode: AutoresetMode) -> None:
    with DummyVectorEnv(counters(2)) as venv:
        envs = GymnasiumVectorEnv(venv, autoreset_mode=mode)
        envs.reset()
        for moment in ("send", "wait", "take") * 2:
            with interrupting(venv.engine.backend, moment):
                envs.step(ACTIONS)
            mask = {"reset_mask": np.ones(2, np.bool_)}
            for call in (partial(envs.step, ACTIONS), partial(envs.reset, options=mask), partial(envs.get_attr, "t")):
                with pytest.raises(InterruptedCallError, match=r"call reset\(\)"):
                    call()
            assert envs.reset()[0][:, 2].tolist() == [0, 0]
            assert envs.step(ACTIONS)[0][:, 2].tolist() == [1, 1]


def test_a_facade_with_a_pending_call_closes_after_an_interrupt() -> None:
    with DummyVectorEnv(counters(2)) as venv:
        envs = GymnasiumVectorEnv(venv)
        envs.reset()
        envs.step_async(ACTIONS)
        with interrupting(venv.engine.backend, "wait", first=True):
            envs.step_wait(timeout=5)
        with pytest.warns(UserWarning, match="while waiting for a pending call to `step`"):
            envs.close(timeout=1)
        assert venv.is_closed


def test_after_an_interrupt_in_gymnasiums_async_vector_env_a_reset_is_enough() -> None:
    options: Any = {"shared_memory": False, "autoreset_mode": AutoresetMode.SAME_STEP}
    inner = gymnasium.vector.AsyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, **options)
    with from_gymnasium(inner) as venv:
        first, _ = venv.reset(seed=1)
        with interrupting(inner, "step_wait", first=True):
            venv.step(ACTIONS)
        assert venv.reset(seed=1)[0].tolist() == first.tolist()
        assert len(venv.step(ACTIONS)[0]) == 2


class InterruptsInClose(Counter):
    """Env that sends Ctrl-C to the parent in `close`, and hangs."""

    def __init__(self, id: int, parent: int) -> None:
        super().__init__(id)
        self.parent = parent

    def close(self) -> None:
        os.kill(self.parent, signal.SIGINT)
        time.sleep(1000)


def test_an_interrupt_in_close_leaves_nothing_behind(remote_backend: Any) -> None:
    venv = remote_backend([partial(InterruptsInClose, 0, os.getpid()), *counters(2)[1:]], num_workers=2)
    venv.reset()
    left = pids(venv)
    with pytest.raises(KeyboardInterrupt):
        venv.close()
    assert all(gone(pid) for pid in left)
    venv.close()


class InterruptedInClose(Counter):
    def close(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupt_while_an_env_of_dummy_is_closed_is_raised_once_all_are() -> None:
    venv = DummyVectorEnv([partial(InterruptedInClose, 0), partial(RaisesElsewhere, 1)])
    with pytest.raises(KeyboardInterrupt):
        venv.close()
    assert venv.is_closed
    venv.close()


@pytest.mark.parametrize("backend", one_of([DummyVectorEnv, *PROCESS_BACKENDS]))
def test_the_handler_of_ctrl_c_is_the_users_own(backend: Any) -> None:
    """A handler of vecenv would conflict with notebooks and libraries, which set handlers for a while."""
    for handler in (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, handler)
        with backend(counters(1)) as venv:
            venv.reset()
            assert signal.getsignal(signal.SIGINT) == handler
        assert signal.getsignal(signal.SIGINT) == handler
