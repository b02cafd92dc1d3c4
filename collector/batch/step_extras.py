"""Extras: what the policy returns with its action, or a step hook after the round, and is stored with the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from collector.batch.rollout import Rollout
from vecenv import nest

EPISODE_SEED = "episode_seed"
"""The entry of `extras` with the seed of each step's episode, where a collector has `episode_seeds`."""

RowLayout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape of a row and dtype."""

RESERVED = frozenset(
    {each.name for each in fields(Rollout)} | {"obs", "next", "done", "observation", "collector", EPISODE_SEED}
)
"""Names that a batch has already, or the `TensorDict` that it can be made into."""


class StepBatch(NamedTuple):
    """One round, as a step hook gets it: the k envs that stepped, and what came of it.

    Example::

        def distance(step: StepBatch) -> dict[str, np.ndarray]:
            return {"distance": np.abs(step.next_obs[:, 0])}      # stored as batch.extras["distance"]

        stats = collector.collect(n_step=1000, on_step=distance)
    """

    env_id: np.ndarray
    """int64 `(k,)`."""
    obs: Any
    """The observations before the step: `(k, ...)`, or a dict or tuple of such."""
    action: Any
    """`(k, ...)`, or a dict or tuple of such, as in a batch."""
    reward: np.ndarray
    """float64 `(k,)`, or `(k, m)` where rewards are vectors."""
    terminated: np.ndarray
    """bool `(k,)`, as `truncated`."""
    truncated: np.ndarray
    next_obs: Any
    """What came of the step: at an episode's end its true last observation."""
    info: np.ndarray
    """An object array of dicts `(k,)`."""


StepHook = Callable[[StepBatch], "dict[str, Any] | None"]


def check_policy_names(outputs: Iterable[str]) -> None:
    """Raise `ValueError` where the policy returned something under a name that a batch has already, and `TypeError`
    where the name is no text.
    """
    for name in outputs:
        if not isinstance(name, str):
            raise TypeError(f"the policy returned something under {name!r}; names are text")
    _refuse("the policy", RESERVED.intersection(outputs) - {"action"})


