"""Ctrl-C at any place of any call: no later call hangs or returns stale rows, and a reset makes all envs usable.

The sweeps raise KeyboardInterrupt before chosen bytecodes of vecenv and collector. The other tests send real signals.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from multiprocessing import resource_tracker, util
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import ResetNeeded

from collector import AsyncDataCollector, SyncDataCollector
from tests.fuzz.driver import run
from tests.fuzz.interrupts import Fuzz
from tests.support.agent_envs import Herd
from tests.support.backends import BACKENDS, FULL, ON_RAY, PROCESS_BACKENDS, and_ray, on_this_node, one_of
from tests.support.cases import custom
from tests.support.commands import CommandVectorEnv
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.ctrl_c import interrupt_in_request_to_forkserver, interrupting
from tests.support.faulty import Chatty, Counter, DiesOnReset, RaisesElsewhere, counters
from tests.support.interrupts import interrupted
from tests.support.ledger import gone, kill, pids
from tests.support.local_ray import FAR, NEAR
from vecenv import (
    DummyVectorEnv,
    GymnasiumVectorEnv,
    InterruptedCallError,
    ParallelVectorEnv,
    RayVectorEnv,
    RowWiseWrapper,
    SB3VecEnv,
    ShmemVectorEnv,
    ThreadVectorEnv,
    TransformedVectorEnv,
    VectorEnvError,
    WorkerDiedError,
    from_gymnasium,
)
from vecenv.transforms import StepCounter, TimeLimit

remote_backend = and_ray([*PROCESS_BACKENDS, CommandVectorEnv], quick=False)
pytestmark = pytest.mark.usefixtures("ctrl_c")

N = 3
ACTIONS = np.zeros(N, np.int64)
END = 3
"""Length of the episodes of `Ends`."""


class Subject(NamedTuple):
    """What a sweep interrupts: `make` returns it, and `begin` and `step` return the step numbers of its rows."""

    make: Callable[[], Any]
    step: Callable[[Any], list[int]]
    begin: Callable[[Any], list[int]]
    needs_reset: bool = True
    """Whether an interrupted `step` may refuse a further `step` until `begin`."""


# Vector envs.


def times(rows: Any, n: int = N) -> list[int]:
    """Return the step numbers of rows of `Chatty` envs, which must be the same in all columns."""
    obs, *_, info = rows
    found = obs["row"][:, 2].astype(int).tolist()
    assert obs["text"].tolist() == [f"{t}" for t in found]
    assert [(each["env_id"], each["at"]) for each in info] == list(enumerate(found))
    assert len(found) == n
    return found


def vector_env(make: Any, env: Any = Chatty, **options: Any) -> Subject:
    fns = [partial(env, i) for i in range(N)]
    return Subject(lambda: make(fns, num_workers=2, **options), lambda it: times(it.step(ACTIONS)), restarted)


def restarted(venv: Any) -> list[int]:
    if venv.waiting_id:  # the interrupt came after the last instant of a `send`
        venv.recv()
    found = times(venv.reset())
    assert (venv.waiting_id, venv.failed_id, venv.get_env_attr("t")) == ([], [], found)
    return found


def after_a_death(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that comes after the end of an idle worker."""

    def both(venv: Any) -> Any:
        kill(pids(venv)[0])
        with suppress(WorkerDiedError):
            call(venv)

    return both


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda venv: venv.step(ACTIONS),
    "partial": lambda venv: venv.step(ACTIONS[:2], [2, 0], reset=[0]),
    "send_recv": lambda venv: (venv.send(ACTIONS[:1], [1]), venv.send(ACTIONS[1:], [0, 2]), venv.recv()),
    "reset": lambda venv: venv.reset(seed=1),
    "call": lambda venv: venv.get_env_attr("t"),
    "set_state": lambda venv: venv.call("set_wrapper_attr", "x", 1),
    "stats": lambda venv: venv.stats(),
}
CALLS_OF_WORKERS: dict[str, Callable[[Any], Any]] = {
    "restart": after_a_death(lambda venv: venv.reset()),
    "death": after_a_death(lambda venv: venv.step(ACTIONS)),
}


