"""Kinds of policies, and the storage of their outputs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import (
    AsyncDataCollector,
    EpisodeSeeds,
    ExplorationType,
    RandomPolicy,
    Rollout,
    SyncDataCollector,
    set_exploration_type,
)
from collector.policy.policy_call import PolicyCall, choose, signature_of
from collector.policy.random_policy import draw_many
from tests.support.cases import discrete
from tests.support.collector_envs import (
    arrays,
    assert_equal,
    batch_of,
    cartpoles,
    countdowns,
    kinds,
    lean,
    pendulums,
    zeros,
)
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv, nest


def collect(policy: Any, fns: Any = None, **options: Any) -> Rollout:
    return batch_of(DummyVectorEnv(fns or countdowns(3, 5)), policy, 16, **options)


class TestPolicies:
    def test_a_policy_sees_each_observation_once_and_never_a_last_one(self) -> None:
        seen: list[np.ndarray] = []

        def watch(obs: np.ndarray) -> np.ndarray:
            seen.append(obs.copy())
            return np.zeros(len(obs), np.int64)

        batch = collect(watch)
        assert sorted(map(tuple, np.concatenate(seen))) == sorted(map(tuple, batch.obs.reshape(-1, 2)))

    def test_actions_reach_their_envs_and_what_comes_beside_them_is_stored(self) -> None:
        batch = collect(lambda obs: {"action": (obs[:, 0] + obs[:, 1]) % 3, "value": obs[:, 1] * 0.5})
        np.testing.assert_array_equal(batch.reward, batch.action)
        np.testing.assert_array_equal(batch.action, batch.obs.sum(-1) % 3)
        assert batch.extras.keys() == {"value"}
        np.testing.assert_array_equal(batch.extras["value"], batch.obs[..., 1] * 0.5)

    @pytest.mark.parametrize(
        ("policy", "error", "message"),
        [
            (lambda obs: 1 // 0, ZeroDivisionError, "division"),
            (lambda obs: {"action": zeros(obs), 7: zeros(obs)}, TypeError, "the key 7; all keys must be strings"),
            (lambda obs: np.zeros((2, 1, 1), np.int64), ValueError, r"\(2, 1, 1\); .* must be \(2,\)"),
            (lambda obs: np.zeros(2, np.float32), TypeError, "dtype float32; .* must be int64"),
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
            collect(policy)


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

    def test_a_module_gets_tensors_without_gradients(self) -> None:
        torch, seen = self.torch, []

        class Lean(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled(), obs.dtype))
                return (obs[:, 2] > 0).long()

        batch = self.collect(Lean())
        assert set(seen) == {(False, False, torch.float32)}
        assert_equal(arrays(batch), arrays(self.collect(lean)))

    def test_a_lazy_module_can_be_trained_after_a_collection(self) -> None:
        torch = self.torch
        policy = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Tanh(), torch.nn.LazyLinear(2))

        class Acts(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = policy

            def forward(self, obs: Any) -> Any:
                return self.net(obs.float()).argmax(-1)

        with SyncDataCollector(DummyVectorEnv(cartpoles(4)), Acts(), frames_per_batch=200) as collector:
            batch = collector.rollout()
            assert (collector.rollout().policy_version == 0).all(), "parameters that were made are no update"
        policy(torch.as_tensor(batch.obs).float()).sum().backward()
        assert all(weight.grad is not None for weight in policy.parameters())

    @pytest.mark.parametrize(
        ("kind", "options"),
        [(SyncDataCollector, {}), (AsyncDataCollector, {}), (SyncDataCollector, {"episode_seeds": EpisodeSeeds(0)})],
    )
    def test_tensors_that_a_module_makes_in_a_call_can_be_trained_with(self, kind: Any, options: Any) -> None:
        torch = self.torch

        class Caches(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net, self.scale = torch.nn.Linear(4, 2), None
                self.register_buffer("mean", torch.zeros(4))

            def forward(self, obs: Any) -> Any:
                if self.scale is None:
                    self.scale = torch.full((2,), 2.0)
                self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
                return {"action": (logits := self.net(obs - self.mean) * self.scale).argmax(-1), "logits": logits}

        policy = Caches()
        with kind(DummyVectorEnv(cartpoles(4)), policy, frames_per_batch=20, storing_device="cpu", **options) as one:
            batch = one.rollout().flatten()
            policy(batch.obs)["logits"].sum().backward()
            policy.mean.mul_(0.5)
            one.update_policy_weights_(copy.deepcopy(policy))
            one.rollout()

    @kinds
    @pytest.mark.parametrize("wanted", [ExplorationType.MEAN, ExplorationType.MODE])
    def test_what_a_distribution_stands_for_depends_on_the_exploration_type(self, kind: type, wanted: Any) -> None:
        torch = self.torch

        class Push(torch.nn.Module):
            def forward(self, obs: Any) -> Any:
                return torch.distributions.Independent(torch.distributions.Normal(obs[:, :1], 0.5), 1)

        batch = batch_of(DummyVectorEnv(pendulums(2)), Push(), 26, kind, exploration_type=wanted).flatten()
        np.testing.assert_array_equal(batch.action, batch.obs[:, :1])

    def test_the_action_of_a_distribution_is_a_sample_or_its_mode(self) -> None:
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
    def test_the_mlp_takes_legal_actions_at_random_or_the_likeliest(self, fns: Any) -> None:
        from collector import MLPPolicy

        self.torch.manual_seed(0)
        venv = DummyVectorEnv(fns)
        space = venv.action_space[0]
        policy = MLPPolicy(venv.observation_space[0], space)
        with SyncDataCollector(venv, policy, frames_per_batch=400) as collector:
            actions = collector.rollout().action
            with set_exploration_type(ExplorationType.MODE):
                batch = collector.rollout()
        assert actions.dtype == space.dtype
        assert all(space.contains(action) for action in actions.reshape(-1, *space.shape))
        assert len(np.unique(actions)) > 1
        with self.torch.no_grad():
            likeliest = policy(self.torch.from_numpy(batch.obs.reshape(-1, *batch.obs.shape[2:]))).mode.numpy()
        np.testing.assert_allclose(batch.action.reshape(likeliest.shape), likeliest, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("observations", [spaces.Discrete(5), spaces.Box(0, 255, (3,), np.uint8)])
    def test_the_mlp_computes_in_the_type_of_its_weights(self, observations: Any) -> None:
        from collector import MLPPolicy

        obs = self.torch.as_tensor(np.stack([observations.sample() for _ in range(4)]))
        policy = MLPPolicy(observations, spaces.Discrete(3))
        assert policy(obs).logits.dtype == self.torch.float32
        assert policy.double()(obs).logits.dtype == self.torch.float64

    def test_the_mlp_refuses_spaces_that_it_does_not_know(self) -> None:
        from collector import MLPPolicy

        box, text = spaces.Box(-1, 1, (3,)), spaces.Text(5)
        for observation, action in ((text, box), (box, text), (box, spaces.Box(-np.inf, np.inf, (2,)))):
            with pytest.raises(TypeError, match="the MLP policy"):
                MLPPolicy(observation, action)
        policy = MLPPolicy(spaces.Discrete(5, start=2), spaces.Discrete(3, start=-1))
        assert set(policy(self.torch.tensor([2, 6] * 200)).sample().tolist()) == {-1, 0, 1}


class TestFasterPolicies:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("name", ["compile_policy", "cudagraph_policy"])
    def test_policies_on_arrays_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="are for policies on tensors"):
            SyncDataCollector(cartpoles(1), lean, frames_per_batch=10, **{name: True})

    @pytest.mark.parametrize("option", [True, {"warmup": 1}, {}])
    def test_graphs_need_a_cuda_device(self, option: Any) -> None:
        message = "cudagraph_policy needs the policy on a CUDA device, and it is on cpu: pass policy_device"
        with pytest.raises(ValueError, match=message):
            SyncDataCollector(cartpoles(1), self.torch.nn.Identity(), frames_per_batch=10, cudagraph_policy=option)

    def test_compile_policy_is_torch_compile_with_the_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch, seen = self.torch, []

        def compile(policy: Any, **options: Any) -> Any:
            seen.append((policy, options))
            return policy

        monkeypatch.setattr(torch, "compile", compile)

        def policy(obs: Any) -> Any:
            return (obs[:, 2] > 0).long()

        for option in (True, {"mode": "default", "dynamic": False}):
            assert batch_of(cartpoles(2), policy, 8, compile_policy=option, policy_device="cpu").frames == 8
        assert seen == [(policy, {}), (policy, {"mode": "default", "dynamic": False})]

    @pytest.mark.parametrize("form", ["distribution", "state", "tensordict"])
    def test_graphs_are_those_of_tensordict_in_rounds_of_all_rows(
        self, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each exploration type has a graph, which returns only tensors. Rounds with fewer rows use no graph."""
        torch, made = self.torch, []
        nn = pytest.importorskip("tensordict.nn")

        class Graph:
            def __init__(self, policy: Any, **options: Any) -> None:
                self.policy, self.options, self.sizes = policy, options, []
                made.append(self)

            def __call__(self, *args: Any, **named: Any) -> Any:
                self.sizes.append(len(args[0]))
                output = self.policy(*args, **named)
                if form != "tensordict":
                    assert {type(each) for each in output.values()} == {torch.Tensor}
                return output

        monkeypatch.setattr(nn, "CudaGraphModule", Graph)
        policies = {
            "distribution": lambda obs: torch.distributions.Categorical(logits=torch.stack([obs[:, 2], -obs[:, 2]], 1)),
            "state": lambda obs, state: ((obs[:, 2] < 0).long(), torch.zeros(len(obs)) if state is None else state),
            "tensordict": nn.TensorDictModule(lambda x: (x[:, 2] < 0).long(), ["observation"], ["action"]),
        }
        policy, space = policies[form], spaces.Box(-9, 9, (4,))
        call = PolicyCall(policy, signature_of(policy, space), 4, ExplorationType.MODE, cudagraph={"warmup": 1})
        obs = torch.randn(4, 4)
        for k, wanted in ((4, "mode"), (3, "mode"), (4, "mode"), (4, "random"), (4, "mode")):
            call.exploration = ExplorationType(wanted)
            rows = call.rows_of(np.arange(k))
            rows = tuple(map(torch.from_numpy, rows)) if call.wants_rows else ()
            action = call((obs[:k], rows, {}) if call.wants_rows else obs[:k])["action"]
            assert action.shape == (k,)
            if wanted == "mode":
                assert torch.equal(action, (obs[:k, 2] < 0).long())
        assert [graph.sizes for graph in made] == [[4, 4, 4], [4]]
        assert [graph.options for graph in made] == [{"warmup": 1}] * 2

    def test_without_tensordict_graphs_are_an_import_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tensordict.nn", None)
        with pytest.raises(ImportError, match="cudagraph_policy needs tensordict: pip install"):
            PolicyCall(lean, signature_of(lean, None), 4, ExplorationType.MODE, cudagraph={})

    @pytest.mark.parametrize(
        ("name", "is_normal"),
        [("LogNormal", True), ("Independent", True), ("Tanh", True), ("Categorical", False)],
    )
    def test_samples_are_torchs_and_those_of_normals_wait_for_no_value(self, name: str, is_normal: bool) -> None:
        """Reading a value on the host would wait for the device, and end the recording of a graph."""
        torch, made = self.torch, self.torch.distributions
        loc, scale = torch.randn(8, 4).requires_grad_(), torch.full((8, 4), 0.5)
        normal = made.Independent(made.Normal(loc, scale), 1)
        distribution = {
            "LogNormal": lambda: made.LogNormal(loc, scale),
            "Independent": lambda: normal,
            "Tanh": lambda: made.TransformedDistribution(normal, [made.TanhTransform()]),
            "Categorical": lambda: made.Categorical(logits=loc),
        }[name]()
        torch.manual_seed(3)
        with torch.profiler.profile() as profile:
            drawn = choose(distribution, ExplorationType.RANDOM)
        torch.manual_seed(3)
        assert torch.equal(drawn, distribution.sample())
        assert not drawn.requires_grad
        names = {event.name for event in profile.events()}
        assert ("aten::normal_" in names) == is_normal
        assert not is_normal or names.isdisjoint({"aten::item", "aten::_local_scalar_dense"})


