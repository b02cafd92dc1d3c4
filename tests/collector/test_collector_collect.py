"""`collect`: numbers of steps and episodes, hooks, and statistics (as tianshou's collector)."""

from __future__ import annotations

import threading
import weakref
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
from tests.support.collector_envs import (
    arrays,
    assert_equal,
    countdowns,
    kinds,
    pendulums,
    zeros,
)
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv, RowWiseWrapper, nest


def ones(obs: np.ndarray) -> np.ndarray:
    return zeros(obs) + 1


def make(kind: type, *lengths: int, policy: Any = ones, **options: Any) -> Any:
    return kind(DummyVectorEnv(countdowns(*lengths)), policy, frames_per_batch=10 * len(lengths), **options)


def resets(collector: Any) -> list[int]:
    """Return the number of resets of each env."""
    return [episode + 1 for episode in collector.env.get_env_attr("episode")]


@kinds
class TestEpisodes:
    def test_short_episodes_are_not_preferred(self, kind: type) -> None:
        """Without shares, the env with short episodes would play nearly all of the episodes."""
        with make(kind, 1, 100) as collector:
            stats = collector.collect(n_episode=6)
            assert sorted(stats.lens.tolist()) == [1, 1, 1, 100, 100, 100]
            assert resets(collector) == [3, 3], "and none is reset once more than it has episodes"

    @pytest.mark.parametrize("n_episode", [3, 4])
    def test_an_episode_that_ends_long_after_the_others_is_not_lost(self, kind: type, n_episode: int) -> None:
        """Its last steps come after a whole batch of steps."""
        one_group = {"groups": 1} if kind is AsyncDataCollector else {}
        with make(kind, 1, 96, 96, **one_group) as collector:
            stats = collector.collect(n_episode=n_episode)
        assert sorted(stats.lens.tolist()) == [1] * (n_episode - 2) + [96, 96]
        assert stats.batch.frames == stats.lens.sum()

    def test_envs_that_are_not_needed_are_left_alone(self, kind: type) -> None:
        with make(kind, 3, 3, 3) as collector:
            collector.collect(n_episode=2)
            assert resets(collector) == [1, 1, 0]
            assert collector.collect(n_episode=3).lens.tolist() == [3, 3, 3]
            assert resets(collector) == [2, 2, 1]

    def test_each_episode_is_shown_once_and_whole(self, kind: type) -> None:
        seen: list[Episode] = []
        with make(kind, 70, 3) as collector:
            stats = collector.collect(n_episode=4, on_episode=seen.append, keep=False)
        assert stats.batch is None
        assert sorted(len(episode) for episode in seen) == sorted(stats.lens.tolist()) == [3, 3, 70, 70]
        for episode in seen:
            np.testing.assert_array_equal(episode.obs[:, 1], np.arange(len(episode) + 1))
            assert np.flatnonzero(episode.terminated).tolist() == [len(episode) - 1]
            assert episode.total_reward == len(episode)


class TestCutter:
    @kinds
    @pytest.mark.parametrize("how", ["at each batch", "reset", "reset of one", "set_seed", "error"])
    def test_it_keeps_no_episode_that_is_abandoned(self, kind: type, how: str) -> None:
        cutter, steps, broken = EpisodeCutter(), [], threading.Event()

        def policy(obs: np.ndarray) -> np.ndarray:
            if broken.is_set():
                raise OverflowError
            return ones(obs)

        with make(kind, 999, 999, policy=policy, reset_at_each_iter=how == "at each batch") as collector:
            for _ in range(6):
                batch = collector.next().flatten()
                assert len(cutter.cut(batch)) == 0
                steps += zip(batch.env_ids.tolist(), batch.traj_ids.tolist(), strict=True)
                in_progress = [max(ids for ids in steps if ids[0] == env) for env in (0, 1)]
                assert cutter.unfinished_steps == sum(map(steps.count, in_progress))
                if how == "error":
                    broken.set()
                    with pytest.raises(OverflowError):
                        collector.next()
                    broken.clear()
                elif how != "at each batch":
                    arguments = {"reset": (), "reset of one": ([0],), "set_seed": (3,)}[how]
                    getattr(collector, how.partition(" ")[0])(*arguments)
        assert len(steps) == 120
        assert cutter.unfinished_steps < 80

    def test_an_episode_of_which_it_has_not_seen_the_reset_is_not_whole(self) -> None:
        with make(SyncDataCollector, 5, 12) as collector:
            collector.collect(n_step=8)
            cutter = EpisodeCutter()
            found = [episode for _ in range(5) for episode in cutter.cut(collector.collect(n_step=8).batch)]
        assert [(len(episode), episode.env_id) for episode in found] == [(5, 0)] * 3 + [(12, 1)]
        assert all(episode.obs[0][1] == 0 for episode in found)

    def test_what_it_keeps_holds_no_batch(self) -> None:
        """The cutter keeps only the steps of unfinished episodes, because an episode may be long."""
        cutter = EpisodeCutter()
        with SyncDataCollector([lambda: DictObs(Countdown(999))] * 2, zeros, frames_per_batch=20) as collector:
            batch = collector.rollout().flatten()
        columns = [batch.obs, batch.action, batch.reward, batch.terminated, batch.truncated]
        arrays_of_it = [weakref.ref(leaf) for leaf in nest.leaves(tuple(columns))]
        cutter.cut(batch)
        del batch, columns
        assert all(array() is None for array in arrays_of_it)
        assert cutter.unfinished_steps == 20


