"""`tune`: measures the speed of vector env classes in a loop that computes between steps, as a policy does.

1. `measure_cost` measures one env. The cost determines the candidates.
2. Each candidate makes its envs, and steps them a few times.
3. The candidates take turns of 5 ms, so that noise affects all. `tune` compares median times of a round, because on a
   busy machine, means depend more on the scheduler of the system than on the candidate.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from vecenv.arguments import check_env_fns, check_timeout, unshared_env_fns
from vecenv.backends.free_threading import gil_modules
from vecenv.backends.system_limits import usable_cpus
from vecenv.base import BaseVectorEnv
from vecenv.errors import VectorEnvError, WorkerDiedError, WorkerTimeoutError
from vecenv.random_actions import sample_actions, seed_spaces
from vecenv.tuning.auto_backend import MOST_WORKERS, EnvCost, measure_cost
from vecenv.venvs import BACKENDS, START_TIMEOUT, EnvFns

STEP_TIMEOUT = 20.0
TURN = 5e-3
"""Seconds of a turn. A candidate that computes without a break is interrupted in longer turns if the CPUs are busy."""
TURNS = 4
"""Minimum number of turns of each candidate."""
ROUNDS_BEFORE = 3
"""Unmeasured rounds of each candidate, in addition to slow first steps of its envs."""
TIE, TIE_WITH_THREADS = 0.95, 0.9
"""Shares of the highest speed that count as equal to it: usually, and if Thread is fastest."""
BAR = 40
THREAD_SAFE = "envs must be thread-safe"


class TuneRow(NamedTuple):
    """Speed of a candidate: a vector env class with a number of workers."""

    backend: str
    """"dummy", "shmem" or "thread", as in `vecenv.make_vec`."""
    num_workers: int | None
    """Number of worker processes or threads, or None for "dummy"."""
    steps_per_second: float | None
    """Env steps per second, if the caller computes for `pause` seconds in each round. None for a failed candidate."""
    note: str
    """Reason of a failure, or for "thread" a warning that the envs must be thread-safe, or ""."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the vector env besides the env_fns."""
        return {} if self.num_workers is None else {"num_workers": self.num_workers}

    @property
    def name(self) -> str:
        """Class and number of workers, as text."""
        kind, k = BACKENDS[self.backend].__name__, self.num_workers
        unit = "thread" if self.backend == "thread" else "worker"
        return kind if k is None else f"{kind}, {k} {unit}{'s' * (k > 1)}"

    @property
    def line(self) -> str:
        """Code that makes this vector env."""
        arguments = ["env_fns", *(f"{name}={value}" for name, value in self.kwargs.items())]
        return f"vecenv.{BACKENDS[self.backend].__name__}({', '.join(arguments)})"


@dataclass(frozen=True)
class TuneResult:
    """Result of `vecenv.tune`. `print` shows a table with a bar per candidate."""

    env_fns: Sequence[Callable[[], Any]]
    pause: float
    rows: list[TuneRow]
    """All candidates, fastest first and failed ones last."""
    best: TuneRow
    """Simplest candidate that is about as fast as the fastest (see `tune`)."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the best candidate."""
        return self.best.kwargs

    def make(self, **options: Any) -> BaseVectorEnv:
        """Make the best vector env. `options` extend or replace `kwargs`."""
        return BACKENDS[self.best.backend](self.env_fns, **{**self.kwargs, **options})

    def __str__(self) -> str:
        work = f"{self.pause * 1e3:g} ms of the caller's work in each round"
        lines = [f"{len(self.env_fns)} envs, {work}, {usable_cpus()} CPUs: env steps a second"]
        width = max(len(row.name) for row in self.rows)
        most = max(row.steps_per_second or 0.0 for row in self.rows)
        for row in self.rows:
            rate = row.steps_per_second
            figure, bar = "-" if rate is None else f"{rate:,.0f}", "#" * round(BAR * (rate or 0.0) / most)
            note = ", ".join(part for part in ("best" if row is self.best else "", row.note) if part)
            lines.append(f"  {row.name:{width}}  {figure:>11}  {bar:{BAR}}  {note}".rstrip())
        lines.append(f"write: venv = {self.best.line}" + (f"  # {self.best.note}" if self.best.note else ""))
        safe = [row for row in self.rows if row.steps_per_second and row.backend != "thread"]
        if self.best.backend == "thread" and safe:
            lines.append(f"   or: venv = {safe[0].line}")
        return "\n".join(lines)


