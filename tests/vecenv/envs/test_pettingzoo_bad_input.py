"""Bad input of PettingZoo vector envs, from callers and from envs: the error names the env and the agent."""

from functools import partial

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces

from tests.support.agent_envs import Herd, Nameless, Relay, Talkative, Zoo
from vecenv import AECVectorEnv, EnvContractError, ObservationError, ParallelVectorEnv, PettingZooEnv

pytestmark = [
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Your environment should override the observation_space"),
]


LEGAL = {"check_legal": True}
COWS = {"cow_0": [0, 0], "cow_1": [0, 0], "cow_2": [0, 0]}
CAT = {"paw": np.zeros((2, 2)), "purr": [0, 1]}
BEASTS = {"cat": CAT, "ant": [0, 2], "bee": [1, 1]}
FIRST, SECOND = {"cow_0": [0, 0]}, {"cow_0": [0, 0], "cow_1": [0, 0]}


@pytest.mark.parametrize(
    ("make", "options", "actions", "id", "error", "message"),
    [
        (Herd, {}, {**COWS, "pig": [0, 0]}, None, ValueError, r"envs \[0, 1\].*'pig'"),
        (Herd, {}, SECOND, None, ValueError, "'cow_2'.*env 0"),
        (Herd, {}, {"cow_0": [0], "cow_1": [0]}, [1], ValueError, "'cow_2'.*env 1"),
        (Herd, {}, {**COWS, "cow_2": [0]}, None, ValueError, r"'cow_2'.*\[0, 1\]"),
        (Herd, {}, {**COWS, "cow_1": [0, [1, 2]]}, None, ValueError, "'cow_1'.* for env 1 has"),
        (Herd, {}, {**COWS, "cow_0": [[0, 1]] * 2}, None, ValueError, r"'cow_0'.*shape \(2, 2\), exp"),
        (Herd, {}, {**COWS, "cow_0": [0.5, 0]}, None, TypeError, "'cow_0'.*whole numbers"),
        (Herd, {}, {**COWS, "cow_0": ["a", 0]}, None, TypeError, "'cow_0'"),
        (Herd, {}, {**COWS, "cow_0": 0}, None, ValueError, "'cow_0'.*single action"),
        (Herd, {}, [0, 0], None, TypeError, r"envs \[0, 1\].*dict"),
        (Herd, {}, COWS, [0, 2], IndexError, "env id 2"),
        (Zoo, {}, {**BEASTS, "cat": {"paw": np.zeros((2, 2))}}, None, ValueError, r"'cat'.*\['paw', 'purr'\]"),
        (Zoo, {}, {**BEASTS, "cat": np.zeros((2, 2))}, None, ValueError, "'cat'.*a dict"),
        (
            Zoo,
            {},
            {**BEASTS, "cat": {**CAT, "paw": np.zeros((2, 3))}},
            None,
            ValueError,
            r"\['paw'\].*\(2, 3\), expected",
        ),
        (Zoo, LEGAL, {**BEASTS, "ant": [0, 1]}, None, ValueError, r"1.* of agent 'ant' in env 1 is illegal.*\[0, 2\]"),
        (Zoo, LEGAL, {**BEASTS, "bee": [4, 1]}, None, ValueError, "agent 'bee' in env 0 is not in its space"),
        (Zoo, LEGAL, {**BEASTS, "cat": {**CAT, "paw": [[0, 0], [0, 9]]}}, None, ValueError, "'cat' in env 1 is not in"),
        (Relay, {}, {"runner_1": [[0, 0]] * 2}, None, ValueError, "'runner_0', which acts next in env 0"),
        (Relay, {}, {"runner_0": [1, 1], "rabbit": [0, 0]}, None, ValueError, "'rabbit'"),
        (Relay, {}, {"runner_0": [1]}, None, ValueError, r"'runner_0'.*envs \[0, 1\]"),
        (Relay, {}, {"runner_0": [[1, 1], [1, 1]]}, None, ValueError, "'runner_0'.* has the shape"),
        (Relay, {}, [1, 1], None, TypeError, "dict"),
        (Relay, LEGAL, {"runner_0": [1, 0]}, None, ValueError, "'runner_0' in env 1 is not in its space"),
    ],
)
def test_wrong_actions_are_refused_before_anything_is_sent(make, options, actions, id, error, message):
    with (AECVectorEnv if make is Relay else ParallelVectorEnv)([make] * 2, "dummy", **options) as venv:
        venv.reset(seed=0)
        with pytest.raises(error, match=message):
            venv.step(actions, id)
        assert venv.get_env_attr("turn" if make is Relay else "t") == [0, 0]
        right = {Herd: COWS, Zoo: BEASTS, Relay: {"runner_0": [1, 3]}}[make]
        rewards = venv.step(right)[1]
        assert [float(np.sum(rewards[agent])) for agent in ("cow_0", "cat") if agent in rewards] in ([2], [10], [])
        assert make is not Relay or rewards[:, 0].tolist() == [1, 3]


