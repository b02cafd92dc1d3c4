"""CPU time and memory of process trees, read from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Megabytes: `uss` is private to the process, `pss` adds its share of what it shares."""

    rss: float
    pss: float
    uss: float


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, children before grandchildren."""
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
    """CPU time used so far by the processes, all their threads, to the nanosecond where possible."""
    return sum(_thread_seconds(pid) for pid in pids)


def busy_seconds() -> float:
    """CPU time that the whole machine has spent working since it started, stolen time included."""
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
        return None  # it ended between the listing and the reading
    return int(text.rpartition(")")[2].split()[1])


def _thread_seconds(pid: int) -> float:
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while it was being read: what was seen so far counts
    return total / 1e9
