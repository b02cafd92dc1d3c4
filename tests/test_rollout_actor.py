"""The parts of RayCollector that need no Ray: what an actor does, how rollouts become a batch, arguments, the table."""

from __future__ import annotations

import copy
import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from collector_envs import arrays, assert_equal, cartpoles, countdowns, lean
from countdown import BreaksOnce, Countdown

from collector import ClusterStats, ExplorationType, RayCollector, Rollout, SyncDataCollector
from collector.cluster.actor_calls import ActorCalls, Call
from collector.cluster.actor_pool import ActorPool, Arrived, Limits
from collector.cluster.cluster_stats import ActorStats
from collector.cluster.driver_evaluation import DriverEvaluation
from collector.cluster.packed_rollout import BatchAssembler
from collector.cluster.published_weights import PublishedWeights, on_cpu
from collector.cluster.rollout_actor import RolloutActor
from collector.cluster.rollout_batches import RolloutBatches
from vecenv import DummyVectorEnv, VectorEnvNormObs
from vecenv.transforms import CatFrames, TransformedVectorEnv, VecNorm


def actors(count: int, make_venv: Any, policy: Any = None, seed: int | None = None, **options: Any) -> list[Any]:
    pickled = cloudpickle.dumps((make_venv, policy, {"frames_per_batch": 20, **options}))
    made = [RolloutActor(index, count) for index in range(count)]
    for actor in made:
        actor.start(pickled, {}, [1], None if seed is None else (seed, True), 0)
    return made


def batch_of(made: list[Any], version: int = 0, weights: Any = None, random: bool = False) -> Rollout:
    assembler = BatchAssembler(len(made))
    for slot, actor in enumerate(made):
        assembler.add(slot, actor.collect(version, weights, random)[1])
    return assembler.finish()


def by_episode(obs: np.ndarray) -> np.ndarray:
    return obs[:, 0] % 3


@pytest.fixture
def closing():
    """Closes the actors that a test has put in it."""
    made: list[RolloutActor] = []
    yield made
    for actor in made:
        actor.close()


def test_a_batch_of_all_actors_is_that_of_one_collector_with_all_envs(closing):
    """Episodes of different lengths, so that ids, ends and last observations differ from env to env."""
    lengths = (3, 7, 4, 20)
    closing += [RolloutActor(index, 2) for index in range(2)]
    for actor, own in zip(closing, (lengths[:2], lengths[2:]), strict=True):
        actor.start(cloudpickle.dumps((countdowns(*own), by_episode, {"frames_per_batch": 20})), {}, [1], None, 0)
    with SyncDataCollector(countdowns(*lengths), by_episode, frames_per_batch=40) as local:
        for _ in range(3):
            batch, expected = batch_of(closing), local.rollout()
            assert_equal(arrays(batch), arrays(expected))
            for name in ("env_ids", "final_env", "final_time", "final_obs", "mask", "broken", "policy_version"):
                np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)


@pytest.mark.local_ray
def test_on_ray_with_one_seed_the_batches_are_those_of_a_local_collector_with_all_envs():
    with (
        RayCollector(cartpoles(2), lean, num_actors=2, frames_per_batch=80) as collector,
        SyncDataCollector(cartpoles(4), lean, frames_per_batch=80) as local,
    ):
        assert collector.set_seed(7) == local.set_seed(7)
        for _ in range(2):
            batch, expected = collector.next(), local.next()
            assert_equal(arrays(batch), arrays(expected))
            assert batch.env_ids.tolist() == list(range(4))
            assert all(rows.flags.writeable for rows in (batch.all_obs, batch.action, batch.final_obs, batch.env_ids))
        assert (collector.frames, len(collector.stats().actors)) == (160, 2)


