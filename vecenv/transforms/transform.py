"""`Transform`: the interface of all transforms.

    base env --obs, rew, ...--> transform[0] --> transform[1] --> ... --> caller
    base env <----- action ---- transform[0] <-- transform[1] <-- ... <-- caller

Transforms work on batches (k, ...) of k envs, as arrays or tensors. In a `TransformedEnv`, k is 1.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.layout import space_tree
from vecenv.nest import space_of, tree_of
from vecenv.transforms.arrays import WHOLE, Array, Path, box, described, numeric_bounds, part, replace_parts, row_of

Self = TypeVar("Self", bound="Transform")
AnyFreezable = TypeVar("AnyFreezable", bound="Freezable")
Place = tuple[Path, Path]
"""Paths of the part to read and of the part to write."""
Keys = Sequence[Any] | None


class Rows:
    """Results of a step or reset of k envs. Transforms replace the attributes.

    `obs` is a tree of arrays (k, ...). `reward` is (k,) or (k, m), `terminated` and `truncated` are bool (k,). After a
    reset, these three are `None`. `info` has a dict per row.
    """

    __slots__ = ("_ids", "info", "obs", "reward", "terminated", "truncated")

    def __init__(
        self,
        obs: Any,
        info: Any,
        reward: Array = None,
        terminated: Array = None,
        truncated: Array = None,
        ids: np.ndarray | None = None,
    ) -> None:
        self.obs, self.info = obs, info
        self.reward, self.terminated, self.truncated = reward, terminated, truncated
        self._ids = ids

    @property
    def ids(self) -> np.ndarray:
        """Env ids, int64 (k,)."""
        if self._ids is None:
            self._ids = np.fromiter((row["env_id"] for row in self.info), np.int64, len(self.info))
        return self._ids

    def check_reward(self, transform: Transform, hint: str = "") -> None:
        """Raise ValueError if rewards are vectors. `hint` ends the message."""
        if self.reward.ndim != 1:
            shape = tuple(self.reward.shape[1:])
            raise ValueError(f"{transform} needs rewards that are numbers, got the shape {shape}{hint}")


class Transform:
    """Base class of transforms. A subclass defines methods for the values that it changes:

    - Parts of the observation, without a state: `apply(array)`, on numpy or torch arrays (k, ...). The new space
      is derived from `apply`. `takes(shape, dtype)` selects parts if `in_keys` is `None`.
    - Whole rows: `reset(rows)`, `step(rows)` and `transform_observation_space`.
    - A state per episode: `has_state = True`, the methods for whole rows, `repeat(rows)`, `episode_state(ids)` and
      `set_episode_state(ids, state)`.
    - Actions: `inv(action)` and `transform_action_space`.

    Arguments:
        in_keys: keys of the observation to read. A tuple of keys names a nested part. "observation" names an
            observation that is neither a dict nor a tuple. None: every part that `takes` accepts. Empty: no part.
        out_keys: keys to write, one for each of `in_keys`. None: replace the parts.

    A transform belongs to one env. A transform without a state can also be called with a batch of observations. Raises
    ValueError if the keys do not match the observation.

    >>> class Halved(Transform):
    ...     def apply(self, array):
    ...         return array / 2
    >>> Halved()(np.array([[2.0, 4.0]]))
    array([[1., 2.]])
    """

    has_state = False
    """True if the results depend on earlier rows of the env."""
    needs_parts = True
    """If True and `in_keys` is `None`, an observation without a part that `takes` accepts raises ValueError."""
    ends_episodes = False
    """True if the transform may set `truncated` or `terminated`."""

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        self.in_keys = _paths(in_keys)
        self.out_keys = _paths(out_keys)
        if self.out_keys is not None and (self.in_keys is None or len(self.in_keys) != len(self.out_keys)):
            raise ValueError(f"{self} has out_keys={out_keys!r} for in_keys={in_keys!r}; pass one for each")
        self._owner: Any = None
        self._places: list[Place] | None = None
        self.num_envs = 1

    # For subclasses to define.

    def apply(self, array: Array) -> Array:
        """Return the transformed part of the observation (k, ...)."""
        return array

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Return whether to transform parts with this row shape and dtype if `in_keys` is `None`."""
        return True

    def reset(self, rows: Rows) -> None:
        """Transform the rows of a reset."""
        rows.obs = self.transform_observation(rows.obs)

    def step(self, rows: Rows) -> None:
        """Transform the rows of a step."""
        rows.obs = self.transform_observation(rows.obs)

    def repeat(self, rows: Rows) -> None:
        """Transform rows of failed steps. Their `obs` repeats the env's previous observation. Default: call `step`.

        Changes of rewards and flags are dropped. Do not count such a row as a step of the episode.
        """
        self.step(rows)

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        """Return the state of these envs' episodes: a tree of numpy arrays (k, ...), or an empty dict.

        Raises NotImplementedError if `has_state` is True and the subclass lacks this method.
        """
        if self.has_state:
            name = type(self).__name__
            raise NotImplementedError(
                f"{self} cannot save and restore its state: define episode_state(ids) and "
                f"set_episode_state(ids, state) in {name}, or has_state = False if no state belongs to an episode"
            )
        return {}

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        """Give these envs the state that `episode_state` returned for the same number of envs."""

    def inv(self, action: Any) -> Any:
        """Convert the caller's actions (k, ...) to the env's actions."""
        return action

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """Return a Box with `apply` of the bounds of `space` as bounds.

        Override this method if `apply` is not monotonic.
        """
        low, high = numeric_bounds(space)
        with np.errstate(all="ignore"):
            ends = self.apply(low[None])[0], self.apply(high[None])[0]
        return box(np.minimum(*ends), np.maximum(*ends))

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """Return the space of the transformed observations."""
        tree, places = tree_of(space), self.find_places(space)
        written = [(target, self.transform_space(part(tree, source))) for source, target in places]
        return space_of(replace_parts(tree, (), written)) if places else space

    def transform_action_space(self, space: Any) -> Any:
        """Return the caller's action space for the env's action space `space`."""
        return space

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        """Attach the transform to `owner` with `num_envs` envs, and clear the state."""
        self.num_envs, self._owner = num_envs, None
        self.belong_to(owner)
        self._places = None
        self.clear()

    def belong_to(self, owner: Any) -> None:
        """Make the transform part of `owner`, unless it already belongs to an env."""
        if not self.is_attached:
            self._owner = weakref.ref(owner)

    def clear(self) -> None:
        """Discard the state of all envs."""

    # For subclasses and callers to use.

    def places(self, obs: Any) -> list[Place]:
        """Return the places that the transform reads and writes. The first observation determines them."""
        if self._places is None:
            self._places = self.find_places(obs)
        return self._places

    def transform_observation(self, obs: Any) -> Any:
        """Return an observation, a tree of arrays `(k, ...)`, with its parts transformed by `apply`."""
        written = [(target, self.apply(part(obs, source))) for source, target in self.places(obs)]
        return replace_parts(obs, (), written)

    def __call__(self, obs: Any) -> Any:
        """Return transformed observations. Raises RuntimeError if the transform has a state."""
        if self.has_state:
            raise RuntimeError(f"{self} has a state per env: use it in a TransformedEnv or TransformedVectorEnv")
        own, self._places = self._places, None  # `obs` may be nested unlike the env's observations
        try:
            return self.transform_observation(obs)
        finally:
            self._places = own

    def find_places(self, tree: Any) -> list[Place]:
        """Return the places to transform in a space or tree of arrays.

        Raises ValueError if a key is missing or no part matches.
        """
        if isinstance(tree, spaces.Space):
            tree = space_tree(tree, "observation")
        if self.in_keys is not None:
            sources = [_find(tree, path, self) for path in self.in_keys]
        else:
            rows = {path: row_of(leaf) for path, leaf in nest.items(tree)}
            sources = [path for path, row in rows.items() if row is not None and self.takes(*row)]
            if not sources and self.needs_parts:
                raise ValueError(f"{self} finds no part to transform in the observation {described(tree)}")
        return list(zip(sources, sources if self.out_keys is None else self.out_keys, strict=True))

    @property
    def is_attached(self) -> bool:
        """True if the transform is part of an env."""
        return self._owner is not None and self._owner() is not None

    @property
    def parent(self) -> Any:
        """Env with the same base env and clones of the earlier transforms, or `None` if not attached."""
        owner = None if self._owner is None else self._owner()
        return None if owner is None else owner.env_before(self)

    def clone(self: Self) -> Self:
        """Return a copy that belongs to no env."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the learnt statistics, without the state of episodes.

        If the program has imported torch, arrays are tensors, because `torch.load` refuses arrays by default.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics that `state_dict` returned."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __repr__(self) -> str:
        own, shown = vars(self), ["frozen"] * bool(getattr(self, "frozen", False))
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = own.get(name, parameter.default)
            if name in ("in_keys", "out_keys"):
                value = [path[0] if len(path) == 1 else path for path in value or ()] or None
            if repr(value) != repr(parameter.default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class EnvTransform(Transform):
    """Base class of transforms that step or render a single env, so they work only in a `TransformedEnv`."""

    def __init__(self) -> None:
        super().__init__(in_keys=[])

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Wrap a single env in this transform."""
        raise NotImplementedError


