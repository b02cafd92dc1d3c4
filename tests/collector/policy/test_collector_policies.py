"""Kinds of policies: each gets the observations in its form, and its actions reach the envs and the batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import (
    ExplorationType,
    MLPPolicy,
    SyncDataCollector,
    set_exploration_type,
)
from tests.support.backends import FULL
from tests.support.collector_envs import COLLECTORS, batch_of, cartpoles, countdowns, kinds, pendulums, zeros
from tests.support.countdown import Countdown, DictObs
from vecenv import DummyVectorEnv

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")
tensordict_nn = pytest.importorskip("tensordict.nn")
LENGTHS = (2, 3, 7)


@pytest.fixture(autouse=True)
def own_generator() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


# Each of the policies below acts by the same rule. On `Countdown`, the reward is the action.


def rule(obs: Any) -> Any:
    """Return the episode plus the step, modulo 3."""
    return obs.sum(-1) % 3


class Renamed(gymnasium.ObservationWrapper):
    """Env whose observation has entries with the names of other arguments of policies."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = env.observation_space.spaces
        self.observation_space = spaces.Dict({"state": inner["a"], "env_id": inner["a"], "b": inner["b"]})

    def observation(self, observation: Any) -> Any:
        return {"state": observation["a"], "env_id": observation["a"], "b": observation["b"]}


def dicts(length: int) -> Any:
    return DictObs(Countdown(length))


def renamed(length: int) -> Any:
    return Renamed(dicts(length))


def with_value(obs: Any) -> Any:
    return {"action": rule(obs), "value": obs[:, 1] * 0.5}


def by_name(td: Any) -> Any:
    return td.set("action", rule(td["observation"]))


def annotated(kind: Any) -> Any:
    def act(batch: Any, scale: int = 1) -> Any:
        return by_name(batch)

    act.__annotations__["batch"] = kind
    return act


class Module(torch.nn.Module):
    def forward(self, obs: Any) -> Any:
        # In inference mode, a learner could not use tensors that the policy keeps.
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
        return rule(obs)


def categorical(obs: Any) -> Any:
    return torch.distributions.Categorical(logits=50.0 * torch.nn.functional.one_hot(rule(obs), 3))


def with_gradient(obs: Any, state: Any) -> Any:
    assert state is None or not state.requires_grad
    with torch.enable_grad():
        ones = torch.ones(1, requires_grad=True) * torch.ones(len(obs), 1)
    return {"action": rule(obs), "value": obs[:, 1] * 0.5 * ones[:, 0], "state": ones}


def counting(obs: Any, state: Any) -> Any:
    """Recurrent policy. The state is the number of steps in the episode."""
    state = np.zeros((len(obs), 1), np.int64) if state is None else state
    return {"action": (obs[:, 0] + state[:, 0]) % 3, "seen": state[:, 0], "state": state + 1}


def zeros_at_first(obs: Any, state: Any) -> Any:
    """Show the form of the state in the first call, whose values do not count."""
    h, c = (np.full((len(obs), 2), 9), np.full((len(obs), 1), 9)) if state is None else state
    return {"action": (obs[:, 0] + c[:, 0]) % 3, "seen": c[:, 0], "state": (h, c + 1)}


class Recurrent(torch.nn.Module):
    """Recurrent module whose state begins with 3."""

    def initial_state(self, k: int) -> Any:
        return torch.full((k,), 3), {"hidden": torch.zeros(k, 2)}

    def forward(self, obs: Any, state: Any) -> Any:
        n, deep = state
        assert (deep["hidden"] == (n - 3)[:, None]).all()
        after = (n + 1, {"hidden": deep["hidden"] + 1})
        return {"action": (obs[:, 0] + n) % 3, "seen": n - 3, "state": after}


