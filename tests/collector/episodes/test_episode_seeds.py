"""`episode_seeds=` of a collector: an episode does not depend on its env, its time or the other episodes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from collector import (
    Episode,
    EpisodeCutter,
    EpisodeSeeds,
    MLPPolicy,
    MultiStep,
    RandomPolicy,
    SyncDataCollector,
    action_seed,
    episode_seed,
)
from collector.policy.keyed_noise import KeyedNoise
from tests.support.backends import FULL
from tests.support.collector_envs import cartpoles, countdowns, pendulums
from tests.support.seeded_envs import Failing, Treed
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, nest

EPISODES = 24
SEED = 3


def play(collector: SyncDataCollector) -> dict[int, Episode]:
    """All episodes of a collector by number, each of which comes once."""
    cutter, found = EpisodeCutter(), {}
    with collector:
        for batch in collector:
            for episode in cutter.cut(batch):
                assert episode.number not in found
                found[episode.number] = episode
    assert not cutter.unfinished_steps
    return found


def assert_same(left: dict[int, Episode], right: dict[int, Episode]) -> None:
    """The same episodes, bit for bit."""
    assert left.keys() == right.keys()
    for number, one in left.items():
        other = right[number]
        assert one.seed == other.seed
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes(), f"{name} of episode {number}"


def by_hand(make: Any, numbers: Any) -> dict[int, Episode]:
    """Random episodes in one env, one after another."""
    env, found = make(), {}
    for number in numbers:
        seed = episode_seed(SEED, number)
        rows: list[tuple[Any, ...]] = []
        env.action_space.seed(action_seed(SEED, number))
        obs, over = [env.reset(seed=seed)[0]], False
        while not over:
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((action, float(reward), terminated, truncated))
            obs.append(following)
            over = terminated or truncated
        action, reward, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
        found[number] = Episode(np.stack(obs), action, reward, terminated, truncated, 0, number, seed)
    return found


@pytest.fixture(scope="module")
def cartpole_by_hand() -> dict[int, Episode]:
    return by_hand(cartpoles(1)[0], range(EPISODES))


@pytest.mark.guarantee("G11.1", "G11.2")
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("backend", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
def test_random_episodes_are_those_of_a_loop_by_hand(backend, same, cartpole_by_hand):
    """In batches with memory of their own and in the same memory, whichever others are played."""
    skip = np.array([0, 1, 5, 6, 7, 20])
    seeds = EpisodeSeeds(SEED, numbers=range(EPISODES), skip=skip)
    collector = SyncDataCollector(backend(cartpoles(3)), frames_per_batch=30, return_same_td=same, episode_seeds=seeds)
    found = play(collector)
    assert collector.everything_keyed
    assert collector.all_played
    assert_same(found, {number: each for number, each in cartpole_by_hand.items() if number not in skip})


class Net(torch.nn.Module):
    """A policy of the size of usual ones."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 256),
            torch.nn.Tanh(),
            torch.nn.Linear(256, 256),
            torch.nn.Tanh(),
            torch.nn.Linear(256, 2),
        )
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8

    def forward(self, obs: torch.Tensor) -> Any:
        return {"action": torch.distributions.Categorical(logits=self.layers(obs)), "features": self.layers[0](obs)}


@pytest.mark.guarantee("G11.3")
@pytest.mark.parametrize(
    ("fns", "policy"),
    [
        (cartpoles(5), Net()),
        (pendulums(4), MLPPolicy(gymnasium.spaces.Box(-8, 8, (3,)), gymnasium.spaces.Box(-2, 2, (1,)))),
    ],
    ids=["actions of a set", "continuous actions"],
)
def test_episodes_of_a_network_are_the_same_in_workers_and_when_some_are_skipped(fns, policy):
    """Episodes that are skipped were played before the job was killed: the others get other envs."""
    skip, runs = [0, 2, 3, 9, 11], []
    for backend, without in ((DummyVectorEnv, ()), (ShmemVectorEnv, ()), (DummyVectorEnv, skip)):
        seeds = EpisodeSeeds(SEED, numbers=range(16), skip=without)
        collector = SyncDataCollector(backend(fns), policy, frames_per_batch=16 * len(fns), episode_seeds=seeds)
        runs.append(play(collector))
        assert collector.everything_keyed
    whole, in_workers, rest = runs
    assert all(action in fns[0]().action_space for action in whole[0].action)
    assert_same(in_workers, whole)
    assert rest.keys() == set(range(16)) - set(skip)
    assert_same(rest, {number: whole[number] for number in rest})


