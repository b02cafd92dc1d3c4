"""`InfoBatch`: infos of a round as columns. Dicts per env are made when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest
from vecenv.backends import columns as form
from vecenv.backends.columns import Columns


class Finals(NamedTuple):
    """Last observations and infos of the episodes that a round has ended, if the same round has reset the envs.

    `obs`: tree of arrays (n, ...), or `None` if the simulator loses last observations. `info`: columns. `mask` (n,):
    the ended envs. `returned`: by env id, last observations as the env returned them, if `obs` does not keep all types.
    """

    obs: Any
    info: Columns
    mask: Any
    returned: Mapping[int, Any] = {}


class RoundInfos:
    """Infos of n envs, of which the envs `ids` took part in a round.

    With `tensors`, columns stay tensors. Otherwise they are arrays when they are read.
    """

    def __init__(
        self, columns: Columns, n: int, ids: Sequence[int], finals: Finals | None = None, tensors: bool = False
    ) -> None:
        self._given, self.n, self.ids, self.finals, self._tensors = columns, n, ids, finals, tensors
        self._readable: tuple[dict[Any, Any], dict[Any, Any], Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._given) or self.finals is not None

    @property
    def columns(self) -> dict[Any, Any]:
        """Columns in gymnasium's form, with `final_obs` and `final_info` if the round has reset ended envs."""
        columns = self.first_columns
        if self.finals is not None:
            obs, info, mask, _ = self.finals
            last = {"no_final_obs": mask} if obs is None else {"final_obs": obs}
            for key, column in {**last, "final_info": info if self._tensors else self._read()[1]}.items():
                columns[key], columns[f"_{key}"] = column, mask
        return columns

    @property
    def first_columns(self) -> dict[Any, Any]:
        """Columns without `final_obs` and `final_info`."""
        return dict(self._given) if self._tensors else self._read()[0].copy()

    def row(self, i: int) -> dict[Any, Any]:
        """Return the info of env i, without `env_id`."""
        columns, _, mask = self._read()
        found = form.row(columns, i, self.n)
        return found | self.final(i) if mask is not None and mask[i] else found

    def rows(self) -> list[dict[Any, Any]]:
        columns, _, mask = self._read()
        found = form.rows(columns, self.n)
        for i in () if mask is None else np.flatnonzero(mask).tolist():
            found[i] |= self.final(i)
        return found

    def final(self, i: int) -> dict[str, Any]:
        """Return `final_obs` and `final_info` of an ended env."""
        assert self.finals is not None
        obs = self.finals.obs
        last = {"no_final_obs": True} if obs is None else {"final_obs": nest.map(_copy, nest.take(obs, i))}
        return {**last, "final_info": form.row(self._read()[1], i, self.n)}

    def without_finals(self) -> RoundInfos:
        """Return the infos without `final_obs` and `final_info`."""
        return RoundInfos(self._given, self.n, self.ids, None, self._tensors)

    def of_steps(self) -> RoundInfos:
        """Return the infos of the steps: of an ended env the `final_info`, without `final_obs`."""
        if self.finals is None:
            return self
        columns, last, mask = self._read()
        return RoundInfos(form.merged(columns, last, mask, self.n), self.n, self.ids, None, self._tensors)

    def _read(self) -> tuple[dict[Any, Any], dict[Any, Any], Any]:
        """Return columns, columns of last infos, and the mask of ended envs, with masks on the host."""
        if self._readable is None:
            convert = form.with_host_masks if self._tensors else form.on_host
            info, mask = ({}, None) if self.finals is None else (self.finals.info, nest.as_array(self.finals.mask))
            self._readable = convert(self._given), convert(info), mask
        return self._readable


