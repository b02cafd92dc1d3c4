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
    Interruptor,
    MultiStep,
    SequenceSummaryStats,
    StepBatch,
    SyncDataCollector,
)
from tests.support.collector_envs import (
    arrays,
    assert_equal,
    cartpoles,
    countdowns,
    hand_written,
    kinds,
    lean,
    pendulums,
    zeros,
)
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv, RowWiseWrapper, ShmemVectorEnv, nest


def ones(obs: np.ndarray) -> np.ndarray:
    return zeros(obs) + 1


def make(kind: type, *lengths: int, policy: Any = ones, **options: Any) -> Any:
    return kind(DummyVectorEnv(countdowns(*lengths)), policy, frames_per_batch=10 * len(lengths), **options)


def resets(collector: Any) -> list[int]:
    """Return the number of resets of each env."""
    return [episode + 1 for episode in collector.env.get_env_attr("episode")]


@kinds
class TestSteps:
    def test_steps_of_all_envs_together(self, kind: type) -> None:
        with make(kind, 3, 4) as collector:
            stats = collector.collect(n_step=14)
            assert isinstance(stats, CollectStats)
            assert stats.n_collected_steps == stats.batch.frames == 14
            assert collector.frames == 0

    def test_episodes_go_on_from_call_to_call_and_count_where_they_end(self, kind: type) -> None:
        with make(kind, 5, 5, groups=1) if kind is AsyncDataCollector else make(kind, 5, 5) as collector:
            stats = [collector.collect(n_step=8) for _ in range(5)]
            assert resets(collector) == [4, 4], "none is wasted"
        assert [each.lens.tolist() for each in stats] == [[], [5, 5], [5, 5], [5, 5], [5, 5]]
        assert [each.n_collected_episodes for each in stats] == [0, 2, 2, 2, 2]
        assert all((each.returns == each.lens).all() for each in stats)


def test_steps_are_rounded_up_to_whole_rounds_with_a_warning() -> None:
    message = "n_step=10 is not a multiple of the 3 envs: collecting 12"
    with make(SyncDataCollector, 3, 4, 5) as collector, pytest.warns(RuntimeWarning, match=message):
        assert collector.collect(n_step=10).n_collected_steps == 12
    with make(AsyncDataCollector, 3, 4, 5) as collector:
        assert collector.collect(n_step=10).n_collected_steps == 10


