"""On `sim`, collectors, vector envs and jobs give the data of the CPU, bit for bit.

`sim` computes as late as a GPU may, and refuses to let the host read its memory without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as D

from collector import (
    ActorConfig,
    AsyncDataCollector,
    Dataset,
    EpisodeSeeds,
    MLPPolicy,
    MultiStep,
    RayCollector,
    SyncDataCollector,
    TorchVectorEnv,
    rollout,
    run_job,
)
from collector.jobs.replay import replay_episodes
from tests.support.backends import FULL, one_of
from tests.support.collector_envs import arrays, assert_equal, cartpoles, kinds, lean
from tests.support.countdown import BreaksOnce, Countdown, DictObs, Drives
from tests.support.devices import ACCELERATOR, SIM, needs_accelerator, needs_sim
from tests.support.job_envs import job
from tests.support.simulators import Simulator
from tests.support.transform_envs import VECTOR, Samples
from vecenv import DummyVectorEnv, ShmemVectorEnv, from_gymnasium, nest
from vecenv.transforms import ActionScaling, CatFrames, DoubleToFloat, DTypeCast, Flatten, RewardSum, TimeLimit, VecNorm

KINDS = {"sync": SyncDataCollector, "async": AsyncDataCollector}


def host(tree: Any) -> Any:
    return nest.map(lambda leaf: leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf), tree)


def columns(batch: Any) -> dict[str, Any]:
    """Return all columns of a batch on the host."""
    after = {name: getattr(batch.next, name) for name in ("obs", "reward", "terminated", "truncated", "step_count")}
    return host({each.name: getattr(batch, each.name) for each in fields(batch)} | {"next": after})


def assert_same(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    """Compare all leaves. Numbers on a device without float64 are compared with a tolerance, and may be float32."""
    pairs = list(zip(nest.items(found), nest.items(expected), strict=True))
    assert pairs
    for (path, left), (where, right) in pairs:
        assert path == where
        is_narrow = tolerance and (left.dtype, right.dtype) == (np.float32, np.float64)
        assert is_narrow or left.dtype == right.dtype, path
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance, err_msg=str(path))


class Net(torch.nn.Module):
    """Network that returns a distribution, and a value."""

    def __init__(self, family: Callable[[torch.Tensor], Any], size: int = 4, outputs: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.body = torch.nn.Sequential(torch.nn.Linear(size, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))
        self.family = family

    def forward(self, obs: Any) -> dict[str, Any]:
        rows = [leaf.flatten(1).float() for leaf in nest.leaves(obs)]
        hidden = self.body(torch.cat(rows, 1))
        return {"action": self.family(hidden), "value": hidden.sum(1)}


class CountsInfos(torch.nn.Module):
    def forward(self, obs: torch.Tensor, t: Any) -> torch.Tensor:
        t = torch.zeros(len(obs), device=obs.device) if t is None else t
        return (obs[:, :2] + t[:, None]).float()


def categorical(hidden: torch.Tensor) -> Any:
    return D.Categorical(logits=hidden)


def moves(hidden: torch.Tensor) -> Any:
    wheel = torch.stack([hidden[:, 0].tanh(), hidden[:, 1].tanh()], 1)
    return {"gear": D.Categorical(logits=hidden), "wheel": (wheel, torch.ones_like(wheel).to(torch.int8))}


def course(collector: Any) -> tuple[list[Any], list[Any]]:
    """Return the batches of each way to collect, with resets in between, and the episodes of one of the ways."""
    episodes: list[Any] = []
    with collector:
        collector.set_seed(3)
        batches = [collector.next(), collector.rollout()]
        collector.reset([1])
        batches += [collector.rollout(), collector.collect(n_episode=3, on_episode=episodes.append).batch]
        collector.reset(seed=8)
        hook = collector.collect(n_step=12, on_step=lambda step: {"shown": next(nest.leaves(step.next_obs))})
    return [*batches, hook.batch], episodes


def collected(
    envs: Callable[[], Any], policy: Callable[[], Any], device: str, kind: str = "sync", stored: bool = False, **kw: Any
) -> Any:
    kw |= {"storing_device": device} if stored else {}
    batches, episodes = course(KINDS[kind](envs(), policy(), policy_device=device, frames_per_batch=12, **kw))
    return *map(columns, batches), tuple(host((each.obs, each.action, each.reward)) for each in episodes)


def overwriting() -> Any:
    """Return a vector env that writes the results of a step over those of the step before."""
    return DummyVectorEnv(cartpoles(3), copy=False)


def with_dicts() -> Any:
    return DummyVectorEnv([lambda: DictObs(Countdown(3)), lambda: DictObs(Countdown(5))])


def with_vectors() -> Any:
    return DummyVectorEnv([partial(Samples, VECTOR, length) for length in (4, 5)])


def forms(device: str) -> Any:
    """Return a batch on the device in all its forms."""
    options = {"policy_device": device, "storing_device": device, "frames_per_batch": 12, "set_truncated": True}
    policy = Net(categorical, 4, 3)
    with SyncDataCollector(with_dicts(), policy, **options, postproc=MultiStep(3, 0.9)) as collector:
        batch, plain = collector.next(), collector.rollout()
    assert {leaf.device.type for leaf in nest.leaves((batch.obs, plain.obs))} == {device}
    tensordict = plain.to_tensordict().cpu()
    keys = sorted(tensordict.keys(True, True), key=str)
    return *map(columns, (batch, plain, plain.flatten(), plain.split_trajectories())), host(
        {str(key): tensordict[key] for key in keys}
    )


FAMILIES: dict[str, tuple[Any, Any]] = {
    "categorical": (spaces.Discrete(3), categorical),
    "several": (
        spaces.MultiDiscrete([2, 2]),
        lambda h: D.Independent(D.Categorical(logits=torch.stack([h[:, :2], -h[:, :2]], 1)), 1),
    ),
    "one-hot": (spaces.Box(0, 1, (3,)), lambda h: D.OneHotCategorical(logits=h)),
    "bernoulli": (spaces.Box(0, 1, (3,)), lambda h: D.Bernoulli(logits=h)),
    "tanh": (
        spaces.Box(-9, 9, (3,)),
        lambda h: D.TransformedDistribution(
            D.Independent(D.Normal(h, h.exp()), 1), [D.TanhTransform(), D.AffineTransform(h * 0, h * 0 + 2)]
        ),
    ),
}


def keyed(device: str) -> Any:
    """Return numbered episodes, with keyed samples of each family. Batches of some are stored on the device."""
    found = {}
    for i, (family, (action_space, make)) in enumerate(FAMILIES.items()):
        venv = DummyVectorEnv([partial(Samples, VECTOR, length, action_space) for length in (3, 4, 6)])
        options = {"episode_seeds": EpisodeSeeds(5, numbers=range(6)), "frames_per_batch": 15, "policy_device": device}
        options |= {} if i % 2 else {"storing_device": device}
        with SyncDataCollector(venv, Net(make, 5, 3), **options) as collector:
            found[family] = tuple(columns(batch) for batch in collector)
            assert collector.everything_keyed, collector.not_keyed_because
    return found


def weights(kind: str, device: str) -> Any:
    """Return batches of weights that come from the device, from the host, from arrays, and from a state."""
    policy, other = Net(categorical), Net(categorical)
    with torch.no_grad():
        other.body[2].bias += 3
    options = {"policy_device": device, "frames_per_batch": 12, "backend": "dummy"}
    with KINDS[kind](cartpoles(3), policy, **options) as collector:
        collector.set_seed(0)
        batches = [collector.rollout()]
        collector.update_policy_weights_(other.to(device))
        batches.append(collector.rollout())
        with torch.no_grad():
            policy.body[2].bias.fill_(-3.0)
        collector.update_policy_weights_()  # the policy, of which the collector may have a copy on the device
        state = {name: value.clone() for name, value in collector.state_dict()["policy_state_dict"].items()}
        batches.append(collector.rollout())
        collector.update_policy_weights_({name: value.cpu().numpy() * 2 for name, value in state.items()})
        batches.append(collector.rollout())
        collector.load_state_dict({**collector.state_dict(), "policy_state_dict": state})
        batches.append(collector.rollout())
        stats = collector.evaluate(2, seed=1, keep=True)
        return *map(columns, batches), columns(stats.batch), host(state)


DOUBLES = [DTypeCast("float32", "float64"), Flatten(), DoubleToFloat(), VecNorm(), ActionScaling()]


def vector_env(transforms: Callable[[], Any], device: str) -> Any:
    inner = DummyVectorEnv([partial(Samples, VECTOR, length) for length in (4, 5)], copy=False)
    with TorchVectorEnv(inner, device, reward_dtype=torch.float64, transforms=transforms()) as venv:
        seen = [nest.map(np.copy, host(venv.reset(seed=1)[0]))]
        for i in range(12):
            action = torch.full((2, 2), float(i), device=device)
            result = venv.step(action)[:4]
            seen.append(nest.map(np.copy, host(result)))
            if (done := result[2] | result[3]).any():
                seen.append(nest.map(np.copy, host(venv.reset(done)[0])))
        seen.append(nest.map(np.copy, host(venv.step(action[:1], torch.tensor([1], device=device))[:4])))
        return tuple(seen)


def rolled_out(device: str) -> Any:
    policy = Net(categorical).to(device)
    with DummyVectorEnv(cartpoles(2)) as venv:
        venv.set_seed(4)
        first = rollout(venv, 20, policy, break_when_any_done=False)
        return columns(first), columns(rollout(venv, 9, policy, auto_reset=False, obs=first.next.obs[:, -1]))


def with_failures(device: str) -> Any:
    venv = DummyVectorEnv([partial(BreaksOnce, 4, 1, 2)] * 2, on_error="restart")
    with SyncDataCollector(venv, Net(categorical, 2, 3), frames_per_batch=24, device=device) as collector:
        with pytest.warns(RuntimeWarning, match="broke off"):
            first = columns(collector.next())
        assert not first["mask"].all()
        return first, columns(collector.next())


def read(step: Any) -> dict[str, Any]:
    """Step hook that reads everything."""
    return {"read": step.reward + step.action.sum(1) + step.obs.sum(1) + step.next_obs.sum(1)}


def simulator(final: str, device: str, kind: str = "sync", transforms: Any = lambda: None, **options: Any) -> Any:
    """Return batches of a simulator, whose observations, rewards and flags are on the device."""
    venv = from_gymnasium(Simulator(torch, final=final, device=device), tensors=True, has_final_obs=final != "lost")
    options |= {"info_keys": ["speed"], "device": device, "transforms": transforms()}
    policy = Net(torch.tanh, 6 if options["transforms"] else 3, 2)
    with KINDS[kind](venv, policy, frames_per_batch=40, **options) as collector:
        batches = [collector.next(), collector.next(), collector.collect(8, on_step=read).batch, collector.next()]
        assert {batch.obs.device.type for batch in batches} == {device}
        return tuple(map(columns, batches))


CASES: dict[str, Callable[[str], Any]] = {
    "async": partial(collected, overwriting, partial(Net, categorical), kind="async"),
    "stored, random frames": partial(
        collected, overwriting, partial(Net, categorical), stored=True, return_same_td=True, init_random_frames=20
    ),
    "forms": forms,
    "trees": partial(collected, lambda: DummyVectorEnv([Drives] * 3), partial(Net, moves, 3, 3)),
    "infos": partial(collected, with_vectors, CountsInfos, info_keys=["t"]),
    "keyed": keyed,
    "weights": partial(weights, "sync"),
    "vector env": partial(vector_env, lambda: [CatFrames(2, -1), VecNorm(decay=0.9), TimeLimit(3)]),
    "vector env, sums": partial(vector_env, RewardSum),
    "simulator": partial(simulator, "masked", init_random_frames=60, return_same_td=True),
    "simulator, lost": partial(simulator, "lost"),
    "stored, async": partial(
        collected, with_dicts, partial(Net, categorical, 4, 3), kind="async", stored=True, init_random_frames=20
    ),
    "failures": with_failures,
    "weights, async": partial(weights, "async"),
    "vector env, doubles": partial(vector_env, lambda: [each.clone() for each in DOUBLES]),
    "rollout": rolled_out,
    "simulator, transforms": partial(
        simulator, "old", transforms=lambda: [CatFrames(2, -1), VecNorm()], split_trajs=True
    ),
    "simulator, async": partial(simulator, "next", kind="async", init_random_frames=60),
}


MORE = "stored, async", "failures", "weights, async", "rollout", "vector env, sums", "vector env, doubles"
MORE += "simulator, transforms", "simulator, async"
"""Cases of the full tier."""


def cases(names: Iterable[str], in_full: Container[str]) -> Any:
    marked = [pytest.param(name, marks=FULL) if name in in_full else name for name in names]
    return pytest.mark.parametrize("case", marked)


def on_both(case: str) -> tuple[Any, Any]:
    """Return the data of a case on `sim` and on the CPU."""
    found = []
    for device in ("sim", "cpu"):
        torch.manual_seed(0)
        found.append(CASES[case](device))
    return found[0], found[1]


@needs_sim
@cases(CASES, in_full=MORE)
def test_the_data_is_that_of_the_cpu(case: str) -> None:
    assert_same(*on_both(case))


@pytest.fixture
def no_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `sim` refuse float64, and have no streams, as MPS."""
    assert SIM is not None
    monkeypatch.setattr(SIM, "refused_dtypes", {torch.float64})
    monkeypatch.delattr(SIM.Module, "current_stream")
    nest.has_float64.cache_clear()
    yield
    nest.has_float64.cache_clear()


