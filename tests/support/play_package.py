"""Play the env of a package alone and in vector envs, and print what was seen, for `tests/works_with.py`."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np

import vecenv

N, STEPS, SEED = 3, 60, 3
Trace = list[Any]


def make(expression: str, module: str) -> Any:
    """Make the env of a package."""
    names = {"gymnasium": gymnasium}
    for name in (module, *expression.split("(")[0].rpartition(".")[0].split()):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        names[name.partition(".")[0]] = sys.modules[name.partition(".")[0]]
    return eval(expression, names)


def expressions(row: dict[str, Any]) -> Iterator[str]:
    """Yield the env of the row, or the ids that the import of the package registers."""
    if "env" in row:
        yield row["env"]
        return
    before = set(gymnasium.registry)
    importlib.import_module(row["import"])
    yield from (f'gymnasium.make("{name}")' for name in gymnasium.registry if name not in before)


def working(row: dict[str, Any]) -> str:
    """Return the first expression that makes an env which steps."""
    errors = []
    for expression in expressions(row):
        try:
            env = make(expression, row["import"])
            env.reset(seed=SEED)
            env.close()
            return expression
        except Exception as error:
            errors.append(f"{expression}: {error!r}"[:150])
    raise RuntimeError(f"no env: {errors[:5]}")


def actions(env_fn: Callable[[], Any]) -> list[list[Any]]:
    """Return the actions of each step and env."""
    env = env_fn()
    found = []
    for i in range(N):
        env.action_space.seed(i)
        found.append([env.action_space.sample() for _ in range(STEPS)])
    env.close()
    return [list(step) for step in zip(*found, strict=True)]


def seed_globals() -> None:
    import random

    random.seed(0)
    np.random.seed(0)


def alone(env_fn: Callable[[], Any], steps: list[list[Any]]) -> list[Trace]:
    """Return a trace per env: observations, rewards and flags. A reset follows an end."""
    seed_globals()
    envs = [env_fn() for _ in range(N)]
    traces: list[Trace] = [[copy.deepcopy(env.reset(seed=SEED + i)[0])] for i, env in enumerate(envs)]
    for step in steps:
        for env, trace, action in zip(envs, traces, step, strict=True):
            obs, reward, terminated, truncated, _ = env.step(action)
            trace.append(copy.deepcopy((obs, np.asarray(reward, float), bool(terminated), bool(truncated))))
        for env, trace in zip(envs, traces, strict=True):
            if any(trace[-1][2:]):
                trace.append(copy.deepcopy(env.reset()[0]))
    for env in envs:
        env.close()
    return traces


def together(cls: Any, env_fn: Callable[[], Any], steps: list[list[Any]], **options: Any) -> list[Trace]:
    """Return the traces of a vector env of vecenv."""
    seed_globals()
    with cls([env_fn] * N, **options) as venv:
        obs, _ = venv.reset(seed=SEED)
        traces: list[Trace] = [[vecenv.nest.take(obs, i)] for i in range(N)]
        for step in steps:
            obs, rew, terminated, truncated, _ = venv.step(step)
            for i, trace in enumerate(traces):
                trace.append((vecenv.nest.take(obs, i), rew[i], bool(terminated[i]), bool(truncated[i])))
            ended = np.flatnonzero(terminated | truncated)
            if len(ended):
                obs, _ = venv.reset(ended)
                for row, i in enumerate(ended):
                    traces[i].append(vecenv.nest.take(obs, row))
    return traces


def same(left: Any, right: Any) -> bool:
    try:
        np.testing.assert_equal(_plain(left), _plain(right))
    except AssertionError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Return a tree of lists and arrays, so that an OrderedDict equals a dict and a tuple equals a list."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else np.asarray(value)


def first_episode(traces: list[Trace]) -> list[Trace]:
    """Return the traces up to the first end of each env."""
    ends = [next((t + 1 for t, row in enumerate(each) if t and any(row[2:])), len(each)) for each in traces]
    return [each[:end] for each, end in zip(traces, ends, strict=True)]


def status(env_fn: Callable[[], Any]) -> str:
    """Return what an env does, as in the column `status` of the table."""
    steps = actions(env_fn)
    once, again = alone(env_fn, steps), alone(env_fn, steps)
    if not same(once, again):
        return "first" if same(first_episode(once), first_episode(again)) else "random"
    here, there = together(vecenv.DummyVectorEnv, env_fn, steps), together(vecenv.ShmemVectorEnv, env_fn, steps)
    if same(once, here) and same(once, there):
        return "equal"
    return "first" if same(first_episode(once), first_episode(there)) else "global"


def parallel_status(env_fn: Callable[[], Any]) -> str:
    """Return whether games of several agents equal the games alone, until the first end."""
    games = [env_fn() for _ in range(2)]
    agents, traces = games[0].possible_agents, []
    space = {agent: games[0].action_space(agent) for agent in agents}
    for i, agent in enumerate(agents):
        space[agent].seed(i)
    rounds = [{agent: [space[agent].sample() for _ in games] for agent in agents} for _ in range(20)]
    for number, game in enumerate(games):
        trace: Trace = [game.reset(seed=SEED + number)[0]]
        for each in rounds:
            if len(game.agents) < len(agents):
                break
            trace.append(game.step({agent: each[agent][number] for agent in agents})[:2])
        traces.append(copy.deepcopy(trace))
    for backend in ("dummy", "shmem"):
        with vecenv.ParallelVectorEnv([env_fn] * 2, backend) as envs:
            obs, _ = envs.reset(seed=SEED)
            found: list[Trace] = [[{agent: obs[agent][i] for agent in agents}] for i in range(2)]
            for t, each in enumerate(rounds):
                obs, rewards, *_ = envs.step({agent: np.asarray(each[agent]) for agent in agents})
                for i, trace in enumerate(found):
                    if t + 1 < len(traces[i]):
                        alive = traces[i][t + 1][0]
                        trace.append(({a: obs[a][i] for a in alive}, {a: rewards[a][i] for a in traces[i][t + 1][1]}))
        if not same([each[: len(found[0])] for each in traces], found):
            return "global"
    return "equal"


def main(row: dict[str, Any]) -> None:
    from vecenv.backends.host.own_process import ONE_PER_PROCESS

    parallel = row.get("kind") == "parallel"
    expression = row["env"] if parallel else working(row)
    env_fn = partial(make, expression, row["import"])
    if row["import"].partition(".")[0] in ONE_PER_PROCESS:
        with vecenv.ShmemVectorEnv([env_fn] * N) as venv:
            venv.reset(seed=SEED)
            venv.step([space.sample() for space in venv.action_space])
            found = "one" if venv.num_workers == N else "equal"
    else:
        found = parallel_status(env_fn) if parallel else status(env_fn)
    print("RESULT " + json.dumps({"status": found, "env": expression}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