# Layers above the engine.


class Ends(Counter):
    """Env with episodes of three steps. A fourth step shows."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.t >= END, False, info


class HasItsOwnSend(DummyVectorEnv):
    def send(self, *args: Any, **kwargs: Any) -> None:
        super().send(*args, **kwargs)


def counts(obs: Any) -> list[int]:
    """Return the step numbers in observations, which must be the same in the columns of a wrapper."""
    if isinstance(obs, dict) and "step_count" in obs:
        assert obs["step_count"].ravel().tolist() == obs["observation"][:, 2].tolist()
        obs = obs["observation"]
    return obs[:, 2].tolist()


def layer(make: Callable[[Any], Any], env: Any = Counter) -> Subject:
    """Return a layer over a vector env in this process."""
    fns = [partial(env, i) for i in range(N)]

    def begin(envs: Any) -> list[int]:
        result = envs.reset()
        return counts(result[0] if isinstance(result, tuple) else result)  # SB3 returns no infos

    return Subject(lambda: make(fns), lambda envs: counts(envs.step(ACTIONS)[0]), begin)


def facade(**options: Any) -> Subject:
    return layer(lambda fns: GymnasiumVectorEnv(DummyVectorEnv(fns), **options), Ends)


def herd_step(envs: Any) -> list[int]:
    obs, *_, infos = envs.step(dict.fromkeys(envs.agents, ACTIONS))
    assert infos["env_id"].tolist() == [0, 1, 2]
    return obs["cow_2"][:, 1].tolist()


def collector(kind: Any) -> Subject:
    """Return a collector, whose batch is a step: the number is 1 plus the count of wrong transitions. It resets the
    envs itself.
    """

    def step(it: Any) -> list[int]:
        batch = it.next()
        assert batch.mask.all()
        return [1 + int((batch.next.obs[..., 2] != batch.obs[..., 2] + 1).sum())] * N

    def make() -> Any:
        return kind(DummyVectorEnv([partial(Counter, i) for i in range(N)]), None, frames_per_batch=2 * N)

    return Subject(make, step, lambda it: [0] * N, needs_reset=False)


LAYERS = {
    "wrapper": layer(lambda fns: TransformedVectorEnv(DummyVectorEnv(fns), StepCounter())),
    "own send": layer(HasItsOwnSend),
    "pettingzoo": Subject(
        lambda: ParallelVectorEnv([Herd] * N, "dummy"), herd_step, lambda envs: envs.reset()[0]["cow_2"][:, 1].tolist()
    ),
    "NextStep": facade(autoreset_mode="NextStep"),
    "SameStep": facade(autoreset_mode="SameStep"),
    "SameStep, two rounds": facade(autoreset_mode="SameStep", seed_episodes=True),
    "Disabled": facade(autoreset_mode="Disabled"),
    "sb3": layer(lambda fns: SB3VecEnv(DummyVectorEnv(fns)), Ends),
    "sb3, two rounds": layer(
        lambda fns: SB3VecEnv(TransformedVectorEnv(DummyVectorEnv(fns), TimeLimit(99))), Ends
    ),  # the transform leaves the resets to the facade
    "collector": collector(SyncDataCollector),
    "async collector": collector(AsyncDataCollector),
}


def sweep(
    subject: Subject,
    call: Callable[[Any], Any],
    instants: Iterator[tuple[int, ...]],
    spread: bool = False,
    **options: Any,
) -> int:
    """Interrupt a call at these instants, until the call has fewer. Return the number of interrupts.

    After each interrupt, a step raises or returns whole rows. They have the same step numbers, unless the call changes
    some envs only (`spread`). After a reset, all rows are right.
    """
    with closing_(subject.make()) as envs:
        assert set(subject.begin(envs)) == {0}
        for count, numbers in enumerate(instants):
            print(f"interrupts before instants {numbers}")  # for the report of a failure
            raised, _ = interrupted(lambda: call(envs), *numbers, **options)
            if not raised:
                return count
            with suppress(RuntimeError, ResetNeeded) if subject.needs_reset else nullcontext():
                steps = subject.step(envs)
                assert spread or len(set(steps)) == 1
            assert set(subject.begin(envs)) == {0}
            assert set(subject.step(envs)) == {1}
    raise AssertionError("no end")


def closing_(envs: Any) -> Any:
    return envs if hasattr(envs, "__enter__") else closing(envs)


def instants(largest: int, seed: int = 0) -> Iterator[tuple[int]]:
    """Yield instants with random distances of at most `largest`."""
    n, rng = 1, np.random.default_rng(seed)
    while True:
        yield (n,)
        n += int(rng.integers(1, largest + 1))


def distance(backend: Any) -> int:
    """Return the largest distance of instants for calls that start a worker. A command starts ten times as slowly."""
    return 500 if backend is CommandVectorEnv else 200


def pairs(largest: int) -> Iterator[tuple[int, int]]:
    """Yield instants, each with the distance of a second interrupt, which may come while the first is handled."""
    rng = np.random.default_rng(0)
    for (n,) in instants(largest):
        yield n, int(rng.integers(1, 30))


@pytest.mark.guarantee("G8.14", "G8.15", "G8.17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "largest"),
    [
        *((backend, 150) for backend in (DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv)),
        pytest.param(DummyVectorEnv, 4, marks=FULL),
        *(pytest.param(backend, 70, marks=FULL) for backend in [*BACKENDS[1:], CoroutineVectorEnv]),
    ],
)
def test_after_an_interrupt_at_any_bytecode_a_reset_makes_all_usable(backend: Any, largest: int) -> None:
    for k, (name, call) in enumerate(CALLS.items()):
        print(name)
        assert sweep(vector_env(backend), call, instants(largest, largest + k), name == "partial") >= 1


@pytest.mark.parametrize("call", CALLS_OF_WORKERS)
def test_after_an_interrupt_while_a_worker_is_replaced_a_reset_makes_all_usable(remote_backend: Any, call: str) -> None:
    subject = vector_env(remote_backend, **on_this_node(remote_backend))
    assert sweep(subject, CALLS_OF_WORKERS[call], instants(distance(remote_backend)), at_looks=True) > 5


class DiesInSecondReset(Chatty, DiesOnReset):
    """Env 1 ends its process in its second reset."""

    def on_reset(self) -> None:
        if self.id == 1:
            super().on_reset()


def test_after_an_interrupt_while_a_failed_reset_is_tried_again_a_reset_makes_all_usable(remote_backend: Any) -> None:
    subject = vector_env(remote_backend, DiesInSecondReset, on_error="restart", max_restarts=10**6)
    assert sweep(subject, lambda venv: venv.reset(), instants(4 * distance(remote_backend)), at_looks=True) > 5


@pytest.mark.local_ray
@pytest.mark.ray
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", [NEAR, FAR], ids=["near", "far"])
def test_after_an_interrupt_at_any_bytecode_a_reset_makes_the_envs_of_actors_usable(place: Any, call: str) -> None:
    assert sweep(vector_env(RayVectorEnv, **place), CALLS[call], instants(120), call == "partial") > 2


@pytest.mark.parametrize("name", LAYERS)
def test_after_two_interrupts_of_a_layer_a_reset_makes_all_usable(name: str) -> None:
    subject = LAYERS[name]
    is_large = "collector" in name or name == "pettingzoo"
    for call in (subject.step, subject.begin)[: 1 if "collector" in name else 2]:
        assert sweep(subject, call, pairs(60 if is_large else 20), at_looks=True) > 3


@pytest.mark.guarantee("G8.18")
@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
@pytest.mark.parametrize("backend", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
def test_after_an_interrupt_the_next_batch_of_a_collector_begins_with_a_reset_of_all_envs(
    kind: Any, backend: Any
) -> None:
    interrupts_in = [-1]

    def policy(obs: Any) -> Any:
        interrupts_in[0] -= 1
        if interrupts_in[0] == 0:
            raise KeyboardInterrupt
        return ACTIONS[: len(obs)]

    with kind(backend(counters(N)), policy, frames_per_batch=2 * N) as it:
        assert set(it.next().obs[..., 1].ravel().tolist()) == {1}  # the first episode of each env
        interrupts_in[0] = 2
        with pytest.raises(KeyboardInterrupt):
            it.next()
        rows = it.next().flatten()
    assert rows.frames == 2 * N
    for i in range(N):
        _, episode, t, _ = rows.obs[rows.env_ids == i].T
        assert set(episode.tolist()) == {2}
        assert t.tolist() == list(range(len(t)))


@pytest.mark.parametrize("backend", [*one_of(BACKENDS), pytest.param(CoroutineVectorEnv, marks=FULL)])
def test_an_interrupt_of_the_recovery_is_recovered_from(backend: Any) -> None:
    subject = vector_env(backend)
    with subject.make() as venv:
        subject.begin(venv)
        for numbers in instants(150):
            assert interrupted(lambda: venv.step(ACTIONS), 100 + numbers[0] % 150)[0]
            if not interrupted(lambda: venv.reset(), *numbers)[0]:
                break
            assert set(subject.begin(venv)) == {0}
            assert set(subject.step(venv)) == {1}


@FULL
@pytest.mark.filterwarnings("ignore")
def test_random_programs_with_interrupts_and_signals_agree_with_their_oracle() -> None:
    run(Fuzz, [0], count=10)


# Real signals.


class InterruptsParent(Counter):
    """Env that sends Ctrl-C to the parent in its second step, and then hangs if `hangs`."""

    def __init__(self, id: int, hangs: bool = False) -> None:
        super().__init__(id)
        self.parent, self.hangs = 0, hangs

    def on_step(self) -> None:
        if self.t == 2 and self.parent:
            os.kill(self.parent, signal.SIGINT)
            while self.hangs:
                time.sleep(1)


def refused(envs: Any) -> None:
    """Check that all calls but a reset of all envs are refused, and name this reset."""
    assert (envs.waiting_id, envs.ready_id, envs.failed_id) == ([], [], list(range(len(envs))))
    calls: list[Callable[[], Any]] = [
        lambda: envs.step([0, 0]),
        lambda: envs.step([0], [1]),
        lambda: envs.step([0, 0], reset=[0, 1]),
        lambda: envs.send([0, 0]),
        lambda: envs.recv(),
        lambda: envs.reset([1]),
        lambda: envs.get_env_attr("t"),
        lambda: envs.call("has_attr", "t"),
        lambda: envs.seed(1),
        lambda: envs.get_state(),
        lambda: envs.render(),
    ]
    for call in calls:
        with pytest.raises(InterruptedCallError, match=r"call reset\(\)"):
            call()


class Late(Exception):
    """Raised by a signal handler."""


def raise_late(*_: Any) -> None:
    raise Late


@pytest.mark.guarantee("G8.14")
@pytest.mark.parametrize(
    ("handler", "error", "wrapped"),
    [(signal.default_int_handler, KeyboardInterrupt, True), (raise_late, Late, False)],
    ids=["Ctrl-C", "any exception"],
)
def test_after_an_interrupted_call_all_calls_but_a_reset_of_all_envs_are_refused(
    handler: Any, error: Any, wrapped: bool
) -> None:
    signal.signal(signal.SIGINT, handler)
    with ShmemVectorEnv([partial(InterruptsParent, i) for i in range(2)], num_workers=2) as venv:
        envs: Any = RowWiseWrapper(venv) if wrapped else venv
        envs.reset()
        envs.set_env_attr("parent", os.getpid(), [1])
        envs.step([0, 0])
        with pytest.raises(error) as caught:
            envs.step([0, 0])
        assert "call reset() to go on" in "".join(caught.value.__notes__)
        refused(envs)
        assert envs.reset()[0][:, 2].tolist() == [0, 0]
        assert envs.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.guarantee("G8.16")
def test_an_env_that_does_not_return_from_an_interrupted_step_gets_a_new_worker(
    remote_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vecenv.engine.engine.RECOVERY_TIMEOUT", 0.3)
    fns = [partial(Counter, 0), partial(InterruptsParent, 1, hangs=True), partial(Counter, 2)]
    with remote_backend(fns, num_workers=2, **on_this_node(remote_backend)) as venv:
        venv.reset()
        venv.set_env_attr("parent", os.getpid(), [1])
        venv.step(ACTIONS)
        with pytest.raises(KeyboardInterrupt) as caught:
            venv.step([0], [1])
        assert "call reset() to go on" in "".join(caught.value.__notes__)
        assert venv.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert venv.stats()["restarts"] == 1  # of the worker with env 1


class InterruptsInInit(Counter):
    """Env that sends Ctrl-C to the parent in its constructor, and hangs."""

    def __init__(self, id: int, parent: int) -> None:
        os.kill(parent, signal.SIGINT)
        time.sleep(1000)


def test_an_interrupted_constructor_leaves_no_worker(remote_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture for leaks finds leftovers."""
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.5)
    with pytest.raises(KeyboardInterrupt):
        remote_backend([partial(Counter, 0), partial(InterruptsInInit, 1, os.getpid())], num_workers=2)


