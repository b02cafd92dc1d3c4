"""`tune`: measures the speed of vector env classes in a loop that computes between steps, as a policy does.

1. `measure_cost` measures one env. The cost determines the candidates.
2. Each candidate (`TuneRow`) makes its envs, and steps them a few times.
3. The candidates take turns of 5 ms, so that noise affects all. `tune` compares median times of a round, because on a
   busy machine, means depend more on the scheduler of the system than on the candidate.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest
from vecenv.arguments import check_env_fns, check_timeout, unshared_env_fns
from vecenv.backends.free_threading import gil_modules
from vecenv.backends.system_limits import usable_cpus
from vecenv.base import BaseVectorEnv
from vecenv.errors import VectorEnvError, WorkerDiedError, WorkerTimeoutError
from vecenv.random_actions import sample_action
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
        lines = [
            f"{len(self.env_fns)} envs, {self.pause * 1e3:g} ms of the caller's work in each round, "
            f"{usable_cpus()} CPUs: env steps a second"
        ]
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
    is the simplest (in the order Dummy, Shmem, Thread) with at least 95 % of the highest speed, in all turns or in each
    second turn. If Thread is fastest, 90 % suffice, because its envs must be thread-safe. On a busy machine, threads
    get more of the CPUs than a single thread. `tune` compares processor time too, to leave this out.

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
        try:
            found = measure_cost(measured[0], duration / 4, START_TIMEOUT, START_TIMEOUT)
        except (WorkerTimeoutError, WorkerDiedError):
            raise
        except Exception as error:  # a candidate may still work
            found = str(error)
        cost = found if isinstance(found, EnvCost) else None
        loops = [_CandidateLoop(*candidate, cost, len(fns), pause) for candidate in candidates(cost, len(fns))]
        _open(loops, measured, opened, 3 * duration)
        _measure(loops, duration)
    rows, best = _rank(loops)
    if best is None:
        failures = "; ".join(f"{row.name}: {row.note}" for row in rows)
        raise VectorEnvError(f"no vector env of these envs can be stepped with random actions: {failures}")
    return TuneResult(fns, pause, rows, best)


def candidates(cost: EnvCost | None, n: int) -> list[tuple[str, int | None]]:
    if cost is not None and cost.one_per_process is not None:
        return [("shmem", n)]
    cpus = usable_cpus()
    each = [min(n, MOST_WORKERS)] if cost is None or cost.waits else []
    shmem = dict.fromkeys([*(min(n, k) for k in (cpus, max(1, cpus // 2), 2 * cpus)), *each])
    return [
        ("dummy", None),
        *[("shmem", k) for k in shmem],
        *[("thread", k) for k in dict.fromkeys([min(n, cpus), *each])],
    ]


class Rounds(NamedTuple):
    """Seconds of each round in some of the turns."""

    plain: list[float]
    with_resets: list[float]

    def expected_seconds(self, share: float, first_reset: float) -> float:
        """Return the seconds of a round, if `share` of all rounds have resets. Medians leave out interruptions."""
        usual = median(self.plain or self.with_resets)
        with_resets = median(self.with_resets or [first_reset + usual])
        return (1 - share) * usual + share * with_resets


class _CandidateLoop:
    venv: BaseVectorEnv
    last: tuple[Any, Any]
    """Observations and infos of the last round."""

    def __init__(self, backend: str, num_workers: int | None, cost: EnvCost | None, n: int, pause: float) -> None:
        self.backend, self.num_workers, self.n, self.pause = backend, num_workers, n, pause
        self.failure = ""
        self.waits = cost is None or cost.waits
        self.turns = Rounds([], []), Rounds([], [])
        """Rounds of even and of odd turns."""
        self.first_reset = 0.0
        self.cpu_seconds, self.parallel = 0.0, 1.0
        """Processor time of this process in all rounds, and the most CPUs that it used at once."""
        self.rates: list[float] = []
        """Steps per second in all turns, in even turns and in odd turns."""
        self.rounds_before = ROUNDS_BEFORE + (cost.slow_steps if cost else 0)

    def open(self, env_fns: Sequence[Callable[[], Any]], opened: ExitStack, seconds: float) -> None:
        options: dict[str, Any] = (
            {} if self.backend == "dummy" else {"num_workers": self.num_workers, "step_timeout": STEP_TIMEOUT}
        )
        self.venv = opened.enter_context(BACKENDS[self.backend](env_fns, **options))
        seed_spaces(self.venv.action_space)
        begin = time.perf_counter()
        obs, infos = self.venv.reset(seed=0)
        self.first_reset = time.perf_counter() - begin
        end = time.perf_counter() + seconds
        for i in range(self.rounds_before):
            if not i or time.perf_counter() < end:
                obs, *_, infos = self.venv.step(draw_actions(self.venv.action_space, obs, infos), autoreset=True)
        self.last = obs, infos

    @property
    def all_rounds(self) -> Rounds:
        even, odd = self.turns
        return Rounds(even.plain + odd.plain, even.with_resets + odd.with_resets)

    def measure(self, seconds: float, turn: int) -> None:
        step, clock, spaces, rounds = self.venv.step, time.perf_counter, self.venv.action_space, self.turns[turn % 2]
        obs, infos = self.last
        wall, cpu, count = 0.0, 0.0, 0
        while not count or wall < seconds:
            actions = draw_actions(spaces, obs, infos)
            begin, cpu_begin = clock(), time.process_time()
            compute(self.pause)
            obs, _, terminated, truncated, infos = step(actions, autoreset=True)
            cpu, taken, count = cpu + time.process_time() - cpu_begin, clock() - begin, count + 1
            wall += taken
            (rounds.with_resets if np.any(terminated) or np.any(truncated) else rounds.plain).append(taken)
        self.last = obs, infos
        self.cpu_seconds, self.parallel = self.cpu_seconds + cpu, max(self.parallel, cpu / wall)

    def cpu_per_round(self) -> float:
        return self.cpu_seconds / self.parallel / sum(map(len, self.all_rounds))

    def rate(self, share: float, dummy: _CandidateLoop | None) -> None:
        """Set `rates`. `share`: share of rounds with resets. Threads gain over `dummy` at most in processor time."""
        parts = (self.all_rounds, *self.turns)
        self.rates = [self.n / part.expected_seconds(share, self.first_reset) for part in parts]
        if self.backend == "thread" and dummy is not None and not self.waits:
            gain = dummy.cpu_per_round() / self.cpu_per_round()
            self.rates = [min(own, gain * its) for own, its in zip(self.rates, dummy.rates, strict=True)]

    def fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]

    def row(self) -> TuneRow:
        note = self.failure or (THREAD_SAFE if self.backend == "thread" else "")
        if self.backend == "thread" and gil_modules:
            note += f"; importing {gil_modules[0]!r} has turned the interpreter lock on"
        rate = self.rates[0] if self.rates and not self.failure else None
        return TuneRow(self.backend, self.num_workers, rate, note)


def _open(
    loops: Sequence[_CandidateLoop], env_fns: Sequence[Callable[[], Any]], opened: ExitStack, seconds: float
) -> None:
    """Open all candidates, worker processes first. If an env hangs or crashes there, run no envs in this process."""
    harmful = ""
    for loop in sorted(loops, key=lambda loop: ["shmem", "thread", "dummy"].index(loop.backend)):
        try:
            if harmful and loop.backend != "shmem":
                loop.failure = f"not measured: {harmful}"
            else:
                loop.open(env_fns, opened, seconds)
        except Exception as error:
            loop.fail(error)
            if isinstance(error, (WorkerTimeoutError, WorkerDiedError)):
                harmful = f"an env failed with {type(error).__name__} in {loop.row().name}"


def _measure(loops: Sequence[_CandidateLoop], seconds: float) -> None:
    end, turn = time.perf_counter() + seconds, 0
    active = [loop for loop in loops if not loop.failure]
    while active and (turn < TURNS or time.perf_counter() < end):
        first = turn % len(active)
        for loop in active[first:] + active[:first]:
            try:
                loop.measure(TURN if time.perf_counter() < end else 0.0, turn)
            except Exception as error:
                loop.fail(error)
        active = [loop for loop in active if not loop.failure]
        turn += 1
    # All candidates step equal envs, so they have the same share of rounds with resets.
    plain, resets = (sum(len(loop.all_rounds[k]) for loop in active) for k in range(2))
    for loop in active:  # Dummy is the first
        loop.rate(resets / (plain + resets), active[0] if active[0].backend == "dummy" else None)


def _rank(loops: Sequence[_CandidateLoop]) -> tuple[list[TuneRow], TuneRow | None]:
    measured = [loop for loop in loops if loop.rates and not loop.failure]
    row_of = {loop: loop.row() for loop in loops}
    rows = sorted(row_of.values(), key=lambda row: -(row.steps_per_second or 0.0))
    if not measured:
        return rows, None
    fastest = max(measured, key=lambda loop: loop.rates[0])
    enough = TIE_WITH_THREADS if fastest.backend == "thread" else TIE

    def is_tied(loop: _CandidateLoop) -> bool:
        return any(own >= enough * its for own, its in zip(loop.rates, fastest.rates, strict=False))

    return rows, next(row_of[loop] for loop in measured if is_tied(loop))


def seed_spaces(spaces: Sequence[Any]) -> None:
    for i, space in enumerate(spaces):
        if space is None:
            raise ValueError(f"env {i} has no action_space, which is needed to draw random actions")
        space.seed(i)


def draw_actions(spaces: Sequence[Any], obs: Any, infos: Any) -> Any:
    """Return legal actions: an array, as a policy does, or a list if they have different dtypes or shapes."""
    actions = [sample_action(space, nest.take(obs, i), infos[i]) for i, space in enumerate(spaces)]
    kinds = {(getattr(action, "dtype", None), getattr(action, "shape", None)) for action in actions}
    return np.stack(actions) if len(kinds) == 1 and isinstance(actions[0], (np.ndarray, np.generic)) else actions


def compute(seconds: float) -> None:
    """Use `seconds` of CPU time, as a policy does. A sleep would leave the CPU to the workers."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
