"""What a round runs in each env: opcodes, arguments of resets, and which rows are resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.engine.arguments.ids import as_ids
from vecenv.engine.arguments.seeding import spread_seeds
from vecenv.nest import tensor_on_host

BOOL = np.dtype(np.bool_)


def mixed_ops(op: int, resets: np.ndarray, reset: int) -> np.ndarray:
    """The opcode of each row: `reset` for those in the mask `resets`, `op` for the others."""
    ops = np.empty(len(resets), dtype=np.uint8)
    ops.fill(op)
    ops[resets] = reset
    return ops


def reset_arguments(asked: Sequence[int], kwargs: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The arguments of the reset of each env: `seed` is spread over the ids, the others go to each."""
    if "seed" not in kwargs:
        return dict.fromkeys(asked, kwargs)
    seeds = spread_seeds(kwargs["seed"], asked)
    return {i: {**kwargs, "seed": seed} for i, seed in zip(asked, seeds, strict=True)}


def reset_rows(ids: np.ndarray | None, reset: Any, n: int) -> np.ndarray:
    """Which rows of a round of the envs `ids` are resets, as a mask; `reset` holds ids or is a mask of all envs."""
    mask = np.asarray(reset)
    if mask.dtype is BOOL and mask.shape == (n,):
        if ids is None:
            return mask
        mask = np.flatnonzero(mask)
    if mask.size == 0:
        return np.zeros(n if ids is None else len(ids), dtype=np.bool_)
    chosen = as_ids(mask, n)
    asked = np.arange(n) if ids is None else ids
    is_chosen = np.zeros(n, dtype=np.bool_)
    is_chosen[chosen] = True
    rows = is_chosen[asked]
    if rows.sum() != len(chosen):
        raise ValueError(f"reset={chosen.tolist()} must be among the envs of this round, {asked.tolist()}")
    return rows


def round_envs(n: int, action: Any, id: Any, kwargs: dict[str, Any]) -> tuple[np.ndarray | None, list[int]]:
    """The envs of a round of `step` or `send` with these arguments, int64 `(k,)` (None: all n, in order), and those of
    them that it resets, in the order of their seeds. Raises what the vector env raises for wrong ids.
    """
    reset = tensor_on_host(kwargs.get("reset"))
    if action is None:
        ids = np.zeros(0, np.int64) if reset is None else as_ids(reset, n)
        return ids, ids.tolist()
    id = kwargs.get("env_id") if id is None else id
    asked = None if id is None else as_ids(tensor_on_host(id), n)
    if reset is None:
        return asked, []
    rows = np.arange(n) if asked is None else asked
    return asked, rows[reset_rows(asked, reset, n)].tolist()
