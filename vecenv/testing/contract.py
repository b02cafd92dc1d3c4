"""The contract of a vector env as a list of checks that anyone can run on a backend of their own.

Each check opens a fresh vector env of CountingEnvs, drives it, and compares every row with what the same envs do when
they are called one by one in this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from vecenv.testing import check_access, check_batches, check_life, check_rounds
from vecenv.testing.model import Factory


def check_vector_env(factory: Factory, checks: Iterable[str] | None = None, patience: float = 60.0) -> None:
    """Check that `factory(env_fns, **options) -> BaseVectorEnv` keeps the contract; AssertionError says what broke.

    The options that are passed are `wait_num` and `timeout`. `checks` are names of `CHECKS` (default all); each may
    take `patience` seconds.
    """
    for name in CHECKS if checks is None else checks:
        problem = _run(CHECKS[name], factory, patience)
        if isinstance(problem, AssertionError):
            raise AssertionError(f"{name}: {problem}") from problem
        if problem is not None:
            raise AssertionError(f"{name}: unexpected {type(problem).__name__}: {problem}") from problem


def _run(check: Callable[[Factory], None], factory: Factory, patience: float) -> BaseException | None:
    """What the check raised. In a thread, because a backend that loses an answer lets its caller wait for ever."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            check(factory)
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="vecenv-check", daemon=True)
    thread.start()
    thread.join(patience)
    return raised[0] if raised else AssertionError(f"it did not end within {patience} s; an answer was lost?")


CHECKS: dict[str, Callable[[Factory], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_rounds.check_rows,
        check_rounds.check_options_of_reset,
        check_rounds.check_mixed_rounds,
        check_rounds.check_autoreset,
        check_rounds.check_async,
        check_rounds.check_waiting,
        check_batches.check_returned_arrays_stay,
        check_batches.check_infos,
        check_batches.check_vector_rewards,
        check_batches.check_observations_fit_their_space,
        check_batches.check_actions_are_the_envs_own,
        check_access.check_attributes,
        check_access.check_reports,
        check_access.check_frames,
        check_access.check_seeds,
        check_access.check_stats,
        check_life.check_rejected_calls,
        check_life.check_env_errors,
        check_life.check_workers_that_end,
        check_life.check_errors_of_constructors,
        check_life.check_env_fns_are_called_once,
        check_life.check_close,
    )
}
