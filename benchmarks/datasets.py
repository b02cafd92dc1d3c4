"""Measure data sets: opening a million episodes, random batches from more than memory, and the cost of recording.

    python -m benchmarks.datasets [--gigabytes 5] [--folder DIR] [--only open,batches,record] [--rounds 15]

- open: seconds and peak memory (with imports) of a fresh process that opens `Dataset(DIR)` with a manifest of 10^6
  episodes. The target is 2 s and 300 MB.
- batches: transitions per second and peak memory of a fresh process that reads random batches of 256 transitions from
  `--gigabytes` of plain shards (episodes of 1000 steps with observations of 84 x 84 bytes). First the process opens
  each shard and checks its hash. "warm" keeps the page cache, "cold" drops the shards from the page cache. The target
  is 20,000 per second within 1 GB. `--compressed` also measures compressed shards: a quarter of the bytes, before
  compression.
- record: additional time and CPU time of this process per step of 64 CartPole envs with `RecordEpisodes`. Other
  programs disturb the CPU time less. The target is at most 10 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from collector import Dataset, Episode, RecordEpisodes, StoreWriter, make_head
from vecenv import AsyncVectorEnv, DummyVectorEnv, ShmemVectorEnv

EPISODES = 10**6
A_LINE = 2000
PIXELS = (84, 84)

OPEN = """
import resource, sys, time
begun = time.perf_counter()
from collector import Dataset
imported, cpu = time.perf_counter(), time.process_time()
data = Dataset(sys.argv[1])
opened, cpu = time.perf_counter(), time.process_time() - cpu
assert len(data) == int(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{opened - imported:.2f} s ({cpu:.2f} s of CPU time) for {len(data):,} episodes, {peak:.0f} MB at most")
"""
BATCHES = """
import os, resource, sys, time
from collector import Dataset

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key + ":")) / 1024

def read_from_disk():
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))

data, seconds = Dataset(sys.argv[1]), float(sys.argv[2])
begun = time.perf_counter()
for which in range(len(data._shards.records)):
    data._shards[which]
checked = time.perf_counter() - begun
print(f"from {data.nbytes / 2**30:.1f} GB in {len(data.shard_files)} shards; the first look at all of them, with their")
print(f"hashes: {checked:.1f} s")
for name in sys.argv[3:]:
    if name == "cold":
        data._shards._open.clear()
        for file in data.folder.glob("shards/*/*"):
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    batches, count, anon = data.batches(256, seed=0), 0, 0
    for _ in range(20):
        next(batches)
    begun, cpu, disk = time.perf_counter(), time.process_time(), read_from_disk()
    while (took := time.perf_counter() - begun) < seconds:
        for _ in range(20):
            count += len(next(batches))
        anon = max(anon, status("RssAnon"))
    rate, of_cpu = count / took, count / (time.process_time() - cpu)
    disk = (read_from_disk() - disk) / 2**30
    print(f"{name}: {rate:,.0f} transitions/s ({of_cpu:,.0f} a second of CPU time), {disk:.1f} GB read from the disk")
    print(f"    at most {status('VmHWM'):.0f} MB resident, of which {anon:.0f} MB are its own and not pages of files")
