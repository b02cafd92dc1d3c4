"""Raise KeyboardInterrupt in a call: at chosen bytecodes, so that a test can be repeated, or by a signal."""

from __future__ import annotations

import contextlib
import dis
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import collector
import vecenv
from vecenv.ctrl_c import sigint_deferred

PACKAGES = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (vecenv, collector))
LOOKS = {
    number
    for number, name in enumerate(dis.opname)
    if ("CALL" in name and "INTRINSIC" not in name) or name == "RESUME" or "JUMP_BACKWARD" in name
} - {dis.opmap.get("JUMP_BACKWARD_NO_INTERRUPT", -1)}
"""Instructions before or after which Python, or a function in C, runs signal handlers.

CALL_INTRINSIC is left out. It ends generators that are garbage, and there an exception would only be a warning.
"""
PRECALL, LOAD_CONST = dis.opmap.get("PRECALL", -1), dis.opmap["LOAD_CONST"]
BEGIN_HANDLER = dis.opmap["PUSH_EXC_INFO"]
"""First instruction of an `except` or `finally`. After an instruction that raises, Python looks for no signals."""
HAS_MONITORING = sys.version_info >= (3, 12)
TOOL = 4


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector in the block, because Python turns an interrupt of a finalizer into a warning.

    The collector may run the finalizers of earlier tests at any time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def leaves_block(code: CodeType, raw: bytes, offset: int) -> bool:
    """Return True before the call `__exit__(None, None, None)` at the end of a `with` block, as Python makes it.

    Python looks for signals after this call, when a lock, for example, is released.
    """
    if raw[offset - 4] == PRECALL:  # Python 3.11 has two instructions for a call
        offset -= 4
    loads = range(offset - 6, offset, 2)
    return all(at >= 0 and raw[at] == LOAD_CONST and code.co_consts[raw[at + 1]] is None for at in loads)


class Interrupts:
    """Raise KeyboardInterrupt at instant number `numbers[0]` of the block, and again `numbers[1]` instants later.

    An instant is a bytecode of vecenv or collector in this thread. With `at_looks`, only the bytecodes at which Python
    looks for signals are instants. `raised` counts the interrupts. An interrupt that is not caught ends the block.
    In a block of `sigint_deferred`, an interrupt comes at the end of that block, as Ctrl-C does.

    With a set `places`, an instant counts for the first interrupt only if its place is not in the set. Such places are
    added. A line has two places: before and after an instruction at which Python looks for signals.

    On Python 3.12 and newer, `sys.settrace` misses bytecodes, so this class uses `sys.monitoring`. Python 3.11 has only
    `sys.settrace`, which stops when a trace function raises: a profiler restarts the trace for the second interrupt.
    """

    def __init__(self, *numbers: int, at_looks: bool = False, places: set[Any] | None = None) -> None:
        self.left, self.later, self.raised = numbers[0], list(numbers[1:]), 0
        self._at_looks, self._thread, self._places = at_looks, threading.get_ident(), places
        self._last: dict[FrameType, int] = {}
        self._codes: dict[CodeType, bytes] = {}

    def __enter__(self) -> Interrupts:
        if HAS_MONITORING:
            instruction = sys.monitoring.events.INSTRUCTION
            sys.monitoring.use_tool_id(TOOL, "interrupts")
            sys.monitoring.register_callback(TOOL, instruction, self._monitor)
            sys.monitoring.set_events(TOOL, instruction)
        else:
            self._before = sys.gettrace()
            sys.settrace(self._trace)
        return self

    def __exit__(self, kind: Any, *_: Any) -> bool:
        if HAS_MONITORING:
            sys.monitoring.set_events(TOOL, 0)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.setprofile(None)
            sys.settrace(self._before)
        self._last.clear()
        return kind is KeyboardInterrupt

    def _monitor(self, code: CodeType, offset: int) -> Any:
        if not code.co_filename.startswith(PACKAGES):
            return sys.monitoring.DISABLE
        if threading.get_ident() == self._thread:
            self._count(sys._getframe(1), offset)
        return None

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self._count(frame, frame.f_lasti)
        return self._trace

    def _count(self, frame: FrameType, offset: int) -> None:
        if frame.f_lineno is None:  # a generator that is being closed ends, and Python never runs a handler there
            return
        if self._at_looks:
            code = self._codes.get(frame.f_code)
            if code is None:
                code = self._codes[frame.f_code] = frame.f_code.co_code
            before, self._last[frame] = self._last.get(frame), code[offset]
            if code[offset] not in LOOKS and (before not in LOOKS or code[offset] == BEGIN_HANDLER):
                return
            if code[offset] in LOOKS and leaves_block(frame.f_code, code, offset):
                return
        if self._is_due(frame, offset):
            self.raised += 1
            self._last.clear()  # the handlers come next
            if self.later:
                self.left = self.later.pop(0)
                if not HAS_MONITORING:
                    sys.setprofile(self._trace_again)
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler) and handler.__module__ == sigint_deferred.__module__:
                handler(signal.SIGINT, frame)  # the end of its block raises
            else:
                raise KeyboardInterrupt

    def _is_due(self, frame: FrameType, offset: int) -> bool:
        if self._places is not None and not self.raised:
            place = frame.f_code, frame.f_lineno, frame.f_code.co_code[offset] in LOOKS
            if place in self._places:
                return False
            self._places.add(place)
        self.left -= 1
        return self.left == 0

    def _trace_again(self, frame: FrameType | None, *_: Any) -> None:
        sys.setprofile(None)
        sys.settrace(self._trace)
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGES):
                frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self._trace, True, False
            frame = frame.f_back


def interrupted(call: Callable[[], Any], *numbers: int, **options: Any) -> tuple[int, Any]:
    """Make the call with `Interrupts` at these instants. Return the number of interrupts and the call's result."""
    interrupts = Interrupts(*numbers, **options)

    def run() -> Iterator[Any]:
        result = None
        with no_garbage_collection(), interrupts:
            result = call()
        yield result

    # A trace function that raises may leave an exception state behind. A generator has a separate state.
    result = next(run())
    return interrupts.raised, result


def interrupted_at(n: int, call: Callable[[], Any]) -> bool:
    """Make the call, with a KeyboardInterrupt before its n-th bytecode. Return False if the call has fewer."""
    return interrupted(call, n)[0] > 0


def call_with_signal(call: Callable[[], Any], seconds: float, pids: Sequence[int] = ()) -> tuple[bool, Any]:
    """Make the call. After `seconds`, send SIGINT to this process and to `pids`.

    Return whether the signal came during the call, and the result of the call. A timer of the caller continues after
    the call. With `pids`, this is like Ctrl-C in a terminal, which all processes get.
    """
    is_armed, raised, result = True, False, None

    def interrupt(*_: Any) -> None:
        nonlocal is_armed, raised
        if is_armed:
            is_armed, raised = False, True
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            restore()
            signal.raise_signal(signal.SIGINT)

    def restore() -> None:
        # The timer ends before the handler changes, so that no late signal reaches the old handler.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)

    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            with no_garbage_collection():
                signal.setitimer(signal.ITIMER_REAL, seconds)
                result = call()
        finally:
            is_armed = False
    except KeyboardInterrupt:
        pass
    if not raised:
        restore()
    return raised, result
