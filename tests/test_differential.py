"""The same program, two ways: every backend, number of workers and start method gives the same log, bit for bit."""

import functools
import hashlib

import gymnasium
import numpy as np
import pytest
from cases import LocalWorker, counting
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from programs import TEAMS, described, log_of, program, team

from tests.backends import BACKENDS, and_ray
from tests.local_ray import FAR, NEAR
from vecenv import BaseVectorEnv, DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.testing import Gates

backend = and_ray(BACKENDS)

PROCESSES = [SubprocVectorEnv, ShmemVectorEnv]
ARRANGEMENTS = [
    functools.partial(cls, num_workers=workers) for cls in (*PROCESSES, ThreadVectorEnv) for workers in (1, 2, 3)
]


def assert_same_logs(one, other, who):
    for turn, (left, right) in enumerate(zip(one, other, strict=True)):
        assert left == right, f"operation {turn} differs on {who}"


@pytest.mark.parametrize("name", TEAMS)
def test_a_program_has_one_log_on_every_backend(name):
    n = len(TEAMS[name])
    for seed in range(2):
        operations = program(n, seed, 40)
        with DummyVectorEnv(team(name)) as venv:
            want = log_of(venv, operations)
        assert len({entry[0][0] for entry in want}) > 2, "the program does nothing worth comparing"
        for make in ARRANGEMENTS:
            with make(team(name)) as venv:
                assert_same_logs(want, log_of(venv, operations), f"{venv!r}, seed {seed}")


@pytest.mark.local_ray
@pytest.mark.ray
@pytest.mark.parametrize("where", [NEAR, FAR, {}], ids=["driver's node", "other node", "both nodes"])
@pytest.mark.parametrize("name", TEAMS)
def test_a_program_has_one_log_in_actors_wherever_they_are(name, where):
    operations = program(len(TEAMS[name]), 2, 60)
    with DummyVectorEnv(team(name)) as venv:
        want = log_of(venv, operations)
    for workers in (2, 3):
        with RayVectorEnv(team(name), num_workers=workers, **where) as venv:
            assert_same_logs(want, log_of(venv, operations), f"{venv!r}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TEAMS)
def test_many_programs_have_one_log_on_every_backend(name):
    n = len(TEAMS[name])
    for seed in range(100, 140):
        operations = program(n, seed, 150)
        with DummyVectorEnv(team(name)) as venv:
            want = log_of(venv, operations)
        for make in [*ARRANGEMENTS, *(functools.partial(cls, num_workers=n) for cls in PROCESSES)]:
            with make(team(name)) as venv:
                assert_same_logs(want, log_of(venv, operations), f"{venv!r}, seed {seed}")


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("cls", PROCESSES)
def test_the_start_method_makes_no_difference(cls, context):
    operations = program(3, 7, 25)
    with DummyVectorEnv(team("objects")) as venv:
        want = log_of(venv, operations)
    with cls(team("objects"), num_workers=2, context=context) as venv:
        assert_same_logs(want, log_of(venv, operations), f"{cls.__name__} with {context}")


def test_workers_of_a_users_own_give_the_same_rows():
    """All but the attributes, which such a worker looks up in its own way."""
    operations = [lambda v: v.reset(seed=3)] + [lambda v, k=k: v.step(np.arange(5) + k) for k in range(8)]
    operations += [lambda v: v.step([1, 2], [4, 0]), lambda v: v.reset([3, 1]), lambda v: v.step([0] * 5, reset=[2])]
    with DummyVectorEnv(counting(5)) as venv:
        want = log_of(venv, operations)
    with BaseVectorEnv(counting(5), LocalWorker) as venv:
        assert_same_logs(want, log_of(venv, operations), "custom workers")


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
def test_real_envs_do_what_gymnasium_sync_vector_env_does(backend, env_id):
    n, steps = 3, 60
    env_fns = [lambda: gymnasium.make(env_id)] * n
    peer = SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.DISABLED)
    with backend(env_fns, num_workers=2) as venv:
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


def trajectories(venv, length, split=None):
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
        batch = [i for i in free if taken[i] < length][:split]
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
    "options",
    [
        {},
        {"wait_num": 1},
        {"wait_num": 2},
        {"timeout": 1e-4},
        {"wait_num": 3, "timeout": 1e-4},
        {"wait_num": 1, "num_workers": 2},
    ],
    ids=repr,
)
def test_trajectories_do_not_depend_on_how_one_waits(backend, options):
    env_fns = [lambda: gymnasium.make("CartPole-v1")] * 4
    with DummyVectorEnv(env_fns) as venv:
        want = trajectories(venv, 30)
    assert len(set(want)) == 4
    with backend(env_fns, **options) as venv:
        assert trajectories(venv, 30) == want


@pytest.mark.parametrize("split", [1, 2, 3])
def test_trajectories_do_not_depend_on_how_steps_are_split(backend, split):
    env_fns = [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7)] * 4

    class Continuous(backend):
        def step(self, action, id=None, **kwargs):
            return super().step(np.array(action, np.float32)[:, None], id, **kwargs)

    with Continuous(env_fns) as venv:
        want = trajectories(venv, 20)
    with Continuous(env_fns) as venv:
        assert trajectories(venv, 20, split) == want


def test_trajectories_do_not_depend_on_the_speed_of_others(remote_backend):
    with DummyVectorEnv(counting(3, length=4)) as venv:
        want = trajectories(venv, 12)

    class Opens(remote_backend):
        """Lets one env that is in flight go on, chosen at random, before each wait."""

        rng = np.random.default_rng(3)

        def recv(self):
            gates.open(int(self.rng.choice(self.waiting_id)))
            return super().recv()

    with Gates(3, ops=["step"], length=4) as gates, Opens(gates.env_fns, wait_num=1) as venv:
        assert trajectories(venv, 12) == want
