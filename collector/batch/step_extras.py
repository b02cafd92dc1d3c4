"""Extras: additional columns of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from collector.basics.timing import Clock
from collector.batch.rollout import Rollout
from vecenv import nest

EPISODE_SEED = "episode_seed"
"""Column of `extras` with the seed of each step's episode, if the collector has `episode_seeds`."""

NO_FINAL_OBS = "no_final_obs"
"""Column of `extras` that marks ends without a known last observation, if the vector env loses last observations."""

OBJECTS = np.dtype(object)
RowLayout = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of a row."""

RESERVED = frozenset(
    {each.name for each in fields(Rollout)}
    | {"obs", "next", "done", "observation", "collector", EPISODE_SEED, NO_FINAL_OBS}
)
"""Names that a batch or its `TensorDict` already has."""


class StepBatch(NamedTuple):
    """Results of a step of k envs (some or all), for a step hook.

    Example::

        def distance(step: StepBatch) -> dict[str, np.ndarray]:
            return {"distance": np.abs(step.next_obs[:, 0])}      # stored as batch.extras["distance"]

        stats = collector.collect(n_step=1000, on_step=distance)
    """

    env_id: np.ndarray
    """int64 `(k,)`: env of each row."""
    obs: Any
    """Observations before the step: `(k, ...)`, or a dict or tuple of arrays."""
    action: Any
    """`(k, ...)`, or a dict or tuple."""
    reward: np.ndarray
    """float64 `(k,)`, or `(k, m)` if a reward is a vector of m numbers."""
    terminated: np.ndarray
    """bool `(k,)`: the env reached a final state."""
    truncated: np.ndarray
    """bool `(k,)`: the episode was stopped before a final state."""
    next_obs: Any
    """Observations after the step."""
    info: np.ndarray
    """Object array `(k,)` of the steps' info dicts."""


StepHook = Callable[[StepBatch], "dict[str, Any] | None"]


def dtype_of_rows(rows: np.ndarray) -> np.dtype[Any]:
    """Return the dtype of a column for `rows`: object for texts, because numpy's dtype has the longest text's length.

    >>> dtype_of_rows(np.array(["left", "up"])), dtype_of_rows(np.zeros(2))
    (dtype('O'), dtype('float64'))
    """
    return np.dtype(object) if rows.dtype.kind == "U" else rows.dtype


