"""Outcomes: which envs of a round failed, whose episode ended, and which were reset."""

from __future__ import annotations

import numpy as np

from vecenv.backends.base import Taken
from vecenv.backends.memory.arena import Arena
from vecenv.engine.readiness import Readiness
from vecenv.engine.recovery import Recovery
from vecenv.engine.results import Results
from vecenv.errors import Partial


class Outcomes:
    """Records the results of rounds, and handles failures as `on_error` requires."""

    def __init__(self, arena: Arena, recovery: Recovery, readiness: Readiness, results: Results) -> None:
        self._arena, self._recovery, self._readiness, self._results = arena, recovery, readiness, results

    def settle(self, ids: np.ndarray | None, asked: list[int], taken: Taken) -> Taken:
        """The results to return; raises the first failure, with the results of the other envs in `error.partial`."""
        recovery = self._recovery
        if recovery.rows:
            rows, recovery.rows = recovery.rows, {}
            taken = taken._replace(extras={**taken.extras, **rows})
        extras = taken.extras
        recovery.note_lost()
        failed = []
        if extras:
            self._results.check_rewards(asked, extras)
            if any(extra.failure is not None for extra in extras.values()):
                failed = recovery.settle(extras)
        if self._readiness.strict:
            self._readiness.note_ends(ids, taken, self._arena)
        if ids is None:
            recovery.resets = {}
        elif recovery.resets:
            for i in asked:
                recovery.resets.pop(i, None)
        if failed:
            self._raise(failed, asked, taken)
        return taken

    def _raise(self, failed: list[int], asked: list[int], taken: Taken) -> None:
        """Raise the first failure, that of an env before those of envs that only share its worker."""
        partial, extras = None, taken.extras
        lost = {i for i in failed if not extras[i].failure.stepped}  # type: ignore[union-attr]
        if good := [i for i in asked if i not in lost]:
            infos = [columns.of(good) for columns in taken.infos]
            others = Taken({i: extras[i] for i in good if i in extras}, None, infos)
            partial = Partial(np.array(good), *self._results.rows(np.array(good), good, others))
        errors = self._recovery.errors
        first = min(failed, key=lambda i: (getattr(errors[i], "bystander", False), i))
        errors[first].partial = partial  # type: ignore[attr-defined]
        raise errors[first]
