"""Observations in pixels: what `render` returns, alone or beside the env's own observation."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.backends.host.env_access import render_in_turn


class Pixels:
    """Adds what the env shows to its observations, under `key`; with `only` that is all that they have.

    An observation that is no dict is kept under "observation". ValueError where nothing can be rendered.

    Threads render one after the other where pygame's gfxdraw, which is not thread-safe, has been imported.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], only: bool, key: str = "pixels", render_kwargs: dict[str, Any] | None = None
    ) -> None:
        if env.render_mode != "rgb_array":
            raise ValueError(f'from_pixels needs an env with render_mode="rgb_array", got {env.render_mode!r}')
        self._env, self._only, self._key, self._render_kwargs = env, only, key, dict(render_kwargs or {})
        self._in_turn = True
        """Whether the next frame may be drawn by gfxdraw: envs import it when they first render."""

    def space(self, shape: tuple[int, ...] | None = None) -> spaces.Dict:
        """The space of the observations with pixels. Where their shape is not given, the env is reset to see one."""
        if shape is None:
            self._env.reset()  # most envs have nothing to show before
            shape = self.frame().shape
        own = self._env.observation_space
        parts = {} if self._only else own.spaces if isinstance(own, spaces.Dict) else {"observation": own}
        return spaces.Dict({**parts, self._key: spaces.Box(0, 255, shape, np.uint8)})

    def observation(self, obs: Any) -> dict[str, Any]:
        """The observation with pixels, given the env's own."""
        own = {} if self._only else obs if isinstance(obs, dict) else {"observation": obs}
        return {**own, self._key: self.frame()}

    def frame(self) -> np.ndarray:
        """What the env shows now, uint8 (height, width, 3), the caller's to keep."""
        frame = render_in_turn(self._render) if self._in_turn else self._render()
        self._in_turn = "pygame.gfxdraw" in sys.modules
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            raise ValueError(
                "from_pixels needs frames that are uint8 arrays (height, width, 3), "
                f"render() of {self._env} returned {_described(frame)}"
            )
        return frame.copy(order="C")

    def _render(self) -> Any:
        if not self._render_kwargs:
            return self._env.render()
        render: Any = self._env.unwrapped.render
        try:
            return render(**self._render_kwargs)
        except TypeError as error:
            raise TypeError(
                f"render() of {self._env} was called with render_kwargs={self._render_kwargs}: {error}; sizes are "
                "often arguments of the constructor: GymEnv(name, width=..., height=...)"
            ) from error


def _described(frame: Any) -> str:
    if isinstance(frame, np.ndarray):
        return f"{frame.dtype} {frame.shape}"
    return "None" if frame is None else f"a {type(frame).__name__}"
