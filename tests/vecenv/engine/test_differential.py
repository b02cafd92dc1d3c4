"""A program gives the same log, bit for bit, with each backend, number of workers and start method."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.support.backends import BACKENDS, FULL, RAY
from tests.support.cases import NEAR_ON_RAY, TAXI, WITH_TWO_WORKERS, equal_bits, sharing
from tests.support.local_ray import FAR
from tests.support.programs import TEAMS, log_of, program, team
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv, nest
from vecenv.testing import Gates
from vecenv.testing.model import ReferenceEnvs

ARRANGEMENTS = [sharing(cls, workers) for cls in BACKENDS[1:] for workers in (1, 2, 3)]
ON_RAY = [pytest.param(sharing(RayVectorEnv, 2, **where), marks=RAY) for where in (FAR, {})]


@functools.lru_cache
def on_dummy(name, seed, length):
    """Return the program of this seed and its log in this process."""
    operations = program(len(TEAMS[name]), seed, length)
    with DummyVectorEnv(team(name)) as venv:
        log = log_of(venv, operations)
    assert len({entry[0][0] for entry in log}) > 2, "the program does nothing worth comparing"
    return operations, log


def assert_same_log(make, name, seed, length):
    operations, want = on_dummy(name, seed, length)
    with make(team(name)) as venv:
        for turn, (left, right) in enumerate(zip(want, log_of(venv, operations), strict=True)):
            assert left == right, f"operation {turn} of seed {seed} differs on {venv!r}"


@pytest.mark.guarantee("G6.4")
@pytest.mark.parametrize("name", ["misfits", "rich"])
@pytest.mark.parametrize("make", [*WITH_TWO_WORKERS, NEAR_ON_RAY], ids=lambda make: make.__name__)
def test_a_program_has_one_log_on_every_backend(make, name):
    assert_same_log(make, name, seed=0, length=200)


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize(
    "make",
    [*(pytest.param(make, marks=FULL) for make in ARRANGEMENTS), *ON_RAY],
    ids=lambda make: make.__name__,
)
def test_more_programs_have_one_log_on_every_backend(make, name):
    assert_same_log(make, name, seed=1, length=60)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TEAMS)
def test_many_programs_have_one_log_on_every_backend(name):
    for seed in range(100, 140):
        for make in (*ARRANGEMENTS, *(sharing(cls, len(TEAMS[name])) for cls in BACKENDS[1:3])):
            assert_same_log(make, name, seed, length=150)


@FULL
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_the_start_method_makes_no_difference(context):
    assert_same_log(sharing(ShmemVectorEnv, 2, context=context), "objects", seed=7, length=25)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "seeds"),
    [
        (ShmemVectorEnv, 6),
        *(pytest.param(cls, 20, marks=FULL) for cls in (SubprocVectorEnv, ThreadVectorEnv)),
        *(pytest.param(cls, 400, marks=pytest.mark.slow) for cls in (ShmemVectorEnv, SubprocVectorEnv)),
        pytest.param(RayVectorEnv, 4, marks=RAY),
    ],
)
def test_rounds_in_flight_agree_with_the_model(backend, seeds):
    """Gates open in random order, but the results must not depend on time."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        n, options = int(rng.integers(2, 5)), {"form": ["array", "dict"][seed % 2], "length": 3}
        wait_num = int(rng.integers(1, n + 1))
        with Gates(n, **options) as gates, backend(gates.env_fns, wait_num=wait_num) as venv:
            waiting = random_rounds(venv, gates, ReferenceEnvs(n, **options), rng)
            gates.open(*waiting)


def random_rounds(venv, gates, reference, rng, turns=40):
    """Send, receive and reset some envs. Return the envs in flight, with their expected answers."""
    waiting = {}  # in the order of sending
    if not venv.is_async:  # if the call waits for all envs in flight
        gates.open(times=2 * turns)
    let_through = gates.open if venv.is_async else lambda *ids: None

    def some(ids):
        return rng.permutation(ids)[: rng.integers(1, len(ids) + 1)].tolist()

    for turn in range(turns):
        ready = [i for i in range(len(venv)) if i not in waiting]
        assert (venv.ready_id, venv.waiting_id, venv.failed_id) == (ready, sorted(waiting), [])
        kind = rng.choice(["send", "send", "receive", "receive", "reset"])
        if kind == "receive" and waiting:
            ids = sorted(rng.permutation(list(waiting))[: venv.wait_num].tolist()) if venv.is_async else list(waiting)
            let_through(*ids)
            reference.compare(ids, venv.recv(), [waiting.pop(i) for i in ids])
        elif kind == "reset" and ready:
            ids = some(ready)
            let_through(*ids)
            reference.compare(ids, venv.reset(ids, seed=turn), [reference.reset(i, seed=turn + i) for i in ids])
        elif kind == "send" and ready:
            ids = some(ready)
            resets = [i for i in ids if rng.random() < 0.3]
            venv.send([turn] * len(ids), ids, reset=resets)
            waiting |= {i: reference.reset(i) if i in resets else reference.step(i, turn) for i in ids}
        for i in list(waiting)[:1]:
            with pytest.raises(RuntimeError, match=f"environment {i} which is stepping"):
                venv.reset(i)
    return waiting


@pytest.mark.guarantee("G1.1")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", TAXI, "Blackjack-v1"])
def test_real_envs_do_what_gymnasium_sync_vector_env_does(env_id):
    env_fns, done = [lambda: gymnasium.make(env_id, max_episode_steps=25)] * 3, np.zeros(3, np.bool_)
    peer = SyncVectorEnv(env_fns)
    peer.action_space.seed(1)
    with DummyVectorEnv(env_fns) as venv:
        got, want = venv.reset(seed=11)[0], peer.reset(seed=11)[0]
        for _ in range(60):
            assert all(map(equal_bits, nest.leaves(got), nest.leaves(want)))
            action = peer.action_space.sample()
            got, want = venv.step(action, reset=done)[:4], peer.step(action)[:4]
            done = got[2] | got[3]
    peer.close()
