"""NotStarted: stands for the engine of a vector env with `lazy=True` until its envs are made."""

from __future__ import annotations

from typing import NoReturn

from vecenv.errors import NotStartedError


class NotStarted:
    """Raises NotStartedError for whatever an engine does; closing does nothing."""

    closed = True

    def __init__(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        """Nothing is open."""

    def __getattr__(self, attribute: str) -> NoReturn:
        raise NotStartedError(f"this {self._name} has lazy=True and no envs yet: call start() or reset() first")
