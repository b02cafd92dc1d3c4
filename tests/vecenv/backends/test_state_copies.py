"""Copies of shared states, for workers on other nodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.support.local_ray import FAR
from tests.support.shared_envs import counted, step_env
from vecenv import DummyVectorEnv, EnvCreator, RayVectorEnv, SharedState
from vecenv.backends.memory import state_copies
from vecenv.backends.memory.state_copies import StateCopies, StateMerger, merge_updates
from vecenv.norm_obs import RunningMeanStd
from vecenv.transforms import TransformedEnv, VecNorm

NAMES = ("obs_mean", "obs_var", "obs_count", "obs_skipped")


def empty() -> dict[str, np.ndarray]:
    return {"obs_mean": np.zeros(3), "obs_var": np.ones(3), "obs_count": np.zeros(()), "obs_skipped": np.zeros(())}


def add(state: SharedState, rows: np.ndarray) -> None:
    with state.update() as arrays:
        RunningMeanStd.of(arrays, "obs").add(rows)


@pytest.mark.parametrize("centre", [0.0, 1e6])
def test_statistics_of_rows_are_those_of_all_rows_together(centre: float) -> None:
    rng, rows = np.random.default_rng(0), []
    driver = SharedState(empty())
    mergers = [StateMerger([driver]) for _ in range(3)]
    far = [SharedState(empty()) for _ in range(3)]
    copies = [StateCopies([state]) for state in far]
    for _ in range(40):
        k = int(rng.integers(4))
        new = rng.normal(centre, 2.0, (int(rng.integers(1, 5)), 3))
        rows.append(new)
        if k == 3:
            add(driver, new.copy())
            continue
        copies[k].replace(mergers[k].news())
        add(far[k], new.copy())
        mergers[k].merge(copies[k].changes())
    found, together = driver.read(), np.concatenate(rows)
    assert found["obs_count"] == len(together)
    np.testing.assert_allclose(found["obs_mean"], together.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found["obs_var"], together.var(0), rtol=1e-6, atol=1e-9)


def test_numbers_are_added_and_flags_taken_over() -> None:
    now = {"steps": np.array([5, 5]), "seen": np.array([True, False, False])}
    before = {"steps": np.array([2, 2]), "seen": np.array([False, False, False])}
    after = {"steps": np.array([3, 2]), "seen": np.array([False, False, True])}
    merged = merge_updates(now, before, after)
    assert merged["steps"].tolist() == [6, 5]
    assert merged["seen"].tolist() == [True, False, True]


def test_a_call_that_was_sent_before_the_last_answer_undoes_nothing() -> None:
    driver, far = SharedState({"steps": np.zeros(())}), SharedState({"steps": np.zeros(())})
    merger, copies = StateMerger([driver]), StateCopies([far])
    with driver.update() as arrays:
        arrays["steps"] += 10
    on_its_way = merger.news()
    with far.update() as arrays:
        arrays["steps"] += 1
    merger.merge(copies.changes())
    copies.replace(on_its_way)
    with far.update() as arrays:
        arrays["steps"] += 1
    merger.merge(copies.changes())
    assert driver.read()["steps"] == 12


def test_large_states_travel_once_in_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copies, "LARGE_STATE", 0)
    monkeypatch.setattr(state_copies, "INTERVAL", 1e6)
    far = SharedState({"steps": np.zeros(())})
    copies = StateCopies([far])
    found: list[Any] = []
    for _ in range(2):
        with far.update() as arrays:
            arrays["steps"] += 1
        found.append(copies.changes())
    assert [change is not None for (change,) in found] == [True, False]
    ((before, after),) = copies.changes(all_of_them=True)  # type: ignore[misc]
    assert (before["steps"], after["steps"]) == (1, 2)


def test_a_large_state_that_was_loaded_travels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copies, "LARGE_STATE", 0)
    monkeypatch.setattr(state_copies, "INTERVAL", 1e6)
    creator = EnvCreator(counted)
    assert creator._states is not None
    merger, saved = StateMerger(creator._states), creator.state_dict()
    found = [merger.news()]
    for calls in (3, 3, 4):
        creator.load_state_dict(saved | {"0.Counted.calls": calls})
        found.append(merger.news())
    step_env(creator, 1)
    found.append(merger.news())
    assert [None if new is None else int(new["calls"]) for (new,) in found] == [None, 3, None, 4, None]


def test_a_worker_without_changes_leaves_every_bit_of_the_state() -> None:
    rng = np.random.default_rng(0)
    for count in range(3, 40):
        now, before = (
            {"obs_mean": rng.normal(size=3), "obs_var": rng.random(3), "obs_count": np.array(float(seen))}
            for seen in (count, count - 2)
        )
        assert state_copies.equal(merge_updates(now, before, before), now)


def make() -> Any:
    return TransformedEnv(gym.make("Pendulum-v1"), VecNorm(decay=1.0))


@pytest.mark.ray
@pytest.mark.local_ray
@pytest.mark.parametrize("where", [FAR, {}], ids=["far", "spread"])
def test_envs_on_all_nodes_have_the_same_statistics(where: dict[str, Any]) -> None:
    found = []
    for kind, options in ((DummyVectorEnv, {}), (RayVectorEnv, {"num_workers": 2, **where})):
        creator = EnvCreator(make)
        with kind([creator] * 4, **options) as venv:
            venv.reset(seed=[0, 1, 2, 3])
            for _ in range(5):
                venv.step(np.zeros((4, 1)))
            found.append(creator.state_dict())
    one, other = found
    assert {float(value) for name, value in one.items() if name.endswith("_count")} == {24.0, 20.0}
    for name in (name for name in one if name.endswith("_count")):
        assert one[name] == other[name]
