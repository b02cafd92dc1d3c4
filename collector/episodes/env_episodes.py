"""`Episodes`: the current episode of each env."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from collector.batch.rollout import RewardShape
from collector.batch.step_extras import has_columns, without_last
from collector.episodes.seeds import read_pair
from vecenv import nest
from vecenv.errors import is_repeated


class Episodes:
    """Current episodes of N envs.

    Without `seeds`, the k-th episode of env n has the id `k * N + n`, which is unique in a collector.

    `seeds` gives pairs `(number, seed)`. An env without an episode takes the next pair. The number becomes the id. With
    `ahead`, each env also reserves its next pair, so that the worker can reset the env in the round of its last step.
    If no pair is left, an env without an episode takes over another env's reservation, or is idle.

    Episodes are truncated at `limit` steps (0: never).
    """

    def __init__(
        self, env_num: int, seeds: Iterable[tuple[int, int]] | None = None, ahead: bool = False, limit: int = 0
    ) -> None:
        self.limit = limit
        self.infos: Any = np.full(env_num, None)
        """Latest infos by env: an object array of dicts, or the `InfoBatch` of a round of all envs."""
        self.reward_shape = RewardShape()
        self._envs, self._is_ahead = np.arange(env_num), ahead
        self._reserved: dict[int, tuple[int, int]] = {}
        """Reserved `(number, seed)` by env."""
        self._source: Iterator[tuple[int, int]] | None = None if seeds is None else iter(seeds)
        self._playing: set[int] = set()
        self.is_seeded = seeds is not None
        self.over = np.ones(env_num, np.bool_)
        """bool `(N,)`: True if the env needs a reset."""
        self.ids = self._envs.copy() if seeds is None else np.full(env_num, -1)
        """int64 `(N,)`: id of the current episode, or of the next if `over`; -1 if the env is idle."""
        self.seeds = np.full(env_num, -1)
        """int64 `(N,)`: seed of the episode in `ids`, or -1."""
        self.next_seeds = np.full(env_num, -1)
        """int64 `(N,)`: seed of the reserved episode, or -1."""
        self.taken = np.zeros(env_num, np.int64)
        """int64 `(N,)`: steps taken in the episode in `ids`."""
        self.cuts = set[int]()
        """Ids of the envs whose episodes a step hook has asked to truncate after this step."""
        self.broken = 0
        """Number of episodes that ended because their env failed."""
        self.first_failure = ""

    def share(self, ids: np.ndarray, taken: np.ndarray) -> None:
        """Store ids and step counts in these arrays, which `KeyedNoise` reads."""
        ids[:], taken[:] = self.ids, self.taken
        self.ids, self.taken = ids, taken

    def begin_batch(self) -> None:
        if self._source is not None:
            self._assign(np.flatnonzero(self.ids < 0))
        self.cuts.clear()

    def begin(self, env_ids: np.ndarray, infos: Any) -> None:
        """Begin episodes with these infos. `None`: `keep_infos` has them."""
        self.over[env_ids] = False
        if has_columns(infos):
            self.keep_infos(env_ids, infos)
        elif infos is not None:
            # If the worker reset the env in the round of the last step, the info has entries of the ended episode.
            self.infos[env_ids] = nest.object_array([without_last(info) for info in infos])

    def keep_infos(self, env_ids: np.ndarray, infos: Any) -> None:
        """Keep the latest infos of these envs, as columns if they are all envs."""
        if len(env_ids) == len(self._envs) and has_columns(infos):
            self.infos = infos.without_finals()
        else:
            self.infos[env_ids] = np.asarray(infos)

    def count(
        self, ids: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, resets: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Count a step of the envs `ids`, except the envs in the mask `resets`, which were reset instead.

        Return rewards, `terminated`, `truncated` (True at the limit, too), and a mask of episodes that the envs ended.
        """
        taken = self.taken
        if resets is not None:
            taken[ids] += ~resets
            terminated, truncated = terminated & ~resets, truncated & ~resets
        elif len(ids) == len(self._envs):
            taken += 1
        else:
            taken[ids] += 1
        by_env = terminated | truncated
        if self.limit:
            truncated = truncated | (taken[ids] >= self.limit)
        return self.reward_shape.fit(reward), terminated, truncated, by_env

    def take_cuts(self, ids: np.ndarray) -> np.ndarray:
        """Return for each of the envs `ids` whether it is in `cuts`, and clear all `cuts`."""
        found = np.isin(ids, list(self.cuts))
        self.cuts.clear()
        return found

    def end(self, ids: np.ndarray, ended: np.ndarray, info: Any, quota: np.ndarray | None) -> np.ndarray | None:
        """End the episodes of `ids[ended]`, and decrease `quota` (episodes left per env) unless the env failed.

        Return a mask of the failed episodes in `ended`, or `None` without failures.
        """
        failures = self._note_failures(ids, ended, info)
        over = ids[ended]
        self._advance(over)
        failed = np.isin(ended, failures) if failures else None
        if quota is not None:
            quota[over if failed is None else over[~failed]] -= 1
        return failed

    def _advance(self, env_ids: np.ndarray) -> None:
        self.over[env_ids] = True
        self.taken[env_ids] = 0
        if self._source is None:
            self.ids[env_ids] += len(self._envs)
        else:
            self._playing.difference_update(self.ids[env_ids].tolist())
            self.ids[env_ids] = -1
            self._assign(env_ids)

    def _assign(self, env_ids: np.ndarray) -> None:
        for env_id in env_ids.tolist():
            pair = self._reserved.pop(env_id, None) or self._read()
            if pair is None and self._reserved:
                pair = self._reserved.pop(other := next(iter(self._reserved)))
                self.next_seeds[other] = -1
            number, seed = (-1, -1) if pair is None else pair
            if number in self._playing:
                raise ValueError(f"episode_seeds gave episode {number} to env {env_id} while another env plays it")
            if number >= 0:
                self._playing.add(number)
            self.ids[env_id], self.seeds[env_id], self.next_seeds[env_id] = number, seed, -1
        for env_id in env_ids.tolist() if self._is_ahead else ():
            if self.ids[env_id] >= 0 and (pair := self._read()) is not None:
                self._reserved[env_id], self.next_seeds[env_id] = pair, pair[1]

    def _read(self) -> tuple[int, int] | None:
        assert self._source is not None
        pair = next(self._source, None)
        return None if pair is None else read_pair(pair)

    @property
    def all_played(self) -> bool:
        """True if all envs are idle, and `seeds` gives no further episode. False without `seeds`."""
        if not self.is_seeded:
            return False
        if (self.ids < 0).all():
            self.begin_batch()
        return bool((self.ids < 0).all())

    def abandon(self, env_ids: Any = slice(None)) -> None:
        """Drop the envs' episodes, and require resets. Raises `RuntimeError` for a seeded episode in progress."""
        started = self._envs[env_ids][self.taken[env_ids] > 0]
        if self._source is not None and len(started):
            raise RuntimeError(
                f"with episode_seeds every episode is played to its end, and episode {self.ids[started[0]]} is in "
                "progress: make a new collector, and do not reset or step the collector's vector env"
            )
        self.ids[started] += len(self._envs)
        self.taken[started] = 0
        self.over[env_ids] = True

    @property
    def next_id(self) -> int:
        """Id above all used ids; 0 with `seeds`."""
        n = len(self._envs)
        return 0 if self._source is not None else (int(self.ids.max()) // n + 1) * n

    def skip_to(self, next_id: int) -> None:
        """Abandon all episodes. Without `seeds`, continue with ids from `next_id` on."""
        self.abandon()
        if self._source is None:
            n = len(self._envs)
            self.ids[:] = np.maximum(self.ids, -(-next_id // n) * n + self._envs)

    def _note_failures(self, env_ids: np.ndarray, rows: np.ndarray, info: Any) -> list[int]:
        # An env's own info may have "error" or "restarted". Only a restart sets both.
        failed = [] if has_columns(info) else [row for row in rows.tolist() if is_repeated(info[row])]
        if failed and not self.broken:
            last = info[failed[0]].get("final_info", info[failed[0]])
            self.first_failure = f"env {env_ids[failed[0]]}: {last['error']}"
        self.broken += len(failed)
        return failed
