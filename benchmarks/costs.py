"""Measure the rows that are not steps per second: hidden work, idle CPU, opening and closing, memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.counting import CountedSpec, count_system_calls, counted, strace_missing
from benchmarks.envs import EnvSpec
from benchmarks.lane import Lane, LaneSpec
from benchmarks.measure import Result
from benchmarks.ours import CONTENDERS
from benchmarks.procfs import Memory, command_line, cpu_seconds, descendants, memory
from benchmarks.rows import SHMEM, Settings

CARTPOLE = EnvSpec("cartpole")
ENVS = 64
REPEATS = 5
OPEN_CLOSE_TARGET = 3.0
IDLE_TARGET = 1.0
MEMORY_TARGET = 10.0

_BARE_PROCESS = """
import sys
import gymnasium
env = gymnasium.make("CartPole-v1")
env.reset(seed=0)
print("ready", flush=True)
sys.stdin.read()
"""


def hidden_work(settings: Settings) -> list[Result]:
    """Count pickles, pipe traffic, semaphores and system calls per step, in the caller's process and in a worker."""
    calls = 100 if settings.quick else 1000
    mine, theirs = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        _lane(_spec(settings, CountedSpec("cartpole", folder=folder))) as lane,
    ):
        for _ in range(_repeats(settings)):
            mine.append(lane.call("count", calls))
            before = counted(folder)
            lane.call("run", calls)
            after = counted(folder)
            theirs.append({kind: (after[kind] - before[kind]) / calls for kind in after})
    found = [*_c_calls("main process", mine), *_c_calls("one worker", theirs)]
    with _lane(_spec(settings)) as lane:
        workers, _ = _workers(lane.pid)
        for whose, pid in [("main process", lane.pid), *(("one worker", pid) for pid in workers[:1])]:
            found.append(_system_calls(lane, whose, pid, calls, _repeats(settings)))
    return found


def idle(settings: Settings) -> list[Result]:
    """Measure the CPU use of all processes together while no call is made."""
    seconds = 1.0 if settings.quick else 10.0
    percents = []
    with _lane(_spec(settings)) as lane:
        pids = [lane.pid, *descendants(lane.pid)]
        for _ in range(_repeats(settings)):
            lane.call("run", 50)
            before = cpu_seconds(pids)
            time.sleep(seconds)
            percents.append(100 * (cpu_seconds(pids) - before) / seconds)
    title = f"idle for {seconds:.0f} s after a step, {len(pids)} processes"
    percent, reached = median(percents), median(percents) <= IDLE_TARGET
    return [Result(title, f"{percent:.2f} % CPU", "", _spread(percents), f"<= {IDLE_TARGET:g} %", reached)]


def open_and_close(settings: Settings) -> list[Result]:
    """Measure the seconds to open 64 CartPole envs, with `reset`, and to close them.

    The figure is the first time, in a fresh process. A second time in the same process is printed too.
    """
    specs = [_spec(settings)]
    if not settings.quick:
        specs += [LaneSpec(name, specs[0].env, ENVS) for name in ("gymnasium Async", "tianshou Shmem")]
    found = []
    cold: dict[str, list[tuple[float, float]]] = {spec.title: [] for spec in specs}
    warm: dict[str, list[float]] = {spec.title: [] for spec in specs}
    for _ in range(_repeats(settings)):
        for spec in specs:
            if CONTENDERS[spec.contender].available():
                lane = Lane(spec)
                warm[spec.title].append(sum(lane.call("reopen")))
                opening = lane.call("opening")
                cold[spec.title].append((opening, lane.close()))
    for title, pairs in cold.items():
        if pairs:
            found.append(_open_result(title, pairs, median(warm[title])))
    return found


def _open_result(title: str, pairs: list[tuple[float, float]], again: float) -> Result:
    totals = [opening + closing for opening, closing in pairs]
    opening, closing = (median(side) for side in zip(*pairs, strict=True))
    ours = title == SHMEM
    return Result(
        f"{title}: open + close {ENVS} CartPole envs",
        f"{median(totals):.2f} s (open {opening:.2f}, close {closing:.2f})",
        f"a second time in the process {again:.2f} s",
        _spread(totals),
        f"<= {OPEN_CLOSE_TARGET:g} s" if ours else "",
        median(totals) <= OPEN_CLOSE_TARGET if ours else None,
    )


