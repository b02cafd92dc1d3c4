"""Driver: steps a vector env for a facade: by its engine unless that bypasses a wrapper, else by its methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenv.base import BaseVectorEnv, engine_of, overrides_nothing
from vecenv.engine.results import OwnStep, Step
from vecenv.wrappers import resets_in_step


class Driver:
    """Steps and resets `venv`, with the infos that the envs returned, by env id: without the `env_id` of the engine.

    From now on its envs get actions in the types that the caller passes, as in the libraries of the facades.

    `engine` is that of the vector env where no wrapper or subclass comes before it, else None.
    """

    def __init__(self, venv: Any) -> None:
        self._venv = venv
        self.engine = engine_of(venv)
        if (engine := getattr(venv, "engine", None)) is not None:  # also below wrappers
            engine.actions.casts = False
        self.autoresets = resets_in_step(venv)
        """Whether a step may reset envs whose episode it ends."""
        self._receives = overrides_nothing(venv, "recv")
        self._ids = range(len(venv)) if hasattr(venv, "__len__") else range(venv.env_num)

    def step(self, actions: Any, autoreset: bool) -> OwnStep:
        """A step of all envs."""
        if self.engine is not None:
            taken = self.engine.exchange(actions, None, autoreset)
            return self.engine.results.own_rows(None, taken)
        step = self._venv.step(actions, autoreset=True) if autoreset else self._venv.step(actions)
        return self._own(self._ids, step)

    def receive(self, ids: Sequence[int]) -> OwnStep:
        """The batch of `recv`, which is of `ids`."""
        if self._receives:  # without an info for each env
            rows, _, taken = self._venv.engine.receive()
            own: OwnStep = self._venv.engine.results.own_rows(rows, taken)
            return own
        return self._own(ids, self._venv.recv())

    def reset(self, ids: Sequence[int] | None, **kwargs: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Reset these envs (None: all): (obs, infos), one info an env."""
        obs, rows = self._venv.reset(ids, **kwargs)
        infos = list(rows)
        self._restore_infos(self._ids if ids is None else ids, infos)
        return obs, infos

    def _own(self, ids: Sequence[int], step: Step) -> OwnStep:
        *columns, infos = step
        self._restore_infos(ids, infos.tolist())
        return *columns, {i: info for i, info in zip(ids, infos, strict=True) if info}

    def _restore_infos(self, ids: Sequence[int], infos: Sequence[dict[str, Any]]) -> None:
        """Make the infos of the last batch, of the envs `ids`, what these returned: the engine added its `env_id`."""
        if not isinstance(self._venv, BaseVectorEnv):  # only used like one
            return
        for info in infos:
            info.pop("env_id", None)
        if own_ids := self._venv.engine.results.own_ids:
            for i, info in zip(ids, infos, strict=True):
                if i in own_ids:
                    info["env_id"] = own_ids[i]
