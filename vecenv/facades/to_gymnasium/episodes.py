"""Episodes: which envs have finished theirs, and with which seed each begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.engine.arguments.seeding import next_seed


class Episodes:
    """Keeps track of the episodes of n envs.

    With `seeded`, a reset for which the caller gives no seed gets one as well: `next_seed` of the episode before, so
    that every episode can be played again by itself.
    """

    def __init__(self, n: int, seeded: bool) -> None:
        self.over = np.zeros(n, dtype=np.bool_)
        """A mask of the envs whose last step ended their episode."""
        self.ended: list[int] = []
        """The ids of these envs."""
        self._seeded = seeded
        self._seeds: list[int | None] = [None] * n

    def note_all(self, over: np.ndarray) -> None:
        """All envs have stepped, and the episodes of some are over."""
        self.over, self.ended = over, over.nonzero()[0].tolist()

    @property
    def first_seed(self) -> int | None:
        """The seed with which the current episode of env 0 began, if the caller or `seeded` gave it one."""
        return self._seeds[0]

    def note(self, ids: Any, over: Any) -> None:
        """Whether the episodes of some envs are over."""
        mask = self.over.copy()
        mask[ids] = over
        self.note_all(mask)

    def seeds_for(self, ids: Sequence[int], given: Sequence[int | None] | None) -> dict[str, list[int | None]]:
        """The `seed` argument, if any, for a reset of these envs; `begin` makes it the seed of the episode."""
        if not self._seeded:
            return {} if given is None else {"seed": list(given)}
        seeds = [None] * len(ids) if given is None else list(given)
        return {"seed": [self._following(i) if s is None else s for i, s in zip(ids, seeds, strict=True)]}

    def _following(self, i: int) -> int:
        last = self._seeds[i]
        return int(np.random.SeedSequence().generate_state(1)[0]) if last is None else next_seed(last)

    def begin(self, ids: Sequence[int], seeds: dict[str, list[int | None]]) -> None:
        """The reset with these seeds was sent."""
        for i, seed in zip(ids, seeds.get("seed") or [None] * len(ids), strict=True):
            self._seeds[i] = seed
