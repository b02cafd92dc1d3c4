"""Batches, sources of envs, keywords and state of collectors. tests/fuzz compares their batches with a loop by hand."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest

import collector
from collector import (
    AsyncDataCollector,
    Interruptor,
    RandomPolicy,
    SyncDataCollector,
    exploration_type,
    rollout,
    set_exploration_type,
)
from tests.support.collector_envs import (
    arrays,
    assert_equal,
    batch_of,
    by_env,
    cartpoles,
    countdowns,
    kinds,
    of_countdowns,
    pendulums,
    zeros,
)
from tests.support.countdown import Closes, Countdown, Stops
from vecenv import (
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ParallelVectorEnv,
    PettingZooEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvNormObs,
    flatten_agents,
    from_gymnasium,
)
from vecenv.transforms import CatFrames, RewardSum, TransformedVectorEnv, VecNorm

# Batches. The policy draws all actions from one stream, so the data repeat only if the calls repeat.


def from_one_stream(kind: type, venv: Any, frames: int, **options: Any) -> list[dict[str, np.ndarray]]:
    """Collect 90 steps, and return the steps of each env."""
    rng = np.random.default_rng(5)
    with kind(venv, lambda obs: rng.integers(2, size=len(obs)), frames_per_batch=frames, **options) as collector:
        collector.set_seed(7)
        return by_env([collector.rollout() for _ in range(90 // frames)])


VENVS: dict[str, Callable[[int], Any]] = {
    "workers": lambda frames: ThreadVectorEnv(cartpoles(3), num_workers=frames % 4),
    "wrapper": lambda frames: VectorEnvNormObs(DummyVectorEnv(cartpoles(3))),
    "transforms": lambda frames: TransformedVectorEnv(DummyVectorEnv(cartpoles(3)), [VecNorm(), CatFrames(2, -1)]),
}
"""Makers of vector envs by name. The number of workers depends on the number of frames."""


@pytest.mark.guarantee("G10.1")
@kinds
@pytest.mark.parametrize("name", VENVS)
def test_the_data_does_not_depend_on_frames_per_batch_and_workers(kind: type, name: str) -> None:
    """With a limit, which some of the episodes reach."""
    runs = [from_one_stream(kind, VENVS[name](frames), frames, max_frames_per_traj=15) for frames in (90, 3, 30)]
    for other in runs[1:]:
        for found, expected in zip(other, runs[0], strict=True):
            assert_equal(found, expected)


def with_last(obs: Any, state: Any) -> dict[str, Any]:
    return {"action": obs[:, :1], "last": 0 * obs if state is None else state, "state": obs}


VIEWS: dict[str, Any] = {
    "action": lambda obs: obs[:, :1],
    "extras": lambda obs: {"action": obs[:, :1], "seen": obs},
    "state": with_last,
}


@kinds
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("views", VIEWS)
def test_a_policy_may_return_views_of_its_observations(kind: type, views: str, device: str | None) -> None:
    """The batch has copies, because the vector env overwrites the observations."""
    if device:
        pytest.importorskip("torch")
    venv = DummyVectorEnv(pendulums(3), copy=False)
    with kind(venv, VIEWS[views], frames_per_batch=60, policy_device=device) as collector:
        hooked = collector.collect(n_step=60, on_step=lambda step: {"done by": step.action}).batch
        for batch in (hooked.flatten(), collector.rollout().flatten()):
            extras = batch.extras
            np.testing.assert_array_equal(batch.action, batch.obs[:, :1])
            np.testing.assert_array_equal(extras.get("done by", batch.action), batch.action)
            np.testing.assert_array_equal(extras.get("seen", batch.obs), batch.obs)
            if views == "state":
                later = np.diff(batch.traj_ids) == 0
                np.testing.assert_array_equal(extras["last"][1:][later], batch.obs[:-1][later])
                assert not extras["last"][batch.step_count == 0].any()


@kinds
def test_a_policy_may_write_into_its_observations(kind: type) -> None:
    """Also in the first round of a batch that continues episodes."""

    def policy(obs: np.ndarray) -> np.ndarray:
        obs[:] = -1
        return zeros(obs)

    with kind(DummyVectorEnv(countdowns(5, 50)), policy, frames_per_batch=4) as collector:
        for _ in range(4):
            flat = collector.rollout().flatten()
            np.testing.assert_array_equal(flat.obs[:, 1], flat.step_count)
            np.testing.assert_array_equal(flat.next.obs[:, 1], flat.step_count + 1)


class Keeps(RandomPolicy):
    def __call__(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), obs]
        return super().__call__(obs, *args, **kwargs)


def test_a_random_policy_of_the_program_may_keep_its_inputs() -> None:
    venv = DummyVectorEnv(countdowns(3, 4))
    policy = Keeps(venv.action_space)
    batch = batch_of(venv, policy, 20)
    np.testing.assert_array_equal(np.stack(policy.seen, 1), batch.obs)


class Reports(Countdown):
    """Env with info keys that vector envs use for the last observation and for failures."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"final_obs": -obs} | ({"restarted": True} if terminated else {})


