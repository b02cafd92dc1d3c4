"""`evaluate` during training: the episodes, the statistics of the training envs, and what stays as it is."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import RandomPolicy, SyncDataCollector
from tests.support.backends import RAY
from tests.support.collector_envs import cartpoles, kinds, pendulums
from tests.support.countdown import Countdown
from tests.support.local_ray import FAR, NEAR
from tests.support.shared_envs import Counted
from vecenv import DummyVectorEnv, EnvCreator, SyncVectorEnv, TransformedEnv, VectorEnvNormObs
from vecenv.arguments import seed_chain
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


def ones(obs: Any) -> Any:
    """Policy that ignores observations, so that its episodes repeat."""
    return np.ones(len(obs), np.int64)


@kinds
@pytest.mark.parametrize("own", [False, True], ids=["sampled", "random policy"])
def test_evaluation_leaves_the_training_as_it_is(kind: type, own: bool) -> None:
    """A `RandomPolicy` that was passed to the collector has a random stream per training env."""
    found = []
    for evaluates in (False, True):
        with DummyVectorEnv(fns(2)) as fewer:
            policy = RandomPolicy([*fewer.action_space, fewer.action_space[0]]) if own else Policy()
            with kind(fns(), policy, frames_per_batch=30, total_frames=90, backend="dummy") as collector:
                collector.set_seed(3)
                torch.manual_seed(3)
                steps = []
                for batch in collector:
                    flat = batch.flatten()
                    steps.append(np.stack([flat.traj_ids, flat.step_count, flat.action]))
                    if evaluates:
                        stats = collector.evaluate(5, keep=True)
                        assert stats.lens.tolist() == [7] * 5
                        assert own or (stats.batch.action == 2).all()
                        drawn = collector.evaluate(9, "random", keep=True).batch
                        assert len(np.unique(drawn.action)) == 3
                        assert len(collector.evaluate(9, eval_env=fewer, seed=2).lens) == 9
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


@pytest.mark.guarantee("G6.8")
@kinds
@pytest.mark.parametrize("transforms", [None, CatFrames(2, -1)], ids=["plain", "transformed"])
def test_a_seed_begins_with_its_first_episodes(kind: type, transforms: Any) -> None:
    """In batches after `set_seed`, and in evaluations. `reset(seed=...)` of the vector env returns the same."""
    own = [None, None] if transforms is None else [transforms.clone(), transforms.clone()]
    with DummyVectorEnv(pendulums(3)) as venv:
        seeded = venv if transforms is None else TransformedVectorEnv(venv, own[0])
        expected, _ = seeded.reset(seed=seed_chain(10, 3)[:-1])
    with kind(pendulums(3), None, frames_per_batch=60, backend="dummy", transforms=own[1]) as collector:
        collector.rollout()
        collector.set_seed(10)
        evaluations = [collector.evaluate(3, seed=seed, keep=True).batch for seed in (10, 10, 11)]
        for batch in (collector.rollout(), *evaluations[:2]):
            flat = batch.flatten()
            first = [np.flatnonzero((flat.env_ids == env) & (flat.step_count == 0))[0] for env in range(3)]
            np.testing.assert_array_equal(flat.obs[first], expected)
        assert not np.array_equal(evaluations[2].obs[0], expected[0])


@pytest.mark.parametrize("make", [DummyVectorEnv, SyncVectorEnv])
def test_envs_that_are_passed_stay_open(make: Any) -> None:
    with (
        SyncDataCollector(DummyVectorEnv(fns()), Policy(), frames_per_batch=9) as collector,
        contextlib.closing(make(fns(2))) as other,
    ):
        assert collector.evaluate(3, eval_env=other).returns.tolist() == [14.0] * 3
        assert len(other.reset()[0]) == 2


def test_after_the_last_batch_it_makes_envs_and_closes_them() -> None:
    collector = SyncDataCollector(fns(), Policy(), frames_per_batch=9, total_frames=9, backend="thread")
    assert len(list(collector)) == 1
    for _ in range(2):
        assert collector.evaluate(3).returns.tolist() == [14.0] * 3  # a fixture detects threads that are not ended


# Statistics of the training envs.


def wrapped(wrap: Any, name: str = "CartPole-v1") -> Any:
    return wrap(gymnasium.make(name, max_episode_steps=30))


def creator(*transforms: Any, **options: Any) -> EnvCreator:
    """Return a creator of CartPoles with new transforms of these classes."""
    return EnvCreator(partial(wrapped, lambda env: TransformedEnv(env, [make() for make in transforms])), **options)


def norm() -> VecNorm:
    return VecNorm(["observation"])


def played(collector: Any, eval_env: Any = None) -> Any:
    return collector.evaluate(5, seed=1, keep=True, eval_env=eval_env).batch.flatten()


@pytest.fixture(scope="module")
def raw() -> Any:
    """Return the episodes as the envs return them."""
    with SyncDataCollector(cartpoles(2), ones, frames_per_batch=4) as collector:
        return played(collector)


MADE: dict[str, Any] = {
    "transforms": lambda: cartpoles(2),
    "function": lambda: lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(2)), norm()),
    "norm_obs": lambda: lambda: VectorEnvNormObs(DummyVectorEnv(cartpoles(2))),
    "creator": lambda: [creator(norm)] * 2,
    "variants": lambda: [first := creator(norm), first.make_variant()],
}


def moments_of(collector: Any, source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the training's observations."""
    if isinstance(collector.env, VectorEnvNormObs):
        found = collector.env.get_obs_rms()
        return found.mean.copy(), np.sqrt(found.var + found.eps)
    if isinstance(collector.env, TransformedVectorEnv):
        return collector.env.transform[0].moments()["observation"]
    own = norm()
    own.load_state_dict(source[0].state_dict())
    return own.moments()["observation"]


