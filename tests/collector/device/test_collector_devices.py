"""Collectors with the policy on a device give the same data as with arrays. The device is CUDA or a stand-in."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector import AsyncDataCollector, SyncDataCollector  # noqa: E402
from tests.support.backends import FULL  # noqa: E402
from tests.support.collector_envs import arrays, assert_equal, cartpoles, countdowns, kinds, lean  # noqa: E402
from tests.support.devices import ACCELERATOR, SIM, needs_accelerator, needs_cuda, needs_sim  # noqa: E402
from tests.support.faulty import Counter  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv  # noqa: E402


class Lean(torch.nn.Module):
    """`lean` on tensors, which returns what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = torch.nn.Parameter(torch.zeros(()))

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"action": (obs[:, 2] > self.bound).long(), "seen": obs}


def course(collector: Any) -> list[Any]:
    """Batches of every way to collect, with resets in between."""
    with collector:
        collector.set_seed(3)
        batches = [collector.rollout() for _ in range(3)]
        collector.reset([1])
        batches += [collector.rollout(), collector.collect(n_episode=5).batch]
        collector.reset(seed=8)
        batches.append(collector.collect(n_step=30, on_step=lambda step: {"shown": step.obs}).batch)
    return batches


@pytest.mark.parametrize("kind", [SyncDataCollector, pytest.param(AsyncDataCollector, marks=FULL)])
@needs_accelerator
def test_the_data_is_that_of_a_policy_on_arrays(kind: type) -> None:
    """And what the policy has seen is what is stored, also where the device reads the memory that workers write to."""
    found = []
    for policy, options in ((lean, {}), (Lean(), {}), (Lean(), {"storing_device": ACCELERATOR})):
        options |= {"policy_device": ACCELERATOR} if policy is not lean else {}
        found.append(course(kind(ShmemVectorEnv(cartpoles(3), copy=False), policy, frames_per_batch=60, **options)))
    for plain, batch, stored in zip(*found, strict=True):
        assert_equal(arrays(batch), arrays(plain))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)
        for name, column in arrays(stored).items():
            assert column.device.type == ACCELERATOR, name
        assert_equal({name: column.cpu().numpy() for name, column in arrays(stored).items()}, arrays(plain))


@kinds
@needs_accelerator
def test_new_weights_are_used_from_the_next_batch_on(kind: type) -> None:
    """Weights that are passed, and the weights of the policy, of which the collector has a copy on the device."""
    policy = Lean()
    with kind(DummyVectorEnv(cartpoles(3)), policy, policy_device=ACCELERATOR, frames_per_batch=30) as collector:
        for update, value in (({"bound": torch.tensor(-9.0)}, 1), (None, 0)):  # below and above every angle
            collector.rollout()
            with torch.no_grad():
                policy.bound.fill_(9.0)
            version = collector.policy_version + 1
            collector.update_policy_weights_(update)
            first, second = collector.rollout(), collector.rollout()
            for batch in (first, second):  # what was chosen before the update keeps its version
                assert (batch.action[batch.policy_version == version] == value).all()
            assert (second.policy_version == version).all()
        assert policy.bound.device.type == "cpu"


class Counts:
    """Recurrent policy that returns its state and the envs of its rows."""

    def __call__(self, obs: Any, state: Any, env_id: Any) -> dict[str, Any]:
        state = torch.zeros(len(obs), 1, device=obs.device) if state is None else state
        return {"action": torch.zeros_like(obs[:, 0]), "seen": state[:, 0], "id": env_id, "state": state + 1}


class CountsFromFive(Counts):
    def initial_state(self, k: int) -> Any:
        return torch.full((k, 1), 5.0, device=ACCELERATOR)


@kinds
@needs_accelerator
@pytest.mark.parametrize(("policy", "begin"), [(Counts, 0), (CountsFromFive, 5)])
def test_states_and_ids_go_the_way_of_the_observations(kind: Any, policy: Any, begin: int) -> None:
    """They need no wait of their own."""
    options: dict[str, Any] = {"frames_per_batch": 12, "policy_device": ACCELERATOR}
    with kind(DummyVectorEnv(countdowns(2, 3, 7)), policy(), **options) as collector:
        batches = [collector.rollout().flatten() for _ in range(4)]
        if SIM is not None and kind is SyncDataCollector:
            SIM.counts.clear()
            batches.append(collector.rollout().flatten())
            assert SIM.counts["waits"] == 4
        collector.reset([1])
        batches.append(collector.rollout().flatten())
        batches.append(collector.collect(n_episode=4).batch.flatten())
    for batch in batches:
        np.testing.assert_array_equal(batch.extras["seen"], batch.step_count + begin)
        np.testing.assert_array_equal(batch.extras["id"], batch.env_ids)


@needs_sim
def test_a_state_stays_on_the_device_and_needs_nothing_in_mid_episode() -> None:
    def count(obs: Any, state: Any) -> Any:
        return torch.zeros_like(obs[:, 0]), torch.ones(len(obs), 4, device=obs.device) if state is None else state + 1

    with SyncDataCollector(countdowns(100, 100, 100), count, frames_per_batch=15, policy_device="sim") as collector:
        collector.rollout()
        SIM.counts.clear()
        collector.rollout()
    assert [SIM.counts[name] for name in ("uploads", "downloads", "waits")] == [5, 5, 5]


@FULL
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning", "ignore:TensorFloat32 tensor cores"
)
@pytest.mark.parametrize(
    ("name", "faster"),
    [
        ("cpu", {"compile_policy": {"backend": "eager"}}),
        pytest.param("cuda", {"compile_policy": True}, marks=needs_cuda),
        pytest.param("cuda", {"cudagraph_policy": True}, marks=needs_cuda),
    ],
)
def test_a_faster_policy_gives_the_same_data(name: str, faster: dict[str, Any]) -> None:
    found = []
    for options in ({}, faster):
        options |= {"frames_per_batch": 60, "policy_device": name}
        found.append(course(SyncDataCollector(DummyVectorEnv(cartpoles(3)), Lean(), **options)))
    for batch, want in zip(*found, strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


@pytest.mark.guarantee("G9.14")
@FULL
@pytest.mark.parametrize("used", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_start_and_restart_beside_a_parent_that_uses_torch(context: str, used: str) -> None:
    """With its threads and, on CUDA, its context, in which they have no part; both work on as before."""
    ours, fns = torch.ones(1000, 1000, device=used), [partial(Counter, i) for i in range(2)]
    with ShmemVectorEnv(fns, num_workers=2, context=context, on_error="restart") as venv:
        venv.reset()
        venv.step([0, 0])
        os.kill(venv.get_env_attr("pid", id=0)[0], signal.SIGKILL)
        assert venv.step([0, 0])[3].tolist() == [True, False]
        venv.reset([0])
        assert venv.step([0, 0])[0].shape == venv.reset()[0].shape
        assert float((ours @ ours).sum()) == 1e9
