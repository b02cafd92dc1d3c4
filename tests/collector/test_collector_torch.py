"""Collectors with torch: devices, updates of weights, and the versions that batches name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collector import AsyncDataCollector, SyncDataCollector
from tests.support.collector_envs import countdowns, kinds, of_countdowns
from vecenv import DummyVectorEnv

torch = pytest.importorskip("torch")


class Constant(torch.nn.Module):
    """Policy whose action is a weight. `hook` is called in each call."""

    def __init__(self, value: int, hook: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.hook, self.inner = hook, torch.nn.Module()
        self.inner.value = torch.nn.Parameter(torch.tensor(float(value)))

    def forward(self, obs: Any) -> Any:
        self.hook()
        return self.inner.value.long().expand(len(obs))


class Two(torch.nn.Module):
    """Module with two weights, and extra state that is not a tensor."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.full((2,), value)) for _ in range(2))
        self.seen = {"n": value}

    def get_extra_state(self) -> dict[str, float]:
        return self.seen

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.seen = state

    def forward(self, obs: Any) -> Any:
        return self.a[:1].long().expand(len(obs))


# Devices.


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, (None, None, None)),
        ({"device": "cpu"}, ("cpu", "cpu", "cpu")),
        ({"storing_device": "cpu"}, ("cpu", None, None)),
        ({"policy_device": "cpu", "env_device": "cpu"}, ("cpu", "cpu", "cpu")),
        ({"device": "cpu", "storing_device": "meta"}, ("meta", "cpu", "cpu")),
    ],
)
def test_a_device_fills_in_what_is_not_given(given: dict[str, str], found: tuple[Any, ...]) -> None:
    with of_countdowns(3, **given) as collector:
        devices = collector.storing_device, collector.policy_device, collector.env_device
        assert tuple(each and str(each) for each in devices) == found
        reward = collector.rollout().reward
    assert (None if isinstance(reward, np.ndarray) else str(reward.device)) == found[0]


def test_a_module_as_postproc_is_moved_to_the_storing_device() -> None:
    scale = Constant(1)
    scale.forward = lambda batch: batch.reward.device.type + scale.inner.value.device.type  # type: ignore[method-assign]
    with of_countdowns(3, postproc=scale, storing_device="meta") as collector:
        assert collector.next() == "metameta"


# Updates.


@pytest.mark.guarantee("G10.7")
@kinds
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_update_in_mid_batch_waits_for_its_end(kind: type, elsewhere: bool) -> None:
    """The update returns immediately, also in another thread, and the collector copies the weights."""
    source, updates = Constant(2), list[int]()

    def update() -> None:
        collector.update_policy_weights_(source)
        updates.append(1)

    def hook() -> None:
        if len(updates) < 3:
            learner = threading.Thread(target=update)
            learner.start() if elsewhere else update()
            if elsewhere:
                learner.join(30)

    options = {} if kind is SyncDataCollector else {"groups": 1}
    policy = Constant(1, hook)
    with kind(DummyVectorEnv(countdowns(3, 4)), policy, frames_per_batch=20, **options) as collector:
        first = collector.rollout()
        assert len(updates) == 3
        with torch.no_grad():
            source.inner.value.fill_(0)
        second = collector.rollout()
    assert (first.action == 1).all()
    assert (first.policy_version == 0).all()
    np.testing.assert_array_equal(second.action, np.where(second.policy_version == 3, 2, 1))
    assert set(second.policy_version.ravel().tolist()) | {0} == {0, 3}
    assert (second.policy_version == 0).sum() <= (0 if kind is SyncDataCollector else 2), "steps that were in flight"


@pytest.mark.guarantee("G10.8")
def test_the_version_of_the_policy_is_that_of_the_action() -> None:
    """Steps that are in flight when the first batch is complete have actions of the old weights."""
    venv = DummyVectorEnv(countdowns(*[100] * 4))
    with AsyncDataCollector(venv, Constant(0), frames_per_batch=20) as collector:
        collector.rollout()
        collector.update_policy_weights_(Constant(1))
        batch = collector.rollout()
    np.testing.assert_array_equal(batch.policy_version, batch.action)
    assert 0 < (batch.policy_version == 0).sum() <= 2