@pytest.mark.filterwarnings("ignore:.*broke off where envs failed:RuntimeWarning")
def test_episodes_that_broke_off_are_those_of_one_collector_too(closing):
    def make(envs: slice) -> DummyVectorEnv:
        fns = [partial(BreaksOnce, 5, 1, at) for at in (0, 1, 3, 9)]
        return DummyVectorEnv(fns[envs], on_error="restart")

    closing += [RolloutActor(index, 2) for index in range(2)]
    for actor, envs in zip(closing, (slice(2), slice(2, 4)), strict=True):
        actor.start(cloudpickle.dumps((partial(make, envs), by_episode, {"frames_per_batch": 14})), {}, [1], None, 0)
    broken: list[int] = []
    with SyncDataCollector(make(slice(4)), by_episode, frames_per_batch=28) as local:
        for _ in range(3):
            batch, expected = batch_of(closing), local.rollout()
            broken += batch.broken_ids.tolist()
            assert_equal(arrays(batch), arrays(expected))
            for name in ("final_env", "final_time", "final_obs", "mask", "broken", "broken_ids"):
                np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)
            assert batch.frames + batch.dropped_rows == 28
    assert broken == [4, 5, 6]


def test_actors_draw_different_actions_and_the_same_again_with_the_same_seed(closing):
    class Draws(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 2)

        def forward(self, obs: torch.Tensor) -> Any:
            return torch.distributions.Categorical(logits=self.net(obs) * 0)

    closing += actors(2, cartpoles(1), Draws(), seed=3)
    first = batch_of(closing[:1]).action, batch_of(closing[1:]).action
    for actor in closing:
        actor.set_seed([1], 3, True)
    again = batch_of(closing[:1]).action, batch_of(closing[1:]).action
    assert not np.array_equal(*first)
    np.testing.assert_array_equal(first, again)


def test_versions_are_those_of_the_driver_and_minus_one_for_random_actions(closing):
    closing += actors(1, cartpoles(2), lean)
    assert (batch_of(closing, version=7).policy_version == 7).all()
    batch = batch_of(closing, version=8, random=True)
    assert batch.random.all()
    assert (batch_of(closing, version=9).policy_version == 9).all()


def test_a_slot_that_is_empty_leaves_no_rows(closing):
    closing += actors(3, countdowns(3, 4))
    assembler, parts = BatchAssembler(3), {slot: closing[slot].collect(0, None, False)[1] for slot in (2, 0)}
    for slot, columns in parts.items():
        assembler.add(slot, columns)
    batch = assembler.finish()
    assert batch.env_ids.tolist() == [0, 1, 4, 5]
    assert batch.shape == (4, 10)
    np.testing.assert_array_equal(batch.action[2:], parts[2]["action"].swapaxes(0, 1))
    assert sorted(set(batch.final_env.tolist())) == [0, 1, 2, 3]


def test_rollouts_of_another_form_are_refused(closing):
    closing += [*actors(1, countdowns(3)), *actors(1, cartpoles(1))]
    with pytest.raises(ValueError, match="rollouts of actors do not fit together: arrays of int64"):
        batch_of(closing)