@kinds
class TestHooks:
    def test_each_round_is_shown_and_what_the_hook_returns_is_stored(self, kind: type) -> None:
        seen: list[StepBatch] = []

        def note(step: StepBatch) -> dict[str, np.ndarray]:
            seen.append(step)
            return {"twice": step.obs[:, 1] * 2}

        with make(kind, 3, 4) as collector:
            batch = collector.collect(n_step=20, on_step=note).batch.flatten()
            assert sum(len(step.env_id) for step in seen) >= batch.frames == 20
            assert collector.collect(n_step=20).batch.extras.keys() == set()
        np.testing.assert_array_equal(batch.extras["twice"], batch.obs[:, 1] * 2)
        for step in seen:
            np.testing.assert_array_equal(step.next_obs[:, 1], step.obs[:, 1] + 1)
            np.testing.assert_array_equal(step.terminated, step.next_obs[:, 1] == np.array([3, 4])[step.env_id])
            assert [info["env_id"] for info in step.info] == step.env_id.tolist()

    def test_extras_may_begin_late_and_come_in_any_order(self, kind: type) -> None:
        """The collection takes more than one internal batch of 64 rounds."""

        def late(step: StepBatch) -> dict[str, Any] | None:
            a, b = {"a": step.obs[:, 1]}, {"b": -step.obs[:, 1]}
            return None if (step.obs[:, 1] < 70).any() else b | a if (step.obs[:, 1] >= 130).any() else a | b

        with make(kind, 150, 150) as collector:
            batch = collector.collect(n_episode=2, on_step=late).batch
        for name, sign in (("a", 1), ("b", -1)):
            np.testing.assert_array_equal(batch.extras[name], np.where(batch.obs[:, 1] < 70, 0, sign * batch.obs[:, 1]))

    def test_the_policy_gets_nothing_that_was_never_observed(self, kind: type) -> None:
        """The first call only learns the layout of the outputs. Not all envs have been reset at this time."""
        seen = []

        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            seen.append(obs)
            return {"action": ones(obs), "value": obs[:, 1]}

        with make(kind, 3, 3, 3, policy=policy) as collector:
            assert collector.collect(n_episode=1, random=True).n_collected_steps == 3
        assert seen
        assert {tuple(row) for obs in seen for row in obs.tolist()} <= {(0, taken) for taken in range(4)}

    def test_a_policy_with_state_begins_anew_where_episodes_ended_among_random_actions(self, kind: type) -> None:
        def count(obs: np.ndarray, state: np.ndarray | None) -> dict[str, np.ndarray]:
            state = np.zeros(len(obs), np.int64) if state is None else state
            return {"action": zeros(obs), "seen": state, "state": state + 1}

        one_group = {"groups": 1} if kind is AsyncDataCollector else {}
        with make(kind, 4, 6, policy=count, **one_group) as collector:
            collector.collect(n_step=4)
            collector.collect(n_step=12, random=True)
            batch = collector.collect(n_step=12).batch.flatten()
        assert batch.step_count.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]
        assert batch.extras["seen"].tolist() == [0, 1, 2, 3, 0, 1] * 2, "afresh, if not from the episode's first step"


@kinds
def test_a_hook_may_write_over_what_it_is_shown(kind: type) -> None:
    def spoil(step: StepBatch) -> None:
        for column in (step.obs, step.action, step.reward, step.next_obs):
            column[:] = -7

    with make(kind, 3, 4) as collector, make(kind, 3, 4) as other:
        spoilt, batch = collector.collect(n_step=24, on_step=spoil).batch, other.collect(n_step=24).batch
    assert_equal(arrays(spoilt), arrays(batch))


@kinds
def test_a_hook_may_return_the_same_array_each_time(kind: type) -> None:
    def note(step: StepBatch) -> dict[str, np.ndarray]:
        taken[: len(step.env_id)] = step.obs[:, 1]
        return {"taken": taken[: len(step.env_id)]}

    taken = np.zeros(2, np.int64)
    with make(kind, 3, 4) as collector:
        batch = collector.collect(n_step=24, on_step=note).batch.flatten()
    np.testing.assert_array_equal(batch.extras["taken"], batch.obs[:, 1])


