"""The frame skip of envs that have one: how many frames a step is, and actions that are repeated."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from vecenv.engine.arguments import check_count

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class RepeatsActions:
    """What repeats each action `repeats` times."""

    repeats: int = 1


def check_frame_skip(frame_skip: Any) -> int:
    """`frame_skip` as an int, 1 for None; ValueError for all but integers of at least 1."""
    if frame_skip is None:
        return 1
    try:
        return check_count("frame_skip", frame_skip)
    except (TypeError, ValueError):
        raise ValueError(f"frame_skip must be an integer of at least 1 or None, got {frame_skip!r}") from None


def repeated_step(env: gymnasium.Env[Any, Any], action: Any, repeats: int) -> Step:
    """Give the action to the env `repeats` times, or until the episode ends: the rewards are summed, the rest is the
    last.
    """
    obs, reward, terminated, truncated, info = env.step(action)
    for _ in range(repeats - 1):
        if terminated or truncated:
            break
        obs, more, terminated, truncated, info = env.step(action)
        reward = reward + more  # type: ignore[operator]
    return obs, reward, terminated, truncated, info


def skips_by_itself(env: gymnasium.Env[Any, Any], frame_skip: int | None) -> bool:
    """Whether a step of the env is as many frames already; ValueError if it is another number of frames."""
    own = _own_skips(env)
    if frame_skip is None or not own:
        return frame_skip is None
    if all(isinstance(skip, (int, np.integer)) for skip in own) and math.prod(own) == frame_skip:
        return True
    raise ValueError(
        f"frame_skip={frame_skip}, but {env} skips frames by itself: {' times '.join(map(str, own))} a step; pass "
        "frame_skip=None to keep that, or an env that does not skip"
    )


def _own_skips(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """What multiplies the frames of a step: the env's own frameskip, and those of the wrappers that are known."""
    skips: list[Any] = []
    while isinstance(env, gymnasium.Wrapper):
        for wrapper, attribute in _SKIPPING.items():
            if isinstance(env, wrapper):
                skips.append(getattr(env, attribute))
        env = env.env
    spec_kwargs = {} if env.spec is None else env.spec.kwargs
    skips.append(getattr(env, "_frameskip", getattr(env, "frameskip", spec_kwargs.get("frameskip", 1))))
    return [skip for skip in skips if skip not in (None, 1)]


_SKIPPING_WRAPPERS = {
    "MaxAndSkipObservation": "_skip",
    "RepeatAction": "num_repeats",
    "AtariPreprocessing": "frame_skip",
}
"""Those of gymnasium, of which not every version has all (RepeatAction: since 1.3)."""

_SKIPPING: dict[type, str] = {
    RepeatsActions: "repeats",
    **{getattr(wrappers, name): number for name, number in _SKIPPING_WRAPPERS.items() if hasattr(wrappers, name)},
}
"""The wrappers that repeat actions, and where each has its number."""
