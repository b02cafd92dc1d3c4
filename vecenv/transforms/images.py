"""Transforms of images: `ToTensorImage`, `GrayScale`, `CenterCrop`, `Resize`.

Images are (H, W), (H, W, C) or (C, H, W).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from vecenv.nest import namespace
from vecenv.transforms.arrays import Array, Constants, cast, dtype_name, is_float, permute
from vecenv.transforms.transform import Keys, Place, Transform

WEIGHTS = {"601": (0.299, 0.587, 0.114), "709": (0.2125, 0.7154, 0.0721)}
"""Weights of red, green and blue, by number of the ITU-R standard."""
SHIFT = 15
"""Integer weights are in units of 2**-15, as in OpenCV, so that gray values equal OpenCV's."""
ROUNDING = 1 << SHIFT - 1
UNITS = {"601": (9798, 19235, 3735), "709": (6963, 23442, 2363)}


class ImageTransform(Transform):
    """Base class of image transforms.

    Arguments:
        channels: position of the channels, "first" or "last". `None`: the smallest dimension, which must be first or
            last.
        in_keys: as for `Transform`. `None`: the key "pixels". Without this key, every array with 2 or 3 dimensions.
    """

    def __init__(self, channels: str | None = None, in_keys: Keys = None, out_keys: Keys = None) -> None:
        if channels not in (None, "first", "last"):
            raise ValueError(f'channels must be "first", "last" or None, got {channels!r}')
        self.channels = channels
        super().__init__(in_keys, out_keys)

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return len(shape) in (2, 3)

    def find_places(self, tree: Any) -> list[Place]:
        keys = getattr(tree, "spaces", tree)
        if self.in_keys is None and isinstance(keys, dict) and "pixels" in keys:
            return [(("pixels",), ("pixels",))]
        return super().find_places(tree)

    def channel_axis(self, shape: Sequence[int]) -> int | None:
        """Return the channel axis of a batch of images, or `None` for (batch, H, W)."""
        if len(shape) == 3:
            return None
        if len(shape) != 4:
            raise ValueError(
                f"{self} takes images with 2 or 3 dimensions, got the shape {tuple(shape[1:])}: name images in in_keys"
            )
        _, first, middle, last = shape
        if self.channels is not None:
            return 1 if self.channels == "first" else 3
        if last < min(first, middle):
            return 3
        if first < min(middle, last):
            return 1
        raise ValueError(
            f"{self} cannot tell which dimension of {tuple(shape[1:])} has the channels: pass "
            'channels="first" or channels="last"'
        )

    def check_dtype(self, array: Array) -> None:
        """Raise ValueError unless the images are uint8 or floats."""
        if dtype_name(array) != "uint8" and not is_float(array):
            raise ValueError(
                f"{self} takes images of uint8 or floats, got {dtype_name(array)}: cast them first, for example with "
                f'DTypeCast("{dtype_name(array)}", "float32")'
            )


