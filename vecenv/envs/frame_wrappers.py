"""Wrappers of one env for GymEnv and transforms: steps of several frames, and observations in pixels."""

from __future__ import annotations

import math
import sys
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from vecenv.backends.host.env_access import render_in_turn
from vecenv.engine.arguments import check_count

Env = gymnasium.Env[Any, Any]


class SkipFrames(gymnasium.Wrapper):
    """Gives each action to the env `repeats` times, or until the episode ends: the rewards are summed, the rest is the
    last. (gymnasium has it as RepeatAction since 1.3.)
    """

    spec = property(attrgetter("env.spec"))  # that of the wrapper which makes this one

    def __init__(self, env: Env, repeats: int) -> None:
        super().__init__(env)
        self.repeats = repeats

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        for _ in range(self.repeats - 1):
            if terminated or truncated:
                break
            obs, more, terminated, truncated, info = self.env.step(action)
            reward = reward + more  # type: ignore[operator]
        return obs, reward, terminated, truncated, info


def check_frame_skip(frame_skip: Any) -> int:
    """`frame_skip` as an int, 1 for None; ValueError for all but integers of at least 1."""
    if frame_skip is None:
        return 1
    try:
        return check_count("frame_skip", frame_skip)
    except (TypeError, ValueError):
        raise ValueError(f"frame_skip must be an integer of at least 1 or None, got {frame_skip!r}") from None


def skip_frames(env: Env, frame_skip: int | None) -> Env:
    """The env with steps of `frame_skip` frames, which it may have by itself; ValueError if it has another number."""
    own = _own_skips(env)
    if frame_skip is None or (frame_skip == 1 and not own):
        return env
    if not own:
        return SkipFrames(env, int(frame_skip))
    if all(isinstance(skip, (int, np.integer)) for skip in own) and math.prod(own) == frame_skip:
        return env
    raise ValueError(
        f"frame_skip={frame_skip}, but {env} skips frames by itself: {' times '.join(map(str, own))} a step; pass "
        "frame_skip=None to keep that, or an env that does not skip"
    )


def _own_skips(env: Env) -> list[Any]:
    """The factors of the frames of a step: the env's own frameskip, and those of the wrappers that are known."""
    skips: list[Any] = []
    while isinstance(env, gymnasium.Wrapper):
        skips += [getattr(env, attribute) for wrapper, attribute in _SKIPPING.items() if isinstance(env, wrapper)]
        env = env.env
    spec_kwargs = {} if env.spec is None else env.spec.kwargs
    skips.append(getattr(env, "_frameskip", getattr(env, "frameskip", spec_kwargs.get("frameskip", 1))))
    return [skip for skip in skips if skip not in (None, 1)]


_SKIPPING_WRAPPERS = {
    "MaxAndSkipObservation": "_skip",
    "RepeatAction": "num_repeats",
    "AtariPreprocessing": "frame_skip",
}
_SKIPPING: dict[type, str] = {
    SkipFrames: "repeats",
    **{getattr(wrappers, name): number for name, number in _SKIPPING_WRAPPERS.items() if hasattr(wrappers, name)},
}
"""The wrappers that repeat actions, and where each has its number; not every version of gymnasium has all of its."""


class Pixels(gymnasium.ObservationWrapper):
    """Adds what the env renders to its observations, under `key`; with `only` that is all that they have.

    An observation that is no dict is kept under "observation". Unlike gymnasium's AddRenderObservation it checks and
    copies frames, which are dicts with `only` too, and passes `render_kwargs` to `render`. Where the `shape` of the
    frames is not given, the env is reset to see one. ValueError where nothing can be rendered.

    Threads render one after the other where pygame's gfxdraw, which is not thread-safe, has been imported.
    """

    spec = property(attrgetter("env.spec"))

    def __init__(
        self,
        env: Env,
        only: bool,
        key: str = "pixels",
        render_kwargs: dict[str, Any] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(f'from_pixels needs an env with render_mode="rgb_array", got {env.render_mode!r}')
        super().__init__(env)
        self._only, self._key, self._render_kwargs = only, key, dict(render_kwargs or {})
        self._in_turn = True
        """True while the next frame may be drawn by gfxdraw: envs import it when they first render."""
        if shape is None:
            env.reset()  # most envs have nothing to show before
            shape = self._frame().shape
        own = env.observation_space
        self.shape = shape
        parts = {} if only else own.spaces if isinstance(own, spaces.Dict) else {"observation": own}
        self.observation_space = spaces.Dict({**parts, key: spaces.Box(0, 255, shape, np.uint8)})

    def observation(self, observation: Any) -> dict[str, Any]:
        """The observation with pixels, given the env's own."""
        own = {} if self._only else observation if isinstance(observation, dict) else {"observation": observation}
        return {**own, self._key: self._frame()}

    def _frame(self) -> np.ndarray:
        frame = render_in_turn(self._render) if self._in_turn else self._render()
        self._in_turn = "pygame.gfxdraw" in sys.modules
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise ValueError(
                f"from_pixels needs frames that are uint8 arrays (height, width, 3), render() of {self.env} returned "
                f"{'None' if frame is None else got}"
            )
        return frame.copy(order="C")

    def _render(self) -> Any:
        if not self._render_kwargs:
            return self.env.render()
        render: Any = self.env.unwrapped.render
        try:
            return render(**self._render_kwargs)
        except TypeError as error:
            raise TypeError(
                f"render() of {self.env} was called with render_kwargs={self._render_kwargs}: {error}; sizes are "
                "often arguments of the constructor: GymEnv(name, width=..., height=...)"
            ) from error
