"""Limits of the machine and of its control group: CPUs and memory, read from a simulated file system."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.cases import playing
from vecenv import SharedMemoryError, ShmemVectorEnv, portability
from vecenv.backends import system_limits
from vecenv.backends.memory import shared_memory

GIB = 2**30


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Simulate a machine with 8 CPUs. Files that the test writes below the folder are its file system."""
    monkeypatch.setattr(portability, "PORTABLE", False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(portability, "Path", lambda path: Path(str(tmp_path) + str(path)))

    def write(path, text):
        file = Path(str(tmp_path) + path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


class TestUsableCpus:
    @pytest.mark.parametrize(
        ("groups", "quotas", "count"),
        [
            ("", {}, 8),
            *(("", {"cpu.max": text}, count) for text, count in (
                ("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8))),
            *(("", {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"}, count)
              for quota, count in (("200000", 2), ("-1", 8))),
            ("0::/user.slice/job.scope\n", {"user.slice/job.scope/cpu.max": "200000 100000"}, 2),
            ("0::/slurm/job_1/step\n", {"slurm/cpu.max": "300000 100000", "slurm/job_1/cpu.max": "max 100000"}, 3),
            ("0::/a\n", {"a/cpu.max": "400000 100000", "cpu.max": "100000 100000"}, 1),
            ("0::/of/the/host\n", {"cpu.max": "200000 100000"}, 2),
            ("0::/../elsewhere\n", {}, 8),
            ("5:cpu,cpuacct:/slurm/job_1\n0::/x\n",
             {"cpu/slurm/job_1/cpu.cfs_quota_us": "200000", "cpu/slurm/job_1/cpu.cfs_period_us": "100000"}, 2),
            ("nor this\n", {"cpu.max": "what is this"}, 8),
        ],
    )  # fmt: skip
    def test_the_affinity_counts_and_quotas_of_the_own_control_group_and_those_around_it(
        self, machine, groups, quotas, count
    ):
        """Quotas are rounded up. Control groups of version 1 count too. Invalid values are no limit."""
        if groups:
            machine("/proc/self/cgroup", groups)
        for path, text in quotas.items():
            machine(f"/sys/fs/cgroup/{path}", text + "\n")
        assert system_limits.usable_cpus() == count

    @pytest.mark.parametrize(("mode", "cpus", "count"), [("worker", 2.0, 2), ("worker", 0.5, 1), ("driver", 0.0, 8)])
    @pytest.mark.parametrize("connected", [True, False])
    def test_in_actors_and_tasks_of_ray_it_is_what_ray_has_assigned(
        self, machine, monkeypatch, mode, cpus, count, connected
    ):
        context = SimpleNamespace(
            worker=SimpleNamespace(mode=mode), get_assigned_resources=lambda: {"CPU": cpus, "near": 1.0}
        )
        ray = SimpleNamespace(
            WORKER_MODE="worker", is_initialized=lambda: connected, get_runtime_context=lambda: context
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        assert system_limits.usable_cpus() == (count if connected else 8)


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
        folder, _, _ = limit.rpartition("/")
        own = f"{folder}/job" if folder else "job"
        machine("/proc/self/cgroup", f"{'3:memory' if folder else '0:'}:/job\n")
        machine(f"/sys/fs/cgroup/{own}/{Path(limit).name}", f"{3 * GIB}\n")
        machine(f"/sys/fs/cgroup/{own}/{Path(used).name}", f"{GIB}\n")
        assert system_limits.available_memory() == 2 * GIB

    @FULL
    def test_more_than_there_is_is_refused_before_anything_is_reserved(self, monkeypatch):
        """Otherwise the system would grant memory until it has to kill a process."""
        monkeypatch.setattr(shared_memory, "available_memory", lambda: 5 * 2**20)
        space = spaces.Box(0, 255, (3, 2**20), "uint8")
        with pytest.raises(SharedMemoryError, match=r"6\.0 MiB of .* needed .* only 5\.0 MiB are available"):
            ShmemVectorEnv(playing(space, *[[space.low]] * 2))
