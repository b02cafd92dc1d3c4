"""Keywords and methods of the collectors, with their meaning in torchrl."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

import collector
from collector import (
    AsyncDataCollector,
    ExplorationType,
    RandomPolicy,
    Rollout,
    StepBatch,
    SyncDataCollector,
    exploration_type,
)
from tests.support.collector_envs import (
    arrays,
    assert_equal,
    batch_of,
    cartpoles,
    countdowns,
    kinds,
    pendulums,
    zeros,
)
from tests.support.countdown import Countdown
from vecenv import DummyVectorEnv
from vecenv.arguments import seed_chain
from vecenv.transforms import CatFrames, TransformedVectorEnv


def make(*lengths: int, policy: Any = zeros, steps: int = 10, **options: Any) -> SyncDataCollector:
    """Make a collector of countdowns, with `steps` steps of each env in a batch."""
    return SyncDataCollector(
        DummyVectorEnv(countdowns(*lengths)), policy, frames_per_batch=steps * len(lengths), **options
    )


def test_collectors_have_the_old_and_the_new_names_of_torchrl() -> None:
    """TorchRL 0.14 has `Collector` and `AsyncCollector`. Older releases have `SyncDataCollector`."""
    assert (collector.Collector, collector.AsyncCollector) == (SyncDataCollector, AsyncDataCollector)


def test_iterators_go_on_where_others_have_stopped() -> None:
    with make(3, steps=5, total_frames=20) as collector:
        first, second = iter(collector), collector.iterator()
        batches = [next(first), next(second)]
        for batch in collector:
            batches.append(batch)
            break
        batches += list(collector)
    assert [batch.step_count[0, 0] for batch in batches] == [0, 2, 1, 0]


def test_a_rollout_is_neither_counted_nor_processed() -> None:
    with make(3, steps=5, total_frames=10, split_trajs=True, postproc=lambda batch: None) as collector:
        assert collector.rollout().shape == (1, 5)
        assert (collector.frames, list(collector)) == (0, [None, None])


class TestDevices:
    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ({}, (None, None, None)),
            ({"device": "cpu"}, ("cpu", "cpu", "cpu")),
            ({"storing_device": "cpu"}, ("cpu", None, None)),
            ({"policy_device": "cpu", "env_device": "cpu"}, ("cpu", "cpu", "cpu")),
            ({"device": "cpu", "storing_device": "meta"}, ("meta", "cpu", "cpu")),
        ],
    )
    def test_a_device_fills_in_what_is_not_given(self, given: dict[str, str], found: tuple[Any, ...]) -> None:
        pytest.importorskip("torch")
        with make(3, policy=None, **given) as collector:
            devices = collector.storing_device, collector.policy_device, collector.env_device
            assert tuple(None if each is None else str(each) for each in devices) == found
            batch = collector.rollout()
            expected = None if found[0] is None else found[0]
            assert (None if isinstance(batch.reward, np.ndarray) else str(batch.reward.device)) == expected


@pytest.mark.parametrize("limit", [None, -1, 0])
def test_none_and_numbers_below_one_are_no_limit_and_no_random_frames(limit: int | None) -> None:
    with make(100, max_frames_per_traj=limit, init_random_frames=limit, steps=50) as collector:
        batch = collector.next()
    assert not batch.done.any()
    assert not batch.random.any()


class TestInitRandomFrames:
    def test_random_batches_come_first_rounded_up_and_hold_zeros_for_what_only_the_policy_gives(self) -> None:
        calls: list[int] = []

        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            calls.append(len(obs))
            return {"action": zeros(obs) + 1, "value": np.ones((len(obs), 2), np.float32)}

        with make(3, 4, policy=policy, steps=5, init_random_frames=11) as collector:
            batches = [batch for _, batch in zip(range(4), collector, strict=False)]
        for batch in batches[:2]:
            assert batch.random.all()
            assert batch.extras["value"].shape == (2, 5, 2)
            assert batch.extras["value"].dtype == np.float32
            assert not batch.extras["value"].any()
        assert len(np.unique([batch.action for batch in batches[:2]])) > 1
        for batch in batches[2:]:
            assert not batch.random.any()
            assert (batch.action == 1).all()
            assert batch.extras["value"].all()
        steps = sum(batch.frames for batch in batches[2:])
        assert sum(calls) == steps + 2, "called once to learn what it returns, and then for each step"

    def test_asking_for_what_the_policy_returns_moves_no_random_stream(self) -> None:
        torch = pytest.importorskip("torch")

        class Draws(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                return {"action": torch.randint(3, (len(obs),)), "noise": torch.rand(len(obs))}

        def second_batch(frames: int) -> dict[str, np.ndarray]:
            with torch.random.fork_rng(), make(100, 100, policy=Draws(), init_random_frames=frames) as collector:
                torch.manual_seed(1)
                if frames:
                    collector.next()
                return {"noise": collector.next().extras["noise"]}

        assert second_batch(20)["noise"][0, 0] == second_batch(0)["noise"][0, 0]


class TestResets:
    @kinds
    def test_reset_at_each_iter_begins_each_batch_with_new_episodes(self, kind: type) -> None:
        venv = DummyVectorEnv(countdowns(100, 4))
        with kind(venv, zeros, frames_per_batch=12, reset_at_each_iter=True) as collector:
            batches = [collector.next().flatten() for _ in range(3)]
        for batch in batches:
            starts = np.flatnonzero(np.diff(batch.env_ids, prepend=-1))
            assert batch.obs[starts, 1].tolist() == batch.step_count[starts].tolist() == [0, 0]
        assert [batch.obs[0, 0] for batch in batches] == [0, 1, 2]
        ids = [set(batch.traj_ids.tolist()) for batch in batches]
        assert not ids[0] & ids[1]
        assert not ids[1] & ids[2]


class TestSeeds:
    @pytest.mark.guarantee("G6.8")
    @kinds
    @pytest.mark.parametrize("transforms", [None, CatFrames(2, -1)], ids=["plain", "transformed"])
    def test_it_begins_with_the_first_episode_of_the_seed(self, kind: type, transforms: Any) -> None:
        """As `reset(seed=...)` does, and `evaluate(seed=...)` too."""
        with DummyVectorEnv(pendulums(3)) as venv:
            seeded = venv if transforms is None else TransformedVectorEnv(venv, transforms.clone())
            expected, _ = seeded.reset(seed=seed_chain(10, 3)[:-1])
        own = None if transforms is None else transforms.clone()
        with kind(pendulums(3), None, frames_per_batch=60, backend="dummy", transforms=own) as collector:
            collector.rollout()
            for batch in (
                (collector.set_seed(10), collector.rollout())[1],
                collector.evaluate(3, seed=10, keep=True).batch,
                collector.evaluate(3, seed=10, keep=True).batch,
            ):
                flat = batch.flatten()
                first = [np.flatnonzero((flat.env_ids == env) & (flat.step_count == 0))[0] for env in range(3)]
                np.testing.assert_array_equal(flat.obs[first], expected)

    @kinds
    def test_an_env_with_its_own_seed_method_is_reset_after_it(self, kind: type) -> None:
        class Own(Countdown):
            def seed(self, seed: int) -> None:
                self.episode = seed

        fns = [partial(Own, 9), partial(Countdown, 9)]
        with kind(fns, zeros, frames_per_batch=8, backend="dummy") as collector:
            collector.set_seed(20)
            assert np.unique(collector.rollout().flatten().obs[:, 0]).tolist() == [0, 21]

    @pytest.mark.parametrize("options", [{}, {"init_random_frames": 60}])
    def test_a_random_policy_is_seeded_like_random_actions(self, options: Any) -> None:
        venv = DummyVectorEnv(pendulums(3))
        with SyncDataCollector(venv, RandomPolicy(venv.action_space), frames_per_batch=60, **options) as collector:
            batches = [(collector.set_seed(10), collector.next())[1] for _ in range(2)]
        with SyncDataCollector(DummyVectorEnv(pendulums(3)), None, frames_per_batch=60) as collector:
            collector.set_seed(10)
            expected = arrays(collector.next())
        for batch in batches:
            assert_equal({**arrays(batch), "traj_ids": expected["traj_ids"]}, expected)

    def test_a_static_seed_is_that_of_every_env(self) -> None:
        with SyncDataCollector(DummyVectorEnv(pendulums(3)), None, frames_per_batch=3) as collector:
            assert collector.set_seed(7, static_seed=True) == 7
            obs = collector.rollout().obs[:, 0]
        np.testing.assert_array_equal(obs, obs[[0, 0, 0]])


class TestAfterABatch:
    def test_postproc_gets_what_split_trajs_made_and_its_result_is_the_batch(self) -> None:
        seen: list[Any] = []

        def note(batch: Rollout) -> Rollout:
            seen.append(batch)
            return batch

        with make(4, 100, steps=6, split_trajs=True, postproc=note) as collector:
            batch = collector.next()
        assert seen == [batch]
        assert batch.shape == (3, 6)
        with make(3, postproc=lambda batch: None) as collector:
            assert next(iter(collector)) is None

    def test_extras_with_an_underscore_are_for_postproc_alone(self) -> None:
        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            return {"action": zeros(obs), "_kept": zeros(obs), "value": zeros(obs)}

        seen: list[set[str]] = []

        def note(batch: Rollout) -> Rollout:
            seen.append(set(batch.extras))
            return batch

        with make(3, policy=policy, postproc=note) as collector:
            assert set(collector.next().extras) == {"value"}
        assert seen == [{"_kept", "value"}]
        with make(3, policy=policy, postproc=lambda batch: dict(batch.extras)) as collector:
            assert collector.next().keys() == {"value"}

    def test_postproc_is_moved_to_the_storing_device(self) -> None:
        torch = pytest.importorskip("torch")

        class Scale(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.ones(()))

            def forward(self, batch: Rollout) -> Rollout:
                assert self.factor.device.type == batch.reward.device.type
                return batch

        with make(3, postproc=Scale(), storing_device="meta") as collector:
            assert collector._config.postproc.factor.device.type == "meta"

    @pytest.mark.guarantee("G10.14")
    def test_return_same_td_gives_one_object_in_one_memory(self) -> None:
        with make(3, 4, return_same_td=True, total_frames=60) as collector:
            batches, rewards, starts = [], [], []
            for batch in collector:
                batches.append(batch)
                rewards.append(batch.reward)
                starts.append(batch.obs[:, 0].tolist())
        assert batches[0] is batches[1] is batches[2]
        assert np.shares_memory(rewards[0], rewards[1])
        assert starts == [[[0, 0], [0, 0]], [[3, 1], [2, 2]], [[6, 2], [5, 0]]]

    def test_batches_of_collect_are_the_callers_all_the_same(self) -> None:
        with make(3, 4, return_same_td=True) as collector:
            batch = collector.next()
            stats = [collector.collect(n_step=20).batch for _ in range(2)]
            expected = [arrays(each) for each in (batch, *stats)]
            before = [{name: rows.copy() for name, rows in each.items()} for each in expected]
            collector.collect(n_step=20)
            for now, then in zip(expected, before, strict=True):
                assert_equal(now, then)
            memory = batch.reward
            assert np.shares_memory(collector.next().reward, memory)
        assert not np.shares_memory(stats[0].reward, stats[1].reward)


class TestExploration:
    def asked_with(self, **options: Any) -> set[Any]:
        def policy(obs: np.ndarray) -> dict[str, Any]:
            return {"action": zeros(obs), "asked": [exploration_type().value]}  # type: ignore[union-attr]

        return set(batch_of(countdowns(3), policy, 10, **options).extras["asked"].ravel().tolist())

    def test_a_policy_can_ask_for_the_type(self) -> None:
        assert self.asked_with() == {"random"}
        assert self.asked_with(exploration_type=ExplorationType.MODE) == {"mode"}
        assert exploration_type() is None

    def test_exploration_mode_is_the_old_name_and_wins(self) -> None:
        with pytest.warns(DeprecationWarning, match="use exploration_type"):
            assert self.asked_with(exploration_mode="mean") == {"mean"}


class TestState:
    @kinds
    def test_a_collector_goes_on_where_the_state_was_saved(self, kind: type) -> None:
        options = {"frames_per_batch": 5, "total_frames": 20}
        with kind(DummyVectorEnv(countdowns(3)), zeros, **options) as collector:
            ids = np.concatenate([collector.next().traj_ids.ravel() for _ in range(2)])
            state = collector.state_dict()
        assert "policy_state_dict" not in state
        assert (state["frames"], state["iter"]) == (10, 2)
        with kind(DummyVectorEnv(countdowns(3)), zeros, **options) as collector:
            collector.load_state_dict(state)
            rest = list(collector)
            finished = collector.state_dict()
        with kind(DummyVectorEnv(countdowns(3)), zeros, **options) as collector:
            collector.load_state_dict(finished)
            assert list(collector) == []
        assert [batch.frames for batch in rest] == [5, 5]
        assert min(batch.traj_ids.min() for batch in rest) > ids.max()

    def test_a_collector_that_is_shut_down_still_takes_a_state(self) -> None:
        with make(3, steps=5) as collector:
            collector.next()
            state = collector.state_dict()
        other = make(3, steps=5)
        other.shutdown()
        other.load_state_dict(state)
        assert (other.frames, other.state_dict()["iter"]) == (5, 1)
        with pytest.raises(RuntimeError, match="shut down"):
            other.next()

    def test_its_length_is_the_number_of_batches(self) -> None:
        with make(3, steps=5, total_frames=20) as collector:
            assert len(collector) == 4
        with pytest.warns(RuntimeWarning, match="not a multiple of the 3 envs"):
            collector = SyncDataCollector(DummyVectorEnv(countdowns(3, 3, 3)), frames_per_batch=10, total_frames=60)
        assert len(collector) == len(list(collector)) == 5
        with make(3, steps=5) as collector:
            assert collector


class TestWeights:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def constant(self, value: int, hook: Any = None) -> Any:
        torch = self.torch

        class Constant(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = torch.nn.Module()
                self.inner.value = torch.nn.Parameter(torch.tensor(float(value)))

            def forward(self, obs: Any) -> Any:
                if hook is not None:
                    hook()
                return self.inner.value.long().expand(len(obs))

        return Constant()

    @kinds
    def test_an_update_from_another_thread_waits_for_the_end_of_the_batch(self, kind: type) -> None:
        """The update comes after the start of the batch, and returns immediately."""
        called, updated = threading.Event(), threading.Event()

        def hook() -> None:
            called.set()
            assert updated.wait(20)

        def learn() -> None:
            assert called.wait(20)
            collector.update_policy_weights_(self.constant(1))
            updated.set()

        learner = threading.Thread(target=learn)
        venv = DummyVectorEnv(countdowns(3, 4))
        with kind(
            venv, self.constant(0, hook), frames_per_batch=20, **({} if kind is SyncDataCollector else {"groups": 1})
        ) as collector:
            learner.start()
            first, second = collector.rollout(), collector.rollout()
            learner.join()
        assert (first.action == 0).all()
        assert (second.action[second.policy_version == 1] == 1).all()
        assert (second.policy_version == 1).any()

    def test_weights_of_the_policy_are_in_the_state(self) -> None:
        with make(3, policy=self.constant(1)) as collector:
            state = collector.state_dict()
        policy = self.constant(2)
        with make(3, policy=policy) as collector:
            collector.load_state_dict(state)
        assert policy.inner.value == 1

    def test_weights_come_from_a_module_a_state_dict_or_nested_names(self) -> None:
        with make(3, 4, policy=self.constant(0)) as collector:
            assert collector.rollout().policy_version.max() == 0
            for version, source in enumerate(
                (
                    self.constant(1),
                    self.constant(2).state_dict(),
                    {"inner": {"value": self.torch.tensor(1.0)}},
                ),
                start=1,
            ):
                collector.update_policy_weights_(source)
                batch = collector.rollout()
                assert (batch.action == (1, 2, 1)[version - 1]).all()
                assert (batch.policy_version == version).all()
            assert collector.policy_version == 3

    def two_weights(self) -> Any:
        torch = self.torch

        class Two(torch.nn.Module):
            """Module with two weights, and extra state that is not a tensor."""

            def __init__(self, value: float = 0.0) -> None:
                super().__init__()
                self.a, self.b = (torch.nn.Parameter(torch.full((2,), value)) for _ in range(2))
                self.seen = {"n": value}

            def get_extra_state(self) -> dict[str, float]:
                return self.seen

            def set_extra_state(self, state: dict[str, float]) -> None:
                self.seen = state

            def forward(self, obs: Any) -> Any:
                return self.a[:1].long().expand(len(obs))

        return Two

    def test_what_does_not_fit_changes_nothing(self) -> None:
        torch, policy = self.torch, self.two_weights()()
        ones = torch.ones(2)
        with make(3, policy=policy) as collector:
            for source, error, message in (
                ({"a": ones, "b": ones, "other": ones}, ValueError, r"no weights named \['other'\]"),
                ({"a": ones}, ValueError, r"weights are missing: \['b'\]"),
                ({"a": ones, "b": None}, TypeError, "'b' is not a weight, but NoneType"),
                ({"a": ones, "b": "1, 2"}, TypeError, "'b' is not a weight, but str"),
                ({"a": ones, "b": [[1.0], [2.0, 3.0]]}, TypeError, "'b' is not a weight, but list"),
                ({"a": ones, "b": np.ones(3)}, ValueError, r"'b' has the shape \(3,\); it must be \(2,\)"),
                (
                    {"a": ones, "b": np.ones(2, np.complex64)},
                    ValueError,
                    "dtype torch.complex64, .* not fit torch.float",
                ),
                ({"a": ones, "b": torch.ones(2, device="meta")}, ValueError, "'b' is on the device meta"),
                (3, TypeError, "a module, or a mapping"),
            ):
                with pytest.raises(error, match=message):
                    collector.update_policy_weights_(source)
                assert (collector.policy_version, policy.a.tolist()) == (0, [0, 0])
            state = collector.state_dict()
            state["policy_state_dict"] = {"a": ones, "b": torch.ones(3), "_extra_state": {}}
            with pytest.raises(RuntimeError, match="size mismatch for b"):
                collector.load_state_dict(state)
            assert policy.a.tolist() == [0, 0]
            for b in (np.ones(2), np.ones(2, np.int64), [1.0, 1.0]):  # arrays and lists are weights too
                collector.update_policy_weights_({"a": b, "b": b})
                assert (policy.a.tolist(), policy.b.tolist()) == ([1, 1], [1, 1])
                collector.update_policy_weights_({"a": 0 * ones, "b": 0 * ones})

    def test_what_a_module_keeps_beside_its_tensors_comes_too(self) -> None:
        kind = self.two_weights()
        policy, source = (self.torch.nn.Sequential(kind(value)) for value in (0.0, 2.0))
        with make(3, policy=policy) as collector:
            for n, form in enumerate((lambda: source, source.state_dict, lambda: {"0": source[0].state_dict()})):
                source[0].seen = {"n": n}
                collector.update_policy_weights_(form())
                assert (policy[0].a.tolist(), policy[0].seen) == ([2, 2], {"n": n})

    @pytest.mark.guarantee("G10.7")
    def test_an_update_in_mid_batch_waits_for_its_end(self) -> None:
        collectors: list[SyncDataCollector] = []
        source = self.constant(2)
        policy = self.constant(1, hook=lambda: collectors[0].update_policy_weights_(source))
        with make(3, policy=policy) as collector:
            collectors.append(collector)
            first = collector.rollout()
            assert (first.action == 1).all()
            assert (first.policy_version == 0).all()
            with self.torch.no_grad():
                source.inner.value.fill_(0)
            second = collector.rollout()
        assert (second.action == 2).all(), "what the weights were when the update was made"
        assert (second.policy_version == 10).all(), "it was made in each of ten rounds"

    def test_an_update_from_the_policys_own_memory_undoes_nothing_that_a_learner_does_meanwhile(self) -> None:
        policy = self.constant(0)

        def learn(step: StepBatch) -> None:
            with self.torch.no_grad():
                policy.inner.value += 1
            if policy.inner.value == 3:
                collector.update_policy_weights_()

        with make(3, policy=policy) as collector:
            collector.collect(n_step=5, on_step=learn)
            assert policy.inner.value == 5
            assert collector.policy_version == 1

    def test_what_a_learner_changes_in_place_is_an_update_of_the_next_batch(self) -> None:
        policy = self.constant(0)
        with make(3, policy=policy) as collector:
            optimizer = self.torch.optim.SGD(policy.parameters(), lr=1.0)
            policy.inner.value.grad = self.torch.tensor(-1.0)
            for version in range(3):
                assert (collector.rollout().policy_version == version).all()
                assert (collector.rollout().action == version % 3).all()
                optimizer.step()
            collector.update_policy_weights_()  # the same weights once more
            assert collector.policy_version == 3
            assert (collector.rollout().policy_version == 3).all()

    def test_whole_episodes_are_collected_with_one_version(self) -> None:
        """Includes episodes that are longer than an internal batch."""

        def update(step: StepBatch) -> None:
            collector.update_policy_weights_(self.constant(1))

        with make(150, policy=self.constant(0)) as collector:
            batch = collector.collect(n_episode=1, on_step=update).batch
            assert batch.frames == 150
            assert (batch.policy_version == 0).all()
            assert (batch.action == 0).all()
            assert collector.policy_version == 150


class TestStats:
    @kinds
    @pytest.mark.parametrize("slow", ["envs", "policy", "idle", "hooks"])
    def test_the_slowest_part_is_the_bottleneck(self, slow: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr("collector.basics.timing.time.perf_counter", lambda: now[0])

        def pass_time(part: str) -> None:
            now[0] += 1.0 if part == slow else 0.01

        class Slow(Countdown):
            def step(self, action: Any) -> Any:
                pass_time("envs")
                return super().step(action)

        def policy(obs: np.ndarray) -> np.ndarray:
            pass_time("policy")
            return zeros(obs)

        with kind(DummyVectorEnv([partial(Slow, 3)]), policy, frames_per_batch=2) as collector:
            for _ in range(3):
                collector.collect(n_step=2, on_step=lambda step: pass_time("hooks"))
                pass_time("idle")
            collector.next()
            stats = collector.stats()
        assert stats.bottleneck == slow
        assert str(stats).startswith(f"{stats.frames_per_second:,.0f} frames/s; {stats.bottleneck}")
        assert "\n" not in str(stats)
        parts = stats.env, stats.policy, stats.transfer, stats.storage, stats.hooks, stats.idle
        assert stats.total == pytest.approx(sum(parts))
        assert stats.frames == 8
        assert stats.hooks == pytest.approx(6 * (1.0 if slow == "hooks" else 0.01))
        assert stats.bottleneck_share.startswith(slow)
        assert stats.policy == pytest.approx(8 * (1.0 if slow == "policy" else 0.01))
        assert stats.idle == pytest.approx(3 * (1.0 if slow == "idle" else 0.01))


class TestKeywordsOfTheVectorEnv:
    """A collector that makes a vector env also takes the keywords of the vector env."""

    def test_ids_in_place_of_functions(self) -> None:
        assert batch_of(["CartPole-v1"] * 2, None, 4).obs.shape == (2, 2, 4)
        batch = batch_of(["Pendulum-v1"], None, 6, create_env_kwargs={"max_episode_steps": 3})
        assert batch.truncated.nonzero()[1].tolist() == [2, 5]

    @kinds
    def test_those_for_processes_make_processes(self, kind: type) -> None:
        with kind(cartpoles(4), frames_per_batch=4, num_workers=2, step_timeout=30, on_error="restart") as collector:
            assert type(collector.env).__name__ == "ShmemVectorEnv"
            assert collector.env.num_workers == 2
            assert collector.next().frames == 4

    def test_others_leave_the_default(self) -> None:
        with SyncDataCollector(cartpoles(2), frames_per_batch=4, copy=False, num_workers=None) as collector:
            assert type(collector.env).__name__ == "DummyVectorEnv"
        with AsyncDataCollector(cartpoles(3), frames_per_batch=4, wait_num=2, backend="thread") as collector:
            assert (type(collector.env).__name__, collector.env.wait_num) == ("ThreadVectorEnv", 2)
