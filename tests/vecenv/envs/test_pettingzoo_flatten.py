"""flatten_agents: the agents of a ParallelVectorEnv as rows of a gymnasium vector env.

tests/messages/agents.py has the errors.
"""

import contextlib
from functools import partial

import numpy as np
import pytest
from stable_baselines3 import PPO

from collector import SyncDataCollector
from tests.fuzz.envs import draw, stacked
from tests.fuzz.pettingzoo import AGENTS, Crowd
from tests.support.agent_envs import Herd, Masked
from tests.support.backends import FULL
from vecenv import ParallelVectorEnv, SB3VecEnv, flatten_agents, nest
from vecenv.sb3 import AgentMonitor, AgentRolloutBuffer

ZEROS = np.zeros(6, int)


class Boastful(Crowd):
    """Crowd in which infos have names of flatten_agents' own entries, which these must not change."""

    def say(self, agent, info):
        return super().say(agent, {**info, "alive": True, "active": True, "final_obs": 7, "final_info": {}})


@pytest.fixture
def herds():
    """Return a function that makes envs, which are closed after the test."""
    with contextlib.ExitStack() as made:

        def make(n=2, own_episodes=False, **options):
            venv = made.enter_context(ParallelVectorEnv([Herd] * n, "dummy", **options))
            return flatten_agents(venv, own_episodes=own_episodes)

        yield make


SEEN, ACTED = ("floats", "boxes", "picture"), ("discrete", "tuple", "box")


def check_row(row, batches, flat, died, is_own, is_same_step):
    """Compare a row with the batches of a ParallelVectorEnv.

    `died` are flags (terminated, truncated) of the agents that ended in this episode of their env.
    """
    i, agent = row // len(AGENTS), AGENTS[row % len(AGENTS)]
    obs, rewards, terminated, truncated, infos = batches
    flags, done = np.array([terminated[agent][i], truncated[agent][i]]), infos["done"][i]
    died[row] |= flags
    now = flags if is_own else died[row] & done
    is_early = is_own and is_same_step and flags.any() and not done
    mine = [nest.take(part, row) for part in flat[:4]]
    want = nest.take(obs[agent], i)
    np.testing.assert_equal(mine[0], nest.map(np.zeros_like, want) if is_early else want)
    assert mine[1:] == [rewards[agent][i], now[0] or (done and not now[1]), now[1]]
    for name in ("active", "alive", *(["action_mask"] if infos["action_mask"] else [])):
        assert np.array_equal(flat[4][name][row], infos[name][agent][i] | (is_early and name == "action_mask"))
    told = infos["info"][i].get(agent, {})
    assert ("t" in told) == ("_t" in flat[4] and flat[4]["_t"][row])
    assert "t" not in told or flat[4]["t"][row] == told["t"]
    if is_early or (is_same_step and done):
        last = want if is_early else nest.take(infos["final_obs"][agent], i)
        np.testing.assert_equal(flat[4]["final_obs"][row], last)
        said = told if is_early else infos["final_info"][i].get(agent, {})
        assert flat[4]["final_info"]["active"][row] == infos["active"][agent][i]
        assert "t" not in said or flat[4]["final_info"]["t"][row] == said["t"]
    if done:
        died[row] = False


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_rows_are_the_agents_of_env_0_then_those_of_env_1(mode, is_own, seed):
    """Agents of random envs come and die. Compare with the batches of a ParallelVectorEnv."""
    env = partial(Boastful, [SEEN[seed % 3]] * 4, [ACTED[seed % 3]] * 4, "obs" if seed % 2 else "info")
    with (
        ParallelVectorEnv([env] * 2, "dummy", autoreset_mode=mode) as agents,
        ParallelVectorEnv([env] * 2, "dummy", autoreset_mode=mode) as below,
    ):
        envs, died, rng = flatten_agents(below, own_episodes=is_own), np.zeros((8, 2), bool), np.random.default_rng(0)
        agents.reset(seed=seed)
        assert envs.reset(seed=seed)[0] in envs.observation_space
        for _ in range(12):
            rows = [draw(envs.single_action_space, rng) for _ in range(8)]
            batches = agents.step({a: stacked(envs.single_action_space, rows[j::4]) for j, a in enumerate(AGENTS)})
            flat = envs.step(stacked(envs.single_action_space, rows))
            assert flat[0] in envs.observation_space
            for row in range(8):
                check_row(row, batches, flat, died, is_own, mode == "SameStep")


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_each_row_has_a_legal_action_and_those_of_dead_agents_have_all(mode):
    """Also in the first row of zeros, because a softmax over legal actions would otherwise be NaN."""
    with ParallelVectorEnv([Masked], "dummy", autoreset_mode=mode) as venv:
        envs = flatten_agents(venv, own_episodes=True, mask_in_obs=True)
        envs.reset(seed=0)
        for _ in range(6):
            obs, *_, infos = envs.step(np.zeros(3, int))
            assert obs["action_mask"].tolist() == infos["action_mask"].tolist()
            assert obs["action_mask"].any(1).all()
            assert obs["action_mask"][~infos["active"] & ~infos["alive"]].all()