@kinds
def test_keys_of_an_envs_own_info_mean_nothing_to_the_collector(kind: type) -> None:
    """Also at the end of an episode that the collector truncates."""
    found = []
    for env in (Reports, Countdown):
        venv = DummyVectorEnv([partial(env, 2), partial(env, 9)])
        with kind(venv, zeros, frames_per_batch=24, max_frames_per_traj=3) as collector:
            found.append(arrays(collector.rollout()))
    assert_equal(*found)


# Numbers of frames, and iterators.


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


def test_whole_floats_are_numbers_of_steps() -> None:
    options = {"total_frames": 3e1, "max_frames_per_traj": 4.0, "init_random_frames": 1e1}
    with of_countdowns(9, 9, steps=5.0, **options) as collector:  # type: ignore[arg-type]
        batches = list(collector)
    assert [batch.frames for batch in batches] == [10, 10, 10]
    assert [batch.random.all() for batch in batches] == [True, False, False]
    assert batches[0].step_count[0].tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("number", [None, -1, 0])
def test_none_and_numbers_below_one_are_no_limit_and_no_random_frames(number: int | None) -> None:
    options = {"total_frames": number or None, "max_frames_per_traj": number, "init_random_frames": number}
    with of_countdowns(100, steps=5, **options) as collector:
        batches = list(islice(collector, 20))
        assert collector, "without a length"
    assert [batch.frames for batch in batches] == [5] * 20
    assert not any(batch.done[:, :-1].any() or batch.random.any() for batch in batches)


def test_iterators_go_on_where_others_have_stopped() -> None:
    with of_countdowns(3, steps=5, total_frames=20) as collector:
        first, second = iter(collector), collector.iterator()
        batches = [next(first), next(second)]
        for batch in collector:
            batches.append(batch)
            break
        batches += list(collector)
    assert [batch.step_count[0, 0] for batch in batches] == [0, 2, 1, 0]


def test_a_rollout_is_neither_counted_nor_processed() -> None:
    with of_countdowns(3, steps=5, total_frames=10, split_trajs=True, postproc=lambda batch: None) as collector:
        assert collector.rollout().shape == (1, 5)
        assert (collector.frames, list(collector)) == (0, [None, None])


@kinds
def test_a_stop_iteration_of_an_env_does_not_end_the_iteration(kind: Any) -> None:
    with kind(DummyVectorEnv([partial(Stops, 3)]), zeros, frames_per_batch=10, total_frames=100) as collector:
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


# Sources of envs.


def test_a_callable_a_list_or_an_env_will_do() -> None:
    calls: list[int] = []

    def make() -> gymnasium.Env:
        calls.append(1)
        return Countdown(3)

    def shape(source: Any, **kwargs: Any) -> tuple[int, ...]:
        return batch_of(source, zeros, 12, create_env_kwargs=kwargs or None).shape

    assert (shape(make), len(calls)) == ((1, 12), 1), "each callable is called once"
    assert (shape([make, make]), len(calls)) == ((2, 6), 3)
    assert shape(lambda: DummyVectorEnv(countdowns(3, 4))) == (2, 6)
    assert shape(Countdown(3)) == (1, 12)
    assert shape(Countdown, length=3) == (1, 12)
    assert shape([Countdown] * 2, length=3) == (2, 6)
    assert shape([DummyVectorEnv(countdowns(3, 4))]) == (2, 6)
    assert batch_of(["CartPole-v1"] * 2, None, 4).obs.shape == (2, 2, 4)
    assert batch_of(["Pendulum-v1"], None, 6, create_env_kwargs={"max_episode_steps": 3}).truncated.sum() == 2


@kinds
def test_the_vector_env_below_a_facade_is_collected_from(kind: type) -> None:
    with kind(facade := GymnasiumVectorEnv(DummyVectorEnv(countdowns(3, 3))), frames_per_batch=12) as collector:
        assert collector.env is facade.venv
        assert collector.rollout().flatten().next.obs[2::3].tolist() == [[0, 3], [1, 3]] * 2
    assert facade.venv.is_closed
    inner = SyncVectorEnv(countdowns(3), autoreset_mode="SameStep")
    wrapped = gymnasium.wrappers.vector.TransformReward(inner, lambda reward: reward + 7)
    assert batch_of(wrapped, zeros, 3).reward.tolist() == [[7.0] * 3]


