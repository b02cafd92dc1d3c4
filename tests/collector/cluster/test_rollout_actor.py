"""RayCollector without Ray: the actors live in this process, and a stand-in replaces Ray's functions."""

from __future__ import annotations

import collections
import copy
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collector import ActorConfig, ExplorationType, RayCollector, Rollout, SyncDataCollector, set_exploration_type
from collector.cluster import actor_pool, ray_collector
from collector.testing import check_collector
from tests.support.backends import RAY
from tests.support.collector_envs import arrays, assert_equal, cartpoles, countdowns, lean
from tests.support.countdown import BreaksOnce, Countdown
from vecenv import DummyVectorEnv, VectorEnvNormObs, WorkerDiedError, WorkerTimeoutError
from vecenv.transforms import CatFrames, TransformedVectorEnv, VecNorm


class TaskError(Exception):
    """A call of an actor raised `__cause__`."""


class LostError(Exception):
    """An actor was lost."""


class LocalRay:
    """Stand-in for Ray: a call runs when its result is fetched.

    Actors in `late` do not answer. Actors in `dead` are lost at their next answer. Actor `first` is ready before the
    others.
    """

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=LostError)

    def __init__(self) -> None:
        self.first: int | None = None
        self.late: set[int] = set()
        self.dead: set[int] = set()
        self.calls: list[tuple[int, str]] = []
        self.when_called: Callable[[], None] = lambda: None
        self.is_initialized = lambda: True
        self.cluster_resources = lambda: {"object_store_memory": 1e9}

    def put(self, value: Any) -> Any:
        return Reference(None, partial(copy.deepcopy, copy.deepcopy(value)))

    def wait(self, references: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        ready = [each for each in references if each.index not in self.late]
        return sorted(ready, key=lambda each: each.index != self.first)[:1], []

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if reference.index in self.dead:
            self.dead.discard(reference.index)
            raise LostError("killed by the test")
        try:
            return reference.call()
        except Exception as error:
            raise TaskError from error


class Stateful:
    """Policy with a state, but not a torch module."""

    value = 0

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.full(len(obs), self.value)

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int], strict: bool = True) -> None:
        self.value = state["value"]


class Reference:
    def __init__(self, index: int | None, call: Callable[[], Any]) -> None:
        self.index, self.call = index, call


class Handle:
    def __init__(self, ray: LocalRay, kind: type, options: dict[str, Any], index: int, count: int) -> None:
        self.ray, self.actor, self.index = ray, kind(index, count), index

    def __getattr__(self, name: str) -> Any:
        def remote(*given: Any) -> Reference:
            self.ray.calls.append((self.index, name))
            self.ray.when_called()
            own = [each.call() if isinstance(each, Reference) else each for each in given]
            return Reference(self.index, lambda: getattr(self.actor, name)(*own))

        return SimpleNamespace(remote=remote)


@pytest.fixture(autouse=True)
def ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalRay:
    ray = LocalRay()
    if not request.node.get_closest_marker("local_ray"):
        monkeypatch.setattr(ray_collector, "connect", lambda: nullcontext(SimpleNamespace(ray=ray)))
        monkeypatch.setattr(actor_pool, "make_actor", partial(Handle, ray))
        monkeypatch.setattr(actor_pool, "end_actor", lambda handle: handle.actor.close())
        monkeypatch.setattr(actor_pool, "is_loss", lambda error: isinstance(error, LostError))
        monkeypatch.setattr(actor_pool, "cause_of", lambda error: error.__cause__ or error)
    return ray


