"""Ctrl-C at any place of any call: no later call hangs or returns stale rows, and a reset makes all envs usable.

The sweeps raise KeyboardInterrupt once at each place of vecenv and collector that a call reaches. The other tests send
real signals.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from collector import AsyncDataCollector, SyncDataCollector
from tests.fuzz.driver import run
from tests.fuzz.envs import Told
from tests.fuzz.interrupts import Fuzz
from tests.support.agent_envs import Herd
from tests.support.backends import FULL, PROCESS_BACKENDS, RAY, and_ray, on_this_node
from tests.support.cases import custom
from tests.support.commands import CommandVectorEnv
from tests.support.coroutine_envs import CoroutineVectorEnv
from tests.support.ctrl_c import interrupt_in_request_to_forkserver, interrupting
from tests.support.faulty import Counter, Does, InterruptsParent, counters
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
    SubprocVectorEnv,
    ThreadVectorEnv,
    TransformedVectorEnv,
    WorkerDiedError,
    from_gymnasium,
)
from vecenv.transforms import StepCounter, TimeLimit

remote_backend = and_ray(PROCESS_BACKENDS, quick=False)
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


TELLS = partial(Told, objects=True, length=10**9)
"""Env with texts and infos, which do not travel in the rows of the arena."""


def times(rows: Any) -> list[int]:
    """Return the step numbers of rows of `TELLS` envs, which must be the same in all columns."""
    obs, *_, info = rows
    found = obs["x"][:, 2].astype(int).tolist()
    assert obs["text"].tolist() == [f"{t}" for t in found]
    told = [t if "restarted" in each else each["at"] for each, t in zip(info, found, strict=True)]
    assert [(each["env_id"], at) for each, at in zip(info, told, strict=True)] == list(enumerate(found))
    assert len(found) == N
    return found


def vector_env(make: Any, env: Any = TELLS, **options: Any) -> Subject:
    fns = [partial(env, i) for i in range(N)]
    return Subject(lambda: make(fns, num_workers=2, **options), lambda it: times(it.step(ACTIONS)), restarted)


def restarted(venv: Any) -> list[int]:
    if venv.waiting_id:  # the interrupt came after the last instant of a `send`
        venv.recv()
    found = times(venv.reset())
    assert (venv.waiting_id, venv.failed_id, venv.get_env_attr("t")) == ([], [], found)
    return found


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda venv: venv.step(ACTIONS),
    "partial": lambda venv: venv.step(ACTIONS[:2], [2, 0], reset=[0]),
    "send_recv": lambda venv: (venv.send(ACTIONS[:1], [1]), venv.send(ACTIONS[1:], [0, 2]), venv.recv()),
    "reset": lambda venv: venv.reset(seed=1),
    "call": lambda venv: venv.call("set_wrapper_attr", "x", 1),
    "stats": lambda venv: venv.stats(),
}


def breaks_off(venv: Any) -> None:
    assert interrupted(lambda: venv.step(ACTIONS), 150)[0]


def loses_a_worker(venv: Any) -> None:
    kill(pids(venv)[0])


def survives(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that ignores the error of a dead worker."""

    def both(venv: Any) -> None:
        with suppress(WorkerDiedError):
            call(venv)

    return both


# Layers above the engine.


