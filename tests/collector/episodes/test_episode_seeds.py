"""`episode_seeds=` of a collector: an episode does not depend on its env, its time or the other episodes.

tests/fuzz compares such episodes with a loop by hand: random actions, policies of arrays, and keyed noise.
"""

from __future__ import annotations

import copy
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
from tests.support.collector_envs import cartpoles, countdowns, pendulums, zeros
from tests.support.countdown import MOVE, Drives
from tests.support.seeded_envs import Failing
from vecenv import DummyVectorEnv, ShmemVectorEnv, nest

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


def bits(episodes: dict[int, Episode]) -> dict[int, Any]:
    columns = ("obs", "action", "reward", "terminated", "truncated")
    return {n: (each.seed, *(getattr(each, name).tobytes() for name in columns)) for n, each in episodes.items()}


class Net(torch.nn.Module):
    """A policy of the size of usual ones. `before` changes the observations, and `after` the logits."""

    def __init__(self, before: Any = lambda obs: obs, after: Any = lambda logits: logits) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.Tanh(), torch.nn.Linear(256, 2))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8
        self.before, self.after = before, after

    def forward(self, obs: torch.Tensor) -> Any:
        logits = self.after(self.layers(self.before(obs)))
        return {"action": torch.distributions.Categorical(logits=logits), "features": self.layers[0](obs)}


@pytest.mark.guarantee("G11.1", "G11.2", "G11.3")
@pytest.mark.parametrize(
    ("fns", "policy"),
    [
        (cartpoles(5), None),
        (cartpoles(5), Net()),
        (pendulums(4), MLPPolicy(gymnasium.spaces.Box(-8, 8, (3,)), gymnasium.spaces.Box(-2, 2, (1,)))),
    ],
    ids=["random actions", "actions of a set", "continuous actions"],
)
def test_episodes_are_the_same_in_workers_and_when_some_are_skipped(fns: Any, policy: Any) -> None:
    """Episodes that are skipped were played before the job was killed: the others get other envs."""
    skip, runs = [0, 2, 3, 9, 11], []
    for backend, without in ((DummyVectorEnv, ()), (ShmemVectorEnv, ()), (DummyVectorEnv, skip)):
        seeds = EpisodeSeeds(SEED, numbers=range(16), skip=np.array(without, int))
        options = {"frames_per_batch": 16 * len(fns), "return_same_td": bool(without), "episode_seeds": seeds}
        collector = SyncDataCollector(backend(fns), policy, **options)
        runs.append(bits(play(collector)))
        assert collector.everything_keyed
        assert collector.all_played
    whole, in_workers, rest = runs
    assert in_workers == whole
    assert rest == {number: whole[number] for number in set(range(16)) - set(skip)}


def test_a_network_gets_a_row_for_each_env_on_one_thread_in_every_round() -> None:
    seen = []

    def look(obs: torch.Tensor) -> torch.Tensor:
        assert torch.get_num_threads() == 1
        assert torch.isfinite(obs).all()
        seen.append(len(obs))
        return obs

    play(SyncDataCollector(cartpoles(8), Net(look), frames_per_batch=64, episode_seeds=EpisodeSeeds(SEED, range(6))))
    assert set(seen) == {8}


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
def test_a_program_gets_rows_that_do_not_depend_on_where_they_stand_or_is_not_promised_them(used: bool) -> None:
    """Hidden layers of 53 units, so that rows lie at any address; an output of one, for 6 envs, which 8 rows are."""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment["PYTHONPATH"] = os.pathsep.join(["tests", environment.get("PYTHONPATH", "")])
    program = [sys.executable, "-c", IN_A_PROGRAM.format(used=used)]
    run = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)
    keyed, same = run.stdout.split()
    assert (keyed == "False") or (same == "True"), run.stderr
    assert used or keyed == "True"


# Order, and episodes that are played again.