@kinds
def test_agents_may_be_rows_or_rewards(kind: type) -> None:
    pytest.importorskip("pettingzoo")
    with ParallelVectorEnv(["classic/rps-v2"] * 2, backend="dummy") as envs:
        assert batch_of(flatten_agents(envs), None, 12, kind).frames == 12
        assert envs.is_closed
    assert batch_of([lambda: PettingZooEnv("classic/rps-v2")] * 2, None, 10, kind).reward.shape[-1] == 2


@pytest.mark.parametrize("transforms", [None, [RewardSum()]])
def test_gymnasiums_own_vector_envs_are_closed_with_the_collector_only(
    transforms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Closes, "closed", 0)
    envs = gymnasium.vector.SyncVectorEnv([partial(Closes, 3)] * 2, autoreset_mode="SameStep")
    for facade in (envs, GymnasiumVectorEnv(from_gymnasium(envs), autoreset_mode="SameStep")):
        collector = SyncDataCollector(facade, None, frames_per_batch=10, transforms=transforms)
        collector.rollout()
        collector.shutdown(close_env=False)
        with pytest.raises(TypeError, match="transform"):
            SyncDataCollector(facade, None, frames_per_batch=10, transforms="none")
        del collector
        gc.collect()
        assert facade.reset()[0][:, 1].tolist() == [0, 0]
        assert Closes.closed == 0
    for kind in (SyncDataCollector, AsyncDataCollector):
        Closes.closed = 0
        assert batch_of(lambda: gymnasium.vector.SyncVectorEnv([partial(Closes, 3)] * 2), None, 10, kind).frames == 10
        assert Closes.closed == 2


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


def test_a_reset_of_a_subclass_is_called_for_each_episode() -> None:
    with SyncDataCollector(Levels([partial(Level, 3)]), zeros, frames_per_batch=5, total_frames=30) as collector:
        assert {int(level) for batch in collector for level in batch.obs[..., 0].ravel()} == {50}


def restart(venv: Any) -> None:
    venv.close()
    venv.reset()


def test_a_step_that_the_program_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    venv = DummyVectorEnv(countdowns(9, 9))
    step = venv.step
    monkeypatch.setattr(venv, "step", lambda *args, **kwargs: calls.append(args) or step(*args, **kwargs))
    with SyncDataCollector(venv, zeros, frames_per_batch=6) as collector:
        collector.rollout()
    assert len(calls) == 3


@pytest.mark.guarantee("G10.2")
@pytest.mark.parametrize(
    "another_call",
    [
        lambda venv: venv.step(np.zeros(2, np.int64)),
        lambda venv: rollout(venv, 2, zeros),
        lambda venv: SyncDataCollector(venv, zeros, frames_per_batch=4).next(),
        restart,
    ],
    ids=["step", "rollout", "collector", "restart"],
)
def test_a_vector_env_that_was_used_meanwhile_begins_new_episodes(another_call: Any) -> None:
    venv = DummyVectorEnv(countdowns(50, 50), lazy=another_call is restart)
    with SyncDataCollector(venv, zeros, frames_per_batch=6) as collector:
        collector.rollout()
        another_call(venv)
        collector.reset([0], seed=1)
        batch = collector.rollout()
    assert batch.step_count.tolist() == batch.obs[:, :, 1].tolist() == [[0, 1, 2]] * 2
    assert batch.next.obs[:, :, 1].tolist() == [[1, 2, 3]] * 2


def test_workers_reset_envs_in_the_round_of_the_last_step() -> None:
    venv = DummyVectorEnv(countdowns(3, 4, 5, 6))
    with SyncDataCollector(venv, zeros, frames_per_batch=4 * 60) as collector:
        assert collector.rollout().done.sum() == 57
        assert venv.stats()["rounds"] == 1 + 60


def test_keywords_for_processes_make_processes_and_others_leave_the_default() -> None:
    def made(kind: type, **options: Any) -> tuple[str, Any]:
        with kind(cartpoles(4), frames_per_batch=4, **options) as collector:
            assert collector.next().frames == 4
            return type(collector.env).__name__, collector.env

    name, venv = made(SyncDataCollector, num_workers=2, step_timeout=30, on_error="restart")
    assert (name, venv.num_workers) == ("ShmemVectorEnv", 2)
    assert made(SyncDataCollector, copy=False, num_workers=None)[0] == "DummyVectorEnv"
    name, venv = made(AsyncDataCollector, wait_num=2, backend="thread")
    assert (name, venv.wait_num) == ("ThreadVectorEnv", 2)


