"""`Failure`: an env's exception, described in strings that any process can read.

The exception is sent as well if it survives pickling in the worker.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from vecenv.errors import EnvStepError, RemoteTraceback, VectorEnvError

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
    """Exception, if it was raised in this process."""
    began: bool = True
    """False if the operation has certainly not begun."""
    stepped: bool = False
    """True if the step succeeded and the row is written, but the reset afterwards failed."""

    def exception(self, pid: int | None = None) -> BaseException:
        """Return the exception to raise in the caller's process: the env's exception or EnvStepError."""
        error = self.error or self._rebuilt() or self.as_step_error()
        where = f"env {self.env_id}, {self.op}()" + ("" if pid is None else f", worker pid {pid}")
        try:
            error.partial = None  # type: ignore[attr-defined]
            if self.error is None:
                error.__cause__ = RemoteTraceback(self.trace)
        except Exception:  # such an exception could not carry the results of other envs
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
        except BaseException:  # the class cannot be imported here, or its code fails
            return None
        return error if isinstance(error, Exception) else None


def capture(error: BaseException, env_id: int, op: str, local: bool) -> Failure:
    """Describe `error`. If `local`, keep the exception, for a host in the caller's process.

    Exceptions that end a program (SystemExit, ...) become EnvStepError.
    """
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    failure = Failure(env_id, op, type(error).__name__, _text(error), _shortened(trace))
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


def read_value(blob: bytes, env_id: int, op: str) -> Any:
    try:
        return pickle.loads(blob)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = f"{op} on env {env_id}: what it returned cannot be read here: {describe(error)}"
        return Failure(env_id, op, "TypeError", text, "", error=TypeError(text))


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def one_of(env_ids: Sequence[int]) -> str:
    return f"env {env_ids[0]}" if len(env_ids) == 1 else f"one of the envs {list(env_ids)}"


def _shortened(text: str) -> str:
    half = TEXT_LIMIT // 2
    return text if len(text) <= TEXT_LIMIT else f"{text[:half]}\n[...]\n{text[-half:]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_LIMIT]
    except Exception as broken:  # a __str__ that raises must not hide the failure
        return f"<no text: str() raised {type(broken).__name__}>"


def _blob(error: Exception) -> bytes | None:
    """Return the pickled exception, or `None` if unpickling changes its class or text."""
    # Pickle by name first, because cloudpickle would copy a class of the script that a forked worker inherited.
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with contextlib.suppress(BaseException):  # pickling runs user code, which may raise anything
            blob = dumps(error)
            if len(blob) > BLOB_LIMIT:
                return None
            copy = pickle.loads(blob)
            if type(copy) is type(error) and str(copy) == str(error):
                return blob
    return None


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, if the class allows this."""
    if note not in getattr(error, "__notes__", ()):
        with contextlib.suppress(Exception):
            error.add_note(note)
