"""TransformedEnv: a single env with transforms around it, for env_fns: it works in the worker."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.host.row_writer import cast_exactly
from vecenv.backends.memory.arena import ObjectLeaf, space_tree
from vecenv.errors import EnvContractError, ObservationError
from vecenv.transforms.compose import Compose, HasTransforms
from vecenv.transforms.transform import EnvTransform, Rows, Transform

ONLY_ENV = np.zeros(1, np.int64)
"""The ids of the rows of a single env."""


class TransformedEnv(HasTransforms, gymnasium.Wrapper[Any, Any, Any, Any]):
    """A gymnasium env with transforms around it (as torchrl's TransformedEnv, on numpy).

        env_fns = [lambda: TransformedEnv(gym.make("ALE/Pong-v5"), Compose(GrayScale(), Resize(84)))] * 8
        venv = ShmemVectorEnv(env_fns)                       # each worker transforms what its envs return

    `env.transform[0]` is a transform, `env.transform[0].parent` the env with those before it, `env.base_env` the env
    itself. Spaces are those of what comes out and goes in. For a whole vector env there is `TransformedVectorEnv`.

    Raises TypeError for what is no gymnasium env or no transform, ValueError where a transform does not fit what it
    gets, RuntimeError for a transform that belongs to another env; in `step` and `reset`, ObservationError for an
    observation that is not in the env's space.

    >>> from vecenv.transforms.shapes import UnsqueezeTransform
    >>> env = TransformedEnv(gymnasium.make("CartPole-v1"), UnsqueezeTransform(0))
    >>> env.reset(seed=0)[0].shape, env.observation_space.shape
    ((1, 4), (1, 4))
    """

    def __init__(self, env: gymnasium.Env[Any, Any], transform: Any = None) -> None:
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
    def base_env(self) -> gymnasium.Env[Any, Any]:
        """The env below the transforms."""
        return self.env

    def rebuild(self, transforms: list[Transform], start: int) -> None:
        """Take these transforms, of which those before `start` are in place."""
        chain, below = self.env, list[tuple[Any, Any]]()
        for each in transforms:
            below.append((chain.observation_space, chain.action_space))
            if isinstance(each, EnvTransform):
                chain = each.wrap(chain)
            elif chain is not self.env and isinstance(chain, TransformedRows):
                chain = TransformedRows(chain.env, Compose(chain.transform, each))
            else:
                chain = TransformedRows(chain, Compose(each))
        self._chain, self.transform = chain, Compose(*transforms)
        self.observation_space, self.action_space = chain.observation_space, chain.action_space
        for each, spaces in list(zip(transforms, below, strict=True))[start:]:
            each.attach(self, 1, *spaces)

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


class TransformedRows(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with transforms of rows around it, for which it is a batch of one row."""

    def __init__(self, env: gymnasium.Env[Any, Any], transform: Compose) -> None:
        super().__init__(env)
        self.transform = transform
        own = getattr(env, "observation_space", None)
        if own is None:
            raise ValueError(f"transforms need an env with an observation_space, {env} has none")
        self._tree = space_tree(own, "obs")
        self.observation_space = transform.transform_observation_space(own)
        self.action_space = transform.transform_action_space(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: (obs, info)."""
        obs, info = self.env.reset(seed=seed, options=options)
        rows = Rows(self._batch(obs), [info], ids=ONLY_ENV)
        self.transform.reset(rows)
        return nest.take(rows.obs, 0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        if self.transform.changes_actions:
            action = nest.take(self.transform.inv(nest.map(lambda leaf: np.asarray(leaf)[None], action)), 0)
        obs, reward, terminated, truncated, info = self.env.step(action)
        paid = np.asarray(reward)
        if paid.dtype.kind not in "biuf":
            raise EnvContractError(f"a reward must be a number or an array of numbers, {self.env} returned {reward!r}")
        flags = np.array([[bool(terminated)], [bool(truncated)]])
        rows = Rows(self._batch(obs), [info], paid.astype(np.float64)[None], flags[0], flags[1], ONLY_ENV)
        self.transform.step(rows)
        reward = rows.reward[0]
        return (
            nest.take(rows.obs, 0),
            float(reward) if reward.ndim == 0 else reward,
            bool(rows.terminated[0]),
            bool(rows.truncated[0]),
            info,
        )

    def _batch(self, obs: Any) -> Any:
        """The observation as a batch of one row, in the dtypes of the space."""
        try:
            return nest.merge(_as_row, [self._tree, obs])
        except (KeyError, ValueError, TypeError) as error:
            raise ObservationError(f"{self.env} returned an observation that is not of its space: {error}") from error


def _as_row(leaf_and_value: list[Any]) -> np.ndarray:
    leaf, value = leaf_and_value
    if isinstance(leaf, ObjectLeaf):
        return nest.object_array([value])
    array = np.asarray(value)
    if array.dtype is not leaf.dtype:
        cast = cast_exactly(array, leaf.dtype)
        if cast is None:
            raise ValueError(f"{leaf.path} is {array.dtype}, expected {leaf.dtype}")
        array = cast
    if array.shape != leaf.shape:
        if array.shape + leaf.shape != (1,):  # () and (1,) are interchangeable
            raise ValueError(f"{leaf.path} has the shape {array.shape}, expected {leaf.shape}")
        array = array.reshape(leaf.shape)
    return array[None]
