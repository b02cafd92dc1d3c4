"""The collectors with the policy on a device: the data is that of arrays, on CUDA and on a double that copies late."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from collector_envs import arrays, assert_equal, cartpoles, kinds, lean  # noqa: E402
from device_double import LateCopier  # noqa: E402
from faulty import Counter  # noqa: E402

from collector import SyncDataCollector  # noqa: E402
from collector.device.tensors import resolve_device  # noqa: E402
from collector.device.transfer import PinnedTransfer  # noqa: E402
from tests.backends import FULL  # noqa: E402
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
    """Where the policy runs."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = "cuda" if kind == "cuda" else "cpu"
        self._monkeypatch = monkeypatch
        self._copier = LateCopier() if kind == "late" else None

    def collector(self, kind: type, venv: Any, policy: Any, **options: Any) -> Any:
        """A collector whose policy runs there."""
        if self._copier is not None:
            pinned = partial(PinnedTransfer, copier=self._copier)
            self._monkeypatch.setattr("collector.policy.torch_policy.make_transfer", pinned)
        return kind(venv, policy, policy_device=self.name, **options)

    def policy(self) -> Lean:
        return Lean(lambda: None if self._copier is None else self._copier.kernel())


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
    collector = device.collector(kind, backend(cartpoles(3), copy=copy), device.policy(), frames_per_batch=60)
    plain = kind(backend(cartpoles(3)), lean, frames_per_batch=60)
    for batch, want in zip(course(collector), course(plain), strict=True):
        assert_equal(arrays(batch), arrays(want))
        np.testing.assert_array_equal(batch.extras["seen"], batch.obs)


@kinds
def test_new_weights_are_used_from_the_next_batch_on(kind: type, device: Device) -> None:
    policy = device.policy()
    with device.collector(kind, DummyVectorEnv(cartpoles(3)), policy, frames_per_batch=30) as collector:
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
        with device.collector(kind, venv, device.policy(), frames_per_batch=30, **options) as collector:
            collector.set_seed(1)
            found.append(collector.rollout())
    stored, plain = found
    for name, column in arrays(stored).items():
        assert column.device == resolve_device(device.name), name
    assert_equal({name: column.cpu().numpy() for name, column in arrays(stored).items()}, arrays(plain))


def test_a_shutdown_releases_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the collector itself is still referenced, and before any garbage is collected."""

    class Registration:
        pass

    class Registers(LateCopier):
        def register(self, array: np.ndarray) -> Any:
            held = Registration()
            registered.add(held)
            return held

    registered: weakref.WeakSet[Registration] = weakref.WeakSet()
    copier = Registers()
    with monkeypatch.context() as patch:
        venv = ShmemVectorEnv(cartpoles(3), copy=False)
        patch.setattr("collector.policy.torch_policy.make_transfer", partial(PinnedTransfer, copier=copier))
        collector = SyncDataCollector(venv, Lean(copier.kernel), policy_device="cpu", frames_per_batch=30)
    runner = weakref.ref(collector._runner)
    gc.disable()
    try:
        collector.rollout()
        assert len(registered) == 1
        collector.shutdown()
        assert not registered
        assert collector.stats().frames == 30
        assert collector.state_dict()["policy_state_dict"].keys() == {"bound"}
        del collector
        assert runner() is None
    finally:
        gc.enable()


@FULL
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning", "ignore:TensorFloat32 tensor cores"
)
@pytest.mark.parametrize(
    ("name", "faster"),
    [
        ("cpu", {"compile_policy": {"backend": "eager"}}),
        pytest.param("cuda", {"compile_policy": True, "cudagraph_policy": True}, marks=needs_cuda),
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
