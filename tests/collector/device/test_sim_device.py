"""The simulated accelerator `sim` is as late as a GPU may be, and hides its memory from the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collector import AsyncDataCollector, EpisodeSeeds, SyncDataCollector, TorchVectorEnv
from tests.support.backends import FULL
from tests.support.collector_envs import cartpoles, countdowns
from tests.support.devices import SIM, needs_sim
from tests.support.transform_envs import Samples
from vecenv import DummyVectorEnv
from vecenv.transforms import CatFrames


def pinned(value: float) -> torch.Tensor:
    return torch.empty(3, pin_memory=True).fill_(value)


@needs_sim
def test_a_copy_reads_pinned_memory_when_it_runs_and_other_memory_at_once() -> None:
    early, late = torch.full((3,), 1.0), pinned(1.0)
    copies = early.to("sim", non_blocking=True), late.to("sim", non_blocking=True)
    early.fill_(2.0), late.fill_(2.0)
    assert [each.cpu().tolist() for each in copies] == [[1.0] * 3, [2.0] * 3]
    with_wait = late.to("sim")
    late.fill_(3.0)
    assert with_wait.tolist() == [2.0] * 3


@needs_sim
def test_a_result_is_on_the_host_after_its_event_and_not_before() -> None:
    target, tensor = pinned(0.0), torch.ones(3, device="sim") + 1
    target.copy_(tensor, non_blocking=True)
    event = torch.sim.Event()
    event.record()
    assert not event.query()
    assert target.isnan().all()
    event.synchronize()
    assert event.query()
    assert target.tolist() == [2.0] * 3


@needs_sim
def test_streams_do_not_wait_for_each_other_without_an_event() -> None:
    for waits in (False, True):
        other = torch.sim.Stream()
        with torch.sim.stream(other):
            tensor = torch.ones(3, device="sim") * 2
        if waits:
            torch.sim.current_stream().wait_stream(other)
        assert (tensor + 1).tolist() == ([3.0] * 3 if waits else pytest.approx([math.nan] * 3, nan_ok=True))


@needs_sim
def test_work_of_inference_mode_may_run_after_the_mode() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3, device="sim") + 1
    torch.sim.synchronize()
    assert tensor.tolist() == [2.0] * 3


@needs_sim
def test_the_host_reads_tensors_only_through_copies() -> None:
    tensor = torch.ones(3, device="sim")
    for read in (
        lambda: tensor.numpy(),
        lambda: np.asarray(tensor),
        lambda: np.array([tensor]),
        lambda: memoryview(tensor),
    ):
        with pytest.raises(TypeError):
            read()
    with pytest.raises(RuntimeError, match="sim and on cpu"):
        tensor + torch.ones(3)
    with pytest.raises(RuntimeError, match="sim and on cpu"):
        torch.cat([torch.ones(3), tensor])
    assert tensor.tolist() == [1.0] * 3
    assert tensor[0].item() == 1.0


@needs_sim
def test_steps_may_follow_each_other_without_a_result_on_the_host() -> None:
    actions = np.ones(3, np.int64)
    with DummyVectorEnv(countdowns(9, 9, 9)) as plain, DummyVectorEnv(countdowns(9, 9, 9)) as inner:
        venv = TorchVectorEnv(inner, "sim")
        found, expected = [venv.reset()[0]], [plain.reset()[0]]
        for _ in range(3):
            found.append(venv.step(actions)[0]), expected.append(plain.step(actions)[0])
        for tensor, array in zip(found, expected, strict=True):
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)


PICTURE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
COLUMNS = 13
"""Columns of a batch without observations, which are copied after the last round."""


def counts_of_a_batch(
    kind: Any = SyncDataCollector,
    collect: Callable[[Any], Any] = lambda collector: collector.rollout(),
    lengths: Any = (50, 61, 1000),
    **options: Any,
) -> tuple[Any, Any, int]:
    """Return the counts of a stored batch, the batch, and the bytes of its observations and actions."""
    envs = [partial(Samples, PICTURE, length, spaces.Discrete(2)) for length in lengths]
    with kind(DummyVectorEnv(envs), Brightness(), frames_per_batch=120, device="sim", **options) as collector:
        collector.rollout()
        SIM.counts.clear()
        batch = collect(collector)
    return SIM.counts, batch, batch.obs.nbytes + batch.action.nbytes


@needs_sim
def test_an_observation_is_copied_to_the_device_once_if_batches_are_stored_there() -> None:
    counts, batch, size = counts_of_a_batch()
    rounds = batch.shape[1]
    assert (counts["downloads"], counts["waits"]) == (rounds, rounds + COLUMNS)
    assert counts["upload_bytes"] + counts["download_bytes"] <= 1.05 * size


def hooked(collector: Any) -> Any:
    return collector.collect(
        240, on_step=lambda step: {"light": step.next_obs[:, 0, 0, 0] - step.obs[:, 0, 0, 0]}
    ).batch


WAYS: dict[str, dict[str, Any]] = {
    "asynchronous": {"kind": AsyncDataCollector},
    "asynchronous, a hook": {"kind": AsyncDataCollector, "collect": hooked},
    "episode seeds": {"episode_seeds": EpisodeSeeds(0), "lengths": (50, 61, 70)},
    "whole episodes": {"collect": lambda collector: collector.collect(n_episode=6).batch, "lengths": (50, 61, 70)},
    "a hook": {"collect": hooked},
    "a transform": {"transforms": CatFrames(2, -1)},
}


@FULL
@needs_sim
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_collect_copies_a_stored_observation_once(way: str) -> None:
    counts, _, size = counts_of_a_batch(**WAYS[way])
    if way == "a transform":  # doubles the size, on the device
        assert counts["upload_bytes"] <= 1.2 * size / 2
    else:
        assert counts["upload_bytes"] + counts["download_bytes"] <= 1.05 * size


class Brightness(torch.nn.Module):
    """Policy that writes into its input, which must not be the memory of the batch."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        action = (obs.flatten(1).float().mean(1) > 127).long()
        obs.fill_(0)
        return action


@needs_sim
def test_a_policy_may_write_into_observations_that_the_batch_keeps() -> None:
    envs, found = [partial(Samples, PICTURE, length, spaces.Discrete(2)) for length in (4, 5)], []
    for options in ({"policy_device": "sim"}, {"device": "sim"}, {"device": "sim", "init_random_frames": 20}):
        with SyncDataCollector(envs, Brightness(), frames_per_batch=20, **options) as collector:
            collector.set_seed(0)
            batches = [collector.next(), collector.next()][options.keys() >= {"init_random_frames"} :]
            found.append([each.obs.cpu() if options.get("device") else torch.as_tensor(each.obs) for each in batches])
    assert all(map(torch.equal, *found[:2]))
    assert all(each.any() for batches in found for each in batches)


class Pushes(torch.nn.Module):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return (obs[:, 2] > 0).long()


@needs_sim
@pytest.mark.parametrize("kind", [SyncDataCollector, AsyncDataCollector])
def test_a_collector_continues_after_the_device_had_no_memory(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*form: Any) -> Any:
        raise MemoryError("the device has no memory")

    with kind(cartpoles(3), Pushes(), frames_per_batch=12, device="sim", init_random_frames=12) as collector:
        assert collector.next().frames == 12
        with monkeypatch.context() as patched:
            patched.setattr(SIM, "_empty", refuse)
            with pytest.raises(MemoryError):
                collector.next()
        batch = collector.next()
        assert batch.frames == 12
        assert batch.obs.device.type == "sim"
