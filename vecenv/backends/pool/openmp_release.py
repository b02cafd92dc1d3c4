"""Decides before which rounds the caller's OpenMP pool is released: where its threads keep workers from their CPUs.

    WATCHING -- other threads of this process use CPU time between rounds --> SAMPLING
    SAMPLING -- those that Python does not know use it while the caller waits --> TRYING, else WATCHING
    TRYING   -- iterations of the caller's loop are shorter with a release --> ACTIVE, else WATCHING
    ACTIVE   -- they no longer are, or there was nothing to release --> WATCHING

An iteration lasts from one round to the next. Medians leave out those in which the caller did something else, such as
training.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Any

from vecenv import openmp
from vecenv.backends.system_limits import usable_cpus
from vecenv.errors import warn_caller

WATCHING, SAMPLING, TRYING, ACTIVE = "watching", "sampling", "trying", "active"

MIN_SHARE = 0.2
"""CPUs in use by other threads, above which something is tried."""
WARN_SHARE = 0.5
"""The same, above which the caller is warned if nothing helps."""
ALARMS = 3
"""Reviews in a row that see other threads busy before their waits are sampled."""
BLOCK = 8
"""Rounds with and without a release take turns in blocks of this length while TRYING."""
ENOUGH = 24
"""Iterations of either kind that are compared."""
MAX_TRIED = 160
"""Rounds after which a trial without a clear gain ends."""
MIN_GAIN, STOP_GAIN = 1.03, 0.97
"""To begin and to stop: one noisy block must not end what helps."""
PERIOD = 160
"""Of so many rounds while ACTIVE the first BLOCK go without a release, so that the gain is known."""
IDLE_CHECKS = 6
"""Releases in a row, one in every BLOCK is looked at, that found no thread to end: then there is nothing to do."""
SHORTEST_PAUSE, LONGEST_PAUSE = 16, 1024
"""Reviews to skip after a trial that did not help, doubled each time."""

FAILURES_TO_WARN = 2

_warned = False


class OpenMPRelease:
    """The state of one vector env with `num_workers` worker processes.

    `review` is called once in a few waits. While `engaged`, `before_round` is called before each round, and
    `wait_begins` and `wait_ends` around the caller's sleep in it.
    """

    def __init__(self, num_workers: int) -> None:
        self._spare = usable_cpus() - num_workers
        self.state = WATCHING
        self.rounds = 0
        """Before how many the pool was released."""
        self.gain: float | None = None
        """The time of an iteration without a release by that with one."""
        self._alarms = self._skipped = self._failures = 0
        self._pause = SHORTEST_PAUSE
        self._others = self._waited = 0.0
        self._enter(WATCHING)

    @property
    def engaged(self) -> bool:
        """Whether rounds concern this object."""
        return self.state != WATCHING

    def stats(self) -> dict[str, Any]:
        """What it adds to `stats()` of the vector env."""
        return {"openmp_active": self.state == ACTIVE, "openmp_rounds": self.rounds, "openmp_gain": self.gain}

    def _enter(self, state: str) -> None:
        self.state = state
        self._round = self._idle_checks = 0
        self._last: float | None = None
        self._released = False
        self._began: tuple[float, list[int], float] | None = None
        self._sampled = [0.0, 0.0]
        """Seconds of waits, and the CPU time of unknown threads in them."""
        if state != ACTIVE:
            self._times = {released: deque[float](maxlen=ENOUGH) for released in (False, True)}

    # Reviews.

    def review(self, waited: float) -> None:
        """`waited`: total seconds of the vector env's waits."""
        others = time.process_time() - time.thread_time()
        burnt, self._others = others - self._others, others
        waited, self._waited = waited - self._waited, waited
        if self.state == WATCHING:
            self._watch(burnt, waited)
        elif self.state == SAMPLING:
            self._judge_sample()
        elif self.state == TRYING:
            self._judge_trial()
        else:
            self._judge_gain()

    def _watch(self, burnt: float, waited: float) -> None:
        if self._skipped < self._pause and self._failures:
            self._skipped += 1
            return
        self._alarms = self._alarms + 1 if burnt > max(MIN_SHARE, self._spare) * waited else 0
        if self._alarms >= ALARMS:
            self._enter(SAMPLING)

    def _judge_sample(self) -> None:
        if self._round < BLOCK:
            return
        seconds, cpu = self._sampled
        self._share = cpu / seconds if seconds else 0.0
        if self._share < MIN_SHARE or self._share <= self._spare:
            self._fail(helpless=False)
        elif not openmp.can_release():
            self._fail(helpless=True)
        else:
            self._enter(TRYING)

    def _judge_trial(self) -> None:
        if self._round >= MAX_TRIED or all(len(times) == ENOUGH for times in self._times.values()):
            self.gain = self._measured_gain()
            if self.gain >= MIN_GAIN:
                self._pause, self._failures = SHORTEST_PAUSE, 0
                self._enter(ACTIVE)
            else:
                self._fail(helpless=self._idle_checks > 0)

    def _judge_gain(self) -> None:
        if self._idle_checks >= IDLE_CHECKS:
            self._alarms, self._skipped = 0, 0
            self._enter(WATCHING)
            return
        self.gain = self._measured_gain()
        if self.gain < STOP_GAIN:
            self._fail(helpless=False)

    def _measured_gain(self) -> float:
        return median(self._times[False] or [0.0]) / median(self._times[True] or [1.0])

    def _fail(self, helpless: bool) -> None:
        """Stop for a while. `helpless`: threads take CPUs that workers lack, and a release does not end them."""
        self._pause = SHORTEST_PAUSE if not self._failures else min(2 * self._pause, LONGEST_PAUSE)
        self._failures += 1
        self._alarms = self._skipped = 0
        if helpless and self._failures >= FAILURES_TO_WARN and self._share >= WARN_SHARE:
            _warn(self._share)
        self._enter(WATCHING)

    # Rounds.

    def before_round(self) -> None:
        """Note the time of the iteration that ends here, and release the pool or not."""
        now = time.perf_counter()
        if self._last is not None:
            self._times[self._released].append(now - self._last)
        self._last = now
        self._released = self._releases(self._round)
        if self._released:
            if self._round % BLOCK:
                openmp.release_pool()
            else:
                threads = openmp.count_threads()
                openmp.release_pool()
                self._idle_checks = self._idle_checks + 1 if openmp.count_threads() == threads else 0
            self.rounds += 1
        self._round += 1

    def _releases(self, number: int) -> bool:
        if self.state == TRYING:
            return number // BLOCK % 2 == 1
        return self.state == ACTIVE and number % PERIOD >= BLOCK

    def wait_begins(self) -> None:
        """The caller is about to wait for the round."""
        if self.state == SAMPLING:
            threads = openmp.unknown_threads()
            self._began = time.perf_counter(), threads, openmp.cpu_seconds(threads)

    def wait_ends(self) -> None:
        """The caller has slept, and wakes."""
        if self._began is not None:
            begin, threads, before = self._began
            self._sampled[0] += time.perf_counter() - begin
            self._sampled[1] += max(0.0, openmp.cpu_seconds(threads) - before)
            self._began = None


def _warn(share: float) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn_caller(
            f"while this vector env waited for its workers, threads of this process that Python did not start used "
            f"{share:.1f} CPUs, which the workers lack: {_pools()}. They spin after each parallel operation. Set "
            "OPENBLAS_NUM_THREADS=1 or OMP_WAIT_POLICY=passive before Python starts, or call torch.set_num_threads(1) "
            "around the rollout"
        )


def _pools() -> str:
    """The thread pools of this process, where threadpoolctl is installed."""
    try:
        from threadpoolctl import threadpool_info  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return "probably those of OpenMP or OpenBLAS (threadpoolctl, if installed, names them)"
    pools = [f"{p['internal_api']} with {p['num_threads']} threads" for p in threadpool_info() if p["num_threads"] > 1]
    return ", ".join(pools) or "of a library that threadpoolctl does not know"