class ToTensorImage(ImageTransform):
    """Convert images (H, W, C) to torch's layout (C, H, W), and integers to float32 / 255.

    Arguments:
        from_int: whether to divide by 255. `None`: divide all dtypes except floats.
        unsqueeze: add a dimension of size 1 in front of each image.
        dtype: dtype of divided images.
        shape_tolerant: keep the order of dimensions if the last dimension is not 3.
        keep_uint8: never divide, so that images stay small until a later transform divides.

    Images (H, W) become (1, H, W).

    >>> ToTensorImage()(np.full((1, 4, 5, 3), 255, np.uint8)).shape
    (1, 3, 4, 5)
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: str = "float32",
        *,
        in_keys: Keys = None,
        out_keys: Keys = None,
        shape_tolerant: bool = False,
        keep_uint8: bool = False,
    ) -> None:
        self.from_int, self.unsqueeze, self.dtype = from_int, unsqueeze, np.dtype(dtype).name
        self.shape_tolerant, self.keep_uint8 = shape_tolerant, keep_uint8
        super().__init__(None, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        if array.ndim == 3:
            array = array[:, None]
        elif array.ndim != 4:
            self.channel_axis(array.shape)  # raises ValueError
        elif not self.shape_tolerant or array.shape[-1] == 3:
            array = permute(array, (0, 3, 1, 2))
        divides = not self.keep_uint8 and (not is_float(array) if self.from_int is None else self.from_int)
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array)
            if divides:
                array = array.astype(self.dtype)
                array /= 255
        elif divides:
            array = cast(array, self.dtype) / 255
        return array[:, None] if self.unsqueeze else array


class GrayScale(ImageTransform):
    """Convert images with three channels to gray.

    Arguments:
        weights: factors of red, green and blue. "601": 0.299, 0.587, 0.114, as in OpenCV and torchvision. "709":
            0.2125, 0.7154, 0.0721, as in gymnasium.
        keep_dim: keep a channel dimension of size 1.

    Images are uint8 or floats. uint8 is rounded to the nearest integer, but with "709" down, as in gymnasium. Raises
    ValueError for other dtypes, and for images without three channels.

    >>> GrayScale()(np.full((1, 4, 5, 3), 100, np.uint8)).shape
    (1, 4, 5, 1)
    """

    def __init__(
        self,
        weights: str = "601",
        keep_dim: bool = True,
        channels: str | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
    ) -> None:
        if weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {list(WEIGHTS)}, got {weights!r}")
        self.weights, self.keep_dim = weights, keep_dim
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = self.channel_axis(array.shape)
        if axis is None or array.shape[axis] != 3:
            raise ValueError(f"{self} needs images with 3 channels, got the shape {tuple(array.shape[1:])}")
        self.check_dtype(array)
        cv2 = opencv() if isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.size else None
        if cv2 is not None and axis == 3 and self.weights == "601":
            gray = map_images(
                array, array.shape[:3], lambda image, target: cv2.cvtColor(image, cv2.COLOR_RGB2GRAY, target)
            )
        else:
            gray = self._weighted(*(array[:, c] if axis == 1 else array[..., c] for c in range(3)))
        if not self.keep_dim:
            return gray
        return gray[:, None] if axis == 1 else gray[..., None]

    def _weighted(self, red: Array, green: Array, blue: Array) -> Array:
        dtype, channels = dtype_name(red), (red, green, blue)
        if dtype in ("float32", "float64"):
            r, g, b = WEIGHTS[self.weights]
            return red * r + green * g + blue * b
        if is_float(red):  # in float32, because numpy would round the weights to float16, and torch would not
            return cast(self._weighted(*(cast(channel, "float32") for channel in channels)), dtype)
        if self.weights == "709":
            return cast(self._weighted(*(cast(channel, "float64") for channel in channels)), dtype)
        r, g, b = (cast(channel, "int32") * unit for channel, unit in zip(channels, UNITS[self.weights], strict=True))
        return cast((r + g + b + ROUNDING) >> SHIFT, dtype)


class CenterCrop(ImageTransform):
    """Crop images to their middle.

    Arguments:
        height: number of rows of the result. torchrl's arguments are `w` and `h`, in this order.
        width: number of columns of the result. Default: `height`.

    If the number of rows or columns to cut is odd, an even number is cut at the top or left (2 of 3), as in
    torchvision. Raises ValueError if the image is lower or narrower than the result.

    >>> CenterCrop(2, 3)(np.zeros((1, 4, 5), np.uint8)).shape
    (1, 2, 3)
    """

    def __init__(
        self,
        height: int,
        width: int | None = None,
        channels: str | None = None,
        in_keys: Keys = None,
        out_keys: Keys = None,
    ) -> None:
        self.height, self.width = check_size(height, width)
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        is_first = self.channel_axis(array.shape) == 1
        height, width = array.shape[2:] if is_first else array.shape[1:3]
        if height < self.height or width < self.width:
            raise ValueError(
                f"{self} got an image of {height} x {width}, expected at least {self.height} x {self.width}"
            )
        top, left = round((height - self.height) / 2), round((width - self.width) / 2)
        middle = slice(top, top + self.height), slice(left, left + self.width)
        return array[(slice(None), slice(None), *middle) if is_first else (slice(None), *middle)]


class Resize(ImageTransform):
    """Resize images.

    Arguments:
        height: number of rows of the result. torchrl's arguments are `w` and `h`, in this order.
        width: number of columns of the result. Default: `height`.
        interpolation: "area" is OpenCV's INTER_AREA, as in gymnasium and SB3. A new pixel is the mean of the area that
            it covers. If a side grows, a new pixel is interpolated between two old pixels per dimension. "bilinear" is
            torchrl's default, with antialiasing if the image shrinks.

    Images are uint8 or floats. Other dtypes raise ValueError. If OpenCV is installed, it computes "area" for numpy
    arrays of uint8 and float32, except for more than 4 channels in the last dimension. These results have the same bits
    as gymnasium's, except clipped floats. Other results may differ from OpenCV's: integers by 1, floats by rounding.
    Results are clipped to the range of the image.

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
        in_keys: Keys = None,
        out_keys: Keys = None,
    ) -> None:
        if interpolation not in WEIGHT_FUNCTIONS:
            raise ValueError(f"interpolation must be one of {list(WEIGHT_FUNCTIONS)}, got {interpolation!r}")
        self.height, self.width = check_size(height, width)
        self.interpolation = interpolation
        super().__init__(channels, in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = self.channel_axis(array.shape)
        height, width = array.shape[2:] if axis == 1 else array.shape[1:3]
        if (height, width) == (self.height, self.width):
            return array
        self.check_dtype(array)
        if axis == 1:
            resized = self._resized(array.reshape(-1, height, width))
            return resized.reshape(*array.shape[:2], self.height, self.width)
        return self._resized(array)

    def _resized(self, images: Array) -> Array:
        if self.interpolation == "area" and isinstance(images, np.ndarray):
            is_known = images.dtype in (np.uint8, np.float32) and (images.ndim == 3 or images.shape[3] <= 4)
            if is_known and (cv2 := opencv()) is not None:
                size, shape = (self.width, self.height), (len(images), self.height, self.width, *images.shape[3:])
                resized = map_images(
                    images, shape, lambda image, target: cv2.resize(image, size, target, 0, 0, cv2.INTER_AREA)
                )
                return resized if resized.dtype == np.uint8 else _clip_to_range(resized, images, (1, 2))
        if images.ndim == 4:
            return permute(self._by_products(permute(images, (0, 3, 1, 2))), (0, 2, 3, 1))
        return self._by_products(images)

    def _by_products(self, images: Array) -> Array:
        dtype = dtype_name(images)
        if dtype in ("float32", "float64"):
            height, width = images.shape[-2:]
            weights = WEIGHT_FUNCTIONS[self.interpolation]
            if self.interpolation == "area" and (height < self.height or width < self.width):
                weights = enlarging_weights
            rows, columns = (weights(*each).like(images) for each in ((height, self.height), (width, self.width)))
            xp = namespace(images)
            return _clip_to_range(xp.matmul(xp.matmul(rows, images), columns.T), images, (-2, -1))
        resized = self._by_products(cast(images, "float32"))
        return cast(resized if is_float(images) else namespace(images).round(resized), dtype)


@lru_cache(maxsize=64)
def area_weights(size: int, target: int) -> Constants:
    """Return a (target, size) matrix: the share of each old pixel in the area of each new pixel."""
    scale = size / target
    begin = np.arange(target)[:, None] * scale
    pixel = np.arange(size)[None]
    overlap = np.minimum(begin + scale, pixel + 1) - np.maximum(begin, pixel)
    return _normalised(np.maximum(overlap, 0))


@lru_cache(maxsize=64)
def bilinear_weights(size: int, target: int) -> Constants:
    """Return a (target, size) matrix of weights, which fall linearly with the distance from the new pixel's center."""
    scale = size / target
    middle = (np.arange(target)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(size)[None] + 0.5 - middle)
    return _normalised(np.maximum(1 - distance / max(scale, 1), 0))


@lru_cache(maxsize=64)
def enlarging_weights(size: int, target: int) -> Constants:
    """Return OpenCV's (target, size) matrix for "area" if a side grows. Each new pixel has two weights."""
    at, growth = np.arange(target), target / size
    first = np.floor(at * (1 / growth)).astype(int)  # written as in OpenCV, because rounding may change the floors
    second = ((at + 1) - (first + 1) * growth).astype(np.float32)
    second = np.where(second <= 0, 0, second - np.floor(second))
    weights = np.zeros((target, size))
    weights[at, first] = 1 - second
    weights[at, np.minimum(first + 1, size - 1)] += second
    return Constants(weights)


def _clip_to_range(resized: Array, images: Array, sides: tuple[int, int]) -> Array:
    """Clip `resized` to the range of `images`, because rounded sums may lie outside."""
    xp = namespace(images)
    if isinstance(images, np.ndarray):
        least, most = images.min(sides, keepdims=True), images.max(sides, keepdims=True)
    else:
        least, most = images.amin(sides, keepdim=True), images.amax(sides, keepdim=True)
    resized = xp.where(resized < least, least, resized)  # if one pixel is NaN, `clip` would make every pixel NaN
    return xp.where(resized > most, most, resized)


def _normalised(weights: np.ndarray) -> Constants:
    return Constants(weights / weights.sum(1, keepdims=True))


WEIGHT_FUNCTIONS = {"area": area_weights, "bilinear": bilinear_weights}


@lru_cache(maxsize=1)
def opencv() -> Any:
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def map_images(images: np.ndarray, shape: Sequence[int], write: Callable[[Any, Any], Any]) -> np.ndarray:
    """Call `write(image, target)` per image, because OpenCV starts threads for a large array. Return the targets."""
    out = np.empty(shape, images.dtype)
    for image, target in zip(np.ascontiguousarray(images), out, strict=True):
        write(image, target)
    return out


def check_size(height: Any, width: Any) -> tuple[int, int]:
    size = (
        height if isinstance(height, (tuple, list)) and width is None else (height, height if width is None else width)
    )
    if len(size) != 2 or not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in size):
        raise ValueError(f"height and width must be positive integers, got {size!r}")
    return int(size[0]), int(size[1])
