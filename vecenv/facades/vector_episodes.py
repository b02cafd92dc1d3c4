"""Episodes: which envs of a facade have finished theirs, the seed of each, and the latest observations."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.engine.arguments import next_seed
from vecenv.wrappers import VectorEnvWrapper


class Episodes:
    """Keeps track of the episodes of the envs of `venv`.

    With `seeded`, a reset for which the caller gives no seed gets one as well: `next_seed` of the episode before, so
    that every episode can be played again by itself.
    """

    def __init__(self, venv: Any, seeded: bool) -> None:
        self._venv, n = venv, len(venv)
        self.over = np.zeros(n, dtype=np.bool_)
        """A mask of the envs whose last step ended their episode."""
        self.ended: list[int] = []
        """The ids of these envs."""
        self._seeded = seeded
        self._seeds: list[int | None] = [None] * n
        self._keeps = isinstance(venv, VectorEnvWrapper)
        """True if observations are kept here: a wrapper may have changed those in the arena of the engine."""
        self._kept: Any = None

    def note_all(self, over: np.ndarray, obs: Any) -> None:
        """Note a step of all envs: the mask `over` of those whose episodes ended, and the observations."""
        self.over, self.ended = over, over.nonzero()[0].tolist()
        if self._keeps:
            self._keep(slice(None), obs)

    def note(self, ids: Any, over: Any, obs: Any = None) -> None:
        """Note which episodes of the envs `ids` are over, and their observations where these are new."""
        self.over = self.over.copy()
        self.over[ids] = over
        self.ended = self.over.nonzero()[0].tolist()
        if self._keeps and obs is not None:
            self._keep(ids, obs)

    def _keep(self, ids: Any, obs: Any) -> None:
        if self._kept is None:
            n = len(self.over)
            self._kept = nest.map(lambda leaf: np.zeros((n, *leaf.shape[1:]), leaf.dtype), obs)
        nest.put(self._kept, ids, obs)

    def latest_obs(self) -> Any:
        """The observations of all envs, a copy unless the vector env returns views."""
        return nest.map(np.copy, self._kept) if self._keeps else self._venv.engine.results.obs(None, {})

    def seeds_for(self, ids: Sequence[int], given: Sequence[int | None] | None = None) -> dict[str, list[int | None]]:
        """The `seed` argument, if any, for a reset of these envs; `begin` makes it the seed of the episode."""
        if not self._seeded:
            return {} if given is None else {"seed": list(given)}
        seeds = [None] * len(ids) if given is None else list(given)
        return {"seed": [self._following(i) if s is None else s for i, s in zip(ids, seeds, strict=True)]}

    def _following(self, i: int) -> int:
        last = self._seeds[i]
        return int(np.random.SeedSequence().generate_state(1)[0]) if last is None else next_seed(last)

    def begin(self, ids: Sequence[int], seeds: dict[str, list[int | None]]) -> None:
        """Note that the reset with these seeds was sent."""
        for i, seed in zip(ids, seeds.get("seed") or [None] * len(ids), strict=True):
            self._seeds[i] = seed

    def spread_out(self, most: int, space: Any) -> None:
        """Make between 0 and `most` random steps in each env; an episode that ends meanwhile is followed by the next.

        They are the same each time that env 0 begins with the same seed.
        """
        rng, space = np.random.default_rng(self._seeds[0]), copy.deepcopy(space)  # the caller's does not advance
        counts = rng.integers(0, most, len(self.over), endpoint=True)
        space.seed(int(rng.integers(2**31)))
        for t in range(int(counts.max())):
            ids = np.flatnonzero(counts > t)
            again = ids[self.over[ids]].tolist()
            seeds = self.seeds_for(again) if again else {}
            self._venv.send([space.sample() for _ in ids], ids, reset=again, **seeds)
            self.begin(again, seeds)
            obs, _, terminated, truncated, _ = self._venv.recv()
            self.note(ids, terminated | truncated, obs)
        if again := self.ended:
            seeds = self.seeds_for(again)
            obs, *_ = self._venv.reset(again, **seeds)
            self.begin(again, seeds)
            self.note(again, False, obs)
