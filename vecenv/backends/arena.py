"""The arena: one contiguous array for each leaf of the batch, all in one block of memory that may be shared.

    mail        (n,)  uint8     the post box of each env: what is asked of it, or that it has answered (see below)
    reward      (n,)  float64
    terminated  (n,)  bool
    truncated   (n,)  bool
    action      (n, *shape)     when the action is one array leaf
    obs         (n, *shape)     for each array leaf of the observation
    final       (n, *shape)     the last observation of an env that was reset in the round of its last step

The post box of an env has one writer at a time: the parent writes an operation into an idle box, the host writes the
answer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.layout import Layout, Leaf
from vecenv.backends.limits import available_memory
from vecenv.errors import SharedMemoryError

IDLE = 0
STEP = 1  # with the action in the arena
RESET = 2  # without arguments
STEP_OBJECT = 3  # with the action in the payload of the round
RESET_KWARGS = 4  # with the keyword arguments in the payload of the round
WIDE = 32  # added to a step with the action in the arena: it is float64, though the space has a smaller float type
AUTORESET = 64  # added to a step: reset the env as well if the step ends its episode
STEP_RESET = STEP | AUTORESET
PLAIN = ~(WIDE | AUTORESET) & 127  # what is left of an operation without what was added to it
DONE = 128  # the row holds all there is
EXTRA = 1  # added to DONE: there is an `Extra` besides the row
FINAL = 2  # added to DONE: there is a last observation besides the row
DONE_EXTRA, DONE_FINAL, DONE_EXTRA_FINAL = DONE | EXTRA, DONE | FINAL, DONE | EXTRA | FINAL

PAGE = 4096
_ALL_OPS = bytes(range(IDLE + 1, DONE))
NOT_DONE = bytes(range(DONE))
"""What `mail.translate(None, ...)` takes away to leave the answers."""


def all_ask(mail: bytes) -> bool:
    """Whether every one of these post boxes asks for something."""
    return not mail.translate(None, _ALL_OPS)


def has_extra(answer: int) -> bool:
    """Whether there is an `Extra` besides what the arena holds."""
    return answer in (DONE_EXTRA, DONE_EXTRA_FINAL)


def only(j: int, mail: bytes) -> bytes:
    """What is asked of env j alone."""
    return bytes(j) + mail[j : j + 1] + bytes(len(mail) - j - 1)


@dataclass
class Arena:
    """The arrays of a batch, or of a block of its envs."""

    mail: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    action: np.ndarray | None
    obs: Any
    """Tree of arrays (n, *shape); an object leaf is an object array (n,), which is never shared."""
    final: Any
    """A tree like `obs`, whose object leaves are not used."""

    @classmethod
    def build(cls, layout: Layout, n: int, buffer: Any = None) -> Arena:
        """The arena of `n` envs on `buffer` (`arena_bytes` long), or on fresh private memory."""
        if buffer is None:
            buffer = bytearray(arena_bytes(layout, n))
        offsets = iter(_plan(layout, n)[0])

        def array(leaf: Any) -> np.ndarray:
            if not isinstance(leaf, Leaf):
                return np.empty(n, dtype=object)
            return np.ndarray((n, *leaf.shape), leaf.dtype, buffer, next(offsets))

        mail, reward, terminated, truncated = (array(leaf) for leaf in _SMALL)
        action = None if layout.action is None else array(layout.carried_action)
        obs, final = nest.map(array, layout.obs), nest.map(array, layout.obs)
        return cls(mail, reward, terminated, truncated, action, obs, final)

    def block(self, start: int, stop: int) -> Arena:
        """The rows of envs `start` .. `stop - 1`, as views."""
        rows = slice(start, stop)
        action = None if self.action is None else self.action[rows]
        obs = nest.take(self.obs, rows)
        flags = self.terminated[rows], self.truncated[rows]
        return Arena(self.mail[rows], self.reward[rows], *flags, action, obs, nest.take(self.final, rows))

    def outputs(self) -> list[np.ndarray]:
        """The arrays that hosts write, other than `mail` and object leaves."""
        return [*_arrays(self.obs), self.reward, self.terminated, self.truncated]

    def finals(self) -> list[np.ndarray]:
        """The arrays of the last observations, other than object leaves."""
        return _arrays(self.final)


def _arrays(tree: Any) -> list[np.ndarray]:
    return [leaf for leaf in nest.leaves(tree) if leaf.dtype != object]


_SMALL = (
    Leaf("mail", (), np.dtype(np.uint8)),
    Leaf("reward", (), np.dtype(np.float64)),
    Leaf("terminated", (), np.dtype(np.bool_)),
    Leaf("truncated", (), np.dtype(np.bool_)),
)


def _plan(layout: Layout, n: int) -> tuple[list[int], int, int]:
    """The offset of each array, of the end of those that every round uses, and of the end of all.

    Arrays start on pages, so that each can be registered with a GPU.
    """
    action = () if layout.carried_action is None else (layout.carried_action,)
    obs = [leaf for leaf in nest.leaves(layout.obs) if isinstance(leaf, Leaf)]
    used = [*_SMALL, *action, *obs]
    offsets = [0]
    for leaf in (*used, *obs):
        size = n * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
        offsets.append(offsets[-1] + -(-size // PAGE) * PAGE)
    return offsets, offsets[len(used)], offsets[-1]


def arena_bytes(layout: Layout, n: int) -> int:
    """The bytes that the arena of `n` envs takes."""
    return _plan(layout, n)[2]


def used_bytes(layout: Layout, n: int) -> int:
    """How many of them every round uses: the last observations, which not everybody asks for, are behind those."""
    return _plan(layout, n)[1]


def anonymous_file(name: str) -> int:
    """The descriptor of an unnamed file in memory, or in the temporary folder where there is no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, size: int, purpose: str, used: int | None = None) -> mmap.mmap:
    """Give the file `fd` `size` bytes, and map them. SharedMemoryError if there is not so much.

    The first `used` (None: all) are really there: without that a full memory would kill whoever touches a page first
    (SIGBUS) instead of failing here. The others are taken when they are written to.
    """
    used = size if used is None else used
    available = available_memory()
    if available is not None and used > available:
        raise _refused(used, purpose, f"only {available / 2**20:.1f} MiB are available")
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, used)
        memory = mmap.mmap(fd, size)
    except OSError as error:
        raise _refused(used, purpose, f"the system refused: {error}") from error
    _seal(fd)
    return memory


def _refused(size: int, purpose: str, reason: str) -> SharedMemoryError:
    return SharedMemoryError(
        f"{size / 2**20:.1f} MiB of shared memory are needed for {purpose}, but {reason}. "
        "Use fewer envs, smaller observations, or SubprocVectorEnv."
    )


def _seal(fd: int) -> None:
    """No process may change the size any more: shrinking it under another one would kill that one."""
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