class Freezable(Transform):
    """Base class of transforms that learn statistics unless they are `frozen`."""

    frozen = False
    leaves_rewards = False
    """If True, rewards stay unchanged. `collector.evaluate` sets it, so that returns are sums of the env's rewards."""

    def repeat(self, rows: Rows) -> None:
        frozen, self.frozen = self.frozen, True
        try:
            self.step(rows)
        finally:
            self.frozen = frozen

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        return {}  # the statistics do not belong to an episode

    def freeze(self: AnyFreezable) -> AnyFreezable:
        """Stop updating the statistics, and return this object."""
        self.frozen = True
        return self

    def unfreeze(self: AnyFreezable) -> AnyFreezable:
        """Resume updating the statistics, and return this object."""
        self.frozen = False
        return self

    def frozen_copy(self: AnyFreezable) -> AnyFreezable:
        """Return a frozen clone."""
        return self.clone().freeze()

    @staticmethod
    def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge the `state_dict`s of clones, as if one transform had seen all rows."""
        raise NotImplementedError


def _paths(keys: Keys) -> list[Path] | None:
    if isinstance(keys, str):
        raise ValueError(f"keys must be a list, got the string {keys!r}; pass [{keys!r}]")
    return None if keys is None else [key if isinstance(key, tuple) else (key,) for key in keys]


def _find(tree: Any, path: Path, transform: Transform) -> Path:
    if path == (WHOLE,) and not isinstance(tree, (dict, tuple)):
        return ()
    try:
        leaf = part(tree, path)
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{transform} finds no {path} in the observation {described(tree)}") from None
    if any(row_of(each) is None for each in nest.leaves(leaf)):
        raise ValueError(
            f"{transform} needs arrays with equal shape and dtype in all envs, unlike {path}: put the transform into "
            "a TransformedEnv around each env, or leave this key out"
        )
    return path
