"""flatten_agents: the agents of a ParallelVectorEnv as rows of a gymnasium vector env.

tests/messages/agents.py has the errors.
"""

import contextlib

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3 import PPO

from collector import SyncDataCollector
from tests.support.agent_envs import Herd, Masked
from tests.support.backends import FULL
from vecenv import ParallelVectorEnv, SB3VecEnv, flatten_agents
from vecenv.sb3 import AgentMonitor, AgentRolloutBuffer

ZEROS = np.zeros(6, int)


class Boastful(Herd):
    """Herd in which infos have names of flatten_agents' own entries, which these must not change."""

    def step(self, actions):
        *others, infos = super().step(actions)
        own = {"alive": True, "active": True, "final_obs": 7, "final_info": {}}
        return *others, {agent: {**own, **info} for agent, info in infos.items()}


@pytest.fixture
def herds():
    """Return a function that makes envs, which are closed after the test."""
    with contextlib.ExitStack() as made:

        def make(n=2, own_episodes=False, **options):
            venv = made.enter_context(ParallelVectorEnv([Boastful] * n, "dummy", **options))
            return flatten_agents(venv, own_episodes=own_episodes)

        yield make


def test_rows_are_the_agents_of_env_0_then_those_of_env_1(herds):
    envs = herds()
    assert (envs.num_envs, envs.single_observation_space.shape, envs.observation_space.shape) == (6, (2,), (6, 2))
    assert (envs.single_action_space, envs.action_space) == (spaces.Discrete(3), spaces.MultiDiscrete([3] * 6))
    for form in (tuple, list, np.array):
        obs, infos = envs.reset(seed=[0, 20])
        assert obs.tolist() == [[1, 0]] * 3 + [[21, 0]] * 3
        assert obs in envs.observation_space
        assert (infos["alive"].all(), infos["active"].any(), infos["action_mask"].shape) == (True, False, (6, 3))
        obs, rewards, _, _, infos = envs.step(form([0, 1, 2, 2, 1, 0]))
        assert rewards.tolist() == [1, 2, 3, 3, 2, 1]
        assert infos["active"].tolist() == [True] * 6
        assert (infos["t"].tolist(), infos["_t"].tolist()) == ([1, 0, 0] * 2, [True, False, False] * 2)
    envs.close()
    assert envs.env.is_closed


@pytest.mark.parametrize("own_episodes", [False, True])
def test_rows_of_dead_agents_are_empty_until_the_episode_of_their_env_ends_or_an_episode_of_their_own(
    herds, own_episodes
):
    """The first agent is terminated in step 2, the second in step 3. The last is truncated in step 4."""
    envs = herds(1, own_episodes=own_episodes)
    envs.reset(seed=0)
    steps = [envs.step(np.array([1, 1, 1])) for _ in range(5)]
    assert [infos["active"].tolist() for *_, infos in steps] == [
        [True, True, True],
        [True, True, True],
        [False, True, True],
        [False, False, True],
        [False, False, False],  # the reset
    ]
    assert [rewards.tolist() for _, rewards, *_ in steps] == [[2, 2, 2], [2, 2, 2], [0, 2, 2], [0, 0, 2], [0, 0, 0]]
    assert [obs[0].tolist() for obs, *_ in steps] == [[1, 1], [1, 2], [0, 0], [0, 0], [2, 0]]
    none, both = [False, False, False], [True, True, False]
    early = [[True, False, False], [False, True, False]] if own_episodes else [none, none]
    assert [terminated.tolist() for _, _, terminated, _, _ in steps] == [none, *early, both, none]
    assert [truncated.tolist() for *_, truncated, _ in steps] == [none, none, none, [False, False, True], none]


def test_the_last_observation_of_an_agent_that_ends_early_is_in_final_obs(herds):
    envs = herds(2, autoreset_mode="same_step", own_episodes=True)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    envs.reset(seed=[0, 20])
    envs.step(ZEROS)
    obs, _, terminated, truncated, infos = envs.step(ZEROS)
    assert terminated.tolist() == [True, False, False] * 2
    assert not truncated.any()
    assert obs.tolist() == [[0, 0], [1, 2], [1, 2], [0, 0], [21, 2], [21, 2]]
    assert infos["_final_obs"].tolist() == [True, False, False] * 2
    assert [infos["final_obs"][row].tolist() for row in (0, 3)] == [[1, 2], [21, 2]]
    assert infos["final_info"]["t"][[0, 3]].tolist() == [2, 2]
    assert infos["final_info"]["active"][[0, 3]].tolist() == [True, True]
    envs.step(ZEROS)
    obs, _, terminated, truncated, infos = envs.step(ZEROS)
    assert terminated.tolist() == [True, True, False] * 2
    assert truncated.tolist() == [False, False, True] * 2
    assert obs.tolist() == [[2, 0]] * 3 + [[22, 0]] * 3
    assert [row.tolist() for row in infos["final_obs"]][:3] == [[0, 0], [0, 0], [1, 4]]
    assert infos["final_info"]["active"].tolist() == [False, False, True] * 2


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
        envs.step(ZEROS)
        obs, infos = envs.reset(seed=seed, options=second)
        assert obs.tolist() == [[1, 1]] * 3 + [[21, 0]] * 3
        assert infos["_alive"].tolist() == [False] * 3 + [True] * 3


def test_dict_and_tuple_spaces_are_batched():
    class Rich(Herd):
        _obs = dict.fromkeys(Herd._obs, spaces.Dict({"x": Herd._obs["cow_0"], "y": spaces.Discrete(5)}))
        _act = dict.fromkeys(Herd._act, spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)]))

        def _see(self, agent):
            return {"x": super()._see(agent), "y": self.t}

        def step(self, actions):
            return super().step({agent: move + push.sum() for agent, (move, push) in actions.items()})

    with ParallelVectorEnv([Rich] * 2, "dummy") as venv:
        envs = flatten_agents(venv)
        obs, _ = envs.reset(seed=0)
        assert obs in envs.observation_space
        obs, rewards, *_ = envs.step((np.arange(6) % 3, np.full((6, 2), 0.25, np.float32)))
        assert rewards.tolist() == [1.5, 2.5, 3.5] * 2
        assert (obs["x"].shape, obs["y"].tolist()) == ((6, 2), [1] * 6)


def test_the_monitor_of_a_rollout_buffer_is_around_the_envs(herds):
    envs = herds(1, autoreset_mode="same_step", own_episodes=True)
    space, action_space = envs.single_observation_space, envs.single_action_space
    with pytest.raises(TypeError, match="takes the AgentMonitor around the envs as monitor="):
        AgentRolloutBuffer(4, space, action_space, n_envs=3, monitor=SB3VecEnv(envs))


def test_a_collector_takes_agents_with_episodes_of_their_own(herds):
    with SyncDataCollector(herds(autoreset_mode="same_step", own_episodes=True), frames_per_batch=240) as collector:
        assert collector.next().done.any()