def test_weights_come_from_a_module_a_state_dict_nested_names_or_a_state() -> None:
    sources = (Constant(1), Constant(2).state_dict(), {"inner": {"value": torch.tensor(1.0)}})
    with of_countdowns(3, 4, policy=Constant(0)) as collector:
        for version, source in enumerate(sources, start=1):
            collector.update_policy_weights_(source)
            batch = collector.rollout()
            assert (batch.action == (1, 2, 1)[version - 1]).all()
            assert (batch.policy_version == version).all()
        state = collector.state_dict()
    policy = Constant(2)
    with of_countdowns(3, policy=policy) as collector:
        collector.load_state_dict(state)
    assert policy.inner.value == 1


def test_what_a_module_keeps_beside_its_tensors_comes_too() -> None:
    policy, source = (torch.nn.Sequential(Two(value)) for value in (0.0, 2.0))
    with of_countdowns(3, policy=policy) as collector:
        for n, form in enumerate((lambda: source, source.state_dict, lambda: {"0": source[0].state_dict()})):
            source[0].seen = {"n": n}
            collector.update_policy_weights_(form())
            assert (policy[0].a.tolist(), policy[0].seen) == ([2, 2], {"n": n})


def test_weights_that_do_not_fit_change_nothing_and_arrays_and_lists_are_weights_too() -> None:
    policy, ones = Two(), torch.ones(2)
    refused: list[tuple[Any, type[Exception], str]] = [
        ({"a": ones, "b": ones, "other": ones}, ValueError, r"no weights named \['other'\]"),
        ({"a": ones}, ValueError, r"weights are missing: \['b'\]"),
        ({"a": ones, "b": "1, 2"}, TypeError, "'b' is not a weight, but str"),
        ({"a": ones, "b": [[1.0], [2.0, 3.0]]}, TypeError, "'b' is not a weight, but list"),
        ({"a": ones, "b": np.ones(3)}, ValueError, r"'b' has the shape \(3,\); it must be \(2,\)"),
        ({"a": ones, "b": np.ones(2, np.complex64)}, ValueError, "dtype torch.complex64, .* not fit torch.float"),
        ({"a": ones, "b": torch.ones(2, device="meta")}, ValueError, "'b' is on the device meta"),
        (3, TypeError, "a module, or a mapping"),
    ]
    with of_countdowns(3, policy=policy) as collector:
        for source, error, message in refused:
            with pytest.raises(error, match=message):
                collector.update_policy_weights_(source)
            assert (collector.policy_version, policy.a.tolist()) == (0, [0, 0])
        state = collector.state_dict()
        state["policy_state_dict"] = {"a": ones, "b": torch.ones(3), "_extra_state": {}}
        with pytest.raises(RuntimeError, match="size mismatch for b"):
            collector.load_state_dict(state)
        assert policy.a.tolist() == [0, 0]
        for value, b in enumerate((np.ones(2), np.full(2, 2), [3.0, 3.0]), start=1):
            collector.update_policy_weights_({"a": b, "b": b})
            assert policy.a.tolist() == policy.b.tolist() == [value, value]


def test_an_update_from_the_policys_own_memory_undoes_nothing_that_a_learner_does_meanwhile() -> None:
    policy = Constant(0)

    def learn(step: Any) -> None:
        with torch.no_grad():
            policy.inner.value += 1
        if policy.inner.value == 3:
            collector.update_policy_weights_()

    with of_countdowns(3, policy=policy) as collector:
        collector.collect(n_step=5, on_step=learn)
        assert (policy.inner.value, collector.policy_version) == (5, 1)


def test_what_a_learner_changes_in_place_is_an_update_of_the_next_batch() -> None:
    policy = Constant(0)
    with of_countdowns(3, policy=policy) as collector:
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        policy.inner.value.grad = torch.tensor(-1.0)
        for version in range(3):
            assert (collector.rollout().policy_version == version).all()
            assert (collector.rollout().action == version % 3).all()
            optimizer.step()
        collector.update_policy_weights_()  # the same weights once more
        assert (collector.rollout().policy_version == 3).all()


def test_whole_episodes_are_collected_with_one_version() -> None:
    """Includes episodes that are longer than an internal batch."""
    with of_countdowns(150, policy=Constant(0)) as collector:
        update = lambda step: collector.update_policy_weights_(Constant(1))  # noqa: E731
        batch = collector.collect(n_episode=1, on_step=update).batch
        assert (batch.frames, collector.policy_version) == (150, 150)
    assert (batch.policy_version == 0).all()
    assert (batch.action == 0).all()
