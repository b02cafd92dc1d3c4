"""Transforms of the keys of observations: CatTensors, RenameTransform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from vecenv.transforms.arrays import concat
from vecenv.transforms.parts import Path, bounds_of, box, part, with_part, without_part
from vecenv.transforms.shapes import axis_of
from vecenv.transforms.transform import Keys, Place, Transform


class CatTensors(Transform):
    """Joins parts of a Dict observation to one, in the order of their names (as torchrl's CatTensors).

    Arguments:
        in_keys: the parts; None: all that are vectors.
        out_key: the name of the result.
        dim: along which dimension; the batch is not counted.
        del_keys: whether the parts are dropped.
        unsqueeze_if_oor: add dimensions of size 1 in front where parts have fewer than `dim` needs: numbers become
            vectors of one.
        sort: False joins in the order of `in_keys`.

    The bounds of the result are those of the parts, its dtype the one to which numpy promotes theirs. ValueError for a
    key that is missing, with those that there are, and for parts that do not fit each other.

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
        self.dim, self.del_keys, self.unsqueeze_if_oor, self.sort = dim, del_keys, unsqueeze_if_oor, sort
        super().__init__(in_keys)
        if in_keys is None and dim != -1:
            raise ValueError(f"CatTensors without in_keys joins vectors, with dim=-1, got dim={dim}")

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return len(shape) == 1

    def places(self, tree: Any) -> list[Place]:
        """The places of the parts, in the order in which they are joined."""
        found = super().places(tree)
        if ((), ()) in found:
            raise ValueError(f"{self} joins parts of a Dict observation, this one has no parts")
        return sorted(found, key=lambda place: [str(key) for key in place[0]]) if self.sort else found

    def observe(self, obs: Any) -> Any:
        sources = [source for source, _ in self.found(obs)]
        return self._placed(obs, sources, self._joined([part(obs, source) for source in sources]))

    def _joined(self, arrays: list[Any]) -> Any:
        least = -self.dim if self.dim < 0 else self.dim + 1
        if self.unsqueeze_if_oor:
            arrays = [a[(slice(None), *[None] * (least + 1 - a.ndim), ...)] if a.ndim <= least else a for a in arrays]
        shapes = [tuple(a.shape[1:]) for a in arrays]
        axis = axis_of(self.dim, arrays[0].ndim, self)
        if len({(*shape[: axis - 1], *shape[axis:], len(shape)) for shape in shapes}) > 1:
            raise ValueError(f"{self} cannot join parts of the shapes {shapes} along dim={self.dim}")
        return concat(arrays, axis)

    def _placed(self, tree: Any, sources: list[Path], joined: Any) -> Any:
        for source in sources if self.del_keys else ():
            tree = without_part(tree, source)
        return with_part(tree, self.out_key, joined)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        sources = [source for source, _ in self.places(space)]
        ends = [bounds_of(part(space, source)) for source in sources]
        low, high = (self._joined([end[side][None] for end in ends])[0] for side in (0, 1))
        return self._placed(space, sources, box(low, high))

    def __repr__(self) -> str:
        keys = self.in_keys and [path[0] if len(path) == 1 else path for path in self.in_keys]
        return f"CatTensors(in_keys={keys}, out_key={self.out_key[-1]!r})"


class RenameTransform(Transform):
    """Gives parts of the observation other names (as torchrl's RenameTransform).

    `in_keys[i]` becomes `out_keys[i]`; with `create_copy` it stays there too. The name "observation" stands for an
    observation that is no dict.

    >>> import numpy as np
    >>> RenameTransform(["pixels"], ["frame"])({"pixels": np.zeros(1)})
    {'frame': array([0.])}
    """

    def __init__(self, in_keys: Sequence[Any], out_keys: Sequence[Any], create_copy: bool = False) -> None:
        self.create_copy = create_copy
        super().__init__(in_keys, out_keys)

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return self._renamed(space, self.places(space))

    def observe(self, obs: Any) -> Any:
        return self._renamed(obs, self.found(obs))

    def _renamed(self, tree: Any, places: list[Place]) -> Any:
        parts = [part(tree, source) for source, _ in places]
        for source, _ in () if self.create_copy else places:
            tree = without_part(tree, source)
        for (_, target), value in zip(places, parts, strict=True):
            tree = with_part(tree, target, value)
        return tree
