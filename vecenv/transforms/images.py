"""Transforms of images: ToTensorImage, GrayScale, CenterCrop.

Images are (H, W, C), (C, H, W) or (H, W). Of three dimensions the smallest is that of the channels, and it must be the
first or the last one; `channels="first"` or `"last"` says so where that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.transforms import opencv
from vecenv.transforms.arrays import Array, cast, dtype_name, is_float, permute
from vecenv.transforms.transform import Place, Transform

WEIGHTS = {"601": (0.299, 0.587, 0.114), "709": (0.2125, 0.7154, 0.0721)}
"""Red, green and blue in gray: of ITU-R 601 (OpenCV, torchvision) and 709 (gymnasium, scikit-image)."""
SHIFT = 15
"""Gray values of integers are sums in units of 2**-15, as those of OpenCV: exact, whatever the size of a batch."""
UNITS = {"601": (9798, 19235, 3735), "709": (6963, 23442, 2363)}


class ImageTransform(Transform):
    """Base of transforms of images. Without `in_keys` it takes `pixels`, or else every part with two or three
    dimensions.
    """

    def __init__(
        self,
        channels: str | None = None,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
    ) -> None:
        if channels not in (None, "first", "last"):
            raise ValueError(f'channels must be "first", "last" or None, got {channels!r}')
        self.channels = channels
        super().__init__(in_keys, out_keys)

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether it can be an image."""
        return len(shape) in (2, 3)

    def places(self, tree: Any) -> list[Place]:
        """What is read and written."""
        keys = getattr(tree, "spaces", tree)
        if self.in_keys is None and isinstance(keys, dict) and "pixels" in keys:
            return [(("pixels",), ("pixels",))]
        return super().places(tree)

    def channel_axis(self, shape: Sequence[int]) -> int | None:
        """Which axis of images (k, ...) is that of the channels; None for images without. ValueError if unclear."""
        if len(shape) == 3:
            return None
        if len(shape) != 4:
            raise ValueError(f"{self} takes images (H, W), (H, W, C) or (C, H, W), got the shape {tuple(shape[1:])}")
        _, first, middle, last = shape
        if self.channels is not None:
            return 1 if self.channels == "first" else 3
        if last < min(first, middle):
            return 3
        if first < min(middle, last):
            return 1
        raise ValueError(
            f"{self} cannot tell which dimension of {tuple(shape[1:])} is that of the channels: pass "
            'channels="first" or channels="last"'
        )