def predict(observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> Any:
    """Act as `predict` of the models of SB3, which have no state unless they are recurrent."""
    assert state is None
    return rule(observation), None


POLICIES: dict[str, tuple[Callable[[int], Any], Callable[[], Any], dict[str, Any]]] = {
    "function": (Countdown, lambda: rule, {}),
    "dict": (Countdown, lambda: with_value, {}),
    "tuple": (Countdown, lambda: lambda obs: (rule(obs), obs[:, 1]), {}),
    "env_id": (Countdown, lambda: lambda obs, env_id: {"action": rule(obs), "id": env_id}, {}),
    "entries": (dicts, lambda: lambda a, b: {"action": rule(a), "seen": b[0][:, 1] - 1}, {}),
    "whole": (dicts, lambda: lambda obs: rule(obs["a"]), {}),
    "state is an entry": (renamed, lambda: lambda state: rule(state), {}),
    "state is an entry, last": (renamed, lambda: lambda b, state: rule(state) + 0 * b[0][:, 1], {}),
    "env_id is an entry": (renamed, lambda: lambda b, state, env_id: rule(env_id) + 0 * state[:, 1], {}),
    "info is the observation": (Countdown, lambda: lambda info: rule(info), {"info_keys": ["info"]}),
    "an info entry is the observation": (Countdown, lambda: lambda speed: rule(speed), {"info_keys": ["speed"]}),
    "an info entry is an entry": (dicts, lambda: lambda b, a: rule(a), {"info_keys": ["a"]}),
    "any order": (dicts, lambda: lambda *, state, info, a: (rule(a), np.array([len(row) for row in info])), {}),
    "module": (Countdown, Module, {}),
    "function of tensors": (Countdown, lambda: with_value, {"policy_device": "cpu"}),
    "arrays of tensors": (
        Countdown,
        lambda: lambda obs: {"action": rule(obs.numpy()), "value": [np.float32(t) / 2 for t in obs[:, 1]]},
        {"device": "cpu"},
    ),
    "a tensor per row": (Countdown, lambda: lambda obs: [torch.as_tensor(row) for row in rule(obs)], {}),
    "gradients": (Countdown, lambda: with_gradient, {"policy_device": "cpu"}),
    "distribution": (
        Countdown,
        lambda: categorical,
        {"policy_device": "cpu", "exploration_type": ExplorationType.MODE},
    ),
    "TensorDictModule": (
        Countdown,
        lambda: tensordict_nn.TensorDictModule(rule, in_keys=["observation"], out_keys=["action"]),
        {},
    ),
    "TensorDict, class": (Countdown, lambda: annotated(tensordict.TensorDictBase), {}),
    "TensorDict, text": (Countdown, lambda: annotated("'tensordict.TensorDict'"), {}),
    "TensorDict, name": (Countdown, lambda: by_name, {}),
    "recurrent": (Countdown, lambda: counting, {}),
    "recurrent, as an info entry": (Countdown, lambda: counting, {"info_keys": ["state"]}),
    "recurrent, default": (Countdown, lambda: lambda obs, state=None: counting(obs, state), {}),
    "recurrent, zeros": (Countdown, lambda: zeros_at_first, {}),
    "recurrent module": (Countdown, Recurrent, {}),
    "recurrent, compiled": (
        Countdown,
        lambda: torch.nn.DataParallel(torch.compile(Recurrent(), backend="eager")),
        {},
    ),
    "SB3": (Countdown, lambda: predict, {}),
    "no state": (Countdown, lambda: lambda obs, state=None: {"action": rule(obs), "state": None}, {}),
}
WITH_EXTRAS = {"dict", "tuple", "env_id", "entries", "function of tensors", "arrays of tensors", "gradients"}
WITH_EXTRAS |= {name for name in POLICIES if name.startswith("recurrent")}


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # torch's advice to upgrade Python
@pytest.mark.filterwarnings("ignore:info_keys. no info has had")
@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=FULL) if name == "recurrent, compiled" else name for name in POLICIES]
)
def test_a_policy_acts_on_its_observations(policy: str, collector: str) -> None:
    """A state is passed from step to step, and begins anew with each episode."""
    (env, make, options), (kind, more) = POLICIES[policy], COLLECTORS[collector]
    venv = DummyVectorEnv([partial(env, length) for length in LENGTHS])
    with kind(venv, make(), frames_per_batch=12, **options, **more) as batches:
        found = [batches.rollout().flatten() for _ in range(4)]
        if collector != "seeded":
            batches.reset([1])
            found += [batches.rollout().flatten(), batches.collect(n_episode=4).batch]
    for batch in found:
        obs = np.asarray(batch.obs if env is Countdown else batch.obs["a" if env is dicts else "state"])
        np.testing.assert_array_equal(batch.action, rule(obs))
        np.testing.assert_array_equal(batch.reward, batch.action)
        expected = {"value": obs[..., 1] / 2, "seen": batch.step_count, "id": batch.env_ids, "output1": obs[..., 1]}
        names = batch.extras.keys() - {"episode", "episode_seed"}
        assert len(names) == (policy in WITH_EXTRAS)
        for name in names:
            np.testing.assert_array_equal(batch.extras[name], expected[name], err_msg=name)


def draws(obs: Any) -> Any:
    return {"action": zeros(obs), "drawn": np.full(len(obs), np.random.rand() + torch.rand(1).item())}


def draws_with_state(obs: Any, state: Any) -> Any:
    return {**draws(obs), "state": zeros(obs)}


@pytest.mark.parametrize(("policy", "random"), [(draws_with_state, 0), (draws, 4)])
def test_the_call_that_shows_the_form_of_outputs_draws_nothing(policy: Any, random: int) -> None:
    def seed() -> None:
        torch.manual_seed(0)
        np.random.seed(0)

    seed()
    expected = [np.random.rand() + torch.rand(1).item() for _ in range(4)]
    seed()
    with SyncDataCollector(countdowns(9), policy, frames_per_batch=4, init_random_frames=random) as collector:
        batches = [collector.next() for _ in range(2)]
    np.testing.assert_array_equal(batches[random > 0].extras["drawn"][0], expected)


