"""On `sim`, collectors, vector envs and jobs give the data of the CPU, bit for bit.

`sim` computes as late as a GPU may, and refuses to let the host read its memory without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
from collector.device.tensors import has_float64
from collector.device.torch_vector_env import TransformedOnDevice
from collector.jobs.replay import replay_episodes
from tests.support.backends import FULL
from tests.support.collector_envs import cartpoles, countdowns
from tests.support.countdown import BreaksOnce, Countdown, DictObs, Drives
from tests.support.devices import ON_SIM, SIM, needs_sim
from tests.support.job_envs import job
from tests.support.simulators import Simulator
from tests.support.transform_envs import VECTOR, Samples
from vecenv import DummyVectorEnv, ShmemVectorEnv, from_gymnasium, nest
from vecenv.transforms import CatFrames, RewardSum, TimeLimit, VecNorm

KINDS = {"sync": SyncDataCollector, "async": AsyncDataCollector}


def host(tree: Any) -> Any:
    return nest.map(lambda leaf: leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf), tree)


def copied(tree: Any) -> Any:
    return nest.map(np.copy, host(tree))


def columns(batch: Any) -> dict[str, Any]:
    """Return all columns of a batch on the host."""
    after = {name: getattr(batch.next, name) for name in ("obs", "reward", "terminated", "truncated", "step_count")}
    return host({each.name: getattr(batch, each.name) for each in fields(batch)} | {"next": after})


def assert_same(found: Any, expected: Any) -> None:
    pairs = list(zip(nest.items(found), nest.items(expected), strict=True))
    assert pairs
    for (path, left), (where, right) in pairs:
        assert path == where
        assert left.dtype == right.dtype, path
        np.testing.assert_array_equal(left, right, err_msg=str(path))


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


def categorical(hidden: torch.Tensor) -> Any:
    return D.Categorical(logits=hidden)


def course(collector: Any) -> Any:
    """Return the data of every way to collect, with resets in between."""
    played: list[Any] = []
    with collector:
        collector.set_seed(3)
        batches = [collector.next(), collector.rollout()]
        collector.reset([1])
        batches += [collector.rollout(), collector.collect(n_episode=3, on_episode=played.append).batch]
        collector.reset(seed=8)
        batches.append(
            collector.collect(n_step=12, on_step=lambda step: {"shown": next(nest.leaves(step.next_obs))}).batch
        )
        return *map(columns, batches), tuple(host((each.obs, each.action, each.reward)) for each in played)


def sampling(kind: str, device: str, **options: Any) -> Any:
    venv = ShmemVectorEnv(cartpoles(3), copy=False, num_workers=1)
    options |= {"storing_device": device} if "storing_device" in options else {}
    return course(KINDS[kind](venv, Net(categorical), policy_device=device, frames_per_batch=24, **options))


def storing(kind: str, device: str) -> Any:
    venv = DummyVectorEnv([lambda: DictObs(Countdown(3)), lambda: DictObs(Countdown(5))])
    options = {"policy_device": device, "storing_device": device, "frames_per_batch": 12, "set_truncated": True}
    with KINDS[kind](venv, Net(categorical, 4, 3), **options, postproc=MultiStep(3, 0.9)) as collector:
        batch, plain = collector.next(), collector.rollout()
        assert {leaf.device.type for leaf in nest.leaves((batch.obs, plain.obs))} == {device}
        forms = batch, plain, plain.flatten(), plain.split_trajectories()
        tensordict = plain.to_tensordict().cpu()
        keys = sorted(tensordict.keys(True, True), key=str)
        return *map(columns, forms), host({str(key): tensordict[key] for key in keys})


class Remembers(torch.nn.Module):
    """Recurrent policy."""

    def __init__(self, known: bool) -> None:
        super().__init__()
        self.net = Net(categorical, 2 + 3 + 1, 3 + 3)
        if known:
            self.initial_state = self.first_state

    def first_state(self, k: int) -> Any:
        return {"h": torch.full((k, 3), 0.5, device=next(self.parameters()).device)}

    def forward(self, obs: torch.Tensor, state: Any, env_id: torch.Tensor) -> Any:
        before = torch.zeros(len(obs), 3, device=obs.device) if state is None else state["h"]
        hidden = self.net.body(torch.cat([obs.float() / 10, before, env_id[:, None].float()], 1))
        return {"action": D.Categorical(logits=hidden[:, :3]), "seen": before, "state": {"h": hidden[:, 3:].tanh()}}


def recurrent(kind: str, known: bool, device: str) -> Any:
    venv = DummyVectorEnv(countdowns(2, 3, 7))
    return course(KINDS[kind](venv, Remembers(known), policy_device=device, frames_per_batch=15))


FAMILIES: dict[str, tuple[Any, Any]] = {
    "categorical": (spaces.Discrete(3), categorical),
    "several": (
        spaces.MultiDiscrete([2, 2]),
        lambda h: D.Independent(D.Categorical(logits=torch.stack([h[:, :2], -h[:, :2]], 1)), 1),
    ),
    "one-hot": (spaces.Box(0, 1, (3,)), lambda h: D.OneHotCategorical(logits=h)),
    "bernoulli": (spaces.Box(0, 1, (3,)), lambda h: D.Bernoulli(logits=h)),
    "normal": (spaces.Box(-9, 9, (3,)), lambda h: D.Normal(h, h.exp())),
    "tanh": (
        spaces.Box(-9, 9, (3,)),
        lambda h: D.TransformedDistribution(
            D.Independent(D.Normal(h, h.exp()), 1), [D.TanhTransform(), D.AffineTransform(h * 0, h * 0 + 2)]
        ),
    ),
}


def keyed(family: str, device: str, is_stored: bool = False) -> Any:
    action_space, make = FAMILIES[family]
    venv = DummyVectorEnv([partial(Samples, VECTOR, length, action_space) for length in (3, 4, 6)])
    options = {"episode_seeds": EpisodeSeeds(5, numbers=range(9)), "frames_per_batch": 15, "policy_device": device}
    options |= {"storing_device": device} if is_stored else {}
    with SyncDataCollector(venv, Net(make, 5, 3), **options) as collector:
        batches = tuple(columns(batch) for batch in collector)
        assert collector.everything_keyed, collector.not_keyed_because
        return batches


def moves(hidden: torch.Tensor) -> Any:
    wheel = torch.stack([hidden[:, 0].tanh(), hidden[:, 1].tanh()], 1)
    return {"gear": D.Categorical(logits=hidden), "wheel": (wheel, torch.ones_like(wheel).to(torch.int8))}


def trees(device: str) -> Any:
    venv = DummyVectorEnv([Drives] * 3)
    return course(SyncDataCollector(venv, Net(moves, 3, 3), policy_device=device, frames_per_batch=15))


def weights(device: str) -> Any:
    policy, other = Net(categorical), Net(categorical)
    with torch.no_grad():
        other.body[2].bias += 3
    options = {"policy_device": device, "frames_per_batch": 30, "backend": "dummy"}
    with SyncDataCollector(cartpoles(3), policy, **options) as collector:
        collector.set_seed(0)
        batches = [collector.rollout()]
        collector.update_policy_weights_(other.to(device))  # from the device
        batches.append(collector.rollout())
        collector.update_policy_weights_(Net(categorical))  # from the host
        state = {name: value.clone() for name, value in collector.state_dict()["policy_state_dict"].items()}
        batches.append(collector.rollout())
        collector.update_policy_weights_({name: value.cpu().numpy() * 2 for name, value in state.items()})
        batches.append(collector.rollout())
        collector.load_state_dict({**collector.state_dict(), "policy_state_dict": state})
        batches.append(collector.rollout())
        stats = collector.evaluate(3, seed=1, keep=True)
        return *map(columns, batches), columns(stats.batch), host(state)


CHAINS = {
    "statistics": (lambda: [CatFrames(2, -1), VecNorm(decay=0.9), TimeLimit(3)], 10),
    "sums": (lambda: [RewardSum()], 6),
}


def normal(hidden: torch.Tensor) -> Any:
    return D.Normal(hidden, 1.0)


def transformed(chain: str, device: str) -> Any:
    make, size = CHAINS[chain]
    venv = DummyVectorEnv([partial(Samples, VECTOR, length, spaces.Box(-99, 99, (2,))) for length in (4, 5)])
    on_device = TransformedOnDevice(venv, make(), device)  # without a device, in numpy
    return course(SyncDataCollector(on_device, Net(normal, size), policy_device=device, frames_per_batch=20))


def vector_env(chain: str, device: str) -> Any:
    inner = ShmemVectorEnv([partial(Samples, VECTOR, length) for length in (4, 5)], copy=False, num_workers=1)
    with TorchVectorEnv(inner, device, reward_dtype=torch.float64, transforms=CHAINS[chain][0]()) as venv:
        seen = [copied(venv.reset(seed=1)[0])]
        for i in range(12):
            action = torch.full((2, 2), float(i), device=device)
            obs, rew, terminated, truncated, _ = venv.step(action)
            seen.append(copied((obs, rew, terminated, truncated)))
            done = terminated | truncated
            if done.any():
                seen.append(copied(venv.reset(done)[0]))
        seen.append(copied(venv.step(action[:1], torch.tensor([1], device=device))[:4]))
        return tuple(seen)


def rolled_out(device: str) -> Any:
    policy = Net(categorical).to(device)
    with DummyVectorEnv(cartpoles(2)) as venv:
        venv.set_seed(4)
        first = rollout(venv, 20, policy, break_when_any_done=False)
        return columns(first), columns(rollout(venv, 9, policy, auto_reset=False, obs=first.next.obs[:, -1]))


def with_infos(device: str) -> Any:
    class Counts(torch.nn.Module):
        def forward(self, obs: torch.Tensor, t: Any) -> torch.Tensor:
            t = torch.zeros(len(obs), device=obs.device) if t is None else t
            return (obs[:, :2] + t[:, None]).float()

    venv = DummyVectorEnv([partial(Samples, VECTOR, length) for length in (4, 5)])
    options = {"policy_device": device, "frames_per_batch": 20, "info_keys": ["t"]}
    return course(SyncDataCollector(venv, Counts(), **options))


def with_failures(device: str) -> Any:
    venv = ShmemVectorEnv([partial(BreaksOnce, 4, 1, 2)] * 2, on_error="restart", num_workers=1)
    with SyncDataCollector(venv, Net(categorical, 2, 3), frames_per_batch=24, device=device) as collector:
        with pytest.warns(RuntimeWarning, match="broke off"):
            first = columns(collector.next())
        assert not first["mask"].all()
        return first, columns(collector.next())


def read(step: Any) -> dict[str, Any]:
    """Step hook that reads everything."""
    return {"read": step.reward + step.action.sum(1) + step.obs.sum(1) + step.next_obs.sum(1)}


def simulator(final: str, device: str, kind: str = "sync", **options: Any) -> Any:
    simulated = Simulator(torch, final=final, device=device)
    venv = from_gymnasium(simulated, tensors=True, has_final_obs=final != "lost")
    policy = Net(torch.tanh, 6 if "transforms" in options else 3, 2)
    options |= {"info_keys": ["speed"], "device": device}
    with KINDS[kind](venv, policy, frames_per_batch=40, **options) as collector:
        batches = [collector.next(), collector.next(), collector.collect(8, on_step=read).batch, collector.next()]
        assert {batch.obs.device.type for batch in batches} == {device}
        return tuple(map(columns, batches))


CASES: dict[str, Callable[[str], Any]] = {
    **{f"samples, {kind}": partial(sampling, kind) for kind in KINDS},
    "storing, random frames": partial(
        sampling, "sync", storing_device=True, return_same_td=True, init_random_frames=60
    ),
    "storing, async, random frames": partial(sampling, "async", storing_device=True, init_random_frames=30),
    "storing, seeded": partial(keyed, "categorical", is_stored=True),
    "storing, failures": with_failures,
    **{f"storing device, {kind}": partial(storing, kind) for kind in KINDS},
    "recurrent, sync": partial(recurrent, "sync", True),
    "recurrent, async, from zeros": partial(recurrent, "async", False),
    **{f"keyed, {family}": partial(keyed, family) for family in FAMILIES},
    "trees": trees,
    "weights": weights,
    **{f"transforms, {chain}": partial(transformed, chain) for chain in CHAINS},
    **{f"TorchVectorEnv, {chain}": partial(vector_env, chain) for chain in CHAINS},
    "rollout": rolled_out,
    "infos": with_infos,
    "simulator, transforms": lambda device: simulator("masked", device, transforms=[CatFrames(2, -1), VecNorm()]),
    "simulator, async, random frames": partial(simulator, "next", kind="async", init_random_frames=60),
    "simulator, random frames": partial(simulator, "masked", init_random_frames=60, return_same_td=True),
    "simulator, split": partial(simulator, "masked", split_trajs=True),
    **{f"simulator, {final}": partial(simulator, final) for final in ("masked", "old", "lost")},
}
QUICK = {"samples, async", "storing, random frames", "storing, seeded", "storing device, sync", "recurrent, sync"}
QUICK |= {"keyed, tanh", "trees", "weights", "TorchVectorEnv, statistics", "infos"}
QUICK |= {"simulator, masked", "simulator, lost"}


def quick(cases: Iterable[str], chosen: set[str]) -> list[Any]:
    """Return parameters, of which the chosen cases are in the quick tier."""
    return [case if case in chosen else pytest.param(case, marks=FULL) for case in cases]


@pytest.mark.parametrize("sim", [ON_SIM])
@pytest.mark.parametrize("case", quick(CASES, QUICK))
def test_the_data_is_that_of_the_cpu(case: str, sim: str) -> None:
    found = []
    for device in ("cpu", sim):
        torch.manual_seed(0)
        found.append(CASES[case](device))
    assert_same(found[1], found[0])


class Uncounted(Simulator):
    """Simulator whose own copies are not counted."""

    def step(self, actions: Any) -> Any:
        before = SIM.counts.copy()
        result = super().step(actions)
        SIM.counts.clear()
        SIM.counts.update(before)
        return result


@needs_sim
def test_a_round_of_a_simulator_copies_its_flags_to_the_host_and_the_places_of_ended_envs_to_the_device() -> None:
    found = []
    for rounds in (10, 20):
        venv = from_gymnasium(Uncounted(torch, n=8, final="old", device="sim"), tensors=True)
        with SyncDataCollector(venv, Net(torch.tanh, 3, 2), device="sim", frames_per_batch=8 * rounds) as collector:
            collector.next(), collector.next()
            SIM.counts.clear()
            batch = collector.next()
            found.append((SIM.counts.copy(), len(batch.final_time.cpu().unique()), batch.reward.nbytes))
    (less, fewer_ends, fewer_bytes), (more, ends, size) = found
    more.subtract(less)
    # Rewards come once per batch.
    assert (more["downloads"], more["download_bytes"]) == (10, 10 * 2 * 8 + size - fewer_bytes)
    assert more["uploads"] == ends - fewer_ends
    assert more["waits"] == more["downloads"] + more["uploads"]


@needs_sim
def test_a_reward_of_nan_on_the_device_is_found() -> None:
    venv = from_gymnasium(Simulator(torch, device="sim"), tensors=True)
    with SyncDataCollector(
        venv, Net(lambda hidden: hidden / 0 * 0, 3, 2), device="sim", frames_per_batch=8
    ) as collector:
        for _ in range(2):  # from the second batch on, actions are tensors
            with pytest.raises(
                ValueError, match=r"reward of NaN in step 0 .* the action .*nan.* \(the policy returned NaN"
            ):
                collector.next()


NARROW = ["recurrent, sync", "transforms, sums", "TorchVectorEnv, sums", "simulator, masked", "storing, seeded"]
NARROW += ["storing device, sync", "simulator, async, random frames", "keyed, normal", "keyed, tanh"]


@pytest.fixture(params=["no streams", pytest.param("streams", marks=FULL)])
def no_float64(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `sim` refuse float64, as MPS does. MPS has no streams either."""
    assert SIM is not None
    monkeypatch.setattr(SIM, "refused_dtypes", {torch.float64})
    if request.param == "no streams":
        monkeypatch.delattr(SIM.Module, "current_stream")
    has_float64.cache_clear()
    yield
    has_float64.cache_clear()


@pytest.mark.usefixtures("no_float64")
@needs_sim
@pytest.mark.parametrize("case", quick(NARROW, {"keyed, tanh", "storing, seeded", "TorchVectorEnv, sums"}))
def test_without_float64_the_device_computes_in_float32(case: str) -> None:
    """Batches in numpy keep their dtypes."""
    found = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        found.append(CASES[case](device))
    narrow = any(kind in case for kind in ("storing", "TorchVectorEnv", "simulator"))
    for (path, left), (_, right) in zip(nest.items(found[1]), nest.items(found[0]), strict=True):
        is_narrow = narrow and right.dtype == np.float64 and "episode_returns" not in path  # always in numpy
        assert left.dtype == (np.float32 if is_narrow else right.dtype), path
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5, err_msg=str(path))


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
        policy = MLPPolicy(*[getattr(data, name) for name in ("observation_space", "action_space")]).to(device)
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
