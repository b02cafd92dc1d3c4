"""`RoundReader`: checks the results of a gymnasium `VectorEnv`, and converts them to arrays that the caller owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.columns import entries, like, merged, on_host, own
from vecenv.backends.host.env_access import copy_if_possible
from vecenv.backends.host.row_writer import fit, fit_tree, is_exact, short
from vecenv.errors import EnvContractError, ObservationError

FINAL_KEYS = [f"{mask}{key}" for key in ("final_obs", "final_observation", "final_info") for mask in ("", "_")]


class RoundReader:
    """Reader of the results of the VectorEnv `name`, with `n` envs and the leaves `layout` of an observation.

    tensors: results stay tensors, on their device. copies: results never change later. Otherwise they may share memory
    with the VectorEnv.

    Raises EnvContractError, and ObservationError for observations, with the name, the key and the number of the step.
    """

    def __init__(self, name: str, n: int, layout: Any, tensors: bool, copies: bool) -> None:
        self.name, self._n, self._layout = name, n, layout
        self.tensors, self._copies = tensors, copies
        self.keeps_form = True
        """True if columns must keep their dtype, because a simulator returns them."""
        self.steps, self.is_reset = 0, False
        """Number of steps since the start, and whether the current results belong to a reset."""
        self._example: Any = None
        """Leaf of an observation, which shows the library and device of tensors."""
        self._forms: dict[Any, tuple[Any, int]] = {}
        """By path of a column with a row per env: its dtype, and the step of its first rows."""
        self._seen: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
        """By key, of steps and of resets: class, dtype and shape of a column that needs no further check."""
        self._fit = self._fit_tensor if tensors else self._fit_array

    @property
    def _where(self) -> str:
        return f"the reset after step {self.steps}" if self.is_reset else f"step {self.steps}"

    def obs(self, obs: Any, name: str = "an observation") -> Any:
        try:
            if self._layout.__class__ is dict or self._layout.__class__ is tuple:
                return fit_tree(obs, self._layout, (self._n,), self._fit)
            return self._fit(obs, self._layout, (self._n,))
        except ObservationError as error:
            raise ObservationError(
                f"{self.name} returned {name} that does not fit its space, with a row for each env: {error}"
            ) from error

    def _fit_array(self, value: Any, leaf: Any, rows: tuple[int, ...]) -> Any:
        self._example = value
        if value.__class__ is np.ndarray and value.dtype == leaf.dtype and value.shape == (*rows, *leaf.shape):
            return value.copy() if self._copies else value
        return self._owned(fit(value, leaf, rows), value)

    def _owned(self, array: np.ndarray, value: Any) -> np.ndarray:
        """Return a copy of `array`, unless the conversion of `value` has made one already."""
        is_own = isinstance(value, np.ndarray) and array is not value and array.flags.owndata
        return array if is_own or not self._copies else array.copy()

    def _fit_tensor(self, value: Any, leaf: Any, rows: tuple[int, ...]) -> Any:
        if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
            raise ObservationError(f"{leaf.path} is a {type(value).__name__}, but tensors=True needs tensors")
        shape = (*rows, *leaf.shape)
        if tuple(value.shape) != shape:
            if tuple(value.shape[: len(rows)]) != rows or (*value.shape[len(rows) :], *leaf.shape) != (1,):
                raise ObservationError(f"{leaf.path} has the shape {tuple(value.shape)}, expected {shape}")
            value = value.reshape(shape)
        self._example = value
        return own(value) if self._copies else value

    def as_tensor(self, action: Any) -> Any:
        """Return an action's array in the library of the observations, and on their device. Tensors stay."""
        is_tensor = hasattr(self._example, "__dlpack__") and not isinstance(self._example, np.ndarray)
        return like(self._example, action) if is_tensor and isinstance(action, np.ndarray) else action

    def reward(self, reward: Any) -> Any:
        """Return rewards (n,), or (n, ...) for vector rewards. The shape (n, 1) becomes (n,)."""
        array = self._column("reward", reward)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array.reshape(self._n)
        if self.tensors:
            return own(array) if self._copies else array
        if array.dtype.kind not in "biuf":
            raise self._wrong("reward", reward, array, "numbers")
        return self._owned(array, reward) if array.dtype == np.float64 else array.astype(np.float64)

    def flag(self, name: str, flag: Any) -> Any:
        """Return the flags (n,) as bools. The shape (n, 1) becomes (n,), and numbers may be 0 or 1."""
        array = self._column(name, flag)
        if array.shape == (self._n, 1):
            array = array.reshape(self._n)
        if array.shape != (self._n,):
            raise self._wrong(name, flag, array, f"the shape ({self._n},)")
        if self.tensors:
            is_bool = str(array.dtype).endswith("bool")
            return array != 0 if not is_bool else own(array) if self._copies else array
        if array.dtype != np.bool_:
            if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
                raise self._wrong(name, flag, array, "bools")
            return array.astype(np.bool_)
        return self._owned(array, flag)

    def _column(self, name: str, value: Any) -> Any:
        if value.__class__ is np.ndarray and not self.tensors:
            array = value
        elif self.tensors:
            if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
                raise self._wrong(name, value, np.asarray(value), "a tensor, because of tensors=True")
            array = value
        else:
            try:
                array = nest.as_array(value)
            except Exception:  # ragged, or an unreadable tensor
                array = np.asarray(None)
        if array.shape[:1] != (self._n,):
            raise self._wrong(name, value, array, f"the shape ({self._n},)")
        return array

    def _wrong(self, name: str, value: Any, array: Any, expected: str) -> EnvContractError:
        return EnvContractError(
            f"{self.name} returned {name}={short(value)} with the shape {tuple(array.shape)} and dtype {array.dtype} "
            f"in {self._where}, expected {expected}"
        )

    def columns(self, found: Any) -> dict[Any, Any]:
        """Return the infos of a reset or step as columns."""
        if not found:
            return {}
        if not isinstance(found, Mapping):
            raise EnvContractError(
                f"{self.name} returned infos of type {type(found).__name__} in {self._where}, expected a dict of "
                "columns"
            )
        seen = self._seen[self.is_reset]
        for key, column in found.items():
            known = seen.get(key)
            if known is None or column.__class__ is not known[0] or (column.dtype, column.shape) != known[1:]:
                self._check(found, ())
                arrays = {key: each for key, each in found.items() if hasattr(each, "dtype") and hasattr(each, "shape")}
                seen.update({key: (each.__class__, each.dtype, each.shape) for key, each in arrays.items()})
                break
        return {key: own(column) for key, column in found.items()} if self._copies else dict(found)

    def _check(self, columns: Mapping[Any, Any], path: tuple[Any, ...]) -> None:
        for key, column, mask in entries(columns):
            place = (*path, key)
            if mask is not None and tuple(np.shape(mask)) != (self._n,):
                raise self._bad(place, f"has a mask of shape {np.shape(mask)}, expected ({self._n},)")
            if isinstance(column, Mapping):
                self._check(column, place)
                continue
            shape = tuple(getattr(column, "shape", ()))
            if mask is not None and shape and shape[0] != self._n:
                raise self._bad(place, f"has the shape {shape} and a mask, expected a row for each env")
            if self.keeps_form:
                self._check_form(place, shape, getattr(column, "dtype", None))

    def _check_form(self, place: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> None:
        """Raise if a column, which had a row per env in an earlier result, has another form now.

        Its mask may come and go: ManiSkill's `elapsed_steps` has a mask only in a step that ends an episode.
        """
        key = place, self.is_reset
        if shape[:1] == (self._n,):
            known, step = self._forms.setdefault(key, (dtype, self.steps))
            if known == dtype:
                return
        elif not shape or key not in self._forms:
            return
        before, step = self._forms[key]
        raise self._bad(
            place, f"has the shape {shape} and {dtype}, expected {self._n} rows of {before}, as in step {step}"
        )

    def _bad(self, place: tuple[Any, ...], text: str) -> EnvContractError:
        name = "".join(f"[{key!r}]" for key in place)
        return EnvContractError(f"{self.name}: infos{name} {text} (in {self._where})")

    def last_obs(self, ends: Mapping[Any, Any], over: Any) -> tuple[Any, dict[int, Any]]:
        """Return the last observations (n, ...) of a step in SAME_STEP mode, and originals that lose types in a row.

        Rows of envs outside of the mask `over` have no meaning. Raises EnvContractError if an ended env has none.
        """
        # gymnasium 0.29 has the second key. Some classes return rows of all envs, and no mask.
        key = "final_obs" if "final_obs" in ends else "final_observation"
        mask = ends.get(f"_{key}")
        if key not in ends or (mask is not None and not self.tensors):
            self._check_last(over if key not in ends else over & ~np.asarray(on_host(mask), np.bool_))
        found: Any = ends.get(key)
        if not (isinstance(found, list) or (isinstance(found, np.ndarray) and found.dtype == object)):
            return self.obs(found, "a final_obs"), {}
        ids, returned = np.flatnonzero(over).tolist(), dict[int, Any]()
        last = nest.map(lambda leaf: np.zeros((self._n, *leaf.shape), leaf.dtype), self._layout)
        for i in ids:
            try:
                nest.put(last, i, fit_tree(found[i], self._layout))
            except ObservationError as error:
                raise ObservationError(f"{self.name} returned a wrong final_obs for env {i}: {error}") from error
            if not is_exact(found[i], self._layout, self._layout):
                returned[i] = copy_if_possible(found[i])
        return last, returned

    def _check_last(self, missing: Any) -> None:
        if bool(missing.any()):
            i = int(np.flatnonzero(nest.as_array(missing))[0])
            raise EnvContractError(
                f"env {i}: {self.name} ended an episode in SAME_STEP mode, but its infos have no final_obs; if it "
                "never returns last observations, pass has_final_obs=False to from_gymnasium"
            )

    def last_infos(self, ends: Mapping[Any, Any], infos: dict[Any, Any], over: Any) -> dict[Any, Any]:
        """Return the columns of last infos. Without a `final_info`, as in AtariVectorEnv, these are `infos`."""
        found, mask = ends.get("final_info"), ends.get("_final_info")
        if found is None:
            return infos
        if not isinstance(found, Mapping):  # an array or list of dicts, as in gymnasium 0.29
            each = {i: found[i] for i in np.flatnonzero(nest.as_array(over)).tolist() if found[i] is not None}
            mask, found = np.isin(np.arange(self._n), list(each)), _columns_of(each, self._n)
        found = {key: own(column) for key, column in found.items()} if self._copies else dict(found)
        if mask is None:
            return found
        return self.merged(infos, found, mask)

    def merged(self, infos: dict[Any, Any], others: dict[Any, Any], mask: Any) -> dict[Any, Any]:
        """Return the columns `infos` with the rows of `others` for the envs in `mask`."""
        if not self.tensors:
            infos, others, mask = on_host(infos), on_host(others), np.asarray(on_host(mask), np.bool_)
        return merged(infos, others, mask, self._n)


def _columns_of(infos: Mapping[int, Mapping[Any, Any]], n: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for i, info in infos.items():
        for key, value in info.items():
            if key not in found:
                found[key], found[f"_{key}"] = np.full(n, None, object), np.zeros(n, np.bool_)
            found[key][i], found[f"_{key}"][i] = value, True
    return found


def without_ends(infos: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], dict[Any, Any]]:
    """Split the infos of a step in SAME_STEP mode into infos, and last observations and infos with their masks."""
    ends = {key: infos[key] for key in FINAL_KEYS if key in infos} if infos else {}
    return ({key: value for key, value in infos.items() if key not in ends}, ends) if ends else (infos, ends)
