"""Failures in a collector: errors name the env, and only the failed steps are lost."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import AsyncDataCollector, MultiStep, SyncDataCollector
from collector.batch.step_extras import StepBatch
from collector.episodes.cutter import EpisodeCutter
from collector.policy.policy_call import exploration_type
from tests.support.backends import FULL
from tests.support.collector_envs import backends, batch_of, countdowns, kinds, zeros
from tests.support.countdown import Breaks, BreaksOnce, Countdown, PaysTwo
from tests.support.interrupts import interrupted
from vecenv import DummyVectorEnv, EnvContractError, ShmemVectorEnv
from vecenv.testing import CountingEnv


class Dies(Countdown):
    """Env that kills its process in the fourth step."""

    def step(self, action: Any) -> Any:
        if self.taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Sleeps(Countdown):
    """Env that takes 0.4 s for the action 1."""

    def step(self, action: Any) -> Any:
        if action == 1:
            time.sleep(0.4)
        return super().step(action)


class NotANumber(Countdown):
    """Env that returns a reward of NaN in the third step."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, np.nan if self.taken == 3 else reward, *rest)


class BreaksUntil(Countdown):
    """Env that fails in its first `failures` steps."""

    def __init__(self, length: int, failures: int) -> None:
        super().__init__(length)
        self.left = failures

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            raise OverflowError("the env broke")
        return super().step(action)


def _two_rewards(episode: int, at: int) -> Any:
    return PaysTwo(BreaksOnce(3, episode, at))


@backends
@pytest.mark.parametrize(
    "call",
    [
        lambda collector: collector.set_seed(0),
        lambda collector: collector.reset(),
        lambda collector: collector.collect(n_episode=2),
        lambda collector: collector.load_state_dict(collector.state_dict()),
    ],
)
def test_a_failure_of_an_env_that_was_still_stepping_is_raised_once(backend: Any, call: Any) -> None:
    venv = backend([partial(BreaksOnce, 20, 0, 2), partial(Countdown, 20)])
    with AsyncDataCollector(venv, zeros, frames_per_batch=4) as collector:
        before = collector.rollout()
        with pytest.raises(OverflowError, match="the env broke"):
            call(collector)
        call(collector)
        batch = collector.rollout()
        assert (batch.step_count[np.r_[True, np.diff(batch.env_ids) > 0]] == 0).all(), "new episodes in all envs"
        assert set(batch.traj_ids.tolist()).isdisjoint(before.traj_ids.tolist())


@pytest.mark.guarantee("G10.11")
@kinds
def test_after_a_failure_the_iterator_raises_again_instead_of_ending(kind: type) -> None:
    with kind(DummyVectorEnv([partial(Breaks, 3)]), zeros, frames_per_batch=20, total_frames=40) as collector:
        batches = iter(collector)
        for ask in (lambda: next(batches), collector.next, lambda: next(iter(collector)), collector.rollout):
            with pytest.raises(OverflowError, match="the env broke"):
                ask()
        with pytest.raises(OverflowError, match="the env broke"):
            collector.collect(n_episode=1)


@kinds
def test_where_nothing_is_left_to_go_on_with_the_error_says_so(kind: type) -> None:
    venv = DummyVectorEnv(countdowns(3, 4))

    def policy(obs: Any) -> Any:
        venv.close()
        raise ZeroDivisionError

    with kind(venv, policy, frames_per_batch=20) as collector:
        with pytest.raises(ZeroDivisionError) as caught:
            collector.rollout()
        assert any(
            "shut down because of this exception: its vector env is closed" in note for note in caught.value.__notes__
        )
        with pytest.raises(RuntimeError, match="was shut down after ZeroDivisionError; make a new collector"):
            collector.rollout()


