"""Operations on envs besides step and reset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from vecenv.backends.backend import Backend, EnvCall
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.engine.mark import Mark, is_one_call
from vecenv.engine.recovery import Recovery
from vecenv.engine.status import EnvStatus
from vecenv.errors import VectorEnvError


class EnvCalls:
    def __init__(
        self, backend: Backend, recovery: Recovery, reports: Sequence[EnvReport], status: EnvStatus, mark: Mark
    ) -> None:
        self._backend, self._recovery, self._reports, self._status = backend, recovery, reports, status
        self.mark, self.refuse = mark, status.refuse
        self.explain = partial(mark.explain, unanswered=status.unanswered_ids)

    @is_one_call
    def start(self, ids: np.ndarray | None, op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        return self._start(ids, op, args)

    @is_one_call
    def wait(self, call: EnvCall, deadline: float | None) -> bool:
        self.mark.take()
        self._backend.wait(call.done, deadline)
        return call.done()

    @is_one_call
    def finish(self, call: EnvCall) -> list[Any]:
        return self._finish(call)

    @is_one_call
    def run(self, ids: np.ndarray | None, op: str, args: tuple[Any, ...]) -> list[Any]:
        return self._finish(self._start(ids, op, [args] * len(self._status.all_ids if ids is None else ids)))

    def _start(self, ids: np.ndarray | None, op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        self._status.check_idle(ids)
        asked = self._status.all_ids if ids is None else ids.tolist()
        if self._backend.lost:
            self._recovery.record_lost()
            for i in asked:
                if i in self._backend.lost:
                    self._recovery.check(i)
        self.mark.take()
        try:
            return self._backend.call(asked, op, args)
        except (TypeError, ValueError):  # the arguments cannot be sent, so no worker got a message
            self.mark.owner = 0
            raise

    def _finish(self, call: EnvCall) -> list[Any]:
        if call.discarded:
            raise VectorEnvError(f"an interrupted call has discarded the pending call ({call.op}); make it again")
        self.mark.take()
        if not call.done():
            self._backend.wait(call.done, None)
        values = call.values()
        self._recovery.record_lost()
        for value in values:
            if isinstance(value, Failure):
                error = self._recovery.exception_of(value)
                self.mark.owner = 0
                raise error
        return values

    @is_one_call
    def set_states(self, ids: np.ndarray | None, states: Sequence[Any]) -> None:
        """Set states. These envs then need no reset, even if they had failed."""
        asked = self._status.all_ids if ids is None else ids.tolist()
        try:
            count = len(states)
        except TypeError:
            raise TypeError(f"set_state() takes a list with one state per env, got {states!r}") from None
        if count != len(asked):
            raise ValueError(f"set_state() got {count} states for {len(asked)} envs; pass one for each env")
        self._finish(self._start(ids, "set_state", [(state,) for state in states]))
        self._recovery.discard_errors(asked)
        for i in asked:
            self._status.record_reset(i)

    @is_one_call
    def seed(self, seeds: Sequence[int | None]) -> list[int]:
        """Seed envs and action spaces (`None`: no seed). Return the ids of envs that only a reset can seed."""
        chosen = [i for i, seed in enumerate(seeds) if seed is not None]
        if not chosen:
            return []
        want_reset = self._finish(self._start(np.array(chosen), "seed", [(seeds[i],) for i in chosen]))
        for i, wants_reset in zip(chosen, want_reset, strict=True):
            if (space := self._reports[i].action_space) is not None:
                space.seed(seeds[i])
            if wants_reset is None:  # the backend has made a new env with the seed
                self._status.record_reset(i, needs_reset=True)
        return [i for i, wants_reset in zip(chosen, want_reset, strict=True) if wants_reset]


def of_engine(read: Callable[[Any], list[Any]], doc: str) -> Any:

    def get(venv: Any) -> list[Any]:
        venv.engine.check_open()
        return read(venv.engine)

    return property(get, doc=doc)


def reported(name: str, doc: str) -> Any:
    return of_engine(lambda engine: [getattr(report, name) for report in engine.reports], doc)


class EngineProperties:
    """Properties of a vector env: lists with an entry per env, or of env ids."""

    action_space = reported(
        "action_space", "Action space of each env, or None. These spaces are copies, which `seed` seeds too."
    )
    observation_space = reported("observation_space", "Observation space of each env, or None.")
    metadata = reported("metadata", "Metadata of each env.")
    spec = reported("spec", "Spec of each env (gymnasium's), or None.")

    learning_wrappers = reported(
        "learning", "Names of each env's wrappers and transforms that updated statistics when it was made, or None."
    )

    @property
    def splits_obs(self: Any) -> bool:
        """True if observations come as an object array of dicts or tuples, because of `stack_obs=False`."""
        self.engine.check_open()
        splits: bool = self.engine.results.splits
        return splits

    @property
    def reward_range(self: Any) -> list[Any]:
        """Reward range of each env, or None. Raises AttributeError if no env has one (as in gymnasium 1.0)."""
        self.engine.check_open()
        if all(report.reward_range is None for report in self.engine.reports):
            raise AttributeError("no env has a reward_range")
        return [report.reward_range for report in self.engine.reports]

    ready_id = of_engine(
        lambda engine: engine.status.ready_ids, "Ids of the envs that are not in flight and have not failed."
    )
    waiting_id = of_engine(
        lambda engine: engine.status.waiting_ids, "Ids of the envs in flight, whose results are not returned yet."
    )
    failed_id = of_engine(lambda engine: engine.status.failed_ids, "Ids of the failed envs, which need `reset`.")
