"""`EpisodeLayout`: names, dtypes and shapes of the arrays of a shard.

A shard has a file per array. With E episodes and S steps, the arrays are

    obs          (S + E, ...)   also the last observation of each episode
    action       (S, ...)
    reward       (S,) float64, or (S, m) for vector rewards
    terminated   (S,) bool
    truncated    (S,) bool
    offsets      (E + 1,) int64: episode e has the steps `offsets[e]:offsets[e + 1]`
    episode      (E,) int64: episode numbers
    seed         (E,) int64: seed of the reset, or -1
    env_id       (E,) int32

Dict and Tuple observations and actions have an array per leaf: `obs.0`, `obs.1`, ...

Recorded infos have the arrays `info.0`, `info.1`, ..., of the shape (S, ...).

A column of texts, such as `obs.1`, has two arrays: `obs.1` (S + E,) int64 with the ends of the texts in `obs.1.utf8`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from collector.batch.forms import join
from collector.episodes.episode import STEP_COLUMNS, Episode, EpisodeBatch
from collector.store.safe_folder import DatasetError
from collector.store.schema import STORED_DTYPES, TEXT_DTYPE, LayoutLine
from collector.store.texts import TEXT, bytes_name, decode_texts, encode_texts
from vecenv import nest
from vecenv.actions import batch_actions
from vecenv.arguments import whole
from vecenv.layout import Layout as RowLayout
from vecenv.layout import Leaf, ObjectLeaf, common_tree

OF_EPISODES = {"episode": "<i8", "seed": "<i8", "env_id": "<i4"}
END_COLUMNS = ("terminated", "truncated")
DEEPEST_TREE = 32


@dataclass(frozen=True)
class EpisodeLayout:
    """Names, dtypes and shapes of the arrays with an entry per step or observation."""

    names: dict[str, Any]
    """Array name of each column. For Dict and Tuple data, a tree with an array name per leaf."""
    rows: dict[str, np.dtype]
    """Dtype and shape of a row, by array name. Texts have the dtype object."""

    @classmethod
    def of(cls, episodes: Episode | EpisodeBatch | LayoutLine) -> EpisodeLayout:
        """Return the layout of `episodes`. Raises `DatasetError` for data that cannot be stored."""
        obs = episodes.obs_parts[0] if isinstance(episodes, EpisodeBatch) else episodes.obs
        trees = {"obs": _rows("obs", obs)} | {
            key: _rows(key, getattr(episodes, key)) for key in ("action", "reward", "info")
        }
        if trees["reward"] == TEXT:
            raise DatasetError("reward holds Python objects; only numbers can be stored")
        trees |= {"reward": np.dtype(("<f8", trees["reward"].shape)), **dict.fromkeys(END_COLUMNS, np.dtype("?"))}
        names = {key: _named(key, tree) for key, tree in trees.items()}
        return cls(names, dict(_pairs(names, trees)))

    def line(self) -> LayoutLine:
        texts = {name: _text(row) for name, row in self.rows.items()}
        trees = (nest.map(texts.__getitem__, self.names[key]) for key in ("obs", "action", "reward", "info"))
        return LayoutLine(*trees)

    @property
    def texts(self) -> list[str]:
        return [name for name, row in self.rows.items() if row == TEXT]

    def arrays(self, steps: int, episodes: int) -> dict[str, tuple[int, np.dtype]]:
        """Return the number of rows, and dtype and shape of a row, of each array in memory."""
        found = {name: (steps + episodes * is_of_obs(name), row) for name, row in self.rows.items()}
        found["offsets"] = episodes + 1, np.dtype("<i8")
        return found | {name: (episodes, np.dtype(dtype)) for name, dtype in OF_EPISODES.items()}

    def nbytes(self, steps: int, episodes: int) -> int:
        return sum(count * row.itemsize for count, row in self.arrays(steps, episodes).values())

    def files(self, steps: int, episodes: int, text_bytes: Mapping[str, int]) -> dict[str, tuple[int, np.dtype]]:
        """Return the same for each array of a shard. `text_bytes`: bytes of each column of texts."""
        found = self.arrays(steps, episodes)
        for name in self.texts:
            found |= {name: (found[name][0], np.dtype("<i8")), bytes_name(name): (text_bytes[name], np.dtype("|u1"))}
        return found


def row_layout(observation_spaces: Sequence[Any], action_spaces: Sequence[Any]) -> RowLayout:
    """Return dtypes and shapes of the envs' observations and actions.

    Raises `DatasetError` for spaces that cannot be stored, for example if shapes differ between envs.
    """
    layout = RowLayout(_stored_tree(observation_spaces, "obs"), _stored_tree(action_spaces, "action"))
    for name, tree in (("obs", layout.obs), ("action", layout.action)):
        if not (objects := _object_paths(tree)):
            _rows_of_leaves(name, tree)
            continue
        advice = ""
        if name == "obs" and isinstance(tree, dict):
            odd = [key for key, part in tree.items() if _object_paths(part)]
            advice = (
                f"; leave {', '.join(map(repr, odd))} out with the wrapper gymnasium.wrappers.FilterObservation, "
                f"filter_keys={[key for key in tree if key not in odd]}"
            )
        raise DatasetError(
            f"only texts and arrays of numbers can be stored: {objects[0]} is not an array with the same shape and "
            f"dtype in all envs{advice}"
        )
    return layout


def _stored_tree(spaces: Sequence[Any], path: str) -> Any:
    """Return the tree of leaves of observations or actions, in which texts have the dtype object."""

    def stored(leaf: Leaf | ObjectLeaf) -> Leaf | ObjectLeaf:
        return Leaf.of(leaf.path, (), TEXT) if isinstance(leaf, ObjectLeaf) and leaf.is_text else leaf

    return nest.map(stored, common_tree(spaces, path))


def _object_paths(tree: Any) -> list[str]:
    return [leaf.path for leaf in nest.leaves(tree) if isinstance(leaf, ObjectLeaf)]


def in_columns(episodes: EpisodeBatch, action_space: Any) -> EpisodeBatch:
    """Return episodes with an array per leaf of a Dict or Tuple action.

    A collector's batch has an object per action if a leaf is text.
    """
    if isinstance(episodes.action, (dict, tuple)) or episodes.action.dtype != TEXT:
        return episodes
    tree = _stored_tree([action_space], "action")
    if not isinstance(tree, (dict, tuple)) or _object_paths(tree):
        return episodes
    columns = batch_actions(episodes.action, range(len(episodes.action)), tree)
    return episodes if columns.__class__ is list else replace(episodes, action=columns)


def check_spaces(layout: EpisodeLayout, spaces: Mapping[str, Any]) -> None:
    for name, space in spaces.items():
        if space is None:
            continue
        key = "obs" if name == "observation_space" else "action"
        found = nest.map(layout.rows.__getitem__, layout.names[key])
        expected = _rows_of_leaves(key, _stored_tree([space], key))
        if found != expected:
            raise DatasetError(
                f"the episodes do not fit the {name.replace('_', ' ')} of the data set: {key} is "
                f"{nest.map(_text, found)!s:.200}, expected {nest.map(_text, expected)!s:.200}; make the data set with "
                "the spaces of its envs"
            )


def refuse_texts(layout: EpisodeLayout, target: str) -> None:
    """Raise `DatasetError` if an observation or action has a text."""
    trees = {key: layout.names[key] for key in ("obs", "action")}
    if names := [".".join(map(str, path)) for path, name in nest.items(trees) if name in layout.texts]:
        raise DatasetError(
            f"{target} takes only numbers, but {', '.join(names)} are texts: export as Parquet or Minari, or record "
            "numbers instead, for example with the wrapper gymnasium.wrappers.TransformObservation"
        )


def _text(row: np.dtype) -> str:
    return TEXT_DTYPE if row == TEXT else " ".join(map(str, (row.base.str, *row.shape)))


def _rows_of_leaves(name: str, tree: Any) -> Any:
    return _rows(name, nest.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), tree))


def is_of_obs(name: str) -> bool:
    return name == "obs" or name.startswith("obs.")


def _pairs(names: Any, tree: Any) -> Iterator[tuple[str, Any]]:
    return zip(nest.leaves(names), nest.leaves(tree), strict=True)


def _named(prefix: str, tree: Any) -> Any:
    """Return a tree with an array name per leaf.

    >>> _named("obs", {"a": np.zeros(1), "b": (np.zeros(1),)})
    {'a': 'obs.0', 'b': ('obs.1',)}
    """
    numbers = count()
    return nest.map(lambda _: f"{prefix}.{next(numbers)}", tree) if isinstance(tree, (dict, tuple)) else prefix


def _rows(name: str, tree: Any, depth: int = 0) -> Any:
    """Return dtype and shape of a row of each leaf. Leaves of `tree` are arrays, or texts such as "<f4 84 84"."""
    if isinstance(tree, (dict, list, tuple)):
        if depth == DEEPEST_TREE:
            raise DatasetError(f"{name} has more nested levels than can be stored: flatten the space")
        if not isinstance(tree, dict):
            return tuple(_rows(f"{name}[{i}]", child, depth + 1) for i, child in enumerate(tree))
        if not all(isinstance(key, str) and key.encode("utf-8", "replace").decode() == key for key in tree):
            raise DatasetError(
                f"{name} has the keys {list(tree)}; only text can be stored: give it text as keys with the wrapper "
                "gymnasium.wrappers.TransformObservation (TransformAction for actions), for example str(key) of each"
            )
        return {key: _rows(f"{name}[{key!r}]", child, depth + 1) for key, child in tree.items()}
    if not isinstance(tree, np.ndarray):
        dtype, *sizes = str(tree)[:500].split(" ")
        shape = tuple(int(size) if size.isdecimal() else -1 for size in sizes)
    elif tree.dtype == TEXT or tree.dtype.kind == "U":
        dtype, shape = TEXT_DTYPE, tree.shape[1:]
    else:
        dtype, shape = tree.dtype.newbyteorder("<").str, tree.shape[1:]
    if dtype == TEXT_DTYPE and not shape:
        return TEXT
    if dtype not in STORED_DTYPES:
        raise DatasetError(
            f"{name} is {getattr(tree, 'dtype', dtype)}; only bool, integers and floats of up to 64 bits, and one text "
            "per step, can be stored"
        )
    try:
        return np.dtype((dtype, shape))
    except ValueError as error:
        raise DatasetError(f"{name} cannot have the shape {shape}: {error}") from None


def columns_of_shard(layout: EpisodeLayout, batches: Sequence[EpisodeBatch]) -> dict[str, list[np.ndarray]]:
    """Return the arrays of a shard, each as a list of consecutive parts."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in layout.rows}
    for key, names in layout.names.items():
        # A batch has hundreds of parts of observations, so the names are found once.
        targets = [(columns[name].append, layout.rows[name].base) for name in nest.leaves(names)]
        for batch in batches:
            for tree in batch.obs_parts if key == "obs" else [getattr(batch, key)]:
                for (append, dtype), array in zip(targets, nest.leaves(tree), strict=True):
                    append(np.ascontiguousarray(array, dtype))
    lengths = np.concatenate([batch.lengths for batch in batches])
    columns["offsets"] = [np.append(0, np.cumsum(lengths)).astype(np.int64)]
    about = {
        name: [np.asarray(getattr(batch, name), dtype) for batch in batches] for name, dtype in OF_EPISODES.items()
    }
    return columns | about


