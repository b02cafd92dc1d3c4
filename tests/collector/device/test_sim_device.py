"""The simulated accelerator `sim`: it is as late as a GPU may be, hides its memory, and counts copies and waits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector, TorchVectorEnv
from tests.support.backends import FULL
from tests.support.devices import SIM, needs_sim
from tests.support.simulators import Simulator
from tests.support.transform_envs import Samples
from vecenv import DummyVectorEnv, from_gymnasium
from vecenv.transforms import CatFrames, GrayScale, Resize, RewardSum, StepCounter, ToTensorImage, VecNorm


@needs_sim
def test_work_is_done_when_the_host_waits_for_it_and_not_before() -> None:
    """Otherwise, `sim` would not show that a program reads or overwrites memory too early."""
    pinned, target = (torch.empty(3, pin_memory=True).fill_(1.0) for _ in range(2))
    plain = torch.ones(3)
    copies = [memory.to("sim", non_blocking=True) for memory in (pinned, plain)]
    target.copy_(copies[0] + copies[1], non_blocking=True)
    event = torch.sim.Event()
    event.record()
    for memory in (pinned, plain):
        memory.fill_(2.0)
    assert target.isnan().all()
    event.synchronize()
    assert target.tolist() == [3.0] * 3, "only pinned memory is read late"
    with torch.sim.stream(torch.sim.Stream()):
        doubled = copies[0] * 2
    assert (doubled + 1).isnan().all(), "streams do not wait for each other"


@needs_sim
def test_the_host_reads_tensors_only_through_copies() -> None:
    tensor = torch.ones(3, device="sim")
    for read in (tensor.numpy, partial(np.asarray, tensor), partial(np.array, [tensor])):
        with pytest.raises(TypeError):
            read()
    for mix in (partial(torch.add, tensor, torch.ones(3)), partial(torch.cat, [torch.ones(3), tensor])):
        with pytest.raises(RuntimeError, match="sim and on cpu"):
            mix()
    assert tensor.tolist() == [1.0] * 3
    assert tensor[0].item() == 1.0


# Copies and waits of the product.


def counts_of_a_step(transforms: Any) -> Any:
    with TorchVectorEnv(DummyVectorEnv(pictures(50, 61)), "sim", transforms=transforms) as venv:
        venv.reset()
        actions = [torch.full((2,), i, device="sim") for i in (0, 1, 0, 1)]
        for action in actions:
            SIM.counts.clear()
            venv.step(action)
    return SIM.counts


@needs_sim
def test_a_step_of_a_vector_env_is_one_copy_a_leaf_and_one_wait() -> None:
    counts = counts_of_a_step(None)
    assert (counts["downloads"], counts["waits"], counts["uploads"]) == (1, 1, 4)


@needs_sim
def test_transforms_leave_observations_on_the_device_and_add_no_wait() -> None:
    transforms = [ToTensorImage(), GrayScale(), Resize(20), CatFrames(2, -3), VecNorm(), RewardSum(), StepCounter()]
    counts = counts_of_a_step(transforms)
    assert counts["download_bytes"] < 100
    assert (counts["downloads"], counts["waits"], counts["uploads"]) == (1, 1, 4)


class Brightness(torch.nn.Module):
    """Policy that writes into its input, which must not be the memory of the batch."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        action = (obs.flatten(1).float().mean(1) > 127).long()
        obs.fill_(0)
        return action


def pictures(*lengths: int) -> list[Any]:
    picture = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    return [partial(Samples, picture, length, spaces.Discrete(2)) for length in lengths]


def hooked(collector: Any) -> Any:
    return collector.collect(
        240, on_step=lambda step: {"light": step.next_obs[:, 0, 0, 0] - step.obs[:, 0, 0, 0]}
    ).batch


@needs_sim
@pytest.mark.parametrize(
    ("kind", "collect", "options"),
    [
        (SyncDataCollector, SyncDataCollector.rollout, {}),
        pytest.param(AsyncDataCollector, hooked, {}, marks=FULL),
        pytest.param(SyncDataCollector, SyncDataCollector.rollout, {"episode_seeds": EpisodeSeeds(0)}, marks=FULL),
        pytest.param(SyncDataCollector, SyncDataCollector.rollout, {"transforms": CatFrames(2, -1)}, marks=FULL),
    ],
    ids=["sync", "async, a hook", "episode seeds", "a transform"],
)
def test_a_stored_observation_is_copied_to_the_device_once(kind: Any, collect: Any, options: dict[str, Any]) -> None:
    venv = DummyVectorEnv(pictures(50, 61, 70))
    with kind(venv, Brightness(), frames_per_batch=120, device="sim", **options) as collector:
        collector.rollout()
        SIM.counts.clear()
        batch = collect(collector)
    size, counts = batch.obs.nbytes + batch.action.nbytes, SIM.counts.copy()
    assert all(row.any() for row in batch.obs.cpu().flatten(0, 1)), "the policy wrote into the batch"
    if "transforms" in options:  # the transform doubles the size, on the device
        assert counts["upload_bytes"] <= 1.3 * size / 2
    else:
        assert counts["upload_bytes"] + counts["download_bytes"] <= 1.05 * size


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
        policy = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
        with SyncDataCollector(venv, policy, device="sim", frames_per_batch=8 * rounds) as collector:
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