def test_a_network_gets_a_row_for_each_env_on_one_thread_in_every_round():
    seen = []

    class Spy(Net):
        def forward(self, obs):
            assert torch.get_num_threads() == 1
            assert torch.isfinite(obs).all()
            seen.append(len(obs))
            return super().forward(obs)

    seeds = EpisodeSeeds(SEED, numbers=range(6))
    play(SyncDataCollector(cartpoles(8), Spy(), frames_per_batch=64, episode_seeds=seeds))
    assert set(seen) == {8}


def test_no_action_of_those_networks_is_rounded_out_of_its_bounds():
    low, high = np.float32([-0.13210486]), np.float32([0.12573022])
    assert low + (high - low) > high
    policy, noise = MLPPolicy(gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(low, high)), KeyedNoise(0, 1)
    noise.numbers = np.arange(1)
    with torch.no_grad():
        policy.net[-1].bias[:] = 1e9
        assert noise.sample(policy(torch.zeros(1, 3))).numpy() <= high


IN_A_PROGRAM = """
import numpy as np, torch
from collector import EpisodeCutter, EpisodeSeeds, MLPPolicy, SyncDataCollector
from tests.support.collector_envs import pendulums
if {used}:
    torch.ones(64, 64) @ torch.ones(64, 64)
env = pendulums(1)[0]()
policy = MLPPolicy(env.observation_space, env.action_space, hidden=53)
runs = []
for first in (0, 1, 3):
    cutter, found = EpisodeCutter(), {{}}
    seeds = EpisodeSeeds(3, numbers=range(first, 12))
    with SyncDataCollector(pendulums(6), policy, frames_per_batch=60, episode_seeds=seeds) as collector:
        for batch in collector:
            found |= {{each.number: (each.obs.tobytes(), each.action.tobytes()) for each in cutter.cut(batch)}}
    runs.append(found)
same = all(run[number] == runs[0][number] for run in runs for number in run)
print(collector.everything_keyed, same)
"""


