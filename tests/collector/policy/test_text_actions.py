"""Actions, outputs of policies and columns of step hooks that are texts of any length."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.collector_envs import batch_of
from vecenv import DummyVectorEnv


class Echo(gym.Env):
    """Return the action as the next observation, as games of text do. An episode has 5 steps."""

    observation_space = spaces.Text(1000, min_length=0)
    action_space: spaces.Space[Any] = spaces.Text(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return "", {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return str(action), float(len(action)), self.steps == 5, False, {}


class Says(Echo):
    """Takes a text of one of two characters, so that texts differ in length as soon as they are drawn."""

    action_space = spaces.Text(50, charset="ab")


class Lists(Echo):
    action_space = spaces.Sequence(spaces.Discrete(3))


class Speaks:
    """Policy whose texts become longer with each call. `form` makes the output from the list of texts."""

    def __init__(self, form: Any) -> None:
        self.form, self.calls = form, 0

    def __call__(self, obs: Any) -> Any:
        self.calls += 1
        return self.form(["x" * (self.calls + row) for row in range(len(obs))])


FORMS = {
    "list": lambda texts: texts,
    "array": np.array,
    "objects": lambda texts: np.array(texts, object),
    "entry": lambda texts: {"action": texts},
    "thought": lambda texts: {"action": texts, "thought": [text + "!" for text in texts]},
}


@pytest.mark.parametrize("kind", [SyncDataCollector, pytest.param(AsyncDataCollector, marks=FULL)])
@pytest.mark.parametrize("form", FORMS)
def test_texts_of_any_length_reach_the_envs_and_the_batch(kind: Any, form: str) -> None:
    batch = batch_of(DummyVectorEnv([Echo] * 2), Speaks(FORMS[form]), 24, kind)
    texts, lengths = batch.action[batch.mask], [len(text) for text in batch.action[batch.mask]]
    assert texts.dtype == object
    assert {type(text) for text in texts} == {str}
    assert len({*lengths}) > 3, "the texts differ in length"
    np.testing.assert_array_equal(texts, batch.next.obs[batch.mask])
    np.testing.assert_array_equal(lengths, batch.reward[batch.mask])
    if form == "thought":
        np.testing.assert_array_equal(texts + "!", batch.extras["thought"][batch.mask])


class Acts(Echo):
    """Takes a text and how often to say it."""

    action_space = spaces.Dict({"say": spaces.Text(1000), "gear": spaces.Discrete(9)})

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return said(action), 1.0, self.steps == 5, False, {}


def said(action: Any) -> str:
    return str(action["say"]) * int(action["gear"])


BATCHES = {
    "entry": lambda says, gears: {"action": {"say": says, "gear": gears}, "thought": says},
    "array": lambda says, gears: {"action": {"say": np.array(says, object), "gear": gears}},
    "per env": lambda says, gears: [{"say": a, "gear": b} for a, b in zip(says, gears, strict=True)],
}


@pytest.mark.parametrize("form", BATCHES)
def test_texts_may_be_parts_of_actions(form: str) -> None:
    def policy(obs: Any) -> Any:
        return BATCHES[form](["x" * (len(each) + 1) for each in obs], np.arange(len(obs)) + 1)

    batch = batch_of(DummyVectorEnv([Acts] * 2), policy, 8)
    assert [said(action) for action in batch.action[batch.mask]] == [*batch.next.obs[batch.mask]]
    if form == "entry":
        assert [*batch.extras["thought"].flat] == [action["say"] for action in batch.action.flat]


def test_parts_of_different_length_and_tuples_are_refused() -> None:
    class Pairs(Echo):
        action_space = spaces.Tuple((spaces.Text(9), spaces.Discrete(2)))

    with pytest.raises(TypeError, match="return one action per env, as a list or an object array"):
        batch_of(DummyVectorEnv([Pairs] * 2), lambda obs: {"action": (["a", "b"], [1, 1])}, 8)
    with pytest.raises(ValueError, match="got 2 actions for 1 envs"):
        batch_of(DummyVectorEnv([Acts] * 2), lambda obs: {"action": {"say": ["a"], "gear": [1, 1]}}, 8)


def test_one_policy_serves_whole_episodes_and_an_evaluation() -> None:
    policy = Speaks(list)
    with SyncDataCollector([Echo] * 2, policy, frames_per_batch=10) as collector:
        batch = collector.collect(n_episode=3).batch
        np.testing.assert_array_equal(batch.action[batch.mask], batch.next.obs[batch.mask])
        assert (collector.evaluate(2).returns > 0).all()


@pytest.mark.parametrize("env", [Says, Lists])
def test_random_actions_may_differ_in_length(env: Any) -> None:
    venv = DummyVectorEnv([env] * 2)
    try:
        batch = rollout(venv, 20, None)
    finally:
        venv.close()
    assert len({len(action) for action in batch.action.flat}) > 1
    np.testing.assert_array_equal(batch.reward, [[len(action) for action in row] for row in batch.action])


def test_sequences_of_one_length_stay_an_action_per_env() -> None:
    batch = batch_of([Lists] * 2, lambda obs: [(0, 2)] * len(obs), 4)
    assert [*batch.action.flat] == [(0, 2)] * 4


def test_a_step_hook_may_return_texts_that_become_longer() -> None:
    with SyncDataCollector([Echo] * 2, Speaks(list), frames_per_batch=12) as collector:
        heard = collector.collect(n_step=12, on_step=lambda step: {"heard": [*step.next_obs]}).batch
    np.testing.assert_array_equal(heard.extras["heard"], heard.action)


def test_texts_are_refused_where_numbers_are_expected() -> None:
    class Counts(Echo):
        action_space = spaces.Discrete(3)

    with pytest.raises(TypeError, match=r"'action' of dtype <U2; for the action space it must be int64"):
        batch_of([Counts] * 2, Speaks(list), 4)
