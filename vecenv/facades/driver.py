"""Driver: steps a vector env for a facade: by its engine unless that bypasses a wrapper, else by its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.base import BaseVectorEnv, engine_of, overrides_nothing
from vecenv.engine.arguments import check_options
from vecenv.engine.results import OwnStep, Step
from vecenv.wrappers import resets_in_step

Restore = Callable[[Any], Any]
NOT_OFFERED = {
    "wait_num": "all envs step together here; use a vecenv class directly, whose step returns those that are ready",
    "timeout": "all envs step together; step_timeout ends an env that hangs, gymnasium's step_wait(timeout) a wait",
    "stack_obs": "observations are always stacked here",
    "worker_fn": "make a BaseVectorEnv(env_fns, worker_fn), and GymnasiumVectorEnv(venv) or SB3VecEnv(venv) of it",
    "backend": "make a BaseVectorEnv(env_fns, backend=...), and GymnasiumVectorEnv(venv) or SB3VecEnv(venv) of it",
}
"""Options of vector envs that a facade which makes its own has no use for, and what to do instead."""


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
        """True if a step may reset envs whose episode it ends."""
        self._receives = overrides_nothing(venv, "recv")
        self._ids = range(len(venv))

    def step(self, actions: Any, autoreset: bool) -> OwnStep:
        """Step all envs."""
        if self.engine is not None:
            taken = self.engine.exchange(actions, None, autoreset)
            return self.engine.results.own_rows(None, taken)
        step = self._venv.step(actions, autoreset=True) if autoreset else self._venv.step(actions)
        return self._own(self._ids, step)

    def receive(self, ids: Sequence[int]) -> OwnStep:
        """Receive the batch of `recv`, which is of `ids`."""
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
        """Take the `env_id` that the engine added out of the infos of the envs `ids`."""
        if not isinstance(self._venv, BaseVectorEnv):  # only used like one
            return
        for info in infos:
            info.pop("env_id", None)
        if own_ids := self._venv.engine.results.own_ids:
            for i, info in zip(ids, infos, strict=True):
                if i in own_ids:
                    info["env_id"] = own_ids[i]


class EndedStep:
    """A step that ended the episodes of the envs `ids`, as SAME_STEP has it: its rows and infos are of the next ones.

    `last_obs` and `last_infos` are the last of the ended episodes, in the order of `ids`; `restore` is the
    `int_restorer` of the observation. The envs `left` were not reset in the step: it is complete after `begin`.
    """

    def __init__(self, step: OwnStep, ids: Sequence[int], left: Sequence[int], restore: Restore | None) -> None:
        self.ids, self.left = ids, left
        obs, rew, terminated, truncated, by_id = step
        self.infos = infos = dict(by_id.items())
        self.step = obs, rew, terminated, truncated, infos
        self.last_obs = [_own_row(obs, i) if i in left else infos[i].pop("final_obs") for i in ids]
        if restore is not None:
            self.last_obs = [*map(restore, self.last_obs)]
        self.last_infos = [infos.get(i, {}) if i in left else infos[i].pop("final_info") for i in ids]

    def begin(self, first_obs: Any, first_infos: Mapping[int, dict[str, Any]]) -> None:
        """Note the results of the reset of the envs `left`."""
        nest.put(self.step[0], self.left, first_obs)
        self.infos.update({i: first_infos.get(i, {}) for i in self.left})


def _own_row(obs: Any, i: int) -> Any:
    """The observation of one env, apart from the batch."""
    return nest.map(lambda leaf: leaf[i].copy() if leaf.dtype != object else leaf[i], obs)


def int_restorer(space: Any) -> Restore | None:
    """A function that makes Python ints of the Discrete parts of one observation of `space`, as envs return them; None
    where there are none.

    Only numpy's default integers are made Python's: a Discrete space of another dtype has been given that on purpose,
    and observations that a wrapper has changed stay as they are.

    >>> restore = int_restorer(spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1))))
    >>> restore((np.int64(2), np.float32(0.5)))
    (2, np.float32(0.5))
    """
    if isinstance(space, spaces.Discrete):
        return _as_int if space.dtype == np.int64 else None
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return None
    children: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    found = {key: restore for key, child in children.items() if (restore := int_restorer(child))}

    def restore_parts(obs: Any) -> Any:
        if isinstance(space, spaces.Dict) and isinstance(obs, dict):
            return {key: found[key](part) if key in found else part for key, part in obs.items()}
        if isinstance(space, spaces.Tuple) and isinstance(obs, tuple) and len(obs) == len(children):
            return tuple(found[i](part) if i in found else part for i, part in enumerate(obs))
        return obs

    return restore_parts if found else None


def _as_int(value: Any) -> Any:
    return int(value) if value.__class__ is np.int64 else value


def check_facade_options(facade: type[Any], kind: type[Any], options: Mapping[str, Any], **not_offered: str) -> None:
    """TypeError for options that neither the class `facade`, which makes a vector env of the class `kind`, nor that
    takes, before any env is made; `not_offered` adds to NOT_OFFERED.
    """
    not_offered |= NOT_OFFERED
    for name in sorted(not_offered.keys() & options.keys()):
        raise TypeError(f"{facade.__name__} has no argument {name!r}: {not_offered[name]}")
    check_options(facade, options, facade, kind, hidden=("venv", *not_offered))