def test_an_idle_env_takes_over_the_episode_of_another() -> None:
    venv = DummyVectorEnv(countdowns(9, 2))
    with SyncDataCollector(venv, frames_per_batch=18, episode_seeds=EpisodeSeeds(0, range(4))) as collector:
        batch = collector.next()
    assert batch.traj_ids.tolist() == [[0] * 9, [1, 1, 3, 3, 2, 2] + [-1] * 3]
    np.testing.assert_array_equal(batch.obs[..., 1][batch.mask], batch.step_count[batch.mask])
    seeds = [episode_seed(0, number) if number >= 0 else 0 for number in batch.traj_ids.flat]
    np.testing.assert_array_equal(batch.extras["episode_seed"].ravel() * batch.mask.ravel(), seeds)


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
def test_an_episode_that_broke_off_can_be_played_again(tmp_path: Any) -> None:
    failing = {episode_seed(SEED, number) for number in (1, 4)}
    fns = [partial(Failing, failing, tmp_path, *countdowns(6))] * 2
    seeds, cutter = EpisodeSeeds(SEED, numbers=range(6)), EpisodeCutter()
    lengths, broken = {}, []
    venv = ShmemVectorEnv(fns, num_workers=1, on_error="restart")
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
def test_an_episode_that_is_played_twice_in_a_row_is_two_episodes(frames: int, steps: int) -> None:
    seeds, cutter = EpisodeSeeds(SEED, numbers=[5] * 4), EpisodeCutter()
    episodes, lengths, split = list[Episode](), list[int](), 0
    with SyncDataCollector(countdowns(steps), frames_per_batch=frames, episode_seeds=seeds) as collector:
        while not collector.all_played:
            stats = collector.collect(n_step=frames)
            lengths += stats.lens.tolist()
            episodes += cutter.cut(stats.batch)
            rows = stats.batch.split_trajectories()
            split += int(rows.done.sum())
            assert rows.done.any(1).all() or frames < steps
            multi = MultiStep(3, gamma=1.0)(stats.batch)
            assert (multi.extras["steps"] <= steps - multi.step_count).all()
    assert lengths == [len(episode) for episode in episodes] == [steps] * 4
    assert split == 4


def test_rows_of_two_envs_in_the_same_episode_are_not_joined() -> None:
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


def test_episode_seeds_give_numbers_in_order_without_those_to_be_skipped() -> None:
    seeds = EpisodeSeeds(3, skip=np.array([2, 0, 2, 10**12]))
    assert [next(seeds) for _ in range(3)] == [(number, episode_seed(3, number)) for number in (1, 3, 4)]
    seeds.again(1)
    assert [number for number, _ in (next(seeds), next(seeds))] == [1, 5]
    assert list(EpisodeSeeds(3, numbers=[4, 2], skip=[4, 2])) == []


# Was everything keyed?


@pytest.mark.guarantee("G11.5", "G11.6")
@pytest.mark.parametrize(
    ("make", "options", "keyed"),
    [
        (lambda venv: None, {}, True),
        (lambda venv: RandomPolicy(venv.action_space), {}, True),
        (lambda venv: zeros, {}, False),
        (lambda venv: Net(), {}, True),
        (lambda venv: Net(), {"exploration_type": "mode"}, True),
        (lambda venv: Net(), {"init_random_frames": 4}, True),
        (lambda venv: Net(after=lambda logits: torch.nn.functional.dropout(logits, 0.5)), {}, False),
        (lambda venv: Net(lambda obs: obs + np.random.rand()), {}, False),
        (lambda venv: Net(lambda obs: obs + random.random()), {}, False),
    ],
)
def test_a_collector_knows_whether_all_its_actions_were_keyed(make: Any, options: Any, keyed: bool) -> None:
    venv = DummyVectorEnv(cartpoles(2))
    with SyncDataCollector(venv, make(venv), frames_per_batch=4, episode_seeds=EpisodeSeeds(0), **options) as collector:
        collector.collect(n_step=4, random=True)
        assert collector.everything_keyed, "the policy was only asked for the form of its outputs"
        for _ in range(3):
            collector.next()
        assert collector.everything_keyed is keyed


class Adding(Net):
    """Changes a parameter in a way that torch does not count."""

    def __init__(self) -> None:
        super().__init__(self.add)
        self.sum = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def add(self, obs: torch.Tensor) -> torch.Tensor:
        self.sum.data.add_(obs.sum(0))
        return obs + self.sum


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(("make", "keyed"), [(Net, True), (Adding, False)])
def test_parameters_whose_changes_torch_does_not_count_are_compared(make: Any, keyed: bool, inference: bool) -> None:
    with torch.inference_mode(inference):
        policy = make()
    with SyncDataCollector(cartpoles(2), policy, frames_per_batch=4, episode_seeds=EpisodeSeeds(0)) as collector:
        collector.next()
        assert collector.everything_keyed is keyed


def test_actions_in_trees_are_the_samples_of_the_seeded_space() -> None:
    found = play(SyncDataCollector([Drives] * 2, frames_per_batch=8, episode_seeds=EpisodeSeeds(1, range(5))))
    space = copy.deepcopy(MOVE)
    assert found.keys() == set(range(5))
    for number, episode in found.items():
        space.seed(action_seed(1, number))
        wanted = nest.stack([space.sample() for _ in range(5)])
        for one, other in zip(nest.leaves(episode.action), nest.leaves(wanted), strict=True):
            np.testing.assert_array_equal(one, other)
