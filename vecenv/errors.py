"""Every error that vecenv raises by itself.

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

from typing import Any, NamedTuple


class Partial(NamedTuple):
    """What the other envs of a failed call returned, rows in the order of `env_id`: the error's `partial`."""

    env_id: Any
    obs: Any
    rew: Any
    terminated: Any
    truncated: Any
    info: Any


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
    """Whether the env only shared a worker with the one that is to blame."""


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
