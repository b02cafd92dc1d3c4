"""`python -m benchmarks.ray_soak [--minutes 20]`: kill the actors of a RayCollector repeatedly.

    python -m benchmarks.ray_soak                        # 20 minutes with kills, and 2 without before and after
    python -m benchmarks.ray_soak --minutes 1 --every 5

The program starts a cluster on this machine. Every `--every` seconds, SIGKILL ends an actor that collects, and the
collector restarts the actor. Each env counts its steps in a file that survives the kill. Its observations are the
process, the env's number in the process, and the step, so that each frame identifies its origin. The exit status is 1
unless all conditions hold:

- requested frames = delivered + lost + discarded + in flight.
- No frame of an env is delivered twice, and no frame is missing between two delivered frames.
- The steps that envs have taken and that were not delivered are at most the lost, discarded and in-flight frames.
- A restart follows each kill.
- The speed with kills is at least 70 % of the mean speed before and after.
- The driver's memory grows by at most 5 % from the first third of the time to the last third.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from gymnasium import spaces

from vecenv.ray_cluster import NICENESS

SHARE = 0.7
GROWTH = 1.05
QUIET = 0.1
"""The time without kills before, and again after, as a part of that with kills."""
MEMORY_EVERY = 1.0

_numbers = itertools.count()


class SignedEnv(gym.Wrapper):
    """Observes (process, number of the env in it, steps before this one), and counts its steps in a file."""

    def __init__(self, env: gym.Env, folder: str) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 2**62, (3,), np.int64)
        self._number, self._taken = next(_numbers), 0
        path = Path(folder, f"{os.getpid()}-{self._number}")
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), 8)  # the system keeps what was written when the process is killed

    def reset(self, **kwargs: Any) -> Any:
        return self._sign(), self.env.reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        _, *rest = self.env.step(action)
        self._taken += 1
        struct.pack_into("q", self._count, 0, self._taken)
        return self._sign(), *rest

    def _sign(self) -> np.ndarray:
        return np.array([os.getpid(), self._number, self._taken])


def make_env(folder: str) -> gym.Env:
    """A signed CartPole."""
    return SignedEnv(gym.make("CartPole-v1"), folder)


class Receipts:
    """The frames that came: how many from each env, by its process and its number there."""

    def __init__(self) -> None:
        self.frames: dict[tuple[int, int], int] = {}
        self.wrong: list[str] = []

    def add(self, obs: np.ndarray) -> None:
        """Note the observations of a batch, (envs, steps, 3)."""
        for rows in obs:
            key, first = (int(rows[0, 0]), int(rows[0, 1])), self.frames.get((int(rows[0, 0]), int(rows[0, 1])), 0)
            if not (rows[:, :2] == key).all() or not (rows[:, 2] == np.arange(first, first + len(rows))).all():
                self.wrong.append(f"env {key[1]} of process {key[0]}: {rows[0, 2]} ... follows {first} frames")
            self.frames[key] = first + len(rows)

    def unseen(self, folder: Path) -> int:
        """Steps that envs have taken and that did not come; notes envs from which more came than they took."""
        steps = {path.name: struct.unpack("q", path.read_bytes())[0] for path in folder.iterdir()}
        for (pid, number), came in self.frames.items():
            if came > steps[f"{pid}-{number}"]:
                self.wrong.append(f"env {number} of process {pid}: {came} frames of {steps[f'{pid}-{number}']} steps")
        return sum(steps.values()) - sum(self.frames.values())


@dataclass
class Found:
    """The results of a soak."""

    seconds: float
    kills: int = 0
    restarts: int = 0
    quiet: list[float] = field(default_factory=list)
    """Frames a second without kills, before and after."""
    disturbed: float = 0.0
    requested: int = 0
    delivered: int = 0
    lost: int = 0
    discarded: int = 0
    in_flight: int = 0
    unseen: int = 0
    memory: list[float] = field(default_factory=list)
    """MiB of the driver, one a second, while actors are killed."""
    wrong: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.disturbed / mean(self.quiet)

    @property
    def growth(self) -> float:
        third = max(1, len(self.memory) // 3)
        return median(self.memory[-third:]) / median(self.memory[:third])

    def checks(self) -> list[tuple[str, str, bool]]:
        """Each condition that has to hold, its figures, and True if it does."""
        accounted = self.delivered + self.lost + self.discarded + self.in_flight
        frames = f"{self.requested:,} = {self.delivered:,} + {self.lost:,} + {self.discarded:,} + {self.in_flight:,}"
        left = self.lost + self.discarded + self.in_flight
        memory = f"{min(self.memory):.0f} to {max(self.memory):.0f} MiB, last third / first {self.growth:.3f}"
        rates = f"{self.disturbed:,.0f} a second of {' and '.join(f'{rate:,.0f}' for rate in self.quiet)}"
        return [
            ("asked for = delivered + lost + discarded + in flight", frames, self.requested == accounted),
            ("no frame twice, none missing in between", "; ".join(self.wrong[:3]) or "none", not self.wrong),
            ("stepped, and not delivered: counted as lost or under way", f"{self.unseen:,}", 0 <= self.unseen <= left),
            ("every kill was followed by a restart", f"{self.kills}, {self.restarts}", self.kills == self.restarts > 0),
            (f"speed with kills at least {SHARE:g}", f"{self.share:.2f}: {rates}", self.share >= SHARE),
            (f"memory of the driver at most {GROWTH:g}", memory, self.growth <= GROWTH),
        ]


def soak(seconds: float, every: float, actors: int, envs: int, folder: str) -> Found:
    """Collect for so many seconds while an actor is killed `every` so often."""
    from collector import RayCollector

    found, receipts, rng = Found(seconds), Receipts(), random.Random(0)
    options = {"num_actors": actors, "frames_per_batch": 256 * envs, "sync": False}
    with RayCollector([partial(make_env, folder)] * envs, **options) as collector:

        def collect(for_seconds: float) -> Iterator[float]:
            """Collect for so long; yields the time so far after each batch, and returns at the end."""
            begin = time.monotonic()
            while (now := time.monotonic() - begin) < for_seconds:
                yield now
                receipts.add(collector.next().obs)

        def rate(for_seconds: float) -> float:
            frames, begin = collector.frames, time.monotonic()
            for _ in collect(for_seconds):
                pass
            return (collector.frames - frames) / (time.monotonic() - begin)

        def settle() -> None:
            """Until all actors collect, each with a batch behind it."""
            for _ in range(2 * actors):
                receipts.add(collector.next().obs)
            while any(each.state == "starts" for each in collector.stats().actors):
                receipts.add(collector.next().obs)

        settle()
        found.quiet.append(rate(QUIET * seconds))
        frames, begin = collector.frames, time.monotonic()
        next_kill, next_memory = every / 2, 0.0
        for now in collect(seconds):
            if now >= next_memory:
                found.memory.append(psutil.Process().memory_info().rss / 2**20)
                next_memory = now + MEMORY_EVERY
            if now >= next_kill:
                found.kills += kill_one(collector, rng)
                next_kill += every
        found.disturbed = (collector.frames - frames) / (time.monotonic() - begin)
        settle()
        found.quiet.append(rate(QUIET * seconds))
        stats = collector.stats()
        found.restarts, found.requested, found.delivered = stats.restarts, stats.requested, stats.delivered
    stats = collector.stats()  # what was in flight has been discarded, and the actors are gone
    found.lost, found.discarded, found.in_flight = stats.lost, stats.discarded, stats.in_flight
    found.unseen = receipts.unseen(Path(folder))
    found.wrong = receipts.wrong
    if stats.delivered != sum(receipts.frames.values()):
        found.wrong.append(f"{sum(receipts.frames.values())} frames came, {stats.delivered} are counted as delivered")
    return found


def kill_one(collector: Any, rng: random.Random) -> bool:
    """Kill an actor that collects, if there is one."""
    busy = [each.pid for each in collector.stats().actors if each.state == "collects"]
    if busy:
        os.kill(rng.choice(busy), signal.SIGKILL)
    return bool(busy)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.ray_soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="between two kills")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--envs", type=int, default=8, help="of each actor")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args(arguments)
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ.setdefault(NICENESS, "0")
    os.environ.pop("RAY_ADDRESS", None)  # a Ray of its own: this program kills processes by their pid
    import ray

    ray.init("local", num_cpus=options.actors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            found = soak(60 * options.minutes, options.every, options.actors, options.envs, folder)
    finally:
        ray.shutdown()
    print(f"{options.actors} actors x {options.envs} envs, {found.kills} kills in {options.minutes:g} min")
    for text, figures, holds in found.checks():
        print(f"{'yes' if holds else 'NO':4} {text}: {figures}", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**asdict(found), "share": found.share, "growth": found.growth}, indent=1))
    return 0 if all(holds for _, _, holds in found.checks()) else 1


if __name__ == "__main__":
    sys.exit(main())