# Keywords and methods, with their meaning in TorchRL.


def test_collectors_have_the_old_and_the_new_names_of_torchrl() -> None:
    """TorchRL 0.14 has `Collector` and `AsyncCollector`. Older releases have `SyncDataCollector`."""
    assert (collector.Collector, collector.AsyncCollector) == (SyncDataCollector, AsyncDataCollector)


@kinds
def test_random_frames_come_first_and_have_zeros_for_what_only_the_policy_returns(kind: type) -> None:
    def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"action": zeros(obs) + 1, "value": np.ones((len(obs), 2), np.float32)}

    with kind(DummyVectorEnv(countdowns(3, 4)), policy, frames_per_batch=20, init_random_frames=30) as collector:
        batches = [collector.next().flatten() for _ in range(4)]
        batches.append(collector.collect(n_step=20, random=True).batch.flatten())
    in_flight = 0 if kind is SyncDataCollector else 2
    assert batches[0].random.all()
    assert batches[1].random.all()
    assert batches[2].random.sum() <= in_flight
    assert not batches[3].random.any()
    assert batches[4].random.sum() >= 20 - in_flight
    assert set(batches[0].action) == {0, 1, 2}
    for batch in batches:
        assert batch.extras["value"].dtype == np.float32
        np.testing.assert_array_equal(batch.extras["value"], np.stack([~batch.random] * 2, 1))
        assert (batch.action[~batch.random] == 1).all()


@kinds
def test_an_env_with_its_own_seed_method_is_reset_after_it(kind: type) -> None:
    class Own(Countdown):
        def seed(self, seed: int) -> None:
            self.episode = seed

    with kind([partial(Own, 9), partial(Countdown, 9)], zeros, frames_per_batch=8, backend="dummy") as collector:
        collector.set_seed(20)
        assert np.unique(collector.rollout().flatten().obs[:, 0]).tolist() == [0, 21]


@pytest.mark.parametrize("options", [{}, {"init_random_frames": 60}])
def test_a_random_policy_is_seeded_like_random_actions(options: Any) -> None:
    found = []
    for own in (False, True):
        venv = DummyVectorEnv(pendulums(3))
        policy = RandomPolicy(venv.action_space) if own else None
        with SyncDataCollector(venv, policy, frames_per_batch=60, **(options if own else {})) as collector:
            collector.set_seed(10)
            found.append(arrays(collector.next()))
    assert_equal(*found)


def test_a_static_seed_is_that_of_every_env() -> None:
    with SyncDataCollector(DummyVectorEnv(pendulums(3)), None, frames_per_batch=3) as collector:
        assert collector.set_seed(7, static_seed=True) == 7
        obs = collector.rollout().obs[:, 0]
    np.testing.assert_array_equal(obs, obs[[0, 0, 0]])


def test_postproc_gets_what_split_trajs_made_with_the_extras_that_only_it_sees() -> None:
    seen: list[Any] = []

    def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"action": zeros(obs), "_kept": zeros(obs), "value": zeros(obs)}

    def note(batch: Any) -> Any:
        seen.append((batch, set(batch.extras)))
        return batch

    with of_countdowns(4, 100, policy=policy, steps=6, split_trajs=True, postproc=note) as collector:
        batch = collector.next()
    assert seen == [(batch, {"_kept", "value"})]
    assert batch.shape == (3, 6)
    assert set(batch.extras) == {"value"}
    with of_countdowns(3, policy=policy, postproc=lambda batch: dict(batch.extras)) as collector:
        assert collector.next().keys() == {"value"}, "the result of postproc is the batch"


@pytest.mark.guarantee("G10.14")
def test_return_same_td_gives_one_object_in_one_memory_but_not_in_collect() -> None:
    with of_countdowns(3, 4, return_same_td=True) as collector:
        batch = collector.next()
        rewards, starts = batch.reward, batch.obs[:, 0].tolist()
        stats = [collector.collect(n_step=20).batch for _ in range(2)]
        before = [{name: rows.copy() for name, rows in arrays(each).items()} for each in stats]
        assert collector.next() is batch
        assert np.shares_memory(batch.reward, rewards)
        assert (starts, batch.obs[:, 0].tolist()) == ([[0, 0], [0, 0]], [[10, 0], [7, 2]])
        for now, then in zip(stats, before, strict=True):
            assert_equal(arrays(now), then)


