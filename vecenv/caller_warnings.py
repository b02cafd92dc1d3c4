"""Warnings that point to a line of the user's program, not to one of this project."""

from __future__ import annotations

import sys
import warnings

_OURS = ("vecenv.", "collector.")


def warn_caller(text: str) -> None:
    """Give a RuntimeWarning that points to the line of the program that called vecenv or collector."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class WorkerWarnings(list[str]):
    """Warnings of the workers of a vector env, of which only the first is shown: the others repeat it.

    They are collected where results arrive and shown where results are taken, because there no result is lost if a
    filter turns the warning into an exception.
    """

    _shown = False

    def show(self) -> None:
        text = self[0]
        self.clear()
        if not self._shown:
            self._shown = True
            warn_caller(text)
