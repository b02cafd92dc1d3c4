"""`Compose`: chain of transforms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from vecenv.transforms.transform import Freezable, Rows, Transform

Self = TypeVar("Self", bound="HasTransforms")


class Compose(Transform):
    """Chain of transforms. Observations pass the transforms in order, and actions in reverse order.

    `transforms` may contain functions of a batch of observations, lists and other Composes. `chain[i]` is a transform,
    and `chain[i:j]` is a Compose of clones.

    >>> from vecenv.transforms import UnsqueezeTransform
    >>> chain = Compose(UnsqueezeTransform(0), lambda obs: obs + 1)
    >>> chain(np.zeros((2, 3))).shape, len(chain), chain[0]
    ((2, 1, 3), 2, UnsqueezeTransform(dim=0))
    """

    def __init__(self, *transforms: Any) -> None:
        super().__init__()
        self.transforms = [each for given in transforms for each in flat(given)]
        self.changes_actions = any(type(each).inv is not Transform.inv for each in self.transforms)

    def __call__(self, obs: Any) -> Any:
        for transform in self.transforms:
            obs = transform(obs)
        return obs

    def reset(self, rows: Rows) -> None:
        for transform in self.transforms:
            transform.reset(rows)

    def step(self, rows: Rows) -> None:
        for transform in self.transforms:
            transform.step(rows)

    def repeat(self, rows: Rows) -> None:
        for transform in self.transforms:
            transform.repeat(rows)

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        return self._states_by_name(lambda each: each.episode_state(ids))

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        for transform, each in self._matched_states(self.episode_state(ids), state):
            transform.set_episode_state(ids, each)

    def inv(self, action: Any) -> Any:
        for transform in reversed(self.transforms):
            action = transform.inv(action)
        return action

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        for transform in self.transforms:
            space = transform.transform_observation_space(space)
        return space

    def transform_action_space(self, space: Any) -> Any:
        for transform in self.transforms:
            space = transform.transform_action_space(space)
        return space

    def frozen_copy(self) -> Compose:
        """Return a clone with frozen statistics."""
        return Compose(*[each.frozen_copy() if isinstance(each, Freezable) else each.clone() for each in self])

    def state_dict(self) -> dict[str, Any]:
        return self._states_by_name(lambda each: each.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for transform, each in self._matched_states(self.state_dict(), state):
            transform.load_state_dict(each)

    def _states_by_name(self, state_of: Callable[[Transform], dict[Any, Any]]) -> dict[str, Any]:
        states = {f"{i}.{type(each).__name__}": state_of(each) for i, each in enumerate(self.transforms)}
        return {name: state for name, state in states.items() if state}

    def _matched_states(self, own: dict[str, Any], state: dict[str, Any]) -> list[tuple[Transform, Any]]:
        if own.keys() != state.keys():
            raise ValueError(f"the state is for the transforms {sorted(state)}, expected {sorted(own)}")
        return [(self.transforms[int(name.partition(".")[0])], each) for name, each in state.items()]

    def __len__(self) -> int:
        return len(self.transforms)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self.transforms)

    def __getitem__(self, index: Any) -> Any:
        found = self.transforms[index]
        return Compose(*[each.clone() for each in found]) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class FunctionTransform(Transform):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(in_keys=[])
        self.function = function

    def transform_observation(self, obs: Any) -> Any:
        return self.function(obs)


class HasTransforms:
    """Base class of envs with transforms."""

    transform: Compose

    @property
    @abstractmethod
    def base_env(self) -> Any:
        """Env without the transforms."""

    @abstractmethod
    def rebuild(self, transforms: list[Transform]) -> list[tuple[Any, Any]]:
        """Compute and set the env's spaces. If a transform does not fit, raise before any change.

        Return the (observation, action) spaces below each transform.
        """

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for each in self.transform:
            each.belong_to(self)

    def append_transform(self: Self, transform: Any) -> Self:
        """Add a transform, a Compose, a list, or a function of observations as the outermost transform."""
        return self.insert_transform(len(self.transform), transform)

    def insert_transform(self: Self, index: int, transform: Any) -> Self:
        """Insert a transform before `index`. The transforms after it lose their episode state, such as stacked frames.

        Raises IndexError if `index` is out of range, RuntimeError if the transform belongs to an env (pass a clone),
        TypeError if it is not a transform for this kind of env, and ValueError if the spaces do not fit.
        """
        n = len(self.transform)
        if not -n <= index <= n:
            raise IndexError(f"index {index} is out of range for {n} transforms")
        start = index + n if index < 0 else index
        new, present = flat(transform), self.transform.transforms
        seen: set[int] = set()
        for each in new:
            if each.is_attached or id(each) in seen:
                raise RuntimeError(f"{each} belongs to an env already: pass its clone()")
            seen.add(id(each))
        together = [*present[:start], *new, *present[start:]]
        below = self.rebuild(together)
        self.transform = Compose(*together)
        for each, spaces_below in list(zip(together, below, strict=True))[start:]:
            each.attach(self, getattr(self, "env_num", 1), *spaces_below)
        return self

    def env_before(self, transform: Transform) -> Any:
        """Return an env around the same base env, with clones of the transforms before `transform`."""
        index = next(i for i, each in enumerate(self.transform) if each is transform)
        return self.with_transforms(self.transform[:index])

    def with_transforms(self: Self, transforms: Any) -> Self:
        """Return an env around the same base env, with these transforms."""
        return type(self)(self.base_env, transforms)  # type: ignore[call-arg]

    def state_dict(self) -> dict[str, Any]:
        """Return the learnt statistics of the transforms."""
        return self.transform.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of an equal chain of transforms. Raises ValueError for a different chain."""
        self.transform.load_state_dict(state)


def flat(transform: Any) -> list[Transform]:
    """Return all transforms as a flat list."""
    if isinstance(transform, Compose):
        return list(transform.transforms)
    if isinstance(transform, Transform):
        return [transform]
    if isinstance(transform, (list, tuple)):
        return [each for given in transform for each in flat(given)]
    if callable(transform) and not isinstance(transform, type):
        return [FunctionTransform(transform)]
    raise TypeError(f"a transform must be a Transform or a function of a batch of observations, got {transform!r}")