def arrays_of(episodes: EpisodeBatch) -> dict[str, np.ndarray]:
    columns = columns_of_shard(EpisodeLayout.of(episodes), [episodes])
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in columns.items()}


def batch_of(layout: EpisodeLayout, files: Mapping[str, np.ndarray]) -> EpisodeBatch:
    """Return the episodes of a shard. Raises `DatasetError` for bytes that are not texts."""
    arrays = {**files, **{name: decode_texts(name, files[name], files[bytes_name(name)]) for name in layout.texts}}
    about: dict[str, Any] = {name: arrays[name] for name in OF_EPISODES}
    columns = nest.map(arrays.__getitem__, layout.names)
    obs_parts = [columns.pop("obs")]
    return EpisodeBatch(obs_parts=obs_parts, **columns, lengths=np.diff(arrays["offsets"]), **about)


def check_whole(episodes: EpisodeBatch, layout: EpisodeLayout) -> None:
    """Raise `DatasetError` for wrong lengths, shapes, seeds or env ids, partial episodes, NaN and infinite rewards."""
    steps, count, offsets = len(episodes.reward), len(episodes), episodes.offsets
    expected = layout.arrays(steps, count)
    columns = columns_of_shard(layout, [episodes])
    if wrong := [name for name, parts in columns.items() if sum(map(len, parts)) != expected[name][0]]:
        raise DatasetError(
            f"{', '.join(wrong)} have the wrong length for {count} episodes with {steps} steps; expected an entry per "
            "step, for obs one more per episode, and for episode, seed and env_id one per episode"
        )
    if offsets[-1] != steps or (episodes.lengths < 1).any():
        raise DatasetError(
            f"the lengths of {count} episodes are {episodes.lengths[:5]}...; expected at least 1 each, and {steps} "
            "together, as many as there are rewards"
        )
    if wrong := [
        name for name, parts in columns.items() if any(part.shape[1:] != expected[name][1].shape for part in parts)
    ]:
        raise DatasetError(f"{wrong[0]} has the shape {columns[wrong[0]][0].shape}, expected a number per entry")
    for name in layout.texts:
        encode_texts(name, columns[name])
    for name, least, most in (("seed", -1, 2**63), ("env_id", 0, 2**31)):
        numbers = getattr(episodes, name)
        if outside := numbers[(numbers < least) | (numbers >= most)].tolist():
            raise DatasetError(f"an episode has the {name} {outside[0]}, expected at least {least} and below {most}")
    if not np.array_equal(np.flatnonzero(columns["terminated"][0] | columns["truncated"][0]), offsets[1:] - 1):
        raise DatasetError(
            "only whole episodes can be stored: terminated or truncated must be True in the last step of each, and in "
            "no other step"
        )
    for which in episodes.not_finite.tolist()[:1]:
        reward = episodes.reward[offsets[which] : offsets[which + 1]]
        name = f"episode {int(episodes.episode[which])} of env {int(episodes.env_id[which])}"
        if np.isfinite(reward).all():
            raise DatasetError(
                f"the rewards of {name} are finite, but their sum is not; NaN and infinity are not stored: leave the "
                "episode out or correct the env"
            )
        step = int(np.flatnonzero(~np.isfinite(reward.reshape(len(reward), -1)).all(1))[0])
        raise DatasetError(
            f"{name} has the reward {reward[step]} in step {step}; NaN and infinity are not stored: leave the episode "
            "out or correct the env"
        )


