"""What facades and collectors need of a vector env beyond its public methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.engine.checks import keeps
from vecenv.engine.results import OwnStep as OwnStep
from vecenv.engine.results import Step
from vecenv.errors import Partial
from vecenv.wrappers import VectorEnvWrapper


def wait_for_all(venv: Any, timeout: float) -> bool:
    """Wait at most `timeout` seconds until all that is in flight has answered; takes nothing."""
    done = venv._enough(len(venv.waiting_id))
    venv._wait(done, max(0.0, timeout))
    return bool(done())


def autoresets(venv: Any) -> bool:
    """Whether `step(..., autoreset=True)` works: the backend can, and `step` and `reset` are those of the engine."""
    return isinstance(venv, BaseVectorEnv) and keeps(venv, BaseVectorEnv, "step", "reset") and venv._backend.autoresets


def check_halves(venv: Any, user: str) -> None:
    """TypeError where a wrapper or subclass changes `step` or `reset` but neither `send` nor `recv`, as those written
    for tianshou do: whoever steps it by halves would pass it by.
    """
    while True:
        for cls in type(venv).__mro__:
            if cls in (BaseVectorEnv, VectorEnvWrapper):
                break
            if cls.__module__.startswith("vecenv."):  # ours do the same in both
                continue
            own = vars(cls).keys()
            if own & {"step", "reset"} and not own & {"send", "recv"}:
                raise TypeError(
                    f"{cls.__name__} defines {' and '.join(sorted(own & {'step', 'reset'}))}, but {user} steps "
                    f"environments by send and recv: define these in {cls.__name__} too"
                )
        if not isinstance(venv, VectorEnvWrapper):
            return
        venv = venv.venv


def steps_plainly(venv: Any) -> bool:
    """Whether `exchange` is worth a try: `step` is that of the engine, which may do without `send` and `recv`."""
    return keeps(venv, BaseVectorEnv, "step") and venv._steps_plainly


def rounds_begun(venv: Any) -> int:
    """How many rounds the engine has started: a call that was refused is none."""
    return venv._rounds


def check_idle(venv: Any) -> None:
    """RuntimeError, with the env named, if any env is still stepping."""
    venv._check_open()
    venv._check_not_busy(None)


class PendingCall:
    """A call of a method of every env that has been started."""

    def __init__(self, venv: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        while isinstance(venv, VectorEnvWrapper) and keeps(venv, VectorEnvWrapper, "call"):
            venv = venv.venv
        self._venv = venv
        # A `call` of its own, of a wrapper or a vector env of another kind, has no halves: it is made at once.
        self._has_halves = keeps(venv, BaseVectorEnv, "call")
        if self._has_halves:
            self._call = venv._begin_call(None, "call", (name, args, kwargs))
        else:
            self._call = venv.call(name, *args, **kwargs)

    def wait(self, deadline: float | None) -> bool:
        """Wait for the answers until the deadline (of time.monotonic); returns whether they are there."""
        return not self._has_halves or self._venv._backend.await_answers(self._call, deadline)

    def answers(self) -> tuple[Any, ...]:
        """Wait for the answers of all envs and return them; raises what an env raised."""
        return tuple(self._venv._answers(self._call) if self._has_halves else self._call)


def own_infos(venv: Any, ids: Sequence[int], infos: Sequence[dict[str, Any]]) -> None:
    """Make the infos of the last batch, which is of `ids`, what the envs gave: the engine put its `env_id` there."""
    if not isinstance(venv, BaseVectorEnv):  # only used like one
        return
    for info in infos:
        info.pop("env_id", None)
    if own_ids := venv._hand_over.own_ids:
        for i, info in zip(ids, infos, strict=True):
            if i in own_ids:
                info["env_id"] = own_ids[i]


def exchange(venv: Any, actions: Any, reset: Any, autoreset: bool) -> OwnStep | None:
    """A step of all envs in one go, where `steps_plainly`; None if it has to go by halves: then nothing is done."""
    venv._check_open()
    extras = venv._exchange(actions, reset, autoreset)
    return None if extras is None else venv._hand_over.own_rows(None, extras)


def receive(venv: Any, ids: Sequence[int]) -> OwnStep:
    """The batch of `recv`, which is of `ids`."""
    if keeps(venv, BaseVectorEnv, "recv"):  # without an info for each env
        rows, _, extras = venv._receive()
        own: OwnStep = venv._hand_over.own_rows(rows, extras)
        return own
    return with_own_infos(venv, ids, venv.recv())


def with_own_infos(venv: Any, ids: Sequence[int], step: Step) -> OwnStep:
    """What `step` or `recv` of the engine returned, the same way."""
    *columns, infos = step
    own_infos(venv, ids, infos.tolist())
    return *columns, {i: info for i, info in zip(ids, infos, strict=True) if info}


def as_partial(step: OwnStep) -> Partial:
    """A step of all envs as an error brings it along."""
    obs, rew, terminated, truncated, infos = step
    ids = np.arange(len(rew))
    info = nest.object_array([{**infos.get(i, {}), "env_id": i} for i in ids.tolist()])
    return Partial(ids, obs, rew, terminated, truncated, info)


def check_engine(venv: Any) -> None:
    """TypeError for what is no vector env of ours, ValueError for one whose batches are not those of gymnasium."""
    if not hasattr(venv, "_hand_over"):
        raise TypeError(
            f"a vector env of vecenv is needed, such as ShmemVectorEnv([lambda: gym.make(...)] * 8), got {venv!r}"
        )
    if venv.is_async:
        raise ValueError("a gymnasium VectorEnv steps all envs together: make the venv without wait_num and timeout")
    if venv._hand_over._split:
        raise ValueError("a gymnasium VectorEnv returns batches of observations: make the venv without stack_obs=False")


def returns_views(venv: Any) -> bool:
    """Whether the vector env was made with copy=False."""
    return not venv._hand_over._copy


class LatestObs:
    """The latest observations of all envs, for a call that returns only those of some.

    They are in the arena; but a wrapper may have changed what came from there, and then a copy is kept.
    """

    def __init__(self, venv: Any) -> None:
        self._venv = venv
        self.is_kept = isinstance(venv, VectorEnvWrapper)
        """Whether every batch has to be noted."""
        self._kept: Any = None

    def note(self, ids: Any, obs: Any) -> None:
        """The envs `ids` have returned `obs`."""
        if not self.is_kept:
            return
        if self._kept is None:
            n = len(self._venv)
            self._kept = nest.map(lambda leaf: np.zeros((n, *leaf.shape[1:]), leaf.dtype), obs)
        nest.put(self._kept, ids, obs)

    def batch(self) -> Any:
        """The observations of all, a copy unless the vector env returns views."""
        if self.is_kept:
            return nest.map(np.copy, self._kept)
        return self._venv._hand_over.obs(None, {})
