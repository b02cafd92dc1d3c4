"""Run random programs until the time is over, and shrink a program that fails.

Hypothesis' stateful testing generates and shrinks the programs. A fuzzer is a subclass of `Program`: its rules are the
operations, its attributes the oracle. The same seed gives the same batch of programs.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import signal
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import hypothesis.internal.conjecture.engine as hypothesis_engine
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

hypothesis_engine.MAX_SHRINKING_SECONDS = 60  # there is no setting for it; a program that hangs is shrunk for minutes


class Hang(AssertionError):
    """An operation exceeded its time."""


def _hang(*_: Any) -> None:
    raise Hang("the operation takes too long: a call waits for ever")


class Program(RuleBasedStateMachine):
    """One random program. `close` releases the resources of the program, and is called once after it."""

    per_seed: ClassVar[int] = 10
    """Number of programs per seed."""
    steps: ClassVar[int] = 30
    """Most operations of one program."""
    patience: ClassVar[float] = 40.0
    """Seconds after which an operation counts as hanging."""
    phases: ClassVar[tuple[Phase, ...]] = (Phase.generate, Phase.shrink)
    programs: ClassVar[int] = 0
    operations: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).programs += 1
        self._handler = signal.signal(signal.SIGALRM, _hang)
        self._start_timers()

    def _start_timers(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.patience)
        faulthandler.dump_traceback_later(4 * self.patience, exit=True)  # a call that no signal ends

    @invariant()
    def count(self) -> None:
        """Count an operation. Time starts again, because a busy machine may need long for a whole program."""
        type(self).operations += 1
        self._start_timers()

    def close(self) -> None:
        """Release what the program holds."""

    def teardown(self) -> None:
        try:
            self.close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            faulthandler.cancel_dump_traceback_later()


def run(program: type[Program], seeds: Iterable[int], deadline: float | None = None, count: int = 0) -> None:
    """Run the batch of each seed (`count` programs) until the deadline; raise what the shortest program raised."""
    options = settings(
        max_examples=count or program.per_seed,
        stateful_step_count=program.steps,
        phases=program.phases,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.normal,
    )
    for number in seeds:
        if deadline is not None and time.monotonic() >= deadline:
            return
        try:
            run_state_machine_as_test(seed(number)(program), settings=options)
        except BaseException as error:
            error.add_note(f"seed {number}")
            raise


def fuzz(name: str, program: type[Program], first_seed: int, minutes: float | None) -> int:
    """Run one fuzzer and print what it found; `minutes` None: only the batch of the seed. Returns the exit status."""
    begin = time.monotonic()
    seeds, deadline = ([first_seed], None) if minutes is None else (itertools.count(first_seed), begin + 60 * minutes)
    found = 0
    warnings.simplefilter("ignore")
    try:
        run(program, seeds, deadline)
    except Exception as error:
        found = 1
        traceback.print_exception(error)
        number = error.__notes__[-1].split()[-1]
        print(f"{name}: FOUND; again with: python -m tests.fuzz {name} --seed {number}", flush=True)
    gc.collect()
    print(
        f"{name}: {program.programs:,} programs, {program.operations:,} operations, {found} findings, "
        f"{time.monotonic() - begin:.0f} s, seeds from {first_seed}",
        flush=True,
    )
    return found
