"""Env functions that tests name in a worker command. They need no vecenv, so worker_numpy.py imports them too."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Own(Exception):
    pass


class Elsewhere(gymnasium.Env):
    """Env that does what `what` says in step 2. The observation has the number of the step."""

    observation_space: Any = spaces.Box(-1, 100, (3,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, what: str = "", id: int = 0, path: str = "", pause: float = 0.0) -> None:
        self.what, self.id, self.path, self.pause, self.t = what, id, path, pause, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.array([self.id, 0, self.np_random.random() if seed is not None else 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        time.sleep(self.pause)
        info: dict[str, Any] = {}
        if self.what and self.t == 2:
            info = getattr(self, f"do_{self.what}")() or {}
        return np.array([self.id, self.t, action], np.float32), float(self.t), self.t == 4, False, info

    def do_prints(self) -> None:
        print("printed by Python")
        os.system("echo printed by a program")
        libc = ctypes.CDLL(None)
        libc.puts(b"printed by C")
        libc.fflush(None)

    def do_raises_own(self) -> None:
        raise Own("of a module that the caller cannot import")

    def do_floods(self) -> None:
        sys.stderr.write(("flooded" + "." * 8192 + "\n") * 128)  # 1 MiB, the largest pipe
        with open(self.path, "w") as file:
            file.write("floods")

    def do_dies(self) -> None:
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(3)

    def do_hangs(self) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os.write(1, b"hangs\n")
        ctypes.PyDLL(None).sleep(600)  # with the interpreter lock

    def do_starts(self) -> None:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def do_ignores(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.do_starts()

    def do_tells(self) -> dict[str, Any]:
        return {
            "numbers": [1, 2.5, True, None, float("inf"), 2**70, np.float32(0.5), np.int8(3)],
            "text": "é\ud800",
            "bytes": b"\0\xff",
            "by number": {1: "one", 2: np.arange(3)},
            "array": np.arange(6, dtype=">i2").reshape(2, 3),
            "texts": np.array(["a", "bc"]),
            "nested": ({"$a": (1, [2])},),
            "a set": {1},
            "an error": KeyError("x"),
        }

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


SPACES = [
    spaces.Box(np.array([-np.inf, 0]), np.array([1, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary([2, 3]),
    spaces.Text(5, charset="abé"),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(0, 1), spaces.Text(3)])}),
    spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1)]),
]


class HasSpace(Elsewhere):
    """Env with attributes that it computes, around a simulator that it calls `env`."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.action_space = SPACES[k]
        self.env = object()

    def __getattr__(self, name: str) -> Any:
        if name != "computed":
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        return [1, 2]


class Space:
    """Base class of gym's spaces."""


def _space(kind: str, **fields: Any) -> Any:
    """Return a space of gym, which is known by the name of its class."""
    return type(kind, (Space,), fields)()


class OldStep:
    """Env of gym 0.21 as gym-minigrid 1.0.3 returns it: a Dict space that lacks keys, four results, `seed()`."""

    reward_range = (0, 1)

    def __init__(self, agents: int = 0, seeded: bool = True) -> None:
        bounds = np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8)
        image = _space("Box", low=bounds[0], high=bounds[1], shape=(2, 2), dtype=np.dtype(np.uint8))
        self.observation_space = _space("Dict", spaces={"image": image}, shape=None, dtype=None)
        self.action_space = _space("Discrete", n=7, shape=(), dtype=np.dtype(np.int64))
        self.metadata = {"render.modes": ["human", "rgb_array"]}
        self.agents, self.seeds = agents, []
        if not seeded:
            self.seed = self.close

    @property
    def unwrapped(self) -> Any:
        return self

    def seed(self, seed: Any = 1337) -> list[Any]:
        self.seeds.append(seed)
        return [seed]

    def reset(self) -> Any:
        self.t = 0
        return self._observe()

    def _observe(self) -> Any:
        if self.agents:
            return {"image": np.full((2, 2), self.t, np.uint8)}
        return {"image": np.full((2, 2), self.t, np.uint8), "direction": self.t, "mission": "get to the goal"}

    def step(self, action: Any) -> Any:
        assert action in range(7)
        self.t += 1
        done: Any = self.t == 3
        reward: Any = np.float32(0.5)
        if self.agents:  # as lbforaging 1.1.1
            reward, done = [0.5] * self.agents, [done] * self.agents
        return self._observe(), reward, done, {"TimeLimit.truncated": True} if self.t == 3 else {}

    def render(self, mode: str = "human") -> Any:
        return np.zeros((2, 2, 3), np.uint8) if mode == "rgb_array" else None

    def close(self) -> None:
        pass
