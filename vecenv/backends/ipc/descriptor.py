"""Descriptor: a file descriptor that travels to a process being started."""

from __future__ import annotations

from multiprocessing import reduction
from typing import Any


class Descriptor:
    """Travels by pickle while a process is started; the receiver owns its copy."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()
