"""`AsyncCalls`: the methods of a gymnasium `VectorEnv` except step and reset."""

from __future__ import annotations

import math
import multiprocessing
import time
from typing import Any

import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import VectorEnv

from vecenv.engine.engine import Engine
from vecenv.engine.mark import Layer
from vecenv.facades.stepper import Stepper

RESET, STEP, CALL = "reset", "step", "call"
AnyVectorEnv = VectorEnv[Any, Any, np.ndarray]
"""Public facades name this class as a direct base, because skrl looks only at direct bases."""


def as_deadline(timeout: Any) -> float | None:
    if timeout is None:
        return None
    is_number = isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool)
    if not is_number or math.isnan(timeout):
        raise ValueError(f"timeout must be a number of seconds or None, got {timeout!r}")
    return time.monotonic() + float(timeout)


class AsyncCalls(Layer, AnyVectorEnv):
    """Base class of GymnasiumVectorEnv.

    Between `x_async` and the end of `x_wait`, calls except `close` raise the errors of gymnasium's AsyncVectorEnv.
    """

    # Defaults for `close`, which gymnasium before 1.3 calls in `__del__`, even if the constructor raised.
    venv: Any = None
    _stepper: Stepper
    _pending: str | None = None
    _called: Any = None
    """Call that `call_async` started: (engine, call), or (None, values) if `call_async` has finished the call."""
    _refused_calls = frozenset({"reset", "step", "close", "_setattr", "_check_spaces"})

    def _check_can_start(self, name: str) -> None:
        self._check_open()
        if self._pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to complete.", self._pending
            )

    def _check_pending(self, call: str) -> None:
        self._check_open()
        if self._pending != call:
            raise NoAsyncCallError(f"Calling `{call}_wait` without any prior call to `{call}_async`.", call)

    def _wait_until(self, call: str, deadline: float | None) -> None:
        if deadline is not None and not self._has_answered(deadline):
            raise multiprocessing.TimeoutError(
                f"The call to `{call}_wait` has timed out; nothing is lost: call `{call}_wait` again, or `close`."
            )

    def _has_answered(self, deadline: float) -> bool:
        if self._called is not None:
            engine, call = self._called
            return engine is None or bool(engine.calls.wait(call, deadline))
        waited: bool = self.venv.engine.wait_for_all(max(deadline, time.monotonic()))
        return waited

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")
        if self.call_mark.owner:
            self.call_mark.refuse()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `name` of every env or of its wrappers, or return the attribute `name`.

        To call only some envs, use `.venv.call(name, ..., id=ids)`. Raises ValueError for `reset`, `step` and `close`,
        except in SyncVectorEnv, and AttributeError for an unknown name.
        """
        return self._call_results(self._start_call(name, args, kwargs))

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Start a call. Wait only if a wrapper of `venv` overrides `call`."""
        self._called = self._start_call(name, args, kwargs)
        self._pending = CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of `call_async`, or raise an env's exception.

        Raises `multiprocessing.TimeoutError` after `timeout` seconds.
        """
        self._check_pending(CALL)
        self._wait_until(CALL, as_deadline(timeout))
        called, self._called, self._pending = self._called, None, None
        return self._call_results(called)

    def _start_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._check_can_start("call_async")
        if name in self._refused_calls:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        caller = self._stepper.call_target()
        if not isinstance(caller, Engine):
            return None, caller.call(name, *args, **kwargs)
        return caller, caller.calls.start(None, "call", [(name, args, kwargs)] * self.num_envs)

    def _call_results(self, called: Any) -> tuple[Any, ...]:
        engine, call = called
        return tuple(call if engine is None else engine.calls.finish(call))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return the attribute `name` of every env. Methods are called (as in gymnasium)."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env. A list or tuple has a value per env; other values are for all envs.

        As in gymnasium, the outermost wrapper or env that has the attribute is changed, and a new attribute is set on
        the outermost wrapper. Raises ValueError for a wrong number of values.
        """
        self._check_can_start("set_attr")
        if not isinstance(values, (list, tuple)):
            self.venv.call("set_wrapper_attr", name, values)
            return
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        for i, value in enumerate(values):
            self.venv.call("set_wrapper_attr", name, value, id=i)

    def render(self) -> tuple[Any, ...]:
        self._check_can_start("render")
        return tuple(self.venv.render())

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # cannot be set, as in gymnasium's classes
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        return self.get_attr("np_random")

    @property
    def reward_space(self) -> Any:
        """Space of the rewards of mo-gymnasium's envs, for its wrappers. Raises AttributeError for other envs."""
        return self.venv.get_env_attr("reward_space", id=0)[0]

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the envs, by force after five seconds.

        If a call is pending, warn. With `timeout`, unless `terminate` is True, first wait up to `timeout` seconds for
        the pending call.
        """
        deadline = as_deadline(timeout)
        if self.venv is None:
            return
        if self._pending is not None and not self.venv.is_closed:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._pending}` to complete.")
            if deadline is not None and not terminate and not self.call_mark.owner:
                self._has_answered(deadline)
        self.venv.close()
