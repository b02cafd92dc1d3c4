"""`AsyncDataCollector`: no step is lost, repeated or out of order."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector
from collector.batch import arrival_log
from collector.batch.step_log import StepLog
from tests.support.collector_envs import (
    countdowns,
    kinds,
    zeros,
)
from tests.support.countdown import Countdown
from tests.support.ctrl_c import interrupting
from tests.support.ledger import wait_until
from vecenv import (
    DummyVectorEnv,
    ShmemVectorEnv,
)


class Wide(Countdown):
    """Env with observations of 80 kB."""

    def __init__(self) -> None:
        super().__init__(99)
        self.observation_space = spaces.Box(0, 1, (10_000,), np.float64)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(10_000), {}

    def step(self, action: Any) -> Any:
        return np.zeros(10_000), *super().step(action)[1:]


@kinds
def test_a_collector_holds_no_memory_of_earlier_batches(kind: type) -> None:
    """Also not of a large batch, or through steps that are left for the next batch."""
    with kind([Wide] * 2, zeros, frames_per_batch=42, backend="dummy") as collector:
        tracemalloc.start()
        try:
            collector.collect(n_step=400)
            held = [collector.rollout().frames and tracemalloc.get_traced_memory()[0] for _ in range(3)]
        finally:
            tracemalloc.stop()
    assert held[2] < 120 * 80_000, "the log of a batch has up to twice the rows of the batch"
    assert held[2] - held[1] < 8 * 80_000


def test_envs_step_with_their_own_actions_beside_envs_that_are_reset() -> None:
    venv = DummyVectorEnv(countdowns(3, 4, 5))
    with AsyncDataCollector(venv, lambda obs: obs[:, 1] % 3, frames_per_batch=60, groups=1) as collector:
        batch = collector.rollout()
    np.testing.assert_array_equal(batch.reward, batch.step_count % 3)


def test_envs_step_while_the_policy_runs(tmp_path: Any) -> None:
    """A step of one group waits for a file, which the policy writes when it is called for the other group."""
    seen: list[list[int]] = []
    over = tmp_path / "over"

    class WaitsForOther(Countdown):
        def __init__(self, env: int) -> None:
            super().__init__(100)
            self.env = env

        def step(self, action: Any) -> Any:
            flag = tmp_path / f"called-{1 - self.env}-{self.taken + self.env}"
            wait_until(
                lambda: flag.exists() or over.exists(),
                text=f"the policy was not called for the other while env {self.env} stepped",
            )
            return super().step(action)

    def policy(obs: np.ndarray, env_id: np.ndarray) -> np.ndarray:
        seen.append(env_id.tolist())
        for env, taken in zip(env_id.tolist(), obs[:, 1].tolist(), strict=True):
            (tmp_path / f"called-{env}-{taken}").touch()
        return zeros(obs)

    fns = [partial(WaitsForOther, env) for env in range(2)]
    with AsyncDataCollector(ShmemVectorEnv(fns, num_workers=2), policy, frames_per_batch=8) as collector:
        assert collector.rollout().frames == 8
        over.touch()  # the steps in flight wait for a call of the policy that never comes
    assert seen[:4] == [[0], [1], [0], [1]]


@pytest.mark.parametrize("groups", [1, 3, 9])
def test_groups_take_turns(groups: int) -> None:
    called: list[list[int]] = []

    def policy(obs: np.ndarray, env_id: np.ndarray) -> np.ndarray:
        called.append(env_id.tolist())
        return zeros(obs)

    venv = DummyVectorEnv(countdowns(*[100] * 4))
    with AsyncDataCollector(venv, policy, frames_per_batch=40, groups=groups) as collector:
        collector.rollout()
    count = min(groups, 4)
    assert called[:count] == [list(range(group, 4, count)) for group in range(count)]
    assert called[count : 2 * count] == called[:count]


class TestKeywords:
    """Keywords that need new code for flat batches."""

    def make(self, *lengths: int, policy: Any = zeros, frames: int = 20, **options: Any) -> AsyncDataCollector:
        return AsyncDataCollector(DummyVectorEnv(countdowns(*lengths)), policy, frames_per_batch=frames, **options)

    def test_init_random_frames(self) -> None:
        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            return {"action": zeros(obs) + 1, "value": np.ones(len(obs))}

        with self.make(3, 4, policy=policy, init_random_frames=30) as collector:
            batches = [collector.next() for _ in range(4)]
            batches.append(collector.collect(n_step=20, random=True).batch)
        assert batches[0].random.all()
        assert batches[1].random.all()
        assert not batches[3].random.any()
        assert batches[4].random.sum() >= 18
        for batch in batches:  # steps in flight at the end of the random batches have random actions
            np.testing.assert_array_equal(batch.extras["value"], ~batch.random)
            assert (batch.action[~batch.random] == 1).all()
        assert batches[2].random.sum() <= 2

    @pytest.mark.guarantee("G10.8")
    def test_the_version_of_the_policy_is_that_of_the_action(self) -> None:
        torch = pytest.importorskip("torch")

        class Constant(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.value = torch.nn.Parameter(torch.zeros(()))

            def forward(self, obs: Any) -> Any:
                return self.value.long().expand(len(obs))

        with self.make(100, 100, 100, 100, policy=Constant()) as collector:
            collector.rollout()
            collector.update_policy_weights_({"value": torch.ones(())})
            batch = collector.rollout()
        np.testing.assert_array_equal(batch.policy_version, batch.action)
        assert 0 < (batch.policy_version == 0).sum() <= 2, "those in flight when the first batch was complete"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("moment", ["resized", "_new_column"])
def test_after_an_interrupt_while_the_memory_grows_the_collector_continues(moment: str, first: bool) -> None:
    with AsyncDataCollector(countdowns(3), frames_per_batch=50) as collector:
        with interrupting(arrival_log if moment == "resized" else StepLog, moment, first):
            collector.next()
        assert [collector.next().frames for _ in range(2)] == [50, 50]
