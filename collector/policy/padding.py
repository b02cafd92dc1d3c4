"""Calling a policy with a few sizes of batch only, so that what was compiled or recorded for a size is used again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from collector.device.tensors import torch
from collector.policy.exploration import ExplorationType, choose
from collector.policy.interface import Policy
from vecenv import nest


def batch_sizes(rows: int, sizes: Sequence[int] | None = None) -> tuple[int, ...]:
    """The sizes with which a policy is called for up to `rows` rows, ascending: `sizes`, or `rows` and its half,
    quarter and eighth.

    Raises `ValueError` where a size is below one, or the largest is smaller than `rows`.

    >>> batch_sizes(32)
    (4, 8, 16, 32)
    """
    chosen = tuple(sorted({-(-rows // part) for part in (1, 2, 4, 8)} if sizes is None else set(sizes)))
    if not chosen or chosen[0] < 1 or chosen[-1] < rows:
        raise ValueError(f"sizes must be 1 or more, and the largest at least the {rows} rows of a full batch: {sizes}")
    return chosen


class PaddedPolicy:
    """Calls `policy` with batches of a few sizes: rows are filled up to the next size, and their outputs discarded.

    The action of a distribution is chosen here, so outputs are tensors. The rows that fill up are the last one again,
    or rows of an earlier call; a policy that mixes rows (batch normalisation in training mode) or keeps something for
    each `env_id` would see them. Attributes are those of `policy`; `faster`, where given, is called in its place.
    """

    def __init__(
        self,
        policy: Policy,
        rows: int,
        exploration: ExplorationType,
        *,
        sizes: Sequence[int] | None = None,
        faster: Policy | None = None,
    ) -> None:
        self.policy = policy
        self.sizes = batch_sizes(rows, sizes)
        self._faster = policy if faster is None else faster
        self._exploration = exploration
        with suppress(TypeError, ValueError):  # written in C
            # For `signature_of`, which reads what the policy is called with.
            self.__signature__ = inspect.signature(getattr(policy, "forward", policy))

    def __getattr__(self, name: str) -> Any:
        if name == "policy":  # not set yet: the object is being copied or loaded
            raise AttributeError(name)
        return getattr(self.policy, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The policy's outputs, of the same form. Every argument is a tree of tensors `(k, ...)`, or None.

        Raises `TypeError` for anything else, and `ValueError` where there are more rows than the largest size.
        """
        inputs = (args, kwargs)
        rows = _count_rows(inputs)
        size = next((size for size in self.sizes if size >= rows), None)
        if size is None:
            raise ValueError(f"this policy was prepared for at most {self.sizes[-1]} rows, got {rows}")
        outputs = self._run(inputs, rows, size)
        return outputs if rows == size else nest.map(lambda leaf: leaf[:rows], outputs)

    def _run(self, inputs: Any, rows: int, size: int) -> Any:
        """The outputs for `rows` rows, filled up to `size`."""
        if rows != size:
            inputs = nest.map(lambda leaf: None if leaf is None else fill_up(leaf, size), inputs)
        return self._call(inputs, size)

    def _call(self, inputs: Any, size: int) -> Any:
        args, kwargs = inputs
        outputs = _chosen(self._faster(*args, **kwargs), self._exploration)
        for leaf in nest.leaves(outputs):
            if not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (size,):
                got = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
                raise ValueError(
                    f"a policy that is compiled or captured returns tensors with a row for each observation: got {got} "
                    f"for {size} observations"
                )
        return outputs


def fill_up(rows: torch.Tensor, size: int) -> torch.Tensor:
    """The rows, and the last one repeated behind them, in new memory.

    Rows of zeros might be invalid input (an action mask of zeros allows nothing), and an assertion that fails on CUDA
    ends all use of the device by this process.
    """
    if not len(rows):
        return rows.new_zeros((size, *rows.shape[1:]))
    return torch.cat([rows, rows[-1:].expand(size - len(rows), *rows.shape[1:])])


def _count_rows(inputs: Any) -> int:
    rows = None
    for leaf in nest.leaves(inputs):
        if leaf is None:
            continue
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            raise TypeError(
                f"a policy that is compiled or captured takes tensors with a row for each observation; got {leaf!r}"
            )
        rows = len(leaf) if rows is None else rows
        if len(leaf) != rows:
            raise ValueError(f"all arguments must have the same number of rows; got {rows} and {len(leaf)}")
    if rows is None:
        raise TypeError("a policy that is compiled or captured takes at least one tensor")
    return rows


def _chosen(output: Any, exploration: ExplorationType) -> Any:
    """The policy's output with an action in place of a distribution."""
    if isinstance(output, dict):
        return {**output, "action": choose(output["action"], exploration)} if "action" in output else output
    if isinstance(output, tuple) and output:
        return (choose(output[0], exploration), *output[1:])
    return choose(output, exploration)
