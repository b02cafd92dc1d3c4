"""Collectors with the policy on a device give the same data as with arrays. The device is CUDA or a stand-in."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector import SyncDataCollector  # noqa: E402
from collector.device.tensors import resolve_device  # noqa: E402
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


@pytest.mark.parametrize(("backend", "copy"), [(ShmemVectorEnv, False), pytest.param(DummyVectorEnv, True, marks=FULL)])
@kinds
@needs_accelerator
def test_the_data_is_that_of_a_policy_on_arrays(backend: Any, kind: type, copy: bool) -> None:
    """And what the policy has seen is what is stored, also where the device reads the memory that workers write to."""
    collector = kind(backend(cartpoles(3), copy=copy), Lean(), policy_device=ACCELERATOR, frames_per_batch=60)
    plain = kind(backend(cartpoles(3)), lean, frames_per_batch=60)
    for batch, want in zip(course(collector), course(plain), strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


@kinds
@needs_accelerator
def test_new_weights_are_used_from_the_next_batch_on(kind: type) -> None:
    with kind(DummyVectorEnv(cartpoles(3)), Lean(), policy_device=ACCELERATOR, frames_per_batch=30) as collector:
        collector.rollout()
        collector.update_policy_weights_({"bound": torch.tensor(-9.0)})  # below every angle
        first, second = collector.rollout(), collector.rollout()
    # What was chosen before the update keeps its version.
    for batch in (first, second):
        new = batch.policy_version == 1
        assert (batch.action[new] == 1).all()
    assert (second.policy_version == 1).all()


@kinds
@needs_accelerator
def test_batches_are_tensors_on_the_storing_device(kind: type) -> None:
    found = []
    for options in ({"storing_device": ACCELERATOR}, {}):
        venv = DummyVectorEnv(cartpoles(3))
        with kind(venv, Lean(), policy_device=ACCELERATOR, frames_per_batch=30, **options) as collector:
            collector.set_seed(1)
            found.append(collector.rollout())
    stored, plain = found
    for name, column in arrays(stored).items():
        assert column.device == resolve_device(ACCELERATOR), name
    assert_equal({name: column.cpu().numpy() for name, column in arrays(stored).items()}, arrays(plain))


class TestRowsOfAPolicy:
    """The envs of the rows and the state of a recurrent policy need no wait of their own."""

    @kinds
    @needs_accelerator
    @pytest.mark.parametrize("first", [None, 5])
    def test_they_go_the_way_of_the_observations(self, kind: Any, first: int | None) -> None:
        class Counts:
            def __call__(self, obs: Any, state: Any, env_id: Any) -> dict[str, Any]:
                state = torch.zeros(len(obs), 1, device=obs.device) if state is None else state
                seen = {"seen": state[:, 0], "id": env_id}
                return {"action": torch.zeros_like(obs[:, 0]), **seen, "state": state + 1}

        if first is not None:
            Counts.initial_state = lambda self, k: torch.full((k, 1), float(first), device=ACCELERATOR)  # type: ignore[attr-defined]
        options: dict[str, Any] = {"frames_per_batch": 12, "policy_device": ACCELERATOR}
        with kind(DummyVectorEnv(countdowns(2, 3, 7)), Counts(), **options) as collector:
            batches = [collector.rollout().flatten() for _ in range(4)]
            if SIM is not None and kind is SyncDataCollector:
                SIM.counts.clear()
                batches.append(collector.rollout().flatten())
                assert SIM.counts["waits"] == 4
            collector.reset([1])
            batches.append(collector.rollout().flatten())
            batches.append(collector.collect(n_episode=4).batch.flatten())
        for batch in batches:
            np.testing.assert_array_equal(batch.extras["seen"], batch.step_count + (first or 0))
            np.testing.assert_array_equal(batch.extras["id"], batch.env_ids)

    @needs_sim
    def test_a_state_stays_there_and_needs_nothing_in_mid_episode(self) -> None:
        def count(obs: Any, state: Any) -> Any:
            state = torch.ones(len(obs), 4, device=obs.device) if state is None else state + 1
            return torch.zeros_like(obs[:, 0]), state

        venv = DummyVectorEnv(countdowns(100, 100, 100))
        with SyncDataCollector(venv, count, frames_per_batch=15, policy_device="sim") as collector:
            collector.rollout()
            SIM.counts.clear()
            collector.rollout()
        del SIM.counts["upload_bytes"], SIM.counts["download_bytes"]
        assert SIM.counts == {"uploads": 5, "downloads": 5, "waits": 5}


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


@needs_accelerator
@kinds
def test_a_module_on_another_device_is_copied_and_the_copy_is_updated_on_request(kind: type) -> None:
    policy = Lean()
    with kind(cartpoles(3), policy, frames_per_batch=30, policy_device=ACCELERATOR) as collector:
        collector.rollout()
        with torch.no_grad():
            policy.bound.fill_(-9.0)
        collector.rollout()
        collector.update_policy_weights_()
        collector.rollout()
        assert policy.bound.device.type == "cpu"
        assert (collector.rollout().action == 1).all()


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
