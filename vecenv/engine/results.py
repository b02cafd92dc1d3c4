"""Build the caller's batches from rows of the arena, and count steps and failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.backend import NOTHING_BESIDES, Taken, WorkerInfo
from vecenv.backends.host.env_access import own_copy
from vecenv.backends.host.failure import capture
from vecenv.backends.host.row_writer import NOTHING, Extra, wrong_reward_shape
from vecenv.backends.memory.arena import Arena, Layout, ObjectLeaf
from vecenv.engine.recovery import Recovery
from vecenv.engine.status import EnvStatus
from vecenv.errors import Partial

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(obs, rew, terminated, truncated, info)"""
OwnStep = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[int, dict[str, Any]]]
"""A batch with the infos that the envs returned, by env id; empty infos are left out."""

COPIES = np.frompyfunc(dict.copy, 1, 1)
"""Copies of an array of dicts, without a Python loop over envs."""


class Results:
    """Makes the returned batches from the arena.

    Unless `copy` is False they are copies; docs/guarantees.md says what holds for either. `spaced`: the envs have
    observation spaces; without them arrays are stacked as long as all have one shape.
    """

    def __init__(
        self,
        arena: Arena,
        layout: Layout,
        recovery: Recovery,
        status: EnvStatus,
        *,
        copy: bool,
        stack_obs: bool,
        spaced: bool,
    ) -> None:
        self._arena, self._recovery, self._env_status = arena, recovery, status
        self.copies = copy
        """True if full batches are copies of the arena, not views."""
        self._all = status.all_ids
        self._empty_infos = nest.object_array([{"env_id": i} for i in self._all])
        self._objects = [leaf for leaf in nest.leaves(arena.obs) if leaf.dtype == object]
        self.splits = not stack_obs and isinstance(layout.obs, (dict, tuple))
        """True if Dict and Tuple observations are an object array of one dict or tuple an env."""
        self._unspaced = not spaced and isinstance(layout.obs, ObjectLeaf)
        self._single = arena.obs if isinstance(arena.obs, np.ndarray) and not self._unspaced else None
        self._whole: tuple[np.ndarray, ...] | None = None
        """The arrays that a batch of all envs copies, if observations are one array of numbers, and so are rewards."""
        if copy and self._single is not None and not self._objects:
            self._whole = self._single, arena.reward, arena.terminated, arena.truncated
        self._reward_shape: tuple[int, ...] | None = None
        """Shape of the reward of every env. The first step decides."""
        self.checks_scalars = True
        """True if a scalar reward may be wrong, so that `settle` has to see every round."""
        self._row_shape: tuple[int, ...] | None = None
        self._ragged = False
        self.repeats_objects = recovery.absorbs
        """True if rows are also returned of envs that did not answer, so that the caller gets copies of objects."""
        self.own_ids: dict[int, Any] = {}
        """By env id: what envs themselves had put under "env_id", which holds the id in infos of the last batch."""
        self.lasts: dict[int, tuple[Any, Any]] = {}
        """By env id: `final_obs` of the last batch, and the observation that the env returned, if its types differ."""

    def rows(self, ids: np.ndarray | None, asked: Sequence[int], taken: Taken) -> Step:
        """Return the result of `step` for the envs `ids` (None for all), which are those in `asked`."""
        return *self._columns(ids, taken.extras), self.info(asked, taken)

    def _columns(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Any:
        """(obs, rew, terminated, truncated)"""
        if ids is None and self._whole is not None:
            return map(np.ndarray.copy, self._whole)
        terminated, truncated = self._rows(self._arena.terminated, ids), self._rows(self._arena.truncated, ids)
        return self.obs(ids, extras), self.rew(ids, extras), terminated, truncated

    def obs(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> Any:
        """The observations of `ids` (None for all, in order)."""
        for i, extra in extras.items():
            if extra.objects is not None:
                if len(extra.objects) == 1:
                    self._objects[0][i] = extra.objects[0]
                    continue
                for leaf, value in zip(self._objects, extra.objects, strict=True):
                    leaf[i] = value
        if self._single is not None:
            return self._rows(self._single, ids)
        if self.splits:
            ids_list = self._all if ids is None else ids.tolist()
            row = partial(_row, owns_objects=self.repeats_objects)
            return nest.object_array([nest.map(partial(row, i=i), self._arena.obs) for i in ids_list])
        if self._unspaced:
            return self._stack_if_even(self._rows(self._arena.obs, ids))
        return nest.map(lambda leaf: self._rows(leaf, ids), self._arena.obs)

    def _rows(self, leaf: np.ndarray, ids: np.ndarray | None) -> np.ndarray:
        if leaf.dtype == object and self.repeats_objects:
            return own_objects(leaf if ids is None else leaf[ids])
        if ids is not None:
            return leaf[ids]
        return leaf.copy() if self.copies else leaf

    def _stack_if_even(self, values: np.ndarray) -> np.ndarray:
        """Envs without spaces: one array as long as all rows so far have one shape, then an object array."""
        if not self._ragged:
            for value in values:
                shape = np.shape(value) if isinstance(value, (np.ndarray, np.generic, int, float)) else None
                if self._row_shape is None:
                    self._row_shape = shape
                self._ragged = self._ragged or shape is None or shape != self._row_shape
        return values if self._ragged else np.stack([np.asarray(value) for value in values])

    def rew(self, ids: np.ndarray | None, extras: Mapping[int, Extra]) -> np.ndarray:
        """Rewards (k,), or (k, m) where the envs return vectors: zeros for an env that was reset."""
        if not self._reward_shape:
            return self._rows(self._arena.reward, ids)
        asked = self._all if ids is None else ids.tolist()
        vectors = np.zeros((len(asked), *self._reward_shape))
        for row, i in enumerate(asked):
            if i in extras and (vector := extras[i].reward) is not None:
                vectors[row] = vector
        return vectors

    def _wrong_rewards(self, asked: Sequence[int], extras: Mapping[int, Extra], unstepped: Any) -> dict[int, Extra]:
        """Return a failure for each env whose reward differs in shape from the rewards of the first step.

        Only this process sees the rewards of all workers, so no worker checks shapes. `unstepped` are envs whose row is
        not that of a step.
        """
        if self._reward_shape == ():  # a row without an extra has a scalar
            asked = [i for i, extra in extras.items() if extra.reward is not None]
        shapes: dict[int, tuple[int, ...]] = {}
        for i in asked:
            extra = extras.get(i, NOTHING)
            if i not in unstepped and (extra.failure is None or extra.failure.stepped):
                shapes[i] = () if extra.reward is None else extra.reward.shape
        if self._reward_shape is None and shapes:
            if shape := shapes[min(shapes)]:
                self._whole = None
            self.checks_scalars, self._reward_shape = bool(shape), shape
        wrong = {}
        for i, shape in shapes.items():
            if shape != self._reward_shape:
                error = wrong_reward_shape(shape, self._reward_shape)  # type: ignore[arg-type]
                error.env_id, error.args = i, (f"env {i}: {error.args[0]}",)
                wrong[i] = Extra(failure=capture(error, i, "step", local=True))
        return wrong

    def own_rows(self, ids: np.ndarray | None, taken: Taken) -> OwnStep:
        """As `rows`, with infos as the envs returned them, by env id; empty infos are left out."""
        return *self._columns(ids, taken.extras), {} if taken is NOTHING_BESIDES else self.own_infos(taken)

    def info(self, asked: Sequence[int], taken: Taken) -> np.ndarray:
        """Infos: an object array (k,) of fresh dicts, each with its `env_id`."""
        if self.own_ids or self.lasts:
            self.own_ids, self.lasts = {}, {}
        if taken is not NOTHING_BESIDES:
            return self._infos_of(asked, taken)
        return COPIES(self._empty_infos if asked is self._all else self._empty_infos[asked])

    def _infos_of(self, asked: Sequence[int], taken: Taken) -> np.ndarray:
        if not taken.extras and len(taken.infos) == 1:
            columns = taken.infos[0]
            if columns.ids == asked and "env_id" not in columns.schema.keys:
                return np.fromiter(columns.dicts(env_id=True), object, len(asked))
        infos = self.info(asked, NOTHING_BESIDES)
        row_of = self._all if asked is self._all else {i: row for row, i in enumerate(asked)}
        for i, info in self._own_infos(taken).items():
            if "env_id" in info:
                self.own_ids[i] = info["env_id"]
            info["env_id"] = i
            infos[row_of[i]] = info
            if i in taken.extras and (final := taken.extras[i].final) is not None:
                self.lasts[i] = info["final_obs"], final.obs
        return infos

    def own_infos(self, taken: Taken) -> Mapping[int, dict[str, Any]]:
        """Infos and last observations as the envs returned them, by env id; empty infos are left out."""
        if len(taken.infos) == 1 and not taken.extras:
            return taken.infos[0]
        infos = self._own_infos(taken)
        for i, extra in taken.extras.items():
            if extra.final is not None and extra.final.obs is not None:
                infos[i]["final_obs"] = extra.final.obs
        return {i: infos[i] for i in sorted(infos) if infos[i]}  # facades name keys in the order of the envs

    def _own_infos(self, taken: Taken) -> dict[int, dict[str, Any]]:
        infos = {i: info for columns in taken.infos for i, info in columns.items()} if taken.infos else {}
        for i, extra in taken.extras.items():
            infos[i] = self._own_info(i, extra)
        return infos

    def _own_info(self, i: int, extra: Extra) -> dict[str, Any]:
        info = dict(extra.info or {})
        if extra.final is not None:
            objects = iter(extra.final.objects or ())
            last = nest.map(lambda leaf: next(objects) if leaf.dtype == object else _row(leaf, i), self._arena.final)
            info |= {"final_obs": last, "final_info": dict(extra.final.info)}
        return info

    def settle(self, ids: np.ndarray | None, asked: list[int], taken: Taken) -> Taken:
        """The results to return; raises the first failure, with the results of the other envs in `error.partial`."""
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
        recovery.note_lost()
        failed = []
        if extras and (rows or any(extra.failure is not None for extra in extras.values())):
            failed = recovery.settle(extras, rows)
        if self._env_status.strict:
            self._env_status.note_ends(ids, taken, self._arena)
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
            others = Taken({i: extras[i] for i in good if i in extras}, infos)
            partial = Partial(np.array(good), *self.rows(np.array(good), good, others))
        errors = self._recovery.errors
        first = min(failed, key=lambda i: (getattr(errors[i], "bystander", False), i))
        errors[first].partial = partial  # type: ignore[attr-defined]
        self._recovery.mark.is_set = False
        raise errors[first]


def own_objects(leaf: np.ndarray) -> np.ndarray:
    """A copy of an array, in which objects are copies too."""
    return nest.object_array([own_copy(value) for value in leaf]) if leaf.dtype == object else leaf.copy()


def _row(leaf: np.ndarray, i: int, owns_objects: bool = False) -> Any:
    row = leaf[i]
    if leaf.dtype == object:
        return own_copy(row) if owns_objects else row
    return row.copy() if isinstance(row, np.ndarray) else row


KEPT_ROUNDS = 1024
"""The percentiles cover this many of the last rounds."""


class Statistics:
    """Counters of an engine; it writes the attributes directly, to save function calls."""

    def __init__(self, n: int) -> None:
        self._n, self.rounds, self.resets = n, 0, 0
        self.left_out = 0
        """Envs that rounds had no operation for, summed over the rounds."""
        self.call_seconds = self.wait_seconds = 0.0
        """Seconds in calls of the engine, and in those of `Backend.wait`."""
        self.round_seconds: deque[float] = deque(maxlen=KEPT_ROUNDS)

    def summary(self, workers: Sequence[WorkerInfo], restarts: int, absorbed: int) -> dict[str, Any]:
        """Return the entries of `BaseVectorEnv.stats`."""
        busy = [worker.busy_seconds for worker in workers]
        slowest = int(np.argmax(busy)) if any(busy) else None
        p50, p99 = np.percentile(self.round_seconds, (50, 99)).tolist() if self.round_seconds else (None, None)
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
