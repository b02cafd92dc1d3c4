"""`TransformedVectorEnv`: a vector env with transforms of whole batches."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from vecenv import nest
from vecenv.actions import is_tree_of_batches
from vecenv.arguments import seed_chain
from vecenv.base import BaseVectorEnv
from vecenv.layout import common_tree, space_tree
from vecenv.spaces import separate_generators
from vecenv.transforms.arrays import action_rows
from vecenv.transforms.compose import Compose, HasTransforms
from vecenv.transforms.transform import EnvTransform, Rows, Transform
from vecenv.wrappers import RowWiseWrapper


class TransformedVectorEnv(HasTransforms, RowWiseWrapper):
    """Vector env with transforms, which run in the caller's process.

        venv = TransformedVectorEnv(ShmemVectorEnv(env_fns), Compose(GrayScale(), Resize(84), ToTensorImage()))

    Results are as if each env were a `TransformedEnv`, but all envs share the statistics of `VecNorm` and
    `NormalizeReward`. A reset of an env clears its stacked frames and counters.

    If a transform ends episodes (`TimeLimit`), `step(action, autoreset=True)` raises TypeError, because the worker that
    resets the env does not know of this end.

    Raises TypeError unless `venv` is a vecenv vector env, and for `FrameSkip`, `NoopReset` and `PixelObservation`,
    which need a `TransformedEnv`. Raises ValueError if a transform does not fit the spaces, and RuntimeError if a
    transform already belongs to an env.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> from vecenv.transforms import UnsqueezeTransform
    >>> with TransformedVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 3)) as venv:
    ...     venv = venv.append_transform(UnsqueezeTransform(0))
    ...     venv.reset()[0].shape, venv.observation_space[0].shape, venv.transform[0].parent.transform
    ((3, 1, 4), (1, 4), Compose())
    """

    def __init__(self, venv: Any, transform: Any = None) -> None:
        if not isinstance(venv, BaseVectorEnv):
            raise TypeError(
                f"TransformedVectorEnv wraps a vector env of vecenv, such as ShmemVectorEnv(env_fns), got {venv!r}; "
                "for a single env there is TransformedEnv"
            )
        super().__init__(venv)
        self.transform = Compose()
        self._observation_space: list[Any] | None = None
        self._action_space: list[Any] | None = None
        self._actions: Any = None
        if transform is not None:
            self.append_transform(transform)

    @property
    def base_env(self) -> Any:
        return self.venv

    @property
    def keeps_autoreset(self) -> bool:
        """False if a transform ends episodes."""
        return not any(each.ends_episodes for each in self.transform)

    @property
    def observation_space(self) -> list[Any]:
        """Spaces of the transformed observations, per env."""
        own = self.venv.observation_space  # always read, so that a closed vector env raises an error
        return own if self._observation_space is None else self._observation_space

    @property
    def action_space(self) -> list[Any]:
        """Spaces of the caller's actions, per env. `seed` and `set_seed` seed these spaces."""
        own = self.venv.action_space
        return own if self._action_space is None else self._action_space

    def rebuild(self, transforms: list[Transform]) -> list[tuple[Any, Any]]:
        for each in transforms:
            if isinstance(each, EnvTransform):
                raise TypeError(
                    f"{each} steps or renders a single env: put it into TransformedEnv(env, {each}) in the env_fns"
                )
        if getattr(self.venv, "splits_obs", False):
            raise ValueError(
                "transforms take Dict and Tuple observations as stacked arrays: make the venv with stack_obs=True"
            )
        spaces, own, below = list(self.venv.observation_space), list(self.venv.action_space), list[Any]()
        actions = own
        for each in transforms:
            below.append((spaces[0], actions[0]))
            if each.in_keys != []:  # else the transform reads no part of the observation
                _check_equal(each, spaces)
            spaces = _each_once(each.transform_observation_space, spaces)
            if type(each).transform_action_space is not Transform.transform_action_space:
                if any(space != actions[0] for space in actions):
                    raise ValueError(f"{each} needs envs with equal action spaces, got {actions}")
                actions = _each_once(each.transform_action_space, actions)
        self._observation_space = spaces if transforms else None
        self._actions = common_tree(actions, "action")
        changes = any(new is not old for new, old in zip(actions, own, strict=True))
        self._action_space = [copy.deepcopy(space) for space in actions] if changes else None
        separate_generators(self._action_space or ())
        return below

    def map_action(self, action: Any) -> Any:
        if not self.transform.changes_actions:
            return action
        if isinstance(action, (list, tuple)) and not is_tree_of_batches(action, self._actions):
            action = nest.merge(lambda rows: nest.namespace(rows[0]).stack(rows), action)
        return self.transform.inv(action_rows(action, self._actions))

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        rows = Rows(obs, info)
        self.transform.reset(rows)
        return rows.obs, info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        if self._observation_space is None:  # no transforms
            return obs, rew, terminated, truncated, info
        rows = Rows(obs, info, rew, terminated, truncated)
        self.transform.step(rows)
        return rows.obs, rows.reward, rows.terminated, rows.truncated, info

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Transform the observations of failed envs. Rewards and flags stay."""
        rows = Rows(obs, info, rew, terminated, truncated)
        self.transform.repeat(rows)
        return rows.obs, rew, terminated, truncated, info

    def episode_state(self, ids: np.ndarray) -> dict[str, Any]:
        return self.transform.episode_state(ids)

    def set_episode_state(self, ids: np.ndarray, state: dict[str, Any]) -> None:
        self.transform.set_episode_state(ids, state)

    def seed(self, seed: Any = None) -> Any:
        """Call `venv.seed`, and seed the transformed action spaces."""
        seeds = super().seed(seed)
        self._seed_action_spaces(seeds)
        return seeds

    def set_seed(self, seed: Any, static_seed: bool = False) -> Any:
        """Call `venv.set_seed`, and seed the transformed action spaces."""
        following = super().set_seed(seed, static_seed)
        if seed is not None:
            self._seed_action_spaces([seed] * len(self) if static_seed else seed_chain(seed, len(self)))
        return following

    def _seed_action_spaces(self, seeds: Any) -> None:
        for space, seed in zip(self._action_space or (), seeds, strict=False):
            if seed is not None:
                space.seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of the transforms, and of `venv` if it has a `state_dict`."""
        below = getattr(self.venv, "state_dict", None)
        return super().state_dict() | ({} if below is None else {"venv": below()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of an equal chain of transforms. Raises ValueError for a different chain."""
        if ("venv" in state) != hasattr(self.venv, "state_dict"):
            raise ValueError(f"the state does not fit {self!r}: only one of them has statistics of `venv`")
        super().load_state_dict({name: each for name, each in state.items() if name != "venv"})
        if "venv" in state:
            self.venv.load_state_dict(state["venv"])

    def __repr__(self) -> str:
        return f"TransformedVectorEnv({self.venv!r}, {self.transform})"


def _check_equal(transform: Transform, spaces: list[Any]) -> None:
    """Raise ValueError unless all spaces have the same parts, shapes, dtypes and discrete values."""
    forms = [nest.map(_form_of, nest.tree_of(space)) for space in spaces]
    if others := [i for i, form in enumerate(forms) if form != forms[0]]:
        raise ValueError(
            f"{transform} needs envs with equal observation spaces, but env 0 has {spaces[0]}, unlike envs {others}: "
            f"{spaces[others[0]]} (env {others[0]}); put the transform into a TransformedEnv around each env"
        )


def _form_of(space: Any) -> Any:
    return space if isinstance(space, (Discrete, MultiDiscrete)) else space_tree(space, "observation")


def _each_once(function: Any, spaces: list[Any]) -> list[Any]:
    first = function(spaces[0])
    return [first if space == spaces[0] else function(space) for space in spaces]
