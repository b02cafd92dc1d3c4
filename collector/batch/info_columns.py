"""Entries of the envs' infos as extras of a batch: the `info_keys` of a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collector.batch.step_extras import CheckedHook, RowLayout, StepBatch, refuse_names


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

    The first value of a key decides its column: numbers are float64, flags bool, arrays keep shape and dtype. Rows of
    envs whose info has no such entry are zero. `layout` holds what is known of the keys, for the next hook.
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
        rows: np.ndarray | None = None
        for i, info in enumerate(infos):
            if key not in info:
                continue
            value = np.asarray(info[key])
            if value.dtype.kind not in "biuf":
                raise TypeError(f"info_keys: env {env_ids[i]} has {key!r}={info[key]!r}, which is no number or array")
            if key not in self._layout:
                refuse_names("info_keys", [key], self._policy_layout())
                is_number = value.dtype.kind != "b" and not value.ndim
                self._layout[key] = value.shape, np.dtype(np.float64) if is_number else value.dtype
            shape, dtype = self._layout[key]
            if value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
                found = f"{value.dtype} {value.shape}; before it was {dtype} {shape}"
                raise TypeError(f"info_keys: env {env_ids[i]} has {key!r} as {found}")
            if rows is None:
                rows = np.zeros((len(infos), *shape), dtype)
            rows[i] = value
        if rows is None and key in self._layout:
            shape, dtype = self._layout[key]
            rows = np.zeros((len(infos), *shape), dtype)
        return rows


def _of_the_step(info: Mapping[str, Any], done: Any) -> Mapping[str, Any]:
    """The info of the step, where the env was reset in the same round."""
    last = info.get("final_info") if done and "final_obs" in info else None
    return last if isinstance(last, Mapping) else info
