"""`Operation`: a use of an env, such as a step. Coroutine envs and ordinary envs have the same operations."""

from __future__ import annotations

from collections.abc import Generator
from inspect import isawaitable
from typing import Any

Operation = Generator[Any, Any, Any]
"""Generator that yields what a method of the env has returned, is sent the value, and returns the operation's result.

The value of a coroutine is its result.
"""


def run_operation(operation: Operation) -> Any:
    """Run an operation of an ordinary env, and return its result."""
    value = None
    try:
        while True:
            value = operation.send(value)
    except StopIteration as stop:
        return stop.value


async def await_operation(operation: Operation) -> Any:
    """Run an operation of a coroutine env, and return its result."""
    resume, value = operation.send, None
    while True:
        try:
            value = resume(value)
        except StopIteration as stop:
            return stop.value
        try:
            resume, value = operation.send, await value if isawaitable(value) else value
        except BaseException as error:
            resume, value = operation.throw, error


def run_in_new_loop(operation: Operation) -> Any:
    """Run an operation of a coroutine env in this thread."""
    import asyncio

    return asyncio.run(await_operation(operation))