@pytest.mark.guarantee("G11.12")
@pytest.mark.slow
@pytest.mark.parametrize("used", [False, True])
def test_a_program_gets_rows_that_do_not_depend_on_where_they_stand_or_is_not_promised_them(used):
    """Hidden layers of 53 units, so that rows lie at any address; an output of one, for 6 envs, which 8 rows are."""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment["PYTHONPATH"] = os.pathsep.join(["tests", environment.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", IN_A_PROGRAM.format(used=used)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    keyed, same = run.stdout.split()
    assert (keyed == "False") or (same == "True"), run.stderr
    assert used or keyed == "True"


# Rounds.


def test_a_reset_travels_with_the_last_step():
    venv = DummyVectorEnv(countdowns(3, 4))
    seeds = EpisodeSeeds(0, numbers=range(100))
    with SyncDataCollector(venv, frames_per_batch=24, episode_seeds=seeds) as collector:
        batch = collector.rollout()
        assert venv.stats()["rounds"] == 1 + 12
        assert batch.shape == (2, 12)
        assert batch.mask.all()
        assert batch.traj_ids.tolist() == [[0] * 3 + [2] * 3 + [4] * 3 + [6] * 3, [1] * 4 + [3] * 4 + [5] * 4]
        assert batch.step_count.tolist() == [[0, 1, 2] * 4, [0, 1, 2, 3] * 3]
        np.testing.assert_array_equal(batch.obs[..., 1], batch.step_count)
        np.testing.assert_array_equal(batch.extras["episode_seed"][0, ::3], [episode_seed(0, n) for n in (0, 2, 4, 6)])


def test_an_env_that_is_idle_takes_over_the_episode_that_another_holds():
    with SyncDataCollector(countdowns(9, 2), frames_per_batch=18, episode_seeds=EpisodeSeeds(0, range(4))) as collector:
        batch = collector.next()
    assert batch.traj_ids.tolist() == [[0] * 9, [1, 1, 3, 3, 2, 2] + [-1] * 3]
    assert [int(seed) for seed in batch.extras["episode_seed"][1, :6:2]] == [episode_seed(0, n) for n in (1, 3, 2)]


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
def test_an_episode_that_broke_off_can_be_played_again(tmp_path):
    failing = {episode_seed(SEED, number) for number in (1, 4)}
    venv = SubprocVectorEnv(
        [partial(Failing, failing, tmp_path, *countdowns(6))] * 2, num_workers=1, on_error="restart"
    )
    seeds, cutter = EpisodeSeeds(SEED, numbers=range(6)), EpisodeCutter()
    lengths, broken = {}, []
    with SyncDataCollector(venv, frames_per_batch=4, episode_seeds=seeds) as collector:
        while not collector.all_played:
            stats = collector.collect(n_step=4)
            assert set(stats.lens.tolist()) <= {6}
            for number in stats.batch.broken_ids.tolist():
                broken.append(number)
                seeds.again(number)
            lengths |= {episode.number: len(episode) for episode in cutter.cut(stats.batch)}
    assert sorted(broken) == [1, 4]
    assert lengths == dict.fromkeys(range(6), 6)


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("frames", [4, 60])
def test_an_episode_that_is_played_twice_in_a_row_is_two_episodes(frames, steps):
    seeds, cutter = EpisodeSeeds(SEED, numbers=[5] * 4), EpisodeCutter()
    episodes, lengths, split = list[Episode](), list[int](), 0
    with SyncDataCollector(countdowns(steps), frames_per_batch=frames, episode_seeds=seeds) as collector:
        while not collector.all_played:
            stats = collector.collect(n_step=frames)
            lengths += stats.lens.tolist()
            episodes += cutter.cut(stats.batch)
            rows = stats.batch.split_trajectories()
            split += int(rows.done.sum())
            assert rows.obs.shape[:2] == rows.shape
            assert rows.done.any(1).all() or frames < steps
            multi = MultiStep(3, gamma=1.0)(stats.batch)
            assert (multi.extras["steps"] <= steps - multi.step_count).all()
    assert lengths == [len(episode) for episode in episodes] == [steps] * 4
    assert split == 4


def test_rows_of_two_envs_in_the_same_episode_are_not_joined():
    """Env 1 ends episode 5 in the first rows of a batch, and env 0 begins episode 5 in the last row."""
    seeds = [(7, 0), (5, 0), (5, 0), (8, 0), (9, 0), (10, 0)]
    with SyncDataCollector(countdowns(3, 2), frames_per_batch=8, episode_seeds=seeds) as collector:
        for batch in collector:
            flat = batch.flatten()
            rows, steps = np.nonzero(batch.mask)
            for tree, other in ((flat.next.obs, batch.next.obs), (flat.next.step_count, batch.next.step_count)):
                assert np.array_equal(tree, other[rows, steps])
            last = np.flatnonzero(np.diff(flat.env_ids, append=-1))
            assert flat.to_tensordict()["next", "done"][last].all()


# Numbers and seeds.


@pytest.mark.guarantee("G6.8")
def test_seeds_follow_from_the_job_seed_and_the_number_alone():
    assert [episode_seed(3, number) for number in (0, 1, 2, 10**6)] == GOLDEN_SEEDS
    assert episode_seed(2**63 - 1, 2**63 - 1) == GOLDEN_LARGE
    seeds = {episode_seed(job, number) for job in range(4) for number in range(2000)}
    assert len(seeds) > 7990
    assert all(0 <= seed < 2**31 for seed in seeds)


GOLDEN_SEEDS = [1663660961, 1215352495, 974320961, 1132517010]
GOLDEN_LARGE = 738932066


def test_episode_seeds_give_numbers_in_order_without_those_to_be_skipped():
    seeds = EpisodeSeeds(3, skip=np.array([2, 0, 2, 10**12]))
    assert [next(seeds) for _ in range(3)] == [(number, episode_seed(3, number)) for number in (1, 3, 4)]
    seeds.again(1)
    assert [number for number, _ in (next(seeds), next(seeds))] == [1, 5]
    assert list(EpisodeSeeds(3, numbers=[4, 2], skip=[4, 2])) == []


# Was everything keyed?


def uniform(obs: Any) -> np.ndarray:
    return np.zeros(len(obs), np.int64)


class Dropping(Net):
    def forward(self, obs):
        return torch.distributions.Categorical(logits=torch.nn.functional.dropout(self.layers(obs), 0.5))


class Noisy(Net):
    """Adds noise of another generator than torch's."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, obs):
        return super().forward(obs + self.draw())


@pytest.mark.guarantee("G11.5", "G11.6")
@pytest.mark.parametrize(
    ("make", "options", "keyed"),
    [
        (lambda venv: None, {}, True),
        (lambda venv: RandomPolicy(venv.action_space), {}, True),
        (lambda venv: uniform, {}, False),
        (lambda venv: Net(), {}, True),
        (lambda venv: Net(), {"exploration_type": "mode"}, True),
        (lambda venv: Net(), {"init_random_frames": 4}, True),
        (lambda venv: Dropping(), {}, False),
        (lambda venv: Noisy(np.random.rand), {}, False),
        (lambda venv: Noisy(random.random), {}, False),
    ],
)
def test_a_collector_knows_whether_all_its_actions_were_keyed(make, options, keyed):
    venv = DummyVectorEnv(cartpoles(2))
    with SyncDataCollector(venv, make(venv), frames_per_batch=4, episode_seeds=EpisodeSeeds(0), **options) as collector:
        collector.collect(n_step=4, random=True)
        assert collector.everything_keyed, "the policy was only asked for the form of its outputs"
        for _ in range(3):
            collector.next()
        assert collector.everything_keyed is keyed
    with SyncDataCollector(cartpoles(2), frames_per_batch=4) as collector:
        assert not collector.everything_keyed
        assert not collector.all_played


class Adding(Net):
    """Changes a parameter in a way that torch does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, obs):
        self.sum.data.add_(obs.sum(0))
        return super().forward(obs + self.sum)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("make", "keyed"), [(Net, True), (Adding, False)])
