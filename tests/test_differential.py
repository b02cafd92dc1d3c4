"""The same program, two ways: every backend, number of workers and start method gives the same log, bit for bit."""

import functools
import hashlib

import gymnasium
import numpy as np
import pytest
from cases import NEAR_ON_RAY, WITH_TWO_WORKERS, sharing
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from programs import TEAMS, described, log_of, program, team

from tests.backends import BACKENDS, FULL, RAY, and_ray
from tests.local_ray import FAR
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.testing import Gates
from vecenv.testing.model import Twins

waiting_backend = and_ray([ShmemVectorEnv, SubprocVectorEnv])

ARRANGEMENTS = [sharing(cls, workers) for cls in BACKENDS[1:] for workers in (1, 2, 3)]
ON_RAY = [pytest.param(sharing(RayVectorEnv, 2, **where), marks=RAY) for where in (FAR, {})]


@functools.lru_cache
def on_dummy(name, seed, length):
    """The program of this seed, and its log in this process."""
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
    """Gates open in random order: what comes back never depends on time."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        n, options = int(rng.integers(2, 5)), {"form": ["array", "dict"][seed % 2], "length": 3}
        wait_num = int(rng.integers(1, n + 1))
        with Gates(n, **options) as gates, backend(gates.env_fns, wait_num=wait_num) as venv:
            waiting = random_rounds(venv, gates, Twins(n, **options), rng)
            gates.open(*waiting)


def random_rounds(venv, gates, twins, rng, turns=40):
    """Sends, receives and resets of some envs; returns the envs in flight, with what they will answer."""
    waiting = {}  # in the order of sending
    if not venv.is_async:  # where all that is in flight is waited for
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
            twins.compare(ids, venv.recv(), [waiting.pop(i) for i in ids])
        elif kind == "reset" and ready:
            ids = some(ready)
            let_through(*ids)
            twins.compare(ids, venv.reset(ids, seed=turn), [twins.reset(i, seed=turn + i) for i in ids])
        elif kind == "send" and ready:
            ids = some(ready)
            resets = [i for i in ids if rng.random() < 0.3]
            venv.send([turn] * len(ids), ids, reset=resets)
            waiting |= {i: twins.reset(i) if i in resets else twins.step(i, turn) for i in ids}
        for i in list(waiting)[:1]:
            with pytest.raises(RuntimeError, match=f"environment {i} which is stepping"):
                venv.reset(i)
    return waiting


REAL = [
    "CartPole-v1",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
]


def actions_for(env_id, n, steps):
    space = gymnasium.make(env_id).action_space
    space.seed(1)
    return [np.stack([space.sample() for _ in range(n)]) for _ in range(steps)]


@pytest.mark.parametrize("env_id", REAL)
def test_real_envs_do_what_gymnasium_sync_vector_env_does(env_id):
    n, steps = 3, 60
    env_fns = [lambda: gymnasium.make(env_id)] * n
    peer = SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.DISABLED)
    with DummyVectorEnv(env_fns) as venv:
        obs, _ = venv.reset(seed=11)
        want, _ = peer.reset(seed=11)
        same_batch(obs, want)
        episodes = 0
        for action in actions_for(env_id, n, steps):
            obs, rew, terminated, truncated, info = venv.step(action)
            want, *rest, _ = peer.step(action)
            same_batch(obs, want)
            for got, other in zip((rew, terminated, truncated), rest, strict=True):
                assert np.array_equal(got, other)
            assert [row["env_id"] for row in info] == [0, 1, 2]
            done = terminated | truncated
            if done.any():
                episodes += int(done.sum())
                part, _ = venv.reset(done)
                want, _ = peer.reset(options={"reset_mask": done})
                same_batch(part, rows_of(want, done))
        if env_id in ("CartPole-v1", "FrozenLake-v1", "Blackjack-v1"):
            assert episodes >= 3
    peer.close()


def rows_of(batch, mask):
    return tuple(rows_of(part, mask) for part in batch) if isinstance(batch, tuple) else batch[mask]


def same_batch(got, want):
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            same_batch(left, right)
    else:
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)


def trajectories(venv, length):
    """A hash for each env of all that it returned in `length` steps; its actions depend on its id and time alone."""
    n = len(venv)
    hashes = [hashlib.sha256() for _ in range(n)]
    taken, free, over = [0] * n, [], []

    def note(result):
        obs, *rest, info = result
        for j, row in enumerate(info):
            i = row["env_id"]
            hashes[i].update(repr(described([obs[j], *(part[j] for part in rest), row])).encode())
            (over if len(rest) and (rest[1][j] or rest[2][j]) else free).append(i)

    note(venv.reset(seed=5))
    while min(taken) < length or venv.waiting_id:
        if over:
            ready, over = [i for i in over if taken[i] < length], []
            if ready:
                note(venv.reset(ready))
        batch = [i for i in free if taken[i] < length]
        free = [i for i in free if i not in batch]
        if batch:
            actions = [(i + taken[i]) % 2 for i in batch]
            for i in batch:
                taken[i] += 1
            note(venv.step(actions, batch))
        elif venv.waiting_id:
            note(venv.recv())
    return [h.hexdigest() for h in hashes]


@pytest.mark.parametrize(
    "options", [{"wait_num": 1}, {"wait_num": 3, "timeout": 1e-4}, {"wait_num": 1, "num_workers": 2}], ids=repr
)
def test_trajectories_do_not_depend_on_how_one_waits(waiting_backend, options):
    env_fns = [lambda: gymnasium.make("CartPole-v1")] * 4
    with DummyVectorEnv(env_fns) as venv:
        want = trajectories(venv, 30)
    assert len(set(want)) == 4
    with waiting_backend(env_fns, **options) as venv:
        assert trajectories(venv, 30) == want