class TestSignatures:
    """The names of a policy's parameters decide which arguments the policy gets."""

    def collect(self, policy: Any) -> Rollout:
        return collect(policy, [lambda length=length: DictObs(Countdown(length)) for length in (3, 5)])

    def test_entries_of_a_dict_by_name(self) -> None:
        batch = self.collect(lambda a, b: {"action": zeros(a), "sum": a[:, 1] + b[0][:, 1]})
        np.testing.assert_array_equal(batch.extras["sum"], 2 * batch.obs["a"][..., 1] + 1)

    def test_one_other_parameter_gets_the_whole(self) -> None:
        batch = self.collect(lambda obs: (zeros(obs["a"]), obs["a"][:, 1]))
        np.testing.assert_array_equal(batch.extras["output1"], batch.obs["a"][..., 1])

    @pytest.mark.parametrize(
        "policy",
        [
            lambda state: zeros(state) + state[:, 1] // 9,
            lambda state, b: zeros(state) + b[0][:, 1] // 9,
            lambda b, state: zeros(state) + b[0][:, 1] // 9,
            lambda b, state, env_id: zeros(state) + env_id[:, 1] // 9,
        ],
    )
    def test_an_entry_called_state_or_env_id_is_an_entry(self, policy: Any) -> None:
        class Renamed(gymnasium.ObservationWrapper):
            def __init__(self, env: Any) -> None:
                super().__init__(env)
                inner = env.observation_space.spaces
                names = {"state": inner["a"], "env_id": inner["a"], "b": inner["b"]}
                self.observation_space = spaces.Dict(names)

            def observation(self, observation: Any) -> Any:
                return {"state": observation["a"], "env_id": observation["a"], "b": observation["b"]}

        assert (collect(policy, [lambda: Renamed(DictObs(Countdown(3)))] * 2).action == 0).all()

    def test_parameters_that_are_no_entries_are_an_error(self) -> None:
        with pytest.raises(TypeError, match=r"parameters of the policy are incompatible .*\['a', 'c'\].*\['a', 'b'\]"):
            self.collect(lambda a, c: zeros(a))

    def test_env_id_holds_the_envs_of_the_rows(self) -> None:
        batch = self.collect(lambda obs, env_id: {"action": zeros(obs["a"]), "id": env_id})
        np.testing.assert_array_equal(batch.extras["id"], [[0] * 8, [1] * 8])

    def test_what_has_no_signature_gets_the_observations(self) -> None:
        message = r"'action' of shape \(1, 2\); for the action space it must be \(1,\)"
        with pytest.raises(ValueError, match=message):
            collect(np.copy, countdowns(3))


