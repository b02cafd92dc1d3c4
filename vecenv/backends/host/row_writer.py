"""`RowWriter`: checks the results of an env, and writes them into the env's row of the batch (`Arena`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vecenv import nest
from vecenv.backends.host.env_checks import reset_result, step_result
from vecenv.backends.host.failure import Failure
from vecenv.backends.memory.arena import Arena
from vecenv.errors import EnvContractError, ObservationError
from vecenv.layout import Layout, Leaf, ObjectLeaf, merge_trees, space_tree
from vecenv.nest import cast_exactly

Put = Callable[[Any, "list[Any] | None"], None]
Keep = Callable[[Any], Any]


class Final(NamedTuple):
    """Values of an episode's last step that the arena does not hold, if the same round reset the env.

    `objects`: object leaves of the last observation. `obs`: the last observation, if the row does not keep all its
    types (see `is_exact`).
    """

    objects: list[Any] | None
    info: Mapping[str, Any]
    obs: Any = None


class Extra(NamedTuple):
    """Parts of a result that do not fit the env's row."""

    info: Mapping[str, Any] | None = None
    objects: list[Any] | None = None
    reward: np.ndarray | None = None
    failure: Failure | None = None
    final: Final | None = None

    def only_info(self) -> Mapping[str, Any] | None:
        info, *others = self
        return info if all(part is None for part in others) else None

    def to_tuples(self) -> tuple[Any, ...]:
        return *self[:4], None if self.final is None else tuple(self.final)

    @classmethod
    def from_tuples(cls, parts: Any) -> Extra:
        info, objects, reward, failure, final = parts
        return cls(info, objects, reward, failure, None if final is None else Final(*final))


NO_EXTRA = Extra()
RESET_IN_ARENA = Extra(final=Final(None, {}))
"""Extra of an env that was reset after its last step, if both results are in the arena and have empty infos."""
IN_INFO_ROW = Extra()
"""Extra of an env if the arena has the whole result, including an info (see `InfoWriter`)."""

REWARD_TYPES = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
BOOLS = frozenset({bool, np.bool_})
IMMUTABLE_TYPES = REWARD_TYPES | BOOLS | {str, bytes, type(None)}


class RowWriter:
    """Writer of the results of envs into their rows of the arena `block`.

    `spaces`: observation space per env. `keep` copies object leaves, because the env or the caller could change them.
    """

    def __init__(self, layout: Layout, spaces: Sequence[Any], block: Arena, keep: Keep | None) -> None:
        arrays = [leaf for leaf in nest.leaves(block.obs) if leaf.dtype != object]
        self._obs_and_final = list(zip(arrays, block.finals(), strict=True))
        self.copy_info: Keep = (lambda value: value) if keep is None else copy_containers
        self._has_objects = any(isinstance(leaf, ObjectLeaf) for leaf in nest.leaves(layout.obs))
        trees = [space_tree(space, "obs") for space in spaces]
        # The env of a new worker may have a different space. Its observations must still fit the batch.
        trees = [tree if merge_trees([layout.obs, tree], "obs") == layout.obs else layout.obs for tree in trees]
        self._layout, self._trees = layout.obs, trees
        self._put = [
            _compile(layout.obs, tree, nest.take(block.obs, slice(j, j + 1)), keep)
            for j, tree in enumerate(self._trees)
        ]
        # `EnvHost.run` itself writes arrays with this dtype and shape. For nested spaces and scalars, both are None.
        leaf = layout.obs if isinstance(layout.obs, Leaf) and layout.obs.shape else None
        self.dtype = None if leaf is None else leaf.dtype
        self.shape = None if leaf is None else leaf.shape
        self.obs_rows: list[Any] = [None] * len(spaces) if leaf is None else list(block.obs)
        self.reward: Any = block.reward.data
        self.terminated: Any = block.terminated.data
        self.truncated: Any = block.truncated.data

    def write_step(self, j: int, result: Any) -> Extra | None:
        """Check and write a result of `step`. Return the part that does not fit the row, or `None`."""
        if result.__class__ is not tuple or len(result) != 5:
            result = step_result(result)
        obs, reward, terminated, truncated, info = result
        objects: list[Any] | None = [] if self._has_objects else None
        self._put[j](obs, objects)
        vector = None
        if reward.__class__ not in REWARD_TYPES:
            reward, vector = convert_reward(reward)
        self.reward[j] = reward
        self.terminated[j] = terminated if terminated.__class__ in BOOLS else convert_flag("terminated", terminated)
        self.truncated[j] = truncated if truncated.__class__ in BOOLS else convert_flag("truncated", truncated)
        if info.__class__ is not dict:
            info = _convert_info("step", info)
        if info or objects is not None or vector is not None:
            return Extra(self.copy_info(info) if info else None, objects, vector)
        return None

    def final(self, j: int, extra: Extra, last: Any) -> Final:
        """Copy the last result of env j, because the reset overwrites the row, and the env may change its objects."""
        for obs, final in self._obs_and_final:
            final[j] = obs[j]
        returned = None
        if not is_exact(last, self._trees[j], self._layout):
            returned = copy.deepcopy(last)
        return Final(copy.deepcopy(extra.objects), copy_containers(extra.info or {}), returned)

    def restore(self, j: int) -> None:
        for obs, final in self._obs_and_final:
            obs[j] = final[j]

    def write_reset(self, j: int, result: Any) -> Extra | None:
        """Check and write a result of `reset`, with reward 0 and flags False."""
        if result.__class__ is not tuple or len(result) != 2 or result[1].__class__ is not dict:
            result = reset_result(result)
        obs, info = result
        objects: list[Any] | None = [] if self._has_objects else None
        self._put[j](obs, objects)
        self.reward[j] = 0.0
        self.terminated[j] = self.truncated[j] = False
        if info.__class__ is not dict:
            info = _convert_info("reset", info)
        return Extra(self.copy_info(info) or None, objects) if info or objects is not None else None


