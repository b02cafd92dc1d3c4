"""Build batches from the arena, and from results that do not fit there (`Extra`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.backend import NO_EXTRAS, Taken, WorkerInfo
from vecenv.backends.host.failure import capture
from vecenv.backends.host.row_writer import NO_EXTRA, Extra, Final, wrong_reward_shape
from vecenv.backends.info_batch import InfoBatch, InfosById
from vecenv.backends.memory.arena import Arena, ColumnArena
from vecenv.engine.recovery import Recovery
from vecenv.engine.status import EnvStatus
from vecenv.errors import Partial, is_bystander
from vecenv.layout import Layout

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(obs, rew, terminated, truncated, info)"""
StepById = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[int, dict[str, Any]]]
"""(obs, rew, terminated, truncated, non-empty infos by env id)"""


FAILURE_OF = attrgetter("failure")


class Results:
    """Builder of the batches that an engine returns (copies, or views of the arena)."""

    def __init__(
        self,
        arena: Arena,
        layout: Layout,
        recovery: Recovery,
        status: EnvStatus,
        *,
        copy: bool,
        stack_obs: bool,
    ) -> None:
        self._arena, self._recovery, self._env_status = arena, recovery, status
        in_columns = self._in_columns = isinstance(arena, ColumnArena)
        """True if each round has new arrays, which need no copies."""
        self.copies = copy = copy and not in_columns
        self._all = status.all_ids
        self.infos: Any = ReturnedColumns() if in_columns else ReturnedInfos(arena, self._all)
        self._objects = [leaf for leaf in nest.leaves(arena.obs) if leaf.dtype == object]
        self.splits = not stack_obs and isinstance(layout.obs, (dict, tuple))
        self._obs_array = arena.obs if isinstance(arena.obs, np.ndarray) and not in_columns else None
        self._has_views = not (self._objects or self.splits)
        """True if a batch of all envs has the arena's observation arrays, or copies of them."""
        self._copied_columns: tuple[np.ndarray, ...] | None = None
        """Arrays whose copies are a batch of all envs. `None` without `copy`, or if a batch needs more than copies."""
        if copy and self._has_views and self._obs_array is not None:
            self._copied_columns = self._obs_array, arena.reward, arena.terminated, arena.truncated
        self._reward_shape: tuple[int, ...] | None = None
        self.checks_scalars = not in_columns
        """True if scalar rewards need a check, because the first reward is unknown or was a vector."""

    def rows(self, ids: np.ndarray | None, asked: Sequence[int], taken: Taken) -> Step:
        return *self._columns(ids, taken.extras), self.infos.rows(asked, taken)

    def views(self, ids: np.ndarray | None, taken: Taken) -> Step:
        """Return `rows` of all envs (`ids` is `None`), as views of the arena if possible, even with `copy=True`."""
        if not self._has_views:
            return self.rows(ids, self._all, taken)
        arena, infos = self._arena, self.infos.rows(self._all, taken)
        reward = self.rew(ids, taken.extras) if self._reward_shape else arena.reward
        return arena.obs, reward, arena.terminated, arena.truncated, infos

    def _columns(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Any:
        if ids is None and self._copied_columns is not None:
            return map(np.ndarray.copy, self._copied_columns)
        if ids is None and self._in_columns:
            arena = self._arena
            return arena.obs, arena.reward, arena.terminated, arena.truncated
        terminated, truncated = self._rows(self._arena.terminated, ids), self._rows(self._arena.truncated, ids)
        return self.obs(ids, extras), self.rew(ids, extras), terminated, truncated

    def obs(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Any:
        for i, extra in extras.items():
            if extra.objects is not None:
                if len(extra.objects) == 1:
                    self._objects[0][i] = extra.objects[0]
                    continue
                for leaf, value in zip(self._objects, extra.objects, strict=True):
                    leaf[i] = value
        if self._obs_array is not None:
            return self._rows(self._obs_array, ids)
        if self.splits:
            ids_list = self._all if ids is None else ids.tolist()
            return nest.object_array([nest.map(partial(_row, i=i), self._arena.obs) for i in ids_list])
        return nest.map(lambda leaf: self._rows(leaf, ids), self._arena.obs)

    def _rows(self, leaf: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        if ids is not None:
            return leaf[ids]
        return leaf.copy() if self.copies else leaf

    def rew(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> np.ndarray:
        """Return rewards with the shape (k,), or (k, ...) for vector rewards. A reset env has reward 0."""
        if not self._reward_shape:
            return self._rows(self._arena.reward, ids)
        asked = self._all if ids is None else ids.tolist()
        vectors = np.zeros((len(asked), *self._reward_shape))
        for row, i in enumerate(asked):
            if i in extras and (vector := extras[i].reward) is not None:
                vectors[row] = vector
        return vectors

    def _wrong_rewards(self, asked: Sequence[int], extras: Mapping[int, Extra], unstepped: Any) -> dict[int, Extra]:
        """Return a failure for each reward that differs in shape from the first (perhaps another worker's) reward."""
        if self._reward_shape == ():  # an env without an extra has a scalar reward
            asked = [i for i, extra in extras.items() if extra.reward is not None]
        shapes: dict[int, tuple[int, ...]] = {}
        for i in asked:
            extra = extras.get(i, NO_EXTRA)
            if i not in unstepped and (extra.failure is None or extra.failure.stepped):
                shapes[i] = () if extra.reward is None else extra.reward.shape
        if self._reward_shape is None and shapes:
            if shape := shapes[min(shapes)]:
                self._copied_columns = None
            self.checks_scalars, self._reward_shape = bool(shape), shape
        wrong = {}
        for i, shape in shapes.items():
            if shape != self._reward_shape:
                error = wrong_reward_shape(shape, self._reward_shape)  # type: ignore[arg-type]
                error.env_id, error.args = i, (f"env {i}: {error.args[0]}",)
                wrong[i] = Extra(failure=capture(error, i, "step", local=True))
        return wrong

    def rows_by_id(self, ids: np.ndarray | None, taken: Taken) -> StepById:
        return *self._columns(ids, taken.extras), self.infos.by_id(taken)

    def apply_recovery(self, ids: np.ndarray | None, asked: list[int], taken: Taken) -> Taken:
        """Apply `on_error` to `taken`. If failures remain, raise an error whose `partial` has the finished rows."""
        recovery = self._recovery
        rows: dict[int, Extra] = {}
        if recovery.rows:
            rows = {i: recovery.rows.pop(i) for i in asked if i in recovery.rows}
            taken = taken._replace(extras={**taken.extras, **rows})
        if (taken.extras or self.checks_scalars) and (
            wrong := self._wrong_rewards(asked, taken.extras, {*recovery.resets, *rows})
        ):
            taken = taken._replace(extras={**taken.extras, **wrong})
        extras = taken.extras
        recovery.record_lost()
        failed = []
        if extras and (rows or any(map(FAILURE_OF, extras.values()))):
            failed = recovery.absorb_failures(extras, rows)
        if recovery.withheld:
            taken, more = recovery.begin_episodes(asked, taken)
            failed += more
        if self._env_status.strict:
            self._env_status.record_ends(ids, taken, self._arena)
        if ids is None:
            recovery.resets = {}
        elif recovery.resets:
            for i in asked:
                recovery.resets.pop(i, None)
        if failed:
            self._raise(failed, asked, taken)
        return taken

    def _raise(self, failed: list[int], asked: list[int], taken: Taken) -> None:
        """Raise the error of the failed env with the lowest id, preferably not a bystander's (see VectorEnvError)."""
        partial, extras = None, taken.extras
        lost = {i for i in failed if not extras[i].failure.stepped}  # type: ignore[union-attr]
        if good := [i for i in asked if i not in lost]:
            infos = [columns.of(good) for columns in taken.infos]
            others = Taken({i: extras[i] for i in good if i in extras}, infos)
            partial = Partial(np.array(good), *self.rows(np.array(good), good, others))
        errors = self._recovery.errors
        first = min(failed, key=lambda i: (is_bystander(errors[i]), i))
        errors[first].partial = partial  # type: ignore[attr-defined]
        self._recovery.mark.owner = 0
        raise errors[first]


def _row(leaf: np.ndarray, i: int) -> Any:
    row = leaf[i]
    return row.copy() if isinstance(row, np.ndarray) and leaf.dtype != object else row


COPIES = np.frompyfunc(dict.copy, 1, 1)


class ReturnedInfos:
    """Builder of the infos of a batch, from rows of the arena and from pickled infos."""

    def __init__(self, arena: Arena, all_ids: list[int]) -> None:
        self._final, self._all = arena.final, all_ids
        self._empty = nest.object_array([{"env_id": i} for i in all_ids])
        self.own_env_ids: dict[int, Any] = {}
        """By env id: value that the env itself has put under "env_id" in its last info."""
        self.final_obs: dict[int, tuple[Any, Any]] = {}
        """By env id: `final_obs` in the last batch, and the env's original (`None` if both have the same types)."""

    def rows(self, asked: Sequence[int], taken: Taken) -> np.ndarray:
        if self.own_env_ids or self.final_obs:
            self.own_env_ids, self.final_obs = {}, {}
        if not taken.extras and len(taken.infos) == 1:
            columns = taken.infos[0]
            if columns.ids == asked and "env_id" not in columns.schema.keys:
                return np.fromiter(columns.dicts(env_id=True), object, len(asked))
        infos: np.ndarray = COPIES(self._empty if asked is self._all else self._empty[asked])
        if taken is NO_EXTRAS:
            return infos
        row_of = self._all if asked is self._all else {i: row for row, i in enumerate(asked)}
        for i, info in self._merged(taken).items():
            if "env_id" in info:
                self.own_env_ids[i] = info["env_id"]
            info["env_id"] = i
            infos[row_of[i]] = info
            if i in taken.extras and (final := taken.extras[i].final) is not None:
                self.final_obs[i] = info["final_obs"], final.obs
        return infos

    def by_id(self, taken: Taken) -> Mapping[int, dict[str, Any]]:
        if taken is NO_EXTRAS:
            return {}
        if not taken.extras and len(taken.infos) < 2:
            return taken.infos[0] if taken.infos else {}
        infos = self._merged(taken)
        for i, extra in taken.extras.items():
            if extra.final is not None and extra.final.obs is not None:
                infos[i]["final_obs"] = extra.final.obs
        # Sorted, because keys of gymnasium's infos come in the order of envs.
        return {i: infos[i] for i in sorted(infos) if infos[i]}

    def _merged(self, taken: Taken) -> dict[int, dict[str, Any]]:
        infos = {i: info for columns in taken.infos for i, info in columns.items()} if taken.infos else {}
        for i, extra in taken.extras.items():
            infos[i] = dict(extra.info or {})
            if extra.final is not None:
                infos[i] |= {"final_obs": self._last_obs(i, extra.final), "final_info": dict(extra.final.info)}
        return infos

    def _last_obs(self, i: int, final: Final) -> Any:
        objects = iter(final.objects or ())
        return nest.map(lambda leaf: next(objects) if leaf.dtype == object else leaf[i].copy(), self._final)


class ReturnedColumns:
    """Builder of the infos of a batch, from the columns of a `ColumnArena`."""

    def __init__(self) -> None:
        self._last: InfoBatch | None = None

    def rows(self, asked: Sequence[int], taken: Taken) -> InfoBatch:
        self._last = InfoBatch(taken.infos[0], taken.infos[0].ids)  # `asked`, or a range, which is faster
        return self._last

    def by_id(self, taken: Taken) -> Mapping[int, dict[str, Any]]:
        return InfosById(taken.infos[0]) if taken.infos[0] else {}

    @property
    def own_env_ids(self) -> dict[int, Any]:
        """As `ReturnedInfos.own_env_ids`."""
        return {} if self._last is None else self._last.own_env_ids()

    @property
    def final_obs(self) -> dict[int, tuple[Any, Any]]:
        """As `ReturnedInfos.final_obs`."""
        return {} if self._last is None else self._last.final_obs()


Form = Callable[[Results, np.ndarray | None, Taken], Any]
"""Method of `Results` that builds a batch, such as `Results.views`."""
KEPT_ROUNDS = 1024


class Statistics:
    """Counters that the engine writes directly, to save function calls."""

    def __init__(self, n: int) -> None:
        self._n, self.rounds, self.resets = n, 0, 0
        self.left_out = 0
        """Number of envs that were neither stepped nor reset, summed over all rounds."""
        self.call_seconds = self.wait_seconds = 0.0
        """Seconds in calls of the engine, and the part in `Backend.wait`."""
        self.round_wait = 0.0
        """Seconds in `Backend.wait` since the last results."""
        self.round_seconds: deque[float] = deque(maxlen=KEPT_ROUNDS)

    def _last_rounds(self) -> list[float]:
        while True:
            with suppress(RuntimeError):  # without the interpreter lock, the deque may change during iteration
                return list(self.round_seconds)

    def summary(self, workers: Sequence[WorkerInfo], restarts: int, absorbed: int) -> dict[str, Any]:
        busy = [worker.busy_seconds for worker in workers]
        slowest = int(np.argmax(busy)) if any(busy) else None
        kept = self._last_rounds()
        p50, p99 = np.percentile(kept, (50, 99)).tolist() if kept else (None, None)
        return {
            "rounds": self.rounds,
            "steps": self.rounds * self._n - self.left_out - self.resets,
            "resets": self.resets,
            "dispatch_s": self.call_seconds - self.wait_seconds,
            "wait_s": self.wait_seconds,
            "round_p50_s": p50,
            "round_p99_s": p99,
            "worker_busy_s": busy,
            "slowest_worker": slowest,
            "slowest_env_ids": [] if slowest is None else list(workers[slowest].ids),
            "restarts": restarts,
            "absorbed": absorbed,
        }
