"""Limits of this process: CPUs, memory and file descriptors."""

from __future__ import annotations

import errno
import math
import os
import resource
from itertools import pairwise

from vecenv.portability import allowed_cpus, system_file


def usable_cpus() -> int:
    """The CPUs that this process may use: its affinity mask, and the quota of its control group (at least 1)."""
    cpus = len(allowed_cpus() or ()) or os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cpus, math.ceil(quota))) if quota is not None else max(1, cpus)


def default_num_workers(n: int, eager: bool) -> int:
    """Number of workers of `n` envs by default: one a CPU, or one an env where each is waited for by itself."""
    return n if eager else min(n, usable_cpus())


def blocks_of(n: int, num_workers: int) -> list[range]:
    """The env ids of each worker: neighbours, and of equal number as far as they can be."""
    bounds = [round(k * n / num_workers) for k in range(num_workers + 1)]
    return [range(*ends) for ends in pairwise(bounds)]


def _cgroup_quota() -> float | None:
    """CPUs' worth of time that the control group grants (v2, or v1), None for no limit."""
    numbers = (system_file("/sys/fs/cgroup/cpu.max") or "").split()
    if len(numbers) != 2:
        v1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        numbers = [system_file(path) or "" for path in v1]
    try:
        quota = int(numbers[0]) / int(numbers[1])
    except (ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None


def available_memory() -> int | None:
    """Bytes that can be taken without the system killing a process for lack of memory, None where it is not known."""
    grants = [number for number in (_free_memory(), _cgroup_memory()) if number is not None]
    return min(grants, default=None)


def _free_memory() -> int | None:
    """Memory of the machine that is left, or all of it where the kernel does not report what is used."""
    lines = (system_file("/proc/meminfo") or "").splitlines()
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    return _whole_memory() if available is None else available


def _whole_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup_memory() -> int | None:
    """Memory that is left of the grant of the control group, None for no limit."""
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int(system_file(limit) or "") - int(system_file(usage) or ""))
        except ValueError:  # no such file, or "max"
            continue
    return None


def check_descriptors(needed: int, purpose: str) -> None:
    """OSError (EMFILE) if this process cannot open `needed` more files: raised before anything is started."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        left = limit - len(os.listdir("/dev/fd"))
    except OSError:
        return
    if limit != resource.RLIM_INFINITY and needed > left:
        text = f"{purpose} need about {needed} file descriptors and {left} are left"
        raise OSError(errno.EMFILE, f"{text}: raise `ulimit -n`, or pass a smaller num_workers=")
