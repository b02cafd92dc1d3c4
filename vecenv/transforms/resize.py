"""Resize: images in another size, as two products with matrices of weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from vecenv.transforms import opencv
from vecenv.transforms.arrays import Array, Constants, cast, dtype_name, is_float, namespace, permute
from vecenv.transforms.images import ImageTransform, size_of


class Resize(ImageTransform):
    """Images in another size (as torchrl's Resize).

    Arguments:
        height, width: of the result; one number is both. torchrl's Resize calls the first one `w`, but it is the height
            there too: the same positions mean the same.
        interpolation: "area", the mean of the area that a pixel covers (OpenCV's INTER_AREA, as gymnasium and SB3 use
            it); "bilinear", with antialiasing where the image becomes smaller (torchvision, torchrl's default).
        channels, in_keys, out_keys: see `vecenv.transforms.images` and `Transform`.

    Integers are rounded to the nearest. OpenCV makes images smaller by area where it is installed; numpy's results
    differ from those by one at most, in float32 by rounding.

    >>> Resize(2)(np.arange(16.0).reshape(1, 4, 4))
    array([[[ 2.5,  4.5],
            [10.5, 12.5]]])
    """

    def __init__(
        self,
        height: int,
        width: int | None = None,
        interpolation: str = "area",
        channels: str | None = None,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
    ) -> None:
        if interpolation not in METHODS:
            raise ValueError(f"interpolation must be one of {list(METHODS)}, got {interpolation!r}")
        self.height, self.width = size_of(height, width)
        self.interpolation = interpolation
        self._matrices: dict[Any, Constants] = {}
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = self.channel_axis(array.shape)
        height, width = array.shape[2:] if axis == 1 else array.shape[1:3]
        if (height, width) == (self.height, self.width):
            return array
        smaller = height >= self.height and width >= self.width
        if (
            self.interpolation == "area"
            and smaller
            and isinstance(array, np.ndarray)
            and array.dtype in (np.uint8, np.float32)
        ):
            resized = self._by_opencv(array, axis)
            if resized is not None:
                return resized
        if axis == 3:
            return permute(self._by_products(permute(array, (0, 3, 1, 2))), (0, 2, 3, 1))
        return self._by_products(array)

    def _by_opencv(self, array: np.ndarray, axis: int | None) -> np.ndarray | None:
        if axis != 1:
            return opencv.shrink_by_area(array, self.height, self.width)
        images = array.reshape(-1, *array.shape[2:])
        resized = opencv.shrink_by_area(images, self.height, self.width)
        return None if resized is None else resized.reshape(*array.shape[:2], self.height, self.width)

    def _by_products(self, array: Array) -> Array:
        """Resize the last two axes."""
        dtype = dtype_name(array)
        work = dtype if dtype in ("float32", "float64") else "float32"
        rows = self._matrix(array.shape[-2], self.height, work).like(array)
        columns = self._matrix(array.shape[-1], self.width, work).like(array)
        xp = namespace(array)
        resized = xp.matmul(xp.matmul(rows, cast(array, work)), columns.T)
        if work == dtype:
            return resized
        return cast(resized if is_float(array) else xp.round(resized), dtype)

    def _matrix(self, size: int, target: int, dtype: str) -> Constants:
        key = size, target, dtype
        if key not in self._matrices:
            self._matrices[key] = Constants(METHODS[self.interpolation](size, target).astype(dtype))
        return self._matrices[key]

    def __repr__(self) -> str:
        return f"Resize({self.height}, {self.width}, {self.interpolation!r})"


@lru_cache(maxsize=64)
def area_weights(size: int, target: int) -> np.ndarray:
    """(target, size): how much of the area of each new pixel lies in each old one."""
    scale = size / target
    begin = np.arange(target)[:, None] * scale
    pixel = np.arange(size)[None]
    overlap = np.minimum(begin + scale, pixel + 1) - np.maximum(begin, pixel)
    return _normalised(np.maximum(overlap, 0))


@lru_cache(maxsize=64)
def bilinear_weights(size: int, target: int) -> np.ndarray:
    """(target, size): a triangle around the middle of each new pixel, as wide as that is in old ones (two at least)."""
    scale = size / target
    middle = (np.arange(target)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(size)[None] + 0.5 - middle)
    return _normalised(np.maximum(1 - distance / max(scale, 1), 0))


def _normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum(1, keepdims=True)


METHODS = {"area": area_weights, "bilinear": bilinear_weights}
