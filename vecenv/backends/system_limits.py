"""Limits of this process (CPUs, memory, file descriptors), for defaults and early errors."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from vecenv.portability import allowed_cpus, system_file
from vecenv.ray_cluster import assigned_cpus


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, at least 1."""
    cpus = len(allowed_cpus() or ()) or os.cpu_count() or 1
    shares = [share for share in (*map(_quota_of, _control_groups("cpu")), assigned_cpus()) if share is not None]
    return max(1, min([cpus, *map(math.ceil, shares)]))


def default_num_workers(n: int, eager: bool) -> int:
    return n if eager else min(n, usable_cpus())


def blocks_of(n: int, num_workers: int) -> list[range]:
    bounds = [round(k * n / num_workers) for k in range(num_workers + 1)]
    return [range(*ends) for ends in pairwise(bounds)]


def _control_groups(controller: str) -> Iterator[str]:
    """Yield the folders of this process's control groups (v2 and v1), up to the root. Some may not exist."""
    lines = (system_file("/proc/self/cgroup") or "").splitlines()
    for line in [*lines, "0::/", f"0:{controller}:/"]:
        _, controllers, path = f"{line}::".split(":")[:3]
        if path and (not controllers or controller in controllers.split(",")):
            root = f"/sys/fs/cgroup/{controller if controllers else ''}".rstrip("/")
            own = PurePosixPath(os.path.normpath(path))
            yield from (f"{root}{folder}".rstrip("/") for folder in (own, *own.parents))


def _quota_of(group: str) -> float | None:
    numbers = (system_file(f"{group}/cpu.max") or "").split()
    if len(numbers) != 2:
        numbers = [system_file(f"{group}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    try:
        quota = int(numbers[0]) / int(numbers[1])
    except (ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None


def available_memory() -> int | None:
    """Return the bytes that can be allocated before processes are killed (macOS: all memory), or `None` if unknown."""
    grants = _free_memory(), *map(_memory_of, _control_groups("memory"))
    return min((number for number in grants if number is not None), default=None)


def _free_memory() -> int | None:
    for line in (system_file("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _memory_of(group: str) -> int | None:
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            left = int(system_file(f"{group}/{limit}") or "") - int(system_file(f"{group}/{usage}") or "")
            return max(0, left)
        except ValueError:  # no such file, or "max"
            continue
    return None


def check_descriptors(needed: int, purpose: str) -> None:
    """Raise OSError (EMFILE) if this process cannot open `needed` more files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        left = limit - len(os.listdir("/dev/fd"))
    except OSError:
        return
    if limit != resource.RLIM_INFINITY and needed > left:
        text = f"{purpose} need about {needed} file descriptors and {left} are left"
        raise OSError(errno.EMFILE, f"{text}: raise `ulimit -n`, or pass a smaller num_workers=")


def open_standard_streams() -> None:
    """Open descriptors 0 to 2 if they are closed. If not, C code of envs could write into a pipe or shared memory."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