@FULL
def test_sb3_counts_and_learns_from_the_steps_of_agents_alone(herds):
    """Agents of a herd make 2, 3 and 4 steps of an episode."""
    envs = AgentMonitor(SB3VecEnv(herds(2, autoreset_mode="same_step", own_episodes=True)))
    envs.reset()
    found = []
    for _ in range(8):
        infos = envs.step(np.ones(6, int))[3]
        episodes = [(row, info["episode"]) for row, info in enumerate(infos) if "episode" in info]
        found += [(row, episode["l"], episode["r"]) for row, episode in episodes]
    assert sorted(found) == sorted([(i, 2 + i % 3, 2.0 * (2 + i % 3)) for i in range(6)] * 2)
    assert envs.episode_count == 12

    options = {"rollout_buffer_class": AgentRolloutBuffer, "rollout_buffer_kwargs": {"monitor": envs}}
    model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu", **options)
    model.learn(48)
    batches = list(model.rollout_buffer.get(16))
    assert sum(len(batch.observations) for batch in batches) == 2 * 2 * (2 + 3 + 4)  # of 48
    assert all((batch.observations[:, 0] > 0).all() for batch in batches)
    assert model.rollout_buffer.active[:4].sum(0).tolist() == [2, 3, 4] * 2
    last = model.rollout_buffer.episode_starts[2, [0, 3]]
    assert last.tolist() == [1, 1]  # no value is taken from the zeros


def test_a_reset_mask_resets_whole_envs_and_seeds_are_one_for_each_env_or_one_for_each_row(herds):
    envs = herds(autoreset_mode="Disabled")
    second = {"reset_mask": np.array([False] * 3 + [True] * 3)}
    for seed in ([0, 20], (0, 0, 0, 20, 0, 0), np.array([0, 1, 2, 20, 21, 22])):
        assert envs.reset(seed=seed)[0].tolist() == [[1, 0]] * 3 + [[21, 0]] * 3
        envs.step(tuple(ZEROS))
        obs, infos = envs.reset(seed=seed, options=second)
        assert obs.tolist() == [[1, 1]] * 3 + [[21, 0]] * 3
        assert infos["_alive"].tolist() == [False] * 3 + [True] * 3
    envs.close()
    assert envs.env.is_closed


def test_the_monitor_of_a_rollout_buffer_is_around_the_envs(herds):
    envs = herds(1, autoreset_mode="same_step", own_episodes=True)
    space, action_space = envs.single_observation_space, envs.single_action_space
    with pytest.raises(TypeError, match="takes the AgentMonitor around the envs as monitor="):
        AgentRolloutBuffer(4, space, action_space, n_envs=3, monitor=SB3VecEnv(envs))


def test_a_collector_takes_agents_with_episodes_of_their_own(herds):
    with SyncDataCollector(herds(autoreset_mode="same_step", own_episodes=True), frames_per_batch=240) as collector:
        assert collector.next().done.any()