def wrong_reward_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> EnvContractError:
    return EnvContractError(
        f"step() returned a reward of shape {shape}, expected {expected}, the shape of the first reward; all envs of a "
        "vector env must return rewards of the same shape"
    )


def convert_reward(reward: Any) -> tuple[float, np.ndarray | None]:
    """Return (scalar, vector or `None`) for a reward that is not a plain number."""
    try:
        array = nest.as_array(reward)
    except Exception:  # ragged, or an unreadable tensor
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        text = f"step() returned the reward {short(reward)}, expected a number or a vector of numbers"
        if reward is None:
            text += (
                ". If the env knows the reward only at the end of the episode, return 0.0 until then. If a call "
                'failed, raise an exception, and pass on_error="restart", which marks the step '
                "(docs/guides/agent-envs.md)"
            )
        raise EnvContractError(text)
    if array.shape in ((), (1,)):
        return float(array.reshape(())), None
    return 0.0, array.astype(np.float64)


def _compile(tree: Any, own: Any, rows: Any, keep: Keep | None) -> Put:
    if isinstance(tree, Leaf):
        return _array_put(tree, rows.reshape(tree.shape))
    if isinstance(tree, ObjectLeaf):
        return _object_put(own, keep)
    if isinstance(tree, dict):
        return _dict_put({key: _compile(child, own[key], rows[key], keep) for key, child in tree.items()}, own)
    return _tuple_put([_compile(child, own[i], rows[i], keep) for i, child in enumerate(tree)], own)


def _array_put(leaf: Leaf, row: np.ndarray) -> Put:
    dtype, shape, ndarray = leaf.dtype, leaf.shape, np.ndarray
    scalars = (
        set() if shape else {dtype.type} | {k for k, name in ((int, "int64"), (float, "float64")) if dtype == name}
    )

    def put(obs: Any, objects: list[Any] | None) -> None:
        if obs.__class__ is ndarray and obs.dtype is dtype and obs.shape == shape:
            row[...] = obs
            return
        try:
            row[...] = obs if obs.__class__ in scalars else fit(obs, leaf)
        except OverflowError:
            raise ObservationError(f"{leaf.path} is {obs}, {_expected(leaf)}") from None

    return put


def _object_put(own: Any, keep: Keep | None) -> Put:
    def put_array(obs: Any, objects: Any) -> None:
        objects.append(np.array(fit(obs, own)))

    def put(obs: Any, objects: Any) -> None:
        objects.append(obs if keep is None or obs.__class__ in IMMUTABLE_TYPES else keep(obs))

    return put_array if isinstance(own, Leaf) else put


def _dict_put(children: dict[Any, Put], own: Any) -> Put:
    keys, items = children.keys(), tuple(children.items())

    def put(obs: Any, objects: list[Any] | None) -> None:
        if obs.__class__ is not dict or obs.keys() != keys:
            _check_dict(obs, own)
        for key, child in items:
            child(obs[key], objects)

    return put


def _check_dict(obs: Any, own: Mapping[Any, Any]) -> None:
    if not isinstance(obs, Mapping):
        raise ObservationError(f"{_path(own)} is a {type(obs).__name__}, expected a dict with the keys {list(own)}")
    if obs.keys() != own.keys():
        missing, extra = [k for k in own if k not in obs], [k for k in obs if k not in own]
        raise ObservationError(f"{_path(own)} has the wrong keys: missing {missing}, not in the space {extra}")


def _tuple_put(children: list[Put], own: Any) -> Put:
    def put(obs: Any, objects: list[Any] | None) -> None:
        _check_tuple(obs, own)
        for child, part in zip(children, obs, strict=True):
            child(part, objects)

    return put


def _check_tuple(obs: Any, own: tuple[Any, ...]) -> None:
    # As in gymnasium, lists and arrays are elements of a Tuple space.
    is_sequence = isinstance(obs, (tuple, list)) or (isinstance(obs, np.ndarray) and obs.ndim > 0)
    if not is_sequence or len(obs) != len(own):
        got = f"a {type(obs).__name__}" + (f" of {len(obs)}" if is_sequence else "")
        raise ObservationError(f"{_path(own)} is {got}, expected a tuple of {len(own)}")


