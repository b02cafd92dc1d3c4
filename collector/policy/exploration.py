"""Exploration types: what is taken from a distribution that a policy returns."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from vecenv import nest


class ExplorationType(enum.Enum):
    """The value taken from a distribution that a policy returns (names as in torchrl).

    RANDOM is a sample, MODE the most likely action, and MEAN the mean, which is an action only where actions are
    continuous.
    """

    RANDOM = "random"
    MODE = "mode"
    MEAN = "mean"


_current: ContextVar[ExplorationType | None] = ContextVar("exploration_type", default=None)
_requested: ContextVar[ExplorationType | None] = ContextVar("requested_exploration_type", default=None)
"""What the innermost `set_exploration_type` around a call of a collector says."""


def exploration_type() -> ExplorationType | None:
    """The exploration type of the collector that is calling the policy; None outside of a collection.

    For policies that explore by other means than a distribution:

    >>> with set_exploration_type(ExplorationType.MODE):
    ...     exploration_type()
    <ExplorationType.MODE: 'mode'>
    """
    return _current.get()


@contextmanager
def set_exploration_type(wanted: ExplorationType) -> Iterator[None]:
    """Collect with this exploration type inside of `with`, whatever that of the collector is::

        with set_exploration_type(ExplorationType.MODE):
            stats = collector.collect(n_episode=10)

    `exploration_type()` returns it there, too. (`RayCollector` refuses it: its policies are in other processes.)
    """
    wanted = as_exploration_type(wanted, None)
    with exploring(wanted):
        token = _requested.set(wanted)
        try:
            yield
        finally:
            _requested.reset(token)


def requested_exploration_type() -> ExplorationType | None:
    """The type of the `set_exploration_type` around this call; None where there is none, and inside of a collection."""
    return _requested.get()


@contextmanager
def exploring(wanted: ExplorationType) -> Iterator[None]:
    """The context of a batch that is collected with this type; a collector that a hook or policy uses has its own."""
    tokens = _current.set(wanted), _requested.set(None)
    try:
        yield
    finally:
        _current.reset(tokens[0])
        _requested.reset(tokens[1])


def as_exploration_type(wanted: ExplorationType, mode: str | None) -> ExplorationType:
    """`wanted`, or the type that the deprecated name `mode` means where one is given.

    Raises `ValueError` where it is none of the types.
    """
    if mode is not None:
        warnings.warn("exploration_mode is deprecated; use exploration_type", DeprecationWarning, stacklevel=3)
        wanted = mode.lower()  # type: ignore[assignment]
    try:
        return ExplorationType(getattr(wanted, "value", wanted))
    except ValueError:
        names = ", ".join(kind.value for kind in ExplorationType)
        raise ValueError(f"an exploration type is one of {names}; got {wanted!r}") from None


@lru_cache
def is_distribution(kind: type) -> bool:
    """Return whether a policy's output of this type is a distribution; cached, because a failed lookup on a tensor
    is slow.
    """
    return hasattr(kind, "sample") and hasattr(kind, "log_prob")


def _is_quicker_by_rsample(distribution: Any) -> bool:
    """Return whether it is torch's, built on its `Normal`: `sample` reads each scale on the host, so it waits for
    the device, which no CUDA graph may do; `rsample` draws the same numbers.
    """
    while draws_as_torch(type(distribution)):  # type: ignore[arg-type]
        if type(distribution).__name__ == "Normal":
            return True
        distribution = getattr(distribution, "base_dist", None)
    return False


@lru_cache
def draws_as_torch(kind: type) -> bool:
    """Return whether both ways to draw from it are those of torch."""
    ways = (getattr(kind, name, None) for name in ("sample", "rsample"))
    return all((getattr(way, "__module__", None) or "").startswith("torch.distributions.") for way in ways)


def choose(action: Any, wanted: ExplorationType) -> Any:
    """The action chosen from a distribution, or from each in a dict or tuple; anything else as it is.

    Raises `ValueError` where the distribution has no mode or mean.
    """
    if isinstance(action, (dict, tuple)):
        return nest.map(lambda leaf: choose(leaf, wanted), action)
    if not is_distribution(type(action)):  # type: ignore[arg-type]
        return action
    if wanted is ExplorationType.RANDOM:
        return action.rsample().detach() if _is_quicker_by_rsample(action) else action.sample()
    try:
        return getattr(action, wanted.value)
    except (NotImplementedError, AttributeError):
        raise ValueError(
            f"{type(action).__name__} has no {wanted.value}; collect with another exploration_type, "
            "or return the action itself"
        ) from None
