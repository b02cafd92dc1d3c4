"""Free-threaded Python: the import that enables the interpreter lock, and stacks of running threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faulty import counters
from vecenv import ThreadVectorEnv
from vecenv.backends import free_threading


def test_one_warning_names_the_module_that_has_turned_the_interpreter_lock_on(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = iter([False, False, False, True, True, True])
    monkeypatch.setattr(free_threading, "has_gil", lambda: next(locks))
    monkeypatch.setattr(free_threading, "gil_modules", [])

    def create(loader: Any, spec: Any) -> Any:
        return spec.name

    load = free_threading._watched(create)
    assert [load(None, SimpleNamespace(name=name)) for name in ("safe", "unsafe", "later")] == [
        "safe",
        "unsafe",
        "later",
    ]
    assert free_threading.gil_modules == ["unsafe"]
    with pytest.warns(RuntimeWarning, match="importing 'unsafe' has turned the interpreter lock on") as warned:
        ThreadVectorEnv(counters(2)).close()
    ThreadVectorEnv(counters(2)).close()
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("locked", [True, False])
def test_the_stack_of_a_thread_that_waits_is_its_own(locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the interpreter lock, the thread writes its stack in a signal handler. This also works with the lock."""
    if locked and not free_threading.has_gil():
        pytest.skip("frames of other threads cannot be read")
    monkeypatch.setattr(free_threading, "has_gil", lambda: locked)
    inside, end = threading.Event(), threading.Event()

    def waits_inside() -> None:
        inside.set()
        end.wait(20)

    thread = threading.Thread(target=waits_inside)
    thread.start()
    assert inside.wait(20)
    stacks = [free_threading.stack_of_thread(thread.ident or 0) for _ in range(2)]
    end.set()
    thread.join()
    for stack in stacks:
        assert "in waits_inside" in stack
        assert "in test_the_stack" not in stack