class ToTensorImage(ImageTransform):
    """Images (H, W, C) as torch wants them: (C, H, W), integers divided by 255 as float32 (as torchrl's ToTensorImage).

    Arguments:
        from_int: whether to divide by 255; None: where the numbers are integers.
        unsqueeze: add a dimension of size 1 in front.
        dtype: the name of the float dtype.
        shape_tolerant: leave the dimensions alone where the last one is not 3.
        keep_uint8: only move the dimensions; the division can be done on the device, by another ToTensorImage there.
        in_keys, out_keys: see `Transform`.

    Images without channels (H, W) become (1, H, W).

    >>> ToTensorImage()(np.full((1, 4, 5, 3), 255, np.uint8)).shape
    (1, 3, 4, 5)
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: str = "float32",
        *,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
        shape_tolerant: bool = False,
        keep_uint8: bool = False,
    ) -> None:
        self.from_int, self.unsqueeze, self.dtype = from_int, unsqueeze, np.dtype(dtype).name
        self.shape_tolerant, self.keep_uint8 = shape_tolerant, keep_uint8
        super().__init__(None, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        if array.ndim == 3:
            array = array[:, None, ...]
        elif array.ndim == 4:
            if not self.shape_tolerant or array.shape[-1] == 3:
                array = permute(array, (0, 3, 1, 2))
        else:
            self.channel_axis(array.shape)  # raises
        divides = not is_float(array) if self.from_int is None else self.from_int
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array)
            if divides and not self.keep_uint8:
                array = array.astype(self.dtype)
                array /= 255
        elif divides and not self.keep_uint8:
            array = cast(array, self.dtype) / 255
        return array[:, None, ...] if self.unsqueeze else array


class GrayScale(ImageTransform):
    """Images in gray, with one channel in the place of three (as torchrl's GrayScale).

    Arguments:
        weights: "601": 0.299, 0.587, 0.114 of red, green and blue, as OpenCV and torchvision; "709": 0.2125, 0.7154,
            0.0721, as gymnasium's GrayscaleObservation.
        keep_dim: False leaves the dimension of the channel out.
        channels, in_keys, out_keys: see this module and `Transform`.

    Integers are rounded to the nearest. OpenCV does it where it is installed, with the same result.

    >>> GrayScale()(np.full((1, 4, 5, 3), 100, np.uint8)).shape
    (1, 4, 5, 1)
    """

    def __init__(
        self,
        weights: str = "601",
        keep_dim: bool = True,
        channels: str | None = None,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
    ) -> None:
        if weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {list(WEIGHTS)}, got {weights!r}")
        self.weights, self.keep_dim = weights, keep_dim
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = self.channel_axis(array.shape)
        if axis is None or array.shape[axis] != 3:
            raise ValueError(f"{self} needs images with 3 channels, got the shape {tuple(array.shape[1:])}")
        grayed = None
        if isinstance(array, np.ndarray) and array.dtype == np.uint8 and axis == 3 and self.weights == "601":
            grayed = opencv.gray(array)
        if grayed is None:
            grayed = self._weighted(array, axis)
        if not self.keep_dim:
            return grayed
        return grayed[:, None, ...] if axis == 1 else grayed[..., None]

    def _weighted(self, array: Array, axis: int) -> Array:
        red, green, blue = (array[:, c, ...] if axis == 1 else array[..., c] for c in range(3))
        if is_float(array):
            r, g, b = WEIGHTS[self.weights]
            return red * r + green * g + blue * b
        r, g, b = UNITS[self.weights]
        dtype = dtype_name(array)
        red, green, blue = (cast(channel, "int32") for channel in (red, green, blue))
        return cast((red * r + green * g + blue * b + (1 << SHIFT - 1)) >> SHIFT, dtype)


class CenterCrop(ImageTransform):
    """The middle of images, in the given size (as torchrl's CenterCrop).

    Arguments:
        height, width: of the result; one number is both. torchrl calls the first one `w`, although it is the height.
        channels, in_keys, out_keys: see this module and `Transform`.

    Of an odd rest the larger half is cut at the end, unless rounding half to even says otherwise (torchvision).
    ValueError for an image that is smaller.

    >>> CenterCrop(2, 3)(np.zeros((1, 4, 5), np.uint8)).shape
    (1, 2, 3)
    """

    def __init__(
        self,
        height: int,
        width: int | None = None,
        channels: str | None = None,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
    ) -> None:
        self.height, self.width = size_of(height, width)
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        rows_axis = 2 if self.channel_axis(array.shape) == 1 else 1
        height, width = array.shape[rows_axis], array.shape[rows_axis + 1]
        if height < self.height or width < self.width:
            raise ValueError(
                f"{self} got an image of {height} x {width}, which is smaller than {self.height} x {self.width}"
            )
        top, left = round((height - self.height) / 2), round((width - self.width) / 2)
        rows, columns = slice(top, top + self.height), slice(left, left + self.width)
        return array[:, :, rows, columns] if rows_axis == 2 else array[:, rows, columns, ...]

    def __repr__(self) -> str:
        return f"CenterCrop({self.height}, {self.width})"


def size_of(height: Any, width: Any) -> tuple[int, int]:
    """Height and width of an image, which may be given as one number or a pair; ValueError for no positive integers."""
    size = (
        height if isinstance(height, (tuple, list)) and width is None else (height, height if width is None else width)
    )
    if len(size) != 2 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in size):
        raise ValueError(f"a size is a height and a width, positive integers, got {size!r}")
    return int(size[0]), int(size[1])