def tune(env_fns: EnvFns, *, pause: float = 0.3e-3, seconds: float = 2.0) -> TuneResult:
    """Measure how fast DummyVectorEnv, ShmemVectorEnv and ThreadVectorEnv step these envs, and find the best candidate.

    pause: CPU seconds that your program uses between two steps, for example for the policy.
    seconds: duration of the comparison. Before, `tune` measures one env, and makes the envs of all candidates,
        which are open at the same time.

    The envs take random actions that their `action_mask` allows, and are reset when an episode ends. The best candidate
    is the simplest (in the order Dummy, Shmem, Thread) with at least 95 % of the highest speed. If Thread is fastest,
    90 % suffice, because its envs must be thread-safe. On a busy machine, threads get more of the CPUs than a single
    thread. So threads count at most as much faster than Dummy as their time is shorter than its processor time.

    Raises:
        ValueError, TypeError: an argument is wrong.
        WorkerTimeoutError, WorkerDiedError: the first env hangs in a worker process, or ends the process.
        VectorEnvError: all candidates failed.
        gymnasium.error.Error: an env id is unknown.

    >>> import gymnasium as gym
    >>> result = tune([lambda: gym.make("CartPole-v1")] * 2, seconds=0.2)
    >>> with result.make() as venv:
    ...     obs, info = venv.reset(seed=0)
    >>> len(obs), result.best in result.rows
    (2, True)
    """
    fns = check_env_fns(env_fns)
    if isinstance(pause, bool) or not isinstance(pause, (int, float)) or not 0 <= pause < 60:
        raise ValueError(f"pause must be a number of seconds, at least 0 and below 60, got {pause!r}")
    if (duration := check_timeout(seconds, "seconds")) is None:
        raise ValueError("seconds must be a positive number of seconds, got None")
    with warnings.catch_warnings(), ExitStack() as opened:
        # This warning advises one worker per env, which `tune` measures.
        warnings.filterwarnings("ignore", "a worker spent")
        measured = unshared_env_fns(fns)
        cost = _cost_of(measured[0], duration / 4)
        found = [_Candidate(*each, pause) for each in candidates(cost, len(fns))]
        for each in found:
            _spare_this_process(found)
            if each.failure:
                continue
            with each.failures():
                each.open(measured, opened, ROUNDS_BEFORE + (cost.slow_steps if cost else 0), 3 * duration)
        _measure(found, duration)
    _rate(found, len(fns), waits=cost is None or cost.waits)
    rows = [each.row() for each in found]
    return TuneResult(fns, pause, sorted(rows, key=lambda row: -(row.steps_per_second or 0.0)), choose(rows))


def _cost_of(env_fn: Callable[[], Any], seconds: float) -> EnvCost | None:
    try:
        cost = measure_cost(env_fn, seconds, START_TIMEOUT, START_TIMEOUT)
    except (WorkerTimeoutError, WorkerDiedError):
        raise
    except Exception:  # a candidate may still work
        return None
    return cost if isinstance(cost, EnvCost) else None


