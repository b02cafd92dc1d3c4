"""`Transform`: the interface of all transforms.

    base env --obs, rew, ...--> transform[0] --> transform[1] --> ... --> caller
    base env <----- action ---- transform[0] <-- transform[1] <-- ... <-- caller

A transform sees batches of rows (k, ...). A single env in a worker is a batch of one row, a vector env in the parent
one of all envs or some, and tensors on a device are batches too: so one object gives the same result in each place.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.memory.arena import space_tree
from vecenv.nest import space_of, tree_of
from vecenv.transforms.arrays import WHOLE, Array, Path, bounds_of, box, described, leaves_of, moved_parts, part, row_of

Self = TypeVar("Self", bound="Transform")
AnyFreezable = TypeVar("AnyFreezable", bound="Freezable")
Place = tuple[Path, Path]
"""The path to a part that is read, and the path to which it is written."""
Keys = Sequence[Any] | None
"""Names of parts of the observation."""


class Rows:
    """The rows of a round, which transforms change in place.

    `obs` is a tree of arrays (k, ...). `reward` is (k,) or (k, m), `terminated` and `truncated` are bool (k,); all
    three are None for rows that `reset` returned. `info` has one dict a row.
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
        """The env of each row, int64 (k,)."""
        if self._ids is None:
            self._ids = np.fromiter((row["env_id"] for row in self.info), np.int64, len(self.info))
        return self._ids

    def check_reward(self, transform: Transform, hint: str = "") -> None:
        """ValueError, with the hint, where the rewards are vectors."""
        if self.reward.ndim != 1:
            shape = tuple(self.reward.shape[1:])
            raise ValueError(f"{transform} needs rewards that are numbers, got the shape {shape}{hint}")


class Transform:
    """Base of transforms. A subclass defines what it changes.

    - Parts of the observation, each by itself and without a state: `apply(array)`, on arrays (k, ...) of numpy or
      torch. Spaces follow from that. `takes(shape, dtype)` says which parts are meant where `in_keys` is None.
    - Anything else about rows: `reset(rows)` and `step(rows)`, and `transform_observation_space`; with a state along
      the episode also `repeat(rows)`, `episode_state(ids)` and `set_episode_state(ids, state)`.
    - Actions: `inv(action)` and `transform_action_space`.
    - A single env, as a wrapper of it: `EnvTransform`, which can only be part of a `TransformedEnv`.

    Arguments:
        in_keys: keys of the observation to read; a tuple of keys names a part of a part, and "observation" an
            observation that is no dict. None: every part that `takes` accepts. Empty: none.
        out_keys: keys to write, as many as `in_keys`; None: in the place of those that were read.

    A transform belongs to one env. Called with an observation, it returns the transformed one, if it has no state.
    ValueError for keys that do not fit.

    >>> class Halved(Transform):
    ...     def apply(self, array):
    ...         return array / 2
    >>> Halved()(np.array([[2.0, 4.0]]))
    array([[1., 2.]])
    """

    has_state = False
    """True if the results depend on earlier rows of the env."""
    needs_parts = True
    """True if an observation without a part that it takes is an error."""
    ends_episodes = False
    """True if it may set `truncated` or `terminated`."""

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
        """A part of the observation (k, ...), transformed."""
        return array

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Return whether a part with rows of this shape and dtype is transformed where `in_keys` is None."""
        return True

    def reset(self, rows: Rows) -> None:
        """Transform rows of envs that were reset."""
        rows.obs = self.transform_observation(rows.obs)

    def step(self, rows: Rows) -> None:
        """Transform rows of envs that stepped."""
        rows.obs = self.transform_observation(rows.obs)

    def repeat(self, rows: Rows) -> None:
        """Transform rows of envs that failed, whose observations have been transformed before: reward and flags stay as
        they are. As `step`, which a transform that counts steps must not do here.
        """
        self.step(rows)

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        """The state along the episodes of these envs, a tree of arrays of numpy (k, ...); empty if nothing is kept.

        NotImplementedError for a transform with a state that defines neither this nor `set_episode_state`.
        """
        if self.has_state:
            name = type(self).__name__
            raise NotImplementedError(
                f"{self} has a state that cannot be taken and set: define episode_state(ids) and "
                f"set_episode_state(ids, state) in {name}, or has_state = False if it keeps nothing along an episode"
            )
        return {}

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        """Go on from the state that `episode_state` returned for as many envs."""

    def inv(self, action: Any) -> Any:
        """The actions (k, ...) for the env, given the actions that the caller passes."""
        return action

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """The space of a part, given that of the argument of `apply`: with the bounds to which it maps its bounds.

        Assumes that `apply` preserves or reverses order.
        """
        low, high = bounds_of(space)
        with np.errstate(all="ignore"):
            ends = self.apply(low[None])[0], self.apply(high[None])[0]
        return box(np.minimum(*ends), np.maximum(*ends))

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """The space of the observations that it returns, given the space of those that it receives."""
        tree, places = tree_of(space), self.find_places(space)
        written = [(target, self.transform_space(part(tree, source))) for source, target in places]
        return space_of(moved_parts(tree, (), written)) if places else space

    def transform_action_space(self, space: Any) -> Any:
        """The space of the actions that it takes, given the space of those that `inv` returns."""
        return space

    def common_properties(self, space: spaces.Space[Any]) -> Any:
        """The properties of an observation space that must be the same in all envs of a vector env: the parts that are
        transformed, with the shapes and dtypes of their rows.
        """
        tree = space_tree(space, "observation")
        return [(path, [row_of(leaf) for leaf in nest.leaves(part(tree, path))]) for path, _ in self.find_places(tree)]

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        """Note the env that it is now a part of, with `num_envs` envs and the spaces of one below it; its state is
        cleared.
        """
        self._owner, self.num_envs = weakref.ref(owner), num_envs
        self._places = None
        self.clear()

    def clear(self) -> None:
        """Drop the state of all envs."""

    # For subclasses and callers to use.

    def cached_places(self, obs: Any) -> list[Place]:
        """The places to read and to write in an observation: of the first one, then kept."""
        if self._places is None:
            self._places = self.find_places(obs)
        return self._places

    def transform_observation(self, obs: Any) -> Any:
        """The observation, a tree of arrays (k, ...), with `apply` done to the parts that this transform takes."""
        return self.with_parts(obs, self.apply)

    def with_parts(self, obs: Any, apply: Callable[[Array], Array]) -> Any:
        """The observation with `apply` done to these parts, all of which are read before one is written."""
        return moved_parts(obs, (), [(target, apply(part(obs, source))) for source, target in self.cached_places(obs)])

    def __call__(self, obs: Any) -> Any:
        """A batch of observations, transformed; RuntimeError for a transform with a state by env."""
        if self.has_state:
            raise RuntimeError(f"{self} keeps a state for each env: use it in a TransformedEnv or TransformedVectorEnv")
        own, self._places = self._places, None  # those of its env stay
        try:
            return self.transform_observation(obs)
        finally:
            self._places = own

    def find_places(self, tree: Any) -> list[Place]:
        """Return the places that are transformed in `tree`, which is a space or a tree of arrays.

        Raises ValueError if there are none.
        """
        if isinstance(tree, spaces.Space):
            tree = space_tree(tree, "observation")
        sources = (
            self._parts_taken(tree) if self.in_keys is None else [_find(tree, path, self) for path in self.in_keys]
        )
        return list(zip(sources, sources if self.out_keys is None else self.out_keys, strict=True))

    def _parts_taken(self, tree: Any) -> list[Path]:
        found = [path for path, leaf in leaves_of(tree) if (row := row_of(leaf)) is not None and self.takes(*row)]
        if not found and self.needs_parts:
            raise ValueError(f"{self} finds nothing that it can transform in the observation {described(tree)}")
        return found

    @property
    def is_attached(self) -> bool:
        """True if it is part of an env."""
        return self._owner is not None and self._owner() is not None

    @property
    def parent(self) -> Any:
        """The env with clones of the transforms before this one, around the same base env; None if not attached."""
        owner = None if self._owner is None else self._owner()
        return None if owner is None else owner.env_before(self)

    def clone(self: Self) -> Self:
        """A copy that belongs to no env."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        """The statistics that it has learnt, to be kept: none for most; never the state of episodes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __repr__(self) -> str:
        """The class, with its arguments that are attributes too and differ from their defaults."""
        own, shown = vars(self), ["frozen"] * bool(getattr(self, "frozen", False))
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = own.get(name, parameter.default)
            if name in ("in_keys", "out_keys"):
                value = [path[0] if len(path) == 1 else path for path in value or ()] or None
            if repr(value) != repr(parameter.default):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class EnvTransform(Transform):
    """Base of transforms that have to step or render the env: `wrap` returns a wrapper of the env below them."""

    def __init__(self) -> None:
        super().__init__(in_keys=[])

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """The wrapped env."""
        raise NotImplementedError


