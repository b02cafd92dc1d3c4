"""What ParallelVectorEnv refuses, from its callers and from its envs, with the env and the agent in the message."""

import numpy as np
import pettingzoo
import pytest
from agent_envs import Herd, Nameless, Talkative, Zoo
from gymnasium import spaces

from vecenv import EnvContractError, ObservationError, ParallelVectorEnv


def all_do(venv, actions):
    """The same batch of actions for every agent."""
    return dict.fromkeys(venv.agents, actions)


@pytest.mark.parametrize(
    ("actions", "id", "error", "message"),
    [
        ({"cow_0": [0, 0], "cow_1": [0, 0], "pig": [0, 0]}, None, ValueError, r"envs \[0, 1\].*'pig'"),
        ({"cow_0": [0, 0], "cow_1": [0, 0]}, None, ValueError, "'cow_2'.*env 0"),
        ({"cow_0": [0], "cow_1": [0]}, [1], ValueError, "'cow_2'.*env 1"),
        ({"cow_0": [0, 0], "cow_1": [0, 0], "cow_2": [0]}, None, ValueError, r"'cow_2'.*\[0, 1\]"),
        ({"cow_0": [0, 0], "cow_1": [0, [1, 2]], "cow_2": [0, 0]}, None, ValueError, "'cow_1'.* for env 1 has"),
        ({"cow_0": [[0, 1]] * 2, "cow_1": [0, 0], "cow_2": [0, 0]}, None, ValueError, r"'cow_0'.*shape \(2, 2\), exp"),
        ({"cow_0": [0.5, 0], "cow_1": [0, 0], "cow_2": [0, 0]}, None, TypeError, "'cow_0'.*not whole"),
        ({"cow_0": ["a", 0], "cow_1": [0, 0], "cow_2": [0, 0]}, None, TypeError, "'cow_0'"),
        ({"cow_0": 0, "cow_1": [0, 0], "cow_2": [0, 0]}, None, ValueError, "'cow_0'.*single action"),
        ([0, 0], None, TypeError, r"envs \[0, 1\].*dict"),
        ({"cow_0": [0, 0], "cow_1": [0, 0], "cow_2": [0, 0]}, [0, 2], IndexError, "env id 2"),
    ],
)
def test_wrong_actions_are_refused_before_anything_is_sent(actions, id, error, message):
    with ParallelVectorEnv([Herd] * 2, "dummy") as venv:
        venv.reset(seed=0)
        with pytest.raises(error, match=message):
            venv.step(actions, id)
        assert venv.get_env_attr("t") == [0, 0]
        assert venv.step(all_do(venv, [0, 0]))[0]["cow_0"].tolist() == [[1, 1], [2, 1]]


def test_wrong_parts_of_a_dict_action_are_refused():
    with ParallelVectorEnv([Zoo], "dummy") as venv:
        venv.reset(seed=0)
        for cat, message in (
            ({"paw": np.zeros((1, 2))}, r"'cat'.*\['paw', 'purr'\]"),
            (np.zeros((1, 2)), "'cat'.*a dict"),
            ({"paw": np.zeros((1, 3)), "purr": [0]}, r"'cat'\['paw'\].*shape \(1, 3\), expected \(1, 2\)"),
        ):
            with pytest.raises(ValueError, match=message):
                venv.step({"cat": cat, "ant": [0], "bee": [0]})


