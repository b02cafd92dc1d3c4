"""Envs and helpers of the tests of jobs. Workers import the envs from this module."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from collector import Dataset, Episode, Job
from collector.testing import check_data_set
from tests.support.compare import same_columns
from tests.support.paths import ROOT
from tests.support.steps import Steps

HERE = "tests.support.job_envs"


class Counting(gymnasium.Env):
    """Env that observes the seed and the number of the step in a Dict. The seed determines the length of an episode.

    If the seed is a multiple of `every`, a step (or a reset: `at`) does what `how` says.
    """

    def __init__(self, every: int = 0, how: str = "raise", at: str = "step", seconds: float = 0.0) -> None:
        self.observation_space = spaces.Dict(
            {
                "count": spaces.Box(0, 2**31, (2,), np.int64),
                "pose": spaces.Tuple([spaces.Box(-9, 9, (2,)), spaces.Discrete(99)]),
            }
        )
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._every, self._how, self._at, self._seconds = every, how, at, seconds
        self._seed = self._taken = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._seed, self._taken = int(seed or 0), 0
        self._length = 3 + self._seed % 17
        if self._at == "reset":
            self._fail()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._taken += 1
        if self._seconds:
            threading.Event().wait(self._seconds)
        reward = float(action[0]) + self._taken
        if self._at == "step" and self._taken in ((2, 3) if self._how == "huge" else (2,)):
            reward = self._fail() or reward
        return self._observe(), reward, self._taken == self._length, False, {}

    def _fail(self) -> float:
        if not self._every or self._seed % self._every:
            return 0.0
        if self._how == "once":
            if (flag := Path(os.environ["FAILS_ONCE"])).exists():
                return 0.0
            flag.touch()
        if self._how == "huge":
            return 1.7e308  # two of them overflow
        if self._how in ("nan", "inf"):
            return float(self._how)
        if self._how == "signal":
            signal.raise_signal(signal.SIGINT)
            return 0.0
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "hang":
            if os.environ.get("HANGS_NO_MORE"):
                return 0.0
            os.write(1, b"hanging now\n")
            threading.Event().wait()
        raise OverflowError(f"the episode with the seed {self._seed} cannot be played")

    def _observe(self) -> Any:
        pose = (self.np_random.uniform(-1, 1, 2).astype(np.float32), np.int64(self._taken))
        return {"count": np.array([self._seed, self._taken], np.int64), "pose": pose}


class Words(Steps):
    """Env that observes a text."""

    observation_space: Any = spaces.Text(8)

    def observe(self) -> str:
        return "world" if self.taken else "hello"


class Inventory(Words):
    """Env that observes a picture, a text and a list."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (3,), np.uint8), items=spaces.Sequence(spaces.Discrete(2)), mission=spaces.Text(8)
    )


class MissionSpace(gymnasium.Space[str]):
    """Space of texts, in the form of minigrid 3.2.0: no subclass of Text, without a shape."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissionSpace)

    __hash__ = None  # type: ignore[assignment]


class Talk(Steps):
    """Env whose observations and actions have a text. Its reward is the length of the text in the action."""

    observation_space: Any = spaces.Dict(mission=MissionSpace(), taken=spaces.Discrete(9))
    action_space: Any = spaces.Dict(say=spaces.Text(9), move=spaces.Discrete(9))
    length = 4

    def observe(self) -> Any:
        return {"mission": "go to the \N{GREEK SMALL LETTER ALPHA}" * self.np_random.integers(3), "taken": self.taken}

    def pay(self, action: Any) -> float:
        assert type(action["say"]) is str
        return float(len(action["say"]))


def answers(obs: Any) -> list[Any]:
    return [{"say": mission[:9] or "no", "move": int(taken)} for mission, taken in zip(*obs.values(), strict=True)]


class Forgetful(Steps):
    """Env that ignores the seed of `reset`, so that episodes depend on earlier episodes."""

    length = 5

    def __init__(self) -> None:
        self.steps = 0

    def observe(self) -> Any:
        return np.array([self.steps], np.float32)

    def pay(self, action: Any) -> float:
        self.steps += 1
        return 1.0


class Shows(Steps):
    """Env whose observations are `value` as `form` says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))

    def __init__(self, value: Any = "0", form: str = "float32") -> None:
        self.value, self.form = float(value), form

    def observe(self) -> Any:
        if not self.taken:
            return np.zeros(2, np.float32)
        odd: dict[str, Any] = {"list": [self.value] * 2, "ragged": [[0.0], [0.0, 0.0]], "text": "text"}
        return odd[self.form] if self.form in odd else np.full(2, self.value, self.form)


class Unrepeated(Steps):
    """Env whose episodes depend on more than the seed of `reset`, as `how` says.

    - "own seed": on entropy, as in NLE 1.3.0, whose `reset` ignores `seed`
    - "episode before": as in gymnasium's BipedalWalker-v3
    - "process": on `random`, which `reset` seeds and `step` uses, as in gem-llm 0.1.0
    - "late process": as "process", from step 20 on
    - "torch": as "process", on torch's generator
    - "" or "draws": on the seed only. With "draws", `step` also draws from `np.random`, and forgets the number
    """

    observation_space: Any = spaces.Dict({"x": spaces.Box(0, 9, (2,))})
    length = 30

    def __init__(self, how: str = "") -> None:
        self.how, self.last, self.own = how, 0.0, np.random.default_rng()
        if how == "torch":
            import torch  # only in this env

            self.torch = torch

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if "process" in self.how:
            random.seed(seed)
        if self.how == "torch":
            self.torch.manual_seed(seed)
        return super().reset(seed=seed)

    def pay(self, action: Any) -> float:
        if self.how == "draws":
            np.random.random()
        return 1.0

    def observe(self) -> Any:
        draw = self.np_random.random()
        if self.how == "own seed":
            draw = self.own.random()
        if self.how == "process" or (self.how == "late process" and self.taken >= 20):
            draw = random.random()
        if self.how == "torch":
            draw = self.torch.rand(1).item()
        before = self.last if self.how == "episode before" and not self.taken else 0.0
        self.last = draw
        return {"x": np.array([draw, before], np.float32)}


