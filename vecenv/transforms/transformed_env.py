"""`TransformedEnv`: one env with transforms around it. It runs in the worker.

FrameSkip, NoopReset and PixelObservation step or render that env: transforms for it alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.host.row_writer import fit, odd_flag, odd_reward, wrong_keys
from vecenv.backends.memory.arena import Leaf, space_tree
from vecenv.engine.arguments import check_count
from vecenv.envs.gym_env import Pixels, check_frame_skip, skip_frames
from vecenv.errors import ObservationError
from vecenv.transforms.arrays import action_rows
from vecenv.transforms.compose import Compose, HasTransforms
from vecenv.transforms.transform import EnvTransform, Rows, Transform

Env = gymnasium.Env[Any, Any]
Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
MOST_TRIALS = 10
ONLY_ENV = np.zeros(1, np.int64)
"""The ids of the rows of a single env."""


class TransformedEnv(HasTransforms, Wrapper):
    """A gymnasium env with transforms around it (as torchrl's TransformedEnv, on numpy).

        env_fns = [lambda: TransformedEnv(gym.make("ALE/Pong-v5"), Compose(GrayScale(), Resize(84)))] * 8
        venv = ShmemVectorEnv(env_fns)                       # each worker transforms what its envs return

    `env.transform[0]` is a transform, `env.transform[0].parent` the env with those before it, `env.base_env` the env
    itself. Spaces are those of what comes out and goes in. For a whole vector env there is `TransformedVectorEnv`.

    Raises TypeError for what is no gymnasium env or no transform, ValueError where a transform does not fit what it
    gets, RuntimeError for a transform that belongs to another env. `step` and `reset` raise ObservationError for an
    observation that has another form than the env's space, EnvContractError for a reward that is no number and a flag
    that is no bool, ValueError for an action of another shape than the action space.

    >>> from vecenv.transforms.shapes import UnsqueezeTransform
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
        """The env below the transforms."""
        return self.env

    def rebuild(self, transforms: list[Transform]) -> list[tuple[Any, Any]]:
        """Wrap the env in a chain of these transforms; return the spaces below each of them."""
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
        """Start an episode: (obs, info)."""
        return self._chain.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env: (obs, reward, terminated, truncated, info)."""
        return self._chain.step(action)

    def episode_state(self) -> dict[str, Any]:
        """The state of the transforms along the episode: a part of `get_state` of a vector env."""
        return self.transform.episode_state(ONLY_ENV)

    def set_episode_state(self, state: dict[str, Any]) -> None:
        """Go on from the `episode_state` of an equal chain; ValueError where it is that of another."""
        self.transform.set_episode_state(ONLY_ENV, state)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.env}, {self.transform})"


class TransformedRows(Wrapper):
    """An env with transforms of rows around it, for which it is a batch of one row."""

    def __init__(self, env: Env, transform: Compose) -> None:
        super().__init__(env)
        self.transform = transform
        own = getattr(env, "observation_space", None)
        if own is None:
            raise ValueError(f"transforms need an env with an observation_space, {env} has none")
        self._tree = space_tree(own, "obs")
        self.observation_space = transform.transform_observation_space(own)
        self.action_space = transform.transform_action_space(env.action_space)
        self._actions = space_tree(self.action_space, "action")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: (obs, info)."""
        obs, info = self.env.reset(seed=seed, options=options)
        rows = Rows(self._batch(obs), [info], ids=ONLY_ENV)
        self.transform.reset(rows)
        return nest.take(rows.obs, 0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        if self.transform.changes_actions:
            action = nest.take(self.transform.inv(action_rows(action, self._actions, one=True)), 0)
        obs, reward, terminated, truncated, info = self.env.step(action)
        number, vector = odd_reward(reward)
        paid = np.array([number]) if vector is None else vector[None]
        flags = np.array([[odd_flag("terminated", terminated)], [odd_flag("truncated", truncated)]])
        rows = Rows(self._batch(obs), [info], paid, flags[0], flags[1], ONLY_ENV)
        self.transform.step(rows)
        reward = float(rows.reward[0]) if rows.reward.ndim == 1 else rows.reward[0]
        return nest.take(rows.obs, 0), reward, bool(rows.terminated[0]), bool(rows.truncated[0]), info

    def _batch(self, obs: Any) -> Any:
        """The observation as a batch of one row, in the dtypes of the space."""
        try:
            return _as_rows(self._tree, obs)
        except (ValueError, TypeError, ObservationError) as error:
            raise ObservationError(f"{self.env} returned an observation that is not of its space: {error}") from error


def _as_rows(tree: Any, obs: Any) -> Any:
    """The observation as a batch of one row, of the form of the tree of leaves of its space."""
    if isinstance(tree, Leaf):
        return fit(obs, tree)[None]
    if isinstance(tree, dict):
        if not isinstance(obs, Mapping):
            raise ObservationError(f"it is a {type(obs).__name__}, expected a dict with the keys {list(tree)}")
        if obs.keys() != tree.keys():
            raise wrong_keys(obs, tree)
        return {key: _as_rows(leaf, obs[key]) for key, leaf in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_as_rows(leaf, value) for leaf, value in zip(tree, obs, strict=True))
    return nest.object_array([obs])


class FrameSkip(EnvTransform):
    """Gives each action to the env `frame_skip` times, or until the episode ends, and sums the rewards.

    Transforms before it see every frame, those behind it the last one. An env that skips so many frames by itself
    (Atari's `frameskip`) skips no second time; ValueError for one that skips another number.

    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), FrameSkip(4))
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[1]
    4.0
    """

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        self.frame_skip = check_frame_skip(frame_skip)

    def wrap(self, env: Env) -> Env:
        return env if self.frame_skip == 1 else skip_frames(env, self.frame_skip)


class NoopReset(EnvTransform):
    """Makes steps after each reset, so that episodes begin differently (as torchrl's NoopResetEnv).

    Arguments:
        noops: how many steps.
        random: True: between 0 and `noops` of them, each number as likely; False: exactly `noops`.
        action: "random" for random actions (torchrl), or the action to take: 0 does nothing in Atari (gymnasium, SB3).

    The numbers and actions follow from the seed of `reset`. An episode that ends meanwhile is begun anew, up to 10
    times; then a RuntimeError. Transforms before it see the steps.

    >>> from vecenv.transforms.per_episode import StepCounter
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), [StepCounter(), NoopReset(5, random=False)])
    >>> env.reset(seed=0)[0]["step_count"]
    array([5])
    """

    def __init__(self, noops: int = 30, random: bool = True, action: Any = "random") -> None:
        super().__init__()
        if isinstance(action, str) and action != "random":
            raise ValueError(f'action is "random" or an action, got {action!r}')
        self.noops, self.random, self.action = check_count("noops", noops), bool(random), action

    def wrap(self, env: Env) -> Env:
        return _NoopReset(env, self)


class _NoopReset(Wrapper):
    def __init__(self, env: Env, transform: NoopReset) -> None:
        super().__init__(env)
        self._noops, self._is_random, self._action = transform.noops, transform.random, transform.action
        # Draws of its own: those of the env and of its action space stay what they are without this transform.
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

    def wrap(self, env: Env) -> Env:
        wrapped = Pixels(env, self.pixels_only, self.key, self.render_kwargs, self._shape)
        self._shape = wrapped.shape  # known now: to look again would reset the env
        return wrapped