def fit_tree(obs: Any, tree: Any, rows: tuple[int, ...] = (), fit_leaf: Callable[..., Any] | None = None) -> Any:
    """Return `obs` with arrays in the shapes `(*rows, *shape)` and dtypes of the leaves of `tree`.

    `fit_leaf` replaces `fit`. Raises ObservationError as `fit`, and for other keys or numbers of parts.
    """
    if isinstance(tree, dict):
        _check_dict(obs, tree)
        return {key: fit_tree(obs[key], child, rows, fit_leaf) for key, child in tree.items()}
    if isinstance(tree, tuple):
        _check_tuple(obs, tree)
        return tuple(fit_tree(part, child, rows, fit_leaf) for part, child in zip(obs, tree, strict=True))
    return (fit_leaf or fit)(obs, tree, rows) if isinstance(tree, Leaf) else obs


def fit(value: Any, leaf: Leaf, rows: tuple[int, ...] = ()) -> np.ndarray:
    """Return `value` as an array with the shape `(*rows, *leaf.shape)` and the dtype of `leaf`.

    Raises ObservationError for a different shape ((1,) and () count as equal), and if a value would change, except by
    rounding to a float type.
    """
    try:
        array = np.asarray(nest.on_cpu(value))
    except ValueError:
        raise ObservationError(f"{leaf.path} is ragged, {_expected(leaf)}") from None
    except Exception as error:  # a tensor with gradients, or an unknown dtype
        raise ObservationError(f"{leaf.path} is not an array: {error}; {_expected(leaf)}") from error
    if array.shape != (shape := (*rows, *leaf.shape)):
        if array.shape[: len(rows)] != rows or array.shape[len(rows) :] + leaf.shape != (1,):
            raise ObservationError(f"{leaf.path} is {_described(array)}, {_expected(leaf)}")
        array = array.reshape(shape)
    if array.dtype == leaf.dtype:
        return array
    cast = cast_exactly(array, leaf.dtype)
    if cast is None:
        raise ObservationError(f"{leaf.path} is {_described(array)}, {_expected(leaf)}; cast it in the env")
    return cast


def is_exact(obs: Any, tree: Any, layout: Any) -> bool:
    """Return True if the row keeps the types, dtypes, shapes and order of keys in `obs`.

    `tree`: leaves of the env's space. `layout`: leaves of the batch.
    """
    if isinstance(layout, ObjectLeaf):
        return isinstance(tree, ObjectLeaf)
    if isinstance(tree, dict):
        same_keys = obs.__class__ is dict and list(obs) == list(tree)
        return same_keys and all(is_exact(obs[key], child, layout[key]) for key, child in tree.items())
    if isinstance(tree, tuple):
        return obs.__class__ is tuple and all(map(is_exact, obs, tree, layout))
    if not tree.shape:
        return bool(obs.__class__ is tree.dtype.type)
    return obs.__class__ is np.ndarray and obs.dtype == tree.dtype and obs.shape == tree.shape


def copy_containers(value: Any) -> Any:
    """Copy dicts, lists, tuples, namedtuples (gymnasium's GraphInstance) and arrays, because the env may change them.

    Other objects stay shared.
    """
    kind = value.__class__
    if kind is dict:
        copied = value.copy()
        for key, child in value.items():
            if child.__class__ is np.ndarray:
                copied[key] = child.copy()
            elif child.__class__ not in IMMUTABLE_TYPES:
                copied[key] = copy_containers(child)
        return copied
    if kind is list or kind is tuple or hasattr(kind, "_make"):
        parts = [each if each.__class__ in IMMUTABLE_TYPES else copy_containers(each) for each in value]
        return getattr(kind, "_make", kind)(parts)
    return value.copy() if isinstance(value, np.ndarray) else value


def convert_flag(name: str, flag: Any) -> bool:
    if isinstance(flag, (int, float)) or hasattr(flag, "__array__"):
        array = nest.as_array(flag)
        if array.size == 1 and array.dtype.kind in "biuf" and array.reshape(()) in (0, 1):
            return bool(array.reshape(()))
    raise EnvContractError(f"step() returned {name}={short(flag)} of type {type(flag).__name__}, expected a bool")


def _convert_info(op: str, info: Any) -> dict[str, Any]:
    if isinstance(info, Mapping):
        return dict(info)
    raise EnvContractError(f"{op}() returned an info of type {type(info).__name__}, expected a dict")


def _path(tree: Any) -> str:
    """Return the path of a dict or tuple, for example `obs['a']` if its first leaf is `obs['a'][0]`."""
    below, leaf = next(nest.items(tree), ((), None))
    return "obs" if leaf is None else str(leaf.path).removesuffix("".join(f"[{key!r}]" for key in below))


def _expected(leaf: Leaf) -> str:
    return f"the space has {leaf.dtype.name} {leaf.shape}"


def _described(array: np.ndarray) -> str:
    text = f"{array.dtype.name} {array.shape}"
    if array.dtype.kind in "biuf" and array.size:
        text += f" with values in [{array.min()}, {array.max()}]"
    return text


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