class Constant(torch.nn.Module):
    """Policy that returns its weight as the action. A Countdown env returns the action as the reward."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.value.round().long().expand(len(obs))


def parts(make: Callable[..., Any], *own: Any) -> dict[str, Any]:
    """Return arguments for a collector with one actor per value of `own`."""
    kwargs = [{"own": each} for each in own]
    return {"make_venv": lambda own: make(own), "num_actors": len(own), "create_env_kwargs": kwargs}


def by_episode(obs: np.ndarray) -> np.ndarray:
    return obs[:, 0] % 3


def assert_same(batch: Rollout, expected: Rollout) -> None:
    assert_equal(arrays(batch), arrays(expected))
    others = "broken_ids", "episode_returns"
    for name in ("env_ids", "final_env", "final_time", "final_obs", "mask", "broken", "policy_version", *others):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)


class TestBatches:
    @pytest.mark.guarantee("G10.16", "G10.18")
    @pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
    @pytest.mark.parametrize(
        ("env_fns", "frames", "broken"),
        [
            (countdowns(3, 7, 4, 20), 40, []),
            ([partial(BreaksOnce, 5, 1, at) for at in (0, 1, 3, 9)], 28, [4, 5, 6]),
        ],
    )
    def test_they_are_those_of_one_collector_with_all_envs(self, env_fns: Any, frames: int, broken: list[int]) -> None:
        """Episodes have different lengths, so ids, ends and last observations differ between envs."""
        make, seen = partial(DummyVectorEnv, on_error="restart"), []
        with (
            RayCollector(
                policy=by_episode, frames_per_batch=frames, **parts(make, env_fns[:2], env_fns[2:])
            ) as batches,
            SyncDataCollector(make(env_fns), by_episode, frames_per_batch=frames) as local,
        ):
            for _ in range(3):
                batch = batches.next()
                assert_same(batch, local.next())
                seen += batch.broken_ids.tolist()
                assert batch.frames + batch.dropped_rows == frames
        assert seen == broken

    @pytest.mark.parametrize("where", ["here", pytest.param("on Ray", marks=RAY)])
    def test_with_one_seed_they_are_those_of_a_local_collector_with_all_envs(self, where: str) -> None:
        with (
            RayCollector(cartpoles(2), Constant(), num_actors=2, frames_per_batch=80) as collector,
            SyncDataCollector(DummyVectorEnv(cartpoles(4)), Constant(), frames_per_batch=80) as local,
        ):
            assert collector.set_seed(7) == local.set_seed(7)
            for action in (0, 0, 1):
                batch, expected = collector.next(), local.next()
                assert_same(batch, expected)
                assert (batch.action == action).all()
                assert all(rows.flags.writeable for rows in (batch.all_obs, batch.action, batch.env_ids))
                for each in (collector, local):
                    each.update_policy_weights_({"value": torch.full((1,), collector.frames // 160)})
            assert (collector.frames, len(collector.stats().actors), collector.stats().weight_puts) == (240, 2, 2)

    def test_actors_draw_different_actions_and_the_same_again_with_the_same_seed(self, ray: LocalRay) -> None:
        draws = lambda obs: torch.distributions.Categorical(logits=torch.zeros(len(obs), 2))  # noqa: E731
        with RayCollector(cartpoles(1), draws, num_actors=2, frames_per_batch=40) as collector:
            first, again = [(collector.set_seed(3), collector.next().action)[1] for _ in range(2)]
            ray.dead = {0}
            other = collector.next().action
            collector.set_seed(3)
            after_a_restart = collector.next().action
            assert collector.stats().restarts == 1
        assert not np.array_equal(first[0], first[1])
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first[0], other[0]), "a restarted actor repeats no episode"
        np.testing.assert_array_equal(first, after_a_restart)

    def test_envs_that_differ_from_actor_to_actor_are_refused(self) -> None:
        envs = parts(lambda make: DummyVectorEnv(make(1)), lambda n: countdowns(3), cartpoles)
        with (
            RayCollector(frames_per_batch=40, **envs) as collector,
            pytest.raises(ValueError, match="rollouts of actors do not fit together: arrays of int64"),
        ):
            collector.next()
        with pytest.raises(ValueError, match=r"the vector envs of the actors have \[1, 2\] envs"):
            RayCollector(frames_per_batch=40, **parts(lambda n: DummyVectorEnv(cartpoles(n)), 1, 2))

    def test_entries_of_infos_come_too_from_actors_that_have_seen_none_yet(self, ray: LocalRay) -> None:
        def policy(obs: np.ndarray, left: np.ndarray | None) -> np.ndarray:
            return np.zeros(len(obs), np.int64)

        envs = parts(lambda length: DummyVectorEnv([partial(TellsLate, length)]), 99, 3, 5)
        with RayCollector(policy=policy, frames_per_batch=60, info_keys=("left",), **envs) as collector:
            for ray.first in (0, 1):
                batch = collector.next()
                np.testing.assert_array_equal(batch.extras["left"], np.where(batch.terminated, [[7], [7], [7.5]], 0.0))
                assert batch.terminated[1].any()

    def test_frames_are_rounded_up_and_end_the_iterator_and_the_actors(self, ray: LocalRay) -> None:
        options = {"frames_per_batch": 7, "total_frames": 21, "storing_device": "cpu"}
        with pytest.warns(
            RuntimeWarning, match="not a multiple of the envs of 2 actors, 3 each: batches have 12 frames"
        ):
            collector = RayCollector(cartpoles(3), lean, num_actors=2, **options)
        no_effect = pytest.raises(ValueError, match="has no effect on the policies of a RayCollector")
        with set_exploration_type(ExplorationType.MODE), no_effect:
            collector.next()
        assert (collector.frames_per_batch, len(collector)) == (12, 2)
        assert [(type(batch.reward), batch.frames) for batch in collector] == [(torch.Tensor, 12)] * 2
        assert collector.next() is None
        assert ray.calls[-2:] == [(0, "close"), (1, "close")]
        collector.shutdown()

    def test_a_state_goes_to_another_collector_and_from_a_local_one(self) -> None:
        options = {"frames_per_batch": 8, "total_frames": 32}
        with RayCollector(countdowns(3), Constant(), num_actors=2, **options) as collector:
            collector.update_policy_weights_({"value": torch.ones(1)})
            before = [collector.next(), collector.next()]
            state = collector.state_dict()
        assert (state["frames"], state["iter"], state["policy_version"]) == (16, 2, 1)
        policy = Constant()
        with RayCollector(countdowns(3), policy, num_actors=2, **options) as collector:
            collector.next()
            collector.load_state_dict(state)
            after = list(collector)
            assert (collector.frames, collector.policy_version) == (32, 1)
            assert collector.state_dict()["policy_state_dict"]["value"] == 1
        assert policy.value == 0, "the object of the driver is unchanged"
        with SyncDataCollector(DummyVectorEnv(countdowns(3, 3)), Constant(), **options) as local:
            local.load_state_dict(state)
            after += list(local)
        assert len(after) == 4
        assert all((batch.reward == 1).all() for batch in before + after)
        assert max(batch.traj_ids.max() for batch in before) < state["traj_pool"]
        assert min(batch.traj_ids.min() for batch in after) >= state["traj_pool"]

    def test_a_state_with_statistics_is_refused(self) -> None:
        with RayCollector(countdowns(3), Constant(), num_actors=2, frames_per_batch=8) as collector:
            state = {**collector.state_dict(), "frames": 8, "env_state_dict": {"0.VecNorm": {}}}
            with pytest.raises(ValueError, match=r"statistics \['0.VecNorm'\], which a RayCollector cannot load"):
                collector.load_state_dict(state)
            assert collector.frames == 0
            collector.load_state_dict(state, strict=False)
            assert collector.frames == 8

    def test_a_loaded_state_leaves_the_object_of_the_driver_unchanged(self) -> None:
        policy = Stateful()
        with RayCollector(countdowns(3), policy, num_actors=2, frames_per_batch=8) as collector:
            collector.load_state_dict({**collector.state_dict(), "policy_state_dict": {"value": 1}})
            assert (collector.next().action == 1).all()
            assert collector.evaluate(2, keep=True).batch.action.all()
            assert collector.state_dict()["policy_state_dict"] == {"value": 1}
        assert policy.value == 0

    def test_two_rollouts_of_each_actor_are_in_flight_until_a_reset_discards_them(self) -> None:
        with RayCollector(countdowns(3, 5), num_actors=3, frames_per_batch=10, sync=False) as collector:
            for number, discard in enumerate((collector.reset, partial(collector.set_seed, 3)), start=1):
                collector.next()
                assert collector.stats().in_flight == 3 * 2 * 10
                discard()
                stats = collector.stats()
                assert (stats.discarded, stats.lost, stats.in_flight) == (number * 3 * 2 * 10, 0, 0)

    @pytest.mark.parametrize(("store", "bounds"), [(1e9, {"max_bytes_in_flight": 1}), (3000, {})])
    def test_their_bytes_are_bounded_by_default_to_a_quarter_of_the_object_store(
        self, store: float, bounds: Any, ray: LocalRay
    ) -> None:
        """A rollout has about 700 bytes."""
        ray.cluster_resources = lambda: {"object_store_memory": store}
        options = {"num_actors": 3, "frames_per_batch": 10, "sync": False, **bounds}
        with RayCollector(countdowns(3, 5), **options) as collector:
            ray.calls.clear()
            ids = [collector.next().env_ids.tolist() for _ in range(8)]
            assert {*ids[-3][:1], *ids[-2][:1], *ids[-1][:1]} == {0, 2, 4}, "actors take turns"
            assert collector.stats().in_flight <= 10
            assert len(ray.calls) <= 9


class TellsLate(Countdown):
    """Env that has `left` only in the last info of an episode."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"left": 7 if self.length < 4 else 7.5} if terminated else {}


