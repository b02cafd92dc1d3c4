"""EnvAccess: everything about the envs of a vector env but stepping them: ids, spaces, attributes, seeds, frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vecenv.backends.env_worker import PerEnvBackend
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc.opcodes import IDLE
from vecenv.engine.ids import as_ids
from vecenv.engine.seeding import check_seed, seed_chain, spread_seeds

if TYPE_CHECKING:
    from vecenv.backends.base import Backend
    from vecenv.backends.host.env_host import EnvReport
    from vecenv.backends.memory.arena import Arena
    from vecenv.engine.recovery import Recovery


class EnvAccess:
    """The part of `BaseVectorEnv` that does not step; used through it only."""

    env_num: int
    num_workers: int
    """How many workers share the envs."""
    is_async: bool
    is_closed: bool
    _backend: Backend
    _reports: list[EnvReport]
    _arena: Arena
    _status: Any
    """The status byte of each env: idle, or what was asked or answered; the only record of what is in flight."""
    _recovery: Recovery
    _unreset: np.ndarray
    _all_ids: list[int]
    _all_idle: bytes
    """What `_status` is while nothing is in flight."""
    _rounds: int
    _steps: int
    _resets: int
    _dispatch_time: float
    _wait_time: float

    def _check_open(self) -> None:
        raise NotImplementedError

    # The ids of a call.

    def _as_ids(self, id: Any, env_id: Any = None) -> np.ndarray | None:
        """The ids of a call, None for all in their order."""
        if env_id is not None:
            if id is not None:
                raise TypeError("pass id or env_id, which are two names of one argument, not both")
            id = env_id
        if id is None:
            return None
        ids = as_ids(id, self.env_num)
        return None if len(ids) == self.env_num and ids.tolist() == self._all_ids else ids

    def _wrap_id(self, id: Any = None) -> list[int]:
        """The ids of a call as a list (a name that subclasses written for tianshou use)."""
        ids = self._as_ids(id)
        return list(self._all_ids) if ids is None else ids.tolist()

    def _check_not_busy(self, ids: np.ndarray | None) -> None:
        if self._status.tobytes() == self._all_idle:
            return
        busy = self._arena.status[... if ids is None else ids] != IDLE
        if busy.any():
            first = int(np.flatnonzero(busy)[0] if ids is None else ids[busy][0])
            raise RuntimeError(
                f"Cannot interact with environment {first} which is stepping now: env {first} is still stepping; "
                "wait for it with step(None)"
                + (", or pass only the ids that were returned: step(action, id)" if self.is_async else "")
            )

    # What is known of the envs, one entry each, from when they were made.

    def _reported(self, name: str) -> list[Any]:
        self._check_open()
        return [getattr(report, name) for report in self._reports]

    @property
    def action_space(self) -> list[Any]:
        """The action space of each env (None for an env without): this process's own copies, seeded by `seed`."""
        return self._reported("action_space")

    @property
    def observation_space(self) -> list[Any]:
        """The observation space of each env (None for an env without)."""
        return self._reported("observation_space")

    @property
    def metadata(self) -> list[Any]:
        """The metadata of each env."""
        return self._reported("metadata")

    @property
    def spec(self) -> list[Any]:
        """The gymnasium spec of each env, or None."""
        return self._reported("spec")

    @property
    def reward_range(self) -> list[Any]:
        """The reward range of each env; AttributeError if no env has one (gymnasium 1.0 took it away)."""
        ranges = self._reported("reward_range")
        if all(entry is None for entry in ranges):
            raise AttributeError("no env has a reward_range")
        return ranges

    # Counts and states.

    @property
    def workers(self) -> list[Any]:
        """The workers that `worker_fn` made, one an env; AttributeError for a vector env without."""
        self._check_open()
        if not isinstance(self._backend, PerEnvBackend):
            raise AttributeError(
                f"{type(self).__name__} has no workers of one env each; reach its envs by get_env_attr, set_env_attr "
                "and call"
            )
        return self._backend.workers

    @property
    def num_envs(self) -> int:
        """The number of envs, as gymnasium calls it."""
        return self.env_num

    @property
    def ready_id(self) -> list[int]:
        """The envs that can be stepped."""
        self._check_open()
        return [i for i in self._all_ids if self._status[i] == IDLE and i not in self._recovery.errors]

    @property
    def waiting_id(self) -> list[int]:
        """The envs in flight: started by `send` or an async `step`, their results not yet returned."""
        self._check_open()
        return [i for i in self._all_ids if self._status[i] != IDLE]

    @property
    def failed_id(self) -> list[int]:
        """The envs that failed and accept nothing but `reset`."""
        self._check_open()
        return [i for i in sorted(self._recovery.errors) if self._status[i] == IDLE]

    def _in_flight(self) -> int:
        return self.env_num - self._status.tobytes().count(IDLE)

    def alive(self) -> list[bool]:
        """Whether each env exists: False for those whose worker has ended. Does not wait."""
        self._check_open()
        self._backend.look()
        return [i not in self._backend.lost for i in self._all_ids]

    def stats(self) -> dict[str, Any]:
        """Where time went since the start: counts, seconds, and who is slow.

        `rounds`, `steps`, `resets`: counts of calls and of envs; `dispatch_s`, `wait_s`: seconds of this process,
        `worker_busy_s` those of each worker inside rounds; `slowest_worker`: the index of the busiest; `restarts`: of
        workers; `absorbed`: failures that on_error="restart" turned into truncated rows.
        """
        self._check_open()
        busy = self._backend.busy_time()
        return {
            "rounds": self._rounds,
            "steps": self._steps,
            "resets": self._resets,
            "dispatch_s": self._dispatch_time,
            "wait_s": self._wait_time,
            "worker_busy_s": busy,
            "slowest_worker": int(np.argmax(busy)) if busy else None,
            "restarts": self._recovery.restarts,
            "absorbed": self._recovery.absorbed,
        }

    # Attributes.

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """The attribute `key` of the envs `id` (default all), found through wrappers, as a list in the order of `id`.

        AttributeError, with the env named, if an env and its wrappers do not have it; RuntimeError for an env that is
        stepping.
        """
        return self._call(id, "get_env_attr", (key,))

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set the attribute where `get_env_attr` finds it, or on the innermost env if it is new."""
        self._call(id, "set_env_attr", (key, value))

    def call(self, name: str, /, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call the method `name` of the envs `id`, in all workers at once; what is not a method is
        returned (as gymnasium's `call`).
        """
        return self._call(id, "call", (name, args, kwargs))

    def render(self, **kwargs: Any) -> list[Any]:
        """The frame of each env, by `env.render(**kwargs)`; RuntimeError while any is stepping."""
        self._check_open()
        if self._in_flight():
            raise RuntimeError(f"Environments {self.waiting_id} are still stepping, cannot render them now.")
        return self._call(None, "render", (kwargs,))

    # Seeds.

    def seed(self, seed: Any = None) -> list[int | None]:
        """Seed every env and action space: an int s gives s, s + 1, ..., a list needs one seed an env.

        An env with a `seed` method is seeded by it, any other by `reset(seed=)`, so that it can be stepped. None does
        nothing. ValueError for a wrong count or a bad seed, before any env is touched.
        """
        self._check_open()
        self._check_not_busy(None)
        seeds = spread_seeds(seed, self._all_ids)
        self._seed_all(seeds)
        return seeds

    def set_seed(self, seed: int | None, static_seed: bool = False) -> int | None:
        """Seed the envs with a chain of seeds that starts at `seed`, and return the next one (as torchrl's `set_seed`).

        `static_seed` gives every env the same seed, and returns it.
        """
        self._check_open()
        self._check_not_busy(None)
        if seed is None:
            return None
        chain = [check_seed(seed)] * (self.env_num + 1) if static_seed else seed_chain(seed, self.env_num)
        self._seed_all(chain[:-1])
        return chain[-1]

    def _seed_all(self, seeds: Sequence[int | None]) -> None:
        chosen = [i for i, s in enumerate(seeds) if s is not None]
        if not chosen:
            return
        were_reset = self._answers(self._ask(chosen, "seed", [(seeds[i],) for i in chosen]))
        for i, was_reset in zip(chosen, were_reset, strict=True):
            if was_reset is True:
                self._unreset[i] = False
            if (space := self._reports[i].action_space) is not None:
                space.seed(seeds[i])

    def _call(self, id: Any, op: str, args: tuple[Any, ...]) -> list[Any]:
        return self._answers(self._begin_call(id, op, args))

    def _begin_call(self, id: Any, op: str, args: tuple[Any, ...]) -> Any:
        """Ask idle envs for an operation; returns what `_answers` takes."""
        self._check_open()
        ids = self._as_ids(id)
        self._check_not_busy(ids)
        asked = self._all_ids if ids is None else ids.tolist()
        return self._ask(asked, op, [args] * len(asked))

    def _ask(self, asked: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Any:
        if self._backend.lost:
            self._recovery.note_lost()
        for i in asked:
            if i in self._backend.lost:
                self._recovery.check(i)
        return self._backend.ask(asked, op, args)

    def _answers(self, call: Any) -> list[Any]:
        """Wait for the answers of all; the first failure is raised once all have answered."""
        self._backend.await_answers(call, None)
        values = self._backend.answers(call)
        if self._backend.lost:
            self._recovery.note_lost()
        for value in values:
            if isinstance(value, Failure):
                raise value.exception(self._backend.pid(value.env_id))
        return values
