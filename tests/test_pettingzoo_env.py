"""PettingZooEnv: turn-based games in the form of tianshou's PettingZooEnv, in every vector env."""

import sys
from functools import partial

import gymnasium
import numpy as np
import pettingzoo
import pytest
from agent_envs import Herd, RandomPlay, Relay, Zoo, herd_in_turns, play_by_hand

from vecenv import DummyVectorEnv, PettingZooEnv, ShmemVectorEnv

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")


def test_an_id_without_pettingzoo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError, match=r"'classic/rps-v2'.*pip install -U 'vecenv\[pettingzoo\]'"):
        PettingZooEnv("classic/rps-v2")


@pytest.mark.filterwarnings("ignore:(Agents have|Observations are) different:UserWarning")
def test_the_envs_of_these_tests_pass_pettingzoos_api_test():
    from pettingzoo.test import api_test, parallel_api_test

    for make in (Relay, herd_in_turns):
        assert api_test(make(), num_cycles=20) is None
    for make in (Zoo, Herd):
        assert parallel_api_test(make(), num_cycles=50) is None


def test_turns_are_those_of_pettingzoos_own_loop():
    """Agents, observations, masks and the sums of the rewards of one episode, for two envs that play alike."""
    make = partial(pettingzoo.make, "aec", "classic/tictactoe-v3")
    turns, returns = play_by_hand(make(), 2, RandomPlay(make()))
    play = RandomPlay(make())
    with ShmemVectorEnv([lambda: PettingZooEnv(make())] * 2, num_workers=1) as venv:
        obs, _ = venv.reset(seed=[2, 2])
        total = 0
        for t, (agent, seen, info) in enumerate(turns):
            assert obs["agent_id"].tolist() == [agent, agent]
            assert np.array_equal(obs["obs"][1], seen["observation"])
            assert np.array_equal(obs["mask"][1], play.mask(seen, info))
            obs, rew, terminated, truncated, _ = venv.step([play(agent, seen, info)] * 2)
            total = total + rew
            assert (terminated | truncated).tolist() == [t == len(turns) - 1] * 2
    assert total.tolist() == [list(returns.values())] * 2


def test_a_step_after_the_end_is_an_error_that_names_the_env():
    with DummyVectorEnv([lambda: PettingZooEnv("classic/rps-v2")] * 2) as venv:
        with pytest.raises(RuntimeError, match=r"reset\(\)") as caught:
            venv.step([0, 0])
        assert "env 0" in "".join(caught.value.__notes__)


def test_rewards_are_the_callers_to_keep():
    env = PettingZooEnv(herd_in_turns())
    env.reset(seed=0)
    kept = [env.step(1)[1] for _ in range(6)]
    assert [rewards.tolist() for rewards in kept] == [[0, 0, 0], [0, 0, 0], [2, 2, 2]] * 2
    assert env.rewards.tolist() == [2, 2, 2]


def test_it_is_a_gymnasium_env_whose_observations_are_in_its_space():
    env = PettingZooEnv("classic/connect_four-v3")
    assert isinstance(env, gymnasium.Env)
    assert (env.agents, env.agent_idx) == (["player_0", "player_1"], {"player_0": 0, "player_1": 1})
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space
    assert env.step(3)[0] in env.observation_space
    assert (obs["mask"].dtype, info) == (np.bool_, {})
    env.close()
    space = env.observation_space  # with the names that code for tianshou looks for
    assert space["observation"] == space["obs"]
    assert space["observation"].shape == (6, 7, 2)
    assert space["action_mask"] == space["mask"]


def test_without_stacking_every_row_is_the_dict_that_tianshou_has():
    with DummyVectorEnv([lambda: PettingZooEnv("classic/rps-v2")] * 2, stack_obs=False) as venv:
        obs, _ = venv.reset(seed=0)
        assert (obs.shape, obs.dtype) == ((2,), object)
        assert {key: np.asarray(value).tolist() for key, value in obs[1].items()} == {
            "agent_id": "player_0",
            "obs": 3,
            "mask": [True, True, True],
        }


def test_there_is_no_mask_where_actions_are_not_discrete():
    class Free(Relay):
        _obs = dict.fromkeys(Relay.possible_agents, Relay._obs["runner_0"])
        _act = dict.fromkeys(Relay.possible_agents, Relay._act["runner_1"])

    env = PettingZooEnv(Free())
    obs, _ = env.reset()
    assert obs.keys() == {"agent_id", "obs"} == set(env.observation_space)
    assert env.step(np.ones(2, np.float32))[1].tolist() == [2, 0.25, 0.25]
