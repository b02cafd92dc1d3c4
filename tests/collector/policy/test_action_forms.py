"""Actions that are trees of arrays, texts or sequences. Each env observes its last action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.collector_envs import batch_of, kinds
from tests.support.countdown import MOVE, Drives
from tests.support.texts import Acts, Echo, said
from vecenv import DummyVectorEnv, ShmemVectorEnv, nest

# Trees.


def policy(obs: np.ndarray) -> Any:
    k = len(obs)
    wheel = (np.tile([0.25, -0.5], (k, 1)), np.ones((k, 2), np.int8))
    return {"action": {"gear": np.arange(k) % 3, "wheel": wheel}, "value": obs[:, 0]}


def check(batch: Any) -> None:
    """Check that each stored action has had its effect."""
    action, after = batch.action, batch.next.obs
    np.testing.assert_array_equal(action["gear"], after[..., 0])
    np.testing.assert_array_equal(action["wheel"][0], after[..., 1:])
    np.testing.assert_array_equal(batch.reward, action["gear"])
    assert [leaf.shape for leaf in nest.leaves(action)] == [batch.shape, (*batch.shape, 2), (*batch.shape, 2)]


@pytest.mark.parametrize(("kind", "venv"), [(SyncDataCollector, DummyVectorEnv), (AsyncDataCollector, ShmemVectorEnv)])
def test_a_tree_of_batched_arrays_reaches_the_envs_and_every_form_of_a_batch(kind: Any, venv: Any) -> None:
    with kind(venv([Drives] * 4), policy, frames_per_batch=48) as collector:
        batch = collector.next()
        check(batch)
        assert batch.action["wheel"][0].dtype == np.float32, "cast to the dtype of the space"
        np.testing.assert_array_equal(batch.extras["value"], batch.obs[..., 0])
        check(collector.collect(n_episode=6).batch)
        check(batch.flatten())
        assert batch.split_trajectories().action["gear"].shape[1] == 5
        wheel = torch.as_tensor(batch.action["wheel"][0])
        assert torch.equal(batch.to("cpu").action["wheel"][0], wheel)


@FULL
def test_a_tensordict_has_the_tree_under_nested_keys() -> None:
    batch = batch_of([Drives] * 4, policy, 48)
    assert torch.equal(batch.to_tensordict()["action", "wheel", "0"], torch.as_tensor(batch.action["wheel"][0]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"episode_seeds": EpisodeSeeds(1)},
        pytest.param({"compile_policy": {"backend": "eager"}}, marks=pytest.mark.slow),
    ],
)
def test_a_tree_may_have_tensors_and_distributions(options: Any) -> None:
    class Act(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> Any:
            k = len(obs)
            gear = torch.distributions.Categorical(logits=torch.tensor([[0.0, 0.0, 50.0]]).expand(k, 3))
            return {"action": {"gear": gear, "wheel": (torch.full((k, 2), 0.5), torch.ones(k, 2, dtype=torch.int8))}}

    with SyncDataCollector(DummyVectorEnv([Drives] * 4), Act(), frames_per_batch=48, **options) as collector:
        batch = collector.next()
        assert not collector.everything_keyed
    check(batch)
    assert (batch.action["gear"] == 2).all()


@kinds
def test_random_trees(kind: Any) -> None:
    found = []
    for given, options in ((policy, {"init_random_frames": 40}), (None, {})):
        with kind(DummyVectorEnv([Drives] * 4), given, frames_per_batch=40, **options) as collector:
            collector.set_seed(3)
            found.append(collector.next())
            check(found[-1])
            check(later := collector.next())
            assert given is None or (found[-1].random.all() and not later.random.any())
    for one, other in zip(nest.leaves(found[0].action), nest.leaves(found[1].action), strict=True):
        np.testing.assert_array_equal(one, other)
    assert set(np.unique(found[0].action["gear"])) == {0, 1, 2}
    with DummyVectorEnv([Drives] * 3) as venv:
        check(rollout(venv, 12, break_when_any_done=False))


class Pairs(Drives):
    """`Drives` with the actions in a tuple, because a vector env reads a tuple as one action per env."""

    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.move(*action)


def pairs(obs: np.ndarray) -> Any:
    return {"action": (np.arange(len(obs)) % 3, np.full((len(obs), 2), 0.5))}


@pytest.mark.parametrize("actions", [pairs, None])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(SyncDataCollector, {}), (AsyncDataCollector, {}), (SyncDataCollector, {"episode_seeds": EpisodeSeeds(1)})],
)
def test_a_tuple_may_have_as_many_parts_as_there_are_envs(kind: Any, options: Any, actions: Any) -> None:
    batch = batch_of(DummyVectorEnv([Pairs] * 2), actions, 20, kind, **options)
    np.testing.assert_array_equal(batch.action[0], batch.next.obs[..., 0])
    np.testing.assert_array_equal(batch.action[1], batch.next.obs[..., 1:])


def test_a_list_is_one_action_for_each_env() -> None:
    for env, space in ((Pairs, Pairs.action_space), (Drives, MOVE)):
        batch = batch_of([env] * 2, lambda obs, s=space: [s.sample() for _ in obs], 20)
        assert (batch.action.dtype, batch.action.shape) == (object, (2, 10))
        one = batch.action[1, 3]
        np.testing.assert_array_equal(one[0] if env is Pairs else one["gear"], batch.next.obs[1, 3, 0])


# Texts.


class Speaks:
    """Policy whose texts become longer with each call. `form` makes the output from the list of texts."""

    def __init__(self, form: Any) -> None:
        self.form, self.calls = form, 0

    def __call__(self, obs: Any) -> Any:
        self.calls += 1
        return self.form(["x" * (self.calls + row) for row in range(len(obs))])


def parts(texts: Any) -> Any:
    return {"say": texts, "gear": np.arange(len(texts)) + 1}


FORMS = {
    "list": (Echo, list),
    "array": (Echo, np.array),
    "thought": (Echo, lambda texts: {"action": texts, "thought": texts}),
    "part": (Acts, lambda texts: {"action": parts(texts), "thought": texts}),
    "array as a part": (Acts, lambda texts: {"action": parts(np.array(texts, object))}),
    "trees": (Acts, lambda texts: [{"say": text, "gear": 2} for text in texts]),
}


@kinds
@pytest.mark.parametrize("form", FORMS)
def test_texts_of_any_length_reach_the_envs_and_the_batch(kind: Any, form: str) -> None:
    env, make = FORMS[form]
    batch = batch_of(DummyVectorEnv([env] * 2), Speaks(make), 24, kind)
    actions, after = batch.action[batch.mask], batch.next.obs[batch.mask]
    assert actions.dtype == object
    assert [said(action) for action in actions] == after.tolist()
    assert len({len(text) for text in after}) > 3, "the texts differ in length"
    if "thought" in batch.extras:
        says = [action if env is Echo else action["say"] for action in actions]
        assert batch.extras["thought"][batch.mask].tolist() == says


def test_texts_in_episodes_evaluations_and_step_hooks() -> None:
    with SyncDataCollector([Echo] * 2, Speaks(list), frames_per_batch=10) as collector:
        batch = collector.collect(n_episode=3).batch
        np.testing.assert_array_equal(batch.action[batch.mask], batch.next.obs[batch.mask])
        assert (collector.evaluate(2).returns > 0).all()
        heard = collector.collect(n_step=12, on_step=lambda step: {"heard": [*step.next_obs]}).batch
        np.testing.assert_array_equal(heard.extras["heard"], heard.action)


class Says(Echo):
    """Takes a text of one of two characters, so that texts differ in length as soon as they are drawn."""

    action_space = spaces.Text(50, charset="ab")


class Lists(Echo):
    action_space = spaces.Sequence(spaces.Discrete(3))


@pytest.mark.parametrize("env", [Says, Lists])
def test_random_actions_may_differ_in_length(env: Any) -> None:
    with DummyVectorEnv([env] * 2) as venv:
        batch = rollout(venv, 20, None)
    assert len({len(action) for action in batch.action.flat}) > 1
    np.testing.assert_array_equal(batch.reward, [[len(action) for action in row] for row in batch.action])


def test_sequences_of_one_length_stay_an_action_per_env() -> None:
    batch = batch_of([Lists] * 2, lambda obs: [(0, 2)] * len(obs), 4)
    assert [*batch.action.flat] == [(0, 2)] * 4
