"""`EnvStatistics`: running statistics of a collector's envs, for its `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vecenv import EnvCreator


class EnvStatistics:
    """Statistics of the transforms around a vector env, and of the `EnvCreator`s among its functions.

    source: first argument of the collector. env: its vector env.
    """

    def __init__(self, source: Any, env: Any) -> None:
        makers = source if isinstance(source, Sequence) else [source]
        creators = dict.fromkeys(each for each in makers if isinstance(each, EnvCreator))
        self._env, self._creators = env, {f"creator.{i}": each for i, each in enumerate(creators)}

    def state_dict(self) -> dict[str, Any]:
        """Return copies: the `state_dict` of the vector env, and an entry "creator.k" for each `EnvCreator`."""
        states = {name: each.state_dict() for name, each in self._creators.items()}
        own = self._env.state_dict() if hasattr(self._env, "state_dict") else {}
        return own | {name: state for name, state in states.items() if state}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the entries differ from this object's entries."""
        if state.keys() != (own := self.state_dict()).keys():
            raise ValueError(
                f"the state has the statistics {sorted(state)}, and this collector has {sorted(own)}: make it with "
                "the same transforms, or pass strict=False to load only the weights and counts"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.state_dict().keys() != state.keys():
            return
        for name, creator in self._creators.items():
            if name in state:
                creator.load_state_dict(state[name])
        if own := {name: each for name, each in state.items() if name not in self._creators}:
            self._env.load_state_dict(own)