def blank(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return zeros, or empty texts if `dtype` is object.

    >>> blank((2,), OBJECTS)
    array(['', ''], dtype=object)
    """
    return np.full(shape, "" if dtype == OBJECTS else 0, dtype)


def check_policy_names(outputs: Iterable[str]) -> None:
    for name in outputs:
        if not isinstance(name, str):
            raise TypeError(f"the policy returned a dict with the key {name!r}; all keys must be strings")
    refuse_names("the policy returned", {*outputs} - {"action"})


class StepExtras:
    """Converter of a step hook's results and info entries to columns `(k, ...)`.

    hook: gets copies of arrays and info dicts (values in infos are not copied). keys: info entries. info_layout:
        shape and dtype per key, updated in place. policy_layout: returns the policy's columns. `hook` and `keys` cannot
        use their names.
    """

    def __init__(
        self,
        hook: StepHook | None,
        keys: Sequence[str],
        info_layout: dict[str, RowLayout],
        policy_layout: Callable[[], Mapping[str, RowLayout]],
    ) -> None:
        self._hook, self._keys, self._policy_layout = hook, keys, policy_layout
        self.needs_obs = hook is not None
        """False if only infos are read, so that a `StepBatch` may lack observations."""
        self._hook_layout: dict[str, RowLayout] = {}
        self._info_layout = info_layout
        self._columns = InfoExtras(keys, info_layout, policy_layout)

    @property
    def layout(self) -> dict[str, RowLayout]:
        return {**self._hook_layout, **self._info_layout}

    def __call__(self, step: StepBatch, clock: Clock) -> dict[str, np.ndarray]:
        clock.lap("storage")
        entries = self._columns(step.info, step.env_id) if self._keys else {}  # first, because a hook reads dicts
        extras = {} if self._hook is None else self._of_hook(self._hook, step)
        if extras and self._keys:
            refuse_names("info_keys has", self._keys, extras)
        extras |= entries
        clock.lap("hooks")
        return extras

    def _of_hook(self, hook: StepHook, step: StepBatch) -> dict[str, np.ndarray]:
        columns = [nest.map(np.copy, column) for column in step[:-1]]
        returned = hook(StepBatch._make([*columns, nest.object_array([dict(info) for info in step.info])]))
        if returned is None:
            return {}
        if not isinstance(returned, dict):
            raise TypeError(f"on_step must return a dict of arrays or None; it returned {type(returned).__name__}")
        extras = {name: np.array(rows) for name, rows in returned.items()}
        extras = {name: rows.astype(dtype_of_rows(rows), copy=False) for name, rows in extras.items()}
        for name, rows in extras.items():
            if rows.shape[:1] != step.env_id.shape:
                count = len(step.env_id)
                raise ValueError(
                    f"on_step returned {name!r} of shape {rows.shape} for the {count} envs that stepped; "
                    f"it must be ({count}, ...)"
                )
            if name not in self._hook_layout:
                refuse_names("on_step returned", [name], self._policy_layout())
            found = rows.shape[1:], rows.dtype
            if (before := self._hook_layout.setdefault(name, found)) != found:
                raise TypeError(f"on_step returned {name!r} as {found} (shape of a row, dtype) after {before}")
        return extras

    def fill(self, extras: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Give columns the order and dtypes of `layout`. A column that is missing or does not fit becomes zeros."""
        for name, layout in self.layout.items():
            rows = extras.pop(name, None)
            if rows is None or rows.shape[len(shape) :] != layout[0] or not np.can_cast(rows.dtype, layout[1]):
                rows = blank((*shape, *layout[0]), layout[1])
            extras[name] = rows.astype(layout[1], copy=False)


class InfoExtras:
    """Converter of info entries of k envs to arrays `(k, ...)`.

    Scalars become bool, int64 or float64 (uint64 becomes float64). A later scalar may promote the column's dtype.
    Arrays must keep the shape of the key's first array. They are cast to the first array's dtype by numpy's rule
    "same_kind". Texts become objects. Missing entries are zero, or empty texts.
    """

    def __init__(
        self,
        keys: Sequence[str],
        layout: dict[str, RowLayout] | None = None,
        policy_layout: Callable[[], Mapping[str, RowLayout]] = dict,
    ) -> None:
        self._keys, self._policy_layout = keys, policy_layout
        self._layout = {} if layout is None else layout

    def __call__(self, infos: Sequence[Mapping[str, Any]] | np.ndarray, env_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return a column for each key that this or an earlier call found.

        Raises TypeError for values other than numbers, arrays of numbers and texts, or if a shape or dtype does not fit
        the column. Raises ValueError for a key that the policy returns.
        """
        columns = {key: self._column(key, infos, env_ids) for key in self._keys}
        return {key: column for key, column in columns.items() if column is not None}

    def _column(self, key: str, infos: Any, env_ids: np.ndarray) -> np.ndarray | None:
        if infos.__class__ is not np.ndarray and has_columns(infos):
            column, mask = infos.column(key)
            array = nest.as_array(column) if hasattr(column, "shape") else None
            if array is not None and array.shape[:1] == (len(infos),) and array.dtype.kind in "biuf":
                rows = np.flatnonzero(np.ones(len(infos), np.bool_) if mask is None else nest.as_array(mask))
                if len(rows):
                    self._fit(key, np.asarray(array[rows[0]]), array[rows[0]], env_ids[rows[0]])
                return self._filled(key, len(infos), rows, array[rows])
            if column is None:
                return self._filled(key, len(infos), slice(0), 0)
        entries = {i: info[key] for i, info in enumerate(infos) if key in info}
        if "." in key and not entries:
            entries = {i: entry for i, info in enumerate(infos) for entry in nested_entry(info, key)}
        fitted = set[Any]()
        for i, entry in entries.items():
            if hasattr(entry, "detach"):
                entries[i] = entry = nest.tensor_on_host(entry)
            value = np.asarray(entry)
            form = entry.__class__, value.shape, value.dtype
            if form not in fitted:
                self._fit(key, value, entry, env_ids[i])
                fitted.add(form)
        found = self._filled(key, len(infos), slice(0), 0)
        if found is not None:
            for i, entry in entries.items():
                found[i] = entry
        return found

    def _fit(self, key: str, value: np.ndarray, entry: Any, env_id: int) -> None:
        """Fit the column's layout to an entry. `value`: the entry as an array."""
        if value.dtype.kind not in "biuf" and not isinstance(entry, str):
            dotted = tuple(dotted_keys({key: entry}))
            advice = "leave out this key" if dotted == (key,) else f"name its entries instead, as in {dotted}"
            raise TypeError(
                f"info_keys: env {env_id} has {key!r}={entry!r}, which is not a number, a text or an array of "
                f"numbers; {advice}"
            )
        found_dtype = dtype_of_rows(value)
        if not value.ndim and found_dtype.kind in "iuf":
            found_dtype = np.dtype(np.int64 if np.can_cast(found_dtype, np.int64) else np.float64)
        if key not in self._layout:
            refuse_names("info_keys has", [key], self._policy_layout())
        shape, dtype = self._layout.setdefault(key, (value.shape, found_dtype))
        if value.shape == shape == () and (dtype == OBJECTS) == (found_dtype == OBJECTS):
            self._layout[key] = (), np.promote_types(dtype, found_dtype)
        elif value.shape != shape or dtype == OBJECTS or not np.can_cast(value.dtype, dtype, "same_kind"):
            found = f"{value.dtype} {value.shape}; before it was {dtype} {shape}"
            raise TypeError(f"info_keys: env {env_id} has {key!r} as {found}")

    def _filled(self, key: str, n: int, at: Any, values: Any) -> np.ndarray | None:
        """Return a column of n rows with `values` in the rows `at`. `None`: no info has had the key."""
        if key not in self._layout:
            return None
        rows = blank((n, *self._layout[key][0]), self._layout[key][1])
        rows[at] = values
        return rows


def has_columns(infos: Any) -> bool:
    """Return True for the infos of a native vector env, if nobody has read or changed their dicts."""
    return getattr(infos, "has_columns", False)


def nested_entry(info: Any, key: str) -> list[Any]:
    """Return `[info[key]]`, `[info["a"]["b"]]` for the key "a.b", or `[]` without this entry."""
    if not isinstance(info, Mapping):
        return []
    name, _, rest = key.partition(".")
    return [info[key]] if key in info else nested_entry(info.get(name), rest)


def dotted_keys(info: Mapping[Any, Any], above: str = "") -> list[str]:
    """Return the keys of an info, with "a.b" for each key "b" of a dict "a"."""
    keys = list[str]()
    for name, entry in info.items():
        keys += dotted_keys(entry, f"{above}{name}.") if isinstance(entry, Mapping) and entry else [f"{above}{name}"]
    return keys


def refuse_names(source: str, names: Iterable[str], taken: Iterable[str] = ()) -> None:
    for name in sorted({*names} & (RESERVED | {*taken})):
        raise ValueError(
            f"{source} {name!r}, which a batch has already: use a different name (for an entry of infos, return it "
            "under a new name from on_step=)"
        )


def check_info_keys(keys: Any) -> tuple[str, ...]:
    """Return the keys as a tuple. Raises the errors of `as_info_keys`, and ValueError for names that a batch has."""
    found = as_info_keys(keys)
    refuse_names("info_keys has", found)
    return found


def as_info_keys(keys: Any) -> tuple[str, ...]:
    """Return the keys as a tuple. Raises TypeError if not a sequence of str, and ValueError for equal names."""
    if keys is None:
        return ()
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        example = keys if isinstance(keys, str) else "x_velocity"
        raise TypeError(f"info_keys are the names of entries of the envs' infos, as in ({example!r},); got {keys!r}")
    if len(set(keys)) < len(keys):
        raise ValueError(f"info_keys has a name twice: {keys}; pass each name once")
    return tuple(keys)


def without_last(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the info of a reset without the previous episode's entries."""
    return {key: value for key, value in info.items() if key not in ("final_obs", NO_FINAL_OBS, "final_info")}
