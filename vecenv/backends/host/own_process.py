"""Envs that need a process of their own, because the envs of a process share state."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from vecenv.errors import OneEnvPerProcess, add_note, warn_caller

logger = logging.getLogger("vecenv")

ONE_PER_PROCESS: Mapping[str, str] = {
    "bluesky_gym": "bluesky-gym",
    "metadrive": "metadrive-simulator",
    "retro": "stable-retro",
    "stable_retro": "stable-retro",
    "vmas": "vmas",
}
"""Distribution by package, for packages whose envs share state in their process, such as a single simulator.

docs/guides/works-with.md shows this table, and the state.
"""
HINT = "The constructors of other envs in its process succeeded, so this env may allow one per process."


def distribution_of(env: Any) -> str | None:
    """Return the distribution of `ONE_PER_PROCESS` that defines the class of `env` or a base class, else `None`."""
    inner = getattr(env, "unwrapped", None)
    packages = (str(kind.__module__).partition(".")[0] for kind in type(env if inner is None else inner).__mro__)
    return next((ONE_PER_PROCESS[package] for package in packages if package in ONE_PER_PROCESS), None)


def check_alone(env: Any, env_id: int, count: int) -> None:
    """Raise `OneEnvPerProcess` if a worker with `count` envs cannot run `env`."""
    if count > 1 and (found := distribution_of(env)) is not None:
        raise OneEnvPerProcess(
            f"env {env_id} is from {found}, whose envs share state in their process, and its worker runs {count} envs"
        )


def warn_of_shared_process(envs: Sequence[Any]) -> None:
    """Warn if several of the envs in this process are from a package of `ONE_PER_PROCESS`."""
    found = [name for name in map(distribution_of, envs) if name is not None]
    if len(found) > 1:
        warn_caller(
            f"{len(found)} envs are from {found[0]}, whose envs share state in their process, so they change each "
            "other's episodes. ShmemVectorEnv, AsyncVectorEnv, SubprocVecEnv, and in collectors backend='shmem', start "
            "a process per env"
        )


def hint_at_own_process(error: BaseException, n: int, in_workers: bool) -> None:
    """Add a note to the error of a constructor that other envs in the same process have passed."""
    remedy = "Pass" if in_workers else "Use ShmemVectorEnv, AsyncVectorEnv or SubprocVecEnv with"
    add_note(error, f"{HINT} {remedy} num_workers={n} for a process per env.")