class Ends(Counter):
    """Env with episodes of three steps. A fourth step shows."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.t >= END, False, info


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


LAYERS: dict[str, dict[str, Subject]] = {
    "wrappers": {
        "transforms": layer(lambda fns: TransformedVectorEnv(DummyVectorEnv(fns), StepCounter())),
        "pettingzoo": Subject(
            lambda: ParallelVectorEnv([Herd] * N, "dummy"),
            herd_step,
            lambda envs: envs.reset()[0]["cow_2"][:, 1].tolist(),
        ),
    },
    "facades": {
        "NextStep": facade(autoreset_mode="NextStep"),
        "SameStep": facade(autoreset_mode="SameStep"),
        "SameStep, two rounds": facade(autoreset_mode="SameStep", seed_episodes=True),
        "Disabled": facade(autoreset_mode="Disabled"),
        "sb3": layer(lambda fns: SB3VecEnv(DummyVectorEnv(fns)), Ends),
        # the transform leaves the resets to the facade
        "sb3, two rounds": layer(lambda fns: SB3VecEnv(TransformedVectorEnv(DummyVectorEnv(fns), TimeLimit(99))), Ends),
    },
    "collectors": {"sync": collector(SyncDataCollector), "async": collector(AsyncDataCollector)},
}


def sweep(
    subject: Subject,
    call: Callable[[Any], Any],
    places: set[Any],
    before: Callable[[Any], Any] = lambda envs: None,
    stride: int = 1,
    twice: bool = False,
    spread: bool = False,
) -> int:
    """Interrupt the call at each place (with `stride`: at some places) that is not in the set, and add the places.

    Return the number of interrupts. With `twice`, a second interrupt follows, perhaps while the first is handled.
    After each interrupt, a step raises or returns whole rows. They have the same step numbers, unless the call changes
    some envs only (`spread`). After a reset, all rows are right.
    """
    count = 0
    with closing_(subject.make()) as envs:
        assert set(subject.begin(envs)) == {0}
        while True:
            before(envs)
            numbers = (stride, 1 + 7 * count % 30) if twice else (stride,)
            if not interrupted(lambda: call(envs), *numbers, at_looks=True, places=places)[0]:
                return count
            count += 1
            with suppress(RuntimeError, ResetNeeded) if subject.needs_reset else nullcontext():
                steps = subject.step(envs)
                assert spread or len(set(steps)) == 1
            assert set(subject.begin(envs)) == {0}
            assert set(subject.step(envs)) == {1}


def closing_(envs: Any) -> Any:
    return envs if hasattr(envs, "__enter__") else closing(envs)


@pytest.mark.guarantee("G8.14", "G8.15", "G8.17")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("make", "stride"),
    [
        (DummyVectorEnv, 1),
        (ShmemVectorEnv, 3),
        *(
            pytest.param(make, 1, marks=FULL)
            for make in (ThreadVectorEnv, ShmemVectorEnv, SubprocVectorEnv, CoroutineVectorEnv)
        ),
        *(pytest.param(partial(RayVectorEnv, **place), 3, marks=RAY) for place in (NEAR, FAR)),
    ],
)
def test_after_an_interrupt_at_any_place_a_reset_makes_all_usable(make: Any, stride: int) -> None:
    places: set[Any] = set()
    for name, call in CALLS.items():
        print(name)  # for the report of a failure
        sweep(vector_env(make), call, places, stride=stride, spread=name == "partial")
    assert len(places) > 200


class FailsInReset(Told):
    """Env that raises in its next `fails` resets."""

    fails = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.fails:
            self.fails -= 1
            raise ArithmeticError
        return super().reset(seed=seed, options=options)


def fails_twice(venv: Any) -> None:
    venv.set_env_attr("fails", 2)


RESTARTS: Any = {"on_error": "restart", "max_restarts": 10**6}
BROKEN_OFF: Any = TELLS, {}, breaks_off
ABSORBED: Any = TELLS, RESTARTS, breaks_off
RETRIED: Any = partial(FailsInReset, objects=True, length=10**9), RESTARTS, fails_twice


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (DummyVectorEnv, RETRIED),
        (DummyVectorEnv, ABSORBED),
        *(pytest.param(ShmemVectorEnv, case, marks=FULL) for case in (RETRIED, ABSORBED)),
        *(pytest.param(make, BROKEN_OFF, marks=FULL) for make in (DummyVectorEnv, ThreadVectorEnv, ShmemVectorEnv)),
    ],
)
def test_an_interrupt_of_a_reset_that_recovers_or_is_tried_again_is_recovered_from(make: Any, case: Any) -> None:
    env, options, before = case
    assert sweep(vector_env(make, env, **options), lambda venv: venv.reset(), set(), before, stride=5) > 10


@pytest.mark.guarantee("G8.9")
def test_after_an_interrupt_and_a_refused_reset_truncated_rows_hold_the_previous_observations() -> None:
    """Of all envs, whether the interrupted call stepped them or not."""
    with DummyVectorEnv([partial(TELLS, i) for i in range(N)], **RESTARTS) as venv:
        venv.reset()
        venv.step(ACTIONS)
        with interrupting(venv.engine.backend, "wait"):
            venv.step([0], [0])
        with pytest.raises(ValueError, match="1 seeds for 3 envs"):
            venv.reset(seed=[1])
        assert times(venv.step(ACTIONS)) == [1] * N


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("call", ["reset", "step"])
def test_after_an_interrupt_while_a_worker_is_replaced_a_reset_makes_all_usable(remote_backend: Any, call: str) -> None:
    """Only at some places, because each interrupt costs a new worker.

    An interrupt between `accept` and the next bytecode leaves the socket to the garbage collector.
    """
    subject = vector_env(remote_backend, **on_this_node(remote_backend))
    assert sweep(subject, survives(CALLS[call]), set(), loses_a_worker, stride=37) > 5


@pytest.mark.parametrize(
    "backend",
    [ShmemVectorEnv, pytest.param(CommandVectorEnv, marks=FULL), pytest.param(RayVectorEnv, marks=RAY)],
)
def test_after_an_interrupt_while_a_dead_worker_is_cleaned_up_a_reset_makes_all_usable(backend: Any) -> None:
    with backend(counters(2), num_workers=2, **on_this_node(backend)) as venv:
        venv.reset()
        kill(pids(venv)[0])
        with interrupting(venv.engine.backend.pool.workers[0].channel, "close"):
            venv.step([0, 0])
        assert venv.alive() == [False, True]
        assert venv.reset()[0][:, 2].tolist() == [0, 0]


@pytest.mark.parametrize("stride", [5, pytest.param(2, marks=FULL)])
@pytest.mark.parametrize("names", LAYERS)
def test_after_two_interrupts_of_a_layer_a_reset_makes_all_usable(names: str, stride: int) -> None:
    places: set[Any] = set()
    for name, subject in LAYERS[names].items():
        print(name)  # for the report of a failure
        for call in (subject.step, subject.begin):
            sweep(subject, call, places, stride=stride, twice=True)
    assert len(places) > 200


@FULL
@pytest.mark.filterwarnings("ignore")
def test_random_programs_with_interrupts_and_signals_agree_with_their_oracle() -> None:
    run(Fuzz, [0], count=10)


# Real signals.


def refused(envs: Any) -> None:
    """Check that all calls but a reset of all envs are refused, and name this reset."""
    assert (envs.waiting_id, envs.ready_id, envs.failed_id) == ([], [], list(range(len(envs))))
    for call in (
        lambda: envs.step([0, 0]),
        lambda: envs.step([0, 0], reset=[0, 1]),
        lambda: envs.recv(),
        lambda: envs.reset([1]),
        lambda: envs.get_env_attr("t"),
        lambda: envs.seed(1),
        lambda: envs.get_state(),
        lambda: envs.render(),
    ):
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
    with ShmemVectorEnv([partial(InterruptsParent, i, hangs=False) for i in range(2)], num_workers=2) as venv:
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
    fns = counters(3, env1=InterruptsParent)
    with remote_backend(fns, num_workers=2, **on_this_node(remote_backend)) as venv:
        venv.reset()
        venv.set_env_attr("parent", os.getpid(), [1])
        venv.step(ACTIONS)
        with pytest.raises(KeyboardInterrupt):
            venv.step([0], [1])
        assert venv.reset()[0][:, 2].tolist() == [0, 0, 0]
        assert venv.stats()["restarts"] == 1  # of the worker with env 1


@pytest.mark.parametrize("place", ["init", "close"])
def test_an_interrupted_constructor_or_close_leaves_no_worker(
    remote_backend: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture for leaks finds leftovers."""
    monkeypatch.setattr("vecenv.engine.lifetime.CLOSE_TIMEOUT", 0.5)
    fns = counters(2, env1=partial(InterruptsParent, place=place, parent=os.getpid()))
    if place == "init":
        with pytest.raises(KeyboardInterrupt):
            remote_backend(fns, num_workers=2)
        return
    venv = remote_backend(fns, num_workers=2)
    left = pids(venv)
    with pytest.raises(KeyboardInterrupt):
        venv.close()
    assert all(gone(pid) for pid in left)
    venv.close()


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


