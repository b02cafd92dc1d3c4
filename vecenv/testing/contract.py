"""The contract of a vector env: a list of checks that anyone can run on a new backend.

Each check opens a fresh vector env of CountingEnvs, drives it, and compares every row with what the same envs do when
they are called one by one in this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from vecenv.testing import check_life, check_rounds
from vecenv.testing.model import Factory

CHECKS: dict[str, Callable[[Factory], None]] = {
    name.removeprefix("check_"): check
    for module in (check_rounds, check_life)
    for name, check in vars(module).items()
    if name.startswith("check_")
}
"""The checks by name, in the order in which they stand in the modules."""


def check_vector_env(factory: Factory, checks: Iterable[str] | None = None, patience: float = 60.0) -> None:
    """Check that `factory(env_fns, **options) -> BaseVectorEnv` keeps the contract; AssertionError says what broke.

    The options that are passed are `wait_num` and `timeout`. `checks` are names of `CHECKS` (default all); each may
    take `patience` seconds.
    """
    for name in CHECKS if checks is None else checks:
        problem = _run(CHECKS[name], factory, patience)
        if problem is not None:
            unexpected = "" if isinstance(problem, AssertionError) else f"unexpected {type(problem).__name__}: "
            raise AssertionError(f"{name}: {unexpected}{problem}") from problem


def _run(check: Callable[[Factory], None], factory: Factory, patience: float) -> BaseException | None:
    """The exception of the check. In a thread, because a backend that loses an answer lets its caller wait for ever."""
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
