"""Envs for tests: `CountingEnv`, envs that fail or hang, and envs that wait at `Gates`."""

from __future__ import annotations

import functools
import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Env that returns its id, episode, step `t`, seed and last action as observation. So tests notice wrong results.

    `form` is "array" (int64), "dict" (a Dict with a Tuple) or "object" (a Sequence). The reward is
    `env_id + t / 1024`. An episode ends when t is `length`: even episodes are terminated, odd episodes truncated. With
    `infos`, resets and odd steps have an info. `reset(options={"t": 3})` begins at t = 3.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, env_id: int = 0, length: int = 5, form: str = "array", infos: bool = True) -> None:
        self.env_id, self.length, self.form, self.infos = env_id, length, form, infos
        self.action_space = spaces.Discrete(100)
        self.observation_space = self._space()
        self.render_mode = "rgb_array"
        self.episode = self.seeded = self.action = -1
        self.t = 0
        self.calls = 0
        self.own_info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.calls += 1
        self.episode, self.t, self.action = self.episode + 1, (options or {}).get("t", 0), -1
        if seed is not None:
            self.seeded = seed
        self.own_info = {"episode": self.episode} if self.infos else {}
        return self._observation(), self.own_info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.calls += 1
        self.t, self.action = self.t + 1, int(action)
        over = self.t >= self.length
        terminated, truncated = over and self.episode % 2 == 0, over and self.episode % 2 == 1
        self.own_info = {"t": self.t} if self.infos and self.t % 2 else {}
        return self._observation(), self.env_id + self.t / 1024, terminated, truncated, self.own_info

    def episode_state(self) -> dict[str, Any]:
        """Return the counters, which an env in a new worker continues (`recycle_after`)."""
        return {name: getattr(self, name) for name in ("episode", "seeded", "action", "t", "calls", "own_info")}

    def set_episode_state(self, state: dict[str, Any]) -> None:
        """Continue with the counters of another env."""
        vars(self).update(state)

    def render(self) -> np.ndarray:
        return np.full((2, 3, 3), self.env_id, dtype=np.uint8)

    def _space(self) -> spaces.Space[Any]:
        far = 2**40
        if self.form == "array":
            return spaces.Box(-far, far, (5,), np.int64)
        if self.form == "dict":
            numbers, picture = spaces.Box(-far, far, (4,), np.int64), spaces.Box(-1, 1, (2, 3), np.float32)
            when: spaces.Space[Any] = spaces.Tuple((numbers, picture))
            return spaces.Dict({"who": spaces.Discrete(1000), "when": when})
        if self.form == "object":
            return spaces.Sequence(spaces.Discrete(2 * far, start=-far))
        raise ValueError(f'form must be "array", "dict" or "object", got {self.form!r}')

    def _observation(self) -> Any:
        now = (self.env_id, self.episode, self.t, self.seeded, self.action)
        if self.form == "array":
            return np.array(now)
        if self.form == "object":
            return now
        return {"who": np.int64(self.env_id), "when": (np.array(now[1:]), np.full((2, 3), self.t / 128, np.float32))}


class RaisesInConstructor(CountingEnv):
    def __init__(self, env_id: int = 0, **options: Any) -> None:
        raise ValueError("boom in __init__")


class _Misbehaves(CountingEnv):
    where = "step"

    def __init__(self, env_id: int = 0, at: int = 1, **options: Any) -> None:
        super().__init__(env_id, **options)
        self.at = at

    def misbehave(self) -> None:
        """Raise, exit or hang."""
        raise ValueError(f"boom in {self.where}")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.where == "step" and self.t + 1 == self.at:
            self.misbehave()
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.where == "reset" and self.episode + 1 == self.at:
            self.misbehave()
        return super().reset(seed=seed, options=options)


class RaisesOnStep(_Misbehaves):
    """Env that raises ValueError in step `at` of an episode."""


class RaisesOnReset(_Misbehaves):
    """Env that raises ValueError in the reset of episode `at` (the first is 0), and in later resets."""

    where = "reset"


class ExitsOnStep(_Misbehaves):
    """Env that ends its process in step `at` of an episode."""

    def misbehave(self) -> None:
        os._exit(7)


class ExitsOnReset(ExitsOnStep):
    """Env that ends its process in the reset of episode `at`."""

    where = "reset"


class HangsOnStep(_Misbehaves):
    """Env that hangs in step `at` of an episode."""

    def misbehave(self) -> None:
        threading.Event().wait()


class GateEnv(CountingEnv):
    """CountingEnv that waits at its gate in the methods `ops` ("step", "reset", "echo").

    `ran_in`: (process id, thread ident) of the last call.
    """

    def __init__(self, folder: str, env_id: int, ops: Sequence[str] = ("step", "reset"), **options: Any) -> None:
        super().__init__(env_id, **options)
        self._ops = tuple(ops)
        self._gate, self._arrived = (os.open(path, os.O_RDWR) for path in _pipes(folder, env_id))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._pass("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._pass("step")
        return super().step(action)

    def echo(self, value: Any) -> Any:
        """Return `value`, after a wait at the gate if `ops` has "echo"."""
        self._pass("echo")
        return value

    def close(self) -> None:
        for fd in (self._gate, self._arrived):
            os.close(fd)

    def _pass(self, op: str) -> None:
        self.ran_in = os.getpid(), threading.get_ident()
        if op in self._ops:
            os.write(self._arrived, b".")
            os.read(self._gate, 1)


class Gates:
    """Gates for `n` envs, which may be in other processes. An env waits at its gate until `open` lets it pass.

        with Gates(2) as gates, ShmemVectorEnv(gates.env_fns, wait_num=1) as venv: ...

    `options` are arguments of GateEnv. Open the gates of waiting envs before closing the vector env.
    """

    def __init__(self, n: int, **options: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="vecenv-gates-")
        self._options = options
        self._fds: list[tuple[int, int]] = []
        for i in range(n):
            paths = _pipes(self.folder, i)
            for path in paths:
                os.mkfifo(path)
            # Read-write mode, so that opening does not block, and unread bytes stay.
            self._fds.append((os.open(paths[0], os.O_RDWR), os.open(paths[1], os.O_RDWR)))

    @property
    def env_fns(self) -> list[Callable[[], GateEnv]]:
        """Functions that make the envs, one per gate."""
        return [self.env_fn(i) for i in range(len(self._fds))]

    def env_fn(self, i: int) -> Callable[[], GateEnv]:
        """Return a function that makes the env of gate i."""
        return functools.partial(GateEnv, self.folder, i, **self._options)

    def open(self, *ids: int, times: int = 1) -> None:
        """Let each env of `ids` (default: all) pass `times` times, now or later."""
        for i in ids or range(len(self._fds)):
            os.write(self._fds[i][0], b"." * times)

    def await_arrival(self, i: int, timeout: float = 30.0) -> None:
        """Wait until env i arrives at its gate. Raises TimeoutError after `timeout` seconds."""
        if not select.select([self._fds[i][1]], [], [], timeout)[0]:
            raise TimeoutError(f"env {i} did not arrive at its gate within {timeout} s")
        os.read(self._fds[i][1], 1)

    def close(self) -> None:
        """Remove the pipes."""
        for pair in self._fds:
            for fd in pair:
                os.close(fd)
        self._fds = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Gates:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _pipes(folder: str, env_id: int) -> tuple[Path, Path]:
    return Path(folder, f"gate-{env_id}"), Path(folder, f"arrived-{env_id}")
