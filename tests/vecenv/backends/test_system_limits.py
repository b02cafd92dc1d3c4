"""Limits of the machine and of its control group: CPUs and memory, read from a simulated file system."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.cases import playing
from vecenv import SharedMemoryError, ShmemVectorEnv, TuneResult, TuneRow

Write = Callable[[str, str], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Simulate a machine with 8 CPUs. Files that the test writes below the folder are its file system."""
    monkeypatch.setattr("vecenv.portability.PORTABLE", False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("vecenv.portability.Path", lambda path: Path(str(tmp_path) + str(path)))

    def write(path: str, text: str) -> None:
        file = Path(str(tmp_path) + path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def cpus() -> int:
    """Return the number of CPUs that vecenv may use, as the table of `tune` shows it."""
    row = TuneRow("dummy", None, 1.0, "")
    return int(re.search(r"(\d+) CPUs", str(TuneResult([], 0.0, [row], row)))[1])  # type: ignore[index]


def available_mib() -> float:
    """Return the memory that the refusal of 8 MiB names."""
    with pytest.raises(SharedMemoryError, match=r"only [\d.]+ MiB are available") as refused:
        ShmemVectorEnv([partial(print, np.ones(1 << 20))])
    return float(re.search(r"only ([\d.]+) MiB", str(refused.value))[1])  # type: ignore[index]


V1 = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("groups", "quotas", "count"),
    [
        ("", {}, 8),
        *(("", {"cpu.max": text}, count) for text, count in (
            ("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8))),
        ("", {f"cpu/{name}": text for name, text in V1.items()}, 2),
        ("", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("0::/slurm/job_1/step\n", {"slurm/cpu.max": "300000 100000", "slurm/job_1/cpu.max": "max 100000"}, 3),
        ("0::/a\n", {"a/cpu.max": "400000 100000", "cpu.max": "100000 100000"}, 1),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/../elsewhere\n", {}, 8),
        ("5:cpu,cpuacct:/slurm/job_1\n0::/x\n", {f"cpu/slurm/job_1/{name}": text for name, text in V1.items()}, 2),
        ("nor this\n", {"cpu.max": "what is this"}, 8),
    ],
)  # fmt: skip
def test_the_affinity_counts_and_quotas_of_the_own_control_group_and_those_around_it(
    machine: Write, groups: str, quotas: dict[str, str], count: int
) -> None:
    """Quotas are rounded up. Control groups of version 1 count too. Invalid values are no limit."""
    if groups:
        machine("/proc/self/cgroup", groups)
    for path, text in quotas.items():
        machine(f"/sys/fs/cgroup/{path}", text + "\n")
    assert cpus() == count


@pytest.mark.parametrize(("mode", "assigned", "count"), [("worker", 2.0, 2), ("worker", 0.5, 1), ("driver", 0.0, 8)])
def test_in_actors_and_tasks_of_ray_cpus_are_what_ray_has_assigned(
    machine: Write, monkeypatch: pytest.MonkeyPatch, mode: str, assigned: float, count: int
) -> None:
    context = SimpleNamespace(worker=SimpleNamespace(mode=mode), get_assigned_resources=lambda: {"CPU": assigned})
    ray: Any = SimpleNamespace(WORKER_MODE="worker", is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert cpus() == count
    ray.is_initialized = lambda: False
    assert cpus() == 8


@pytest.mark.parametrize(
    ("limit", "used", "group"),
    [
        ("memory.max", "memory.current", "0::"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "3:memory:"),
    ],
)
def test_memory_is_what_the_machine_has_and_its_control_group_leaves(
    machine: Write, limit: str, used: str, group: str
) -> None:
    mib = 2**20
    machine("/proc/meminfo", "MemTotal:  9 kB\nMemAvailable:    4096 kB\nMemFree: 1 kB\n")
    assert available_mib() == 4
    for most, taken, left in ((3 * mib, 2 * mib, 1), (3 * mib, 5 * mib, 0), ("max", 5 * mib, 4)):
        machine(f"/sys/fs/cgroup/{limit}", f"{most}\n")
        machine(f"/sys/fs/cgroup/{used}", f"{taken}\n")
        assert available_mib() == left
    machine("/proc/self/cgroup", f"{group}/job\n")
    own = Path("/sys/fs/cgroup", limit).parent / "job"
    machine(f"{own}/{Path(limit).name}", f"{3 * mib}\n")
    machine(f"{own}/{Path(used).name}", f"{mib}\n")
    assert available_mib() == 2


@FULL
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the system would grant memory until it has to kill a process."""
    monkeypatch.setattr("vecenv.backends.memory.shared_memory.available_memory", lambda: 5 * 2**20)
    space = spaces.Box(0, 255, (3, 2**20), np.uint8)
    with pytest.raises(SharedMemoryError, match=r"6\.0 MiB of .* needed .* only 5\.0 MiB are available"):
        ShmemVectorEnv(playing(space, *[[space.low]] * 2))
