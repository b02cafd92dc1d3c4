"""Attributes, methods and frames of the envs in a gymnasium VectorEnv, as far as it lets others reach them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any


class GymnasiumCalls:
    """What `ENV_CALLS` are for envs one by one, for those of `envs`; `known` are attributes that they report.

    AttributeError for what the VectorEnv has no way to, ValueError where it has one for all its envs only.
    """

    def __init__(self, envs: Any, known: dict[str, Any]) -> None:
        self._envs, self._known = envs, known

    def run(self, ids: Sequence[int], op: str, args: tuple[Any, ...]) -> list[Any]:
        """What each of these envs returns for the same arguments."""
        runs: dict[str, Callable[..., Sequence[Any]]] = {
            "get_env_attr": self._get,
            "set_env_attr": self._set,
            "call": self._call,
            "render": self._render,
        }
        if op not in runs:
            raise NotImplementedError(f"{self._name} has no {op} of single envs")
        values = runs[op](ids, *args)
        return [values[i] for i in ids]

    @property
    def _name(self) -> str:
        return type(self._envs).__name__

    def _get(self, ids: Sequence[int], name: str) -> Sequence[Any]:
        if name in self._known:
            values: Sequence[Any] = [self._known[name]] * self._envs.num_envs
        elif hasattr(self._envs, "get_attr"):
            values = self._envs.get_attr(name)
        else:
            values = [getattr(self._envs, name)] * self._envs.num_envs
        return values

    def _set(self, ids: Sequence[int], name: str, value: Any) -> Sequence[None]:
        self._check(ids, "set_attr")
        n = self._envs.num_envs
        self._envs.set_attr(name, [value] * n)
        return [None] * n

    def _call(self, ids: Sequence[int], name: str, args: Any, kwargs: Any) -> Sequence[Any]:
        self._check(ids, "call")
        values: Sequence[Any] = self._envs.call(name, *args, **kwargs)
        return values

    def _check(self, ids: Sequence[int], method: str) -> None:
        if not hasattr(self._envs, method):
            raise AttributeError(f"the envs of {self._name} cannot be reached: it has no {method}")
        if len(ids) < self._envs.num_envs:
            raise ValueError(f"{self._name}.{method} is for all its {self._envs.num_envs} envs, got {list(ids)}")

    def _render(self, ids: Sequence[int], kwargs: Any) -> Sequence[Any]:
        frames = self._envs.render(**kwargs)
        if frames is None or not len(frames):
            raise ValueError(f"{self._name} renders no frames: make it with render_mode='rgb_array'")
        n = self._envs.num_envs
        return [copy.copy(frames[i * len(frames) // n]) for i in range(n)]  # agents of one game share a frame