class TestRecurrentPolicies:
    """`state` is passed from step to step, and is initial at the start of each episode."""

    LENGTHS = (2, 3, 7)

    def check(self, policy: Any, kind: type = SyncDataCollector, **options: Any) -> None:
        with kind(DummyVectorEnv(countdowns(*self.LENGTHS)), policy, frames_per_batch=12, **options) as collector:
            batches = [collector.rollout().flatten() for _ in range(4)]
            collector.reset([1])
            batches.append(collector.rollout().flatten())
            batches.append(collector.collect(n_episode=4).batch)
        for batch in batches:
            np.testing.assert_array_equal(batch.extras["seen"], batch.step_count + getattr(policy, "first", 0))

    @kinds
    @pytest.mark.parametrize("default", [False, True])
    def test_zeros_at_first(self, kind: type, default: bool) -> None:
        def count(obs: np.ndarray, state: np.ndarray | None) -> dict[str, np.ndarray]:
            state = np.zeros((len(obs), 1), np.int64) if state is None else state
            return {"action": zeros(obs), "seen": state[:, 0], "state": state + 1}

        def optional(obs: np.ndarray, state: np.ndarray | None = None) -> dict[str, np.ndarray]:
            return count(obs, state)

        self.check(optional if default else count, kind)

    @kinds
    def test_none_shows_the_shape_and_all_that_is_recorded_began_with_zeros(self, kind: type) -> None:
        torch = pytest.importorskip("torch")
        seen: list[Any] = []

        def count(obs: np.ndarray, state: Any) -> Any:
            seen.append(None if state is None else state[1].shape)
            torch.rand(3), np.random.rand(3)
            h, c = (np.full((len(obs), 2), 9), np.full((len(obs), 1), 9)) if state is None else state
            return {"action": zeros(obs), "seen": c[:, 0], "state": (h, c + 1)}

        torch.manual_seed(0)
        np.random.seed(0)
        self.check(count, kind)
        calls = len(seen) - 1
        assert seen[0] is None
        assert None not in seen[1:]
        after = torch.rand(1), np.random.rand()
        torch.manual_seed(0)
        np.random.seed(0)
        for _ in range(calls):
            torch.rand(3), np.random.rand(3)
        assert after == (torch.rand(1), np.random.rand()), "the first call has drawn nothing"

    def test_a_policy_that_cannot_begin_with_none_is_told_what_to_do(self) -> None:
        def unpacks(obs: np.ndarray, state: Any) -> Any:
            h, c = state
            return zeros(obs), (h, c)

        with pytest.raises(TypeError, match="cannot unpack") as caught:
            collect(unpacks)
        assert any("initial_state(k) that returns the state of k rows" in note for note in caught.value.__notes__)
        unpacks.initial_state = lambda k: (np.zeros((k, 1)), np.zeros((k, 1)))  # type: ignore[attr-defined]
        assert collect(unpacks).frames == 16

    @pytest.mark.parametrize("form", [lambda action: (action, None), lambda action: {"action": action, "state": None}])
    def test_no_state_at_all(self, form: Any) -> None:
        """As `predict` of SB3's models."""

        def predict(observation: Any, state: Any = None, episode_start: Any = None, deterministic: Any = False) -> Any:
            assert state is None
            return form(zeros(observation) + 1)

        assert (collect(predict).action == 1).all()

    @pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # torch's advice to upgrade Python
    @kinds
    def test_a_module_with_an_initial_state(self, kind: type) -> None:
        torch = pytest.importorskip("torch")

        class Counts(torch.nn.Module):
            first = 5

            def initial_state(self, k: int) -> Any:
                return (torch.full((k,), self.first), {"hidden": torch.zeros(k, 2)})

            def forward(self, obs: Any, state: Any) -> Any:
                n, deep = state
                assert deep["hidden"].shape == (len(obs), 2)
                assert (deep["hidden"] == (n - self.first)[:, None]).all()
                after = (n + 1, {"hidden": deep["hidden"] + 1})
                return {"action": torch.zeros(len(obs), dtype=torch.long), "seen": n, "state": after}

        self.check(Counts(), kind)
        wrapped = torch.nn.DataParallel(torch.compile(Counts(), backend="eager"))
        wrapped.first = Counts.first
        self.check(wrapped, kind)

    @pytest.mark.parametrize(
        ("output", "error", "message"),
        [
            (lambda obs: zeros(obs), TypeError, "a dict with 'action' and 'state', .* got ndarray"),
            (lambda obs: {"action": zeros(obs)}, TypeError, "'action' and 'state'"),
            (lambda obs: (zeros(obs), np.zeros((7, 2))), ValueError, r"'state' of shape \(7, 2\) for 3 observations"),
            (
                lambda obs: (zeros(obs), np.zeros((4, 3, 8))),
                ValueError,
                r"its first dimension must be 3: torch's recurrent layers have the rows second, so transpose\(0, 1\)",
            ),
            (lambda obs: (zeros(obs), [zeros(obs)]), TypeError, "the policy returned 'state' as list; it must be an"),
            (lambda obs: (zeros(obs), 3), TypeError, "the policy returned 'state' as int"),
        ],
    )
    def test_a_state_that_does_not_fit_is_an_error(self, output: Any, error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            batch_of(countdowns(*self.LENGTHS), lambda obs, state: output(obs), 12)

    @pytest.mark.parametrize(
        ("first", "then", "message"),
        [
            (
                np.zeros(3, np.int64),
                np.full(3, 0.5),
                r"dtype\('float64'\)\) .* after \(\(\), dtype\('int64'\)\) before",
            ),
            (np.zeros((3, 3)), np.arange(3.0), r"\(\(\), .* after \(\(3,\)"),
            ({"a": np.zeros(3)}, {"a": np.ones(3), "b": np.ones(3)}, "'b'"),
            ((np.zeros(3), np.zeros(3)), (np.zeros(3),), "after"),
        ],
    )
    @pytest.mark.parametrize("as_tensors", [False, True])
    def test_a_state_that_would_change_when_it_is_stored_is_an_error(
        self, first: Any, then: Any, message: str, as_tensors: bool
    ) -> None:
        if as_tensors:
            torch = pytest.importorskip("torch")
            first, then = nest.map(torch.from_numpy, first), nest.map(torch.from_numpy, then)
            message = message.replace(r"dtype\('float64'\)", "torch.float64").replace(
                r"dtype\('int64'\)", "torch.int64"
            )

        def policy(obs: np.ndarray, state: Any) -> Any:
            return zeros(obs), then

        policy.initial_state = lambda k: first  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match=f"the policy returned 'state' as .*{message}"):
            batch_of(countdowns(*self.LENGTHS), policy, 12)

    @pytest.mark.parametrize(
        ("first", "error", "message"),
        [
            (lambda k: [0] * k, TypeError, "initial_state returned 'state' as list"),
            (lambda k: np.zeros((1, 2)), ValueError, r"initial_state returned 'state' of shape \(1, 2\) for 3 observ"),
        ],
    )
    def test_an_initial_state_that_does_not_fit_is_an_error(self, first: Any, error: type, message: str) -> None:
        def policy(obs: np.ndarray, state: Any) -> Any:
            return zeros(obs), state

        policy.initial_state = first  # type: ignore[attr-defined]
        with pytest.raises(error, match=message):
            batch_of(countdowns(*self.LENGTHS), policy, 12)


