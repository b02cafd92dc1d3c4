"""Errors that vecenv raises, and warnings that point to the user's line.

    VectorEnvError(RuntimeError)
    ├── EnvStepError          the env's code raised, and its own exception could not travel
    ├── WorkerDiedError       a worker process is gone
    ├── WorkerTimeoutError    an env has been busy for longer than `step_timeout`   (also TimeoutError)
    ├── EnvContractError      an env broke the gymnasium API
    │   └── ObservationError  an observation does not fit the env's observation space
    ├── ClosedError           the vector env is closed, or belongs to another process
    ├── NotStartedError       the vector env has lazy=True and no envs yet                (also AttributeError)
    ├── ConcurrentCallError   another thread waits for the vector env
    └── SharedMemoryError     the system refused the memory for the batch             (also OSError)

Mistakes of the caller are plain ValueError, TypeError, IndexError and RuntimeError. An exception that the env raised
arrives as itself wherever it survives a pickle round trip: same class, the worker's traceback as its cause, the env
id in a note.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest


class Partial(NamedTuple):
    """Results of the other envs of a failed call, rows in the order of `env_id`: the error's `partial`.

    None in its place: no env has returned. `merge_into` makes a whole batch of it.
    """

    env_id: Any
    obs: Any
    rew: Any
    terminated: Any
    truncated: Any
    info: Any

    def merge_into(self, obs: Any, id: Sequence[int] | None = None) -> tuple[Any, Any, Any, Any, Any]:
        """The whole batch (obs, rew, terminated, truncated, info) of the step that failed, to go on with.

            try:
                step = venv.step(action)
            except Exception as error:
                if getattr(error, "partial", None) is None:  # no env has returned
                    raise
                step = error.partial.merge_into(obs)
            obs, rew, terminated, truncated, info = step
            if (done := terminated | truncated).any():
                obs[done], info[done] = venv.reset(done)  # restarts what failed

        Rows of envs that have returned are theirs, flags included. Those of the others are the end of an episode that
        was cut off, as with `on_error="restart"`: their row of `obs`, the batch from before the step, the reward 0,
        `truncated` True, and an info with `env_id` and `restarted` False, as they still have to be reset.

        `id`: the envs of the step in the order of the rows of `obs`, if not all. Nothing is written to `obs`.
        ValueError for another number of rows or other envs; TypeError for the `partial` of a vector env of many agents
        or of another library's form, whose batches are dicts.

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
                f"obs has {n} rows but {found}: pass the batch of obs from before the step, and id= for a step of some"
            )
        rows = [row_of[i] for i in self.env_id.tolist()]
        merged = nest.map(lambda leaf: leaf.clone() if hasattr(leaf, "clone") else np.array(leaf), obs)
        # Copies of rows, of the library and the device of the columns.
        rew, terminated, truncated = nest.take((self.rew, self.terminated, self.truncated), np.zeros(n, np.int64))
        rew[:], terminated[:], truncated[:] = 0, False, True
        info = nest.object_array([{"env_id": i, "restarted": False} for i in ids])
        nest.put((merged, rew, terminated, truncated), rows, (self.obs, self.rew, self.terminated, self.truncated))
        info[rows] = self.info
        return merged, rew, terminated, truncated, info


class VectorEnvError(RuntimeError):
    """Base of the errors below.

    Attributes: `env_id` (int, or None), `env_ids` (all the envs concerned), `op` ("step", "reset", ...), `pid` of the
    worker or None, `bystander`, and `partial`: a `Partial` with the results that the other envs of the same call
    returned, or None.
    """

    env_id: int | None = None
    env_ids: tuple[int, ...] = ()
    op: str | None = None
    pid: int | None = None
    partial: Partial | None = None
    bystander: bool = False
    """True if the env only shared a worker with the one that is to blame."""


class EnvStepError(VectorEnvError):
    """The code of an env raised, and its exception could not be carried over; the message has its class and text."""


class WorkerDiedError(VectorEnvError):
    """The process that hosts an env ended; the envs that it hosted can be restarted by `reset`."""


class WorkerTimeoutError(VectorEnvError, TimeoutError):
    """An env exceeded `step_timeout` (or a worker did not start in time); the message shows where it is."""


class EnvContractError(VectorEnvError):
    """An env returned something that the gymnasium API does not allow."""


class ObservationError(EnvContractError):
    """An observation does not have the shape, dtype, keys or value range of the env's observation space."""


CLOSED_MEANWHILE = "the vector env was closed while this call waited for its envs"
"""The text of ClosedError in a call that a close by another thread, or by the handler of a signal, has ended."""


class ClosedError(VectorEnvError):
    """A method was called on a closed vector env, or in a process that does not own it."""


class NotStartedError(VectorEnvError, AttributeError):
    """A vector env with `lazy=True` was used before its envs were made; `start()` or `reset()` makes them."""


class ConcurrentCallError(VectorEnvError):
    """A method was called while another thread waits for the vector env: one at a time may use it."""


class SharedMemoryError(VectorEnvError, OSError):
    """The memory for the batch could not be reserved."""


class RemoteTraceback(Exception):
    """The cause of an exception that came from a worker: its message is the traceback there."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


_OURS = ("vecenv.", "collector.")


def warn_caller(text: str) -> None:
    """Give a RuntimeWarning that points to the line of the program that called vecenv or collector."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class WorkerWarnings(list[str]):
    """Warnings of the workers of a vector env, of which only the first is shown: the others repeat it.

    They are collected where results arrive and shown where results are taken, because there no result is lost if a
    filter turns the warning into an exception.
    """

    _shown = False

    def show(self) -> None:
        text = self[0]
        self.clear()
        if not self._shown:
            self._shown = True
            warn_caller(text)
