"""Errors of vecenv, and warnings that point to the user's line.

    VectorEnvError(RuntimeError)
    ├── EnvStepError
    ├── WorkerDiedError
    ├── WorkerTimeoutError    also TimeoutError
    ├── EnvContractError
    │   └── ObservationError
    ├── ClosedError
    ├── NotStartedError       also AttributeError
    ├── ConcurrentCallError
    ├── InterruptedCallError
    └── SharedMemoryError     also OSError

Mistakes of the caller raise ValueError, TypeError, IndexError and RuntimeError. An env's exception keeps its class if
the exception can be pickled, or if the env is in this process. A note has the env id. If the exception comes from a
worker process, its cause is a `RemoteTraceback`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest


class Partial(NamedTuple):
    """Results of the envs that finished their step or reset, in the order of `env_id`. `error.partial` is a Partial."""

    env_id: Any
    obs: Any
    rew: Any
    terminated: Any
    truncated: Any
    info: Any

    def merge_into(self, obs: Any, id: Sequence[int] | None = None) -> tuple[Any, Any, Any, Any, Any]:
        """Return the whole batch (obs, rew, terminated, truncated, info) of the failed step.

            try:
                step = venv.step(action)
            except Exception as error:
                if getattr(error, "partial", None) is None:  # no env has returned
                    raise
                step = error.partial.merge_into(obs)
            obs, rew, terminated, truncated, info = step
            if (done := terminated | truncated).any():
                obs[done], info[done] = venv.reset(done)  # resets ended and failed envs

        A failed env gets its row of `obs`, reward 0 and `truncated` True. The info has `restarted` False, because the
        env still needs a reset.

        obs: the batch of observations before the step.
        id: the ids of the rows of `obs` (default: all envs).

        Raises ValueError if `id` and `obs` differ in length or lack an env of `env_id`, and TypeError if infos or
        rewards are dicts (multi-agent envs).

        >>> obs, one = np.array([[1.0], [2.0]]), np.ones(1)
        >>> partial = Partial(np.array([1]), one[None] * 7, one, one > 9, one > 9, np.array([{"env_id": 1}]))
        >>> obs, rew, terminated, truncated, info = partial.merge_into(obs)
        >>> obs.tolist(), rew.tolist(), truncated.tolist()
        ([[1.0], [7.0]], [0.0, 1.0], [True, False])
        """
        if not isinstance(self.info, np.ndarray) or not hasattr(self.rew, "shape"):
            raise TypeError(
                "merge_into makes batches of arrays, got a partial whose infos or rewards are dicts; take its rows by "
                "env_id"
            )
        n = len(next(nest.leaves(obs)))
        ids = list(range(n)) if id is None else [int(i) for i in id]
        row_of = {i: row for row, i in enumerate(ids)}
        if len(ids) != n or (strange := [i for i in self.env_id.tolist() if i not in row_of]):
            found = f"{len(ids)} ids" if len(ids) != n else f"no row for env {strange[0]}"
            raise ValueError(
                f"obs has {n} rows but {found}: pass the batch of obs from before the step, and id= if only "
                "some envs stepped"
            )
        rows = [row_of[i] for i in self.env_id.tolist()]
        merged = nest.map(lambda leaf: leaf.clone() if hasattr(leaf, "clone") else np.array(leaf), obs)
        # `take` with n zeros makes n rows in the same library and on the same device.
        rew, terminated, truncated = nest.take((self.rew, self.terminated, self.truncated), np.zeros(n, np.int64))
        rew[:], terminated[:], truncated[:] = 0, False, True
        info = nest.object_array([{"env_id": i, "restarted": False} for i in ids])
        nest.put((merged, rew, terminated, truncated), rows, (self.obs, self.rew, self.terminated, self.truncated))
        info[rows] = self.info
        return merged, rew, terminated, truncated, info


class VectorEnvError(RuntimeError):
    """Base of vecenv's errors.

    Attributes: `env_id`, `env_ids` (all affected envs), `op` ("step", "reset", ...), `pid` of the worker, `bystander`,
    and `partial` (a `Partial` with the results of the remaining envs, or None).
    """

    env_id: int | None = None
    env_ids: tuple[int, ...] = ()
    op: str | None = None
    pid: int | None = None
    partial: Partial | None = None
    bystander: bool = False
    """True if the env only shares a worker with the env that failed."""


RESTARTS = "starts it again"


def how_to_reset(i: int, effect: str = "makes it usable again") -> str:
    return f"reset() {effect} (or reset({i}), where `reset` takes ids)"


def not_reset(i: int) -> RuntimeError:
    return RuntimeError(f"env {i} has not been reset, or its episode is over; call reset({i}) first (strict=True)")


def is_bystander(error: BaseException) -> bool:
    return isinstance(error, VectorEnvError) and error.bystander


class EnvStepError(VectorEnvError):
    """An env raised SystemExit, or an exception that cannot be pickled. The message has the class and text."""


class WorkerDiedError(VectorEnvError):
    """A worker process ended. `reset` starts a new worker with new envs."""


class WorkerTimeoutError(VectorEnvError, TimeoutError):
    """An env exceeded `step_timeout`, or a worker did not start in time. The message has the env's stack, if known."""


class EnvContractError(VectorEnvError):
    """An env returned a value that the gymnasium API does not allow."""


class ObservationError(EnvContractError):
    """An observation does not fit the shape, keys or dtype of its observation space, for example 300 for uint8."""


CLOSED_MEANWHILE = "the vector env was closed while this call waited for its envs"


class ClosedError(VectorEnvError):
    """The vector env is closed, or belongs to a different process."""


class NotStartedError(VectorEnvError, AttributeError):
    """A vector env with `lazy=True` has no envs yet. `start()` or `reset()` makes them."""


class ConcurrentCallError(VectorEnvError):
    """A method was called before another call of the vector env has ended, for example in a different thread."""


class InterruptedCallError(VectorEnvError):
    """An exception, such as Ctrl-C, has ended an earlier call before it was complete. Call `reset()` to go on."""


class SharedMemoryError(VectorEnvError, OSError):
    """The memory for the batch could not be reserved."""


class OneEnvPerProcess(ValueError):
    """A worker runs several envs, and one needs a worker of its own.

    The env is from a package whose envs share state in their process, or is a coroutine env among ordinary envs.
    """


class RemoteTraceback(Exception):
    """Cause of a worker's exception. The message is the worker's traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, if the class allows this."""
    with contextlib.suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def is_repeated(info: Mapping[str, Any]) -> bool:
    """Return True if on_error="restart" made `info` or its `final_info` for a failed step.

    Such a step repeats the previous observation.
    """
    last = info.get("final_info", info)
    return isinstance(last, Mapping) and last.get("restarted") is True and "error" in last


_PACKAGES = ("vecenv.", "collector.")


def warn_caller(text: str) -> None:
    """Show a RuntimeWarning at the line that called vecenv or collector."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGES):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class WorkerWarnings(list[str]):
    """Warnings of workers. Only the first call of `show` shows a warning.

    Call `show` after reading the results, because a filter may turn the warning into an exception.
    """

    _shown = False

    def show(self) -> None:
        text = self[0]
        self.clear()
        if not self._shown:
            self._shown = True
            warn_caller(text)