def pack(episodes: Sequence[Episode]) -> EpisodeBatch:
    """Return episodes as a batch, after a check of dtypes, shapes and lengths."""
    layout = EpisodeLayout.of(episodes[0])
    for episode in episodes:
        steps, rows = len(episode), [[*map(len, nest.leaves(tree))] for tree in (episode.obs, episode.action)]
        if rows != [[steps + 1] * len(rows[0]), [steps] * len(rows[1])]:
            raise DatasetError(
                f"an episode of {steps} steps has {rows[0]} observations and {rows[1]} actions; expected "
                "an action per step, and one more observation"
            )
        if (other := EpisodeLayout.of(episode)) != layout:
            raise DatasetError(
                f"these episodes have different dtypes or shapes: {other.line()} and {layout.line()}; store them in "
                "different folders"
            )
    try:
        numbers: dict[str, Any] = {
            "episode": np.array([whole("number", each.number) for each in episodes], np.int64),
            "seed": np.array([-1 if each.seed is None else whole("seed", each.seed) for each in episodes], np.int64),
            "env_id": np.array([whole("env_id", each.env_id) for each in episodes], np.int32),
        }
    except OverflowError:
        raise DatasetError(
            "an episode has a number or seed of 64 bits or more, or an env_id of 32 bits or more"
        ) from None
    return EpisodeBatch(
        obs_parts=[each.obs for each in episodes],
        **join([{name: getattr(each, name) for name in STEP_COLUMNS} for each in episodes]),
        lengths=np.array([len(each) for each in episodes], np.int64),
        **numbers,
    )


def in_shards(batches: Sequence[EpisodeBatch], most: int) -> Iterator[list[EpisodeBatch]]:
    """Group batches into shards of at most `most` episodes. A batch may be split."""
    group, room = list[EpisodeBatch](), most
    for batch in batches:
        while len(batch) > room:
            group.append(batch.select(slice(room)))
            batch = batch.select(slice(room, None))
            yield group
            group, room = [], most
        group.append(batch)
        room -= len(batch)
    yield group
