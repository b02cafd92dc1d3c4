"""Collectors with real envs: content of batches, number of rounds, and sources of envs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import AsyncDataCollector, Interruptor, SyncDataCollector, rollout
from tests.support.backends import FULL
from tests.support.collector_envs import (
    CASES,
    arrays,
    assert_equal,
    batch_of,
    by_env,
    cartpoles,
    countdowns,
    hand_written,
    kinds,
    pendulums,
    push,
    zeros,
)
from tests.support.countdown import BreaksOnce, Countdown, Stops
from vecenv import (
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ParallelVectorEnv,
    PettingZooEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    VectorEnvNormObs,
    VectorEnvWrapper,
    flatten_agents,
    from_gymnasium,
)
from vecenv.transforms import CatFrames, RewardSum, TransformedVectorEnv, VecNorm


@kinds
@pytest.mark.parametrize("backend", [DummyVectorEnv, pytest.param(ShmemVectorEnv, marks=FULL)])
@pytest.mark.parametrize("case", CASES)
def test_each_env_lives_as_in_a_hand_written_loop(kind: type, backend: Any, case: str) -> None:
    """Also with random actions, which `set_seed` seeds."""
    fns, policy = CASES[case]
    with DummyVectorEnv(fns(5)) as venv:
        expected = hand_written(venv, policy, steps=90, seed=3)
    with kind(backend(fns(5)), policy, frames_per_batch=75) as collector:
        collector.set_seed(3)
        envs = by_env([collector.rollout() for _ in range(4)])
    for env, steps in enumerate(envs):
        count = len(steps["reward"])
        assert count > 50
        assert_equal(steps, {name: rows[env, :count] for name, rows in expected.items()})


def _goal(obs: Any) -> dict[str, Any]:
    return {"action": push(np.asarray(obs)), "goal": obs[:, 1:], "seen": obs}


VIEWS = {
    "extras": {"policy": _goal},
    "tensors": {"policy": _goal, "policy_device": "cpu"},
    "action": {"policy": lambda obs: obs[:, :1]},
    "state": {
        "policy": lambda obs, state: {"action": obs[:, 1:2], "last": 0 * obs if state is None else state, "state": obs}
    },
}


@kinds
@pytest.mark.parametrize("views", VIEWS)
def test_what_a_policy_returns_may_be_views_of_its_observations(kind: type, views: str) -> None:
    """The batch has copies, because the vector env overwrites the observations."""
    found = []
    for copy in (True, False):
        with kind(DummyVectorEnv(pendulums(3), copy=copy), frames_per_batch=60, **VIEWS[views]) as collector:
            collector.set_seed(3)
            stats = collector.collect(n_step=60, on_step=lambda step: {"done by": step.action})
            batches = [stats.batch, collector.rollout()]
        found.append([{**arrays(batch), **batch.extras} for batch in batches])
    for expected, batch in zip(*found, strict=True):
        assert batch.keys() == expected.keys()
        assert_equal(batch, expected)
        np.testing.assert_array_equal(batch.get("seen", batch["obs"]), batch["obs"])
        np.testing.assert_array_equal(batch.get("done by", batch["action"]), batch["action"])


@kinds
class TestAPolicyThatDrawsFromOneStream:
    """A module that samples draws a number per row, so the data repeat only if the calls repeat."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> Iterator[None]:
        self.torch = pytest.importorskip("torch")
        with self.torch.random.fork_rng():
            yield

    def collect(self, kind: type, venv: Any, frames: int, **options: Any) -> list[dict[str, np.ndarray]]:
        """Collect 90 steps, and return the steps of each env."""
        torch, actions = self.torch, int(venv.action_space[0].n)

        class Samples(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                return torch.distributions.Categorical(logits=torch.zeros(len(obs), actions))

        torch.manual_seed(5)
        with kind(venv, Samples(), frames_per_batch=frames, **options) as collector:
            collector.set_seed(7)
            return by_env([collector.rollout() for _ in range(90 // frames)])

    @pytest.mark.guarantee("G10.1")
    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (lambda: DummyVectorEnv(cartpoles(3)), {}),
            (lambda: DummyVectorEnv(cartpoles(3)), {"max_frames_per_traj": 15}),
            (lambda: VectorEnvNormObs(DummyVectorEnv(cartpoles(3))), {}),
            (lambda: TransformedVectorEnv(DummyVectorEnv(cartpoles(3)), [VecNorm(), CatFrames(2, -1)]), {}),
            (lambda: DummyVectorEnv([partial(BreaksOnce, 9, 1, at) for at in (2, 5, 7)], on_error="restart"), {}),
        ],
        ids=["autoreset", "limit", "a wrapper with statistics", "transforms", "failures"],
    )
    @pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
    def test_the_data_does_not_depend_on_frames_per_batch(self, kind: type, make: Any, options: dict[str, Any]) -> None:
        whole = self.collect(kind, make(), 90, **options)
        for frames in (3, 30):
            for found, expected in zip(self.collect(kind, make(), frames, **options), whole, strict=True):
                assert_equal(found, expected)

    def test_two_runs_with_one_seed_are_the_same_whatever_the_workers(self, kind: type) -> None:
        whole = self.collect(kind, DummyVectorEnv(cartpoles(3)), 60)
        for workers in (1, 2):
            venv = ShmemVectorEnv(cartpoles(3), num_workers=workers)
            for found, expected in zip(self.collect(kind, venv, 60), whole, strict=True):
                assert_equal(found, expected)


class Same(VectorEnvWrapper):
    """Wrapper in tianshou's interface, below which no worker resets its env in a step."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        return self.venv.step(*args, **kwargs)


@pytest.mark.parametrize("wrap", [lambda venv: venv, Same])
def test_resets_within_a_batch_share_rounds(wrap: Any) -> None:
    """Workers reset envs in the round of the last step. Otherwise the envs that end together share a round."""
    venv = DummyVectorEnv(countdowns(3, 4, 5, 6))
    with SyncDataCollector(wrap(venv), zeros, frames_per_batch=4 * 60) as collector:
        batch = collector.rollout()
        rounds = 1 + 60 + (batch.done.any(0)[:-1].sum() if wrap is Same else 0)
        assert batch.done.sum(1).tolist() == [20, 15, 12, 10]
        assert venv.stats()["rounds"] == rounds
        collector.rollout()  # the episodes that end in the last round of a batch cost a round
        assert venv.stats()["rounds"] == 2 * rounds


class Levels(DummyVectorEnv):
    """Curriculum: a subclass of a vector env with a custom `reset`."""

    def reset(self, id: Any = None, **kwargs: Any) -> Any:
        return super().reset(id, **{"options": {"level": 50}, **kwargs})


class Level(Countdown):
    """Env with observations that begin with the level from the options of the reset."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode = (options or {}).get("level", 0)
        return np.array([self.episode, 0]), {}


def test_a_reset_of_a_subclass_is_used_for_each_episode() -> None:
    with SyncDataCollector(Levels([partial(Level, 3)]), zeros, frames_per_batch=5, total_frames=30) as collector:
        assert {int(level) for batch in collector for level in batch.obs[..., 0].ravel()} == {50}


class Reports(Countdown):
    """Env with info keys that vector envs use for the last observation and for failures."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"final_obs": -obs} | ({"restarted": True} if terminated else {})


@kinds
def test_keys_of_an_envs_own_info_mean_nothing_to_the_collector(kind: type) -> None:
    """Also at the end of an episode that the collector truncates."""

    def collect(env: type) -> list[dict[str, np.ndarray]]:
        venv = DummyVectorEnv([partial(env, length) for length in (2, 9)])
        with kind(venv, zeros, frames_per_batch=6, total_frames=24, max_frames_per_traj=3) as collector:
            return by_env(collector)

    for found, expected in zip(collect(Reports), collect(Countdown), strict=True):
        assert_equal(found, expected)


def test_the_layout_in_memory_is_time_first_and_reprs_say_how_much_there_is() -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=14) as collector:
        batch = collector.next()
        assert repr(collector) == f"SyncDataCollector({collector.env!r}, 14 frames a batch, 14 frames so far)"
    assert repr(collector).endswith(", closed), 14 frames a batch, 14 frames so far, shut down)")
    for array in (batch.action, batch.reward, batch.all_obs):
        assert array.swapaxes(0, 1).flags.c_contiguous
    assert repr(batch) == "Rollout(2 envs, 7 steps, 14 frames, 3 episode ends)"


def test_whole_floats_are_numbers_of_steps() -> None:
    options = {"frames_per_batch": 1e1, "total_frames": 3e1, "max_frames_per_traj": 4.0, "init_random_frames": 1e1}
    with SyncDataCollector(DummyVectorEnv(countdowns(9, 9)), zeros, **options) as collector:
        assert len(collector) == 3
        batches = list(collector)
    assert [batch.frames for batch in batches] == [10, 10, 10]
    assert [batch.random.all() for batch in batches] == [True, False, False]
    assert batches[0].step_count[0].tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("kind", "frames", "total", "rounded", "message"),
    [
        (SyncDataCollector, 10, 20, 12, "frames_per_batch=10 .* 3 envs: .* 4 steps of each, 12 frames"),
        (SyncDataCollector, 12, 20, 12, "total_frames=20 is not a multiple .*: it is rounded up to 24"),
        (AsyncDataCollector, 10, 15, 10, "total_frames=15 is not a multiple .*: it is rounded up to 20"),
    ],
)
def test_frames_are_rounded_up_with_a_warning(kind: Any, frames: int, total: int, rounded: int, message: str) -> None:
    """As `SyncDataCollector` of TorchRL, and `learn` of SB3."""
    venv = DummyVectorEnv(countdowns(3, 3, 3))
    with pytest.warns(RuntimeWarning, match=message):
        collector = kind(venv, zeros, frames_per_batch=frames, total_frames=total)
    assert len(collector) == 2
    assert [batch.frames for batch in collector] == [rounded] * 2
    assert venv.is_closed


@pytest.mark.parametrize("total", [{}, {"total_frames": None}, {"total_frames": -7}], ids=str)
def test_a_collector_without_total_frames_has_no_end(total: dict[str, Any]) -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3)), zeros, frames_per_batch=5, **total) as collector:
        assert [collector.next().frames for _ in range(20)] == [5] * 20


def restart(venv: Any, _: Any) -> None:
    venv.close()
    venv.reset()


OTHER_CALLS: dict[str, Any] = {
    "step": lambda venv, _: venv.step(np.zeros(2, np.int64)),
    "reset": lambda venv, _: venv.reset([1]),
    "rollout": lambda venv, _: rollout(venv, 2, zeros),
    "collector": lambda venv, _: SyncDataCollector(venv, zeros, frames_per_batch=4).next(),
    "evaluate": lambda venv, collector: collector.evaluate(2, eval_env=venv),
    "restart": restart,
}


class TestEnvironments:
    def made(self, source: Any, **kwargs: Any) -> int:
        envs, steps = batch_of(source, zeros, 12, **kwargs).shape
        assert envs * steps == 12
        return envs

    def test_a_callable_a_list_or_an_env_will_do(self) -> None:
        made: list[int] = []

        def make() -> gymnasium.Env:
            made.append(1)
            return Countdown(3)

        assert (self.made(make), len(made)) == (1, 1), "each callable is called once"
        assert (self.made([make, make]), len(made)) == (2, 3)
        assert self.made(lambda: DummyVectorEnv(countdowns(3, 4))) == 2
        assert self.made(Countdown(3)) == 1
        assert self.made(Countdown, create_env_kwargs={"length": 3}) == 1
        assert self.made([Countdown] * 2, create_env_kwargs={"length": 3}) == 2
        assert self.made([DummyVectorEnv(countdowns(3, 4))]) == 2

    @kinds
    def test_the_vector_env_below_a_facade_is_collected_from(self, kind: type) -> None:
        with kind(facade := GymnasiumVectorEnv(DummyVectorEnv(countdowns(3, 3))), frames_per_batch=12) as collector:
            assert collector.env is facade.venv
            batch = collector.rollout().flatten()
            assert batch.next.obs[2::3].tolist() == [[0, 3], [1, 3]] * 2
        assert facade.venv.is_closed
        inner = SyncVectorEnv(countdowns(3), autoreset_mode="SameStep")
        wrapped = gymnasium.wrappers.vector.TransformReward(inner, lambda reward: reward + 7)
        assert batch_of(wrapped, zeros, 3).reward.tolist() == [[7.0] * 3]

    @kinds
    def test_agents_may_be_rows_or_rewards(self, kind: type) -> None:
        pytest.importorskip("pettingzoo")
        with ParallelVectorEnv(["classic/rps-v2"] * 2, backend="dummy") as envs:
            assert batch_of(flatten_agents(envs), None, 12, kind).frames == 12
            assert envs.is_closed
        assert batch_of([lambda: PettingZooEnv("classic/rps-v2")] * 2, None, 10, kind).reward.shape[-1] == 2

    @kinds
    def test_gymnasiums_own_vector_envs_are_taken_and_closed(self, kind: type) -> None:
        made: list[Any] = []

        def make() -> Any:
            made.append(gymnasium.vector.SyncVectorEnv(cartpoles(2)))
            return made[-1]

        for source in (make(), make):
            with kind(source, frames_per_batch=10) as collector:
                assert collector.rollout().frames == 10
                assert not made[-1].closed
            assert made.pop().closed

    @pytest.mark.parametrize("transforms", [None, [RewardSum()]])
    def test_gymnasiums_own_vector_env_stays_open_without_the_collector(self, transforms: Any) -> None:
        closed: list[Any] = []

        class Closes(Countdown):
            def close(self) -> None:
                closed.append(self)

        envs = gymnasium.vector.SyncVectorEnv([partial(Closes, 3)] * 2, autoreset_mode="SameStep")
        for facade in (envs, GymnasiumVectorEnv(from_gymnasium(envs), autoreset_mode="SameStep")):
            collector = SyncDataCollector(facade, None, frames_per_batch=10, transforms=transforms)
            collector.rollout()
            collector.shutdown(close_env=False)
            with pytest.raises(TypeError, match="transform"):
                SyncDataCollector(facade, None, frames_per_batch=10, transforms="none")
            del collector
            gc.collect()
            assert facade.reset()[0].tolist()[0][1] == 0
            assert not closed

    @pytest.mark.guarantee("G10.2")
    @pytest.mark.parametrize("another_call", OTHER_CALLS)
    def test_a_vector_env_that_was_used_meanwhile_begins_new_episodes(self, another_call: str) -> None:
        venv = DummyVectorEnv(countdowns(50, 50), lazy=another_call == "restart")
        with SyncDataCollector(venv, zeros, frames_per_batch=6) as collector:
            collector.rollout()
            OTHER_CALLS[another_call](venv, collector)
            collector.reset([0], seed=1)
            batch = collector.rollout()
        assert batch.step_count.tolist() == [[0, 1, 2]] * 2
        assert batch.obs[:, :, 1].tolist() == [[0, 1, 2]] * 2
        assert batch.next.obs[:, :, 1].tolist() == [[1, 2, 3]] * 2

    @kinds
    def test_a_stop_iteration_of_an_env_does_not_end_the_iteration(self, kind: Any) -> None:
        collector = kind(DummyVectorEnv([partial(Stops, 3)] * 2), zeros, frames_per_batch=10, total_frames=100)
        with collector:
            for ask in (lambda: list(collector), collector.next):
                with pytest.raises(RuntimeError, match=r"raised StopIteration. env 0, step"):
                    ask()


@kinds
def test_while_an_interruptor_is_stopped_a_batch_is_a_round(kind: type) -> None:
    interruptor = Interruptor()
    with kind(DummyVectorEnv(countdowns(90, 90)), zeros, frames_per_batch=20, interruptor=interruptor) as collector:
        interruptor.stop_collection()
        assert collector.rollout().frames in (1, 2)
        interruptor.start_collection()
        assert collector.rollout().frames == 20
