"""Transforms give the same batches in the collector, around the vector env, in workers and on a device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from collector import AsyncDataCollector, SyncDataCollector  # noqa: E402
from collector.device.torch_vector_env import TransformedOnDevice  # noqa: E402
from tests.support.backends import FULL, one_of  # noqa: E402
from tests.support.collector_envs import kinds  # noqa: E402
from tests.support.devices import ACCELERATOR, ON_ACCELERATOR, needs_accelerator  # noqa: E402
from tests.support.transform_envs import IMAGE, VECTOR, Samples  # noqa: E402
from vecenv import DummyVectorEnv, ShmemVectorEnv, TransformedVectorEnv, nest  # noqa: E402
from vecenv.transforms import (  # noqa: E402
    ActionScaling,
    CatFrames,
    Compose,
    GrayScale,
    Resize,
    RewardScaling,
    RewardSum,
    StepCounter,
    TimeLimit,
    ToTensorImage,
    VecNorm,
)

CHAINS: dict[str, Any] = {
    "pictures": (IMAGE, lambda: Compose(ToTensorImage(), GrayScale(), Resize(6), CatFrames(4, -3))),
    "numbers": (VECTOR, lambda: [CatFrames(2, -1), RewardScaling(0.0, 0.1), ActionScaling()]),
    "dict": (VECTOR, lambda: [RewardSum(), StepCounter()]),
    "ends episodes": (VECTOR, lambda: [CatFrames(2, -1), TimeLimit(3)]),
    "learns": (VECTOR, lambda: VecNorm(decay=0.9)),
}


def env_fns(space: Any = VECTOR) -> list[Any]:
    return [partial(Samples, space, length) for length in (4, 5, 7)]


class Linear(torch.nn.Module):
    """Policy with two actions in [-1, 1] that depend on the whole observation."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, obs: Any) -> torch.Tensor:
        parts = [leaf.flatten(1).double().sum(1) for leaf in nest.leaves(obs)]
        total = (self.scale * torch.stack(parts).sum(0)).detach()
        return torch.stack([total.sin(), total.cos()], 1).float()


def batches(collector: Any) -> list[Any]:
    collector.set_seed(5)
    return [collector.next() for _ in range(2)]


@pytest.mark.parametrize("kind", one_of([SyncDataCollector, AsyncDataCollector]))
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("device", [None, pytest.param("cpu", marks=FULL), ON_ACCELERATOR])
def test_batches_are_those_of_a_transformed_vector_env(kind: type, chain: str, device: str | None) -> None:
    space, make = CHAINS[chain]
    venv: Any = TransformedVectorEnv(DummyVectorEnv(env_fns(space)), make())
    if device:
        venv = TransformedOnDevice(DummyVectorEnv(env_fns(space), copy=False), make(), device)
    tolerance = 1e-5 if device else 0.0
    with (
        kind(DummyVectorEnv(env_fns(space)), Linear(), frames_per_batch=30, transforms=make()) as ours,
        kind(venv, Linear().to(device), frames_per_batch=30) as others,
    ):
        for left, right in zip(batches(ours), batches(others), strict=True):
            columns = [(b.obs, b.next.obs, b.reward, b.action, b.terminated, b.truncated) for b in (left, right)]
            for mine, yours in zip(*map(nest.leaves, columns), strict=True):
                assert mine.dtype == yours.dtype
                np.testing.assert_allclose(np.asarray(mine), np.asarray(yours), rtol=tolerance, atol=tolerance)


@needs_accelerator
def test_the_device_is_that_of_the_policy() -> None:
    seen = []

    def policy(obs: Any) -> torch.Tensor:
        seen.extend(nest.leaves(obs))
        return Linear()(nest.map(lambda leaf: leaf.cpu(), obs)).to(ACCELERATOR)

    options = {"transforms": CHAINS["numbers"][1](), "policy_device": ACCELERATOR}
    with SyncDataCollector(ShmemVectorEnv(env_fns()), policy, frames_per_batch=30, **options) as collector:
        assert isinstance(collector.env, TransformedOnDevice)
        batches(collector)
    assert {leaf.device.type for leaf in seen} == {ACCELERATOR}


def assert_equal_states(one: Any, other: Any) -> None:
    np.testing.assert_equal(*(nest.map(nest.as_array, state) for state in (one, other)))


@kinds
@pytest.mark.parametrize("device", ["cpu", None], ids=["on a device", "in this process"])
def test_the_env_state_dict_is_what_the_transforms_have_learnt(kind: type, device: Any) -> None:
    """Steps in flight do not change the statistics that a collector loads."""

    def make() -> Any:
        venv, norm = DummyVectorEnv(env_fns()), VecNorm(decay=0.9)
        if device is None:
            return kind(venv, frames_per_batch=30, transforms=norm)
        return kind(TransformedOnDevice(venv, norm, device), frames_per_batch=30)

    with make() as first, make() as second:
        batches(first)
        state = first.state_dict()
        assert_equal_states(state["env_state_dict"], first.env.state_dict())
        assert state["env_state_dict"]["0.VecNorm"]["observation_count"] > 1
        second.next()
        second.load_state_dict(state)
        assert_equal_states(second.env.state_dict(), state["env_state_dict"])


class FailsInItsThirdStep(Samples):
    def step(self, action: Any) -> Any:
        if self.t == 2:
            raise OverflowError("the env broke")
        return super().step(action)


@pytest.mark.parametrize("device", ["cpu", ON_ACCELERATOR])
def test_rows_of_envs_that_fail_are_the_same_on_a_device(device: str) -> None:
    fns = [partial(Samples, VECTOR), partial(FailsInItsThirdStep, VECTOR)]
    found = []
    for wrap in (TransformedVectorEnv, partial(TransformedOnDevice, device=device)):
        with wrap(DummyVectorEnv(fns, on_error="restart"), [CatFrames(2, -1), RewardSum()]) as venv:
            found.append([venv.reset(seed=3), *(venv.step(np.ones((2, 2), np.float32)) for _ in range(3))])
    for plain, on_device in zip(*found, strict=True):
        for one, other in zip(nest.leaves(plain[:-1]), nest.leaves(on_device[:-1]), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6)
    assert found[1][-1][3].tolist() == [False, True]
