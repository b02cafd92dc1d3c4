"""Envs whose reset and step are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.support.faulty import Counter
from vecenv import ThreadVectorEnv


class AsItself:
    """The env of `env_fn`, in a layer without effect. States of envs with the same number of layers may be swapped."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env = env_fn()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class AsCoroutines(AsItself):
    """The env of `env_fn`, with coroutines as reset, step, render and close.

    Threads call `reset` and `step` of the env, because an env that waits without an await stops all other envs.
    """

    async def reset(self, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.env.reset, **kwargs)

    async def step(self, action: Any) -> Any:
        return await asyncio.to_thread(self.env.step, action)

    async def render(self, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self.env.render(**kwargs)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.env.close()


class CoroutineVectorEnv(ThreadVectorEnv):
    """ThreadVectorEnv whose envs have coroutines. With `every` = 2, only the envs with even ids."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *args: Any, every: int = 1, **options: Any) -> None:
        fns = [partial(AsItself if i % every else AsCoroutines, env_fn) for i, env_fn in enumerate(env_fns)]
        super().__init__(fns, *args, **options)


class Coroutines(Counter):
    """Base class of envs whose `step` is a coroutine too."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().reset(**kwargs)


class Gated(Coroutines):
    """Env that waits for `gate` in each step, if the gate is set. `notes` gets what happens."""

    def __init__(self, id: int, notes: list[Any] | None = None) -> None:
        super().__init__(id)
        self.gate: asyncio.Event | None = None
        self.notes = [] if notes is None else notes

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await self.pass_gate()
        return super().step(action)

    async def pass_gate(self) -> None:
        try:
            if self.gate is not None:
                self.notes.append(("waits", self.id))
                await self.gate.wait()
        except asyncio.CancelledError:
            self.notes.append(("cancelled", self.id))
            raise

    async def shut(self) -> None:
        self.gate = asyncio.Event()

    async def open(self) -> None:
        assert self.gate is not None
        self.gate.set()

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.notes.append(("closed", self.id))
