"""The arguments of GymnasiumVectorEnv that can be checked before there is a vector env."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from vecenv.engine.engine import Engine


def as_autoreset_mode(mode: Any) -> AutoresetMode:
    """The AutoresetMode, from itself, its value or its name in any case; ValueError, with the list, for another.

    >>> as_autoreset_mode("same_step"), as_autoreset_mode("SameStep")
    (<AutoresetMode.SAME_STEP: 'SameStep'>, <AutoresetMode.SAME_STEP: 'SameStep'>)
    """
    if isinstance(mode, AutoresetMode):
        return mode
    wanted = mode.lower().replace("_", "") if isinstance(mode, str) else None
    for each in AutoresetMode:
        if wanted == each.value.lower():
            return each
    listed = ", ".join(f'{each.name} ("{each.value}")' for each in AutoresetMode)
    raise ValueError(f"autoreset_mode must be one of {listed}, got {mode!r}")


def check_arguments(
    observation_mode: Any = "same",
    autoreset_mode: Any = AutoresetMode.NEXT_STEP,
    final_info_format: Any = "dict",
    random_initial_steps: Any = 0,
    **unchecked: Any,
) -> None:
    """ValueError or TypeError for arguments of GymnasiumVectorEnv that no vector env would go with."""
    _check_observation_mode(observation_mode)
    mode = as_autoreset_mode(autoreset_mode)
    if final_info_format not in ("dict", "list"):
        raise ValueError(f'final_info_format must be "dict" or "list", got {final_info_format!r}')
    if final_info_format == "list" and mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            'final_info_format="list" is for code that expects the autoreset of gymnasium 0.29: '
            f"pass autoreset_mode=AutoresetMode.SAME_STEP with it, got {mode}"
        )
    steps = random_initial_steps
    if isinstance(steps, (bool, np.bool_)) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"random_initial_steps must be an integer of at least 0, got {steps!r}")


def check_vector_env(venv: Any) -> None:
    """TypeError for what is no vector env of ours, ValueError for one whose batches are not those of gymnasium."""
    engine = getattr(venv, "engine", None)
    if not isinstance(engine, Engine):
        raise TypeError(
            f"a vector env of vecenv is needed, such as ShmemVectorEnv([lambda: gym.make(...)] * 8), got {venv!r}"
        )
    if engine.is_async:
        raise ValueError("a gymnasium VectorEnv steps all envs together: make the venv without wait_num and timeout")
    if engine.results.splits:
        raise ValueError("a gymnasium VectorEnv returns batches of observations: make the venv without stack_obs=False")


def _check_observation_mode(mode: Any) -> None:
    """ValueError or TypeError if `mode` is not "same", "different" or a pair of spaces."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(
                f"Expected both elements of observation_mode to be Spaces, got {type(mode[0])} and {type(mode[1])}; "
                "pass (batched space, single space)"
            )
    elif not isinstance(mode, str) or mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