class Moving(Forgetful):
    """Env that works in a folder of its own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        os.chdir(folder)


class Configured(gymnasium.Wrapper):
    """Env or wrapper that counts in its argument. It adds the count to the reward."""

    metadata: Any = {"render_modes": []}  # gymnasium 1.2 wants a dict in the class

    def __init__(self, env: Any = None, *, config: dict[str, int]) -> None:
        super().__init__(env or Forgetful())
        config["made"] = config.get("made", 0) + 1
        self._config = config

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, float(reward) + self._config["made"], *rest


class Popping:
    """Policy that removes a value from its argument."""

    def __init__(self, observation_space: Any, action_space: Any, options: dict[str, int]) -> None:
        self._action = options.pop("action")

    def __call__(self, obs: Any) -> Any:
        return np.full(len(obs), self._action)


class Drawn(Steps):
    """Env that renders pictures with odd sizes. Their brightness is the number of the step."""

    metadata: Any = {"render_modes": ["rgb_array"], "render_fps": 10}
    length = 6

    def __init__(self, render_mode: str | None = None, offset: int = 0) -> None:
        self.render_mode, self.offset = render_mode, offset

    def render(self) -> Any:
        return np.full((33, 51, 3), 40 * self.taken, np.uint8)

    def observe(self) -> Any:
        return np.array([self.taken + self.offset], np.float32)


class Undrawn(Drawn):
    """Env that cannot render."""

    def render(self) -> Any:
        raise RuntimeError("no OpenGL context")


class DrawnOnSurface(Drawn):
    """Env whose pictures are black if SDL draws with the driver "dummy", as in highway-env 1.12.1."""

    def render(self) -> Any:
        return super().render() * (os.environ.get("SDL_VIDEODRIVER") != "dummy")


class WithoutModes(Drawn):
    """Env whose constructor takes no `render_mode`, as in or-gym-inventory 1.0.0."""

    def __init__(self) -> None:
        super().__init__()


class Takes:
    """Policy that takes no arguments."""


class Mean:
    """Policy class in numpy, created with the spaces."""

    repeatable = True

    def __init__(self, observation_space: Any, action_space: Any, scale: float = 1.0) -> None:
        self._scale = scale

    def __call__(self, obs: Any) -> Any:
        return (self._scale * np.tanh(obs["pose"][0])).astype(np.float32)


class Drawing:
    """Policy that draws from an unseeded generator, so it is not repeatable."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self._rng = np.random.default_rng()

    def __call__(self, obs: Any) -> Any:
        return self._rng.integers(2, size=len(obs))


def bad(obs: Any) -> Any:
    """Raise: a policy that fails."""
    raise KeyError("no such state")


def job(**changes: Any) -> Job:
    """Return a job that runs quickly."""
    quick: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 4, "backend": "dummy"}
    if not {"steps", "episodes"} & changes.keys():
        quick["episodes"] = 30
    return Job(**{**quick, **changes})


def counting(**kwargs: Any) -> dict[str, Any]:
    """Return the settings of a job with `Counting` envs."""
    return {"env": f"{HERE}:Counting", "env_kwargs": kwargs}


def change_job(folder: Path, **changes: Any) -> None:
    """Change the job stored in a folder."""
    head = json.loads((folder / "dataset.json").read_text())
    head["job"] |= changes
    (folder / "dataset.json").write_text(json.dumps(head))


def stop_at(episodes: int, signum: int = signal.SIGINT) -> Any:
    """Return a progress callback that sends a signal when `episodes` episodes are stored."""
    sent: list[int] = []

    def on_progress(state: Any) -> None:
        if state.episodes >= episodes and not sent:
            sent.append(signum)
            signal.raise_signal(signum)

    return on_progress


def stopped(play: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the final state of a job that a signal ends."""
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        play(*args, **kwargs)
    state: Any = caught.value.state  # type: ignore[union-attr]
    assert state.status == "complete" or isinstance(caught.value, KeyboardInterrupt) == (state.signum == signal.SIGINT)
    assert getattr(caught.value, "code", 143) == 143
    return state


def assert_same(folder: Path, other: Path) -> None:
    """Check that two data sets have the same episodes, bit for bit."""
    for a, b in zip(Dataset(folder), Dataset(other), strict=True):
        assert_equal(a, b)


def assert_equal(a: Episode, b: Episode) -> None:
    """Check that two episodes are equal. Any env may have played them."""
    same_columns(a, b, "number", "seed", "obs", "action", "reward", "terminated", "truncated")


def assert_whole(data: Dataset) -> None:
    check_data_set(data.folder)


@contextmanager
def process(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python in a separate process, which is killed at the end."""
    running = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()
