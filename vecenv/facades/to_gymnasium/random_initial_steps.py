"""Random starts: random actions spread out the episode ends of envs that were reset together."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from vecenv.facades.to_gymnasium.episodes import Episodes
from vecenv.facades.to_gymnasium.latest_obs import LatestObs


def spread_out(venv: Any, space: Any, most: int, seed: int | None, episodes: Episodes, latest: LatestObs) -> None:
    """Make between 0 and `most` random steps in each env; an episode that ends meanwhile is followed by the next.

    With a `seed` (of env 0) the steps are the same each time.
    """
    rng, space = np.random.default_rng(seed), copy.deepcopy(space)  # the caller's generator is not advanced
    counts = rng.integers(0, most, len(venv), endpoint=True)
    space.seed(int(rng.integers(2**31)))
    for t in range(int(counts.max())):
        ids = np.flatnonzero(counts > t)
        again = ids[episodes.over[ids]].tolist()
        seeds = episodes.seeds_for(again, None) if again else {}
        venv.send([space.sample() for _ in ids], ids, reset=again, **seeds)
        episodes.begin(again, seeds)
        obs, _, terminated, truncated, _ = venv.recv()
        latest.note(ids, obs)
        episodes.note(ids, terminated | truncated)
    if again := episodes.ended:
        seeds = episodes.seeds_for(again, None)
        obs, *_ = venv.reset(again, **seeds)
        episodes.begin(again, seeds)
        latest.note(again, obs)
        episodes.note(again, False)