@kinds
@pytest.mark.parametrize("tensors", [False, True])
def test_a_shutdown_within_a_batch_is_said(kind: type, tensors: bool) -> None:
    torch = pytest.importorskip("torch")
    by_hook = True

    def policy(obs: Any) -> Any:
        if not by_hook:
            collector.shutdown(close_env=False)
        return torch.zeros(len(obs), dtype=torch.long)

    def hook(step: Any) -> None:
        if by_hook:
            collector.shutdown(close_env=False)

    for by_hook in (True, False):  # noqa: B007
        with DummyVectorEnv(countdowns(3, 4)) as venv:
            collector = kind(venv, policy, frames_per_batch=20, policy_device="cpu" if tensors else None)
            with pytest.raises(RuntimeError, match="the collector was shut down during this batch") as caught:
                collector.collect(n_step=20, on_step=hook)
            assert not any("can continue" in note for note in getattr(caught.value, "__notes__", ()))
            with pytest.raises(RuntimeError, match="the collector is shut down"):
                collector.rollout()


@pytest.mark.guarantee("G9.11")
@kinds
def test_a_batch_and_a_reset_within_a_batch_are_refused(kind: type) -> None:
    with kind(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=20) as collector:
        state = collector.state_dict() | {"frames": 99}
        for use in (
            lambda step: collector.next(),
            lambda step: collector.collect(n_episode=2),
            lambda step: collector.reset(0, seed=1),
            lambda step: collector.set_seed(0),
            lambda step: collector.load_state_dict(state),
            *([lambda step: collector.reset(), lambda step: collector.reset(0)] if kind is AsyncDataCollector else ()),
        ):
            with pytest.raises(RuntimeError, match="this collector is collecting a batch"):
                collector.collect(n_step=20, on_step=use)
            assert collector.frames == 0
            assert collector.collect(n_episode=4).lens.tolist() == [3, 3, 4, 4]


@pytest.mark.guarantee("G10.12")
def test_with_episode_seeds_a_failure_shuts_down() -> None:
    with SyncDataCollector(
        [partial(Breaks, 3)], zeros, frames_per_batch=4, episode_seeds=[(0, 1), (1, 2)]
    ) as collector:
        with pytest.raises(OverflowError) as caught:
            collector.rollout()
        assert any("with episode_seeds every episode is played to its end" in note for note in caught.value.__notes__)
        assert collector.env.is_closed


@pytest.mark.guarantee("G8.18")
@kinds
@pytest.mark.parametrize(
    ("backend", "where"),
    [
        (ShmemVectorEnv, "policy"),
        (DummyVectorEnv, "on_step"),
        (DummyVectorEnv, "env"),
        pytest.param(ShmemVectorEnv, "env", marks=FULL),
    ],
)
def test_after_ctrl_c_a_collector_goes_on(kind: type, backend: Any, where: str) -> None:
    calls = [0]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def count() -> bool:
        calls[0] += 1
        if calls[0] == 5 and where != "env":
            interrupt()
        return calls[0] == 5

    def hook(step: StepBatch) -> None:
        count()

    def policy(obs: np.ndarray) -> np.ndarray:
        if where == "on_step" or not count():
            return zeros(obs)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return np.ones(len(obs), np.int64)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with kind(backend([partial(Sleeps, 6)] * 3), policy, frames_per_batch=30) as collector:
            with pytest.raises(KeyboardInterrupt):
                collector.collect(n_step=30, on_step=hook if where == "on_step" else None)
            flat = collector.collect(n_step=30).batch.flatten()
        assert flat.frames == 30
        begins = np.r_[True, np.diff(flat.env_ids) > 0]
        assert flat.step_count[begins].tolist() == [0, 0, 0]
        np.testing.assert_array_equal(flat.obs[:, 1], flat.step_count)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@kinds
def test_after_a_failure_of_postproc_a_collector_goes_on(kind: type) -> None:
    calls: list[Any] = []

    def fails_once(batch: Any) -> Any:
        calls.append(batch)
        return 1 / 0 if len(calls) == 1 else batch

    venv = DummyVectorEnv(countdowns(3))
    with kind(venv, zeros, frames_per_batch=10, total_frames=30, postproc=fails_once) as collector:
        batches = iter(collector)
        with pytest.raises(ZeroDivisionError):
            next(batches)
        assert [batch.frames for batch in batches] == [10, 10]
        assert collector.next() is None


@pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
class TestRestart:
    """With on_error="restart", the broken episode ends before the failure, and the collection continues."""

    def fns(self) -> list[Any]:
        return [partial(Countdown, 4), partial(BreaksOnce, 5, 2, 3)]

    @pytest.mark.guarantee("G10.10")
    @backends
    def test_only_the_step_that_failed_is_masked(self, backend: Any) -> None:
        with SyncDataCollector(backend(self.fns(), on_error="restart"), zeros, frames_per_batch=40) as collector:
            batch = collector.rollout()
            more = collector.rollout()
        assert batch.broken_ids.tolist() == [5], "the third episode of env 1"
        assert batch.broken.tolist() == [[False] * 20, [False] * 10 + [True] * 4 + [False] * 6]
        assert np.argwhere(~batch.mask).tolist() == [[1, 13]]
        assert (batch.frames, batch.dropped_rows) == (39, 1)
        np.testing.assert_array_equal(batch.obs[1, 10:, 1], [0, 1, 2, 3, 0, 1, 2, 3, 4, 0])
        np.testing.assert_array_equal(batch.traj_ids[1, 10:], [5] * 4 + [7] * 5 + [9])
        np.testing.assert_array_equal(batch.truncated[1].nonzero()[0], [12, 13])
        assert (batch.next.obs[batch.mask][:, 1] == batch.step_count[batch.mask] + 1).all()
        assert batch.next.obs[1, 13].tolist() == batch.obs[1, 13].tolist() == [2, 3], "not what the reset returned"
        ends = list(zip(batch.final_env.tolist(), batch.final_time.tolist(), strict=True))
        assert (1, 12) in ends
        assert (1, 13) not in ends
        assert ends == sorted(ends, key=lambda end: end[::-1])
        np.testing.assert_array_equal(batch.final_obs[:, 1], [4, 5, 4, 5, 4, 3, 4, 5, 4])
        assert more.mask.all()

    def test_flat_and_split_forms_have_its_real_steps(self) -> None:
        batch = batch_of(self.fns(), zeros, 40, on_error="restart")
        flat, split = batch.flatten(), batch.split_trajectories()
        assert flat.broken.tolist() == (flat.traj_ids == 5).tolist()
        at = np.flatnonzero(flat.broken)
        assert flat.step_count[at].tolist() == [0, 1, 2]
        assert flat.truncated[at].tolist() == [False, False, True]
        assert flat.next.obs[at].tolist() == [[2, 1], [2, 2], [2, 3]]
        assert MultiStep(3, gamma=0.5)(batch).extras["steps"][at].tolist() == [3, 2, 1]
        (row,) = np.flatnonzero(split.broken.any(1))
        np.testing.assert_array_equal(split.broken[row], split.mask[row])
        assert split.traj_ids[row].tolist() == [5, 5, 5, -1, -1]
        assert split.next.obs[row, :3].tolist() == [[2, 1], [2, 2], [2, 3]]
        assert split.mask.sum() == batch.frames == flat.frames == 39

    def test_tensors_of_it_say_the_same(self) -> None:
        pytest.importorskip("tensordict")
        batch = batch_of(self.fns(), zeros, 40, on_error="restart", device="cpu")
        assert batch.next.obs[1, 12:14].tolist() == [[2, 3], [2, 3]]
        assert batch.flatten().broken.tolist() == batch.broken[batch.mask].tolist()
        tensors = batch.to_tensordict()
        assert tensors["next", "truncated"][1, 12:14].all()
        assert tensors["collector", "mask"][1, 11:15].tolist() == [True, True, False, True]

    @kinds
    def test_it_is_counted_and_one_warning_names_the_env(self, kind: type) -> None:
        venv = DummyVectorEnv([partial(BreaksUntil, 3, 2), partial(BreaksUntil, 3, 4)], on_error="restart")
        with kind(venv, zeros, frames_per_batch=4) as collector:
            message = (
                r"\d episodes? of this batch broke off because envs failed \(env 0: OverflowError: the env broke\)"
            )
            with pytest.warns(RuntimeWarning, match=message) as caught:
                batches = [collector.next() for _ in range(6)]
            assert [each.filename for each in caught] == [__file__]
            assert sum(len(batch.broken_ids) for batch in batches) == 6
            assert collector.stats().broken_episodes == 6
            assert str(collector.stats()).endswith("; 6 broken episodes")
            (text, *_) = [repr(batch) for batch in batches if len(batch.broken_ids)]
            assert "broken episode" in text

    @kinds
    @pytest.mark.parametrize("frames", [2, 20])
    def test_as_many_batches_come_as_without_failures(self, kind: type, frames: int) -> None:
        venv = DummyVectorEnv([partial(BreaksUntil, 3, 2), partial(BreaksOnce, 5, 1, 2)], on_error="restart")
        with kind(venv, zeros, frames_per_batch=frames, total_frames=40) as collector:
            batches = list(collector)
            assert len(batches) == len(collector) == 40 // frames
            assert collector.frames == 40
        assert [batch.frames + batch.dropped_rows for batch in batches] == [frames] * len(batches)
        assert sum(batch.dropped_rows for batch in batches) == (3 if kind is SyncDataCollector else 0)

    @pytest.mark.parametrize("steps", [1, 3])
    def test_only_that_episode_is_lost_wherever_batches_end(self, steps: int) -> None:
        cutter, episodes, frames, broken = EpisodeCutter(), [], 0, []
        venv = DummyVectorEnv(self.fns(), on_error="restart")
        with SyncDataCollector(venv, zeros, frames_per_batch=2 * steps) as collector:
            for _ in range(84 // steps):
                batch = collector.rollout()
                broken += batch.broken_ids.tolist()
                frames += batch.frames
                episodes += cutter.cut(batch)
        assert broken == [5]
        lengths = {env: [len(episode) for episode in episodes if episode.env_id == env] for env in (0, 1)}
        assert lengths == {0: [4] * 21, 1: [5] * 16}
        for episode in episodes:
            np.testing.assert_array_equal(episode.obs[:, 1], np.arange(len(episode) + 1))

    @kinds
    def test_split_batches_say_which_it_was(self, kind: type) -> None:
        """The first steps of the broken episode are in an earlier batch."""
        venv = DummyVectorEnv(self.fns(), on_error="restart")
        with kind(venv, zeros, frames_per_batch=8, split_trajs=True) as collector:
            batches = [collector.next() for _ in range(5)]
        assert sorted(broken for batch in batches for broken in batch.broken_ids.tolist()) == [5]

    @kinds
    @pytest.mark.parametrize(("envs", "episode", "at"), [(1, 0, 1), (1, 1, 1), (3, 0, 0), (3, 1, 1)])
    def test_rewards_that_are_vectors_where_all_that_answer_have_failed(
        self, kind: type, envs: int, episode: int, at: int
    ) -> None:
        venv = DummyVectorEnv([partial(_two_rewards, episode, at)] * envs, on_error="restart")
        with kind(venv, zeros, frames_per_batch=12 * envs) as collector:
            for _ in range(2):
                batch = collector.rollout()
                assert batch.reward.shape == (*batch.shape, 2)
                assert (batch.reward[batch.mask] == [1, 2]).all()

    @kinds
    @pytest.mark.parametrize("form", ["batches", "n_step", "n_episode"])
    def test_rewards_that_are_vectors_where_no_env_returned_one_for_long(
        self, kind: type, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("collector.collectors.whole_episodes.STEPS_PER_CHECK", 2)
        venv = DummyVectorEnv([lambda: PaysTwo(BreaksUntil(3, 5))], on_error="restart", max_restarts=9)
        with kind(venv, zeros, frames_per_batch=1) as collector:
            if form == "n_episode":
                stats = collector.collect(n_episode=2)
                assert stats.returns.tolist() == [[3, 6]] * 2
                assert stats.batch.reward.tolist() == [[1, 2]] * 6
            elif form == "n_step":
                returns = [collector.collect(n_step=1).returns for _ in range(11)]
                whole = 2 if kind is SyncDataCollector else 3  # flat batches have no rows for the five failures
                assert [each.tolist() for each in returns if len(each)] == [[[3, 6]]] * whole
            else:
                rewards = [batch.reward[batch.mask] for batch in (collector.rollout() for _ in range(9))]
                assert [each.tolist() for each in rewards if len(each)][:3] == [[[1, 2]]] * 3

    @kinds
    def test_a_hook_gets_rewards_of_one_shape_and_may_empty_the_infos(self, kind: type) -> None:
        def hook(step: StepBatch) -> None:
            shapes.add(step.reward.shape[1:])
            for info in step.info:
                info.clear()

        shapes: set[tuple[int, ...]] = set()
        with kind(DummyVectorEnv([partial(_two_rewards, 1, 1)], on_error="restart"), zeros, frames_per_batch=1) as it:
            stats = it.collect(n_episode=3, on_step=hook)
        assert shapes == {(2,)}
        assert stats.lens.tolist() == [3, 3, 3]
        assert stats.batch.broken_ids.tolist() == [1]

    @pytest.mark.parametrize("frames", [1, 40])
    def test_flat_batches_leave_out_the_step_that_failed(self, frames: int) -> None:
        rows: list[tuple[int, int]] = []
        broken: list[int] = []
        venv = DummyVectorEnv(self.fns(), on_error="restart")
        with AsyncDataCollector(venv, zeros, frames_per_batch=frames) as collector:
            for _ in range(80 // frames):
                batch = collector.rollout()
                broken += batch.broken_ids.tolist()
                rows += zip(batch.traj_ids.tolist(), batch.step_count.tolist(), strict=True)
        assert broken == [5]
        assert sorted(row for row in rows if row[0] == 5) == [(5, 0), (5, 1), (5, 2)]
        assert len(rows) == len(set(rows)) == 80 // frames * frames, "no row for the step that failed"
        assert [row for row in rows if row[0] == 3] == [(3, step) for step in range(5)]

    def test_it_does_not_count_as_a_whole_episode(self) -> None:
        with SyncDataCollector(self.fns(), zeros, frames_per_batch=40, on_error="restart") as collector:
            stats = collector.collect(n_step=40)
        assert stats.lens.tolist() == [4] * 5 + [5] * 3
        assert len(stats.batch.final_env) == 9, "it ends there, but is no whole episode"

    @kinds
    def test_nor_as_one_of_n_episode(self, kind: type) -> None:
        with kind(self.fns(), zeros, frames_per_batch=40, backend="dummy", on_error="restart") as collector:
            stats = collector.collect(n_episode=8)
        assert stats.lens.tolist() == [4] * 4 + [5] * 4
        assert stats.batch.split_trajectories().mask.sum(1).tolist() == stats.lens.tolist()
        assert 5 not in stats.batch.traj_ids

    @kinds
    def test_envs_that_share_a_dead_worker_are_cut_alike(self, kind: type) -> None:
        fns = [partial(Countdown, 50), partial(Dies, 9), partial(Countdown, 4)]
        venv = ShmemVectorEnv(fns, num_workers=1, on_error="restart", max_restarts=3)
        batch = batch_of(venv, zeros, 18, kind, **({"groups": 1} if kind is AsyncDataCollector else {}))
        flat = batch.flatten()
        assert batch.broken_ids[:2].tolist() == [0, 1]
        for traj_id in (0, 1):
            at = flat.traj_ids == traj_id
            assert flat.truncated[at].tolist() == [False, False, True]
            assert flat.next.obs[at].tolist() == [[0, 1], [0, 2], [0, 3]]


@kinds
def test_a_reward_of_nan_is_an_error_that_names_env_and_step(kind: type) -> None:
    venv = DummyVectorEnv([partial(Countdown, 9), partial(NotANumber, 9)])
    with kind(venv, zeros, frames_per_batch=40) as collector:
        collector.collect(n_step=4)
        message = r"env 1 returned a reward of NaN in step 2 of its episode 1, for the action 0"
        with pytest.raises(ValueError, match=message):
            collector.rollout()


def test_an_action_that_is_not_a_number_is_the_policys() -> None:
    class PaysItsAction(Countdown):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.action_space = spaces.Box(-1, 1, (1,))

        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(0)
            return (obs, action[0], *rest)

    venv = DummyVectorEnv([partial(PaysItsAction, 9)])
    nan = np.full((1, 1), np.nan, np.float32)
    with pytest.raises(ValueError, match=r"for the action \[nan\] \(the policy returned NaN\)"):
        batch_of(venv, lambda obs: nan, 4)


def test_infinite_rewards_are_numbers() -> None:
    class Infinite(Countdown):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return (obs, np.inf, *rest)

    assert np.isinf(batch_of([partial(Infinite, 2)], zeros, 4).reward).all()


@kinds
def test_an_env_with_rewards_of_another_shape_is_named(kind: type) -> None:
    venv = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1"), lambda: PaysTwo(gymnasium.make("CartPole-v1"))])
    message = r"env 1: step\(\) returned a reward of shape \(2,\), expected \(\)"
    with pytest.raises(EnvContractError, match=message):
        batch_of(venv, zeros, 4, kind)


@kinds
def test_after_two_interrupts_the_next_batch_has_whole_transitions(kind: Any) -> None:
    """The second interrupt may come while the first is handled."""
    venv = DummyVectorEnv([partial(CountingEnv, i, length=1000) for i in range(2)])
    with kind(venv, None, frames_per_batch=8) as collector:
        collector.next()
        for later in range(1, 60):
            raised, _ = interrupted(collector.next, 300 + later % 7, later, at_looks=True)
            assert raised
            assert exploration_type() is None
            batch = collector.next()
            assert batch.mask.all()
            assert (batch.next.obs[..., 2] == batch.obs[..., 2] + 1).all()


def test_a_step_hook_resets_only_the_envs_that_it_names() -> None:
    venv = DummyVectorEnv([partial(CountingEnv, i, length=1000) for i in range(2)])
    with SyncDataCollector(venv, None, frames_per_batch=4) as collector:

        def reset_once(step: StepBatch) -> None:
            if step.next_obs[0, 2] == 2:
                collector.reset([0])

        batch = collector.collect(n_step=8, on_step=reset_once).batch
        assert batch.obs[..., 2].tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
        assert batch.next.obs[..., 2].tolist() == [[1, 2, 1, 2], [1, 2, 3, 4]]
        assert batch.truncated.tolist() == [[False, True, False, True], [False] * 4]
        assert batch.step_count.tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]
        assert batch.traj_ids.tolist() == [[0, 0, 2, 2], [1] * 4]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("by", ["hook", "policy"])
def test_a_reset_within_a_batch_ends_an_episode_with_its_last_observation(copy: bool, by: str) -> None:
    """Also at the end of a batch, in a step that ends an episode, and for episodes that count."""
    rng = np.random.default_rng(0)

    def reset() -> None:
        if rng.random() < 0.4:
            ids = np.flatnonzero(rng.random(3) < 0.5)
            collector.reset(ids if len(ids) else None)

    def policy(obs: Any) -> np.ndarray:
        if by == "policy":
            reset()
        return zeros(obs)

    def hook(step: StepBatch) -> None:
        assert (step.next_obs[:, 1] == step.obs[:, 1] + 1).all()
        reset()

    venv = DummyVectorEnv(countdowns(3, 4, 50), copy=copy)
    with SyncDataCollector(venv, policy, frames_per_batch=12, info_keys=()) as collector:
        for _ in range(20):
            batch = collector.collect(n_step=12, on_step=hook if by == "hook" else None).batch
            assert (batch.obs[..., 1] == batch.step_count).all()
            assert (batch.next.obs == batch.obs + np.array([0, 1])).all()
            assert (batch.terminated == (batch.next.obs[..., 1] == np.array([[3], [4], [50]]))).all()
            assert not (batch.terminated & batch.truncated).any()
            stats = collector.collect(n_episode=4, on_step=hook if by == "hook" else None)
            assert len(stats.lens) == stats.batch.done.sum() == 4
            assert stats.batch.frames == stats.lens.sum()