@pytest.mark.parametrize(
    ("env", "action", "dtype"),
    [
        (countdowns(9), lambda k: np.ones((k, 1), np.int32), np.int64),
        (pendulums(1), lambda k: np.ones(k), np.float32),
        (pendulums(1), lambda k: torch.full((k, 1), 1 / 3, dtype=torch.bfloat16), np.float32),
        (pendulums(1), lambda k: torch.ones(k, 1, requires_grad=True), np.float32),
    ],
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_action_is_stored_as_the_env_gets_it(env: Any, action: Any, dtype: Any, device: Any) -> None:
    venv = DummyVectorEnv(env * 2)
    shape = (2, 4, *venv.action_space[0].shape)
    batch = batch_of(venv, lambda obs: {"action": action(len(obs)), "v": action(len(obs))}, 8, policy_device=device)
    given = torch.as_tensor(action(1)).detach().to(torch.float64).item()
    assert (batch.action.dtype, batch.action.shape) == (dtype, shape)
    for rows in (batch.action, batch.extras["v"]):
        assert isinstance(rows, np.ndarray)
        assert (rows == given).all()


def test_what_a_module_makes_in_a_collection_can_be_trained() -> None:
    """The parameters of lazy modules, caches and buffers."""

    class Makes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = torch.nn.LazyLinear(2), None
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, obs: Any) -> Any:
            self.scale = torch.full((2,), 2.0) if self.scale is None else self.scale
            self.mean = 0.9 * self.mean + 0.1 * obs.mean(0)
            return {"action": (logits := self.net(obs - self.mean) * self.scale).argmax(-1), "logits": logits}

    policy = Makes()
    with SyncDataCollector(cartpoles(4), policy, frames_per_batch=20, storing_device="cpu") as collector:
        batch = [collector.rollout() for _ in range(2)][1]
        assert (batch.policy_version == 0).all(), "parameters that were made are no update"
        policy(batch.obs.flatten(0, 1))["logits"].sum().backward()
        policy.mean.mul_(0.5)
        collector.update_policy_weights_(copy.deepcopy(policy))
        collector.rollout()
    assert all(weight.grad is not None for weight in policy.parameters())


# Distributions.

D = torch.distributions


def normal(obs: Any) -> Any:
    return D.Independent(D.Normal(obs[:, :1], 0.5), 1)


@kinds
@pytest.mark.parametrize("wanted", [ExplorationType.MEAN, ExplorationType.MODE])
def test_the_exploration_type_says_what_to_take_from_a_distribution(kind: type, wanted: Any) -> None:
    options = {"policy_device": "cpu", "exploration_type": wanted}
    batch = batch_of(DummyVectorEnv(pendulums(2)), normal, 26, kind, **options).flatten()
    np.testing.assert_array_equal(batch.action, batch.obs[:, :1])


@pytest.mark.parametrize(
    ("fns", "policy"),
    [
        (cartpoles(4), lambda obs: D.Categorical(logits=torch.stack([obs[:, 2], -obs[:, 2]], 1))),
        (pendulums(4), normal),
        (pendulums(4), lambda obs: D.TransformedDistribution(normal(obs), [D.TanhTransform()])),
    ],
)
def test_samples_of_a_distribution_are_those_of_torch(fns: Any, policy: Any) -> None:
    torch.manual_seed(0)
    batch = batch_of(DummyVectorEnv(fns), policy, 80, policy_device="cpu")
    torch.manual_seed(0)
    for t in range(20):
        np.testing.assert_array_equal(batch.action[:, t], policy(torch.from_numpy(batch.obs[:, t].copy())).sample())
    assert len(np.unique(batch.action)) > 1


@pytest.mark.parametrize("fns", [cartpoles(4), pendulums(4)])
def test_the_mlp_takes_legal_actions_at_random_or_the_likeliest(fns: Any) -> None:
    venv = DummyVectorEnv(fns)
    space = venv.action_space[0]
    policy = MLPPolicy(venv.observation_space[0], space)
    with SyncDataCollector(venv, policy, frames_per_batch=100) as collector:
        actions = collector.rollout().action
        with set_exploration_type(ExplorationType.MODE):
            batch = collector.rollout()
    assert actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions.reshape(-1, *space.shape))
    assert len(np.unique(actions)) > 1
    with torch.no_grad():
        likeliest = policy(torch.from_numpy(batch.obs.reshape(-1, *batch.obs.shape[2:]))).mode.numpy()
    np.testing.assert_allclose(batch.action.reshape(likeliest.shape), likeliest, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("observations", [spaces.Discrete(5, start=2), spaces.Box(0, 255, (3,), np.uint8)])
def test_the_mlp_computes_in_the_type_of_its_weights(observations: Any) -> None:
    obs = torch.as_tensor(np.stack([observations.sample() for _ in range(400)]))
    policy = MLPPolicy(observations, spaces.Discrete(3, start=-1))
    assert policy(obs).base_dist.logits.dtype == torch.float32
    assert policy.double()(obs).base_dist.logits.dtype == torch.float64
    assert set(policy(obs).sample().tolist()) == {-1, 0, 1}
