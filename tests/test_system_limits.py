"""What the machine and its control group grant: CPUs and memory, read from a pretended file system."""

import os
from pathlib import Path

import psutil
import pytest
from cases import playing
from gymnasium import spaces

from tests.backends import FULL
from vecenv import SharedMemoryError, ShmemVectorEnv, portability
from vecenv.backends import system_limits
from vecenv.backends.memory import shared_memory

GIB = 2**30


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretends to be a machine with 8 CPUs; what the test writes below the folder is the file system."""
    monkeypatch.setattr(portability, "PORTABLE", False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(portability, "Path", lambda path: Path(str(tmp_path) + str(path)))

    def write(path, text):
        file = Path(str(tmp_path) + path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


class TestUsableCpus:
    def test_without_a_quota_the_affinity_counts(self, machine):
        assert system_limits.usable_cpus() == 8
        machine("/sys/fs/cgroup/cpu.max", "max 100000\n")
        assert system_limits.usable_cpus() == 8

    @pytest.mark.parametrize(("text", "count"), [("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8)])
    def test_a_quota_limits_it_rounded_up(self, machine, text, count):
        machine("/sys/fs/cgroup/cpu.max", text + "\n")
        assert system_limits.usable_cpus() == count

    @pytest.mark.parametrize(("quota", "count"), [("200000", 2), ("-1", 8)])
    def test_the_older_control_groups(self, machine, quota, count):
        machine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota + "\n")
        machine("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
        assert system_limits.usable_cpus() == count

    def test_nonsense_is_no_limit(self, machine):
        machine("/sys/fs/cgroup/cpu.max", "what is this\n")
        assert system_limits.usable_cpus() == 8


class TestAvailableMemory:
    def test_it_is_what_the_machine_says(self, machine):
        assert system_limits.available_memory() == psutil.virtual_memory().total
        machine("/proc/meminfo", "MemTotal:  9 kB\nMemAvailable:    4194304 kB\nMemFree: 1 kB\n")
        assert system_limits.available_memory() == 4 * GIB

    @pytest.mark.parametrize(
        ("limit", "used"),
        [
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        ],
    )
    def test_and_what_the_control_group_leaves_of_it(self, machine, limit, used):
        machine("/proc/meminfo", "MemAvailable:    4194304 kB\n")
        machine(f"/sys/fs/cgroup/{limit}", f"{3 * GIB}\n")
        machine(f"/sys/fs/cgroup/{used}", f"{2 * GIB}\n")
        assert system_limits.available_memory() == GIB
        machine(f"/sys/fs/cgroup/{used}", f"{5 * GIB}\n")
        assert system_limits.available_memory() == 0
        machine(f"/sys/fs/cgroup/{limit}", "max\n")
        assert system_limits.available_memory() == 4 * GIB

    @FULL
    def test_more_than_there_is_is_refused_before_anything_is_reserved(self, monkeypatch):
        """The system would go on giving until it has to kill a process."""
        monkeypatch.setattr(shared_memory, "available_memory", lambda: 5 * 2**20)
        space = spaces.Box(0, 255, (3, 2**20), "uint8")
        with pytest.raises(SharedMemoryError, match=r"6\.0 MiB of .* needed .* only 5\.0 MiB are available"):
            ShmemVectorEnv(playing(space, *[[space.low]] * 2))
