"""Messages of PettingZoo's vector envs: the error names the env and the agent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from pettingzoo.utils import parallel_to_aec

from collector import SyncDataCollector
from tests.messages.rows import NOTHING, Row, Subject, rows_for
from tests.support.agent_envs import Herd, Nameless, Relay, Talkative, Zoo, herd_in_turns
from vecenv import (
    AECVectorEnv,
    ClosedError,
    EnvContractError,
    ObservationError,
    ParallelVectorEnv,
    PettingZooEnv,
    SB3VecEnv,
    flatten_agents,
)

COWS = {"cow_0": [0, 0], "cow_1": [0, 0], "cow_2": [0, 0]}
CAT = {"paw": np.zeros((2, 2)), "purr": [0, 1]}
BEASTS = {"cat": CAT, "ant": [0, 2], "bee": [1, 1]}
RIGHT: dict[Any, Any] = {Herd: COWS, Zoo: BEASTS, Relay: {"runner_0": [1, 3]}, herd_in_turns: [0, 0]}


class Pair(Herd):
    _act = {**Herd._act, "cow_1": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)])}

    def step(self, actions: Any) -> Any:
        return super().step({**actions, "cow_1": actions["cow_1"][0]})


RIGHT[Pair] = {**COWS, "cow_1": ([0, 0], np.zeros((2, 2)))}


def vector_env(make: Any, n: int = 2, **options: Any) -> Any:
    kind = AECVectorEnv if make in (Relay, herd_in_turns) else ParallelVectorEnv
    return kind([make] * n, "dummy", **options)


def actions_of(make: Any, *rows: Any, **options: Any) -> list[Row]:
    """Return rows of actions that are refused before anything is sent."""

    def ready() -> Any:
        venv = vector_env(make, **options)
        venv.reset(seed=0)
        return venv

    counter = {Relay: "turn", herd_in_turns: None}.get(make, "t")

    def works(venv: Any) -> None:
        assert counter is None or venv.get_env_attr(counter) == [0, 0]
        venv.step(RIGHT[make])

    calls = [(lambda venv, actions=actions, ids=ids: venv.step(actions, ids), *more) for actions, ids, *more in rows]
    return rows_for(Subject(ready, works), *calls)


def ended(mode: str) -> Any:
    venv = ParallelVectorEnv([Herd] * 2, "dummy", autoreset_mode=mode)
    venv.reset(seed=0)
    for _ in range(4):
        venv.step(COWS)
    return venv


ACTIONS = [
    *actions_of(
        Herd,
        ({**COWS, "pig": [0, 0]}, None, ValueError, "envs [0, 1]", "'pig'"),
        ({"cow_0": [0, 0], "cow_1": [0, 0]}, None, ValueError, "'cow_2'", "env 0"),
        ({"cow_0": [0], "cow_1": [0]}, [1], ValueError, "'cow_2'", "env 1"),
        ({**COWS, "cow_2": [0]}, None, ValueError, "'cow_2'", "[0, 1]"),
        ({**COWS, "cow_1": [0, [1, 2]]}, None, ValueError, "'cow_1'", "for env 1 has"),
        ({**COWS, "cow_0": [[0, 1]] * 2}, None, ValueError, "'cow_0'", "shape (2, 2), exp"),
        ({**COWS, "cow_0": [0.5, 0]}, None, TypeError, "'cow_0'", "whole numbers"),
        ({**COWS, "cow_0": ["a", 0]}, None, TypeError, "'cow_0'"),
        ({**COWS, "cow_0": 0}, None, ValueError, "'cow_0'", "single action"),
        ([0, 0], None, TypeError, "envs [0, 1]", "dict"),
        (COWS, [0, 2], IndexError, "env id 2"),
    ),
    *actions_of(
        Zoo,
        ({**BEASTS, "cat": {"paw": np.zeros((2, 2))}}, None, ValueError, "'cat'", "['paw', 'purr']"),
        ({**BEASTS, "cat": np.zeros((2, 2))}, None, ValueError, "'cat'", "a dict"),
        ({**BEASTS, "cat": {**CAT, "paw": np.zeros((2, 3))}}, None, ValueError, "['paw']", "(2, 3), expected"),
    ),
    *actions_of(
        Zoo,
        ({**BEASTS, "ant": [0, 1]}, None, ValueError, "of agent 'ant' in env 1 is illegal", "[0, 2]"),
        ({**BEASTS, "bee": [4, 1]}, None, ValueError, "agent 'bee' in env 0 is not in its space"),
        ({**BEASTS, "cat": {**CAT, "paw": [[0, 0], [0, 9]]}}, None, ValueError, "'cat' in env 1 is not in"),
        check_legal=True,
    ),
    *actions_of(
        Pair,
        ({**COWS, "cow_1": [(0, [0.0, 1.0]), (2, [1.0, 1.0])]}, None, ValueError, "'cow_1'", "must be a tuple"),
    ),
    *actions_of(
        Relay,
        ({"runner_1": [[0, 0]] * 2}, None, ValueError, "'runner_0', which acts next in env 0"),
        ({"runner_0": [1, 1], "rabbit": [0, 0]}, None, ValueError, "'rabbit'"),
        ({"runner_0": [1]}, None, ValueError, "'runner_0'", "envs [0, 1]"),
        ({"runner_0": [[1, 1], [1, 1]]}, None, ValueError, "'runner_0'", "has the shape"),
        ([1, 1], None, TypeError, "dict"),
    ),
    *actions_of(
        Relay,
        ({"runner_0": [1, 0]}, None, ValueError, "'runner_0' in env 1 is not in its space"),
        check_legal=True,
    ),
    *actions_of(
        herd_in_turns,
        ([0, 1, 2], None, ValueError, "3 actions for 2 envs [0, 1]"),
        ([[0, 1], [1, 2]], None, ValueError, "envs [0, 1] has the shape (2, 2),"),
        ([0.5, 1], None, TypeError, "must be whole numbers"),
    ),
    *rows_for(
        Subject(lambda: ended("Disabled"), lambda venv: venv.reset()),
        (lambda venv: venv.step(COWS), RuntimeError, "env 0", "episode is over", "reset(0)"),
    ),
    *rows_for(
        Subject(lambda: vector_env(Herd), lambda venv: venv.reset()),
        (lambda venv: venv.step(COWS), RuntimeError, "env 0 has not been reset", "reset(0)"),
    ),
]


class Strangers(Herd):
    possible_agents = ["cow_0", "cow_1", "wolf"]
    _obs = dict.fromkeys(possible_agents, Herd._obs["cow_0"])
    _act = dict.fromkeys(possible_agents, Herd._act["cow_0"])


class Numbered(Strangers):
    possible_agents = ["cow_0", "cow_1", "env_id"]
    _obs = dict.fromkeys(possible_agents, Herd._obs["cow_0"])
    _act = dict.fromkeys(possible_agents, Herd._act["cow_0"])


class Counted(Herd):
    possible_agents = [1, 2, 3]
    _obs = dict.fromkeys(possible_agents, Herd._obs["cow_0"])
    _act = dict.fromkeys(possible_agents, Herd._act["cow_0"])


class Spaceless(Herd):
    """Env that declares no observation spaces, as in cogrid 0.3.2."""

    def observation_space(self, agent: Any) -> Any:
        with warnings.catch_warnings(action="ignore"):  # PettingZoo warns
            return pettingzoo.ParallelEnv.observation_space(self, agent)


class Pathless(Herd):
    def action_space(self, agent: Any) -> Any:
        return None


class Farsighted(Herd):
    _obs = {**Herd._obs, "cow_1": spaces.Box(-99, 99, (5,), np.float32)}


class Wrong(Herd):
    def _see(self, agent: Any) -> Any:
        return np.zeros(3, np.float32) if agent == "cow_1" else super()._see(agent)


class Shy(Herd):
    def reset(self, seed: Any = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed, options)
        return {"cow_0": obs["cow_0"]}, infos


class AllTalk(Talkative):
    _act = dict.fromkeys(Herd._act, spaces.Text(5))


ONE_HERD = Herd()
NO_GAME = pettingzoo.env_registry.exceptions.NameNotFound


def parallel(*env_fns: Any, **options: Any) -> Callable[[Any], object]:
    def call(_: Any) -> None:
        with ParallelVectorEnv(list(env_fns), **{"backend": "dummy", **options}) as venv:
            venv.reset()

    return call


def flat(*calls: Any, n: int = 2, own_episodes: bool = False, **options: Any) -> Callable[[Any], object]:
    """Return a call that makes rows of agents, and makes these calls."""

    def call(_: Any) -> None:
        with ParallelVectorEnv([Herd] * n, "dummy", **options) as venv:
            envs = flatten_agents(venv, own_episodes=own_episodes)
            for each in calls:
                each(envs)

    return call


def rps() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pettingzoo.make("aec", "classic/rps-v2")


def closed() -> ParallelVectorEnv:
    venv = ParallelVectorEnv([Herd], "dummy")
    venv.close()
    return venv


def one(make: Any, **options: Any) -> Callable[[Any], object]:
    return lambda _: PettingZooEnv(make() if callable(make) else make, **options)


def masked(*rows: bool) -> Callable[[Any], object]:
    return lambda envs: envs.reset(options={"reset_mask": np.array(rows)})


def reset(envs: Any) -> None:
    envs.reset(seed=0)


def after_end(_: Any) -> None:
    PettingZooEnv(herd_in_turns()).step(0)


CART_POLE = partial(gymnasium.make, "CartPole-v1")
CONSTRUCTORS = rows_for(
    NOTHING,
    (parallel(Herd, Strangers), ValueError, "env 0 has", "cow_2", "env 1 has", "wolf"),
    (parallel(Herd, Herd, Farsighted), ValueError, "agent 'cow_1'", "in env 0, but", "in env 2"),
    (parallel(Herd, Talkative), ValueError, "agent 'cow_2'", "in env 0, but Text"),
    (parallel(Nameless), TypeError, "pass possible_agents=[...]"),
    (parallel(Spaceless), TypeError, "observation_space('cow_0') of", "raised AttributeError"),
    (parallel(Pathless), TypeError, "action_space('cow_0') of", "returned None, expected a"),
    (parallel(rps), TypeError, "use AECVectorEnv"),
    (parallel(lambda: 3), TypeError, "expected a ParallelEnv of PettingZoo, got 3"),
    (parallel(Herd, possible_agents=["cow_0", "cow_0"]), ValueError, "no duplicates"),
    (parallel(Herd, possible_agents=[]), ValueError, "at least one agent"),
    (parallel(Numbered), ValueError, "an agent named 'env_id'", "rename it"),
    (lambda _: ParallelVectorEnv(Herd, "dummy"), TypeError, "sequence of callables"),
    (parallel(), ValueError, "env_fns is empty"),
    (parallel(Herd, backend="ship"), ValueError, "'dummy', 'ray', 'shmem', 'subproc'"),
    (parallel(Herd, autoreset_mode="Never"), ValueError, "Never"),
    (parallel(Herd, stack_obs=False), TypeError, "no option 'stack_obs'"),
    (parallel("butterfly/no_such_game-v0"), NO_GAME, "no_such_game"),
    (parallel(lambda: ONE_HERD, lambda: ONE_HERD), ValueError, "same env object"),
    (lambda _: AECVectorEnv([Herd], "dummy"), TypeError, "use ParallelVectorEnv"),
    (lambda _: AECVectorEnv([lambda: parallel_to_aec(AllTalk())], "dummy"), TypeError, "expected a space of arrays"),
    (one(Herd), TypeError, "is a ParallelEnv: use ParallelVectorEnv"),
    (one(Relay), ValueError, "differ in their action space; use AECVectorEnv"),
    (one(CART_POLE), TypeError, "expected an AECEnv of PettingZoo, got", "CartPole"),
    (one(lambda: parallel_to_aec(Nameless())), TypeError, "pass possible_agents="),
    (one(lambda: parallel_to_aec(Counted())), TypeError, "the names of agents must be strings", "use AECVectorEnv"),
    (one("classic/no_such_game-v0"), NO_GAME, "no_such_game"),
    (after_end, RuntimeError, "call reset()"),
    (parallel(Nameless, possible_agents=["cow_2", "cow_0"]), EnvContractError, "0: the agent 'cow_1' is not one of"),
    (parallel(Herd, Wrong), ObservationError, "env 1: ", "cow_1"),
    (parallel(Shy), EnvContractError, "env 0: agent 'cow_1' is alive"),
    *(
        (lambda _, name=name: getattr(closed(), name)(), ClosedError, "cannot be called after close")
        for name in ("reset", "recv", "seed")
    ),
    (lambda _: closed().step({}), ClosedError, "cannot be called after close"),
    (lambda _: flatten_agents(vector_env(Zoo)), ValueError, "observation space; rows need one", "ant"),
    (flat(wait_num=1), ValueError, "without wait_num"),
    (lambda _: flatten_agents(vector_env(herd_in_turns)), TypeError, "takes a ParallelVectorEnv"),
    (flat(autoreset_mode="Disabled", own_episodes=True), ValueError, "not DISABLED"),
    (flat(SB3VecEnv), ValueError, "flatten_agents(ParallelVectorEnv(3 agents", "autoreset_mode=AutoresetMode"),
    (flat(reset, lambda envs: envs.step(np.zeros(2, int))), ValueError, "shape (2,) for 6 rows"),
    (flat(lambda envs: envs.reset(seed=[0, 1, 2, 3])), ValueError, "got 4 seeds, expected 6 (one for each row) or 2"),
    (flat(masked(*[True] * 3, *[False] * 3), autoreset_mode=AutoresetMode.DISABLED), RuntimeError, "first reset must"),
    (
        flat(reset, masked(*[True] * 4, False, False), autoreset_mode="Disabled"),
        ValueError,
        "some rows of env 1",
        "cow_0",
    ),
    (flat(lambda envs: SyncDataCollector(envs, frames_per_batch=8), own_episodes=True), ValueError, "use Async"),
)
ROWS = [*ACTIONS, *CONSTRUCTORS]