"""


def run(program: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    ).stdout


def measure_open(folder: Path) -> None:
    """Write one episode, and then a manifest that names a million like it. Opening needs no shards."""
    space, zeros = gymnasium.spaces.Box(-1, 1, (4,), np.float32), np.zeros(1, np.bool_)
    with StoreWriter(folder, make_head(space, gymnasium.spaces.Discrete(2))) as writer:
        writer.add(Episode(np.zeros((2, 4), np.float32), np.zeros(1, np.int64), np.ones(1), ~zeros, zeros, 0))
        writer.commit()
    layout, line = map(json.loads, (folder / "manifest.jsonl").read_text().splitlines()[:2])
    rng = np.random.default_rng(0)
    with open(folder / "manifest.jsonl", "w") as file:
        file.write(json.dumps(layout) + "\n")
        for shard, first in enumerate(range(0, EPISODES, A_LINE)):
            lengths = rng.integers(8, 60, A_LINE)
            numbers = first + rng.permutation(A_LINE)  # episodes do not end in the order in which they begin
            line |= {"shard": f"shards/{shard:06d}", "steps": int(lengths.sum()), "episodes": numbers.tolist()}
            line |= {"lengths": lengths.tolist(), "returns": lengths.astype(float).tolist()}
            line["files"] = {name: [60 * int(lengths.sum()), "0" * 64] for name in line["files"]}
            file.write(json.dumps(line) + "\n")
    print("open:", run(OPEN, str(folder), str(EPISODES)), end="")


def write_pixels(folder: Path, gigabytes: float, compress: bool) -> None:
    """Write episodes of 1000 steps of noise, ten per shard."""
    space = gymnasium.spaces.Box(0, 255, PIXELS, np.uint8)
    rng = np.random.default_rng(0)
    with StoreWriter(folder, make_head(space, gymnasium.spaces.Discrete(6)), compress=compress) as writer:
        last = np.arange(1000) == 999
        while writer.manifest.index["length"].sum() * np.prod(PIXELS) < gigabytes * 2**30:
            noise = rng.integers(0, 256, (1001, *PIXELS), np.uint8)
            if compress:
                noise[:, 8:] = 0  # real pictures compress well too
            action = rng.integers(0, 6, 1000)
            writer.add(Episode(noise, action, rng.random(1000), last, np.zeros(1000, np.bool_), 0))
            if writer.waiting_bytes >= 2**26:
                writer.commit()
        writer.end()


def measure_batches(folder: Path, gigabytes: float, compress: bool) -> None:
    write_pixels(folder, gigabytes, compress)
    print("batches, compressed:" if compress else "batches:", run(BATCHES, str(folder), "10", "warm", "cold"), end="")


def drive(step: Any, actions: np.ndarray, calls: int) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, of `calls` steps."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        step(actions)
    return time.perf_counter() - wall, time.process_time() - cpu


VECTOR_ENVS: dict[str, Any] = {
    "gymnasium's SyncVectorEnv": gymnasium.vector.SyncVectorEnv,
    "AsyncVectorEnv": AsyncVectorEnv,
    "AsyncVectorEnv, SAME_STEP": partial(AsyncVectorEnv, autoreset_mode="SameStep"),
    "DummyVectorEnv, autoreset": DummyVectorEnv,
    "ShmemVectorEnv, autoreset": ShmemVectorEnv,
}


def measure_record(folder: Path, rounds: int, calls: int = 400) -> None:
    actions = np.random.default_rng(0).integers(0, 2, 64)
    for name, kind in VECTOR_ENVS.items():
        make = [partial(gymnasium.make, "CartPole-v1")] * 64
        plain, recorded = kind(make), RecordEpisodes(kind(make), folder / name.replace(" ", "-"))
        steps = []
        for envs in (plain, recorded):
            envs.reset(seed=0)
            steps.append(partial(envs.step, autoreset=True) if "autoreset" in name else envs.step)
            drive(steps[-1], actions, 100)
        pairs = [[drive(step, actions, calls) for step in steps] for _ in range(rounds)]
        wall, cpu = ([(with_[i] / without[i] - 1) * 100 for without, with_ in pairs] for i in (0, 1))
        rate = 64 * calls / median(without[0] for without, _ in pairs)
        plain.close()
        recorded.close()
        size = Dataset(folder / name.replace(" ", "-")).steps
        low, high = np.percentile(wall, [10, 90])
        print(
            f"record, {name}: {median(wall):+.1f} % time a step [{low:+.1f} .. {high:+.1f}], {median(cpu):+.1f} % CPU "
            f"({rate:,.0f} steps/s without; {size:,} stored)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="open,batches,record")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compressed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if "open" in options.only:
            measure_open(folder / "open")
        if "batches" in options.only:
            measure_batches(folder / "batches", options.gigabytes, False)
        if options.compressed:
            measure_batches(folder / "compressed", options.gigabytes / 4, True)
        if "record" in options.only:
            measure_record(folder / "record", options.rounds)


if __name__ == "__main__":
    main()
