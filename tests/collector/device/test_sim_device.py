"""The simulated accelerator `sim` is as late as a GPU may be, and hides its memory from the host."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from tests.support.devices import ON_SIM, needs_sim

sim = pytest.mark.parametrize("device", [ON_SIM])


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
def test_views_strides_and_writes_are_those_of_torch() -> None:
    ours, theirs = torch.arange(24.0, device="sim").view(2, 3, 4), torch.arange(24.0).view(2, 3, 4)
    found = []
    for tensor in (ours, theirs):
        moved = tensor.transpose(0, 1)[:, :, 1:]
        moved[1] += 10
        moved[torch.tensor([0, 2], device=tensor.device), 1] = -1
        kept = tensor[tensor > 3]
        found.append(
            [moved, moved.reshape(3, 6), moved.contiguous(), kept, moved.sum(0).bool().long(), copy.deepcopy(tensor)]
        )
    for left, right in zip(*found, strict=True):
        assert left.device.type == "sim"
        assert left.stride() == right.stride()
        assert torch.equal(left.cpu(), right)


@needs_sim
def test_gradients_and_optimisers_work() -> None:
    found = []
    for device in ("sim", "cpu"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
        optimiser, inputs = torch.optim.Adam(net.parameters(), 0.1), torch.linspace(0, 1, 6).view(2, 3).to(device)
        for _ in range(3):
            optimiser.zero_grad()
            net(inputs).square().mean().backward()
            optimiser.step()
        found.append([each.detach().cpu() for each in net.parameters()])
    assert all(map(torch.equal, *found))