@pytest.mark.parametrize(
    ("cause", "number"), [("restart", signal.SIGINT), pytest.param("recycling", signal.SIGTERM, marks=FULL)]
)
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


def test_a_handler_of_the_program_is_called_after_the_request_to_the_forkserver_and_stays() -> None:
    seen: list[Any] = []

    def note(*_: Any) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    signal.signal(signal.SIGINT, note)
    with ShmemVectorEnv(counters(2), num_workers=2) as venv:
        venv.reset()
        kill(pids(venv)[0])
        with interrupt_in_request_to_forkserver(signal.SIGINT):
            venv.reset()
        assert seen == [note]
        assert signal.getsignal(signal.SIGINT) is note
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("make", [DummyVectorEnv, custom])
def test_an_interrupt_in_the_code_of_an_env_of_this_process(make: Any) -> None:
    """In a worker or thread, the same exception is an error of the env, as the table of faults says."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with make([partial(Does, 0, 2, interrupt), partial(Counter, 1)]) as venv:
        venv.reset()
        assert venv.step([0, 0])[0][:, 2].tolist() == [1, 1]
        with pytest.raises(KeyboardInterrupt):
            venv.step([0, 0])
        assert venv.failed_id == [0, 1]
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


def test_an_interrupt_while_an_env_of_dummy_is_closed_is_raised_once_all_are() -> None:
    closed: list[int] = []

    class Closes(Counter):
        def close(self) -> None:
            closed.append(self.id)
            if self.id == 0:
                raise KeyboardInterrupt

    venv = DummyVectorEnv([partial(Closes, i) for i in range(2)])
    with pytest.raises(KeyboardInterrupt):
        venv.close()
    assert (venv.is_closed, closed) == (True, [0, 1])
    venv.close()
