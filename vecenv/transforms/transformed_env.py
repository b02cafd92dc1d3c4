"""`TransformedEnv`, and the transforms FrameSkip, NoopReset and PixelObservation."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.arguments import check_count, check_mapping
from vecenv.backends.host.row_writer import convert_flag, convert_reward, fit_tree
from vecenv.envs.gym_env import Pixels, check_frame_skip, skip_frames
from vecenv.errors import ObservationError
from vecenv.layout import Leaf, space_tree
from vecenv.random_actions import sample_action
from vecenv.transforms.arrays import action_rows
from vecenv.transforms.compose import Compose, HasTransforms
from vecenv.transforms.transform import EnvTransform, Rows, Transform

Env = gymnasium.Env[Any, Any]
Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
MOST_TRIALS = 10
ONLY_ENV = np.zeros(1, np.int64)


class TransformedEnv(HasTransforms, Wrapper):
    """Gymnasium env with transforms around it (as torchrl's TransformedEnv, on numpy).

        env_fns = [lambda: TransformedEnv(gym.make("ALE/Pong-v5"), Compose(GrayScale(), Resize(84)))] * 8

    Without transforms, or with only `FrameSkip`, `NoopReset` and `PixelObservation`, results are not checked.

    Raises:
        TypeError: `env` is not a gymnasium env, or `transform` is not a transform.
        ValueError: a transform does not fit the spaces, or an action for a transform has a wrong shape.
        RuntimeError: a transform already belongs to an env.
        ObservationError: the shape, dtype or keys of an observation do not fit the env's space.
        EnvContractError: a reward is not a number or vector of numbers, or a flag is not a bool.

    >>> from vecenv.transforms import UnsqueezeTransform
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), UnsqueezeTransform(0))
    >>> env.reset(seed=0)[0].shape, env.observation_space.shape
    ((1, 4), (1, 4))
    """

    def __init__(self, env: Env, transform: Any = None) -> None:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(
                f"TransformedEnv wraps a gymnasium env, got {env!r}; for a vector env there is TransformedVectorEnv"
            )
        super().__init__(env)
        self.transform = Compose()
        self._chain = env
        if transform is not None:
            self.append_transform(transform)

    @property
    def base_env(self) -> Env:
        return self.env

    def rebuild(self, transforms: list[Transform]) -> list[tuple[Any, Any]]:
        chain, below = self.env, list[tuple[Any, Any]]()
        for each in transforms:
            below.append((chain.observation_space, chain.action_space))
            if isinstance(each, EnvTransform):
                chain = each.wrap(chain)
            elif chain is not self.env and isinstance(chain, TransformedRows):
                chain = TransformedRows(chain.env, Compose(chain.transform, each))
            else:
                chain = TransformedRows(chain, Compose(each))
        self._chain = chain
        self.observation_space, self.action_space = chain.observation_space, chain.action_space
        return below

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._chain.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._chain.step(action)

    def episode_state(self) -> dict[str, Any]:
        """Return the state of the transforms in the current episode."""
        return self.transform.episode_state(ONLY_ENV)

    def set_episode_state(self, state: dict[str, Any]) -> None:
        """Restore the `episode_state` of an env with equal transforms."""
        self.transform.set_episode_state(ONLY_ENV, state)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.env}, {self.transform})"


class TransformedRows(Wrapper):
    """Env that passes batches of one row to transforms."""

    def __init__(self, env: Env, transform: Compose) -> None:
        super().__init__(env)
        self.transform = transform
        own = env.observation_space
        self._tree = space_tree(own, "obs")
        self.observation_space = transform.transform_observation_space(own)
        self.action_space = transform.transform_action_space(env.action_space)
        self._actions = space_tree(self.action_space, "action")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        rows = Rows(self._batch(obs), [info], ids=ONLY_ENV)
        self.transform.reset(rows)
        return nest.take(rows.obs, 0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.transform.changes_actions:
            action = nest.take(self.transform.inv(action_rows(action, self._actions, one=True)), 0)
        obs, reward, terminated, truncated, info = self.env.step(action)
        number, vector = convert_reward(reward)
        reward_row = np.array([number]) if vector is None else vector[None]
        flags = np.array([[convert_flag("terminated", terminated)], [convert_flag("truncated", truncated)]])
        rows = Rows(self._batch(obs), [info], reward_row, flags[0], flags[1], ONLY_ENV)
        self.transform.step(rows)
        reward = float(rows.reward[0]) if rows.reward.ndim == 1 else rows.reward[0]
        return nest.take(rows.obs, 0), reward, bool(rows.terminated[0]), bool(rows.truncated[0]), info

    def _batch(self, obs: Any) -> Any:
        try:
            return nest.merge(_as_batch, [self._tree, fit_tree(obs, self._tree)])
        except (ValueError, TypeError, ObservationError) as error:
            raise ObservationError(f"{self.env} returned an observation outside its space: {error}") from error


def _as_batch(leaf_and_part: list[Any]) -> np.ndarray:
    leaf, part = leaf_and_part
    return part[None] if isinstance(leaf, Leaf) else nest.object_array([part])


class FrameSkip(EnvTransform):
    """Repeat each action `frame_skip` times, or until the episode ends, and sum the rewards.

    Earlier transforms see each of these steps. Later transforms see one step, with the last observation. An env that
    already repeats actions `frame_skip` times (Atari's `frameskip`) stays unchanged. Raises ValueError if the env
    repeats actions a different number of times, unless `frame_skip` is 1.

    >>> from vecenv.transforms import StepCounter
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), [StepCounter(), FrameSkip(4)])
    >>> obs, info = env.reset(seed=0)
    >>> obs, reward, terminated, truncated, info = env.step(0)
    >>> obs["step_count"], reward
    (array([4]), 4.0)
    """

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        self.frame_skip = check_frame_skip(frame_skip)

    def wrap(self, env: Env) -> Env:
        return env if self.frame_skip == 1 else skip_frames(env, self.frame_skip)


class NoopReset(EnvTransform):
    """Make some steps after each reset, so that episodes start differently (as torchrl's NoopResetEnv).

    Arguments:
        noops: number of steps.
        random: draw the number of steps uniformly from 0 to `noops`, inclusive.
        action: "random" (as in torchrl), or an action, such as Atari's no-op 0 (as in gymnasium and SB3).

    The seed of `reset` determines the number and the actions. If the episode ends during these steps, the env is reset
    again. Raises RuntimeError after 10 such episodes. Earlier transforms see these steps.

    >>> from vecenv.transforms import StepCounter
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), [StepCounter(), NoopReset(5, random=False)])
    >>> env.reset(seed=0)[0]["step_count"]
    array([5])
    """

    def __init__(self, noops: int = 30, random: bool = True, action: Any = "random") -> None:
        super().__init__()
        if isinstance(action, str) and action != "random":
            raise ValueError(f'action must be "random" or an action of the env, got {action!r}')
        self.noops, self.random, self.action = check_count("noops", noops), bool(random), action

    def wrap(self, env: Env) -> Env:
        return _NoopReset(env, self)


class _NoopReset(Wrapper):
    def __init__(self, env: Env, transform: NoopReset) -> None:
        super().__init__(env)
        self._noops, self._is_random, self._action = transform.noops, transform.random, transform.action
        # Own generators, so that env and action space draw the same numbers as without this transform.
        self._draws: np.random.Generator | None = None
        self._actions = copy.deepcopy(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None or self._draws is None:
            self._draws = np.random.default_rng(seed)
            self._actions.seed(int(self._draws.integers(2**31)))
        for trial in range(MOST_TRIALS):
            obs, info = self.env.reset(seed=seed if trial == 0 else None, options=options)
            noops = int(self._draws.integers(self._noops + 1)) if self._is_random else self._noops
            for _ in range(noops):
                action = sample_action(self._actions, obs, info) if isinstance(self._action, str) else self._action
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
    """Observe the rendered image, uint8 (height, width, 3), in a dict (as `GymEnv(from_pixels=True)`).

    Arguments:
        pixels_only: if False, keep the env's observation, too. An observation that is not a dict gets the key
            "observation".
        key: key of the image.
        render_kwargs: arguments of the env's `render`.

    Raises ValueError unless the env has `render_mode="rgb_array"`. Adding the transform resets the env
    twice, to find the image's shape.

    >>> env = TransformedEnv(gymnasium.make("CartPole-v1", render_mode="rgb_array"), PixelObservation())
    >>> env.reset(seed=0)[0]["pixels"].shape
    (400, 600, 3)
    """

    def __init__(
        self, pixels_only: bool = True, key: str = "pixels", render_kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.pixels_only, self.key = pixels_only, key
        self.render_kwargs = check_mapping("render_kwargs", render_kwargs)
        self._shape: tuple[int, ...] | None = None

    def wrap(self, env: Env) -> Env:
        wrapped = Pixels(env, self.pixels_only, self.key, self.render_kwargs, self._shape)
        self._shape = wrapped.shape  # cached, because `Pixels` resets the env to find it
        return wrapped