class TestWhatDoesNotFit:
    def test_an_action_that_a_box_does_not_have_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"\(2, 3\); .* must be \(2, 1\)"):
            collect(lambda obs: np.zeros((2, 3), np.float32), pendulums(2))
        with pytest.raises(TypeError, match="must be float32"):
            collect(lambda obs: np.array([["a"], ["b"]]), pendulums(2))

    @pytest.mark.parametrize("rows", [1, 3])
    @kinds
    def test_extras_of_a_later_round_are_looked_at_too(self, kind: type, rows: int) -> None:
        calls = []

        def policy(obs: np.ndarray) -> dict[str, np.ndarray]:
            calls.append(len(obs))
            return {"action": zeros(obs), "value": np.zeros(len(obs) if len(calls) < 4 else rows)}

        message = rf"'value' of shape \({rows},\) for 2 observations; it must be \(2, ...\)"
        venv = DummyVectorEnv(countdowns(9, 9, 9, 9)[: 2 if kind is SyncDataCollector else 4])
        with pytest.raises(ValueError, match=message):
            batch_of(venv, policy, 40, kind)

    def test_what_fits_is_stored_as_the_env_gets_it(self) -> None:
        batch = collect(lambda obs: zeros(obs).astype(np.int32)[:, None])
        assert batch.action.dtype == np.int64
        assert batch.action.shape == (2, 8)
        batch = collect(lambda obs: np.zeros(len(obs)), pendulums(2))
        assert batch.action.dtype == np.float32
        assert batch.action.shape == (2, 8, 1)

    def test_another_device_is_named_in_a_later_call_too(self) -> None:
        torch = pytest.importorskip("torch")
        calls = []

        def policy(obs: Any) -> Any:
            calls.append(1)
            return {"action": torch.zeros(len(obs)).long(), "v": obs.to("cpu" if len(calls) < 3 else "meta")}

        with pytest.raises(ValueError, match="returned 'v' on meta; it must be on cpu"):
            collect(policy, policy_device="cpu")
        assert len(calls) == 3

    @pytest.mark.parametrize("options", [{"policy_device": "cpu"}, {"device": "cpu"}])
    def test_a_policy_on_tensors_may_return_arrays(self, options: dict[str, str]) -> None:
        pytest.importorskip("torch")

        def policy(obs: Any) -> Any:
            return {"action": zeros(obs.numpy()), "v": obs.numpy()[:, 1], "n": [np.float32(3)] * len(obs)}

        batch = collect(policy, **options)
        np.testing.assert_array_equal(batch.extras["v"], batch.obs[..., 1])
        assert (np.asarray(batch.extras["n"]) == 3).all()

    @pytest.mark.parametrize("options", [{}, {"policy_device": "cpu"}])
    def test_bfloat16_is_stored_and_done_as_float32(self, options: dict[str, str]) -> None:
        torch = pytest.importorskip("torch")

        def policy(obs: Any) -> Any:
            third = torch.full((len(obs), 1), 1 / 3, dtype=torch.bfloat16)
            return {"action": third, "v": third}

        batch = collect(policy, pendulums(2), **options)
        for rows in (batch.action, batch.extras["v"]):
            assert rows.dtype == np.float32
            assert (rows == torch.tensor(1 / 3, dtype=torch.bfloat16).item()).all()
        with pytest.raises(TypeError, match=r"returned 'action' of dtype float32; .* it must be int64"):
            collect(policy, **options)

    @pytest.mark.parametrize("options", [{}, {"policy_device": "cpu"}])
    def test_what_is_stored_has_no_gradient(self, options: dict[str, str]) -> None:
        torch = pytest.importorskip("torch")
        weight, states = torch.ones(1, requires_grad=True), []

        def policy(obs: Any, state: Any) -> Any:
            with torch.inference_mode(False), torch.enable_grad():
                ones = weight * torch.ones(len(obs), 1)
                assert ones.requires_grad
            states.append(state)
            return {"action": ones, "v": ones * 2, "state": ones * 3}

        batch = collect(policy, pendulums(2), **options)
        assert (batch.action == 1).all()
        assert (batch.extras["v"] == 2).all()
        assert not any(state.requires_grad for state in states[1:])

    @pytest.mark.parametrize("options", [{}, {"policy_device": "cpu"}])
    def test_a_list_has_a_tensor_per_row(self, options: dict[str, str]) -> None:
        torch = pytest.importorskip("torch")
        weight = torch.full((1,), 0.5, requires_grad=True)

        def policy(obs: Any) -> Any:
            return {"action": [weight * 2 for _ in obs], "v": [weight.sum() for _ in obs], "b": [weight.bfloat16()] * 2}

        batch = collect(policy, pendulums(2), **options)
        assert (batch.action == 1).all()
        assert batch.extras["v"].tolist() == [[0.5] * 8] * 2
        assert batch.extras["b"].shape == (2, 8, 1)

    def test_a_distribution_without_a_mode_is_named(self) -> None:
        torch = pytest.importorskip("torch")

        def policy(obs: Any) -> Any:
            base = torch.distributions.Normal(torch.zeros(len(obs), 1), 1.0)
            return torch.distributions.TransformedDistribution(base, torch.distributions.TanhTransform())

        for kind in (ExplorationType.MODE, ExplorationType.MEAN):
            with pytest.raises(ValueError, match=f"TransformedDistribution has no {kind.value}"):
                collect(policy, pendulums(2), policy_device="cpu", exploration_type=kind)
        assert abs(collect(policy, pendulums(2), policy_device="cpu").action).max() < 1

    def test_policies_that_take_tensordicts(self) -> None:
        torch = pytest.importorskip("torch")
        nn = pytest.importorskip("tensordict.nn")
        module = nn.TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
        batch = collect(module, pendulums(2))
        np.testing.assert_allclose(
            batch.action, module.module(torch.from_numpy(batch.obs.copy())).detach(), rtol=1e-5, atol=1e-6
        )

        def on_arrays(td: Any) -> Any:
            return td.set("action", (td["observation"][:, 2:] > 0).float())

        batch = collect(on_arrays, pendulums(2))
        np.testing.assert_array_equal(batch.action, batch.obs[..., 2:] > 0)

    @pytest.mark.parametrize(
        ("name", "form", "as_module"),
        [
            ("TensorDict", "the class", False),
            ("TensorDictBase", "the class", True),
            ("TensorDictBase", "{}", False),
            ("TensorDict", "tensordict.{}", True),
            ("TensorDict", "'{}'", False),
        ],
    )
    def test_what_is_annotated_as_a_tensordict_is_one(self, name: str, form: str, as_module: bool) -> None:
        torch, tensordict = pytest.importorskip("torch"), pytest.importorskip("tensordict")

        def act(batch: Any, scale: float = 1.0) -> Any:
            return batch.set("action", (batch["observation"][:, 2:] > 0).float() * scale)

        class Act(torch.nn.Module):
            def forward(self, batch: Any = None) -> Any:
                return act(batch)

        annotated = Act.forward if as_module else act
        annotated.__annotations__["batch"] = getattr(tensordict, name) if form == "the class" else form.format(name)
        batch = collect(Act() if as_module else act, pendulums(2))
        np.testing.assert_array_equal(batch.action, batch.obs[..., 2:] > 0)


