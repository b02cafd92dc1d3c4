"""Actions that are trees of arrays, texts or sequences. Each env observes its last action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import SyncDataCollector, rollout
from tests.support.collector_envs import COLLECTORS, batch_of, kinds
from tests.support.countdown import MOVE, Drives
from tests.support.texts import Acts, Echo, said
from vecenv import DummyVectorEnv, nest

collectors = pytest.mark.parametrize("name", COLLECTORS)

# Trees.


def drive(obs: np.ndarray) -> Any:
    k = len(obs)
    wheel = (np.tile([0.25, -0.5], (k, 1)), np.ones((k, 2), np.int8))
    return {"action": {"gear": np.arange(k) % 3, "wheel": wheel}, "value": obs[:, 0]}


class Act(torch.nn.Module):
    """Policy with a distribution and tensors in a tree."""

    def forward(self, obs: torch.Tensor) -> Any:
        k = len(obs)
        gear = torch.distributions.Categorical(logits=torch.tensor([[0.0, 0.0, 50.0]]).expand(k, 3))
        wheel = (torch.full((k, 2), 0.5), torch.ones(k, 2, dtype=torch.int8))
        return {"action": {"gear": gear, "wheel": wheel}, "value": obs[:, 0]}


class Pairs(Drives):
    """`Drives` with the actions in a tuple, because a vector env reads a tuple as one action per env."""

    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    def pay(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return self.move(*action)


def check(batch: Any) -> None:
    """Check that each stored action has had its effect."""
    action, after = batch.action, batch.next.obs
    np.testing.assert_array_equal(action["gear"], after[..., 0])
    np.testing.assert_array_equal(action["wheel"][0], after[..., 1:])
    np.testing.assert_array_equal(batch.reward, action["gear"])
    assert [leaf.shape for leaf in nest.leaves(action)] == [batch.shape, (*batch.shape, 2), (*batch.shape, 2)]
    assert action["wheel"][0].dtype == np.float32, "cast to the dtype of the space"


@collectors
@pytest.mark.parametrize("policy", [drive, Act()], ids=["arrays", "tensors and distributions"])
def test_a_tree_reaches_the_envs_and_every_form_of_a_batch(policy: Any, name: str) -> None:
    kind, options = COLLECTORS[name]
    with kind([Drives] * 4, policy, frames_per_batch=48, backend="dummy", **options) as collector:
        batch = collector.next()
        for each in (batch, batch.flatten()) if name == "seeded" else (batch, collector.collect(n_episode=6).batch):
            check(each)
            np.testing.assert_array_equal(each.extras["value"], each.obs[..., 0])
        assert not collector.everything_keyed
    assert batch.split_trajectories().action["gear"].shape[1] == 5
    wheel = torch.as_tensor(batch.action["wheel"][0])
    assert torch.equal(batch.to("cpu").action["wheel"][0], wheel)
    assert torch.equal(batch.to_tensordict()["action", "wheel", "0"], wheel)


@pytest.mark.slow
def test_a_compiled_policy_may_return_a_tree() -> None:
    batch = batch_of([Drives] * 4, Act(), 48, compile_policy={"backend": "eager"})
    check(batch)
    assert (batch.action["gear"] == 2).all()


@kinds
def test_random_trees(kind: Any) -> None:
    found = []
    for given, options in ((drive, {"init_random_frames": 40}), (None, {})):
        with kind([Drives] * 4, given, frames_per_batch=40, backend="dummy", **options) as collector:
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


def pairs(obs: np.ndarray) -> Any:
    return {"action": (np.arange(len(obs)) % 3, np.full((len(obs), 2), 0.5))}


@pytest.mark.parametrize("policy", [pairs, None])
@collectors
def test_a_tuple_may_have_as_many_parts_as_there_are_envs(name: str, policy: Any) -> None:
    kind, options = COLLECTORS[name]
    batch = batch_of(DummyVectorEnv([Pairs] * 2), policy, 20, kind, **options)
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


FORMS: dict[str, tuple[Any, Any]] = {
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
    """Also in whole episodes, and beside a step hook."""
    env, make = FORMS[form]
    with kind(DummyVectorEnv([env] * 2), Speaks(make), frames_per_batch=24) as collector:
        hooked = collector.collect(n_step=24, on_step=lambda step: {"heard": [*step.next_obs]}).batch
        for batch in (hooked, collector.collect(n_episode=3).batch, collector.next()):
            mask = getattr(batch, "mask", ...)
            actions, after = batch.action[mask], batch.next.obs[mask].tolist()
            assert actions.dtype == object
            assert [said(action) for action in actions] == after
            assert len({len(text) for text in after}) > 3, "the texts differ in length"
            if "thought" in batch.extras:
                says = [action if env is Echo else action["say"] for action in actions]
                assert batch.extras["thought"][mask].tolist() == says
        assert hooked.extras["heard"].tolist() == hooked.next.obs.tolist()


def test_texts_in_evaluations() -> None:
    with SyncDataCollector([Echo] * 2, Speaks(list), frames_per_batch=10) as collector:
        assert (collector.evaluate(2).returns > 0).all()


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