ONE_HERD = Herd()


class Strangers(Herd):
    possible_agents = ["cow_0", "cow_1", "wolf"]
    _obs = dict.fromkeys(possible_agents, spaces.Box(-99, 99, (2,), np.float32))
    _act = dict.fromkeys(possible_agents, spaces.Discrete(3))


class Numbered(Herd):
    possible_agents = ["cow_0", "cow_1", "env_id"]
    _obs = dict.fromkeys(possible_agents, spaces.Box(-99, 99, (2,), np.float32))
    _act = dict.fromkeys(possible_agents, spaces.Discrete(3))


class Spaceless(Herd):
    """Env that declares no observation spaces, as in cogrid 0.3.2."""

    observation_space = pettingzoo.ParallelEnv.observation_space


class Pathless(Herd):
    def action_space(self, agent):
        return None


class Farsighted(Herd):
    _obs = {**Herd._obs, "cow_1": spaces.Box(-99, 99, (5,), np.float32)}


NO_GAME = pettingzoo.env_registry.exceptions.NameNotFound
RPS, CART_POLE = partial(pettingzoo.make, "aec", "classic/rps-v2"), partial(gymnasium.make, "CartPole-v1")


def of_one(env_fns):
    return PettingZooEnv(env_fns[0] if isinstance(env_fns[0], str) else env_fns[0]())


@pytest.mark.parametrize(
    ("make", "env_fns", "options", "error", "message"),
    [
        (ParallelVectorEnv, [Herd, Strangers], {}, ValueError, r"env 0 has .*cow_2.*env 1 has .*wolf"),
        (
            ParallelVectorEnv,
            [Herd, Herd, Farsighted],
            {},
            ValueError,
            "agent 'cow_1'.*in env 0, but .* in env 2",
        ),
        (ParallelVectorEnv, [Herd, Talkative], {}, ValueError, "agent 'cow_2'.*in env 0, but Text.* in env 1"),
        (ParallelVectorEnv, [Nameless], {}, TypeError, r"pass possible_agents=\[\.\.\.\]"),
        (
            ParallelVectorEnv,
            [Spaceless],
            {},
            TypeError,
            r"observation_space\('cow_0'\) of .* raised AttributeError.*; define the method observation_space",
        ),
        (ParallelVectorEnv, [Pathless], {}, TypeError, r"action_space\('cow_0'\) of .* returned None, expected a"),
        (ParallelVectorEnv, [RPS], {}, TypeError, "use AECVectorEnv"),
        (ParallelVectorEnv, [lambda: 3], {}, TypeError, "expected a ParallelEnv of PettingZoo, got 3"),
        (ParallelVectorEnv, [Herd], {"possible_agents": ["cow_0", "cow_0"]}, ValueError, "no duplicates"),
        (ParallelVectorEnv, [Herd], {"possible_agents": []}, ValueError, "at least one agent"),
        (ParallelVectorEnv, [Numbered], {}, ValueError, "an agent named 'env_id'.* rename it"),
        (ParallelVectorEnv, Herd, {}, TypeError, "sequence of callables"),
        (ParallelVectorEnv, [], {}, ValueError, "env_fns is empty"),
        (ParallelVectorEnv, [Herd], {"backend": "ship"}, ValueError, "'dummy', 'ray', 'shmem', 'subproc'"),
        (ParallelVectorEnv, [Herd], {"autoreset_mode": "Never"}, ValueError, "Never"),
        (ParallelVectorEnv, [Herd], {"stack_obs": False}, TypeError, "no option 'stack_obs'"),
        (ParallelVectorEnv, ["butterfly/no_such_game-v0"], {}, NO_GAME, "no_such_game"),
        (ParallelVectorEnv, [lambda: ONE_HERD] * 2, {}, ValueError, "same env object"),
        (AECVectorEnv, [Herd], {}, TypeError, "use ParallelVectorEnv"),
        (of_one, [Herd], {}, TypeError, "is a ParallelEnv: use ParallelVectorEnv"),
        (of_one, [Relay], {}, ValueError, "differ in their action space; use AECVectorEnv"),
        (of_one, [CART_POLE], {}, TypeError, "expected an AECEnv of PettingZoo, got .*CartPole"),
        (of_one, [lambda: pettingzoo.utils.parallel_to_aec(Nameless())], {}, TypeError, "pass possible_agents="),
        (of_one, ["classic/no_such_game-v0"], {}, NO_GAME, "no_such_game"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_made(make, env_fns, options, error, message):
    with pytest.raises(error, match=message):
        make(env_fns, **({} if make is of_one else {"backend": "dummy", **options}))


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
