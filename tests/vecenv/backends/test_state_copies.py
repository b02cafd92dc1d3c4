"""Copies of shared states, for workers on other nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.support.local_ray import FAR
from vecenv import DummyVectorEnv, EnvCreator, RayVectorEnv, RunningMeanStd, SharedState
from vecenv.backends.memory.state_copies import StateCopies, StateMerger
from vecenv.transforms import TransformedEnv, VecNorm


def empty() -> dict[str, np.ndarray]:
    return {"obs_mean": np.zeros(3), "obs_var": np.ones(3), "obs_count": np.zeros(()), "obs_skipped": np.zeros(())}


def add(state: SharedState, rows: np.ndarray, decay: float = 1.0) -> None:
    with state.update() as arrays:
        RunningMeanStd.of(arrays, "obs").add(rows, decay)


def count(state: SharedState, name: str = "steps") -> None:
    with state.update() as arrays:
        arrays[name] += 1


class Far:
    """A worker on another machine, with a copy of the driver's state."""

    numbers = itertools.count()

    def __init__(self, driver: SharedState) -> None:
        self.state = SharedState._attach(f"far {next(self.numbers)}", driver.form, None, driver.total())
        self.driver, self.copies, self.merger = driver, StateCopies([self.state]), StateMerger([driver])

    def call(self, work: Callable[[], None] = lambda: None) -> None:
        self.copies.replace(self.merger.news())
        work()
        self.merger.merge(self.copies.changes())


CHANGES = ["a worker", "a worker", "the driver", "late", "dies", "the driver loads", "a worker loads"]


@pytest.mark.guarantee("G13.12")
@pytest.mark.parametrize("seed", range(6))
def test_random_changes_of_workers_and_the_driver_are_those_of_one_state(seed: int) -> None:
    """Only changes that a dead worker has not sent are lost. A loaded state replaces the changes of all."""
    rng, rows = np.random.default_rng(seed), list[np.ndarray]()
    driver = SharedState(empty(), share=True)
    workers = [Far(driver) for _ in range(3)]
    for _ in range(60):
        k, new = int(rng.integers(3)), rng.normal(seed % 2 * 1e8, 20.0, (int(rng.integers(1, 5)), 3))
        worker, what = workers[k], rng.choice(CHANGES)
        change = partial(add, worker.state, new.copy())
        if what == "a worker":
            worker.call(change)
        elif what == "the driver":
            add(driver, new.copy())
        elif what == "late":  # a call that was sent before the last answer
            worker.call()
            on_its_way = worker.merger.news()
            change()
            worker.merger.merge(worker.copies.changes())
            worker.copies.replace(on_its_way)
        elif what == "dies":
            change()
            workers[k] = Far(driver)
        elif what == "the driver loads":
            change()
            driver.replace(empty())
            worker.call()
        else:
            worker.call(partial(worker.state.replace, empty()))
        rows = [] if "loads" in what else [*rows, *([] if what == "dies" else new)]
        found = driver.read()
        assert found["obs_count"] == len(rows)
        if rows:
            np.testing.assert_allclose(found["obs_mean"], np.mean(rows, 0), rtol=1e-12, atol=1e-6)
            np.testing.assert_allclose(found["obs_var"], np.var(rows, 0), rtol=1e-6, atol=1e-6)
    for worker in workers:
        worker.call()
        for name in ("obs_mean", "obs_var", "obs_count"):
            np.testing.assert_allclose(worker.state.read()[name], driver.read()[name], rtol=1e-6, atol=1e-6)


def test_old_rows_lose_weight_whichever_worker_adds_the_new_ones() -> None:
    driver = SharedState(empty(), share=True)
    add(driver, np.ones((1000, 3)))
    workers = [Far(driver) for _ in range(3)]
    for k in range(300):
        workers[k % 3].call(partial(add, workers[k % 3].state, np.full((1, 3), 5.0), 0.9))
    assert driver.read()["obs_count"] == pytest.approx(10)
    np.testing.assert_allclose(driver.read()["obs_mean"], 5.0, rtol=1e-6)


@pytest.mark.guarantee("G13.11")
def test_large_states_travel_once_in_an_interval_and_at_once_if_they_were_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vecenv.backends.memory.state_copies.LARGE_STATE", 0)
    monkeypatch.setattr("vecenv.backends.memory.state_copies.INTERVAL", 1e6)
    worker = Far(SharedState({"steps": np.zeros(())}, share=True))
    found = []
    for _ in range(2):
        worker.call(partial(count, worker.state))
        found.append(float(worker.driver.read()["steps"]))
    assert found == [1, 1]
    worker.merger.merge(worker.copies.changes(all_of_them=True))
    assert worker.driver.read()["steps"] == 2
    for steps in (3, 3, 4):
        worker.driver.replace({"steps": np.array(float(steps))})
        worker.call()
        assert worker.state.read()["steps"] == steps


def make() -> Any:
    return TransformedEnv(gym.make("Pendulum-v1"), VecNorm(decay=1.0))


@pytest.mark.guarantee("G13.10")
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
