"""Envs with one peculiarity each, for the tests of `check_env`. Workers import this module, so it imports little."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.support.steps import Steps


class Calm(Steps):
    """Env that draws observations from its own generator."""

    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    length = 7

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(3)

    def observe(self) -> Any:
        return self.np_random.uniform(-9, 9, 2)

    def pay(self, action: Any) -> float:
        return float(action)


class CountsInModule(Calm):
    count = 0

    def observe(self) -> Any:
        CountsInModule.count += 1
        return np.array([CountsInModule.count % 9, 0.0])


class KeepsInLaterEpisodes(Calm):
    """Like BipedalWalker-v3 of gymnasium 1.4, whose reset(seed) keeps some state of the physics engine."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeded = seed is not None
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return np.array([0.0 if self.seeded else (self.episode + 1) % 9, 0.0])


class RepeatsOneEpisode(Calm):
    """Like the envs of panda-gym 3.0.7, whose reset() without a seed takes a new seed from the operating system."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=int.from_bytes(os.urandom(4), "little") if seed is None else seed)


class OnePerProcess(Calm):
    """Like the envs of stable-retro 1.0.1."""

    made = False

    def __init__(self) -> None:
        if OnePerProcess.made:
            raise RuntimeError("Cannot create multiple emulator instances per process")
        OnePerProcess.made = True
        super().__init__()


class Leaks(Calm):
    kept: list[Any] = []

    def reset(self, **kwargs: Any) -> Any:
        self.kept.append(np.ones(2**17))
        return super().reset(**kwargs)


class HangsInStep(Calm):
    def step(self, action: Any) -> Any:
        if self.taken == 3:
            threading.Event().wait()
        return super().step(action)


class RaisesInStep(Calm):
    def step(self, action: Any) -> Any:
        if self.taken == 3:
            raise ValueError("boom")
        return super().step(action)


class RaisesInLateReset(Calm):
    """Env whose plays succeed, and whose measurement fails."""

    def reset(self, **kwargs: Any) -> Any:
        if self.episode == 7:
            raise ValueError("no ninth reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        return *super().step(action)[:2], False, False, {}


class BreaksInFork(Calm):
    owner: int | None = None

    def __init__(self) -> None:
        super().__init__()
        if BreaksInFork.owner not in (None, os.getpid()):
            raise OSError("the server of this library did not survive the fork")
        BreaksInFork.owner = BreaksInFork.owner or os.getpid()


class Prints(Calm):
    def step(self, action: Any) -> Any:
        print("step", action)
        return super().step(action)


class ShowsProcess(Calm):
    """Env whose observation is too large for a report."""

    observation_space = spaces.Box(0, 255, (40, 40), np.uint8)

    def observe(self) -> Any:
        return np.resize(np.frombuffer(os.getpid().to_bytes(4, "little"), np.uint8), (40, 40))


class SeedsProcess(Calm):
    """Like the envs of gem-llm 0.1.0, which seed and use the process's generators."""

    def __init__(self) -> None:
        import torch  # only in the worker of this env

        super().__init__()
        self.torch = torch

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            np.random.seed(seed)
            self.torch.manual_seed(seed)
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return np.array([np.random.uniform(-9, 9), self.torch.rand(()).item()])


class Unusual(Calm):
    """Env with texts as observations, endless episodes, and a set of strings, whose order differs between processes."""

    observation_space = spaces.Text(9)

    def observe(self) -> Any:
        return "abcd"[self.np_random.integers(4)] * 3

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {"reached": {f"room {i}" for i in range(9)}}


class Odd(Calm):
    """Env that changes its process, and whose results vecenv accepts, but which may surprise."""

    observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float64)})

    def __init__(self) -> None:
        super().__init__()
        os.chdir(tempfile.gettempdir())

    def observe(self) -> Any:
        return {"x": super().observe().astype(np.float32)}

    def reset(self, **kwargs: Any) -> Any:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.environ["VECENV_TEST_OF_CHECK"] = "1"
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        random.random()
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, np.array([reward]), terminated, truncated, {"last": True} if terminated else {}


class Noisy(Calm):
    """Like highway-env 1.12.1, whose reset puts an action with a random seed into the info. Observations have NaN."""

    def observe(self) -> Any:
        return np.array([np.nan, 1.0])

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"noise": int.from_bytes(os.urandom(4), "little")}