@pytest.mark.guarantee("G8.20")
def test_an_interrupt_between_send_and_recv_discards_nothing() -> None:
    with ShmemVectorEnv(counters(2), num_workers=2) as venv:
        venv.reset()
        venv.send([3, 4])
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert venv.waiting_id == [0, 1]
        assert venv.recv()[0][:, 2:].tolist() == [[1, 3], [1, 4]]


def test_an_interrupt_while_a_worker_is_spawned_leaves_no_worker() -> None:
    resource_tracker.ensure_running()
    before = psutil.Process().children()
    with interrupting(util, "spawnv_passfds"):
        ShmemVectorEnv(counters(1), context="spawn")
    assert not set(psutil.Process().children()) - set(before)


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
            assert venv.reset()[0][:, 2].tolist() == [0, 0]
            assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]
            other.reset()
            assert pids(other) == first
    finally:
        signal.signal(signal.SIGTERM, before)


class InterruptsItself(Counter):
    """Env with a Ctrl-C in its second step."""

    def on_step(self) -> None:
        if self.t == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("make", [*one_of(BACKENDS), custom, ON_RAY])
def test_an_interrupt_in_the_code_of_an_env_of_this_process(make: Any) -> None:
    """In a worker, the same exception is an error of the env, because a worker has no terminal."""
    with make([partial(InterruptsItself, 0), partial(Counter, 1)]) as venv:
        venv.reset()
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]
        is_users = make in (DummyVectorEnv, custom)
        with pytest.raises(KeyboardInterrupt if is_users else VectorEnvError, match=None if is_users else "Keyboard"):
            venv.step([0, 0])
        assert venv.failed_id == ([0, 1] if is_users else [0])
        assert venv.reset()[0][:, 2].tolist() == [0, 0]
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]


def test_after_an_interrupt_in_gymnasiums_async_vector_env_a_reset_is_enough() -> None:
    options: Any = {"shared_memory": False, "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    inner = gymnasium.vector.AsyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, **options)
    with from_gymnasium(inner) as venv:
        first, _ = venv.reset(seed=1)
        with interrupting(inner, "step_wait", first=True):
            venv.step(np.zeros(2, np.int64))
        assert venv.reset(seed=1)[0].tolist() == first.tolist()
        assert len(venv.step(np.zeros(2, np.int64))[0]) == 2


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
