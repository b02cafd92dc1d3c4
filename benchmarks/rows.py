"""Rows of the table with speeds: the contenders of each row, and the targets of their ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.envs import EnvSpec
from benchmarks.lane import LaneSpec, Spec
from benchmarks.peers import PEERS

SHMEM, SUBPROC, DUMMY = "vecenv Shmem", "vecenv Subproc", "vecenv Dummy"
TWO_ROUNDS = "vecenv Shmem, step then reset"  # as in code for tianshou
SLEEPERS, SLEEP_WAIT = 32, 8


@dataclass(frozen=True)
class Claim:
    """Minimum ratio of the speeds of `lane` and `over`. If `over` is "": maximum CPU us per call of `lane`."""

    title: str
    lane: str
    over: str
    target: float


@dataclass(frozen=True)
class Experiment:
    """Lanes that are measured in turn, and the claims about them."""

    name: str
    lanes: Sequence[Spec]
    claims: list[Claim]
    yardstick: str = ""
    """Reference lane, which is 1 in the table of all contenders."""


@dataclass(frozen=True)
class Settings:
    """Options of the command line for the contenders."""

    workers: int
    """Number of processes of the bound: the CPUs that this process may use."""
    iterations: int
    """Number of loop iterations that take 100 us."""
    ours: dict[str, Any] = field(default_factory=dict)
    """Additional arguments of our Subproc and Shmem."""
    quick: bool = False
    lean: bool = False
    """Run only the contenders that a row compares."""


def experiments(settings: Settings) -> list[Experiment]:
    found = [_against_bound(settings, *row) for row in _BOUND_ROWS]
    found += [_cartpole(settings, 64), _cartpole(settings, 8), _sleeping(settings)]
    return found


_BOUND_ROWS = [
    # name, kind, number of envs, description, target for the share of the bound
    ("busy-64", "busy", 64, "100 us", 0.93),
    ("busy-8", "busy", 8, "100 us", 0.88),
    ("pixels-64", "pixels", 64, "pixels 100 us", 0.90),
]


def _against_bound(settings: Settings, name: str, kind: str, count: int, what: str, target: float) -> Experiment:
    env = EnvSpec(kind, settings.iterations)
    bound = f"bound({settings.workers})"
    peers = ["gymnasium Async", "tianshou Shmem", "PufferLib Multiprocessing"]
    return Experiment(
        name,
        _lanes(settings, [bound, SHMEM, SUBPROC, *([] if settings.lean else peers)], env, count),
        [Claim(f"Shmem, {what}, {count} envs", SHMEM, bound, target)],
        yardstick=bound,
    )


def _cartpole(settings: Settings, count: int) -> Experiment:
    bound = f"bound({settings.workers})"
    name, size = f"cartpole-{count}", f"CartPole, {count} envs"
    share, factor = (0.75, 12.0) if count >= 64 else (0.50, 8.0)
    claims = [
        Claim(f"Shmem, {size}", SHMEM, bound, share),
        Claim(f"Shmem, {size}", SHMEM, "gymnasium Async", factor),
        Claim(f"Shmem, {size}, step then reset", TWO_ROUNDS, "tianshou Shmem", factor),
        Claim(f"Subproc, {size}", SUBPROC, "gymnasium Async", 5.0),
        Claim(f"Dummy, {size}", DUMMY, "gymnasium Sync", 1.0),
    ]
    if count >= 64:
        claims.append(Claim(f"Shmem, {size}: CPU of the main process a step", SHMEM, "", 40.0))
    peers = [cls.name for cls in PEERS]
    if settings.lean:
        peers = ["gymnasium Async", "gymnasium Sync", "tianshou Shmem"]
    lanes = _lanes(settings, [bound, SHMEM, TWO_ROUNDS, SUBPROC, DUMMY, *peers], EnvSpec("cartpole"), count)
    return Experiment(name, lanes, claims, yardstick=bound)


def _sleeping(settings: Settings) -> Experiment:
    env = EnvSpec("sleep")
    few = {"wait_num": SLEEP_WAIT}
    each = {"num_workers": SLEEPERS}
    ours, theirs = "vecenv Shmem, wait_num=8", "tianshou Shmem, wait_num=8"
    sync = "vecenv Shmem, sync, 32 workers"
    lanes = [
        LaneSpec(SHMEM, env, SLEEPERS, {**few, **_without_workers(settings.ours)}, ours),
        LaneSpec(SHMEM, env, SLEEPERS, {**_without_workers(settings.ours), **each}, sync),
        LaneSpec("tianshou Shmem", env, SLEEPERS, few, theirs),
    ]
    title = "async, sleeping env, 32 envs, wait_num 8"
    claims = [Claim(title, ours, sync, 1.4), Claim(title, ours, theirs, 1.0)]
    return Experiment("async-sleep", lanes, claims, yardstick=sync)


def _lanes(settings: Settings, names: Iterable[str], env: EnvSpec, count: int) -> list[LaneSpec]:
    tuned = (SHMEM, TWO_ROUNDS, SUBPROC)
    return [LaneSpec(name, env, count, dict(settings.ours) if name in tuned else {}) for name in names]


def _without_workers(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "num_workers"}
