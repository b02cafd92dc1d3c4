"""`SpareEnvs`: second instances of envs, which a worker resets in threads while the first instances step.

    round of steps --> answer --> `prepare`: a thread resets the spare of env j for the next episode
    end of an episode of env j --> `begin`: env j and its spare change places

So a slow reset takes no time from a round, unless the next episode ends before the reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from vecenv.arguments import next_seed
from vecenv.backends.host.env_access import adopt, learning, set_attr
from vecenv.backends.host.own_process import distribution_of
from vecenv.backends.ipc import opcodes

Kwargs = dict[str, Any]


def check_spare(env: Any, origin: str) -> None:
    """Raise ValueError if a process cannot have two instances of `env`, or if their statistics would differ."""
    if (package := distribution_of(env)) is not None:
        raise ValueError(
            f"spare_envs: {origin} is from {package}, whose envs share state in their process; leave it out"
        )
    if names := learning(env, alone=True):
        raise ValueError(
            f"spare_envs: {origin} has {names[0]}, which learns statistics, and each of the two instances would learn "
            "alone; freeze or share (EnvCreator) the statistics, or leave spare_envs out"
        )


class SpareEnvs:
    """Spares of the first envs in `envs`, the list of a worker's envs."""

    def __init__(self, envs: list[Any], spares: Sequence[Any]) -> None:
        self._envs = envs
        self._spares = dict(enumerate(spares))
        self._unused: list[tuple[int, Any]] = []
        self._resets: dict[int, tuple[Kwargs, Future[Any]]] = {}
        """By index of the env: arguments and result of the reset of its spare."""
        self._unseeded = set[int]()
        """Indices of the envs whose last reset had no arguments."""
        self._first_seeds: dict[int, int] = {}
        """Seeds for the first reset without a seed of the spare of an env that was reset with a seed."""
        self._threads = ThreadPoolExecutor(len(spares), "vecenv-spare")

    def begin(self, j: int, kwargs: Kwargs) -> Any:
        """Reset env j, or let its spare take its place. Return the result of the reset."""
        (self._unseeded.discard if kwargs else self._unseeded.add)(j)
        if kwargs.get("seed") is not None:
            self._first_seeds[j] = next_seed(kwargs["seed"])
        prepared, future = self._resets.pop(j, (None, None))
        if future is None:
            return self._envs[j].reset(**kwargs)
        if prepared != kwargs:
            future.exception()  # wait, because a spare must not be in two resets
            return self._envs[j].reset(**kwargs)
        result = future.result()  # raises the exception of the reset
        self._envs[j], self._spares[j] = self._spares[j], self._envs[j]
        return result

    def prepare(self, ops: bytes, seeds: np.ndarray) -> None:
        """After a round with these opcodes, begin to reset spares. `seeds`: seed of each env's next reset, or -1."""
        for j, spare in self._spares.items():
            op = ops[j]
            if op & opcodes.AUTORESET:
                kwargs = {} if seeds[j] < 0 else {"seed": int(seeds[j])}
            elif op in (opcodes.STEP, opcodes.STEP_OBJECT) and j in self._unseeded:
                kwargs = {}
            else:
                continue
            prepared, future = self._resets.get(j, (None, None))
            if future is None or (prepared != kwargs and future.done()):
                seed = {"seed": self._first_seeds.pop(j)} if not kwargs and j in self._first_seeds else kwargs
                self._resets[j] = kwargs, self._threads.submit(spare.reset, **seed)

    def before_call(self, j: int, op: str, args: tuple[Any, ...]) -> None:
        """Keep the spare of env j equal to env j. If the call may change the env in other ways, use no spare for it."""
        if j not in self._spares or op not in ("set_env_attr", "call", "seed", "adopt"):
            return
        _, future = self._resets.pop(j, (None, None))
        if future is not None:
            future.exception()
        if op == "set_env_attr":
            set_attr(self._spares[j], *args)
        elif op == "adopt":
            adopt(self._spares[j], None, args[1])
        else:
            self._unused.append((j, self._spares.pop(j)))

    def end(self) -> list[tuple[int, Any]]:
        """Wait for running resets. Return the spares, each with the index of its env."""
        self._threads.shutdown(cancel_futures=True)
        return [*self._spares.items(), *self._unused]
