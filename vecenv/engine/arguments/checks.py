"""Checks of constructor arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import find_highest_version, parse_env_id

from vecenv.backends.host.env_host import EnvReport


def check_env_fns(env_fns: Any) -> list[Callable[[], Any]]:
    """The env_fns as a list of callables; an id becomes `gymnasium.make` of it.

    TypeError or ValueError if they are not callables that can each make an env; gymnasium's error for an id that it
    does not know.
    """
    if callable(env_fns) or not hasattr(env_fns, "__iter__") or isinstance(env_fns, (str, bytes, dict)):
        one = repr(env_fns) if isinstance(env_fns, str) else "env_fn"
        raise TypeError(
            f"env_fns must be a sequence of callables, one an env, got {env_fns!r}; for n equal envs pass [{one}] * n"
        )
    fns = list(env_fns)
    if not fns:
        raise ValueError("env_fns is empty; pass at least one callable")
    for i, env_fn in enumerate(fns):
        if isinstance(env_fn, str):
            fns[i] = _maker_of(env_fn)
        elif not callable(env_fn):
            kind = "an Env instance" if hasattr(env_fn, "step") else f"of type {type(env_fn).__name__}"
            raise TypeError(f"env_fns[{i}] is {kind}, not a function that makes an env; use lambda: gym.make(...)")
    return fns


def _maker_of(env_id: str) -> Callable[[], Any]:
    """A function that makes the env with this id of gymnasium's registry."""
    if ":" not in env_id and env_id not in gymnasium.registry:  # the env's process imports the module of "module:id"
        namespace, name, version = parse_env_id(env_id)
        if version is not None or find_highest_version(namespace, name) is None:
            gymnasium.spec(env_id)  # raises, and suggests another id
    return partial(gymnasium.make, env_id)


def own_env_fns(env_fns: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The function of each env: of those that differ from env to env (`EnvCreator`), what `for_env(i, n)` returns."""
    n = len(env_fns)
    return [fn.for_env(i, n) if hasattr(fn, "for_env") else fn for i, fn in enumerate(env_fns)]


def measured_env_fns(env_fns: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """The functions of envs that are only made to be measured: they do not update the state that others share."""
    return [fn.unshared() if hasattr(fn, "unshared") else fn for fn in own_env_fns(env_fns)]


def check_count(name: str, value: Any, most: int | None = None) -> int:
    """`value` as an int; TypeError for what is no integer, ValueError for one below 1 or above `most`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < 1 or (most is not None and value > most):
        expected = "of at least 1" if most is None else f"in [1, {most}]"
        raise (ValueError if is_integer else TypeError)(f"{name} must be an integer {expected}, got {value!r}")
    return int(value)


def check_timeout(timeout: Any, name: str = "timeout") -> float | None:
    """A positive, finite number of seconds, or None."""
    if timeout is None:
        return None
    number = isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool)
    if not number or not math.isfinite(timeout) or timeout <= 0:
        raise ValueError(f"{name} must be a positive number of seconds or None, got {timeout!r}")
    return float(timeout)


def check_spaces_equal(reports: Sequence[EnvReport]) -> None:
    """ValueError if the envs differ in their spaces, with the ids."""
    for name in ("observation_space", "action_space"):
        found: list[tuple[Any, list[int]]] = []
        for i, report in enumerate(reports):
            space = getattr(report, name)
            for other, ids in found:
                if space == other:
                    ids.append(i)
                    break
            else:
                found.append((space, [i]))
        if len(found) > 1:
            listed = "; ".join(f"envs {ids}: {space}" for space, ids in found)
            raise ValueError(f"the envs differ in their {name}: {listed}")