class Shown(Countdown):
    """Env that counts the calls of `render`."""

    frames = 0

    def render(self) -> None:
        self.frames += 1


class TestRender:
    def test_every_round_is_shown_and_the_hook_is_called_too(self) -> None:
        seen: list[int] = []
        venv = DummyVectorEnv([partial(Shown, 3), partial(Shown, 4)])
        with SyncDataCollector(venv, ones, frames_per_batch=10) as collector:
            stats = collector.collect(n_step=10, render=0.0, on_step=lambda step: seen.append(len(step.env_id)))
            assert stats.n_collected_steps == 10
            assert collector.env.get_env_attr("frames") == [len(seen)] * 2
            assert len(seen) >= 5
            collector.collect(n_step=10)
            assert collector.env.get_env_attr("frames") == [len(seen)] * 2

    def test_the_pause_is_not_counted_as_storage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("collector.basics.timing.time.perf_counter", lambda: now[0])
        monkeypatch.setattr(
            "collector.collectors.whole_episodes.time.sleep", lambda pause: now.__setitem__(0, now[0] + pause)
        )
        with SyncDataCollector(DummyVectorEnv([partial(Shown, 9)]), ones, frames_per_batch=5) as collector:
            collector.collect(n_step=5, render=0.25)
            assert collector.stats().hooks == 1.25
            assert collector.stats().bottleneck_share == "hooks 100 %"


@kinds
def test_reset_before_collect_leaves_episodes_and_passes_arguments_on(kind: type) -> None:
    with kind(DummyVectorEnv(pendulums(2)), None, frames_per_batch=4) as collector:
        collector.collect(n_step=6)
        batch = collector.collect(
            n_step=26, reset_before_collect=True, gym_reset_kwargs={"seed": 7}
        ).batch.split_trajectories()
    with DummyVectorEnv(pendulums(2)) as venv:
        expected = venv.reset(seed=7)[0]
    np.testing.assert_array_equal(batch.obs[batch.step_count[:, 0] == 0, 0][: len(batch.obs)], expected)
    with kind(DummyVectorEnv(pendulums(1)), None, frames_per_batch=4) as collector:
        batch = collector.collect(n_step=39, reset_before_collect=True, gym_reset_kwargs={"seed": 7}).batch.flatten()
    assert len(np.unique(batch.obs[::13], axis=0)) == 3, "the next episodes begin without them"


class TestStats:
    def test_summaries(self) -> None:
        nothing = CollectStats(0, 5, 1.0, np.zeros(0), np.zeros(0, np.int64), None)
        assert np.isnan(nothing.returns_stat.mean)
        assert repr(nothing) == "CollectStats(5 steps, 0 episodes)"
        stats = CollectStats(3, 12, 2.0, np.array([1.0, 2.0, 6.0]), np.array([3, 4, 5]), None)
        assert stats.collect_speed == 6.0
        assert stats.returns_stat == SequenceSummaryStats(3.0, float(np.std([1, 2, 6])), 6.0, 1.0)
        assert stats.lens_stat.mean == 4.0
        assert repr(stats) == "CollectStats(12 steps, 3 episodes, returns 3 +- 2.16025)"

    def test_whole_rewards_of_a_wrapper_give_float_returns(self) -> None:
        class Whole(RowWiseWrapper):
            def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
                return obs, np.full(len(rew), 200, np.uint8), terminated, truncated, info

        venv = Whole(DummyVectorEnv([partial(Countdown, 5)] * 2))
        with SyncDataCollector(venv, zeros, frames_per_batch=6) as collector:
            stats = collector.collect(n_episode=4)
        assert stats.returns.tolist() == [1000.0] * 4


@kinds
@pytest.mark.parametrize("copies", [True, False])
def test_the_batch_has_only_whole_episodes_whatever_on_episode_does(kind: type, copies: bool) -> None:
    def collect(use: Any) -> Any:
        calls: list[Any] = []

        def on_episode(episode: Any) -> None:
            calls.append(episode)
            if len(calls) == 2:
                use()

        return collector.collect(n_episode=6, on_episode=on_episode)

    venv = DummyVectorEnv(countdowns(30, 50, 70), copy=copies)
    with kind(venv, zeros, frames_per_batch=9) as collector:
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
                collect(use)
        stats = collect(venv.reset) if kind is SyncDataCollector else collect(lambda: None)
        assert stats.lens.tolist() == [30, 30, 50, 50, 70, 70]
        assert stats.batch.frames == stats.lens.sum()
        assert stats.batch.done.sum() == 6
