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


class WorkerWarnings(list[str]):
    """Warnings of workers that have not been shown: the first is, those that follow say the same.

    They are appended where results arrive and shown where results are taken: there a warning that is turned into an
    exception loses nothing.
    """

    _shown = False

    def show(self) -> None:
        text = self[0]
        self.clear()
        if not self._shown:
            self._shown = True
            warn_caller(text)
