"""Messages of PettingZoo's vector envs: the error names the env and the agent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from operator import methodcaller as call
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from pettingzoo.utils import parallel_to_aec

from collector import SyncDataCollector
from tests.messages.rows import NOTHING, Row, Subject, each, rows_for
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
CAT: dict[str, Any] = {"paw": np.zeros((2, 2)), "purr": [0, 1]}
BEASTS: dict[str, Any] = {"cat": CAT, "ant": [0, 2], "bee": [1, 1]}


class Pair(Herd):
    _act = {**Herd._act, "cow_1": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)])}

    def step(self, actions: Any) -> Any:
        return super().step({**actions, "cow_1": actions["cow_1"][0]})


RIGHT: dict[Any, Any] = {Herd: COWS, Zoo: BEASTS, Relay: {"runner_0": [1, 3]}, herd_in_turns: [0, 0]}
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

    calls = [(call("step", *arguments), *more) for arguments, *more in rows]
    return rows_for(Subject(ready, works), *calls)


def ended() -> Any:
    venv = ParallelVectorEnv([Herd] * 2, "dummy", autoreset_mode="Disabled")
    venv.reset(seed=0)
    for _ in range(4):
        venv.step(COWS)
    return venv


MUST_BE = "must be a dict with a batch for each agent of ['cow_0', 'cow_1', 'cow_2'], got a list"
ACTIONS = [
    *actions_of(
        Herd,
        ([{**COWS, "pig": [0, 0]}], ValueError, "envs [0, 1] have the unknown agent 'pig'"),
        ([{"cow_0": [0], "cow_1": [0]}, [1]], ValueError, "no actions for agent 'cow_2', which acts next in env 1"),
        ([{**COWS, "cow_2": [0]}], ValueError, "agent 'cow_2': got 1 actions for 2 envs [0, 1]"),
        ([{**COWS, "cow_1": [0, [1, 2]]}], ValueError, "agent 'cow_1': action for env 1 has the shape (2,), expected"),
        ([{**COWS, "cow_0": [0.5, 0]}], TypeError, "'cow_0': action for envs [0, 1] must be whole numbers"),
        ([{**COWS, "cow_0": ["a", 0]}], TypeError, "'cow_0' for envs [0, 1] cannot be cast to int64"),
        ([[0, 0]], TypeError, "envs [0, 1]", MUST_BE),
    ),
    *actions_of(
        Zoo,
        ([{**BEASTS, "cat": {"paw": np.zeros((2, 2))}}], ValueError, "'cat' for envs [0, 1]", "['paw', 'purr'], got"),
        ([{**BEASTS, "cat": {**CAT, "paw": np.zeros((2, 3))}}], ValueError, "['paw']", "shape (2, 3), expected (2, 2)"),
    ),
    *actions_of(
        Zoo,
        ([{**BEASTS, "ant": [0, 1]}], ValueError, "of agent 'ant' in env 1 is illegal", "[0, 2]"),
        ([{**BEASTS, "cat": {**CAT, "paw": [[0, 0], [0, 9]]}}], ValueError, "of agent 'cat' in env 1 is not in"),
        check_legal=True,
    ),
    *actions_of(
        Pair,
        ([{**COWS, "cow_1": [(0, [0.0, 1.0]), (2, [1.0, 1.0])]}], ValueError, "'cow_1' for envs", "must be a tuple"),
    ),
    *actions_of(herd_in_turns, ([[0, 1, 2]], ValueError, "3 actions for 2 envs [0, 1]")),
    *rows_for(
        Subject(ended, call("reset")), (call("step", COWS), RuntimeError, "env 0", "episode is over", "reset(0)")
    ),
]


def herd(*agents: Any) -> type[Herd]:
    """Return a class of herds with these agents."""
    same = {name: dict.fromkeys(agents, getattr(Herd, name)["cow_0"]) for name in ("_obs", "_act")}
    return type("Named", (Herd,), {"possible_agents": list(agents), **same})


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


def parallel(*env_fns: Any, **options: Any) -> Callable[[], object]:
    def make() -> None:
        with ParallelVectorEnv(list(env_fns), **{"backend": "dummy", **options}) as venv:
            venv.reset()

    return make


def flat(*calls: Any, own_episodes: bool = False, **options: Any) -> Callable[[], object]:
    """Return a call that makes rows of agents, and makes these calls."""

    def make() -> None:
        with ParallelVectorEnv([Herd] * 2, "dummy", **options) as venv:
            envs = flatten_agents(venv, own_episodes=own_episodes)
            for use in calls:
                use(envs)

    return make


def rps() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pettingzoo.make("aec", "classic/rps-v2")


def closed(use: Callable[[Any], object]) -> object:
    venv = ParallelVectorEnv([Herd], "dummy")
    venv.close()
    return use(venv)


def one(make: Any) -> Callable[[], object]:
    return lambda: PettingZooEnv(make() if callable(make) else make)


def masked(*rows: bool) -> Callable[[Any], object]:
    return lambda envs: envs.reset(options={"reset_mask": np.array(rows)})


def with_agents(agents: Any) -> None:
    parallel(Herd, possible_agents=agents)()


def synchronous(envs: Any) -> object:
    return SyncDataCollector(envs, frames_per_batch=8)


NO_GAME = pettingzoo.env_registry.exceptions.NameNotFound
CART_POLE = partial(gymnasium.make, "CartPole-v1")
RESET = call("reset", seed=0)
HALF_A_GAME = masked(*[True] * 4, False, False)
CONSTRUCTORS = rows_for(
    NOTHING,
    (parallel(Herd, herd("cow_0", "cow_1", "wolf")), ValueError, "env 0 has", "cow_2", "env 1 has", "wolf"),
    (parallel(Herd, Herd, Farsighted), ValueError, "agent 'cow_1'", "in env 0, but", "in env 2"),
    (parallel(Herd, Talkative), ValueError, "agent 'cow_2'", "in env 0, but Text"),
    (parallel(Nameless), TypeError, "pass possible_agents=[...]"),
    (parallel(Spaceless), TypeError, "observation_space('cow_0') of", "raised AttributeError"),
    (parallel(Pathless), TypeError, "action_space('cow_0') of", "returned None, expected a"),
    (parallel(rps), TypeError, "use AECVectorEnv"),
    (parallel(lambda: 3), TypeError, "expected a ParallelEnv of PettingZoo, got 3"),
    (each((["cow_0"] * 2, []), with_agents), ValueError, "must have at least one agent and no duplicates, got VALUE"),
    (parallel(herd("cow_0", "cow_1", "env_id")), ValueError, "an agent named 'env_id'", "rename it"),
    (parallel(Herd, backend="ship"), ValueError, "'dummy', 'ray', 'shmem', 'subproc'"),
    (parallel(Herd, stack_obs=False), TypeError, "no option 'stack_obs'"),
    ([parallel("classic/no_game-v0"), one("classic/no_game-v0")], NO_GAME, "'classic/no_game-v0' not found"),
    ([lambda: AECVectorEnv([Herd], "dummy"), one(Herd)], TypeError, "is a ParallelEnv: use ParallelVectorEnv"),
    (lambda: AECVectorEnv([lambda: parallel_to_aec(AllTalk())], "dummy"), TypeError, "expected a space of arrays"),
    (one(Relay), ValueError, "differ in their action space; use AECVectorEnv"),
    (one(CART_POLE), TypeError, "expected an AECEnv of PettingZoo, got", "CartPole"),
    (one(lambda: parallel_to_aec(herd(1, 2, 3)())), TypeError, "the names of agents must be strings", "AECVectorEnv"),
    (lambda: PettingZooEnv(herd_in_turns()).step(0), RuntimeError, "no agent is alive", "call reset()"),
    (parallel(Nameless, possible_agents=["cow_2", "cow_0"]), EnvContractError, "0: the agent 'cow_1' is not one of"),
    (parallel(Herd, Wrong), ObservationError, "env 1: obs['obs']['cow_1'] is float32 (3,)"),
    (parallel(Shy), EnvContractError, "env 0: agent 'cow_1' is alive"),
    (each((RESET, call("recv"), call("step", {})), closed), ClosedError, "cannot be called after close"),
    (lambda: flatten_agents(vector_env(Zoo)), ValueError, "observation space; rows need one", "ant"),
    (flat(wait_num=1), ValueError, "without wait_num"),
    (lambda: flatten_agents(vector_env(herd_in_turns)), TypeError, "takes a ParallelVectorEnv"),
    (flat(autoreset_mode="Disabled", own_episodes=True), ValueError, '"next_step" or "same_step", not DISABLED'),
    (flat(SB3VecEnv), ValueError, "flatten_agents(ParallelVectorEnv(3 agents", "autoreset_mode=AutoresetMode"),
    (flat(RESET, call("step", np.zeros(2, int))), ValueError, "shape (2,) for 6 rows"),
    (flat(call("reset", seed=[0, 1, 2, 3])), ValueError, "got 4 seeds, expected 6 (one for each row) or 2"),
    (flat(masked(*[True] * 3, *[False] * 3), autoreset_mode=AutoresetMode.DISABLED), RuntimeError, "first reset must"),
    (flat(RESET, HALF_A_GAME, autoreset_mode="Disabled"), ValueError, "some rows of env 1", "cow_0"),
    (flat(synchronous, own_episodes=True), ValueError, "use AsyncDataCollector"),
)
ROWS = [*ACTIONS, *CONSTRUCTORS]