class TellsLate(Countdown):
    """Only its last info has `left`."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"left": 7} if terminated else {}


def test_entries_of_infos_come_too_from_actors_that_have_seen_none_yet(closing):
    for length in (99, 3, 99):
        closing += actors(1, [partial(TellsLate, length)], info_keys=("left",))
    for slots in ((0, 1, 2), (1, 2, 0)):
        assembler = BatchAssembler(3)
        for slot in slots:
            assembler.add(slot, closing[slot].collect(0, None, False)[1])
        batch = assembler.finish()
        np.testing.assert_array_equal(batch.extras["left"], np.where(batch.terminated, 7.0, 0.0))
        assert batch.terminated[1].any()


class Act(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.action = torch.nn.Parameter(torch.zeros(()))

    def forward(self, obs):
        return self.action.round().long().expand(len(obs))


def weights_of(policy: Any) -> PublishedWeights:
    return PublishedWeights(policy, lambda weights: weights)


class LocalPool(ActorPool):
    """Actors in this process, which collect a rollout when it is waited for; `late` ones do not answer in time."""

    def __init__(self, made: list[Any]) -> None:
        super().__init__(SimpleNamespace(ray=None), len(made), {}, Limits(1, None, "raise", 0), lambda actor: ())
        self.late: set[int] = set()
        self.while_asked = lambda: None
        for actor, handle in zip(self.actors, made, strict=True):
            actor.handle = handle

    def ask_rollout(self, actor: ActorCalls, frames: int, *arguments: Any) -> None:
        self.while_asked()
        actor.add(Call("collect", arguments, None, actor.requested, frames))

    def next_rollout(self, timeout: float | None = None) -> Arrived | None:
        busy = [actor for actor in self.actors if actor.calls and actor.index not in self.late]
        if not busy:
            return None
        actor = min(busy, key=lambda actor: actor.delivered)
        call = actor.pop()
        report, columns = actor.handle.collect(*call.reference)
        actor.note_rollout(report, call.frames, columns, len(self.actors))
        return Arrived(actor, report, call.frames, columns)


class TestBatches:
    def batches(self, made: list[Any], weights: Any, **options: Any) -> tuple[LocalPool, RolloutBatches]:
        pool, given = LocalPool(made), {"depth": 1, "max_bytes": 1e9, "straggler_timeout": None, **options}
        return pool, RolloutBatches(pool, weights, 20, **given)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_random_frames_are_those_of_all_actors_together(self, closing, depth):
        """Rounded up to whole rollouts, whatever is in flight."""
        closing += actors(8, cartpoles(2), lean)
        _, batches = self.batches(closing, weights_of(lean), depth=depth)
        frames = random = 0
        for _ in range(30):
            batch = batches.first(50 - frames)
            frames, random = frames + batch.frames, random + int(batch.random.sum())
        assert random == 60

    def test_a_rollout_that_comes_late_counts_among_the_random_frames(self, closing):
        closing += actors(2, cartpoles(2), lean)
        pool, batches = self.batches(closing, weights_of(lean), straggler_timeout=0.0)
        pool.late, frames, random = {1}, 0, 0
        for _ in range(6):
            batch = batches.of_all(40 - frames)
            frames, random = frames + batch.frames, random + int(batch.random.sum())
            pool.late = set()
        assert random == 40

    @pytest.mark.parametrize("ask", ["of_all", "first"])
    def test_a_version_is_that_of_the_weights_that_were_sent(self, closing, ask):
        """The learner updates in another thread while actors are asked."""

        weights = PublishedWeights(Act(), copy.deepcopy)
        closing += actors(2, countdowns(99), weights.policy)
        pool, batches = self.batches(closing, weights)

        def learn() -> None:
            new = {"action": torch.tensor(float(weights.weights.version + 1) % 3)}
            learner = threading.Thread(target=weights.weights.update, args=(new,))
            learner.start()
            learner.join()

        pool.while_asked, versions = learn, set()
        for _ in range(6):
            batch = getattr(batches, ask)(0)
            np.testing.assert_array_equal(batch.action, batch.policy_version % 3)
            versions |= set(np.unique(batch.policy_version).tolist())
        assert len(versions) > 2


class TestEvaluation:
    """In the driver's process."""

    def evaluation(self, make_venv: Any, policy: Any = None, **options: Any) -> DriverEvaluation:
        return DriverEvaluation(make_venv, {}, weights_of(policy), options, None)

    def run(self, evaluation: DriverEvaluation, n_episode: int, **options: Any) -> Any:
        given = {"seed": None, "eval_env": None, "keep": False, "stay_open": True, **options}
        return evaluation.run(n_episode, ExplorationType.MODE, **given)

    @pytest.mark.parametrize("make_venv", [cartpoles(2), lambda: DummyVectorEnv(cartpoles(2))])
    def test_it_is_that_of_a_local_collector(self, make_venv):
        evaluation = self.evaluation(make_venv, lean, max_frames_per_traj=20)
        with SyncDataCollector(cartpoles(2), lean, frames_per_batch=2, max_frames_per_traj=20) as local:
            expected = local.evaluate(5, seed=3)
        for _ in range(2):  # the same envs again
            np.testing.assert_array_equal(self.run(evaluation, 5, seed=3).returns, expected.returns)
        evaluation.close()
        assert expected.lens.max() <= 20

    def test_it_has_the_weights_of_the_last_update(self):
        policy = Act()
        weights = weights_of(policy)
        evaluation = DriverEvaluation(cartpoles(1), {}, weights, {}, None)
        with torch.no_grad():
            policy.action += 1
        assert not self.run(evaluation, 1, keep=True).batch.action.any()
        weights.weights.update(None)
        assert self.run(evaluation, 1, keep=True, stay_open=False).batch.action.all()

    @pytest.mark.parametrize(
        ("wrap", "name"),
        [(VectorEnvNormObs, "VectorEnvNormObs"), (partial(TransformedVectorEnv, transform=VecNorm()), "VecNorm")],
    )
    def test_a_vector_env_that_has_learnt_is_not_made_again(self, wrap, name):
        evaluation = self.evaluation(lambda: wrap(DummyVectorEnv(cartpoles(2))))
        with pytest.raises(ValueError, match=f"what {name} has learned in the training envs"):
            self.run(evaluation, 2)
        with DummyVectorEnv(cartpoles(1)) as venv:
            assert len(self.run(evaluation, 2, eval_env=venv).returns) == 2
            venv.reset()

    def test_transforms_without_statistics_are_made_again(self):
        evaluation = self.evaluation(lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(2)), CatFrames(2, -1)))
        assert self.run(evaluation, 2, keep=True).batch.obs.shape[-1] == 8
        evaluation.close()