def candidates(cost: EnvCost | None, n: int) -> list[tuple[str, int | None]]:
    """Return backends and numbers of workers. Processes come first, because envs that crash do no harm there."""
    if cost is not None and cost.one_per_process is not None:
        return [("shmem", n)]
    cpus = usable_cpus()
    each = [min(n, MOST_WORKERS)] if cost is None or cost.waits else []
    shmem = dict.fromkeys([*(min(n, k) for k in (cpus, max(1, cpus // 2), 2 * cpus)), *each])
    thread = dict.fromkeys([min(n, cpus), *each])
    return [*(("shmem", k) for k in shmem), ("dummy", None), *(("thread", k) for k in thread)]


class _Candidate:
    venv: BaseVectorEnv
    last: tuple[Any, Any]
    """Observations and infos of the last round."""
    first_reset = 0.0

    def __init__(self, backend: str, num_workers: int | None, pause: float) -> None:
        self.backend, self.num_workers, self.pause = backend, num_workers, pause
        self.failure, self.is_harmful, self.rate = "", False, 0.0
        self.plain, self.with_resets = list[float](), list[float]()
        """Seconds of the rounds without and with a reset."""
        self.cpu_seconds = list[float]()
        """Processor time of this process in each round."""

    def open(self, env_fns: Sequence[Callable[[], Any]], opened: ExitStack, rounds: int, seconds: float) -> None:
        options: dict[str, Any] = {"num_workers": self.num_workers, "step_timeout": STEP_TIMEOUT}
        make = BACKENDS[self.backend]
        self.venv = opened.enter_context(make(env_fns, **({} if self.num_workers is None else options)))
        seed_spaces(self.venv.action_space)
        begin = time.perf_counter()
        self.last = self.venv.reset(seed=0)
        self.first_reset = time.perf_counter() - begin
        end = time.perf_counter() + seconds
        for i in range(rounds):
            if not i or time.perf_counter() < end:
                self.take_round()
        self.plain, self.with_resets, self.cpu_seconds = [], [], []

    def take_round(self) -> None:
        actions = sample_actions(self.venv.action_space, *self.last)
        begin, cpu = time.perf_counter(), time.process_time()
        compute(self.pause)
        obs, _, terminated, truncated, infos = self.venv.step(actions, autoreset=True)
        self.cpu_seconds.append(time.process_time() - cpu)
        rounds = self.with_resets if np.any(terminated) or np.any(truncated) else self.plain
        rounds.append(time.perf_counter() - begin)
        self.last = obs, infos

    def round_seconds(self, share: float) -> float:
        """Return the seconds of a round, if `share` of all rounds have resets. Medians leave out interruptions."""
        usual = median(self.plain or self.with_resets)
        return (1 - share) * usual + share * median(self.with_resets or [self.first_reset + usual])

    @contextmanager
    def failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            self.is_harmful = isinstance(error, (WorkerTimeoutError, WorkerDiedError))

    def row(self) -> TuneRow:
        note = self.failure or (THREAD_SAFE if self.backend == "thread" else "")
        if self.backend == "thread" and gil_modules:
            note += f"; importing {gil_modules[0]!r} has turned the interpreter lock on"
        return TuneRow(self.backend, self.num_workers, self.rate or None, note)


def _measure(found: Sequence[_Candidate], seconds: float) -> None:
    end, turn = time.perf_counter() + seconds, 0
    while (active := [each for each in found if not each.failure]) and (turn < TURNS or time.perf_counter() < end):
        first = turn % len(active)
        for each in active[first:] + active[:first]:
            until = min(end, time.perf_counter() + TURN)
            if each.failure:
                continue
            with each.failures():
                each.take_round()
                while time.perf_counter() < until:
                    each.take_round()
            _spare_this_process(found)
        turn += 1


def _spare_this_process(found: Sequence[_Candidate]) -> None:
    """If an env has hung or crashed in a worker, leave out the candidates that step envs in this process."""
    for harmful in (each for each in found if each.is_harmful):
        for each in found:
            if not each.failure and each.backend != "shmem":
                each.failure = f"not measured: an env hung or crashed in {harmful.row().name}"


def _rate(found: Sequence[_Candidate], n: int, waits: bool) -> None:
    """Set the `rate` of each candidate, in steps per second.

    On a busy machine, threads get more of the CPUs than Dummy's thread. So unless envs wait, threads count at most as
    much faster than Dummy as their time is shorter than Dummy's processor time.
    """
    active = [each for each in found if not each.failure]
    # All candidates step equal envs, so they have the same share of rounds with resets.
    resets = sum(len(each.with_resets) for each in active)
    share = resets / max(1, resets + sum(len(each.plain) for each in active))
    for each in active:
        each.rate = n / each.round_seconds(share)
    dummy = next((each for each in active if each.backend == "dummy"), None)
    for each in active:
        if each.backend == "thread" and dummy is not None and not waits:
            gain = fmean(dummy.cpu_seconds) / fmean(each.plain + each.with_resets)
            each.rate = min(each.rate, gain * dummy.rate)


def choose(rows: Sequence[TuneRow]) -> TuneRow:
    """Return the simplest row that is about as fast as the fastest. Raise `VectorEnvError` if all candidates failed."""
    fastest = max(rows, key=lambda row: row.steps_per_second or 0.0)
    if fastest.steps_per_second is None:
        failures = "; ".join(f"{row.name}: {row.note}" for row in rows)
        raise VectorEnvError(f"no vector env of these envs can be stepped with random actions: {failures}")
    enough = (TIE_WITH_THREADS if fastest.backend == "thread" else TIE) * fastest.steps_per_second
    return min((row for row in rows if (row.steps_per_second or 0.0) >= enough), key=lambda row: row.backend)


def compute(seconds: float) -> None:
    """Use `seconds` of CPU time, as a policy does. A sleep would leave the CPU to the workers."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
