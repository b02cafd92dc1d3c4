"""Random actions: a stream for each env, the samples of the action space, and only actions that the mask allows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, RandomPolicy, SyncDataCollector, rollout
from tests.support.agent_envs import Herd
from tests.support.cases import discrete
from tests.support.collector_envs import cartpoles, kinds, zeros
from tests.support.countdown import MOVE
from tests.support.seeded_envs import Masked
from vecenv import DummyVectorEnv, ParallelVectorEnv, flatten_agents, nest
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


def native(mode: str) -> Any:
    return gymnasium.make_vec("CartPole-v1", N, vectorization_mode=mode)


SOURCES: dict[str, Callable[[], Any]] = {
    "one space for all": lambda: DummyVectorEnv([OneSpaceForAll] * N),
    "sync": lambda: native("sync"),
    "transformed": lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(N)), SameActions()),
    "native": lambda: native("vector_entry_point"),
    "own episodes": lambda: flatten_agents(ParallelVectorEnv([Herd] * N, "dummy"), own_episodes=True),
}


@kinds
@pytest.mark.parametrize("random", [None, zeros], ids=["random", "first frames"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_without_a_seed_draw_different_actions(source: str, random: Any, kind: type) -> None:
    if kind is SyncDataCollector and source in ("native", "own episodes"):
        kind = AsyncDataCollector
    with kind(SOURCES[source](), random, frames_per_batch=120, init_random_frames=120) as collector:
        batch = collector.next().flatten()
    actions = batch.action["a"] if isinstance(batch.action, dict) else batch.action
    rows = {tuple(actions[batch.env_ids == i][:25].tolist()) for i in np.unique(batch.env_ids)}
    assert len(rows) == len(np.unique(batch.env_ids)) > 1


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


# The policy.

SPACES = (
    spaces.Discrete(4, start=-2),
    *(discrete(5, dtype) for dtype in (np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64)),
    spaces.Box(-2, 2, (3,), np.float32),
    spaces.Box(np.array([-1, 0, -np.inf]), np.array([1, np.inf, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(4),
    MOVE,
)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_each_env_has_the_samples_of_its_space_whatever_the_others_do(space: Any) -> None:
    """Policies draw blocks of actions ahead."""
    copies = [copy.deepcopy(space) for _ in range(3)]
    for seed, each in enumerate(copies):
        each.seed(seed)
    together, apart, count = RandomPolicy(copies), RandomPolicy(copies), RandomPolicy.BLOCK + 20
    drawn = nest.stack([together(None) for _ in range(count)])
    for env in (2, 0, 1):
        alone = nest.stack([nest.take(apart(None, [env]), 0) for _ in range(count)])
        expected = nest.stack([copies[env].sample() for _ in range(count)])
        for found in (alone, nest.take(drawn, (slice(None), env))):
            for one, other in zip(nest.leaves(found), nest.leaves(expected), strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)


def test_an_episode_has_the_actions_of_its_seed_whatever_the_other_envs_do() -> None:
    """Neither the order of the envs nor masks in some steps change the other actions."""
    space, mask = spaces.Discrete(1000), np.eye(1000, dtype=np.int8)[7]

    def play(order: list[int]) -> list[list[int]]:
        policy = RandomPolicy([space] * 3)
        policy(None)
        policy.seed(np.array([0, 1, 2]), [5, 6, 7])
        found: list[list[int]] = [[], [], []]
        for env in order:
            masks = [mask if env == 1 and len(found[env]) % 5 == 4 else None]
            found[env].append(policy(None, [env], masks)[0])
        return found

    found = play([0, 1, 2] * 300)
    assert found == play([0] * 300 + [1] * 300 + [2] * 300)
    for env in (0, 2):
        space.seed(5 + env)
        assert found[env] == [space.sample() for _ in range(300)]
    assert found[1][4::5] == [7] * 60


# Action masks. The env raises an error for an action that its latest mask does not allow.


@pytest.mark.parametrize("place", ["obs", "info"])
def test_only_allowed_actions_are_drawn(place: str) -> None:
    """tests/fuzz has masks in infos in each loop of a collector, and after resets and failures."""
    with DummyVectorEnv([partial(Masked, place)] * 3) as venv:
        found = [rollout(venv, 20, break_when_any_done=False), rollout(venv, 20)]
        with SyncDataCollector(venv, frames_per_batch=24) as collector:
            found += [collector.next(), collector.next(), collector.collect(n_episode=7).batch]
    actions = [batch.action[getattr(batch, "mask", slice(None))] for batch in found]
    assert {*np.concatenate(actions, axis=None).tolist()} == {2, 3, 4, 5, 6}


def test_a_mask_in_an_info_takes_precedence_and_others_count_where_it_is_missing() -> None:
    policy = RandomPolicy([spaces.Discrete(4)] * 2)
    own, given = np.array([0, 1, 0, 0]), np.array([0, 0, 1, 0])
    for _ in range(20):
        assert policy({"action_mask": np.stack([own, own])}, masks=[None, given]).tolist() == [1, 2]


LEGAL = np.array([0, 1, 0, 1, 1], np.int8)
PARTS = (np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8))
TREE = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Discrete(2)})
FIVE, MULTI = spaces.Discrete(5, start=1), spaces.MultiDiscrete([2, 3])
MASKS: list[tuple[Any, Any, Any, Any]] = [
    (FIVE, {"action_mask": np.tile(LEGAL, (200, 1))}, None, {2, 4, 5}),
    (FIVE, {"mask": np.tile(LEGAL.astype(bool), (200, 1))}, None, {2, 4, 5}),
    (FIVE, {"action_mask": np.ones((200, 5))}, LEGAL, {2, 4, 5}),
    (FIVE, {"action_mask": np.zeros((200, 5))}, None, {1}),  # as gymnasium does
    (FIVE, {"mask": np.zeros((200, 84, 84))}, None, {1, 2, 3, 4, 5}),  # which is something else
    (MULTI, None, PARTS, {(1, 0), (1, 2)}),
    (MULTI, {"action_mask": np.tile(np.concatenate(PARTS), (200, 1))}, None, {(1, 0), (1, 2)}),
    (MULTI, {"action_mask": tuple(np.tile(part, (200, 1)) for part in PARTS)}, None, {(1, 0), (1, 2)}),
    (spaces.MultiBinary(3), None, [0, 1, 2], {(0, 1, 0), (0, 1, 1)}),
    (TREE, None, {"b": np.array([0, 0, 1])}, {(0, 2), (1, 2)}),  # leaves may lack a mask
]


@pytest.mark.parametrize(("space", "obs", "mask", "allowed"), MASKS)
def test_masks_have_the_forms_of_sample(space: Any, obs: Any, mask: Any, allowed: Any) -> None:
    copies = [copy.deepcopy(space) for _ in range(200)]
    for seed, each in enumerate(copies):
        each.seed(seed)
    drawn = RandomPolicy(copies)(obs, masks=None if mask is None else [mask] * 200)
    if isinstance(drawn, dict):
        drawn = np.stack([drawn["a"], drawn["b"]], 1)
    found = [tuple(row) if isinstance(row, list) else row for row in drawn.tolist()]
    assert {*found} == allowed
    assert min(found.count(each) for each in allowed) > 20, "all allowed actions are equally likely"
