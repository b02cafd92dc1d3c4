"""`set_exploration_type` around a collector, and `evaluate` during training."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import AsyncDataCollector, ExplorationType, RandomPolicy, SyncDataCollector, set_exploration_type
from tests.support.collector_envs import cartpoles, kinds
from tests.support.countdown import Countdown
from tests.support.local_ray import FAR, NEAR
from tests.support.shared_envs import Counted
from vecenv import DummyVectorEnv, EnvCreator, SyncVectorEnv, TransformedEnv, VectorEnvNormObs
from vecenv.backends.memory import state_copies
from vecenv.transforms import CatFrames, NormalizeReward, RewardScaling, TransformedVectorEnv, VecNorm

torch = pytest.importorskip("torch")


class Policy(torch.nn.Module):
    """Policy with the mode 2 (with weights of 0) and random samples."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor([0.0, 0.0, 0.1]))

    def forward(self, obs: Any) -> Any:
        return torch.distributions.Categorical(logits=self.logits.expand(len(obs), 3))


def fns(n: int = 3) -> list[Any]:
    return [partial(Countdown, 7)] * n


@kinds
def test_an_exploration_type_around_a_call_takes_the_place_of_the_collectors(kind: type) -> None:
    with kind(DummyVectorEnv(fns()), Policy(), frames_per_batch=60) as collector:
        calls = [
            lambda: collector.collect(n_episode=6).batch,
            lambda: collector.collect(n_step=60).batch,
            collector.rollout,
            lambda: next(iter(collector)),
        ]
        for collect in calls:
            if kind is AsyncDataCollector:
                collector.reset()  # steps in flight already have sampled actions
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
def test_evaluation_leaves_the_training_as_it_is(kind: type) -> None:
    found = []
    for evaluates in (False, True):
        with kind(fns(), Policy(), frames_per_batch=30, total_frames=90, backend="dummy") as collector:
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
            assert collector.frames == 90
        found.append(np.concatenate(steps, axis=1))
    np.testing.assert_array_equal(*found)


@kinds
def test_random_actions_of_the_training_continue(kind: type) -> None:
    """A `RandomPolicy` that was passed to the collector has a random stream per training env."""

    def actions(evaluate: bool) -> Any:
        with DummyVectorEnv(fns()) as env:
            policy = RandomPolicy(env.action_space)
        with kind(fns(), policy, frames_per_batch=30, backend="dummy") as collector:
            collector.set_seed(1)
            if evaluate:
                collector.evaluate(4, seed=2)
                with DummyVectorEnv(fns(2)) as fewer:
                    assert len(collector.evaluate(4, seed=2, eval_env=fewer).returns) == 4
            return collector.next().action

    assert np.array_equal(actions(evaluate=True), actions(evaluate=False))


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


@pytest.mark.parametrize("make", [DummyVectorEnv, SyncVectorEnv])
def test_envs_that_are_passed_stay_open(make: Any) -> None:
    with (
        SyncDataCollector(DummyVectorEnv(fns()), Policy(), frames_per_batch=9) as collector,
        contextlib.closing(make(fns(2))) as other,
    ):
        for _ in range(2):
            assert collector.evaluate(3, eval_env=other).returns.tolist() == [14.0] * 3
        assert len(other.reset()[0]) == 2


def ones(obs: Any) -> Any:
    """Policy that ignores observations, so that its episodes repeat."""
    return np.ones(len(obs), np.int64)


def normalised(wrap: Any) -> Any:
    return wrap(gymnasium.make("CartPole-v1"))


def played(collector: Any) -> Any:
    return collector.evaluate(5, seed=1, keep=True).batch.flatten()


@pytest.fixture(scope="module")
def raw() -> Any:
    """Return the episodes as the envs return them."""
    with SyncDataCollector(cartpoles(2), ones, frames_per_batch=4) as collector:
        return played(collector)


