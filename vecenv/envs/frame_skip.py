"""The frame skip of envs that have one."""

from __future__ import annotations

from typing import Any

from vecenv.engine.arguments.checks import check_count


def check_frame_skip(frame_skip: Any) -> int:
    """`frame_skip` as an int, 1 for None; ValueError for all but integers of at least 1."""
    if frame_skip is None:
        return 1
    try:
        return check_count("frame_skip", frame_skip)
    except (TypeError, ValueError):
        raise ValueError(f"frame_skip must be an integer of at least 1 or None, got {frame_skip!r}") from None
