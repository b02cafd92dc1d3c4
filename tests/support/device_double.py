"""Stand-in for CUDA, for machines without CUDA. It delays copies as long as CUDA may."""

from __future__ import annotations

import torch

from collector.device.tensors import Transfer


class LateTransfer(Transfer):
    """Transfer that delays each copy until this process waits for it, or a kernel needs it.

    Raises `AssertionError` if the source of a copy was overwritten before the copy ran. `log` has the calls of all
    transfers in order. Code on the device calls `kernel`. New memory is filled with 77.
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
        """Return the memory as a kernel that starts now would see it: all queued copies have run."""
        while cls.queue:
            target, source, then = cls.queue.pop(0)
            assert torch.equal(source, then), "the source of a copy was written to before the copy had run"
            target.copy_(source)