def worker_memory(settings: Settings) -> list[Result]:
    """Measure the private and proportional memory of a worker, and of a bare process with a single env."""
    found = []
    for count, options in ((ENVS, {}), (4, {"num_workers": 4})):
        spec = LaneSpec(SHMEM, CARTPOLE, count, {**settings.ours, **options})
        found.append(_memory_result(count, [_one_memory(spec) for _ in range(_repeats(settings))]))
    return found


def _one_memory(spec: LaneSpec) -> tuple[list[Memory], Memory, float]:
    """Return the memory of a new lane's workers and of a bare process, and the PSS of the lane's other processes."""
    with _lane(spec) as lane, _bare_process() as bare_pid:
        lane.call("run", 50)
        workers, others = _workers(lane.pid)
        return [memory(pid) for pid in workers], memory(bare_pid), sum(memory(pid).pss for pid in others)


COSTS: dict[str, Callable[[Settings], list[Result]]] = {
    "hidden-work": hidden_work,
    "idle": idle,
    "open-close": open_and_close,
    "memory": worker_memory,
}


def _memory_result(count: int, measured: list[tuple[list[Memory], Memory, float]]) -> Result:
    rest = median(others for _, _, others in measured)
    title = f"memory a worker, {count} envs in {len(measured[0][0])} workers (others: {rest:.0f} MB)"
    if not all(workers for workers, _, _ in measured):
        return Result(title, "no worker process found")
    largest = [max(workers, key=lambda worker: worker.pss) for workers, _, _ in measured]
    bare = [process for _, process, _ in measured]
    extras = [worker.pss - process.pss for worker, process in zip(largest, bare, strict=True)]
    return Result(
        title,
        _median_memory(largest),
        f"bare process {_median_memory(bare)}",
        f"{median(extras):+.1f} MB ({min(extras):+.1f} to {max(extras):+.1f})",
        f"<= +{MEMORY_TARGET:g} MB",
        median(extras) <= MEMORY_TARGET,
    )


def _median_memory(processes: list[Memory]) -> str:
    return f"PSS {median(p.pss for p in processes):.1f} MB, USS {median(p.uss for p in processes):.1f} MB"


def _c_calls(whose: str, counts: list[dict[str, float]]) -> list[Result]:
    """Return the rows of the C calls per step. `counts` has the calls of each repetition."""
    pickles = [each["pickle"] for each in counts]
    middle = {kind: median(each[kind] for each in counts) for kind in counts[0] if kind != "pickle"}
    return [
        Result(f"pickles a step, {whose}", f"{median(pickles):.3f}", "", _spread(pickles), "0", max(pickles) == 0),
        Result(f"other C calls a step, {whose}", ", ".join(f"{kind} {number:.2f}" for kind, number in middle.items())),
    ]


def _system_calls(lane: Lane, whose: str, pid: int, calls: int, repeats: int) -> Result:
    title = f"system calls a step, {whose}"
    missing = strace_missing()
    if missing:
        return Result(title, f"skipped: {missing}")
    found = [count_system_calls(pid, lambda: lane.call("run", calls)) for _ in range(repeats)]
    counts = [each for each in found if each is not None]
    if not counts:
        return Result(title, "skipped: strace may not attach here")
    middle = {name: median(each.get(name, 0) for each in counts) / calls for name in set().union(*counts)}
    common = sorted(middle.items(), key=lambda item: -item[1])[:4]
    detail = ", ".join(f"{name} {number:.2f}" for name, number in common)
    totals = [sum(each.values()) / calls for each in counts]
    return Result(title, f"{median(totals):.2f} under strace", detail, _spread(totals))


def _repeats(settings: Settings) -> int:
    return 1 if settings.quick else REPEATS


def _spread(figures: list[float]) -> str:
    return f"({min(figures):.2f}-{max(figures):.2f})"


def _workers(pid: int) -> tuple[list[int], list[int]]:
    """Return (workers, helper processes) below a lane. A worker has no children and is not a resource tracker."""
    below = descendants(pid)
    workers = [child for child in below if not descendants(child) and "resource_tracker" not in command_line(child)]
    return workers, [child for child in below if child not in workers]


def _spec(settings: Settings, env: EnvSpec = CARTPOLE) -> LaneSpec:
    return LaneSpec(SHMEM, env, ENVS, dict(settings.ours))


@contextmanager
def _lane(spec: LaneSpec) -> Iterator[Lane]:
    lane = Lane(spec)
    try:
        yield lane
    finally:
        lane.close()


@contextmanager
def _bare_process() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _BARE_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        process.stdout.readline()
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
