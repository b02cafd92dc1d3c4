"""The collector: what its batches promise, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import ExplorationType, Interruptor, RandomPolicy, Rollout, SyncDataCollector
from collector.policy import draw
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

BACKENDS = [DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv]
backends = pytest.mark.parametrize("backend", BACKENDS)


class Countdown(gymnasium.Env):
    """Episodes of `length` steps; the observation is (episode, steps taken in it), so a wrong one shows."""

    def __init__(self, length: int) -> None:
        self.observation_space = spaces.Box(-1, 1000, (2,), np.int64)
        self.action_space = spaces.Discrete(3)
        self.length, self.episode, self.taken = length, -1, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.taken = self.episode + 1, 0
        return np.array([self.episode, 0]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.taken += 1
        over = self.taken == self.length
        return np.array([self.episode, self.taken]), float(action), over, False, {}


class DictObs(gymnasium.ObservationWrapper):
    """The same env with a dict and a tuple around its observations."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"a": env.observation_space, "b": spaces.Tuple([env.observation_space])})

    def observation(self, observation: Any) -> Any:
        return {"a": observation, "b": (observation + 1,)}


class Breaks(Countdown):
    def step(self, action: Any) -> Any:
        raise OverflowError("the env broke")


def countdowns(*lengths: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(Countdown, length) for length in lengths]


def cartpoles(n: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(gymnasium.make, "CartPole-v1")] * n


def pendulums(n: int) -> list[Callable[[], gymnasium.Env]]:
    return [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=13)] * n


def lean(obs: np.ndarray) -> np.ndarray:
    """A deterministic policy for CartPole."""
    return (obs[:, 2] > 0).astype(np.int64)


def push(obs: np.ndarray) -> np.ndarray:
    """A deterministic policy for Pendulum."""
    return 2 * np.sin(obs[:, 2:] + obs[:, :1]).astype(np.float32)


def zeros(obs: Any) -> np.ndarray:
    return np.zeros(len(obs["a"] if isinstance(obs, dict) else obs), np.int64)


CASES = {
    "cartpole": (cartpoles, lean),
    "pendulum": (pendulums, push),
    "cartpole random": (cartpoles, None),
    "pendulum random": (pendulums, None),
}
cases = pytest.mark.parametrize("case", CASES)


