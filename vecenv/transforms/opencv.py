"""Image operations of OpenCV, for the cases in which it is faster than numpy and gives the same."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=1)
def opencv() -> Any:
    """The module `cv2`, or None where it is not installed."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def gray(images: np.ndarray) -> np.ndarray | None:
    """Images uint8 (k, H, W, 3) in gray (k, H, W), by ITU-R 601; None without OpenCV."""
    cv2 = opencv()
    if cv2 is None or not images.size:
        return None
    images = np.ascontiguousarray(images)
    out = np.empty(images.shape[:-1], np.uint8)
    convert, code = cv2.cvtColor, cv2.COLOR_RGB2GRAY
    for image, target in zip(images, out, strict=True):  # one by one: OpenCV starts threads for large images
        convert(image, code, target)
    return out


def shrink_by_area(images: np.ndarray, height: int, width: int) -> np.ndarray | None:
    """Images (k, H, W) or (k, H, W, C), uint8 or float32, made smaller by the mean of areas; None without OpenCV."""
    cv2 = opencv()
    if cv2 is None or (images.ndim == 4 and images.shape[3] > 4):
        return None
    out = np.empty((len(images), height, width, *images.shape[3:]), images.dtype)
    images = np.ascontiguousarray(images)
    resize, size, area = cv2.resize, (width, height), cv2.INTER_AREA
    for image, target in zip(images, out, strict=True):
        resize(image, size, target, 0, 0, area)
    return out
