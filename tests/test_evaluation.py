"""Other actions than in training: `set_exploration_type` around a collector, and `evaluate` beside it."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from collector_envs import backends, cartpoles
from countdown import Countdown

from collector import AsyncDataCollector, ExplorationType, SyncDataCollector, set_exploration_type
from vecenv import DummyVectorEnv, EnvCreator, VectorEnvNormObs

torch = pytest.importorskip("torch")
kinds = pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])


class Policy(torch.nn.Module):
    """Its mode is the action 2 (with weights of 0), its samples are any."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor([0.0, 0.0, 0.1]))

    def forward(self, obs: Any) -> Any:
        return torch.distributions.Categorical(logits=self.logits.expand(len(obs), 3))


def fns(n: int = 3) -> list[Any]:
    return [partial(Countdown, 7)] * n


@kinds
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"compile_policy": {"backend": "eager"}}, marks=pytest.mark.slow, id="compiled")]
)
def test_an_exploration_type_around_a_call_takes_the_place_of_the_collectors(kind: type, options: Any) -> None:
    with kind(DummyVectorEnv(fns()), Policy(), frames_per_batch=60, **options) as collector:
        calls = [
            lambda: collector.collect(n_episode=6).batch,
            lambda: collector.collect(n_step=60).batch,
            collector.rollout,
            lambda: next(iter(collector)),
        ]
        for collect in calls:
            if kind is AsyncDataCollector:
                collector.reset()  # else steps that are in flight were sampled
            with set_exploration_type(ExplorationType.MODE):
                assert (collect().flatten().action == 2).all()
            assert len(np.unique(collect().flatten().action)) == 3


def test_a_collector_within_a_collection_has_a_type_of_its_own() -> None:
    actions: list[Any] = []

    def hook(step: Any) -> None:
        with set_exploration_type(ExplorationType.RANDOM):
            actions.append(inner.collect(n_step=30).batch.action)
        actions.append(other.collect(n_step=30).batch.action)

    with (
        SyncDataCollector(fns(), Policy(), frames_per_batch=3) as collector,
        SyncDataCollector(fns(), Policy(), frames_per_batch=3) as inner,
        SyncDataCollector(fns(), Policy(), frames_per_batch=3) as other,
        set_exploration_type(ExplorationType.MODE),
    ):
        assert (collector.collect(n_step=3, on_step=hook).batch.action == 2).all()
    assert [len(np.unique(each)) for each in actions] == [3, 3]


@kinds
@pytest.mark.parametrize("backend", ["dummy", "shmem"])
def test_evaluation_leaves_the_training_as_it_is(kind: type, backend: str) -> None:
    found = []
    for evaluates in (False, True):
        with kind(fns(), Policy(), frames_per_batch=30, total_frames=90, backend=backend) as collector:
            collector.set_seed(3)
            torch.manual_seed(3)
            steps = []
            for batch in collector:
                flat = batch.flatten()
                steps.append(np.stack([flat.traj_ids, flat.step_count, flat.action]))
                if evaluates:
                    stats = collector.evaluate(5, keep=True)
                    assert stats.lens.tolist() == [7] * 5
                    assert stats.returns.tolist() == [14.0] * 5
                    assert (stats.batch.action == 2).all()
                    assert len(np.unique(collector.evaluate(9, "random", keep=True).batch.action)) == 3
                    torch.manual_seed(3)
                else:
                    torch.manual_seed(3)
            assert collector.frames == 90
        found.append(np.concatenate(steps, axis=1))
    np.testing.assert_array_equal(*found)


@kinds
def test_it_uses_the_weights_of_the_moment_and_the_envs_of_the_time_before(kind: type) -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        return Countdown(4)

    with kind([make] * 2, Policy(), frames_per_batch=8, backend="dummy") as collector:
        assert collector.evaluate(2).returns.tolist() == [8.0, 8.0]
        other = Policy()
        other.logits.data[1] = 9.0
        collector.update_policy_weights_(other)
        assert collector.evaluate(2).returns.tolist() == [4.0, 4.0]
    assert len(made) == 4


def test_with_a_seed_the_same_episodes_begin() -> None:
    with SyncDataCollector(cartpoles(2), lambda obs: np.ones(len(obs), np.int64), frames_per_batch=4) as collector:
        first, second, other = (collector.evaluate(4, seed=seed, keep=True).batch.obs for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[:1], other[:1])


@kinds
@backends
def test_envs_that_are_passed_stay_open(kind: type, backend: Any) -> None:
    with (
        kind(DummyVectorEnv(fns()), Policy(), frames_per_batch=9) as collector,
        backend(fns(2)) as other,
    ):
        for _ in range(2):
            assert collector.evaluate(3, eval_env=other).returns.tolist() == [14.0] * 3
        assert not other.is_closed
        with pytest.raises(ValueError, match=r"it was made with a vector env or env, not with functions .* eval_env="):
            collector.evaluate(3)


def test_where_a_new_vector_env_would_be_another_one_it_refuses() -> None:
    with (
        SyncDataCollector(lambda: VectorEnvNormObs(DummyVectorEnv(cartpoles(2))), frames_per_batch=4) as collector,
        pytest.raises(ValueError, match="what the VectorEnvNormObs around the vector env has learned is not in a new"),
    ):
        collector.evaluate(1)
    creator = EnvCreator(partial(gymnasium.make, "CartPole-v1"))
    with (
        SyncDataCollector([creator] * 2, frames_per_batch=4) as collector,
        pytest.raises(ValueError, match=r"its envs share state \(EnvCreator\)"),
    ):
        collector.evaluate(1)


@kinds
def test_after_the_last_batch_it_makes_envs_and_closes_them(kind: type) -> None:
    collector = kind(fns(), Policy(), frames_per_batch=9, total_frames=9, backend="shmem")
    assert len(list(collector)) == 1
    assert collector.evaluate(3).returns.tolist() == [14.0] * 3  # the fixture finds workers that are left
    assert collector.evaluate(3).returns.tolist() == [14.0] * 3


def test_wrong_arguments() -> None:
    with SyncDataCollector(fns(), Policy(), frames_per_batch=9) as collector:
        with pytest.raises(ValueError, match="n_episode must be at least 1"):
            collector.evaluate(0)
        with pytest.raises(ValueError, match="an exploration type is one of random, mode, mean; got 'best'"):
            collector.evaluate(1, "best")
        with pytest.raises(ValueError, match="an exploration type is one of"), set_exploration_type("best"):
            pass