class Steps:
    """Oracle of the steps of 6 envs: they follow each other over all batches, until an episode ends or is broken."""

    def __init__(self) -> None:
        self.latest, self.following, self.unfinished = [-1] * 6, [0] * 6, set[int]()

    def check(self, batch: Rollout) -> None:
        broken = {*batch.broken_ids.tolist()}
        for row, env in enumerate(batch.env_ids.tolist()):
            columns = (batch.traj_ids, batch.obs[..., 1], batch.terminated)
            for traj, step, over in zip(*(column[row][batch.mask[row]].tolist() for column in columns), strict=True):
                if step == 0 and (self.following[env] == 0 or self.latest[env] in broken):
                    assert traj > self.latest[env]
                    assert traj % 6 == env, "ids are unique among all envs"
                else:
                    assert (traj, step) == (self.latest[env], self.following[env])
                self.latest[env], self.following[env] = traj, 0 if over else step + 1
                (self.unfinished.discard if over else self.unfinished.add)(traj)
        assert broken <= self.unfinished
        self.following = [0 if traj in broken else step for traj, step in zip(self.latest, self.following, strict=True)]


@pytest.mark.guarantee("G10.6")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sync", [True, False])
def test_random_programs(ray: LocalRay, sync: bool, seed: int) -> None:
    """Actors are lost, leave their hosts, or answer late. Meanwhile a learner in another thread updates the weights."""
    rng, answer, steps = np.random.default_rng(seed), ("restart", "drop")[seed % 2], Steps()
    options = {"sync": sync, "frames_per_batch": 60 if sync else 20, "actors": ActorConfig(on_worker_failure=answer)}
    options["straggler_timeout"] = 0.001 if sync and seed < 3 else None
    may_be_late = not sync or seed < 3
    policy, lost, moved, delivered = Constant(), 0, 0, 0

    def learn() -> None:
        new = {"value": torch.full((1,), (collector.policy_version + 1) % 3)}
        learner = threading.Thread(target=collector.update_policy_weights_, args=(new,))
        learner.start()
        learner.join()

    with RayCollector(countdowns(3, 7), policy, num_actors=3, **options) as collector:
        for _ in range(20):
            ray.late, ray.first, ray.when_called = set(), int(rng.integers(3)), lambda: None
            alive = [actor.index for actor in collector._pool.alive if actor.index not in ray.dead]
            victim, event = int(rng.choice(alive)), rng.choice(["", "lost", "leaves", "late", "learn", "reset"])
            if event == "lost" and len(alive) > 1:
                ray.dead.add(victim)
                lost += 1
            elif event == "leaves" and answer == "restart":
                collector._pool.actors[victim].handle.actor._interruptor.stop_collection()
            elif event == "late" and may_be_late and len(alive) > 1:
                ray.late = {victim}
            elif event == "learn":
                learn()
                ray.when_called = rng.choice([learn, lambda: None])
            elif event == "reset":
                rng.choice([collector.reset, partial(collector.set_seed, seed)])()
                steps.following = [0] * 6
            version, batch = collector.policy_version, collector.next()
            steps.check(batch)
            assert {*batch.mask.sum(1).tolist()} <= {10, 1}, "an actor that leaves makes one round"
            np.testing.assert_array_equal(batch.reward, np.where(batch.mask, batch.policy_version % 3, 0))
            assert (batch.traj_ids[~batch.mask] == -1).all()
            assert batch.done[batch.mask.sum(1) == 1, 0].all()
            np.testing.assert_array_equal(batch.next.obs[..., 1][batch.mask], batch.next.step_count[batch.mask])
            if not may_be_late:
                assert batch.env_ids.tolist() == [env for actor in collector._pool.alive for env in actor.env_ids]
                assert batch.policy_version[batch.mask].min() >= version
            stats, delivered = collector.stats(), delivered + batch.frames
            assert stats.requested == delivered + stats.lost + stats.discarded + stats.in_flight
            assert stats.in_flight <= (60 if sync else 2 * 60)
            assert stats.weight_puts <= collector.policy_version
            assert [failure.answer for failure in stats.failures] == [answer] * (lost - len(ray.dead))
            moved += np.count_nonzero(batch.mask.sum(1) == 1) // 2  # an actor has two envs
            assert stats.restarts == moved + (len(stats.failures) if answer == "restart" else 0)
    assert (policy.value == 0).all(), "the object of the driver is unchanged"


