"""Turn-based PettingZoo envs: AECVectorEnv with a turn per step, and PettingZooEnv in tianshou's form.

Random programs compare the results of AECVectorEnv (tests/fuzz/aec.py). tests/messages/agents.py has the errors.
"""

from functools import partial

import gymnasium
import numpy as np
import pettingzoo
import pytest

from tests.fuzz import aec as programs
from tests.fuzz.driver import run
from tests.support.agent_envs import Relay, herd_in_turns
from vecenv import AECVectorEnv, DummyVectorEnv, EnvContractError, PettingZooEnv

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")


class InThisProcess(programs.Fuzz):
    only = "dummy"


@pytest.mark.filterwarnings("ignore")
def test_random_turns_are_those_of_pettingzoos_own_loop():
    """In each autoreset mode, with equal and unequal spaces. The arrays of a result never change later."""
    run(InThisProcess, [0], count=12)


def test_a_policy_that_follows_the_masks_plays_through_the_reset_after_a_full_board():
    with AECVectorEnv(["classic/tictactoe-v3"], "dummy", check_legal=True) as venv:
        venv.reset()
        for move in (0, 1, 2, 4, 3, 5, 7, 6, 8):  # a draw
            _, _, _, _, infos = venv.step([move])
        assert (infos["done"].tolist(), infos["action_mask"].all()) == ([True], True)
        obs, _, _, _, infos = venv.step([infos["action_mask"][0].argmax()])  # resets the env
        assert (obs.any(), infos["done"].tolist()) == (False, [False])


def test_an_illegal_move_ends_the_game_and_the_offender_pays():
    with AECVectorEnv(["classic/tictactoe-v3"] * 2, "dummy") as venv:
        venv.reset(seed=0)
        venv.step([4, 4])
        _, rewards, terminations, _, infos = venv.step([4, 0])
        assert rewards.tolist() == [[0, -1], [0, 0]]
        assert terminations.tolist() == [[True, True], [False, False]]
        assert infos["done"].tolist() == [True, False]
        obs, rewards, _, _, infos = venv.step([0, 1])
        assert rewards.tolist() == [[0, 0], [0, 0]]
        assert (infos["agent"].tolist(), infos["active"].tolist()) == ([0, 1], [[False, False], [True, True]])
        assert not obs[0].any()


def test_an_env_that_keeps_its_dead_is_an_error_and_no_endless_loop():
    class Haunted(Relay):
        def _was_dead_step(self, action):
            pass

    with AECVectorEnv([Haunted], "dummy") as venv:
        venv.reset()
        for agent, action in zip(venv.agents, ([3], [[0.5, 0.25]], [2]), strict=True):
            venv.step({agent: action})
        with pytest.raises(EnvContractError, match="did not remove the dead agent 'runner_0'"):
            venv.step({"runner_0": [1]})


def test_turns_of_a_pettingzoo_env_are_those_of_pettingzoos_own_loop():
    """Compare agents, observations, masks and sums of rewards of an episode that two envs play alike."""
    make = partial(pettingzoo.make, "aec", "classic/tictactoe-v3")
    env, rng, total = make(), np.random.default_rng(0), 0
    env.reset(seed=2)
    returns = dict.fromkeys(env.possible_agents, 0.0)
    with DummyVectorEnv([lambda: PettingZooEnv(make())] * 2) as venv:
        obs, _ = venv.reset(seed=[2, 2])
        for agent in env.agent_iter():
            seen, reward, terminated, _, _ = env.last()
            returns[agent] += reward
            if terminated:
                env.step(None)
                continue
            assert obs["agent_id"].tolist() == [agent, agent]
            assert np.array_equal(obs["obs"][1], seen["observation"])
            assert np.array_equal(obs["mask"][1], seen["action_mask"])
            action = rng.choice(np.flatnonzero(seen["action_mask"]))
            env.step(action)
            obs, rew, terminated, _, _ = venv.step([action] * 2)
            total = total + rew
            assert terminated.tolist() == [env.terminations[agent]] * 2
    assert total.tolist() == [list(returns.values())] * 2


def test_rewards_are_the_callers_to_keep():
    env = PettingZooEnv(herd_in_turns())
    env.reset(seed=0)
    kept = [env.step(1)[1] for _ in range(6)]
    assert [rewards.tolist() for rewards in kept] == [[0, 0, 0], [0, 0, 0], [2, 2, 2]] * 2
    assert env.rewards.tolist() == [2, 2, 2]


def test_it_is_a_gymnasium_env_whose_observations_are_in_its_space():
    """The space has the names that tianshou's code uses."""
    env = PettingZooEnv("classic/connect_four-v3")
    assert isinstance(env, gymnasium.Env)
    assert (env.agents, env.agent_idx) == (["player_0", "player_1"], {"player_0": 0, "player_1": 1})
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space
    assert env.step(3)[0] in env.observation_space
    assert (obs["mask"].dtype, info) == (np.bool_, {})
    space = env.observation_space
    assert (space["observation"], space["action_mask"]) == (space["obs"], space["mask"])
    env.close()


def test_without_stacking_every_row_is_the_dict_that_tianshou_has():
    with DummyVectorEnv([lambda: PettingZooEnv("classic/rps-v2")] * 2, stack_obs=False) as venv:
        obs, _ = venv.reset(seed=0)
        assert (obs.shape, obs.dtype) == ((2,), object)
        row = {key: np.asarray(value).tolist() for key, value in obs[1].items()}
        assert row == {"agent_id": "player_0", "obs": 3, "mask": [True] * 3}


def test_there_is_no_mask_where_actions_are_not_discrete():
    class Free(Relay):
        _obs = dict.fromkeys(Relay.possible_agents, Relay._obs["runner_0"])
        _act = dict.fromkeys(Relay.possible_agents, Relay._act["runner_1"])

    env = PettingZooEnv(Free())
    obs, _ = env.reset()
    assert obs.keys() == {"agent_id", "obs"} == set(env.observation_space)
    assert env.step(np.ones(2, np.float32))[1].tolist() == [2, 0.25, 0.25]
