"""`SyncDataCollector` and `AsyncDataCollector`: content of batches, and sources of envs."""

from __future__ import annotations

import ast
import gc
import importlib.util
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from collector import AsyncDataCollector, EpisodeSeeds, Interruptor, Rollout, SyncDataCollector, rollout
from collector.batch.rollout import concatenate
from tests.support.backends import FULL
from tests.support.collector_envs import (
    BACKENDS,
    CASES,
    arrays,
    assert_equal,
    backends,
    batch_of,
    cartpoles,
    countdowns,
    hand_written,
    kinds,
    pendulums,
    push,
    zeros,
)
from tests.support.countdown import BreaksOnce, Countdown, DictObs, Empty, Stops
from tests.support.paths import ROOT
from vecenv import (
    AECVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    ParallelVectorEnv,
    PettingZooEnv,
    ShmemVectorEnv,
    SyncVectorEnv,
    VectorEnvNormObs,
    flatten_agents,
    from_gymnasium,
)
from vecenv.transforms import CatFrames, RewardSum, TransformedVectorEnv, VecNorm


@pytest.mark.parametrize(
    ("backend", "copy", "frames"),
    [
        (DummyVectorEnv, True, 300),
        (DummyVectorEnv, False, 100),
        (DummyVectorEnv, True, 5),
        (ShmemVectorEnv, False, 100),
        pytest.param(ShmemVectorEnv, True, 300, marks=FULL),
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_batches_of_any_size_equal_a_hand_written_loop(backend: Any, copy: bool, frames: int, case: str) -> None:
    fns, policy = CASES[case]
    with DummyVectorEnv(fns(5)) as venv:
        expected = hand_written(venv, policy, steps=60, seed=3)
    with SyncDataCollector(backend(fns(5), copy=copy), policy, frames_per_batch=frames) as collector:
        collector.set_seed(3)
        batches = [collector.rollout() for _ in range(300 // frames)]
    for batch in batches:
        assert batch.shape == (5, frames // 5)
        assert batch.frames == frames
        assert batch.mask.all()
    assert_equal(joined(batches), expected)


def joined(batches: list[Rollout]) -> dict[str, np.ndarray]:
    """Concatenate the columns of batches."""
    return {name: np.concatenate([arrays(batch)[name] for batch in batches], axis=1) for name in arrays(batches[0])}


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
LOOPS = {
    "sync": {},
    "sync in workers": {"backend": ShmemVectorEnv},
    "limited": {"max_frames_per_traj": 5},
    "seeded": {"episode_seeds": True},
    "async": {"kind": AsyncDataCollector},
}


@pytest.mark.parametrize(
    ("loop", "views"),
    [
        *((loop, views) for loop in ("sync", "async") for views in VIEWS),
        ("limited", "extras"),
        ("seeded", "extras"),
        pytest.param("sync in workers", "extras", marks=FULL),
        pytest.param("sync in workers", "tensors", marks=FULL),
    ],
)
def test_what_a_policy_returns_may_be_views_of_its_observations(loop: str, views: str) -> None:
    """The batch has copies, because the vector env overwrites the observations."""
    options = {"kind": SyncDataCollector, "backend": DummyVectorEnv, **VIEWS[views], **LOOPS[loop]}
    kind, backend, found = options.pop("kind"), options.pop("backend"), []
    for copy in (True, False):
        if "episode_seeds" in options:
            options["episode_seeds"] = EpisodeSeeds(3)
        with kind(backend(pendulums(3), copy=copy), frames_per_batch=60, **options) as collector:
            if "episode_seeds" not in options:
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
            steps = concatenate([collector.rollout().flatten() for _ in range(90 // frames)])
        whole = arrays(steps)
        return [{name: rows[steps.env_ids == env] for name, rows in whole.items()} for env in range(3)]

    @pytest.mark.guarantee("G10.1")
    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (lambda backend: backend(cartpoles(3)), {}),
            (lambda backend: backend(cartpoles(3)), {"max_frames_per_traj": 15}),
            (lambda backend: VectorEnvNormObs(backend(cartpoles(3))), {}),
            (lambda backend: TransformedVectorEnv(backend(cartpoles(3)), [VecNorm(), CatFrames(2, -1)]), {}),
            (lambda backend: backend([partial(BreaksOnce, 9, 1, at) for at in (2, 5, 7)], on_error="restart"), {}),
        ],
        ids=["autoreset", "limit", "a wrapper with statistics", "transforms", "failures"],
    )
    @backends
    @pytest.mark.filterwarnings("ignore:.*broke off because envs failed:RuntimeWarning")
    def test_the_data_does_not_depend_on_frames_per_batch(
        self, backend: Any, kind: type, make: Any, options: dict[str, Any]
    ) -> None:
        whole = self.collect(kind, make(backend), 90, **options)
        for frames in (3, 30):
            for found, expected in zip(self.collect(kind, make(backend), frames, **options), whole, strict=True):
                assert_equal(found, expected)

    def test_two_runs_with_one_seed_are_the_same_whatever_the_workers(self, kind: type) -> None:
        whole = self.collect(kind, DummyVectorEnv(cartpoles(3)), 60)
        for workers in (1, 2):
            venv = ShmemVectorEnv(cartpoles(3), num_workers=workers)
            for found, expected in zip(self.collect(kind, venv, 60), whole, strict=True):
                assert_equal(found, expected)


def test_a_random_mix_of_episode_lengths_and_batch_sizes_equals_a_hand_written_loop() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 9, rng.integers(1, 7)).tolist()
        with DummyVectorEnv(countdowns(*lengths)) as venv:
            expected = hand_written(venv, None, steps=60, seed=seed)
        steps = int(rng.choice([1, 2, 3, 4, 6, 10, 20, 60]))
        frames = {"frames_per_batch": steps * len(lengths), "total_frames": 60 * len(lengths)}
        with SyncDataCollector(DummyVectorEnv(countdowns(*lengths)), **frames) as collector:
            collector.set_seed(seed)
            assert_equal(joined(list(collector)), expected)


def test_no_device_is_ever_synchronised() -> None:
    """`torch.cuda.synchronize` would also wait for the work of a learner."""
    sources = list((ROOT / "collector").rglob("*.py"))
    found = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "synchronize" and ast.unparse(node.value).endswith("cuda")
    ]
    assert len(sources) > 20
    assert found == []


@pytest.mark.guarantee("G10.3")
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_that_is_over_is_reset_once_and_its_true_last_observation_is_kept(backend: Any) -> None:
    with SyncDataCollector(backend(countdowns(4, 6)), zeros, frames_per_batch=20) as collector:
        batches = [collector.rollout() for _ in range(3)]
    whole, steps = joined(batches), np.arange(30)
    for env, length in enumerate((4, 6)):
        # The env counts its resets, so a superfluous reset would skip an episode number.
        np.testing.assert_array_equal(whole["obs"][env], np.stack([steps // length, steps % length], 1))
        np.testing.assert_array_equal(whole["next_obs"][env], np.stack([steps // length, steps % length + 1], 1))
    np.testing.assert_array_equal(batches[0].final_env, [0, 1, 0])
    np.testing.assert_array_equal(batches[0].final_time, [3, 5, 7])
    np.testing.assert_array_equal(batches[0].final_obs, [[0, 4], [0, 6], [1, 4]])


class CountsRounds:
    """Vector env that logs its calls."""

    def __init__(self, venv: Any) -> None:
        self.venv, self.rounds = venv, []

    def __getattr__(self, name: str) -> Any:
        if name in ("step", "send", "reset"):
            self.rounds.append(name)
        return getattr(self.venv, name)


def test_resets_within_a_batch_cost_no_rounds() -> None:
    venv = DummyVectorEnv(countdowns(3, 4, 5, 6))
    with SyncDataCollector(venv, zeros, frames_per_batch=4 * 60) as collector:
        for batches in (1, 2):
            batch = collector.rollout()
            assert batch.done.sum(1).tolist() == [20, 15, 12, 10]
            # All four episodes end in the last round of the batch. A separate round resets the envs.
            assert venv.stats()["rounds"] == batches * (1 + 60)


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


@pytest.mark.parametrize("frames", [5, 30])
def test_a_reset_of_a_subclass_is_used_for_each_episode(frames: int) -> None:
    with SyncDataCollector(Levels([partial(Level, 3)]), zeros, frames_per_batch=frames, total_frames=30) as collector:
        assert {int(level) for batch in collector for level in batch.obs[..., 0].ravel()} == {50}


class Reports(Countdown):
    """Env with info keys that vector envs use for the last observation and for failures."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"final_obs": -obs} | ({"restarted": True} if terminated else {})


@kinds
@pytest.mark.parametrize("limit", [None, 2])
def test_keys_of_an_envs_own_info_mean_nothing_to_the_collector(kind: type, limit: Any) -> None:
    """Includes an episode that the collector truncates."""

    def collect(env: type) -> dict[str, np.ndarray]:
        venv = DummyVectorEnv([partial(env, 3)] * 2)
        with kind(venv, zeros, frames_per_batch=6, total_frames=24, max_frames_per_traj=limit) as collector:
            return arrays(concatenate([batch.flatten() for batch in collector]))

    assert_equal(collect(Reports), collect(Countdown))


def test_where_the_vector_env_cannot_reset_by_itself_the_resets_after_a_round_share_one() -> None:
    venv = CountsRounds(DummyVectorEnv(countdowns(3, 4, 5, 6)))
    with SyncDataCollector(venv, zeros, frames_per_batch=4 * 60) as collector:
        venv.rounds.clear()
        batch = collector.rollout()
    ended = batch.done.any(0)[:-1]
    assert batch.done.sum(1).tolist() == [20, 15, 12, 10]
    assert venv.rounds.count("step") == 60
    assert venv.rounds.count("reset") == 1 + ended.sum(), "the first of all, and none for what ended last"


@kinds
def test_episode_ids_never_repeat_and_change_with_the_episode(kind: type) -> None:
    with kind(ShmemVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=10) as collector:
        collector.reset()
        seen = [collector.rollout().flatten() for _ in range(3)]
        collector.reset()
        seen.append(collector.rollout().flatten())
        seen.append(collector.collect(n_episode=3).batch)
        collector.set_seed(1)
        seen.append(collector.collect(n_step=10).batch.flatten())
    steps = np.concatenate([np.stack([batch.env_ids, batch.obs[:, 0], batch.traj_ids], 1) for batch in seen])
    assert steps.dtype == np.int64
    # The env counts its episodes. An episode that is abandoned before its first step leaves no gap in the ids.
    for env in range(2):
        episodes, ids = np.unique(steps[steps[:, 0] == env][:, 1:], axis=0).T
        assert len(np.unique(episodes)) == len(episodes), "one id for each episode"
        assert (np.diff(ids) > 0).all(), "and a larger one for each later episode"
        assert (ids % 2 == env).all()
    np.testing.assert_array_equal(steps[:30, 2], 2 * steps[:30, 1] + steps[:30, 0])


@backends
def test_dict_and_tuple_observations_keep_their_form(backend: Any) -> None:
    fns = [lambda length=length: DictObs(Countdown(length)) for length in (3, 4)]
    batch = batch_of(backend(fns), zeros, 20)
    assert batch.obs.keys() == {"a", "b"}
    assert isinstance(batch.obs["b"], tuple)
    np.testing.assert_array_equal(batch.next.obs["a"][0, :, 1], np.arange(10) % 3 + 1)
    np.testing.assert_array_equal(batch.next.obs["b"][0], batch.next.obs["a"] + 1)
    np.testing.assert_array_equal(batch.final_obs["a"][:, 1], [3, 4, 3, 4, 3])


@pytest.mark.guarantee("G10.13")
def test_a_batch_is_the_callers_and_never_changes() -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=14) as collector:
        first = collector.rollout()
        before = {name: array.copy() for name, array in arrays(first).items()}
        second = collector.rollout()
        assert_equal(arrays(first), before)
        expected = arrays(second)["obs"].copy()
        first.all_obs[:] = -1
        np.testing.assert_array_equal(second.obs, expected)
    assert not np.shares_memory(first.all_obs, second.all_obs)


def test_the_layout_in_memory_is_time_first_and_reprs_say_how_much_there_is() -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=14) as collector:
        batch = collector.next()
        assert repr(collector) == f"SyncDataCollector({collector.env!r}, 14 frames a batch, 14 frames so far)"
    assert repr(collector).endswith(", closed), 14 frames a batch, 14 frames so far, shut down)")
    for array in (batch.action, batch.reward, batch.all_obs):
        assert array.swapaxes(0, 1).flags.c_contiguous
    assert repr(batch) == "Rollout(2 envs, 7 steps, 14 frames, 3 episode ends)"


NO_WHOLE_NUMBERS = {
    "frames_per_batch": 2.5,
    "total_frames": float("nan"),
    "max_frames_per_traj": float("inf"),
    "init_random_frames": "10",
    "groups": [10],
}
AN_ENV = r"create_env_fn\[1\] must be a callable that makes an env; got <.*Countdown.*lambda: make_env"
WRONG = [
    *(({name: number}, ValueError, "at least 1") for name, number in (("frames_per_batch", 0), ("total_frames", 0))),
    ({"frames_per_batch": -5}, ValueError, "at least 1"),
    *(
        ({name: number}, TypeError, re.escape(f"{name} must be a whole number, got {number!r}"))
        for name, number in NO_WHOLE_NUMBERS.items()
    ),
    ({"env_device": "cuda"}, ValueError, "env_device"),
    ({"reset_when_done": False}, ValueError, "reset_when_done=False is not supported"),
    ({"exploration_type": "best"}, ValueError, "one of random, mode, mean; got 'best'"),
    ({"backend": "dummy", "step_timeout": 3}, TypeError, "AsyncDataCollector has no argument 'step_timeout'"),
    ({"create_env_fn": [partial(Countdown, 3), Countdown(3)]}, TypeError, AN_ENV),
    ({"create_env_fn": "CartPole-v1"}, TypeError, r"text 'CartPole-v1': for 8 such envs pass \['CartPole-v1'\] \* 8"),
    ({"create_env_fn": None}, TypeError, r"create_env_fn must be a vector env, a callable .* got None"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        AsyncDataCollector(**{"create_env_fn": countdowns(3), "policy": zeros, "frames_per_batch": 10, **options})


class TestFrames:
    def test_whole_floats_are_numbers_of_steps(self) -> None:
        options = {"frames_per_batch": 1e1, "total_frames": 3e1, "max_frames_per_traj": 4.0, "init_random_frames": 1e1}
        with SyncDataCollector(DummyVectorEnv(countdowns(9, 9)), zeros, **options) as collector:
            assert len(collector) == 3
            batches = list(collector)
        assert [type(number) for number in (collector.frames_per_batch, collector.total_frames)] == [int, int]
        assert [batch.frames for batch in batches] == [10, 10, 10]
        assert [batch.random.all() for batch in batches] == [True, False, False]
        assert batches[0].step_count[0].tolist() == [0, 1, 2, 3, 0]

    def test_frames_per_batch_is_rounded_up_to_the_envs_with_a_warning(self) -> None:
        with pytest.warns(RuntimeWarning, match="frames_per_batch=10 .* 3 envs: .* 4 steps of each, 12 frames"):
            collector = SyncDataCollector(DummyVectorEnv(countdowns(3, 3, 3)), zeros, frames_per_batch=10)
        with collector:
            assert collector.rollout().frames == 12

    def test_the_iterator_ends_at_total_frames_and_closes_the_envs(self) -> None:
        venv = DummyVectorEnv(countdowns(3, 4))
        collector = SyncDataCollector(venv, zeros, frames_per_batch=10, total_frames=30)
        assert [batch.frames for batch in collector] == [10, 10, 10]
        assert collector.frames == 30
        assert venv.is_closed
        assert list(collector) == []
        assert collector.next() is None

    @kinds
    def test_total_frames_are_rounded_up_to_whole_batches_with_a_warning(self, kind: type) -> None:
        """As `SyncDataCollector` of TorchRL, and `learn` of SB3."""
        message = "total_frames=25 is not a multiple of frames_per_batch=10: it is rounded up to 30"
        with pytest.warns(RuntimeWarning, match=message):
            collector = kind(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=10, total_frames=25)
        assert len(collector) == 3
        assert [batch.frames for batch in collector] == [10, 10, 10]
        assert collector.frames == 30

    @pytest.mark.parametrize("total", [{}, {"total_frames": None}, {"total_frames": -7}], ids=str)
    def test_a_collector_without_total_frames_has_no_end(self, total: dict[str, Any]) -> None:
        with SyncDataCollector(DummyVectorEnv(countdowns(3)), zeros, frames_per_batch=5, **total) as collector:
            for batch, _ in zip(collector, range(20), strict=False):
                assert batch.frames == 5


OTHER_CALLS: dict[str, Any] = {
    "step": lambda venv, _: venv.step(np.zeros(2, np.int64)),
    "reset": lambda venv, _: venv.reset([1]),
    "rollout": lambda venv, _: rollout(venv, 2, zeros),
    "collector": lambda venv, _: SyncDataCollector(venv, zeros, frames_per_batch=4).next(),
    "evaluate": lambda venv, collector: collector.evaluate(2, eval_env=venv),
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
        with pytest.raises(RuntimeError, match="already exists"):
            self.made(Countdown(3), create_env_kwargs={"length": 3})
        assert self.made(lambda: DummyVectorEnv(countdowns(3, 4))) == 2
        assert self.made(Countdown(3)) == 1
        assert self.made(Countdown, create_env_kwargs={"length": 3}) == 1
        assert self.made([Countdown] * 2, create_env_kwargs={"length": 3}) == 2
        assert self.made([DummyVectorEnv(countdowns(3, 4))]) == 2

    def test_a_vector_env_of_tensors_is_refused(self) -> None:
        tensors = pytest.importorskip("collector.device.torch_vector_env")
        venv = tensors.TorchVectorEnv(DummyVectorEnv(countdowns(3)), "cpu")
        with venv, pytest.raises(TypeError, match="without TorchVectorEnv"):
            self.made(venv)

    @kinds
    def test_vector_envs_of_other_kinds_are_refused_with_what_to_pass_instead(self, kind: type) -> None:
        pytest.importorskip("stable_baselines3")
        other = importlib.import_module("vecenv.facades.to_sb3").SB3VecEnv(DummyVectorEnv(cartpoles(2)))
        with pytest.raises(TypeError, match=r"SB3VecEnv resets envs by itself.* pass its `\.venv`"):
            kind(other, frames_per_batch=10)
        assert batch_of(other.venv, None, 10, kind).frames == 10

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
        facade = GymnasiumVectorEnv(DummyVectorEnv(countdowns(3)))
        with facade.venv:
            with pytest.raises(ValueError, match="cannot be used with a vector env"):
                SyncDataCollector(facade, frames_per_batch=3, num_workers=2)
            assert facade.reset()[0].tolist() == [[0, 0]], "it stays open"

    @kinds
    def test_multi_agent_envs_are_refused_with_what_to_pass_instead(self, kind: type) -> None:
        pytest.importorskip("pettingzoo")
        message = r"(AEC|Parallel)VectorEnv steps many agents .* one agent per env: pass flatten_agents\(env\)"
        with ParallelVectorEnv(["classic/rps-v2"] * 2, backend="dummy") as envs:
            with pytest.raises(TypeError, match=message):
                kind(envs, frames_per_batch=10)
            assert not envs.is_closed
            assert batch_of(flatten_agents(envs), None, 12, kind).frames == 12
            assert envs.is_closed
        assert batch_of([lambda: PettingZooEnv("classic/rps-v2")] * 2, None, 10, kind).reward.shape[-1] == 2
        with AECVectorEnv(["classic/tictactoe-v3"], backend="dummy") as turns, pytest.raises(TypeError, match=message):
            kind(turns, frames_per_batch=10)

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

    def test_the_vector_env_comes_first(self) -> None:
        with DummyVectorEnv(countdowns(3)) as venv:
            with pytest.raises(TypeError, match=r"DummyVectorEnv\(1 envs.* comes first, then the policy"):
                SyncDataCollector(zeros, venv, frames_per_batch=10)
            assert not venv.is_closed

    def test_an_asynchronous_vector_env_is_refused(self) -> None:
        venv = DummyVectorEnv(countdowns(3, 4), wait_num=1)
        with pytest.raises(ValueError, match="use AsyncDataCollector for a vector env with wait_num"):
            SyncDataCollector(venv, zeros, frames_per_batch=10)
        assert venv.reset()[0].shape == (2, 2)
        venv.close()

    @pytest.mark.parametrize("policy", [3, lambda a, b: a])
    def test_a_vector_env_that_was_passed_to_a_refused_collector_stays_open(self, policy: Any) -> None:
        with DummyVectorEnv(countdowns(3, 4)) as venv:
            with pytest.raises(TypeError, match=r"a policy is a function|incompatible"):
                SyncDataCollector(venv, policy, frames_per_batch=10)
            assert venv.reset()[0].shape == (2, 2)

    @kinds
    def test_a_vector_env_that_was_closed_meanwhile_is_named(self, kind: Any) -> None:
        venv = DummyVectorEnv(countdowns(3, 4))
        collector = kind(venv, zeros, frames_per_batch=10)
        collector.rollout()
        venv.close()
        with pytest.raises(RuntimeError, match="vector env was closed"):
            collector.rollout()
        collector.shutdown()
        with pytest.raises(RuntimeError, match="the collector is shut down; make a new collector"):
            collector.rollout()

    @pytest.mark.guarantee("G10.2")
    @pytest.mark.parametrize("another_call", OTHER_CALLS)
    @backends
    def test_a_vector_env_that_was_stepped_meanwhile_begins_new_episodes(self, backend: Any, another_call: str) -> None:
        venv = backend(countdowns(50, 50))
        with SyncDataCollector(venv, zeros, frames_per_batch=6) as collector:
            collector.rollout()
            OTHER_CALLS[another_call](venv, collector)
            collector.reset([0], seed=1)
            batch = collector.rollout()
        assert batch.step_count.tolist() == [[0, 1, 2]] * 2
        assert batch.obs[:, :, 1].tolist() == [[0, 1, 2]] * 2
        assert batch.next.obs[:, :, 1].tolist() == [[1, 2, 3]] * 2

    def test_a_lazy_vector_env_that_has_started_anew_begins_new_episodes(self) -> None:
        with DummyVectorEnv(countdowns(50, 50), lazy=True) as venv:
            collector = SyncDataCollector(venv, zeros, frames_per_batch=6)
            collector.rollout()
            venv.close()
            venv.reset()
            assert collector.rollout().obs[:, :, 1].tolist() == [[0, 1, 2]] * 2

    def test_a_numbered_episode_is_never_mixed_with_steps_of_another_caller(self) -> None:
        venv = DummyVectorEnv(countdowns(50, 50))
        with SyncDataCollector(venv, zeros, frames_per_batch=6, episode_seeds=EpisodeSeeds(0)) as collector:
            collector.rollout()
            venv.step(np.zeros(2, np.int64))
            with pytest.raises(RuntimeError, match="episode 0 is in progress: make a new collector"):
                collector.rollout()

    @kinds
    def test_a_stop_iteration_is_no_end(self, kind: Any) -> None:
        collector = kind(DummyVectorEnv([partial(Stops, 3)] * 2), zeros, frames_per_batch=10, total_frames=100)
        with collector:
            for ask in (lambda: list(collector), collector.next):
                with pytest.raises(RuntimeError, match=r"raised StopIteration. env 0, step"):
                    ask()

    def test_observations_and_extras_without_elements(self) -> None:
        def policy(obs: Any) -> Any:
            return {"action": zeros(obs["a"]), "nothing": np.zeros((2, 0))}

        batch = batch_of([partial(Empty, 3)] * 2, policy, 8)
        assert batch.obs["empty"].shape == batch.next.obs["empty"].shape == (2, 4, 0)
        assert batch.extras["nothing"].shape == (2, 4, 0)


@pytest.mark.guarantee("G10.6")
def test_an_interrupted_batch_is_shorter_and_collection_goes_on_from_there() -> None:
    interruptor = Interruptor()

    def stop_at_step_4(obs: np.ndarray) -> np.ndarray:
        if (obs == (1, 1)).all(-1).any():
            interruptor.stop_collection()
        return zeros(obs)

    venv = DummyVectorEnv(countdowns(2, 50))
    with SyncDataCollector(venv, stop_at_step_4, frames_per_batch=40, interruptor=interruptor) as collector:
        short = collector.rollout()
        assert short.mask.sum(1).tolist() == [4, 4]
        assert short.frames == 8
        assert short.shape == (2, 4)
        assert collector.rollout().frames in (1, 2), "while stopped, a batch is one round"
        interruptor.start_collection()
        rest = collector.rollout()
    assert rest.frames == 40
    assert rest.obs[1, 0].tolist() == [0, 5]