def vec_norms() -> Any:
    return EnvCreator(partial(normalised, lambda env: TransformedEnv(env, VecNorm(["observation"]))))


MADE = {
    "transforms": lambda: cartpoles(2),
    "function": lambda: lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(2)), VecNorm(["observation"])),
    "norm_obs": lambda: lambda: VectorEnvNormObs(DummyVectorEnv(cartpoles(2))),
    "creator": lambda: [vec_norms()] * 2,
    "variants": lambda: [creator := vec_norms(), creator.make_variant()],
}


ON_RAY = [pytest.mark.ray, pytest.mark.local_ray]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        *((made, {}) for made in MADE),
        *(pytest.param("creator", {"backend": "ray", **where}, marks=ON_RAY) for where in (NEAR, FAR)),
    ],
)
def test_it_has_the_statistics_of_the_training_frozen(
    made: str, options: dict[str, Any], raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_copies, "LARGE_STATE", 0)
    monkeypatch.setattr(state_copies, "INTERVAL", 1e6)
    source, transforms = MADE[made](), None
    if made == "transforms":
        transforms = [VecNorm(["observation"]), CatFrames(2, -1), RewardScaling(0.0, 0.1)]
    with SyncDataCollector(source, ones, frames_per_batch=40, transforms=transforms, **options) as collector:
        collector.set_seed(0)
        for _ in range(2):  # the second evaluation has newer statistics, in the same envs
            collector.next()
            mean, std = moments_of(collector, source)
            batch = played(collector)
            np.testing.assert_allclose(batch.obs[:, -4:], (raw.obs - mean) / std, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(batch.reward, raw.reward * (0.1 if made == "transforms" else 1), atol=1e-6)
            np.testing.assert_array_equal(moments_of(collector, source), (mean, std))
        assert batch.obs.shape[1] == (8 if made == "transforms" else 4)
        collector.next()
        assert not np.array_equal(moments_of(collector, source), (mean, std))


def moments_of(collector: Any, source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the training's observations."""
    if isinstance(collector.env, VectorEnvNormObs):
        found = collector.env.get_obs_rms()
        return found.mean.copy(), np.sqrt(found.var + found.eps)
    if isinstance(collector.env, TransformedVectorEnv):
        return collector.env.transform[0].moments()["observation"]
    norm = VecNorm(["observation"])
    norm.load_state_dict(source[0].state_dict())
    return norm.moments()["observation"]


def test_an_env_that_is_passed_gets_frozen_copies_of_the_collectors_transforms(raw: Any) -> None:
    """As `EvalCallback` of Stable-Baselines3 2.9 copies the statistics of `VecNormalize`."""
    transforms = [VecNorm(["observation"]), CatFrames(2, -1), NormalizeReward()]
    with (
        SyncDataCollector(cartpoles(2), ones, frames_per_batch=40, transforms=transforms) as collector,
        DummyVectorEnv(cartpoles(2)) as eval_env,
    ):
        frozen = None
        for _ in range(2):  # the second evaluation has newer statistics
            collector.next()
            mean, std = moments_of(collector, None)
            for each in (eval_env, None):
                stats = collector.evaluate(5, seed=1, eval_env=each, keep=True)
                assert stats.batch.obs.shape[1] == 8
                np.testing.assert_allclose(stats.batch.obs[:, -4:], (raw.obs - mean) / std, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(stats.batch.reward, raw.reward)
            if frozen is None:  # an env that is wrapped already keeps its transforms
                frozen = TransformedVectorEnv(eval_env, collector.env.transform.frozen_copy())
                first = mean, std
            own = collector.evaluate(5, seed=1, eval_env=frozen, keep=True).batch
            np.testing.assert_allclose(own.obs[:, -4:], (raw.obs - first[0]) / first[1], rtol=1e-4, atol=1e-5)
        assert eval_env.reset()[0].shape == (2, 4)


REWARDS = {
    "NormalizeReward": lambda: {"transforms": NormalizeReward(gamma=1.0)},
    "VecNorm": lambda: {"transforms": VecNorm(["observation", "reward"])},
    "VecNorm of a creator": lambda: {"create_env_fn": [EnvCreator(pendulum_with_vec_norm)] * 2},
}


def pendulum_with_vec_norm() -> Any:
    return TransformedEnv(pendulum(), VecNorm())


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=30)


@pytest.mark.parametrize("name", REWARDS)
def test_returns_of_an_evaluation_are_sums_of_the_envs_own_rewards(name: str) -> None:
    """As in Stable-Baselines3, whose `Monitor` is below `VecNormalize`."""

    def still(obs: Any) -> Any:
        return np.zeros((len(obs), 1), np.float32)

    with SyncDataCollector([pendulum] * 2, still, frames_per_batch=4) as collector:
        raw = collector.evaluate(4, seed=1).returns
    options = {"create_env_fn": [pendulum] * 2, **REWARDS[name]()}
    with SyncDataCollector(policy=still, frames_per_batch=40, **options) as collector:
        for _ in range(2):
            collector.next()
            np.testing.assert_allclose(collector.evaluate(4, seed=1).returns, raw)
        assert abs(collector.next().reward).max() < abs(raw).max() / 30 / 2, "the training's rewards are normalised"


LEARNING = {
    "VecNorm": [partial(normalised, lambda env: TransformedEnv(env, VecNorm()))] * 2,
    "NormalizeObservation": [partial(normalised, gymnasium.wrappers.NormalizeObservation)] * 2,
    "VecNorm of a creator in a function": lambda: DummyVectorEnv(
        [EnvCreator(partial(normalised, lambda env: TransformedEnv(env, VecNorm())))] * 2
    ),
    "VecNorm of envs that share nothing": [
        EnvCreator(partial(normalised, lambda env: TransformedEnv(env, VecNorm())), share_memory=False)
    ]
    * 2,
    "NormalizeReward beside VecNorm": [
        EnvCreator(partial(normalised, lambda env: TransformedEnv(env, [VecNorm(), NormalizeReward()])))
    ]
    * 2,
}


@pytest.mark.parametrize("name", LEARNING)
def test_envs_that_learn_each_for_itself_are_refused(name: str) -> None:
    with SyncDataCollector(LEARNING[name], ones, frames_per_batch=4) as collector:
        collector.next()
        with pytest.raises(
            ValueError,
            match=rf"new envs would lack the statistics of {name.split()[0]} in the training envs.* pass eval_env=",
        ):
            collector.evaluate(1)
        collector.next()


def test_envs_whose_statistics_are_frozen_are_made_anew() -> None:
    def frozen(env: Any) -> Any:
        env = gymnasium.wrappers.NormalizeObservation(env)
        env.update_running_mean = False
        return TransformedEnv(env, VecNorm().freeze())

    with SyncDataCollector([partial(normalised, frozen)] * 2, ones, frames_per_batch=4) as collector:
        assert collector.evaluate(2).n_collected_episodes == 2


def test_it_does_not_count_in_what_training_envs_share() -> None:
    creator = EnvCreator(partial(normalised, Counted))
    for source in ([creator] * 2, creator):
        with SyncDataCollector(source, ones, frames_per_batch=4) as collector:
            collector.next()
            before = creator.state_dict()["0.Counted.calls"]
            assert before > 0
            collector.evaluate(3)
            assert creator.state_dict()["0.Counted.calls"] == before


def test_after_the_last_batch_it_makes_envs_and_closes_them() -> None:
    collector = SyncDataCollector(fns(), Policy(), frames_per_batch=9, total_frames=9, backend="shmem")
    assert len(list(collector)) == 1
    assert collector.evaluate(3).returns.tolist() == [14.0] * 3  # a fixture detects workers that are not closed
    assert collector.evaluate(3).returns.tolist() == [14.0] * 3