class InfoBatch(Sequence[dict[str, Any]]):
    """Infos of the envs `ids`, in this order. It behaves like an object array of dicts, which are made when read.

    `columns` has the infos as arrays, in the form of gymnasium's `VectorEnv`: an array (k, ...) per key, and under
    `_key` a bool mask (k,) of the envs with this key. Without a mask, all envs have the key.

    >>> infos = InfoBatch(RoundInfos({"speed": np.array([0.5, 2.0])}, 2, range(2)), range(2))
    >>> infos.columns["speed"].max(), infos[1]
    (np.float64(2.0), {'speed': np.float64(2.0), 'env_id': 1})
    """

    def __init__(self, infos: RoundInfos, ids: Sequence[int]) -> None:
        self._infos, self._ids = infos, ids
        """Ids as a range: all envs in order."""
        self._made: dict[int, dict[str, Any]] = {}
        self._is_changed = False
        """True if a wrapper has replaced dicts, for example because they have last observations."""

    @property
    def columns(self) -> dict[Any, Any]:
        if self._is_changed:
            raise AttributeError  # for the text, see `__getattr__`
        columns, n = self._infos.columns, self._infos.n
        in_order = self._ids.__class__ is range or list(self._ids) == list(range(n))
        return columns if in_order else form.taken(columns, self.ids, n)

    def column(self, key: str) -> tuple[Any, Any]:
        """Return the column of a key, and its mask, as `columns.column`."""
        return form.column(self.columns, key)

    @property
    def has_columns(self) -> bool:
        """True if nobody has read a dict, and so nobody has changed one: the columns are the infos."""
        return not self._made

    @property
    def ids(self) -> np.ndarray:
        return np.arange(len(self._ids)) if self._ids.__class__ is range else np.array(self._ids, np.int64)

    @property
    def finals(self) -> Finals | None:
        """Last observations and infos, if the round has ended and reset envs. Rows are in the order of all env ids."""
        return self._infos.finals

    def select(self, rows: np.ndarray) -> InfoBatch:
        """Return the infos of these rows, without the changes of a wrapper."""
        return InfoBatch(self._infos, [self._ids[row] for row in rows.tolist()])

    def without_finals(self) -> InfoBatch:
        """Return the infos without `final_obs` and `final_info`."""
        return InfoBatch(self._infos.without_finals(), self._ids)

    def of_steps(self) -> InfoBatch:
        """Return the infos of the steps: of an ended env the `final_info`, without `final_obs`."""
        return InfoBatch(self._infos.of_steps(), self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        at = np.arange(len(self._ids))[index]
        return nest.object_array([self._row(j) for j in at.tolist()]) if at.ndim else self._row(int(at))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._is_changed = True
        at = np.arange(len(self._ids))[index]
        if not at.ndim:
            self._made[int(at)] = value
            return
        values = np.empty(len(at), object)
        values[...] = value if isinstance(value, Mapping) else np.asarray(value)
        self._made.update(zip(at.tolist(), values, strict=True))

    def _row(self, j: int) -> dict[str, Any]:
        info = self._made.get(j)
        if info is None:
            i = self._ids[j]
            info = self._made[j] = {**self._infos.row(i), "env_id": i}
        return info

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.tolist())

    def tolist(self) -> list[dict[str, Any]]:
        """Return the dicts of all envs."""
        made = self._made
        missing = [j for j in range(len(self._ids)) if j not in made]
        if len(missing) > self._infos.n // 4:  # faster by column
            found = self._infos.rows()
            made.update({j: {**found[self._ids[j]], "env_id": self._ids[j]} for j in missing})
        return [self._row(j) for j in range(len(self._ids))]

    def own_env_ids(self) -> dict[int, Any]:
        """Return by env id the value that the env itself has put under "env_id"."""
        if "env_id" not in self._infos.columns:
            return {}
        each = {i: self._infos.row(i) for i in self._ids}
        return {i: info["env_id"] for i, info in each.items() if "env_id" in info}

    def final_obs(self) -> dict[int, tuple[Any, Any]]:
        """Return by env id the last observation, and the env's original, if the row does not keep all its types."""
        finals = self._infos.finals
        returned = {} if finals is None else finals.returned
        return {i: (self[j]["final_obs"], returned[i]) for j, i in enumerate(self._ids) if i in returned}

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return nest.object_array(self.tolist())

    def __getattr__(self, name: str) -> Any:
        if name == "columns":
            raise AttributeError("a wrapper has changed infos of this round, so they have no columns; read info[i]")
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class InfosById(Mapping[int, dict[Any, Any]]):
    """Infos by env id, without `env_id`, and with last observations as the env returned them."""

    def __init__(self, infos: RoundInfos) -> None:
        self._infos, self._ids, self.finals = infos, infos.ids, infos.finals

    @property
    def columns(self) -> dict[Any, Any]:
        """Columns of all n envs, as in `InfoBatch`."""
        return self._infos.columns

    @property
    def first_columns(self) -> dict[Any, Any]:
        """Columns without `final_obs` and `final_info`."""
        return self._infos.first_columns

    def lasts(self) -> tuple[list[int], list[Any], list[dict[Any, Any]]]:
        """Return ids, last observations and last infos of the envs that the round has ended and reset."""
        infos = self._infos
        if self.finals is None:
            return [], [], []
        ids = np.flatnonzero(nest.as_array(self.finals.mask)).tolist()
        each = [self._returned(i, infos.final(i)) for i in ids]
        return ids, [info.get("final_obs") for info in each], [info["final_info"] for info in each]

    def __getitem__(self, i: int) -> dict[Any, Any]:
        if i not in self._ids:
            raise KeyError(i)
        return self._returned(i, self._infos.row(i))

    def _returned(self, i: int, info: dict[Any, Any]) -> dict[Any, Any]:
        if self.finals is not None and i in self.finals.returned:
            info["final_obs"] = self.finals.returned[i]
        return info

    def items(self) -> Any:
        if len(self._ids) <= self._infos.n // 4:
            return [(i, self[i]) for i in self._ids]
        found = self._infos.rows()  # faster by column
        return [(i, self._returned(i, found[i])) for i in self._ids]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if hasattr(leaf, "clone") else leaf
