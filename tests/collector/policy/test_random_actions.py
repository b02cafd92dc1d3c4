"""Random actions without a seed: each env has a different random stream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from collector import AsyncDataCollector, SyncDataCollector
from tests.support.agent_envs import Herd
from tests.support.collector_envs import cartpoles, zeros
from vecenv import DummyVectorEnv, ParallelVectorEnv, flatten_agents
from vecenv.spaces import separate_generators
from vecenv.transforms import Transform, TransformedVectorEnv

N = 4


class OneSpaceForAll(gymnasium.Env):
    """Env whose class shares an action space that was already sampled."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Box(-1, 1, (2,))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {"drawn": bool(self.action_space.sample())}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


class SameActions(Transform):
    """Transform that copies the action space and changes no action."""

    def transform_action_space(self, space: Any) -> Any:
        space.sample()
        return copy.deepcopy(space)


def shared() -> list[Callable[[], Any]]:
    OneSpaceForAll.action_space.sample()
    return [OneSpaceForAll] * N


def native(mode: str, autoreset: str = "NextStep") -> Any:
    return gymnasium.make_vec(
        "CartPole-v1", N, vectorization_mode=mode, vector_kwargs={"autoreset_mode": autoreset} if mode == "sync" else {}
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "functions": lambda: cartpoles(N),
    "one space for all": shared,
    "dummy": lambda: DummyVectorEnv(cartpoles(N)),
    "facade": lambda: vecenv.SyncVectorEnv(cartpoles(N)),
    "sync": lambda: native("sync"),
    "from_gymnasium": lambda: vecenv.from_gymnasium(native("sync")),
    "transformed": lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(N)), SameActions()),
    "agents": lambda: flatten_agents(ParallelVectorEnv([Herd] * N, "dummy")),
}
ASYNC_ONLY = {
    "native": lambda: native("vector_entry_point"),
    "own episodes": lambda: flatten_agents(ParallelVectorEnv([Herd] * N, "dummy"), own_episodes=True),
}
CASES = [(kind, name) for kind in (SyncDataCollector, AsyncDataCollector) for name in SOURCES]
CASES += [(AsyncDataCollector, name) for name in ASYNC_ONLY]


@pytest.mark.parametrize(("kind", "source"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_rows_without_a_seed_draw_different_actions(kind: Any, source: str) -> None:
    with kind({**SOURCES, **ASYNC_ONLY}[source](), None, frames_per_batch=360) as collector:
        batch = collector.next()
    assert_rows_differ(batch)


@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_random_frames_of_a_policy_differ_by_row(kind: Any) -> None:
    with kind(native("sync"), zeros, frames_per_batch=360, init_random_frames=360) as collector:
        assert_rows_differ(collector.next())
        assert_rows_differ(collector.collect(n_step=360, random=True).batch)


def assert_rows_differ(batch: Any) -> None:
    actions = batch.action["a"] if isinstance(batch.action, dict) else batch.action
    if actions.ndim == 1:
        actions = [actions[batch.env_ids == i] for i in np.unique(batch.env_ids)]
    rows = {tuple(row[:25].tolist()) for row in actions}
    assert len(rows) == len(actions) > 1


def test_separated_generators_repeat_and_leave_seeded_and_fresh_spaces_alone() -> None:
    def drawn() -> list[Any]:
        copies = [spaces.Tuple([spaces.Discrete(10**9), spaces.MultiBinary(9)], seed=3) for _ in range(3)]
        separate_generators(copies)
        return [str(space.sample()) for space in copies]

    assert drawn() == drawn()
    assert len(set(drawn())) == 3
    assert drawn()[0] == str(spaces.Tuple([spaces.Discrete(10**9), spaces.MultiBinary(9)], seed=3).sample())
    apart = [spaces.Discrete(10**9, seed=1), spaces.Discrete(10**9, seed=2), spaces.Discrete(4)]
    separate_generators(apart)
    assert [space.sample() for space in apart[:2]] == [spaces.Discrete(10**9, seed=s).sample() for s in (1, 2)]
    assert apart[2]._np_random is None