class Freezable(Transform):
    """Base of transforms that learn statistics from each step unless they are `frozen`."""

    frozen = False

    def repeat(self, rows: Rows) -> None:
        frozen, self.frozen = self.frozen, True
        try:
            self.step(rows)
        finally:
            self.frozen = frozen

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        return {}  # statistics go on whatever the episode is

    def freeze(self: AnyFreezable) -> AnyFreezable:
        """Normalise without updates from now on; returns itself."""
        self.frozen = True
        return self

    def unfreeze(self: AnyFreezable) -> AnyFreezable:
        """Update again; returns itself."""
        self.frozen = False
        return self

    def frozen_copy(self: AnyFreezable) -> AnyFreezable:
        """A clone that is frozen, for a test env."""
        return self.clone().freeze()

    @staticmethod
    def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Merge `state_dict`s, as of clones in workers, into that of a transform which has seen all their rows."""
        raise NotImplementedError


def _paths(keys: Keys) -> list[Path] | None:
    if isinstance(keys, str):
        raise ValueError(f"keys are a list, got the text {keys!r}; pass [{keys!r}]")
    return None if keys is None else [key if isinstance(key, tuple) else (key,) for key in keys]


def _find(tree: Any, path: Path, transform: Transform) -> Path:
    """The path, which is () for an observation that is no dict; ValueError if there is no such part."""
    if path == (WHOLE,) and not isinstance(tree, (dict, tuple)):
        return ()
    try:
        leaf = part(tree, path)
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{transform} finds no {path} in the observation {described(tree)}") from None
    if any(row_of(each) is None for each in nest.leaves(leaf)):
        raise ValueError(
            f"{transform} needs arrays of one shape and dtype in all envs, and {path} is none: put the transform into "
            "a TransformedEnv around each env, or leave this key out"
        )
    return path