class CheckedHook:
    """Calls a step hook with copies of the round, and refuses what it returns where that does not fit the round, or
    what it returned before.

    `policy_layout` returns the names, shapes and dtypes of what the policy returns.
    """

    def __init__(self, hook: StepHook, policy_layout: Callable[[], Mapping[str, RowLayout]]) -> None:
        self._hook = hook
        self._policy_layout = policy_layout
        self._layout: dict[str, RowLayout] = {}

    def __call__(self, step: StepBatch) -> dict[str, np.ndarray]:
        """Call the hook for the round and return its result, as arrays of ours; empty where it returned None."""
        columns = [nest.map(np.copy, column) for column in step[:-1]]
        infos = nest.object_array([dict(info) for info in step.info])
        returned = self._hook(StepBatch._make([*columns, infos]))
        if returned is None:
            return {}
        if not isinstance(returned, dict):
            raise TypeError(f"on_step must return a dict of arrays or None; it returned {type(returned).__name__}")
        extras = {name: np.array(rows) for name, rows in returned.items()}
        for name, rows in extras.items():
            self._check(name, rows, len(step.env_id))
        return extras

    def timed(self, step: StepBatch, lap: Callable[[str], None]) -> dict[str, np.ndarray]:
        """The same, with its time counted by `lap`, which is that of the collector's clock."""
        lap("storage")
        extras = self(step)
        lap("hooks")
        return extras

    @property
    def names(self) -> list[str]:
        """The names that it has returned until now."""
        return list(self._layout)

    def _check(self, name: str, rows: np.ndarray, count: int) -> None:
        if rows.shape[:1] != (count,):
            raise ValueError(
                f"on_step returned {name!r} of shape {rows.shape} for the {count} envs that stepped; "
                f"it must be ({count}, ...)"
            )
        if name not in self._layout:
            _refuse("on_step", {name} & (RESERVED | self._policy_layout().keys()))
        before = self._layout.setdefault(name, _layout_of(rows))
        if before != _layout_of(rows):
            raise TypeError(f"on_step returned {name!r} as {_layout_of(rows)} (shape of a row, dtype) after {before}")

    def fill(self, extras: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Add zeros for names that the hook returned only in other rounds; the order of names is always the same."""
        for name, layout in self._layout.items():
            rows = extras.pop(name, None)
            if rows is None or rows.shape[len(shape) :] != layout[0] or not np.can_cast(rows.dtype, layout[1]):
                rows = np.zeros((*shape, *layout[0]), layout[1])
            extras[name] = rows.astype(layout[1], copy=False)


def _layout_of(rows: np.ndarray) -> RowLayout:
    return rows.shape[1:], rows.dtype


def refuse_names(source: str, names: Iterable[str], taken: Iterable[str]) -> None:
    """Raise `ValueError` for a name that a batch has already, or that is among those `taken`."""
    for name in sorted(set(names) & (RESERVED | set(taken))):
        raise ValueError(f"{source} has {name!r}, which a batch has already: on_step= can store it under another name")


def _refuse(source: str, names: Iterable[str]) -> None:
    for name in sorted(names):
        raise ValueError(f"{source} returned {name!r}, which a batch has already: store it under another name")


def check_info_keys(keys: Any) -> tuple[str, ...]:
    """The keys as a tuple; `TypeError` or `ValueError` where they are no sequence of different names."""
    if keys is None:
        return ()
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        example = keys if isinstance(keys, str) else "x_velocity"
        raise TypeError(f"info_keys are the names of entries of the envs' infos, as in ({example!r},); got {keys!r}")
    refuse_names("info_keys", keys, {})
    if len(set(keys)) < len(keys):
        raise ValueError(f"info_keys has a name twice: {keys}")
    return tuple(keys)


class InfoColumns(CheckedHook):
    """A step hook that returns entries of the infos, and what another hook returns.

    The column of a key is bool for flags, int64 for integers and float64 for other numbers; a value that does not fit
    promotes it from then on. Arrays keep the shape and dtype of the first. Rows of envs whose info has no such entry
    are zero. `layout` holds what is known of the keys, for the next hook.
    """

    def __init__(
        self,
        keys: Sequence[str],
        layout: dict[str, RowLayout],
        policy_layout: Callable[[], Mapping[str, RowLayout]],
        other: CheckedHook | None = None,
    ) -> None:
        super().__init__(lambda step: None, policy_layout)
        self._keys, self._layout, self._other = keys, layout, other

    def __call__(self, step: StepBatch) -> dict[str, np.ndarray]:
        extras = {} if self._other is None else self._other(step)
        if extras:
            refuse_names("info_keys", self._keys, extras)
        infos = [_of_the_step(*row) for row in zip(step.info, step.terminated | step.truncated, strict=True)]
        for key in self._keys:
            column = self._column(key, infos, step.env_id)
            if column is not None:
                extras[key] = column
        return extras

    @property
    def names(self) -> list[str]:
        """The names that it has returned until now."""
        return [*([] if self._other is None else self._other.names), *self._layout]

    def fill(self, extras: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Add zeros for names that came in other rounds only."""
        if self._other is not None:
            self._other.fill(extras, shape)
        super().fill(extras, shape)

    def _column(self, key: str, infos: Sequence[Mapping[str, Any]], env_ids: np.ndarray) -> np.ndarray | None:
        values = {i: np.asarray(info[key]) for i, info in enumerate(infos) if key in info}
        for i, value in values.items():
            if value.dtype.kind not in "biuf":
                found = f"{key!r}={infos[i][key]!r}"
                raise TypeError(f"info_keys: env {env_ids[i]} has {found}, which is no number or array")
            own = value.dtype
            if not value.ndim and own.kind != "b":
                own = np.dtype(np.int64 if np.can_cast(own, np.int64) else np.float64)
            if key not in self._layout:
                refuse_names("info_keys", [key], self._policy_layout())
            shape, dtype = self._layout.setdefault(key, (value.shape, own))
            if value.shape == shape == ():
                self._layout[key] = (), np.promote_types(dtype, own)
            elif value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                found = f"{value.dtype} {value.shape}; before it was {dtype} {shape}"
                raise TypeError(f"info_keys: env {env_ids[i]} has {key!r} as {found}")
        if key not in self._layout:
            return None
        shape, dtype = self._layout[key]
        rows = np.zeros((len(infos), *shape), dtype)
        for i, value in values.items():
            rows[i] = value
        return rows


def _of_the_step(info: Mapping[str, Any], done: Any) -> Mapping[str, Any]:
    """The info of the step, where the env was reset in the same round."""
    last = info.get("final_info") if done and "final_obs" in info else None
    return last if isinstance(last, Mapping) else info