def test_weights_are_put_once_a_version_and_never_touch_the_drivers_policy():
    policy, put = torch.nn.Linear(2, 1), []
    weights = PublishedWeights(policy, lambda each: put.append(each) or len(put))
    assert weights.reference() == ((0, 0), None)
    new = {"weight": torch.ones(1, 2), "bias": torch.ones(1)}
    weights.weights.update(new)
    weights.weights.update(new)
    assert weights.reference() == weights.reference() == ((0, 2), 1)
    np.testing.assert_array_equal(put[0]["weight"], np.ones((1, 2)))
    assert not (policy.weight == 1).any()
    weights.weights.update(None)
    weights.reference()
    np.testing.assert_array_equal(put[1]["weight"], policy.weight.detach())
    weights.load(new, strict=True)
    assert weights.reference() == ((1, 3), 3)
    assert weights.puts == 3
    copied = on_cpu(policy)
    assert copied is not policy
    for one, other in zip(copied.state_dict().values(), policy.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_wrong_arguments_are_refused_before_ray_is_needed(monkeypatch):
    venv = DummyVectorEnv(cartpoles(1))
    refused = (
        ({"num_actors": 0}, ValueError, "num_actors must be an integer of at least 1"),
        ({"on_worker_failure": "ignore"}, ValueError, 'must be "restart", "drop" or "raise"'),
        ({"straggler_timeout": 1.0, "sync": False}, ValueError, "straggler_timeout needs sync=True"),
        ({"max_in_flight": 2}, ValueError, "max_in_flight above 1 needs sync=False"),
        ({"policy_device": "cuda"}, ValueError, "num_gpus is 0: pass num_gpus=1"),
        ({"total_frames": 30, "frames_per_batch": 20}, ValueError, "not a multiple of frames_per_batch"),
        ({"create_env_kwargs": [{}, {}, {}]}, ValueError, "3 entries for 2 actors"),
        ({"info_keys": "x"}, TypeError, r"info_keys are the names of entries"),
        ({"interruptor": None}, TypeError, r"no arguments \['interruptor'\]"),
        ({"make_venv": "CartPole-v1"}, TypeError, "make_venv must be a callable"),
        ({"policy": venv}, TypeError, "make_venv comes first"),
        ({"make_venv": venv}, TypeError, "must be a callable that makes a vector"),
        ({}, ImportError, r'pip install "vecenv\[ray\]"'),
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    for arguments, error, message in refused:
        options = {"make_venv": cartpoles(1), "num_actors": 2, "frames_per_batch": 20, **arguments}
        with pytest.raises(error, match=message):
            RayCollector(options.pop("make_venv"), options.pop("policy", None), **options)
    venv.close()


def table() -> ClusterStats:
    one = partial(ActorStats, node="host", pid=1)
    return ClusterStats(
        (
            one(0, "collects", requested=40, delivered=20, in_flight=20, collecting=2.0, waiting=2.0),
            one(1, "dropped", requested=30, delivered=20, lost=10, restarts=1),
        ),
        weight_puts=3,
        failures=(),
    )


def test_the_table_has_a_row_for_each_actor_and_their_sum():
    lines = str(table()).splitlines()
    assert " ".join(lines[0].split()) == "actor node pid state frames lost in flight steps/s waiting restarts"
    assert lines[1].split() == ["0", "host", "1", "collects", "20", "0", "20", "10", "50", "%", "0"]
    assert lines[-1].split() == ["all", "40", "10", "20", "10", "1"]
    assert table().requested == table().delivered + table().lost + table().discarded + table().in_flight
