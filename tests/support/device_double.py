"""A double of CUDA that copies as late as CUDA may: its rules are tested on machines without it."""

from __future__ import annotations

import torch

from collector.device.tensors import Transfer


class LateTransfer(Transfer):
    """A transfer whose copies run as late as they may: when this process waits for them, or a kernel needs them.

    Fails (`AssertionError`) where the source of a copy was written to before the copy ran. `log` names the calls
    in order, of all transfers; `kernel` is called by what runs on the device. Memory comes filled with 77.
    """

    log: list[str] = []
    queue: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __init__(self, device: torch.device | str = "cpu", rows: int = 8) -> None:
        super().__init__(torch.device(device), rows)
        self.is_staged = True

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.log.append("pinned")
        return torch.full(shape, 77, dtype=dtype)

    def upload(self, source: torch.Tensor) -> torch.Tensor:
        target = torch.full_like(source, 77)
        self.download(target, source)
        return target

    def download(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.log.append("copy")
        self.queue.append((target, source, source.clone()))

    def record(self) -> None:
        self.log.append("record")

    def wait(self) -> None:
        self.log.append("wait")
        self.kernel()

    @classmethod
    def kernel(cls) -> None:
        """The memory that a kernel sees that is launched now: everything that was queued before has run."""
        while cls.queue:
            target, source, then = cls.queue.pop(0)
            assert torch.equal(source, then), "the source of a copy was written to before the copy had run"
            target.copy_(source)