def test_random_frames_are_those_of_all_actors_together() -> None:
    """The number is rounded up to whole rollouts, whatever is in flight."""
    options = {"num_actors": 8, "frames_per_batch": 20, "sync": False, "max_in_flight": 2}
    with RayCollector(cartpoles(2), lean, init_random_frames=50, **options) as collector:
        batches = [collector.next() for _ in range(30)]
    assert sum(int(batch.random.sum()) for batch in batches) == 60


def test_random_frames_of_a_late_rollout_are_not_collected_again(ray: LocalRay) -> None:
    options = {"num_actors": 2, "frames_per_batch": 40, "straggler_timeout": 0.001}
    with RayCollector(cartpoles(2), lean, init_random_frames=40, **options) as collector:
        ray.late = {1}
        batches = [collector.next()]
        ray.late, ray.first = set(), 1
        batches += [collector.next() for _ in range(5)]
    assert sum(int(batch.random.sum()) for batch in batches) == 40


class TestFailures:
    def collector(self, **config: Any) -> RayCollector:
        options = {"num_actors": 3, "frames_per_batch": 60, "actors": ActorConfig(**config)}
        return RayCollector(countdowns(99, 99), Constant(), **options)

    def test_the_last_actor_is_not_dropped(self, ray: LocalRay) -> None:
        with self.collector(on_worker_failure="drop") as collector:
            ray.dead = {1}
            collector.next()
            assert [each.state for each in collector.stats().actors] == ["waits", "dropped", "waits"]
            assert (collector.stats().lost, collector.stats().failures[0].answer) == (20, "drop")
            ray.dead = {0, 2}
            with pytest.raises(WorkerDiedError, match=r"actor 2 .*; envs 4 to 5\) died during its rollout") as caught:
                collector.next()
            assert "it was the last actor; the others were dropped before" in caught.value.__notes__
            with pytest.raises(RuntimeError, match="shut down"):
                collector.next()

    def test_an_actor_that_dies_again_and_again_is_raised(self, ray: LocalRay) -> None:
        with self.collector(max_restarts=2) as collector:
            ray.when_called = lambda: ray.dead.add(1)
            with pytest.raises(WorkerDiedError) as caught:
                collector.next()
            assert any("restarted 2 times without a rollout" in note for note in caught.value.__notes__)
            assert [failure.answer for failure in collector.stats().failures] == ["restart", "restart", "raise"]

    @pytest.mark.parametrize("sync", [True, False])
    def test_each_frame_is_counted_where_a_step_raises(self, sync: bool) -> None:
        kwargs = [{"episode_at": 9}, {"episode_at": 2}]
        venv = partial(BreaksOnce, 3, at=1)
        options = {"num_actors": 2, "sync": sync, "frames_per_batch": 8, "create_env_kwargs": kwargs}
        with RayCollector(lambda **own: DummyVectorEnv([partial(venv, **own)]), **options) as collector:
            with pytest.raises(OverflowError, match="the env broke") as caught:
                collections.deque(collector, 0)
            stats = collector.stats()
        assert any(note.startswith("raised in actor") for note in caught.value.__notes__)
        assert stats.in_flight == 0
        assert stats.lost > 0
        assert stats.delivered == collector.frames
        assert stats.requested == stats.delivered + stats.lost + stats.discarded

    def test_an_actor_that_takes_too_long_has_failed(self, ray: LocalRay) -> None:
        late = r"actor 2 \(pid \d+ on \S+; envs 4 to 5\) has taken more than rollout_timeout=0.01 s; it is killed"
        with self.collector(rollout_timeout=0.01, on_worker_failure="raise") as collector:
            ray.late = {2}
            with pytest.raises(WorkerTimeoutError, match=late) as caught:
                collector.next()
        assert caught.value.env_ids == (4, 5)