def test_parameters_whose_changes_torch_does_not_count_are_compared(make, keyed, inference):
    with torch.inference_mode(inference):
        policy = make()
    with SyncDataCollector(cartpoles(2), policy, frames_per_batch=4, episode_seeds=EpisodeSeeds(0)) as collector:
        collector.next()
        assert collector.everything_keyed is keyed


def test_random_frames_and_then_a_network_are_keyed_too():
    def run():
        options = {"frames_per_batch": 20, "init_random_frames": 20, "episode_seeds": EpisodeSeeds(1, numbers=range(3))}
        return play(SyncDataCollector(cartpoles(2), Net(), **options))

    assert_same(run(), run())


# Action masks, and actions in trees.


def test_actions_in_trees_are_stored_as_they_were_taken():
    venv = DummyVectorEnv([Treed] * 2)
    found = play(SyncDataCollector(venv, frames_per_batch=8, episode_seeds=EpisodeSeeds(1, numbers=range(5))))
    space = Treed.action_space
    assert found.keys() == set(range(5))
    for number, episode in found.items():
        space.seed(action_seed(1, number))
        wanted = nest.stack([space.sample() for _ in range(3)])
        np.testing.assert_array_equal(episode.action["move"], wanted["move"])
        np.testing.assert_array_equal(episode.action["hands"][0], wanted["hands"][0])
        np.testing.assert_array_equal(episode.obs[1:, 3:], wanted["hands"][1])
