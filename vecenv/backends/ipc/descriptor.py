"""Descriptor: a file descriptor that travels to a worker."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Sequence
from multiprocessing import context, reduction
from typing import Any


class Descriptor:
    """Travels by pickle while a process is started, or beside it (`dumps_apart`); the receiver owns its copy."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.fds: list[int] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Descriptor):
            return None
        self.fds.append(value.fd)
        return len(self.fds) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, fds: Sequence[int]) -> None:
        super().__init__(file)
        self._fds = fds

    def persistent_load(self, place: int) -> Descriptor | None:
        return Descriptor(self._fds[place]) if self._fds else None


def dumps_apart(value: Any) -> tuple[bytes, list[int]]:
    """A pickle without the descriptors in `value`, and these, which have to be sent by other means."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    _pickling.apart = True
    try:
        pickler.dump(value)
    finally:
        _pickling.apart = False
    return file.getvalue(), pickler.fds


def may_travel() -> bool:
    """Whether what is pickled now, in this thread, may hold descriptors."""
    return context.get_spawning_popen() is not None or getattr(_pickling, "apart", False)


_pickling = threading.local()


def loads_apart(blob: bytes, fds: Sequence[int]) -> Any:
    """What `dumps_apart` has pickled; without `fds` each of its descriptors is None."""
    return _Unpickler(io.BytesIO(blob), fds).load()
