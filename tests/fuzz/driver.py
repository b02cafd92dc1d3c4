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
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine as hypothesis_engine
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.fuzz.envs import Results, assert_same

hypothesis_engine.MAX_SHRINKING_SECONDS = 60  # there is no setting for it; a program that hangs is shrunk for minutes
# Otherwise it parses all imported modules for numbers to draw: a seed would depend on the modules and on their code.
providers._get_local_constants = lambda: providers._local_constants
SMALL = st.integers(0, 99)


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
        signal.setitimer(signal.ITIMER_REAL, self.patience)
        # For a call that no signal ends. This timer is for the whole program, because it is slow to start.
        faulthandler.dump_traceback_later(self.steps * self.patience, exit=True)

    @invariant()
    def count(self) -> None:
        """Count an operation. Time starts again, because a busy machine may need long for a whole program."""
        type(self).operations += 1
        signal.setitimer(signal.ITIMER_REAL, self.patience)

    def close(self) -> None:
        """Release what the program holds."""

    def teardown(self) -> None:
        try:
            self.close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            faulthandler.cancel_dump_traceback_later()


class Pair(Program):
    """Program whose calls go to `both`: the original, or a plain vector env, and ours. Both must do the same.

    `owns`: the caller owns the results. No later call changes them, and the caller may write into them.
    """

    owns = True

    def __init__(self) -> None:
        super().__init__()
        self.both: list[Any] = []
        self.results = Results()

    def close(self) -> None:
        for envs in self.both:
            envs.close()
        self.results.check()

    def compare(
        self, call: Callable[[Any], Any], what: str = "result", plain: Callable[[Any], Any] = list, keep: bool = True
    ) -> Any:
        """Make the call on both, and compare the plain forms of the results. Return the original's result.

        If the original raises, ours must raise an error of the same class with the same text, which names the env.
        The result is None then.
        """
        theirs, mine = (outcome(call, envs) for envs in self.both)
        for error in (theirs, mine):
            if isinstance(error, Exception):
                described = [(type(each), str(each)) for each in (theirs, mine)]
                if described[0] != described[1]:
                    raise AssertionError(f"the original: {theirs!r}; ours: {mine!r}") from error
                return None
        assert_same(plain(mine), plain(theirs), what)
        if keep and self.owns:
            self.results.add(list(mine), write=True)
        return theirs


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of the call, or the error that it raises."""
    try:
        return call(*arguments)
    except Hang:
        raise
    except Exception as error:
        return error


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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program in the background ignores SIGINT
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
