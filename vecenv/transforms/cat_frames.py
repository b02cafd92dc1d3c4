"""CatFrames: the last observations of an episode, joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.transforms.arrays import Array, EnvRows, concat, zeros
from vecenv.transforms.shapes import axis_of
from vecenv.transforms.transform import Place, Rows, Transform, bounds_of, box, part, with_part


class CatFrames(Transform):
    """The last `N` observations of an episode joined along a dimension, the newest last (as torchrl's CatFrames).

    Arguments:
        N: how many.
        dim: along which dimension; the batch is not counted. -3 is that of the channels of images (C, H, W). Where
            there is none to join along, add it by `UnsqueezeTransform` first.
        in_keys, out_keys: see `Transform`.
        padding: what stands before the first observation of an episode: "same", that observation again (gymnasium's
            "reset"), or "constant", the number `padding_value`.

    >>> import gymnasium as gym
    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> TransformedEnv(gym.make("CartPole-v1"), CatFrames(4, -1)).observation_space.shape
    (16,)
    """

    has_state = True

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
        padding: str = "same",
        padding_value: float = 0,
    ) -> None:
        if isinstance(N, bool) or not isinstance(N, (int, np.integer)) or N < 1:
            raise ValueError(f"N must be an integer of at least 1, got {N!r}")
        if padding not in ("same", "constant"):
            raise ValueError(f'padding must be "same" or "constant", got {padding!r}')
        self.N, self.dim, self.padding, self.padding_value = int(N), dim, padding, padding_value
        self._frames: dict[Place, EnvRows] = {}
        super().__init__(in_keys, out_keys)

    def clear(self) -> None:
        self._frames = {}

    def reset(self, rows: Rows) -> None:
        self._each(rows, self._first)

    def step(self, rows: Rows) -> None:
        self._each(rows, self._next)

    def _each(self, rows: Rows, joined: Any) -> None:
        if self._places is None:
            self._places = self.places(rows.obs)
        for place in self._places:
            kept = self._frames.get(place)
            if kept is None:
                kept = self._frames[place] = EnvRows(self.num_envs)
            stack = joined(part(rows.obs, place[0]), kept, rows.ids)
            kept.put(rows.ids, stack)
            rows.obs = with_part(rows.obs, place[1], stack)

    def _first(self, frame: Array, kept: EnvRows, ids: np.ndarray) -> Array:
        before = frame if self.padding == "same" else zeros(frame.shape, frame) + self.padding_value
        return concat([*[before] * (self.N - 1), frame], axis_of(self.dim, frame.ndim, self))

    def _next(self, frame: Array, kept: EnvRows, ids: np.ndarray) -> Array:
        older = kept.take(ids)
        if older is None:  # no env was ever reset
            return self._first(frame, kept, ids)
        axis = axis_of(self.dim, frame.ndim, self)
        newer = (*[slice(None)] * axis, slice(frame.shape[axis], None), ...)
        return concat([older[newer], frame], axis)

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        low, high = bounds_of(space)
        axis = axis_of(self.dim, low.ndim + 1, self) - 1
        if self.padding == "constant":
            fill = np.asarray(self.padding_value, low.dtype)
            older = np.minimum(low, fill), np.maximum(high, fill)
        else:
            older = low, high
        ends = (np.concatenate([*[old] * (self.N - 1), new], axis) for old, new in zip(older, (low, high), strict=True))
        return box(*ends)

    def __repr__(self) -> str:
        return f"CatFrames({self.N}, dim={self.dim})"
