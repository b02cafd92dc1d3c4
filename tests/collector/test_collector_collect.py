"""`collect`: numbers of steps and episodes, hooks, and statistics (as tianshou's collector)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from collector import (
    AsyncDataCollector,
    CollectStats,
    Episode,
    EpisodeCutter,
    SequenceSummaryStats,
    StepBatch,
    SyncDataCollector,
)
from tests.support.collector_envs import arrays, assert_equal, countdowns, kinds, pendulums, zeros
from tests.support.countdown import Countdown
from vecenv import DummyVectorEnv, RowWiseWrapper


def ones(obs: np.ndarray) -> np.ndarray:
    return zeros(obs) + 1


def make(kind: type, *lengths: int, policy: Any = ones, copy: bool = True, **options: Any) -> Any:
    options = {"frames_per_batch": 10 * len(lengths), **options}
    return kind(DummyVectorEnv(countdowns(*lengths), copy=copy), policy, **options)


# Whole episodes.


@kinds
@pytest.mark.parametrize(
    ("lengths", "n_episode", "lens", "resets"),
    [
        pytest.param((1, 100), 6, [1, 1, 1, 100, 100, 100], [3, 3], id="short ones are not preferred"),
        pytest.param((1, 96, 96), 4, [1, 1, 96, 96], [2, 1, 1], id="long after the others"),
        pytest.param((3, 3, 3), 2, [3, 3], [1, 1, 0], id="an env that is not needed is left alone"),
    ],
)
def test_each_env_plays_its_share_and_no_reset_more(
    kind: type, lengths: Any, n_episode: int, lens: list[int], resets: list[int]
) -> None:
    with make(kind, *lengths, **({"groups": 1} if kind is AsyncDataCollector else {})) as collector:
        stats = collector.collect(n_episode=n_episode)
        assert sorted(stats.lens.tolist()) == lens
        assert stats.batch.frames == stats.lens.sum()
        assert [episode + 1 for episode in collector.env.get_env_attr("episode")] == resets
        assert len(collector.collect(n_episode=len(lengths)).lens) == len(lengths)


@kinds
def test_each_episode_is_shown_once_and_whole(kind: type) -> None:
    seen: list[Episode] = []
    with make(kind, 70, 3) as collector:
        stats = collector.collect(n_episode=4, on_episode=seen.append, keep=False)
    assert stats.batch is None
    assert sorted(len(episode) for episode in seen) == sorted(stats.lens.tolist()) == [3, 3, 70, 70]
    for episode in seen:
        np.testing.assert_array_equal(episode.obs[:, 1], np.arange(len(episode) + 1))
        assert np.flatnonzero(episode.terminated).tolist() == [len(episode) - 1]
        assert episode.total_reward == len(episode)


@kinds
@pytest.mark.parametrize("copies", [True, False])
def test_the_batch_has_only_whole_episodes_whatever_on_episode_does(kind: type, copies: bool) -> None:
    with make(kind, 30, 50, 70, copy=copies, frames_per_batch=9) as collector:
        state = collector.state_dict()
        for use in (
            collector.next,
            collector.reset,
            lambda: collector.reset(1),
            lambda: collector.set_seed(0),
            lambda: collector.load_state_dict(state),
            lambda: collector.collect(n_episode=1),
        ):
            with pytest.raises(RuntimeError, match="this collector is collecting a batch"):
                collector.collect(n_episode=6, on_episode=lambda episode, use=use: use())
        seen: list[Any] = []

        def reset_elsewhere(episode: Any) -> None:
            seen.append(episode)
            if len(seen) == 2 and kind is SyncDataCollector:
                collector.env.reset()

        stats = collector.collect(n_episode=6, on_episode=reset_elsewhere)
        assert stats.lens.tolist() == [30, 30, 50, 50, 70, 70]
        assert (stats.batch.frames, stats.batch.done.sum()) == (300, 6)


def fail(collector: Any) -> None:
    with pytest.raises(OverflowError):
        collector.collect(n_step=4, on_step=raise_error)


def raise_error(step: StepBatch) -> None:
    raise OverflowError


@kinds
@pytest.mark.parametrize(
    "abandon",
    [
        None,
        lambda collector: collector.reset(),
        lambda collector: collector.reset([0]),
        lambda collector: collector.set_seed(3),
        fail,
    ],
    ids=["reset at each iter", "reset", "reset of one", "set_seed", "error"],
)
def test_a_cutter_keeps_no_episode_that_is_abandoned(kind: type, abandon: Any) -> None:
    cutter, steps = EpisodeCutter(), list[Any]()
    with make(kind, 999, 999, reset_at_each_iter=abandon is None) as collector:
        for _ in range(6):
            batch = collector.next().flatten()
            assert len(cutter.cut(batch)) == 0
            steps += zip(batch.env_ids.tolist(), batch.traj_ids.tolist(), strict=True)
            in_progress = [max(ids for ids in steps if ids[0] == env) for env in (0, 1)]
            assert cutter.unfinished_steps == sum(map(steps.count, in_progress))
            if abandon is not None:
                abandon(collector)
    assert len(steps) == 120
    assert cutter.unfinished_steps < 80


def test_an_episode_of_which_a_cutter_has_not_seen_the_reset_is_not_whole() -> None:
    with make(SyncDataCollector, 5, 12) as collector:
        collector.collect(n_step=8)
        cutter = EpisodeCutter()
        found = [episode for _ in range(5) for episode in cutter.cut(collector.collect(n_step=8).batch)]
    assert [(len(episode), episode.env_id) for episode in found] == [(5, 0)] * 3 + [(12, 1)]
    assert all(episode.obs[0][1] == 0 for episode in found)


# Step hooks.


@kinds
@pytest.mark.parametrize("copies", [True, False])
def test_a_hook_is_shown_each_round_which_stays_as_it_was(kind: type, copies: bool) -> None:
    seen: list[StepBatch] = []
    with make(kind, 3, 4, copy=copies) as collector:
        batch = collector.collect(n_step=20, on_step=seen.append).batch
        collector.next()
    assert sum(len(step.env_id) for step in seen) >= batch.frames == 20
    for step in seen:
        assert (step.obs[:, 1] < 4).all()
        np.testing.assert_array_equal(step.next_obs, step.obs + np.array([0, 1]))
        np.testing.assert_array_equal(step.terminated, step.next_obs[:, 1] == np.array([3, 4])[step.env_id])
        assert [info["env_id"] for info in step.info] == step.env_id.tolist()


@kinds
def test_extras_of_a_hook_may_begin_late_and_come_in_any_order(kind: type) -> None:
    """The collection takes more than one internal batch of 64 rounds."""

    def late(step: StepBatch) -> dict[str, Any] | None:
        a, b = {"a": step.obs[:, 1]}, {"b": -step.obs[:, 1]}
        return None if (step.obs[:, 1] < 70).any() else b | a if (step.obs[:, 1] >= 130).any() else a | b

    with make(kind, 150, 150) as collector:
        batch = collector.collect(n_episode=2, on_step=late).batch
        assert collector.collect(n_step=20).batch.extras.keys() == set()
    for name, sign in (("a", 1), ("b", -1)):
        np.testing.assert_array_equal(batch.extras[name], np.where(batch.obs[:, 1] < 70, 0, sign * batch.obs[:, 1]))


@kinds
def test_a_hook_may_write_over_what_it_is_shown_and_return_the_same_array_each_time(kind: type) -> None:
    taken = np.zeros(2, np.int64)

    def spoil(step: StepBatch) -> dict[str, np.ndarray]:
        taken[: len(step.env_id)] = step.obs[:, 1]
        for column in (step.obs, step.action, step.reward, step.next_obs):
            column[:] = -7
        return {"taken": taken[: len(step.env_id)]}

    with make(kind, 3, 4) as collector, make(kind, 3, 4) as other:
        spoilt, batch = collector.collect(n_step=24, on_step=spoil).batch, other.collect(n_step=24).batch
    assert_equal(arrays(spoilt), arrays(batch))
    np.testing.assert_array_equal(spoilt.extras["taken"], spoilt.obs[..., 1])


# Random actions and resets.


@kinds
def test_the_policy_gets_nothing_that_was_never_observed(kind: type) -> None:
    """The first call only learns the layout of the outputs. Not all envs have been reset at this time."""
    seen = []

    def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
        seen.append(obs)
        return {"action": ones(obs), "value": obs[:, 1]}

    with make(kind, 3, 3, 3, policy=policy) as collector:
        assert collector.collect(n_episode=1, random=True).n_collected_steps == 3
    assert seen
    assert {tuple(row) for obs in seen for row in obs.tolist()} <= {(0, taken) for taken in range(4)}


@kinds
def test_a_policy_with_state_begins_anew_where_episodes_ended_among_random_actions(kind: type) -> None:
    def count(obs: np.ndarray, state: np.ndarray | None) -> dict[str, np.ndarray]:
        state = np.zeros(len(obs), np.int64) if state is None else state
        return {"action": zeros(obs), "seen": state, "state": state + 1}

    with make(kind, 4, 6, policy=count, **({"groups": 1} if kind is AsyncDataCollector else {})) as collector:
        collector.collect(n_step=4)
        collector.collect(n_step=12, random=True)
        batch = collector.collect(n_step=12).batch.flatten()
    assert batch.step_count.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]
    assert batch.extras["seen"].tolist() == [0, 1, 2, 3, 0, 1] * 2, "afresh, if not from the episode's first step"


@kinds
def test_reset_before_collect_leaves_episodes_and_passes_arguments_on(kind: type) -> None:
    """The next episodes begin without the arguments."""
    with DummyVectorEnv(pendulums(2)) as venv:
        expected = venv.reset(seed=7)[0]
    with kind(DummyVectorEnv(pendulums(2)), None, frames_per_batch=4) as collector:
        collector.collect(n_step=6)
        stats = collector.collect(n_step=78, reset_before_collect=True, gym_reset_kwargs={"seed": 7})
    batch = stats.batch.flatten()
    first = batch.obs[batch.step_count == 0]
    np.testing.assert_array_equal(first[:: len(first) // 2], expected)
    assert len(np.unique(first, axis=0)) == len(first) >= 6


# Statistics.


def test_summaries() -> None:
    assert np.isnan(CollectStats(0, 5, 1.0, np.zeros(0), np.zeros(0, np.int64), None).returns_stat.mean)
    stats = CollectStats(3, 12, 2.0, np.array([1.0, 2.0, 6.0]), np.array([3, 4, 5]), None)
    assert (stats.collect_speed, stats.lens_stat.mean) == (6.0, 4.0)
    assert stats.returns_stat == SequenceSummaryStats(3.0, float(np.std([1, 2, 6])), 6.0, 1.0)


class Whole(RowWiseWrapper):
    """Wrapper with rewards that are bytes."""

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        return obs, np.full(len(rew), 200, np.uint8), terminated, truncated, info


def test_whole_rewards_of_a_wrapper_give_float_returns() -> None:
    with SyncDataCollector(Whole(DummyVectorEnv(countdowns(5, 5))), zeros, frames_per_batch=6) as collector:
        assert collector.collect(n_episode=4).returns.tolist() == [1000.0] * 4


class Shown(Countdown):
    """Env that counts the calls of `render`, and passes the time of a step."""

    frames = 0

    def __init__(self, length: int, pass_time: Any = lambda: None) -> None:
        super().__init__(length)
        self.pass_time = pass_time

    def step(self, action: Any) -> Any:
        self.pass_time()
        return super().step(action)

    def render(self) -> None:
        self.frames += 1


@kinds
def test_the_time_of_each_part_is_counted_and_the_slowest_is_the_bottleneck(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("collector.basics.timing.time.perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    def policy(obs: np.ndarray) -> np.ndarray:
        pass_time(0.5)
        return zeros(obs)

    with kind(DummyVectorEnv([partial(Shown, 3, lambda: pass_time(2.0))]), policy, frames_per_batch=2) as collector:
        for _ in range(3):
            collector.collect(n_step=2, on_step=lambda step: pass_time(0.25))
            pass_time(1.0)
        collector.next()
        stats = collector.stats()
    assert (stats.frames, stats.bottleneck, stats.bottleneck_share[:4]) == (8, "envs", "envs")
    assert (stats.policy, stats.hooks, stats.idle) == (8 * 0.5, 6 * 0.25, 3.0)
    assert stats.env >= 8 * 2.0
    assert stats.total == sum((stats.env, stats.policy, stats.transfer, stats.storage, stats.hooks, stats.idle))


def test_every_round_is_rendered_and_the_pause_counts_as_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [0.0], list[int]()
    monkeypatch.setattr("collector.basics.timing.time.perf_counter", lambda: now[0])
    pause = "collector.collectors.whole_episodes.time.sleep"
    monkeypatch.setattr(pause, lambda seconds: now.__setitem__(0, now[0] + seconds))
    with SyncDataCollector(DummyVectorEnv([partial(Shown, 3)] * 2), ones, frames_per_batch=10) as collector:
        collector.collect(n_step=10, render=0.25, on_step=lambda step: seen.append(len(step.env_id)))
        collector.collect(n_step=10)
        assert collector.env.get_env_attr("frames") == [len(seen)] * 2
        assert collector.stats().hooks == 0.25 * len(seen) >= 1.25