def hand_written(venv: Any, policy: Any, steps: int, seed: int) -> dict[str, np.ndarray]:
    """The loop that a user would write: step all, then reset what is over. Arrays `(N, T, ...)`."""
    venv.set_seed(seed)
    obs, _ = venv.reset()
    rows = []
    for _ in range(steps):
        action = np.stack([space.sample() for space in venv.action_space]) if policy is None else policy(obs)
        following, reward, terminated, truncated, _ = venv.step(action)
        rows.append((obs, action, reward, terminated, truncated, following.copy()))
        obs, over = following.copy(), np.flatnonzero(terminated | truncated)
        if len(over):
            obs[over] = venv.reset(over)[0]
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    return {name: np.stack(column, axis=1) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def arrays(batch: Rollout) -> dict[str, np.ndarray]:
    names = ("obs", "action", "reward", "terminated", "truncated", "traj_ids")
    return {name: getattr(batch, name) for name in names} | {"next_obs": batch.next.obs}


def assert_equal(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    for name in left.keys() & right.keys():
        assert left[name].dtype == right[name].dtype, name
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@backends
@cases
def test_the_first_batch_equals_a_hand_written_loop(backend: Any, case: str) -> None:
    fns, policy = CASES[case]
    with backend(fns(5)) as venv:
        expected = hand_written(venv, policy, steps=60, seed=3)
    with SyncDataCollector(backend(fns(5)), policy, frames_per_batch=300) as collector:
        collector.set_seed(3)
        batch = collector.rollout()
    assert batch.shape == (5, 60)
    assert batch.frames == 300
    assert batch.mask.all()
    assert_equal(arrays(batch), expected)


@backends
@cases
def test_the_data_does_not_depend_on_frames_per_batch(backend: Any, case: str) -> None:
    fns, policy = CASES[case]

    def collect(steps: int) -> dict[str, np.ndarray]:
        with SyncDataCollector(backend(fns(3)), policy, frames_per_batch=3 * steps, total_frames=180) as collector:
            collector.set_seed(7)
            batches = [arrays(batch) for batch in collector]
        return {name: np.concatenate([batch[name] for batch in batches], axis=1) for name in batches[0]}

    whole = collect(60)
    assert whole["terminated"].any() or whole["truncated"].any()
    for steps in (1, 5, 20):
        assert_equal(collect(steps), whole)


@pytest.mark.parametrize("seed", range(40))
def test_a_random_mix_of_episode_lengths_and_batch_sizes_equals_a_hand_written_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, rng.integers(1, 7)).tolist()
    with DummyVectorEnv(countdowns(*lengths)) as venv:
        expected = hand_written(venv, None, steps=60, seed=seed)
    steps = int(rng.choice([1, 2, 3, 4, 6, 10, 20, 60]))
    frames = {"frames_per_batch": steps * len(lengths), "total_frames": 60 * len(lengths)}
    with SyncDataCollector(DummyVectorEnv(countdowns(*lengths)), **frames) as collector:
        collector.set_seed(seed)
        batches = [arrays(batch) for batch in collector]
    assert_equal({name: np.concatenate([batch[name] for batch in batches], axis=1) for name in batches[0]}, expected)


@backends
def test_the_same_seed_gives_the_same_batch_again(backend: Any) -> None:
    with SyncDataCollector(backend(cartpoles(4)), frames_per_batch=100) as collector:
        after = collector.set_seed(11)
        first = arrays(collector.rollout())
        collector.rollout()
        assert collector.set_seed(11) == after
        again = arrays(collector.rollout())
    first.pop("traj_ids")  # these never repeat
    assert_equal(first, again)


@backends
def test_only_environments_that_are_over_are_reset_and_each_once(backend: Any) -> None:
    lengths = (3, 5, 100)
    with SyncDataCollector(backend(countdowns(*lengths)), zeros, frames_per_batch=90) as collector:
        batch = collector.rollout()
    for env, length in enumerate(lengths):
        # The env counts its own resets, so a superfluous one would skip an episode number.
        np.testing.assert_array_equal(batch.obs[env, :, 0], np.arange(30) // length)
        np.testing.assert_array_equal(batch.obs[env, :, 1], np.arange(30) % length)


@backends
def test_the_next_observation_at_an_episodes_end_is_the_true_last_one(backend: Any) -> None:
    with SyncDataCollector(backend(countdowns(4, 6)), zeros, frames_per_batch=20) as collector:
        batches = [collector.rollout() for _ in range(3)]
    seen = np.concatenate([batch.next.obs for batch in batches], axis=1)
    for env, length in enumerate((4, 6)):
        np.testing.assert_array_equal(seen[env, :, 0], np.arange(30) // length)
        np.testing.assert_array_equal(seen[env, :, 1], np.arange(30) % length + 1)
    np.testing.assert_array_equal(batches[0].final_env, [0, 1, 0])
    np.testing.assert_array_equal(batches[0].final_time, [3, 5, 7])
    np.testing.assert_array_equal(batches[0].final_obs, [[0, 4], [0, 6], [1, 4]])


class CountsRounds:
    """A vector env that notes what it is asked for."""

    def __init__(self, venv: Any) -> None:
        self.venv, self.rounds = venv, []

    def __getattr__(self, name: str) -> Any:
        if name in ("step", "send", "reset"):
            self.rounds.append(name)
        return getattr(self.venv, name)


def test_resets_cost_no_rounds_of_their_own() -> None:
    venv = CountsRounds(DummyVectorEnv(countdowns(3, 4, 5, 6)))
    with SyncDataCollector(venv, zeros, frames_per_batch=4 * 60) as collector:
        venv.rounds.clear()
        batch = collector.rollout()
    assert batch.done.sum(1).tolist() == [20, 15, 12, 10]
    assert len(venv.rounds) == 1 + 60 + 19, "the first reset, then as many as env 0 has steps and resets"
    assert venv.rounds.count("reset") == 1 + 1, "the first of all, and one of env 0 when the others were complete"


def test_episode_ids_never_repeat_and_change_with_the_episode() -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=10) as collector:
        ids = np.concatenate([collector.rollout().traj_ids for _ in range(3)], axis=1)
        collector.reset()
        fresh = collector.rollout().traj_ids
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids[0], 2 * (np.arange(15) // 3))
    np.testing.assert_array_equal(ids[1], 2 * (np.arange(15) // 4) + 1)
    assert not np.intersect1d(ids, fresh).size


@backends
def test_dict_and_tuple_observations_keep_their_form(backend: Any) -> None:
    fns = [lambda length=length: DictObs(Countdown(length)) for length in (3, 4)]
    with SyncDataCollector(backend(fns), zeros, frames_per_batch=20) as collector:
        batch = collector.rollout()
    assert batch.obs.keys() == {"a", "b"}
    assert isinstance(batch.obs["b"], tuple)
    np.testing.assert_array_equal(batch.next.obs["a"][0, :, 1], np.arange(10) % 3 + 1)
    np.testing.assert_array_equal(batch.next.obs["b"][0], batch.next.obs["a"] + 1)
    np.testing.assert_array_equal(batch.final_obs["a"][:, 1], [3, 4, 3, 4, 3])


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


def test_the_layout_in_memory_is_time_first() -> None:
    with SyncDataCollector(DummyVectorEnv(countdowns(3, 4)), zeros, frames_per_batch=14) as collector:
        batch = collector.rollout()
    for array in (batch.action, batch.reward, batch.all_obs):
        assert array.swapaxes(0, 1).flags.c_contiguous
    assert repr(batch) == "Rollout(2 environments, 7 steps, 14 frames, 3 episode ends)"


class TestFrames:
    def test_total_frames_that_batches_do_not_divide_is_an_error_with_both_numbers(self) -> None:
        with pytest.raises(ValueError, match=r"total_frames=25 .* frames_per_batch=10; use 30"):
            SyncDataCollector(countdowns(3), zeros, frames_per_batch=10, total_frames=25)

    @pytest.mark.parametrize(("per_batch", "total"), [(0, -1), (-5, -1), (10, 0)])
    def test_numbers_below_one_are_errors(self, per_batch: int, total: int) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            SyncDataCollector(countdowns(3), zeros, frames_per_batch=per_batch, total_frames=total)

    def test_frames_per_batch_is_rounded_up_to_the_environments_with_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="frames_per_batch=10 .* 3 environments: .* 4 steps of each, 12 frames"):
            collector = SyncDataCollector(DummyVectorEnv(countdowns(3, 3, 3)), zeros, frames_per_batch=10)
        with collector:
            assert collector.rollout().frames == 12

    def test_the_iterator_ends_at_total_frames_and_closes_the_environments(self) -> None:
        venv = DummyVectorEnv(countdowns(3, 4))
        collector = SyncDataCollector(venv, zeros, frames_per_batch=10, total_frames=30)
        assert [batch.frames for batch in collector] == [10, 10, 10]
        assert collector.frames == 30
        assert venv.is_closed
        assert list(collector) == []

    def test_next_gives_batches_and_then_none(self) -> None:
        collector = SyncDataCollector(DummyVectorEnv(countdowns(3)), zeros, frames_per_batch=5, total_frames=10)
        frames = [batch.frames if batch else None for batch in (collector.next(), collector.next(), collector.next())]
        assert frames == [5, 5, None]

    def test_a_collector_without_total_frames_has_no_end(self) -> None:
        with SyncDataCollector(DummyVectorEnv(countdowns(3)), zeros, frames_per_batch=5) as collector:
            for batch, _ in zip(collector, range(20), strict=False):
                assert batch.frames == 5


class TestEnvironments:
    def made(self, source: Any, **kwargs: Any) -> int:
        with SyncDataCollector(source, zeros, frames_per_batch=12, **kwargs) as collector:
            assert collector.rollout().frames == 12
            return len(collector.env)

    def test_a_callable_a_list_or_an_environment_will_do(self) -> None:
        assert self.made(lambda: DummyVectorEnv(countdowns(3, 4))) == 2
        assert self.made(countdowns(3, 4, 5)) == 3
        assert self.made(Countdown(3)) == 1
        assert self.made(Countdown, create_env_kwargs={"length": 3}) == 1
        assert self.made([Countdown] * 2, create_env_kwargs={"length": 3}) == 2

    def test_each_callable_is_called_once(self) -> None:
        calls: list[int] = []

        def make() -> gymnasium.Env:
            calls.append(1)
            return Countdown(3)

        self.made(make)
        assert len(calls) == 1
        self.made([make, make])
        assert len(calls) == 3

    def test_kwargs_for_an_environment_that_is_already_made_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="already made"):
            self.made(Countdown(3), create_env_kwargs={"length": 3})

    def test_an_asynchronous_vector_env_is_refused(self) -> None:
        venv = DummyVectorEnv(countdowns(3, 4), wait_num=1)
        with pytest.raises(ValueError, match="wait_num"):
            SyncDataCollector(venv, zeros, frames_per_batch=10)
        assert venv.is_closed

    @backends
    def test_an_error_of_an_environment_is_raised_and_closes_the_collector(self, backend: Any) -> None:
        venv = backend([partial(Countdown, 3), partial(Breaks, 3)])
        collector = SyncDataCollector(venv, zeros, frames_per_batch=10)
        with pytest.raises(OverflowError, match="the env broke"):
            collector.rollout()
        assert venv.is_closed
        with pytest.raises(RuntimeError, match="shut down"):
            collector.rollout()
        collector.shutdown()

    def test_env_device_can_only_be_the_cpu(self) -> None:
        with pytest.raises(ValueError, match="env_device"):
            SyncDataCollector(countdowns(3), zeros, frames_per_batch=10, env_device="cuda")


class TestPolicies:
    def collect(self, policy: Any, steps: int = 8, **kwargs: Any) -> Rollout:
        with SyncDataCollector(
            DummyVectorEnv(countdowns(3, 5)), policy, frames_per_batch=2 * steps, **kwargs
        ) as collector:
            return collector.rollout()

    def test_a_policy_sees_each_observation_once_and_never_a_last_one(self) -> None:
        seen: list[np.ndarray] = []

        def watch(obs: np.ndarray) -> np.ndarray:
            seen.append(obs.copy())
            return np.zeros(len(obs), np.int64)

        batch = self.collect(watch)
        assert sorted(map(tuple, np.concatenate(seen))) == sorted(map(tuple, batch.obs.reshape(-1, 2)))

    def test_a_dict_stores_what_comes_beside_the_action(self) -> None:
        batch = self.collect(lambda obs: {"action": zeros(obs), "value": obs[:, 1] * 0.5})
        assert batch.extras.keys() == {"value"}
        np.testing.assert_array_equal(batch.extras["value"], batch.obs[..., 1] * 0.5)

    def test_actions_reach_their_environments(self) -> None:
        batch = self.collect(lambda obs: (obs[:, 0] + obs[:, 1]) % 3)
        np.testing.assert_array_equal(batch.reward, batch.action)
        np.testing.assert_array_equal(batch.action, batch.obs.sum(-1) % 3)

    @pytest.mark.parametrize(
        ("policy", "error", "message"),
        [
            (lambda obs: np.zeros(7, np.int64), ValueError, r"'action' of shape \(7,\) for 2 observations"),
            (lambda obs: np.int64(0), ValueError, r"'action' of shape \(\) for 2 observations"),
            (lambda obs: {"value": obs}, TypeError, "without 'action'"),
            (lambda obs: {"action": zeros(obs), "v": np.zeros(3)}, ValueError, r"'v' of shape \(3,\)"),
            (
                lambda obs: zeros(obs).astype(np.int64 if obs[0, 1] < 2 else np.float32),
                TypeError,
                "float32.* after .*int64",
            ),
        ],
    )
    def test_what_does_not_fit_is_an_error_that_names_it(self, policy: Any, error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            self.collect(policy)

    def test_an_error_of_the_policy_is_raised_as_it_is(self) -> None:
        with pytest.raises(ZeroDivisionError):
            self.collect(lambda obs: 1 // 0)


class TestTorchPolicies:
    @pytest.fixture(autouse=True)
    def _torch(self) -> Iterator[None]:
        self.torch = pytest.importorskip("torch")
        with self.torch.random.fork_rng():
            yield

    def collect(self, policy: Any, **kwargs: Any) -> Rollout:
        with SyncDataCollector(DummyVectorEnv(cartpoles(4)), policy, frames_per_batch=200, **kwargs) as collector:
            collector.set_seed(0)
            return collector.rollout()

    def test_a_module_gets_tensors_in_inference_mode(self) -> None:
        torch, seen = self.torch, []

        class Lean(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled(), obs.dtype))
                return (obs[:, 2] > 0).long()

        batch = self.collect(Lean())
        assert set(seen) == {(True, False, torch.float32)}
        assert_equal(arrays(batch), arrays(self.collect(lean)))

    def test_a_function_gets_tensors_where_a_policy_device_is_named(self) -> None:
        batch = self.collect(lambda obs: (obs[:, 2] > self.torch.zeros(())).long(), policy_device="cpu")
        assert isinstance(batch.action, np.ndarray)
        assert_equal(arrays(batch), arrays(self.collect(lean)))

    @pytest.mark.parametrize("device", [{"device": "cpu"}, {"storing_device": "cpu"}])
    def test_batches_are_tensors_on_the_storing_device(self, device: dict[str, str]) -> None:
        batch = self.collect(None, **device)
        expected = self.collect(None)
        for name, array in arrays(expected).items():
            tensor = arrays(batch)[name]
            assert isinstance(tensor, self.torch.Tensor)
            np.testing.assert_array_equal(tensor.numpy(), array)
        assert batch.frames == 200

    def test_a_distribution_is_sampled_or_asked_for_its_mode(self) -> None:
        torch = self.torch

        class Sure(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                return torch.distributions.Categorical(logits=torch.stack([obs[:, 2], -obs[:, 2]], 1))

        mode = self.collect(Sure(), exploration_type=ExplorationType.MODE)
        np.testing.assert_array_equal(mode.action, mode.obs[..., 2] < 0)
        torch.manual_seed(0)
        sampled = self.collect(Sure())
        assert 0 < (sampled.action != (sampled.obs[..., 2] < 0)).mean() < 1
        torch.manual_seed(0)
        assert_equal(arrays(sampled), arrays(self.collect(Sure())))

    @pytest.mark.parametrize("fns", [cartpoles(4), pendulums(4)])
    def test_the_mlp_takes_legal_actions(self, fns: Any) -> None:
        from collector import MLPPolicy

        venv = DummyVectorEnv(fns)
        space = venv.action_space[0]
        with SyncDataCollector(venv, MLPPolicy(venv.observation_space[0], space), frames_per_batch=400) as collector:
            actions = collector.rollout().action
        assert actions.dtype == space.dtype
        assert all(space.contains(action) for action in actions.reshape(-1, *space.shape))
        assert len(np.unique(actions)) > 1

    def test_the_mlp_refuses_spaces_that_it_does_not_know(self) -> None:
        from collector import MLPPolicy

        box, text = spaces.Box(-1, 1, (3,)), spaces.Text(5)
        for observation, action in ((text, box), (box, text), (box, spaces.Box(-np.inf, np.inf, (2,)))):
            with pytest.raises(TypeError, match="the MLP policy"):
                MLPPolicy(observation, action)
        policy = MLPPolicy(spaces.Discrete(5, start=2), spaces.Discrete(3, start=-1))
        assert set(policy(self.torch.tensor([2, 6] * 200)).tolist()) == {-1, 0, 1}


def test_an_interrupted_batch_is_masked_and_collection_goes_on_from_there() -> None:
    interruptor = Interruptor()

    def stop_at_step_4(obs: np.ndarray) -> np.ndarray:
        if (obs == (1, 1)).all(-1).any():
            interruptor.stop_collection()
        return zeros(obs)

    venv = DummyVectorEnv(countdowns(2, 50))
    with SyncDataCollector(venv, stop_at_step_4, frames_per_batch=40, interruptor=interruptor) as collector:
        short = collector.rollout()
        assert short.mask.sum(1).tolist() == [4, 5], "env 0 spent one of five rounds on its reset"
        assert short.frames == 9
        assert short.shape == (2, 5)
        assert short.all_obs[0, 4:].tolist() == [[1, 2], [0, 0]], "the last observation, then nothing"
        assert not short.action[~short.mask].any()
        assert not short.done[~short.mask].any()
        assert collector.rollout().frames in (1, 2), "while stopped, a batch is one round"
        interruptor.start_collection()
        rest = collector.rollout()
    assert rest.frames == 40
    assert rest.obs[1, 0].tolist() == [0, 6]


class TestRandomPolicy:
    SPACES = (
        spaces.Discrete(5),
        spaces.Discrete(4, start=-2),
        spaces.Box(-2, 2, (3,), np.float32),
        spaces.Box(np.array([-1, 0, -np.inf]), np.array([1, np.inf, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (2, 2), np.uint8),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(4),
    )

    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_blocks_hold_what_sample_would_give(self, space: Any) -> None:
        space.seed(5)
        expected = np.stack([space.sample() for _ in range(100)])
        space.seed(5)
        drawn = np.concatenate([draw(space, 33), draw(space, 67)])
        assert drawn.dtype == space.dtype
        np.testing.assert_array_equal(drawn, expected)

    def test_each_environment_has_a_stream_of_its_own_whoever_else_is_asked(self) -> None:
        copies = [spaces.Discrete(1000, seed=seed) for seed in range(3)]
        together, apart = RandomPolicy(copies), RandomPolicy(copies)
        expected = np.stack([together(None) for _ in range(600)])
        for env in (2, 0, 1):
            np.testing.assert_array_equal([apart(None, [env])[0] for _ in range(600)], expected[:, env])
        assert copies[0].sample() == expected[0, 0], "the spaces that it was made of are not advanced"

    def test_spaces_that_are_no_arrays_are_refused(self) -> None:
        with pytest.raises(TypeError, match="environment 1"):
            RandomPolicy([spaces.Discrete(2), spaces.Text(3)])
