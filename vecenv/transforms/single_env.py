"""Transforms that step or render a single env: FrameSkip, NoopReset, PixelObservation. For `TransformedEnv` alone."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np

from vecenv.engine.arguments import check_count
from vecenv.envs.frame_wrappers import Pixels, check_frame_skip, skip_frames
from vecenv.transforms.transform import EnvTransform

Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
MOST_TRIALS = 10


class FrameSkip(EnvTransform):
    """Gives each action to the env `frame_skip` times, or until the episode ends, and sums the rewards.

    Transforms before it see every frame, those behind it the last one. An env that skips so many frames by itself
    (Atari's `frameskip`) skips no second time; ValueError for one that skips another number.

    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), FrameSkip(4))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[1]
    4.0
    """

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        self.frame_skip = check_frame_skip(frame_skip)

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return env if self.frame_skip == 1 else skip_frames(env, self.frame_skip)

    def __repr__(self) -> str:
        return f"FrameSkip({self.frame_skip})"


class NoopReset(EnvTransform):
    """Makes steps after each reset, so that episodes begin differently (as torchrl's NoopResetEnv).

    Arguments:
        noops: how many steps.
        random: True: between 0 and `noops` of them, each number as likely; False: exactly `noops`.
        action: "random" for random actions (torchrl), or the action to take: 0 does nothing in Atari (gymnasium, SB3).

    The numbers and actions follow from the seed of `reset`. An episode that ends meanwhile is begun anew, up to 10
    times; then a RuntimeError. Transforms before it see the steps.

    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> from vecenv.transforms.per_episode import StepCounter
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), [StepCounter(), NoopReset(5, random=False)])
    >>> env.reset(seed=0)[0]["step_count"]
    array([5])
    """

    def __init__(self, noops: int = 30, random: bool = True, action: Any = "random") -> None:
        super().__init__()
        self.noops, self.random, self.action = check_count("noops", noops), bool(random), action

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return _NoopReset(env, self)

    def __repr__(self) -> str:
        return f"NoopReset({self.noops}, random={self.random}, action={self.action!r})"


class _NoopReset(Wrapper):
    def __init__(self, env: gymnasium.Env[Any, Any], transform: NoopReset) -> None:
        super().__init__(env)
        self._noops, self._is_random, self._action = transform.noops, transform.random, transform.action
        # Draws of its own: those of the env and of its action space stay what they are without this transform.
        self._draws: np.random.Generator | None = None
        self._actions = copy.deepcopy(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or self._draws is None:
            own = int(np.random.randint(2**31)) if seed is None else seed
            self._draws = np.random.default_rng(own)
            self._actions.seed(int(self._draws.integers(2**31)))
        for trial in range(MOST_TRIALS):
            obs, info = self.env.reset(seed=seed if trial == 0 else None, options=options)
            noops = int(self._draws.integers(self._noops + 1)) if self._is_random else self._noops
            for _ in range(noops):
                action = self._actions.sample() if isinstance(self._action, str) else self._action
                obs, _, terminated, truncated, info = self.env.step(action)
                if terminated or truncated:
                    break
            else:
                return obs, info
        raise RuntimeError(
            f"{MOST_TRIALS} episodes of {self.env} ended within {self._noops} steps after their reset: use "
            "NoopReset with fewer noops"
        )


class PixelObservation(EnvTransform):
    """Observes what `render` returns: uint8 (height, width, 3), under a key of a dict (as `GymEnv(from_pixels=True)`).

    Arguments:
        pixels_only: drop the env's own observation; False keeps it, as "observation" or under the keys of its Dict.
        key: that of the pixels.
        render_kwargs: for the env's own `render`.

    The env needs `render_mode="rgb_array"` (ValueError), and is reset once, when the transform is added.

    >>> from vecenv.transforms.transformed_env import TransformedEnv
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1", render_mode="rgb_array"), PixelObservation())
    >>> env.reset(seed=0)[0]["pixels"].shape
    (400, 600, 3)
    """

    def __init__(
        self, pixels_only: bool = True, key: str = "pixels", render_kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.pixels_only, self.key, self.render_kwargs = pixels_only, key, render_kwargs
        self._shape: tuple[int, ...] | None = None

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        wrapped = Pixels(env, self.pixels_only, self.key, self.render_kwargs, self._shape)
        self._shape = wrapped.shape  # known now: to look again would reset the env
        return wrapped

    def __repr__(self) -> str:
        return f"PixelObservation(pixels_only={self.pixels_only}, key={self.key!r})"
