"""The rows that are not steps per second: hidden work, idle CPU, start and stop, memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.counting import count_system_calls, strace_missing
from benchmarks.envs import EnvSpec
from benchmarks.lane import Lane, LaneSpec
from benchmarks.measure import Result
from benchmarks.ours import CONTENDERS
from benchmarks.procfs import Memory, command_line, cpu_seconds, descendants, memory
from benchmarks.rows import SHMEM, Settings

ENVS = 64
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
    """Pickles, pipe traffic, semaphores and system calls a step in the process that calls `step`."""
    calls = 100 if settings.quick else 1000
    with _lane(_spec(settings)) as lane:
        counts = lane.call("count", calls)
        pickles = counts.pop("pickle")
        others = ", ".join(f"{name} {number:.2f}" for name, number in counts.items())
        found = [
            Result("pickles a step, main process", f"{pickles:.3f}", "", "", "0", pickles == 0),
            Result("other C calls a step, main process", others),
        ]
        found.append(_system_calls(lane, "main process", lane.pid, calls))
        workers, _ = _workers(lane.pid)
        if workers:
            found.append(_system_calls(lane, "one worker", workers[0], calls))
        return found


def idle(settings: Settings) -> list[Result]:
    """CPU that all processes together burn after a step, when nobody asks them for anything."""
    seconds = 1.0 if settings.quick else 10.0
    with _lane(_spec(settings)) as lane:
        lane.call("run", 50)
        pids = [lane.pid, *descendants(lane.pid)]
        before = cpu_seconds(pids)
        time.sleep(seconds)
        percent = 100 * (cpu_seconds(pids) - before) / seconds
    title = f"idle for {seconds:.0f} s after a step, {len(pids)} processes"
    reached = percent <= IDLE_TARGET
    return [Result(title, f"{percent:.2f} % CPU", "", "", f"<= {IDLE_TARGET:g} %", reached)]


def open_and_close(settings: Settings) -> list[Result]:
    """Seconds to open 64 CartPole environments, `reset` included, and to close them again.

    The first time in a fresh process, which counts, and once more in the same process.
    """
    specs = [_spec(settings)]
    if not settings.quick:
        specs += [LaneSpec(name, specs[0].env, ENVS) for name in ("gymnasium Async", "tianshou Shmem")]
    found = []
    cold: dict[str, list[tuple[float, float]]] = {spec.title: [] for spec in specs}
    warm: dict[str, list[float]] = {spec.title: [] for spec in specs}
    for _ in range(1 if settings.quick else 5):
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
        f"({min(totals):.2f}-{max(totals):.2f})",
        f"<= {OPEN_CLOSE_TARGET:g} s" if ours else "",
        median(totals) <= OPEN_CLOSE_TARGET if ours else None,
    )


def worker_memory(settings: Settings) -> list[Result]:
    """Private and proportional memory of a worker, next to a bare process with one environment."""
    found = []
    for count, options in ((ENVS, {}), (4, {"num_workers": 4})):
        spec = LaneSpec(SHMEM, EnvSpec("cartpole"), count, {**settings.ours, **options})
        with _lane(spec) as lane, _bare_process() as bare_pid:
            lane.call("run", 50)
            workers, others = _workers(lane.pid)
            bare = memory(bare_pid)
            each = [memory(pid) for pid in workers]
            rest = sum(memory(pid).pss for pid in others)
        title = f"memory a worker, {count} envs in {len(workers)} workers (others: {rest:.0f} MB)"
        found.append(_memory_result(title, each, bare))
    return found


COSTS: dict[str, Callable[[Settings], list[Result]]] = {
    "hidden-work": hidden_work,
    "idle": idle,
    "open-close": open_and_close,
    "memory": worker_memory,
}


def _memory_result(title: str, each: list[Memory], bare: Memory) -> Result:
    if not each:
        return Result(title, "no worker process found")
    largest = max(each, key=lambda worker: worker.pss)
    extra = largest.pss - bare.pss
    return Result(
        title,
        f"PSS {largest.pss:.1f} MB, USS {largest.uss:.1f} MB",
        f"bare process PSS {bare.pss:.1f} MB, USS {bare.uss:.1f} MB",
        f"{extra:+.1f} MB",
        f"<= +{MEMORY_TARGET:g} MB",
        extra <= MEMORY_TARGET,
    )


def _system_calls(lane: Lane, whose: str, pid: int, calls: int) -> Result:
    title = f"system calls a step, {whose}"
    missing = strace_missing()
    if missing:
        return Result(title, f"skipped: {missing}")
    counts = count_system_calls(pid, lambda: lane.call("run", calls))
    if counts is None:
        return Result(title, "skipped: strace may not attach here")
    common = sorted(counts.items(), key=lambda item: -item[1])[:4]
    detail = ", ".join(f"{name} {number / calls:.2f}" for name, number in common)
    return Result(title, f"{sum(counts.values()) / calls:.2f} under strace", detail)


def _workers(pid: int) -> tuple[list[int], list[int]]:
    """(workers, helper processes) below a lane: a worker is a leaf that is no resource tracker."""
    below = descendants(pid)
    workers = [child for child in below if not descendants(child) and "resource_tracker" not in command_line(child)]
    return workers, [child for child in below if child not in workers]


def _spec(settings: Settings) -> LaneSpec:
    return LaneSpec(SHMEM, EnvSpec("cartpole"), ENVS, dict(settings.ours))


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