@pytest.mark.parametrize(
    ("made", "options"),
    [
        *((made, {}) for made in MADE),
        *(pytest.param("creator", {"backend": "ray", **where}, marks=RAY) for where in (NEAR, FAR)),
    ],
)
def test_it_has_the_statistics_of_the_training_frozen(
    made: str, options: dict[str, Any], raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_copies, "LARGE_STATE", 0)
    monkeypatch.setattr(state_copies, "INTERVAL", 1e6)
    source, transforms = MADE[made](), None
    if made == "transforms":
        transforms = [norm(), CatFrames(2, -1), RewardScaling(0.0, 0.1)]
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


def test_an_env_that_is_passed_gets_frozen_copies_of_the_collectors_transforms(raw: Any) -> None:
    """As `EvalCallback` of Stable-Baselines3 2.9 copies the statistics of `VecNormalize`."""

    def check(eval_env: Any, mean: np.ndarray, std: np.ndarray) -> Any:
        batch = played(collector, eval_env=eval_env)
        np.testing.assert_allclose(batch.obs[:, -4:], (raw.obs - mean) / std, rtol=1e-4, atol=1e-5)
        return batch.reward

    transforms = [norm(), CatFrames(2, -1), NormalizeReward()]
    with (
        SyncDataCollector(cartpoles(2), ones, frames_per_batch=40, transforms=transforms) as collector,
        DummyVectorEnv(cartpoles(2)) as eval_env,
    ):
        collector.next()
        first = moments_of(collector, None)
        frozen = TransformedVectorEnv(eval_env, collector.env.transform.frozen_copy())
        for _ in range(2):  # the second evaluation has newer statistics
            np.testing.assert_array_equal(check(eval_env, *moments_of(collector, None)), raw.reward)
            check(frozen, *first)  # an env that is wrapped already keeps its transforms
            collector.next()
        assert eval_env.reset()[0].shape == (2, 4)


PENDULUMS = [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=30)] * 2
REWARDS: dict[str, Any] = {
    "NormalizeReward": lambda: {"transforms": NormalizeReward(gamma=1.0)},
    "VecNorm": lambda: {"transforms": VecNorm(["observation", "reward"])},
    "VecNorm of a creator": lambda: {
        "create_env_fn": [EnvCreator(partial(wrapped, lambda env: TransformedEnv(env, VecNorm()), "Pendulum-v1"))] * 2
    },
}


@pytest.mark.parametrize("name", REWARDS)
def test_returns_of_an_evaluation_are_sums_of_the_envs_own_rewards(name: str) -> None:
    """As in Stable-Baselines3, whose `Monitor` is below `VecNormalize`."""

    def still(obs: Any) -> Any:
        return np.zeros((len(obs), 1), np.float32)

    with SyncDataCollector(PENDULUMS, still, frames_per_batch=4) as collector:
        raw = collector.evaluate(4, seed=1).returns
    options = {"create_env_fn": PENDULUMS, **REWARDS[name]()}
    with SyncDataCollector(policy=still, frames_per_batch=40, **options) as collector:
        for _ in range(2):
            collector.next()
            np.testing.assert_allclose(collector.evaluate(4, seed=1).returns, raw)
        assert abs(collector.next().reward).max() < abs(raw).max() / 30 / 2, "the training's rewards are normalised"


LEARNING: dict[str, Any] = {
    "VecNorm": lambda: [partial(wrapped, lambda env: TransformedEnv(env, VecNorm()))] * 2,
    "NormalizeObservation": lambda: [partial(wrapped, gymnasium.wrappers.NormalizeObservation)] * 2,
    "VecNorm of a creator in a function": lambda: lambda: DummyVectorEnv([creator(VecNorm)] * 2),
    "VecNorm of envs that share nothing": lambda: [creator(VecNorm, share_memory=False)] * 2,
    "NormalizeReward beside VecNorm": lambda: [creator(VecNorm, NormalizeReward)] * 2,
}


@pytest.mark.parametrize("name", LEARNING)
def test_envs_that_learn_each_for_itself_are_refused(name: str) -> None:
    message = rf"new envs would lack the statistics of {name.split()[0]} in the training envs.* pass eval_env="
    with SyncDataCollector(LEARNING[name](), ones, frames_per_batch=4) as collector:
        collector.next()
        with pytest.raises(ValueError, match=message):
            collector.evaluate(1)
        collector.next()


def test_envs_whose_statistics_are_frozen_are_made_anew() -> None:
    def frozen(env: Any) -> Any:
        env = gymnasium.wrappers.NormalizeObservation(env)
        env.update_running_mean = False
        return TransformedEnv(env, VecNorm().freeze())

    with SyncDataCollector([partial(wrapped, frozen)] * 2, ones, frames_per_batch=4) as collector:
        assert collector.evaluate(2).n_collected_episodes == 2


def test_it_does_not_count_in_what_training_envs_share() -> None:
    shared = EnvCreator(partial(wrapped, Counted))
    for source in ([shared] * 2, shared):
        with SyncDataCollector(source, ones, frames_per_batch=4) as collector:
            collector.next()
            before = shared.state_dict()["0.Counted.calls"]
            assert before > 0
            collector.evaluate(3)
            assert shared.state_dict()["0.Counted.calls"] == before