@kinds
class TestEpisodes:
    @pytest.mark.parametrize("n_episode", [2, 7])
    def test_exactly_that_many_whole_episodes(self, kind: type, n_episode: int) -> None:
        with make(kind, 3, 4, 9) as collector:
            for _ in range(2):
                stats = collector.collect(n_episode=n_episode)
                assert stats.n_collected_episodes == len(stats.lens) == len(stats.returns) == n_episode
                assert stats.n_collected_steps == stats.lens.sum() == stats.batch.frames
                rows = stats.batch.split_trajectories()
                assert rows.mask.sum(1).tolist() == stats.lens.tolist()
                assert (rows.step_count[:, 0] == 0).all()
                assert (rows.obs[:, 0, 1] == 0).all()
                np.testing.assert_array_equal(rows.final_time[np.argsort(rows.final_env)], stats.lens - 1)

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

    def test_episodes_in_progress_are_left_and_do_not_count(self, kind: type) -> None:
        with make(kind, 9, 9) as collector:
            collector.collect(n_step=8)
            stats = collector.collect(n_episode=2)
            assert stats.lens.tolist() == [9, 9]
            assert (stats.batch.obs[:, 0] == 1).all(), "the second episodes of the envs"
            assert collector.collect(n_step=20).n_collected_steps == 20

    def test_an_interruptor_leaves_no_part_of_an_episode(self, kind: type) -> None:
        def stops(interruptor: Interruptor, calls: int) -> Any:
            left = iter(range(calls, 0, -1))

            def policy(obs: Any) -> np.ndarray:
                if next(left, 0) == 1:
                    interruptor.stop_collection()
                return zeros(obs)

            return policy

        for calls in range(1, 9):
            interruptor = Interruptor()
            with make(kind, 2, 4, policy=stops(interruptor, calls), interruptor=interruptor) as collector:
                stats = collector.collect(n_episode=6)
            assert stats.n_collected_steps == stats.batch.frames
            assert stats.batch.done.sum() == len(np.unique(stats.batch.traj_ids)) == stats.n_collected_episodes

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

    def test_a_batch_that_the_program_has_changed_is_cut_as_it_is(self) -> None:
        with make(SyncDataCollector, 3, 4) as collector:
            batch = collector.rollout()
        batch.mask[:, -2:] = False
        assert [len(episode) for episode in EpisodeCutter().cut(batch)] == [3, 4, 3, 4]

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

    def test_a_round_for_which_the_hook_returns_nothing_has_zeros(self, kind: type) -> None:
        def sometimes(step: StepBatch) -> dict[str, Any] | None:
            return {"seen": step.obs[:, 1] + 1} if (step.obs[:, 1] % 2).all() else None

        with make(kind, 100, 100) as collector:
            collector.collect(n_step=20, on_step=lambda step: {"seen": np.full(len(step.env_id), np.nan)})
            batch = collector.collect(n_step=40, on_step=sometimes).batch.flatten()
        taken = batch.obs[:, 1]
        noted = batch.extras["seen"]
        assert noted.dtype == taken.dtype
        np.testing.assert_array_equal(noted[noted != 0], taken[noted != 0] + 1)
        assert 0 < (noted != 0).sum() <= (taken % 2).sum()

    def test_extras_may_begin_late_and_come_in_any_order(self, kind: type) -> None:
        """The collection takes more than one internal batch of 64 rounds."""

        def late(step: StepBatch) -> dict[str, Any] | None:
            a, b = {"a": step.obs[:, 1]}, {"b": -step.obs[:, 1]}
            return None if (step.obs[:, 1] < 70).any() else b | a if (step.obs[:, 1] >= 130).any() else a | b

        with make(kind, 150, 150) as collector:
            batch = collector.collect(n_episode=2, on_step=late).batch
        for name, sign in (("a", 1), ("b", -1)):
            np.testing.assert_array_equal(batch.extras[name], np.where(batch.obs[:, 1] < 70, 0, sign * batch.obs[:, 1]))

    @pytest.mark.parametrize(
        ("returned", "error", "message"),
        [
            (lambda step: {"x": np.zeros(1)}, ValueError, r"returned 'x' of shape \(1,\) for the 3 .*\(3, ...\)"),
            (lambda step: {"x": 0.0}, ValueError, r"returned 'x' of shape \(\) for the 3"),
            (lambda step: [0, 0, 0], TypeError, "must return a dict of arrays or None; it returned list"),
            (lambda step: {"value": zeros(step.obs)}, ValueError, "returned 'value', which a batch has already"),
            (
                lambda step: {"x": zeros(step.obs) if step.obs[0, 1] else np.zeros(3)},
                TypeError,
                "returned 'x' as .*int64.* after .*float64",
            ),
        ],
    )
    def test_what_cannot_be_stored_is_an_error(self, kind: type, returned: Any, error: type, message: str) -> None:
        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            return {"action": zeros(obs), "value": zeros(obs)}

        one_group = {"groups": 1} if kind is AsyncDataCollector else {}
        collector = make(kind, 9, 9, 9, policy=policy, **one_group)
        with collector, pytest.raises(error, match=f"on_step {message}"):
            collector.collect(n_step=12, on_step=returned)

    @pytest.mark.parametrize("name", ["obs", "next", "policy_version"])
    def test_names_of_the_batchs_own_are_refused_in_the_first_round(self, kind: type, name: str) -> None:
        calls: list[int] = []

        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            calls.append(1)
            return {"action": zeros(obs), name: zeros(obs) + 7}

        with make(kind, 3, 4, policy=policy) as collector:
            with pytest.raises(ValueError, match=f"the policy returned '{name}', which a batch has already"):
                collector.collect(n_step=10)
            assert len(calls) == 1
        with (
            make(kind, 3, 4, policy=policy, init_random_frames=10) as collector,
            pytest.raises(ValueError, match=f"the policy returned '{name}'"),
        ):
            collector.next()
        with make(kind, 3, 4) as collector, pytest.raises(ValueError, match=f"on_step returned '{name}'"):
            collector.collect(n_step=10, on_step=lambda step: {name: zeros(step.obs)})

    def test_random_actions_can_take_the_policys_place(self, kind: type) -> None:
        with make(kind, 30, 40) as collector:
            batch = collector.collect(n_step=100, random=True).batch
            assert batch.random.all()
            assert len(np.unique(batch.action)) == 3
            assert (collector.collect(n_step=100).batch.flatten().action[-50:] == 1).all()

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

    @pytest.mark.parametrize("pause", [-1, float("nan"), True, "human"])
    def test_a_pause_that_is_none_is_refused_before_anything_is_collected(self, pause: Any) -> None:
        with make(SyncDataCollector, 3) as collector:
            with pytest.raises(ValueError, match="render is the pause after each frame in seconds"):
                collector.collect(n_step=5, render=pause)
            assert collector.collect(n_step=5).n_collected_steps == 5

    def test_envs_that_are_stepping_cannot_be_shown(self) -> None:
        with make(AsyncDataCollector, 3, 4) as collector:
            with pytest.raises(ValueError, match="render needs a synchronous collector"):
                collector.collect(n_step=10, render=0.1)
            assert collector.collect(n_step=10).n_collected_steps == 10


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of n_step and n_episode; got n_step=None, n_episode=None"),
        ({"n_step": 1, "n_episode": 1}, "exactly one"),
        ({"n_step": 0}, "n_step must be an integer of at least 1, got 0"),
        ({"n_episode": -2}, "n_episode must be an integer of at least 1, got -2"),
        ({"n_step": 2.5}, "n_step must be a whole number, got 2.5"),
        ({"n_episode": "4"}, "n_episode must be a whole number, got '4'"),
        ({"n_step": 4, "on_episode": print}, "on_episode needs n_episode"),
        ({"n_step": 4, "gym_reset_kwargs": {"seed": 1}}, "reset_before_collect=True"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_collected(options: Any, message: str) -> None:
    with make(SyncDataCollector, 3, 4) as collector:
        with pytest.raises((ValueError, TypeError), match=message):
            collector.collect(**options)
        assert resets(collector) == [0, 0]


def test_statistics_are_those_of_a_hand_written_loop() -> None:
    with DummyVectorEnv(cartpoles(3)) as venv:
        loop = hand_written(venv, lean, steps=300, seed=2)
    done = loop["terminated"] | loop["truncated"]
    expected = [np.diff(np.flatnonzero(row), prepend=-1)[:quota] for row, quota in zip(done, (3, 2, 2), strict=True)]
    with SyncDataCollector(ShmemVectorEnv(cartpoles(3)), lean, frames_per_batch=30) as collector:
        collector.set_seed(2)
        stats = collector.collect(n_episode=7)
    np.testing.assert_array_equal(stats.lens, np.concatenate(expected))
    np.testing.assert_array_equal(stats.returns, stats.lens)


@kinds
@pytest.mark.parametrize(
    "options",
    [{}, {"split_trajs": True}, {"postproc": MultiStep(3, 0.9)}, {"storing_device": "cpu"}, {"return_same_td": True}],
    ids=str,
)
def test_a_batch_has_the_returns_of_the_episodes_that_end_in_it(kind: type, options: dict[str, Any]) -> None:
    """Forms of a batch keep them, also `MultiStep`, which changes the rewards."""
    found, expected = list[float](), list[float]()
    with DummyVectorEnv(cartpoles(3)) as venv, DummyVectorEnv(cartpoles(3)) as same:
        cutter = EpisodeCutter()
        with kind(venv, lean, frames_per_batch=30, **options) as it, kind(same, lean, frames_per_batch=30) as plain:
            assert np.isnan(it.stats().mean_return)
            it.set_seed(1)
            plain.set_seed(1)
            for _ in range(14):
                ended = cutter.cut(plain.next())
                returns = it.next().episode_returns
                assert (type(returns), returns.dtype) == (np.ndarray, np.float64)
                found += returns.tolist()
                expected += ended.returns[np.argsort(ended.env_id, kind="stable")].tolist()
            stats = it.stats()
    assert found == expected
    assert len(found) > 6
    assert (stats.episodes, stats.mean_return) == (len(found), pytest.approx(np.mean(found)))
    assert f"; {len(found)} episodes, mean return {stats.mean_return:g}" in str(stats)


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

    def test_vector_rewards_give_vector_returns(self) -> None:
        class Two(Countdown):
            def step(self, action: Any) -> Any:
                obs, _, *rest = super().step(action)
                return (obs, np.array([1.0, self.taken]), *rest)

        with SyncDataCollector(
            DummyVectorEnv([partial(Two, 3), partial(Two, 4)]), zeros, frames_per_batch=8
        ) as collector:
            stats = collector.collect(n_episode=4)
            assert collector.rollout().reward.shape == (2, 4, 2)
            assert (collector.stats().episodes, collector.stats().mean_return) == (6, 11.5)
        assert stats.returns.tolist() == [[3, 6], [3, 6], [4, 10], [4, 10]]
        assert stats.batch.episode_returns.tolist() == stats.returns.tolist()


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