class TestRandomPolicy:
    SPACES = (
        spaces.Discrete(5),
        spaces.Discrete(4, start=-2),
        *(discrete(5, dtype) for dtype in (np.int8, np.uint8, np.int16, np.int32, np.uint64)),
        spaces.Box(-2, 2, (3,), np.float32),
        spaces.Box(np.array([-1, 0, -np.inf]), np.array([1, np.inf, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (2, 2), np.uint8),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(4),
    )

    def test_blocks_hold_what_sample_would_give(self) -> None:
        for space in self.SPACES:
            space.seed(5)
            expected = np.stack([space.sample() for _ in range(100)])
            space.seed(5)
            drawn = np.concatenate([draw_many(space, 33), draw_many(space, 67)])
            assert drawn.dtype == space.dtype
            np.testing.assert_array_equal(drawn, expected, err_msg=str(space))

    @pytest.mark.parametrize(
        "pair",
        [
            (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,))),
            (spaces.Box(-1, 1, ()), spaces.Discrete(2)),
            (spaces.MultiDiscrete([2]), spaces.MultiDiscrete([2], dtype=np.int32)),
        ],
    )
    def test_spaces_of_other_shapes_are_refused(self, pair: Any) -> None:
        with pytest.raises(TypeError, match="need spaces of one shape and dtype; env 2 has"):
            RandomPolicy([pair[0], *pair])
        with pytest.raises(TypeError, match="env 1"):
            RandomPolicy([pair[0], spaces.Text(3)])

    def test_each_env_has_a_stream_of_its_own(self) -> None:
        copies = [spaces.Discrete(1000, seed=seed) for seed in range(3)]
        together, apart = RandomPolicy(copies), RandomPolicy(copies)
        expected = np.stack([together(None) for _ in range(600)])
        for env in (2, 0, 1):
            np.testing.assert_array_equal([apart(None, [env])[0] for _ in range(600)], expected[:, env])
        assert copies[0].sample() == expected[0, 0], "the spaces that it was made of are not advanced"

    def test_an_episode_has_the_actions_of_its_seed_whatever_the_other_envs_do(self) -> None:
        """Neither the order of the envs nor masks in some steps change the other actions."""
        space, mask = spaces.Discrete(1000), np.eye(1000, dtype=np.int8)[7]

        def play(order: list[int]) -> dict[int, list[int]]:
            policy = RandomPolicy([space] * 3)
            policy(None)
            policy.seed(np.array([0, 1, 2]), [5, 6, 7])
            found: dict[int, list[int]] = {0: [], 1: [], 2: []}
            for env in order:
                masks = [mask if env == 1 and len(found[env]) % 5 == 4 else None]
                found[env].append(policy(None, [env], masks)[0])
            return found

        found = play([0, 1, 2] * 300)
        assert found == play([0] * 300 + [1] * 300 + [2] * 300)
        for env in (0, 2):
            space.seed(5 + env)
            assert found[env] == [space.sample() for _ in range(300)]
        assert found[1][4::5] == [7] * 60

    def test_masks_leave_what_they_allow(self) -> None:
        """Masks have the forms of `space.sample`. Leaves of Dict and Tuple spaces may lack a mask."""
        discrete = RandomPolicy([spaces.Discrete(5, start=1, seed=seed) for seed in range(200)])
        legal = np.array([0, 1, 0, 1, 1], np.int8)
        for found in (
            discrete({"action_mask": np.tile(legal, (200, 1))}),
            discrete({"mask": np.tile(legal.astype(bool), (200, 1))}),
            discrete({"action_mask": np.ones((200, 5))}, masks=[legal] * 200),
        ):
            assert set(found.tolist()) == {2, 4, 5}
            assert np.bincount(found)[[2, 4, 5]].min() > 30
        assert discrete({"action_mask": np.zeros((200, 5))}).tolist() == [1] * 200  # as gymnasium does
        assert set(discrete({"mask": np.zeros((200, 84, 84))}).tolist()) == {1, 2, 3, 4, 5}, "which is something else"
        parts = (np.array([0, 1], np.int8), np.array([1, 0, 1], np.int8))
        multi = RandomPolicy([spaces.MultiDiscrete([2, 3], seed=seed) for seed in range(200)])
        for actions in (
            multi(None, masks=[parts] * 200),
            multi({"action_mask": np.tile(np.concatenate(parts), (200, 1))}),
            multi({"action_mask": tuple(np.tile(part, (200, 1)) for part in parts)}),
        ):
            assert {tuple(row) for row in actions.tolist()} == {(1, 0), (1, 2)}
        binary = RandomPolicy([spaces.MultiBinary(3, seed=seed) for seed in range(200)])(None, masks=[[0, 1, 2]] * 200)
        assert {tuple(row) for row in binary.tolist()} == {(0, 1, 0), (0, 1, 1)}
        tree = spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple((spaces.Box(0, 1, (1,)),))}, seed=0)
        drawn = [RandomPolicy([tree])(None, masks=[{"b": np.array([0, 0, 1])}]) for _ in range(3)]
        assert all(each["b"].tolist() == [2] and each["a"][0].shape == (1, 1) for each in drawn)

    @pytest.mark.parametrize(
        ("space", "mask"),
        [
            (spaces.Discrete(3), np.ones(4, np.int8)),
            (spaces.Discrete(3), np.array(["a"] * 3)),
            (spaces.MultiDiscrete([2, 3]), np.ones(6, np.int8)),
            (spaces.MultiDiscrete([2, 3]), (np.ones(2, np.int8),)),
            (spaces.MultiBinary(3), np.ones(2, np.int8)),
            (spaces.Box(0, 1, (2,)), np.ones(2, np.int8)),
            (spaces.Dict({"b": spaces.Discrete(3)}), np.ones(2, np.int8)),
            (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3))), (np.ones(3, np.int8),)),
        ],
    )
    def test_masks_that_do_not_fit_are_refused(self, space: Any, mask: Any) -> None:
        with pytest.raises(ValueError, match=r"an action mask does not fit [\s\S]* MultiDiscrete: one flat array"):
            RandomPolicy([space])(None, masks=[mask])
