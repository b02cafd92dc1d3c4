"""Warnings that name a line of the program, not one of ours."""

from __future__ import annotations

import sys
import warnings

_OURS = ("vecenv.", "collector.")


def warn_caller(text: str) -> None:
    """A RuntimeWarning at the line that called us, however many calls of our own have led here."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class WorkerWarnings:
    """Warnings that workers gave: the first is shown, those that follow say the same.

    They are collected where results arrive and shown where results are taken: there a warning that is turned into an
    exception loses nothing.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._shown = False

    def append(self, text: str) -> None:
        self._texts.append(text)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def show(self) -> None:
        text = self._texts[0]
        self._texts.clear()
        if not self._shown:
            self._shown = True
            warn_caller(text)
