"""`AsyncDataCollector`: no step is lost, repeated or out of order."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, FlatRollout, Interruptor
from collector.batch import arrival_log
from collector.batch.rollout import concatenate
from collector.batch.step_log import StepLog
from tests.support.backends import FULL
from tests.support.collector_envs import (
    CASES,
    arrays,
    assert_equal,
    cartpoles,
    countdowns,
    hand_written,
    kinds,
    zeros,
)
from tests.support.countdown import Countdown
from tests.support.ctrl_c import interrupting
from tests.support.ledger import wait_until
from vecenv import (
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ShmemVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
)

FLIGHTS = [{}, {"wait_num": 1}, {"wait_num": 2}, {"timeout": 0.01}, {"copy": False}]


class WaitsForFile(Countdown):
    """Env that waits in its third step until a file exists."""

    def __init__(self, length: int, path: str) -> None:
        super().__init__(length)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        while self.taken == 2 and not self.path.exists():
            time.sleep(0.01)
        return super().step(action)


def by_env(batches: list[FlatRollout], envs: int) -> list[dict[str, np.ndarray]]:
    """Return the steps of each env over all batches."""
    whole = arrays(concatenate(batches))
    env_ids = concatenate(batches).env_ids
    return [{name: rows[env_ids == env] for name, rows in whole.items()} for env in range(envs)]


@kinds
@pytest.mark.parametrize("options", [{"wait_num": 1}, {"num_workers": 1}, {"backend": "auto"}], ids=str)
def test_options_for_envs_that_are_made_already_are_refused(kind: type, options: dict[str, Any]) -> None:
    message = f"{next(iter(options))} cannot be used with a vector env that is already made: set them in the vector env"
    with DummyVectorEnv(countdowns(3)) as venv:
        for made in (venv, partial(DummyVectorEnv, countdowns(3))):
            with pytest.raises(ValueError, match=message):
                kind(made, zeros, frames_per_batch=3, **options)
        assert not venv.is_closed


class TenTimes(VectorEnvWrapper):
    """Wrapper in tianshou's interface, which has no `send` and `recv`."""

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        obs, reward, *rest = self.venv.step(action, id, **kwargs)
        return obs, 10 * reward, *rest


class Named(TenTimes):
    """Subclass that changes no behaviour."""


class Wide(Countdown):
    """Env with observations of 80 kB."""

    def __init__(self) -> None:
        super().__init__(99)
        self.observation_space = spaces.Box(0, 1, (10_000,), np.float64)

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(10_000), {}

    def step(self, action: Any) -> Any:
        return np.zeros(10_000), *super().step(action)[1:]


def test_steps_that_are_left_for_the_next_batch_hold_no_memory_of_this_one() -> None:
    with AsyncDataCollector([Wide] * 2, zeros, frames_per_batch=41, groups=1, backend="dummy") as collector:
        for _ in range(2):
            collector.rollout()
        tracemalloc.start()
        try:
            frames = collector.rollout().frames
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert frames == 41
        assert held < 8 * 80_000


@pytest.mark.parametrize("wrap", [TenTimes, Named, lambda venv: VectorEnvNormObs(TenTimes(venv))])
@pytest.mark.parametrize("use", [partial(AsyncDataCollector, frames_per_batch=3), GymnasiumVectorEnv])
def test_what_changes_step_alone_is_not_passed_by(wrap: Any, use: Any) -> None:
    with DummyVectorEnv(cartpoles(2)) as venv:
        with pytest.raises(
            TypeError, match=r"TenTimes defines step, but .* by send and recv: define these in TenTimes"
        ):
            use(wrap(venv))
        use(VectorEnvNormObs(venv))


LIVES = [
    *((DummyVectorEnv, {}, case) for case in CASES),
    *((ShmemVectorEnv, flight, "cartpole") for flight in FLIGHTS),
    *(pytest.param(DummyVectorEnv, flight, "pendulum random", marks=FULL) for flight in FLIGHTS[1:]),
    *(pytest.param(ThreadVectorEnv, flight, "cartpole", marks=FULL) for flight in FLIGHTS[1:]),
]


@pytest.mark.parametrize(("backend", "flight", "case"), LIVES, ids=str)
def test_each_env_lives_as_in_a_hand_written_loop(backend: Any, flight: dict[str, Any], case: str) -> None:
    fns, policy = CASES[case]
    with DummyVectorEnv(fns(4)) as venv:
        expected = hand_written(venv, policy, steps=120, seed=3)
    with AsyncDataCollector(backend(fns(4), **flight), policy, frames_per_batch=23) as collector:
        collector.set_seed(3)
        batches = [collector.rollout() for _ in range(5)]
    assert [batch.frames for batch in batches] == [23] * 5
    for env, steps in enumerate(by_env(batches, 4)):
        count = len(steps["reward"])
        assert_equal(steps, {name: rows[env, :count] for name, rows in expected.items()})


