"""Collectors with the policy on a device give the same data as with arrays. The device is CUDA or a stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector import SyncDataCollector  # noqa: E402
from collector.device.tensors import resolve_device  # noqa: E402
from tests.support.backends import FULL  # noqa: E402
from tests.support.collector_envs import arrays, assert_equal, cartpoles, countdowns, kinds, lean  # noqa: E402
from tests.support.device_double import LateTransfer  # noqa: E402
from tests.support.faulty import Counter  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Lean(torch.nn.Module):
    """`lean` on tensors, which returns what it has seen; `before` is called as a kernel that needs its input."""

    def __init__(self, before: Callable[[], Any]) -> None:
        super().__init__()
        self.bound = torch.nn.Parameter(torch.zeros(()))
        self._before = before

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        self._before()
        return {"action": (obs[:, 2] > self.bound).long(), "seen": obs}


class Device:
    """A device for the policy: CUDA, or a double that copies as late as it may."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = "cuda" if kind == "cuda" else "cpu"
        self._kernel = LateTransfer.kernel if kind == "late" else lambda: None
        if kind == "late":
            monkeypatch.setattr("collector.device.tensors.Transfer", LateTransfer)

    def policy(self) -> Lean:
        return Lean(self._kernel)


@pytest.fixture(params=["late", pytest.param("cuda", marks=needs_cuda)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that copies when it likes: nothing may be written to before, or read."""
    return Device(request.param, monkeypatch)


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
def test_the_data_is_that_of_a_policy_on_arrays(backend: Any, kind: type, copy: bool, device: Device) -> None:
    """And what the policy has seen is what is stored, also where the device reads the memory that workers write to."""
    collector = kind(backend(cartpoles(3), copy=copy), device.policy(), policy_device=device.name, frames_per_batch=60)
    plain = kind(backend(cartpoles(3)), lean, frames_per_batch=60)
    for batch, want in zip(course(collector), course(plain), strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


@kinds
def test_new_weights_are_used_from_the_next_batch_on(kind: type, device: Device) -> None:
    policy = device.policy()
    with kind(DummyVectorEnv(cartpoles(3)), policy, policy_device=device.name, frames_per_batch=30) as collector:
        collector.rollout()
        collector.update_policy_weights_({"bound": torch.tensor(-9.0)})  # below every angle
        first, second = collector.rollout(), collector.rollout()
    # What was chosen before the update keeps its version.
    for batch in (first, second):
        new = batch.policy_version == 1
        assert (batch.action[new] == 1).all()
    assert (second.policy_version == 1).all()


@kinds
def test_batches_are_tensors_on_the_storing_device(kind: type, device: Device) -> None:
    found = []
    for options in ({"storing_device": device.name}, {}):
        venv = DummyVectorEnv(cartpoles(3))
        with kind(venv, device.policy(), policy_device=device.name, frames_per_batch=30, **options) as collector:
            collector.set_seed(1)
            found.append(collector.rollout())
    stored, plain = found
    for name, column in arrays(stored).items():
        assert column.device == resolve_device(device.name), name
    assert_equal({name: column.cpu().numpy() for name, column in arrays(stored).items()}, arrays(plain))


class TestRowsOfAPolicy:
    """The envs of the rows and the state of a recurrent policy, on a device that nothing may wait for."""

    @pytest.fixture(autouse=True)
    def _nothing_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An index from this process would have to go to the device, and be waited for."""
        monkeypatch.setattr("collector.device.tensors.Transfer", LateTransfer)

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("this waits for the device")

        for name in ("item", "cpu", "tolist", "to"):
            monkeypatch.setattr(torch.Tensor, name, refuse)

        def on_device(index: Callable[..., Any]) -> Callable[..., Any]:
            def kernel(tensor: torch.Tensor, where: Any, *value: Any) -> Any:
                assert not isinstance(where, np.ndarray), "this waits for the device"
                if isinstance(where, torch.Tensor):
                    LateTransfer.kernel()
                return index(tensor, where, *value)

            return kernel

        for name in ("__getitem__", "__setitem__"):
            monkeypatch.setattr(torch.Tensor, name, on_device(getattr(torch.Tensor, name)))

    @kinds
    @pytest.mark.parametrize("first", [None, 5])
    def test_they_go_the_way_of_the_observations(self, kind: Any, first: int | None) -> None:
        class Counts:
            def __call__(self, obs: Any, state: Any, env_id: Any) -> dict[str, Any]:
                LateTransfer.kernel()
                state = torch.zeros(len(obs), 1) if state is None else state
                seen = {"seen": state[:, 0], "id": env_id}
                return {"action": torch.zeros(len(obs), dtype=torch.long), **seen, "state": state + 1}

        if first is not None:
            Counts.initial_state = lambda self, k: torch.full((k, 1), float(first))  # type: ignore[attr-defined]
        with kind(DummyVectorEnv(countdowns(2, 3, 7)), Counts(), frames_per_batch=12, policy_device="cpu") as collector:
            batches = [collector.rollout().flatten() for _ in range(4)]
            collector.reset([1])
            batches.append(collector.rollout().flatten())
            batches.append(collector.collect(n_episode=4).batch.flatten())
        for batch in batches:
            np.testing.assert_array_equal(batch.extras["seen"], batch.step_count + (first or 0))
            np.testing.assert_array_equal(batch.extras["id"], batch.env_ids)

    def test_a_state_stays_there_and_needs_nothing_in_mid_episode(self) -> None:
        def count(obs: Any, state: Any) -> Any:
            LateTransfer.kernel()
            return torch.zeros(len(obs), dtype=torch.long), torch.ones(len(obs), 4) if state is None else state + 1

        venv = DummyVectorEnv(countdowns(100, 100, 100))
        with SyncDataCollector(venv, count, frames_per_batch=15, policy_device="cpu") as collector:
            collector.rollout()
            LateTransfer.log.clear()
            collector.rollout()
        assert LateTransfer.log == ["copy", "record", "copy", "record", "wait"] * 5


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
        found.append(course(SyncDataCollector(DummyVectorEnv(cartpoles(3)), Lean(lambda: None), **options)))
    for batch, want in zip(*found, strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


@needs_cuda
@kinds
def test_a_module_on_another_device_is_copied_and_the_copy_is_updated_on_request(kind: type) -> None:
    policy = Lean(lambda: None)
    with kind(cartpoles(3), policy, frames_per_batch=30, policy_device="cuda") as collector:
        collector.rollout()
        with torch.no_grad():
            policy.bound.fill_(-9.0)
        collector.rollout()
        collector.update_policy_weights_()
        collector.rollout()
        assert policy.bound.device.type == "cpu"
        assert (collector.rollout().action == 1).all()


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
