"""Transforms of shapes: UnsqueezeTransform, SqueezeTransform, Flatten."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils

from vecenv.backends.memory.layout import space_tree
from vecenv.nest import leaves
from vecenv.transforms.arrays import Array, cast, concat, like
from vecenv.transforms.parts import Path, part, row_of
from vecenv.transforms.transform import Keys, Place, Transform


class UnsqueezeTransform(Transform):
    """Adds a dimension of size 1 (as torchrl's UnsqueezeTransform).

    `dim` is its place in one env's observation, from the end where it is negative: the batch is not counted.

    >>> UnsqueezeTransform(-1)(np.zeros((2, 3))).shape
    (2, 3, 1)
    """

    def __init__(self, dim: int, in_keys: Keys = None, out_keys: Keys = None) -> None:
        self.dim = dim
        super().__init__(in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = axis_of(self.dim, array.ndim + 1, self)
        return array.reshape(*array.shape[:axis], 1, *array.shape[axis:])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dim={self.dim})"


class SqueezeTransform(UnsqueezeTransform):
    """Removes a dimension of size 1 (as torchrl's SqueezeTransform); `dim` as in UnsqueezeTransform.

    ValueError where it has another size.

    >>> SqueezeTransform(0)(np.zeros((2, 1, 3))).shape
    (2, 3)
    """

    def apply(self, array: Array) -> Array:
        axis = axis_of(self.dim, array.ndim, self)
        if array.shape[axis] != 1:
            raise ValueError(f"{self} got the shape {tuple(array.shape[1:])}, in which that dimension is not 1")
        return array.squeeze(axis)


class Flatten(Transform):
    """Observations as vectors.

    Without `in_keys` the whole observation becomes one vector, in the order of the space, with Discrete and
    MultiDiscrete parts as ones and zeros (as gymnasium's FlattenObservation). With `in_keys` each of these parts
    becomes a vector of its own numbers.

    ValueError for an observation that cannot be a vector (Text, Sequence, ...), and for the whole of one whose vector
    is another in another env of a vector env (Discrete(2) and Discrete(4)). The whole of it can only be flattened as
    part of an env, because that takes its space.

    >>> Flatten(in_keys=["a"])({"a": np.zeros((2, 3, 4))})["a"].shape
    (2, 12)
    """

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__(in_keys, out_keys)
        self._parts: list[tuple[Path, Any]] = []
        self._dtype = "float32"

    def apply(self, array: Array) -> Array:
        return array.reshape(array.shape[0], prod(array.shape[1:]))

    def places(self, tree: Any) -> list[Place]:
        return [] if self.in_keys is None else super().places(tree)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if self.in_keys is not None:
            return super().transform_observation_space(space)
        flat = utils.flatten_space(space)
        if not isinstance(flat, spaces.Box) or any(row_of(leaf) is None for leaf in leaves(space_tree(space, "obs"))):
            raise ValueError(f"{self} cannot make a vector of {space}")
        return flat

    def decided_by(self, space: spaces.Space[Any]) -> Any:
        if self.in_keys is not None:
            return None
        return [
            (path, child if isinstance(child, (spaces.Discrete, spaces.MultiDiscrete)) else (child.shape, child.dtype))
            for path, child in _parts(space)
        ]

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        if self.in_keys is None:
            self._parts = list(_parts(observation_space))
            self._dtype = np.dtype(utils.flatten_space(observation_space).dtype).name

    def observe(self, obs: Any) -> Any:
        if self.in_keys is not None:
            return super().observe(obs)
        if not self._parts:
            raise RuntimeError(f"{self} needs the observation space: use it in a TransformedEnv, or pass in_keys")
        vectors = [cast(self._vector(space, part(obs, path)), self._dtype) for path, space in self._parts]
        return concat(vectors, axis=1) if len(vectors) > 1 else vectors[0]

    def _vector(self, space: Any, array: Array) -> Array:
        if isinstance(space, spaces.Discrete):
            return _one_hot(array - int(space.start), int(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            array = self.apply(array)
            ends = enumerate(zip(space.start.ravel().tolist(), space.nvec.ravel().tolist(), strict=True))
            return concat([_one_hot(array[:, i] - start, n) for i, (start, n) in ends], axis=1)
        return self.apply(array)


def _one_hot(numbers: Array, n: int) -> Array:
    return cast(numbers[:, None] == like(np.arange(n), numbers), "int8")


def _parts(space: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The parts of a space that have no parts, in its order."""
    children: dict[Any, Any] = space.spaces if isinstance(space, spaces.Dict) else {}
    if isinstance(space, spaces.Tuple):
        children = dict(enumerate(space.spaces))
    if not children:
        yield path, space
    for key, child in children.items():
        yield from _parts(child, (*path, key))


def axis_of(dim: int, ndim: int, transform: Transform) -> int:
    """The axis of a batch with `ndim` axes that is `dim` of one observation; ValueError for one that is not there."""
    axis = dim + 1 if dim >= 0 else dim + ndim
    if not 1 <= axis < ndim:
        raise ValueError(f"{transform} got dim={dim} for observations with {ndim - 1} dimensions")
    return axis