def test_envs_step_with_their_own_actions_beside_envs_that_are_reset() -> None:
    venv = DummyVectorEnv(countdowns(3, 4, 5))
    with AsyncDataCollector(venv, lambda obs: obs[:, 1] % 3, frames_per_batch=60, groups=1) as collector:
        batch = collector.rollout()
    np.testing.assert_array_equal(batch.reward, batch.step_count % 3)


def test_two_runs_with_groups_are_the_same_to_the_bit() -> None:
    """A policy with one random stream gives the same batches too, because groups take turns in a fixed order."""

    def collect(workers: int) -> dict[str, np.ndarray]:
        stream = np.random.default_rng(5)

        def policy(obs: np.ndarray) -> np.ndarray:
            return stream.integers(0, 2, len(obs))

        venv = ShmemVectorEnv(cartpoles(4), num_workers=workers)
        with AsyncDataCollector(venv, policy, frames_per_batch=100) as collector:
            collector.set_seed(1)
            collector.rollout()
            return arrays(collector.rollout())

    first = collect(1)
    assert_equal(collect(1), first)
    assert_equal(collect(2), first)


@pytest.mark.parametrize("flight", [{}, {"wait_num": 2}, {"copy": False}], ids=str)
def test_batches_are_ordered_by_env_and_time(flight: dict[str, Any]) -> None:
    with AsyncDataCollector(DummyVectorEnv(countdowns(3, 4, 9), **flight), zeros, frames_per_batch=25) as collector:
        for _ in range(5):
            batch = collector.rollout()
            assert (np.diff(batch.env_ids) >= 0).all()
            same = np.diff(batch.env_ids) == 0
            clock = batch.obs[:, 0] * 100 + batch.obs[:, 1]
            assert (np.diff(clock)[same] > 0).all()
            np.testing.assert_array_equal(batch.next.obs[:, 1], batch.obs[:, 1] + 1)
            np.testing.assert_array_equal(batch.step_count, batch.obs[:, 1])
            np.testing.assert_array_equal(batch.traj_ids, batch.obs[:, 0] * 3 + batch.env_ids)


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


def test_what_the_vector_env_of_a_list_of_callables_waits_for() -> None:

    with AsyncDataCollector(cartpoles(3), None, frames_per_batch=10, wait_num=2) as collector:
        assert (collector.env.wait_num, collector.env.is_async) == (2, True)
        assert collector.rollout().frames == 10
    with pytest.raises(ValueError, match="groups must be an integer of at least 1, got 0"):
        AsyncDataCollector(cartpoles(3), None, frames_per_batch=10, groups=0)


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

    def test_split_trajs_set_truncated_and_postproc(self) -> None:
        with self.make(4, 100, split_trajs=True, set_truncated=True, postproc=lambda batch: batch.shape) as collector:
            rows, longest = collector.next()
        assert rows >= 3
        assert longest >= 8
        with self.make(4, 100, set_truncated=True) as collector:
            batch = collector.next()
        last = np.flatnonzero(np.diff(batch.env_ids, append=-1))
        assert batch.truncated[last].all()
        assert batch.truncated.sum() == 2

    def test_interruptor_ends_a_batch_after_a_round(self) -> None:
        interruptor = Interruptor()
        with self.make(100, 100, interruptor=interruptor) as collector:
            interruptor.stop_collection()
            assert collector.rollout().frames in (1, 2)
            interruptor.start_collection()
            assert collector.rollout().frames == 20

    def test_in_a_tensordict_no_row_goes_on_in_another_episode(self) -> None:
        pytest.importorskip("tensordict")
        left = 0
        with self.make(100, 100, 3) as collector:
            for env in (0, 1, 0, 1):
                batch = collector.rollout()
                ends = np.diff(batch.traj_ids, append=-1) != 0
                found = batch.to_tensordict()["next"]
                np.testing.assert_array_equal(found["done"][:, 0], ends)
                np.testing.assert_array_equal(found["truncated"][:, 0], ends & ~batch.terminated)
                left += np.sum(ends & (np.diff(batch.env_ids, append=-1) == 0) & ~(batch.terminated | batch.truncated))
                collector.reset([env])  # a step in flight belongs to the abandoned episode
        assert left > 0

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
