"""The contract of a vector env, as checks for any backend.

Each check compares a vector env of CountingEnvs with the same envs, called directly in this process.
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
"""Checks by name, in the order of the modules."""


def check_vector_env(factory: Factory, checks: Iterable[str] | None = None, patience: float = 60.0) -> None:
    """Check that `factory(env_fns, **options) -> BaseVectorEnv` keeps the contract. Raises AssertionError.

    The factory must accept the options `wait_num` and `timeout`. `checks` are names of `CHECKS` (default: all). Each
    check may take `patience` seconds.
    """
    for name in CHECKS if checks is None else checks:
        problem = _run(CHECKS[name], factory, patience)
        if problem is not None:
            unexpected = "" if isinstance(problem, AssertionError) else f"unexpected {type(problem).__name__}: "
            raise AssertionError(f"{name}: {unexpected}{problem}") from problem


def _run(check: Callable[[Factory], None], factory: Factory, patience: float) -> BaseException | None:
    """Return the exception of a check, or None. The check runs in a thread, because a lost result would block it."""
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
    return raised[0] if raised else AssertionError(f"it did not end within {patience} s: a result may be lost")
