"""Read the CPU time and memory of process trees from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Memory in megabytes. `uss` is private to the process. `pss` adds its part of shared pages."""

    rss: float
    pss: float
    uss: float


def descendants(pid: int) -> list[int]:
    """Return every living process below `pid`, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    queue = list(children.get(pid, []))
    while queue:
        child = queue.pop(0)
        found.append(child)
        queue.extend(children.get(child, []))
    return found


def command_line(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time that all threads of the processes have used, in nanosecond resolution if possible."""
    return sum(_thread_seconds(pid) for pid in pids)


def busy_seconds() -> float:
    """Return the CPU time that the machine has worked since its start, including stolen time."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _io_wait, interrupts, soft_interrupts, stolen = ticks
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> Memory:
    values: dict[str, int] = {}
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            fields = line.split()
            if len(fields) == 3 and fields[2] == "kB":
                values[fields[0].rstrip(":")] = int(fields[1])
    private = values["Private_Clean"] + values["Private_Dirty"]
    return Memory(values["Rss"] / 1024, values["Pss"] / 1024, private / 1024)


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None  # the process ended after the listing
    return int(text.rpartition(")")[2].split()[1])


def _thread_seconds(pid: int) -> float:
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # the process ended during the reading, and the parts that were read count
    return total / 1e9