@needs_sim
@pytest.mark.usefixtures("no_float64")
@cases(["keyed", "vector env", "vector env, doubles", "forms", "simulator"], in_full=["forms", "simulator"])
def test_without_float64_the_device_computes_in_float32(case: str) -> None:
    narrow, wide = on_both(case)
    assert_same(narrow, wide, tolerance=1e-5)


class Seeing(torch.nn.Module):
    """`lean` on tensors, which returns what it has seen, the envs of its rows, and its state, a number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = torch.nn.Parameter(torch.zeros(()))

    def initial_state(self, k: int) -> Any:
        return {"steps": torch.full((k, 1), 5, device=self.bound.device)}

    def forward(self, obs: torch.Tensor, state: Any, env_id: Any) -> dict[str, Any]:
        action, steps = (obs[:, 2] > self.bound).long(), state["steps"]
        return {"action": action, "seen": obs, "steps": steps[:, 0] - 5, "id": env_id, "state": {"steps": steps + 1}}


@pytest.mark.parametrize("kind", one_of([SyncDataCollector, AsyncDataCollector]))
@needs_accelerator
def test_the_data_of_an_accelerator_is_that_of_a_policy_on_arrays(kind: Any) -> None:
    """What the policy has seen is what is stored, also if the device reads memory that workers overwrite."""
    found = []
    for policy, options in ((lean, {}), (Seeing(), {}), (Seeing(), {"storing_device": ACCELERATOR})):
        options |= {"frames_per_batch": 30} | ({} if policy is lean else {"policy_device": ACCELERATOR})
        venv = ShmemVectorEnv(cartpoles(3), copy=False, num_workers=1)
        batches, _ = course(kind(venv, policy, **options))
        found.append([batch.flatten() for batch in batches])
    for plain, batch, stored in zip(*found, strict=True):
        for name, column in arrays(stored).items():
            assert column.device.type == ACCELERATOR, name
        for each in (batch, stored):
            assert_equal(host(arrays(each)), arrays(plain))
            for name, column in (("seen", plain.obs), ("steps", plain.step_count), ("id", plain.env_ids)):
                np.testing.assert_array_equal(host(each.extras[name]), column)


@needs_sim
def test_a_reward_of_nan_on_the_device_is_found() -> None:
    venv = from_gymnasium(Simulator(torch, device="sim"), tensors=True)
    policy = Net(lambda hidden: hidden / 0 * 0, 3, 2)
    with SyncDataCollector(venv, policy, device="sim", frames_per_batch=8) as collector:
        for _ in range(2):  # from the second batch on, actions are tensors
            with pytest.raises(
                ValueError, match=r"reward of NaN in step 0 .* the action .*nan.* \(the policy returned NaN"
            ):
                collector.next()


@needs_sim
@kinds
def test_a_collector_continues_after_the_device_had_no_memory(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*form: Any) -> Any:
        raise MemoryError("the device has no memory")

    options = {"frames_per_batch": 12, "device": "sim", "init_random_frames": 12}
    with kind(cartpoles(3), Net(categorical), **options) as collector:
        assert collector.next().frames == 12
        with monkeypatch.context() as patched:
            patched.setattr(SIM, "_empty", refuse)
            with pytest.raises(MemoryError):
                collector.next()
        batch = collector.next()
        assert batch.frames == 12
        assert batch.obs.device.type == "sim"


@FULL
@needs_sim
def test_a_job_and_its_replay(tmp_path: Path) -> None:
    """Its policy runs on the device, and the data set trains a network there."""
    played = []
    for device in ("cpu", "sim"):
        run_job(job(policy="mlp", device=device, episodes=4, max_episode_steps=9), tmp_path / device)
        data = Dataset(tmp_path / device)
        assert data.head["device"].partition(":")[0] == device
        assert data.head["repeatable"]
        assert not any(replay_episodes(tmp_path / device, 4).values())
        policy = MLPPolicy(data.observation_space, data.action_space).to(device)
        [batch, *_] = data.as_torch("batches", batch_size=8)
        played.append(host({"obs": batch["obs"], "action": batch["action"]}))
        assert policy(batch["obs"].to(device)).logits.device.type == device
    assert_same(*played)


@needs_sim
@pytest.mark.local_ray
@pytest.mark.ray
def test_actors_of_a_cluster_have_their_policies_on_the_device() -> None:
    found = []
    for device in ("cpu", "sim"):
        options: dict[str, Any] = {"policy_device": device, "storing_device": device, "frames_per_batch": 24}
        actors, policy = ActorConfig(num_cpus=0.1), Net(categorical)
        policy.registers = SIM.current_stream  # an actor imports the module of `sim` to unpickle the policy
        with RayCollector(cartpoles(2), policy, num_actors=2, actors=actors, **options) as collector:
            collector.set_seed(5)
            batches = [collector.next()]
            with torch.no_grad():
                policy.body[2].bias += 1
            collector.update_policy_weights_(policy)
            batches += [collector.next(), collector.next()]
            assert batches[0].obs.device.type == device
            found.append(tuple(map(columns, batches)))
    assert_same(*found)
