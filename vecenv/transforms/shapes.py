"""Transforms of shapes and keys, such as `Flatten` and `RenameTransform`.

A *part* is an array in a Dict or Tuple observation. `dim=0` is the first dimension after the batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import utils

from vecenv.arguments import whole
from vecenv.layout import space_tree
from vecenv.nest import items, leaves, space_of, tree_of
from vecenv.transforms.arrays import Array, Path, box, cast, concat, like, numeric_bounds, part, replace_parts, row_of
from vecenv.transforms.transform import Keys, Place, Transform


class UnsqueezeTransform(Transform):
    """Add a dimension of size 1.

    `dim` is the index of the new dimension.

    >>> UnsqueezeTransform(-1)(np.zeros((2, 3))).shape
    (2, 3, 1)
    """

    def __init__(self, dim: int, in_keys: Keys = None, out_keys: Keys = None) -> None:
        self.dim = whole("dim", dim)
        super().__init__(in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        axis = axis_of(self.dim, array.ndim, self, new=1)
        return array.reshape(*array.shape[:axis], 1, *array.shape[axis:])


class SqueezeTransform(UnsqueezeTransform):
    """Remove the dimension `dim`. Raises ValueError if its size is not 1.

    >>> SqueezeTransform(0)(np.zeros((2, 1, 3))).shape
    (2, 3)
    """

    def apply(self, array: Array) -> Array:
        axis = axis_of(self.dim, array.ndim, self)
        if array.shape[axis] != 1:
            raise ValueError(
                f"{self} got the shape {tuple(array.shape[1:])}, expected the size 1 in dimension {self.dim}"
            )
        return array.squeeze(axis)


class Flatten(Transform):
    """Flatten observations to vectors.

    With `in_keys`, each named part becomes a vector. Without `in_keys`, the whole observation becomes one vector,
    and Discrete and MultiDiscrete parts become one-hot (as in gymnasium's FlattenObservation). One-hot vectors
    need the observation space, so without `in_keys`, the transform works only in a TransformedEnv or
    TransformedVectorEnv.

    Raises ValueError for spaces that are not numeric, such as Text, and if vectors would differ between envs, for
    example with Discrete(2) and Discrete(4).

    >>> Flatten(in_keys=["a"])({"a": np.zeros((2, 3, 4))})["a"].shape
    (2, 12)
    """

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None) -> None:
        super().__init__(in_keys, out_keys)
        self._parts: list[tuple[Path, Any]] = []
        self._dtype = "float32"

    def apply(self, array: Array) -> Array:
        return array.reshape(array.shape[0], prod(array.shape[1:]))

    def find_places(self, tree: Any) -> list[Place]:
        return [] if self.in_keys is None else super().find_places(tree)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if self.in_keys is not None:
            return super().transform_observation_space(space)
        flat = utils.flatten_space(space)
        if not isinstance(flat, spaces.Box) or any(row_of(leaf) is None for leaf in leaves(space_tree(space, "obs"))):
            raise ValueError(f"{self} cannot make a vector of {space}")
        return flat

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        if self.in_keys is None:
            self._parts = list(items(tree_of(observation_space)))
            self._dtype = np.dtype(utils.flatten_space(observation_space).dtype).name

    def transform_observation(self, obs: Any) -> Any:
        if self.in_keys is not None:
            return super().transform_observation(obs)
        if not self._parts:
            raise RuntimeError(f"{self} needs the observation space: use it in a TransformedEnv, or pass in_keys")
        vectors = [cast(self._vector(space, part(obs, path)), self._dtype) for path, space in self._parts]
        return concat(vectors, axis=1) if len(vectors) > 1 else vectors[0]

    def _vector(self, space: Any, array: Array) -> Array:
        array = self.apply(array)
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return array
        ends = zip(*(np.ravel(end).tolist() for end in numeric_bounds(space)), strict=True)
        values = [like(np.arange(low, high + 1), array) for low, high in ends]
        return concat([cast(array[:, i, None] == each, "int8") for i, each in enumerate(values)], axis=1)


def axis_of(dim: int, ndim: int, transform: Transform, new: int = 0) -> int:
    axis = dim + 1 if dim >= 0 else dim + ndim + new
    if not 1 <= axis < ndim + new:
        raise ValueError(f"{transform} got dim={dim} for observations with {ndim - 1} dimensions")
    return axis


class CatTensors(Transform):
    """Join parts of a Dict or Tuple observation, in the order of their names.

    Arguments:
        in_keys: parts to join. None: all parts with one dimension.
        out_key: name of the result.
        dim: dimension to join along. Without `in_keys`, it must be -1.
        del_keys: remove the joined parts.
        unsqueeze_if_oor: if a part has no dimension `dim`, add dimensions of size 1 in front of its shape.
        sort: False joins in the order of `in_keys`.

    The result has numpy's promoted dtype. If `out_key` is a string, a Tuple becomes a Dict with the result in `out_key`
    and the tuple of the other parts in "observation". Raises ValueError for a missing key or parts that cannot be
    joined.

    >>> import numpy as np
    >>> CatTensors(["v", "x"])({"x": np.zeros((2, 3)), "v": np.ones((2, 1))})["observation_vector"]
    array([[1., 0., 0., 0.],
           [1., 0., 0., 0.]])
    """

    def __init__(
        self,
        in_keys: Keys = None,
        out_key: Any = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = True,
        sort: bool = True,
    ) -> None:
        self.out_key: Path = out_key if isinstance(out_key, tuple) else (out_key,)
        self.dim, self.del_keys = whole("dim", dim), del_keys
        self.unsqueeze_if_oor, self.sort = unsqueeze_if_oor, sort
        super().__init__(in_keys)
        if in_keys is None and dim != -1:
            raise ValueError(f"CatTensors without in_keys joins all vectors, so dim must be -1, got dim={dim}")

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return len(shape) == 1

    def find_places(self, tree: Any) -> list[Place]:
        found = super().find_places(tree)
        if ((), ()) in found:
            raise ValueError(f"{self} joins parts of a Dict or Tuple observation, but this observation has no parts")
        return sorted(found, key=lambda place: [_order(key) for key in place[0]]) if self.sort else found

    def transform_observation(self, obs: Any) -> Any:
        sources = [source for source, _ in self.places(obs)]
        return self._written(obs, sources, self._joined([part(obs, source) for source in sources]))

    def _joined(self, arrays: list[Any]) -> Any:
        least = -self.dim if self.dim < 0 else self.dim + 1
        if self.unsqueeze_if_oor:
            arrays = [a[(slice(None), *[None] * (least + 1 - a.ndim), ...)] if a.ndim <= least else a for a in arrays]
        shapes = [tuple(a.shape[1:]) for a in arrays]
        axis = axis_of(self.dim, arrays[0].ndim, self)
        if len({(*shape[: axis - 1], *shape[axis:], len(shape)) for shape in shapes}) > 1:
            raise ValueError(f"{self} cannot join parts of the shapes {shapes} along dim={self.dim}")
        return concat(arrays, axis)

    def _written(self, tree: Any, sources: list[Path], joined: Any) -> Any:
        return replace_parts(tree, sources if self.del_keys else (), [(self.out_key, joined)])

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        sources = [source for source, _ in self.find_places(space)]
        tree = tree_of(space)
        ends = [numeric_bounds(part(tree, source)) for source in sources]
        low, high = (self._joined([end[side][None] for end in ends])[0] for side in (0, 1))
        return space_of(self._written(tree, sources, box(low, high)))


def _order(key: Any) -> tuple[int, int, str]:
    return (0, key, "") if isinstance(key, int) else (1, 0, str(key))


class RenameTransform(Transform):
    """Rename parts of the observation.

    `in_keys[i]` becomes `out_keys[i]`. `create_copy` also keeps the old name. An observation that is neither a Dict nor
    a Tuple has the name "observation". If `out_keys` has a string, a Tuple becomes a Dict with the tuple of the other
    parts in "observation".

    >>> import numpy as np
    >>> RenameTransform(["pixels"], ["frame"])({"pixels": np.zeros(1)})
    {'frame': array([0.])}
    """

    def __init__(self, in_keys: Sequence[Any], out_keys: Sequence[Any], create_copy: bool = False) -> None:
        self.create_copy = create_copy
        super().__init__(in_keys, out_keys)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return space_of(self._renamed(tree_of(space), self.find_places(space)))

    def transform_observation(self, obs: Any) -> Any:
        return self._renamed(obs, self.places(obs))

    def _renamed(self, tree: Any, places: list[Place]) -> Any:
        removed = () if self.create_copy else [source for source, _ in places]
        return replace_parts(tree, removed, [(target, part(tree, source)) for source, target in places])