class TestEvaluation:
    """Evaluation in the driver's process."""

    def test_it_is_that_of_a_local_collector_and_counts_nothing(self) -> None:
        options = {"frames_per_batch": 4, "total_frames": 8, "max_frames_per_traj": 20}
        with SyncDataCollector(cartpoles(2), lean, **options) as local:
            expected = local.evaluate(5, seed=3)
        assert expected.lens.max() <= 20
        with RayCollector(cartpoles(2), lean, num_actors=1, **options) as collector:
            for _ in range(3):  # reuses its envs, also after the last batch
                np.testing.assert_array_equal(collector.evaluate(5, seed=3).returns, expected.returns)
                collector.next()
            assert collector.frames == 8

    def test_it_has_the_weights_of_the_last_update_and_makes_transforms_without_statistics_again(self) -> None:
        make_venv = lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(2)), CatFrames(2, -1))  # noqa: E731
        policy = Constant()
        with RayCollector(make_venv, policy, num_actors=1, frames_per_batch=4) as collector:
            policy.value.data += 1
            batch = collector.evaluate(2, keep=True).batch
            assert (batch.obs.shape[-1], batch.action.any()) == (8, False)
            collector.update_policy_weights_()
            assert collector.evaluate(1, keep=True).batch.action.all()
            with pytest.raises(ValueError, match="missing"):
                collector.update_policy_weights_({})

    @pytest.mark.parametrize("wrap", [VectorEnvNormObs, partial(TransformedVectorEnv, transform=VecNorm())])
    def test_a_vector_env_that_has_learnt_is_not_made_again(self, wrap: Any) -> None:
        make_venv = lambda: wrap(DummyVectorEnv(cartpoles(2)))  # noqa: E731
        with RayCollector(make_venv, num_actors=1, frames_per_batch=4) as collector:
            with pytest.raises(ValueError, match=r"lack the statistics of Vec.*Norm.* in the training envs"):
                collector.evaluate(2)
            with DummyVectorEnv(cartpoles(1)) as venv:
                assert len(collector.evaluate(2, eval_env=venv).returns) == 2
                venv.reset()


@pytest.mark.parametrize("sync", [True, False])
def test_it_passes_the_checks_of_collectors(sync: bool) -> None:
    check_collector(partial(RayCollector, num_actors=2, sync=sync))


@pytest.mark.local_ray
@pytest.mark.ray
def test_on_ray_it_passes_the_checks_of_collectors() -> None:
    check_collector(partial(RayCollector, num_actors=2))