def test_illegal_actions_are_refused_on_request():
    with ParallelVectorEnv([Zoo] * 2, "dummy", check_legal=True) as venv:
        venv.reset(seed=0)
        cat = {"paw": np.zeros((2, 2)), "purr": [0, 1]}
        with pytest.raises(ValueError, match=r"action .*1.* of agent 'ant' in env 1 is illegal.*\[0, 2\]"):
            venv.step({"cat": cat, "ant": [0, 1], "bee": [1, 1]})
        with pytest.raises(ValueError, match="agent 'bee' in env 0 is not in its space"):
            venv.step({"cat": cat, "ant": [0, 2], "bee": [4, 1]})
        with pytest.raises(ValueError, match="agent 'cat' in env 1 is not in its space"):
            venv.step({"cat": {"paw": [[0, 0], [0, 9]], "purr": [0, 1]}, "ant": [0, 2], "bee": [1, 1]})
        assert venv.get_env_attr("t") == [0, 0]
        assert venv.step({"cat": cat, "ant": [0, 2], "bee": [1, 1]})[1]["cat"].tolist() == [0, 10]


class Strangers(Herd):
    possible_agents = ["cow_0", "cow_1", "wolf"]
    _obs = dict.fromkeys(possible_agents, spaces.Box(-99, 99, (2,), np.float32))
    _act = dict.fromkeys(possible_agents, spaces.Discrete(3))


class Farsighted(Herd):
    _obs = {**Herd._obs, "cow_1": spaces.Box(-99, 99, (5,), np.float32)}


@pytest.mark.parametrize(
    ("env_fns", "options", "error", "message"),
    [
        ([Herd, Strangers], {}, ValueError, r"env 0 has .*cow_2.*env 1 has .*wolf"),
        ([Herd, Herd, Farsighted], {}, ValueError, "observation space of agent 'cow_1'.*in env 0, but .* in env 2"),
        ([Herd, Talkative], {}, ValueError, "action space of agent 'cow_2'.*in env 0, but Text.* in env 1"),
        ([Nameless], {}, TypeError, r"pass possible_agents=\[\.\.\.\]"),
        ([lambda: pettingzoo.make("aec", "classic/rps-v2")], {}, TypeError, "use AECVectorEnv"),
        ([lambda: 3], {}, TypeError, "expected a ParallelEnv of PettingZoo, got 3"),
        ([Herd], {"possible_agents": ["cow_0", "cow_0"]}, ValueError, "no two the same"),
        ([Herd], {"possible_agents": []}, ValueError, "one or more"),
        (Herd, {}, TypeError, "sequence of callables"),
        ([], {}, ValueError, "env_fns is empty"),
        ([Herd], {"backend": "ship"}, ValueError, "'dummy', 'ray', 'shmem', 'subproc'"),
        ([Herd], {"autoreset_mode": "Never"}, ValueError, "Never"),
        ([Herd], {"stack_obs": False}, TypeError, "no option 'stack_obs'"),
        (["butterfly/no_such_game-v0"], {}, pettingzoo.env_registry.exceptions.NameNotFound, "no_such_game"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_made(env_fns, options, error, message):
    with pytest.raises(error, match=message):
        ParallelVectorEnv(env_fns, **{"backend": "dummy", **options})


class Wrong(Herd):
    def _see(self, agent):
        return np.zeros(3, np.float32) if agent == "cow_1" else super()._see(agent)


class Shy(Herd):
    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed, options)
        return {"cow_0": obs["cow_0"]}, infos


@pytest.mark.parametrize(
    ("env_fns", "options", "error", "message"),
    [
        ([Nameless], {"possible_agents": ["cow_2", "cow_0"]}, EnvContractError, "0: the agent 'cow_1' is not one of"),
        ([Herd, Wrong], {}, ObservationError, "env 1: .*cow_1"),
        ([Shy], {}, EnvContractError, "env 0: agent 'cow_1' is alive"),
    ],
)
def test_what_an_env_gives_against_its_contract_names_the_env_and_the_agent(env_fns, options, error, message):
    with ParallelVectorEnv(env_fns, "dummy", **options) as venv, pytest.raises(error, match=message):
        venv.reset()


def test_an_env_object_that_two_functions_share_is_refused():
    env = Herd()
    with pytest.raises(ValueError, match="same env object"):
        ParallelVectorEnv([lambda: env, lambda: env], "dummy")
