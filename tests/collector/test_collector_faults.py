"""Failures in a collector: only the failed steps are lost. tests/faults has faults without on_error="restart"."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

from collector import AsyncDataCollector, EpisodeCutter, SyncDataCollector
from collector.batch import arrival_log
from collector.batch.step_log import StepLog
from tests.support.collector_envs import batch_of, countdowns, kinds, zeros
from tests.support.countdown import Breaks, BreaksOnce, Countdown, PaysTwo
from tests.support.ctrl_c import interrupting
from vecenv import DummyVectorEnv, ShmemVectorEnv


def first_rows(flat: Any) -> np.ndarray:
    """Return the number of the first row of each env."""
    return np.flatnonzero(np.diff(flat.env_ids, prepend=-1))


@pytest.mark.parametrize(
    "call",
    [
        lambda collector: collector.set_seed(0),
        lambda collector: collector.reset(),
        lambda collector: collector.collect(n_episode=2),
        lambda collector: collector.load_state_dict(collector.state_dict()),
    ],
)
def test_a_failure_of_an_env_that_was_still_stepping_is_raised_once(call: Any) -> None:
    venv = DummyVectorEnv([partial(BreaksOnce, 20, 0, 2), partial(Countdown, 20)])
    with AsyncDataCollector(venv, zeros, frames_per_batch=4) as collector:
        before = collector.rollout()
        with pytest.raises(OverflowError, match="the env broke"):
            call(collector)
        call(collector)
        batch = collector.rollout()
    assert batch.step_count[first_rows(batch)].tolist() == [0, 0], "new episodes in all envs"
    assert set(batch.traj_ids.tolist()).isdisjoint(before.traj_ids.tolist())


@pytest.mark.guarantee("G10.11")
@kinds
def test_after_a_failure_the_iterator_raises_again_instead_of_ending(kind: type) -> None:
    with kind(DummyVectorEnv([partial(Breaks, 3)]), zeros, frames_per_batch=20, total_frames=40) as collector:
        batches = iter(collector)
        for ask in (lambda: next(batches), collector.next, lambda: next(iter(collector)), collector.rollout):
            with pytest.raises(OverflowError, match="the env broke"):
                ask()


@pytest.mark.guarantee("G10.12")
def test_with_episode_seeds_a_failure_shuts_down() -> None:
    seeds = [(0, 1), (1, 2)]
    with SyncDataCollector([partial(Breaks, 3)], zeros, frames_per_batch=4, episode_seeds=seeds) as collector:
        with pytest.raises(OverflowError) as caught:
            collector.rollout()
        assert "with episode_seeds every episode is played to its end" in "".join(caught.value.__notes__)
        assert collector.env.is_closed


class Calls(Countdown):
    """Countdown that calls a function in each step."""

    def __init__(self, length: int, call: Any) -> None:
        super().__init__(length)
        self.call = call

    def step(self, action: Any) -> Any:
        self.call()
        return super().step(action)


@pytest.mark.guarantee("G8.18")
@kinds
@pytest.mark.parametrize("where", ["env", "policy", "on_step"])
def test_after_ctrl_c_the_next_batch_begins_with_a_reset_of_all_envs(kind: type, where: str) -> None:
    calls: list[str] = []

    def count(name: str) -> None:
        calls.append(name)
        if where == name and calls.count(name) == 5:
            signal.raise_signal(signal.SIGINT)

    def policy(obs: np.ndarray) -> np.ndarray:
        count("policy")
        return zeros(obs)

    with kind(DummyVectorEnv([partial(Calls, 9, lambda: count("env"))] * 3), policy, frames_per_batch=30) as collector:
        with pytest.raises(KeyboardInterrupt):
            collector.collect(n_step=30, on_step=lambda step: count("on_step"))
        flat = collector.next().flatten()
    assert flat.frames == 30
    assert flat.obs[first_rows(flat)].tolist() == [[1, 0]] * 3
    np.testing.assert_array_equal(flat.obs[:, 1], flat.step_count)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("moment", ["resized", "_new_column"])
def test_after_an_interrupt_while_the_memory_grows_the_collector_continues(moment: str, first: bool) -> None:
    with AsyncDataCollector(countdowns(3), frames_per_batch=50) as collector:
        with interrupting(arrival_log if moment == "resized" else StepLog, moment, first):
            collector.next()
        assert [collector.next().frames for _ in range(2)] == [50, 50]


@kinds
def test_after_a_failure_of_postproc_a_collector_continues(kind: type) -> None:
    calls: list[Any] = []

    def fails_once(batch: Any) -> Any:
        calls.append(batch)
        return 1 / 0 if len(calls) == 1 else batch

    options = {"frames_per_batch": 10, "total_frames": 30, "postproc": fails_once}
    with kind(DummyVectorEnv(countdowns(3)), zeros, **options) as collector:
        batches = iter(collector)
        with pytest.raises(ZeroDivisionError):
            next(batches)
        assert [batch.frames for batch in batches] == [10, 10]
        assert collector.next() is None


# With on_error="restart", the episode of a failure ends with the step before, and the collection continues.


@pytest.mark.guarantee("G10.10")
@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
@pytest.mark.parametrize("wrap", [lambda env: env, PaysTwo], ids=["number", "vector"])
def test_only_the_steps_that_failed_are_lost(wrap: Any) -> None:
    """tests/fuzz compares random failures with a loop by hand."""
    fns = [lambda at=at: wrap(BreaksOnce(9, 0, at)) for at in (2, 4, 99)]
    venv, cutter = DummyVectorEnv(fns, on_error="restart"), EpisodeCutter()
    with SyncDataCollector(venv, lambda obs: zeros(obs) + 1, frames_per_batch=12) as collector:
        batches = [collector.next() for _ in range(3)]
        assert collector.stats().broken_episodes == 2
    first, second, _ = batches
    assert first.mask.tolist() == [[True, True, False, True], [True] * 4, [True] * 4]
    assert first.truncated.tolist() == [[False, True, True, False], [False] * 4, [False] * 4]
    assert first.obs[0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
    np.testing.assert_array_equal(first.next.obs[0, :3], [[0, 1], [0, 2], [0, 2]])
    assert not first.reward[0, 2].any()
    assert first.reward[first.mask].all()
    assert second.mask.tolist() == [[True] * 4, [False, True, True, True], [True] * 4]
    assert second.truncated.sum() == second.truncated[1, 0] == 1, "an earlier batch has the last valid step"
    assert [batch.broken_ids.tolist() for batch in batches] == [[0], [1], []]
    for batch in batches:
        flat, split = batch.flatten(), batch.split_trajectories()
        assert batch.frames + batch.dropped_rows == 12
        assert batch.frames == split.mask.sum() == len(flat.obs) == batch.mask.sum()
        np.testing.assert_array_equal(split.broken, split.mask & np.isin(split.traj_ids, batch.broken_ids))
        np.testing.assert_array_equal(flat.broken, np.isin(flat.traj_ids, batch.broken_ids))
        ends = np.argwhere(((batch.terminated | batch.truncated) & batch.mask).T)[:, ::-1]
        np.testing.assert_array_equal(np.stack([batch.final_env, batch.final_time], 1), ends)
        np.testing.assert_array_equal(batch.final_obs, batch.next.obs[tuple(ends.T)])
        assert {len(episode) for episode in cutter.cut(batch)} <= {9}


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
def test_a_failure_that_arrives_with_steps_of_the_next_batch_is_not_a_step_there() -> None:
    """The second round has two steps and a failure. The first batch takes only one of the two steps."""
    venv = DummyVectorEnv([*countdowns(9, 9), partial(BreaksOnce, 9, 0, 1)], on_error="restart")
    with AsyncDataCollector(venv, zeros, frames_per_batch=4, groups=1) as collector:
        batches = [collector.next() for _ in range(4)]
    assert [batch.frames for batch in batches] == [4] * 4
    assert batches[0].env_ids.tolist() == [0, 0, 1, 2]
    steps = [row for batch in batches for row in batch.obs[batch.env_ids == 2].tolist()]
    assert steps[:3] == [[0, 0], [1, 0], [1, 1]]


@pytest.mark.filterwarnings("ignore:1 episode of this batch broke off:RuntimeWarning")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("length", "fails"), [(2, (1, 0)), (9, (0, 1))], ids=["first step", "second step"])
def test_set_truncated_marks_the_last_step_that_did_not_fail(length: int, fails: Any, split: bool) -> None:
    venv = DummyVectorEnv([partial(BreaksOnce, length, *fails)], on_error="restart")
    with SyncDataCollector(
        venv, zeros, frames_per_batch=fails[0] * 2 + fails[1] + 1, set_truncated=True, split_trajs=split
    ) as collector:
        batch = collector.rollout().flatten()
    assert batch.truncated.tolist() == [False] * (len(batch.truncated) - 1) + [True]


@kinds
def test_broken_episodes_are_counted_and_one_warning_names_the_env(kind: type) -> None:
    venv = DummyVectorEnv([partial(BreaksOnce, 3, 0, 0), partial(BreaksOnce, 3, 1, 0)] * 3, on_error="restart")
    message = r"\d episodes? of this batch broke off because envs failed \(env 0: OverflowError: the env broke\)"
    with kind(venv, zeros, frames_per_batch=12) as collector:
        with pytest.warns(RuntimeWarning, match=message) as caught:
            batches = [collector.next() for _ in range(6)]
        assert str(collector.stats()).endswith("; 6 broken episodes")
    assert [each.filename for each in caught] == [__file__]
    assert "broken episode" in repr(next(batch for batch in batches if len(batch.broken_ids)))


class Dies(Countdown):
    """Env that kills its process in the fourth step."""

    def step(self, action: Any) -> Any:
        if self.taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
@kinds
def test_envs_that_share_a_dead_worker_are_cut_alike(kind: type) -> None:
    fns = [partial(Countdown, 50), partial(Dies, 9), partial(Countdown, 4)]
    venv = ShmemVectorEnv(fns, num_workers=1, on_error="restart", max_restarts=3)
    batch = batch_of(venv, zeros, 18, kind, **({"groups": 1} if kind is AsyncDataCollector else {}))
    flat = batch.flatten()
    assert batch.broken_ids[:2].tolist() == [0, 1]
    for traj_id in (0, 1):
        at = flat.traj_ids == traj_id
        assert flat.truncated[at].tolist() == [False, False, True]
        assert flat.next.obs[at].tolist() == [[0, 1], [0, 2], [0, 3]]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("by", ["hook", "policy"])
def test_a_reset_within_a_batch_ends_an_episode_with_its_last_observation(copy: bool, by: str) -> None:
    """Also at the end of a batch, in a step that ends an episode, and for episodes that count."""
    rng = np.random.default_rng(0)

    def reset(_: Any = None) -> None:
        if rng.random() < 0.4:
            ids = np.flatnonzero(rng.random(3) < 0.5)
            collector.reset(ids if len(ids) else None)

    def policy(obs: Any) -> np.ndarray:
        if by == "policy":
            reset()
        return zeros(obs)

    on_step = reset if by == "hook" else None
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4, 50), copy=copy), policy, frames_per_batch=12) as collector:
        for _ in range(10):
            batch = collector.collect(n_step=12, on_step=on_step).batch
            assert (batch.obs[..., 1] == batch.step_count).all()
            assert (batch.next.obs == batch.obs + np.array([0, 1])).all()
            assert (batch.terminated == (batch.next.obs[..., 1] == np.array([[3], [4], [50]]))).all()
            assert not (batch.terminated & batch.truncated).any()
            stats = collector.collect(n_episode=4, on_step=on_step)
            assert len(stats.lens) == stats.batch.done.sum() == 4
            assert stats.batch.frames == stats.lens.sum()
