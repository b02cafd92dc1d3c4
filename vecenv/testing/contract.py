"""`check_vector_env`: checks that a vector env, with any backend, keeps vecenv's guarantees."""

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
"""Functions that check a guarantee, by name."""


def check_vector_env(factory: Factory, checks: Iterable[str] | None = None, patience: float = 60.0) -> None:
    """Check the vector envs that `factory(env_fns, **options)` makes.

    factory: function that returns a BaseVectorEnv, and accepts the options `wait_num` and `timeout`.
    checks: names in `CHECKS` (default: all).
    patience: seconds that each check may take.

    Raises AssertionError if a check fails.
    """
    for name in CHECKS if checks is None else checks:
        problem = _run(CHECKS[name], factory, patience)
        if problem is not None:
            unexpected = "" if isinstance(problem, AssertionError) else f"unexpected {type(problem).__name__}: "
            raise AssertionError(f"{name}: {unexpected}{problem}") from problem


def _run(check: Callable[[Factory], None], factory: Factory, patience: float) -> BaseException | None:
    """Run a check in a thread, because it may wait forever for a lost result. Return its exception, or `None`."""
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