def asked(collect: Callable[[Any], Any], **options: Any) -> set[str]:
    """Return the exploration types for which the policy asks."""

    def policy(obs: np.ndarray) -> dict[str, Any]:
        return {"action": zeros(obs), "asked": [exploration_type().value] * len(obs)}  # type: ignore[union-attr]

    with SyncDataCollector(countdowns(3, 3), policy, frames_per_batch=10, **options) as collector:
        return set(collect(collector).extras["asked"].ravel().tolist())


@pytest.mark.parametrize(
    "collect",
    [
        lambda collector: collector.rollout(),
        lambda collector: next(iter(collector)),
        lambda collector: collector.collect(n_step=10).batch,
        lambda collector: collector.collect(n_episode=3).batch,
    ],
)
def test_a_policy_asks_for_the_exploration_type_around_the_call_or_of_the_collector(collect: Any) -> None:
    assert asked(collect) == {"random"}
    assert asked(collect, exploration_type="mode") == {"mode"}
    with set_exploration_type("mean"):
        assert asked(collect, exploration_type="mode") == {"mean"}
    with pytest.warns(DeprecationWarning, match="use exploration_type"):
        assert asked(collect, exploration_mode="mean") == {"mean"}
    assert exploration_type() is None


def test_a_collector_within_a_collection_has_a_type_of_its_own() -> None:
    found: list[set[str]] = []

    def hook(step: Any) -> None:
        with set_exploration_type("mean"):
            found.append(asked(lambda collector: collector.rollout()))
        found.append(asked(lambda collector: collector.rollout()))

    with set_exploration_type("mode"):
        assert asked(lambda collector: collector.collect(n_step=2, on_step=hook).batch) == {"mode"}
    assert found == [{"mean"}, {"random"}]


@kinds
def test_a_collector_goes_on_where_the_state_was_saved(kind: type) -> None:
    def loaded(state: Any) -> Any:
        other = kind(DummyVectorEnv(countdowns(3)), zeros, frames_per_batch=5, total_frames=20)
        if state is not None:
            other.load_state_dict(state)
        return other

    with loaded(None) as collector:
        ids = [collector.next().traj_ids.max() for _ in range(2)]
        state = collector.state_dict()
    assert (state["frames"], state["iter"], "policy_state_dict" in state) == (10, 2, False)
    with loaded(state) as collector:
        rest = list(collector)
        finished = collector.state_dict()
    assert [batch.frames for batch in rest] == [5, 5]
    assert min(batch.traj_ids.min() for batch in rest) > max(ids)
    with loaded(finished) as collector:
        assert list(collector) == []
        collector.shutdown()
        collector.load_state_dict(state)
        assert (collector.frames, collector.state_dict()["iter"]) == (10, 2)
        with pytest.raises(RuntimeError, match="shut down"):
            collector.rollout()


# AsyncDataCollector.


def test_envs_step_while_the_policy_runs() -> None:
    """A step of one group waits until the policy is called for the other group."""
    seen: list[int] = []
    called = [[threading.Event() for _ in range(100)] for _ in range(2)]

    class WaitsForOther(Countdown):
        def __init__(self, env: int) -> None:
            super().__init__(100)
            self.env = env

        def step(self, action: Any) -> Any:
            assert called[1 - self.env][self.taken + self.env].wait(60)
            return super().step(action)

    def policy(obs: np.ndarray, env_id: np.ndarray) -> np.ndarray:
        seen.append(int(env_id[0]))
        called[env_id[0]][obs[0, 1]].set()
        return zeros(obs)

    fns = [partial(WaitsForOther, env) for env in range(2)]
    with AsyncDataCollector(ThreadVectorEnv(fns, num_workers=2), policy, frames_per_batch=8) as collector:
        assert collector.rollout().frames == 8
        for event in (event for events in called for event in events):
            event.set()  # the steps in flight wait for a call of the policy that never comes
    assert seen[:4] == [0, 1, 0, 1]


@pytest.mark.parametrize("groups", [1, 3, 9])
def test_groups_take_turns(groups: int) -> None:
    called: list[list[int]] = []

    def policy(obs: np.ndarray, env_id: np.ndarray) -> np.ndarray:
        called.append(env_id.tolist())
        return zeros(obs)

    batch_of(DummyVectorEnv(countdowns(*[100] * 4)), policy, 40, AsyncDataCollector, groups=groups)
    count = min(groups, 4)
    assert called[:count] == [list(range(group, 4, count)) for group in range(count)]
    assert called[count : 2 * count] == called[:count]
