"""`Failure`: an env's exception, described in strings that any process can unpickle.

A worker also sends the pickled exception, if unpickling keeps its class and text.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from vecenv.errors import EnvStepError, RemoteTraceback, VectorEnvError, add_note

TEXT_LIMIT = 64 * 1024
BLOB_LIMIT = 1024 * 1024


@dataclass
class Failure:
    env_id: int
    op: str
    type_name: str
    text: str
    trace: str
    blob: bytes | None = None
    error: BaseException | None = None
    """Exception object, if this process has it. Otherwise, `blob` may have the pickled exception."""
    began: bool = True
    """False if the env has certainly not begun the operation."""
    stepped: bool = False
    """True if a step succeeded and its result is in the arena, but the reset after this step failed."""

    def exception(self, pid: int | None = None) -> BaseException:
        """Return the exception for the caller: the env's exception if possible, else EnvStepError."""
        error = self.error or self._rebuilt() or self.as_step_error()
        where = f"env {self.env_id}, {self.op}()" + ("" if pid is None else f", worker pid {pid}")
        try:
            error.partial = None  # type: ignore[attr-defined]
            if self.error is None:
                error.__cause__ = RemoteTraceback(self.trace)
        except Exception:  # an exception that refuses attributes cannot carry the partial results
            error = self.as_step_error()
            error.__cause__ = self.error or RemoteTraceback(self.trace)
        add_note(error, where)
        if isinstance(error, VectorEnvError):
            error.env_id, error.op, error.pid = self.env_id, self.op, pid
        return error

    def as_step_error(self) -> EnvStepError:
        return EnvStepError(f"env {self.env_id} failed in {self.op}(): {self.type_name}: {self.text}")

    def _rebuilt(self) -> BaseException | None:
        if self.blob is None:
            return None
        try:
            error = pickle.loads(self.blob)
        except KeyboardInterrupt:
            raise
        except BaseException:  # this process cannot import the class, or the class raises
            return None
        return error if isinstance(error, Exception) else None


def capture(error: BaseException, env_id: int, op: str, local: bool) -> Failure:
    """Describe `error`. If `local`, the env is in the caller's process, so keep the exception itself.

    Exceptions that end a program (SystemExit, ...) become EnvStepError.
    """
    trace = _shortened("".join(traceback.format_exception(error)))
    failure = Failure(env_id, op, type(error).__name__, str(error)[:TEXT_LIMIT], trace)
    if not isinstance(error, Exception):
        if local:
            failure.error = failure.as_step_error()
            failure.error.__cause__ = error
    elif local:
        failure.error = error
    else:
        failure.blob = _blob(error)
    return failure


def died_failure(env_id: int, op: str, error: BaseException, began: bool = True) -> Failure:
    return Failure(env_id, op, type(error).__name__, str(error), "", error=error, began=began)


def read_value(blob: Any, env_id: int, op: str, unpack: Callable[[Any], Any] = pickle.loads) -> Any:
    try:
        return unpack(blob)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{op} on env {env_id}: the result cannot be unpickled in this process: {describe(error)}"
        return Failure(env_id, op, "TypeError", text, "", error=TypeError(text))


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def one_of(env_ids: Sequence[int]) -> str:
    return f"env {env_ids[0]}" if len(env_ids) == 1 else f"one of the envs {list(env_ids)}"


def _shortened(text: str) -> str:
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT else f"{text[:half]}\n[...]\n{text[-half:]}"


def _blob(error: Exception) -> bytes | None:
    """Return the pickled exception, or `None` if it is large, or if unpickling changes its class or text."""
    # Try pickle first. Cloudpickle copies the script's classes, and `except` in the parent does not match the copies.
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with contextlib.suppress(BaseException):  # user code may raise anything
            blob = dumps(error)
            if len(blob) > BLOB_LIMIT:
                return None
            copy = pickle.loads(blob)
            if type(copy) is type(error) and str(copy) == str(error):
                return blob
    return None
