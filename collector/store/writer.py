"""`StoreWriter`: appends episodes to a data set on disk. A committed episode survives a kill at any time.

A commit writes a shard under a temporary name, flushes and renames it, and flushes the folder. Then the commit appends
the shard's line to manifest.jsonl, and flushes.

Readers trust only the manifest. A shard without a line, or with half a line, does not count. The next writer removes
the shard.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import Episode, EpisodeBatch
from collector.store import schema
from collector.store.dataset_folder import SHARDS, check_free, open_locked, remove_data, writing
from collector.store.dataset_head import HEAD, head_bytes, head_changes, read_head, spaces_of
from collector.store.info_columns import with_info_columns
from collector.store.manifest import LONGEST_LINE, MANIFEST, Manifest, read_lines, read_manifest
from collector.store.safe_folder import PARTIAL, Closable, DatasetError, SafeFolder
from collector.store.schema import MAX_EXACT_INT, End, LayoutLine, Note, ShardLine
from collector.store.shard import mismatch, write_shard
from collector.store.shard_layout import (
    EpisodeLayout,
    check_spaces,
    check_whole,
    columns_of_shard,
    in_columns,
    in_shards,
    pack,
)
from collector.store.texts import bytes_name, with_encoded_texts
from vecenv import nest
from vecenv.arguments import check_mapping

_INTERRUPTED = "a commit was interrupted"
MOST_EPISODES = 2**20
"""Maximum episodes per shard, because a manifest line (70 bytes per episode) has a maximum length."""
LARGEST_NOTE = LONGEST_LINE // 4
_SHARD = re.compile(r"\d{6,12}(\.partial)?|w\d{3,9}", re.ASCII)
"""Names of shards, and of folders in which Ray tasks write for `StoreWriter.adopt`."""


class StoreWriter(Closable):
    """Writer of a data set.

    Args:
        folder: created with its parents if missing.
        head: result of `make_head`. With `resume`, the stored head stays, and None skips the comparison.
        resume: continue a data set whose spaces and job are as in `head`. Uncommitted data are removed.
        reopen: with `resume`, allow a complete data set. The data set is then incomplete until `end`.
        overwrite: remove a data set in the folder.
        compress: compress shards of up to 4 GiB: smaller, but slower.
        check: with `resume`, called with the manifest before any change.

    Raises `DatasetError`, before any change, if the folder cannot be written, is inside of another data set, is locked
    by another writer, or contains links, foreign files, or data that neither `resume` nor `overwrite` allows.

    Example::

        with StoreWriter(folder, make_head(space, space)) as writer:
            writer.add(episodes)
            writer.commit()
            writer.end()
    """

    _files, _broken = ExitStack(), ""  # `__del__` uses them, also if the constructor got wrong arguments

    def __init__(
        self,
        folder: str | os.PathLike[str],
        head: dict[str, Any] | None,
        *,
        resume: bool = False,
        reopen: bool = False,
        overwrite: bool = False,
        compress: bool = False,
        check: Callable[[Manifest], object] = lambda manifest: None,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.compress = compress
        self.manifest = Manifest()
        self.waiting_bytes = 0
        self._waiting: list[EpisodeBatch] = []
        self._used_numbers: set[int] = set()
        self._next_number = 0
        if head is None and not resume:
            raise DatasetError(f"a new data set in {self.folder} needs a head: pass make_head(...)")
        content = None if head is None else head_bytes(check_mapping("head", head))
        with writing(self.folder, "choose another folder"), ExitStack() as undo:
            self.opened, _ = open_locked(self.folder, undo)
            """Folder, opened and locked. The caller may add files, such as statistics.json."""
            if resume and self.opened.kind(HEAD):
                self.manifest = _resume(self.opened, head, check, reopen)
            elif content is None:
                read_head(self.opened)  # raises: there is no head
            else:
                check_free(self.opened, overwrite)
                remove_data(self.opened)
                self.opened.write(HEAD, content)
            self.head = read_head(self.opened)
            self._spaces = spaces_of(self.head)
            self._trees = [nest.tree_of(self._spaces[f"{name}_space"]) for name in ("observation", "action")]
            self._next_shard = 1 + max(
                (int(line.shard.rpartition("/")[2]) for line in self.manifest.shards), default=-1
            )
            self._reserve_numbers(self.committed)
            self._layout = self.manifest.layout
            self.manifest.fd = self.opened.open(MANIFEST, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            undo.callback(os.close, self.manifest.fd)
            self.manifest.cut_off()
            self.opened.sync()
            self._files = undo.pop_all()

    @property
    def committed(self) -> np.ndarray:
        """int64: numbers of the committed episodes, in the order of their commits."""
        return self.manifest.index["number"]

    def add(self, episodes: Episode | Sequence[Episode] | EpisodeBatch) -> None:
        """Add episodes to the next shard. An episode without a number gets the next free number.

        An `Episode` is copied. The keys of its Dict observations and actions may come in any order. The arrays of
        an `EpisodeBatch` must not change before the commit.

        Raises `DatasetError`, and adds no episode, if an episode

        - has no step, or arrays of wrong lengths,
        - does not end (terminated or truncated) in its last step, or ends in an earlier step,
        - has an infinite or NaN reward or sum of rewards,
        - has other dtypes or shapes than the data set's spaces or earlier episodes,
        - has an info that does not fit the dtype of earlier infos,
        - has a used number, or a seed or env id out of range.
        """
        several = [episodes] if isinstance(episodes, Episode) else episodes
        self._check_open()
        if not len(several):
            return
        if not isinstance(several, EpisodeBatch):
            obs, action = self._trees
            several = pack(
                [replace(each, obs=_in_order(each.obs, obs), action=_in_order(each.action, action)) for each in several]
            )
            # `pack` copies all columns except `obs`.
            several = replace(several, obs_parts=[nest.map(np.array, part) for part in several.obs_parts])
        batch = in_columns(self._numbered(several), self._spaces["action_space"])
        if batch.info:
            batch = with_info_columns(batch, self._layout)
        layout = EpisodeLayout.of(batch)
        check_whole(batch, layout)
        if self._layout is None:
            check_spaces(layout, self._spaces)
        elif layout != self._layout:
            raise DatasetError(
                f"these episodes have the arrays {layout.line()}, but the episodes of {self.folder} have "
                f"{self._layout.line()}; store them in another folder"
            )
        self._layout = layout
        self._reserve_numbers(batch.episode)
        self._waiting.append(batch)
        self.waiting_bytes += batch.nbytes

    def _reserve_numbers(self, numbers: np.ndarray) -> None:
        self._used_numbers.update(numbers.tolist())
        self._next_number = max(self._next_number, int(numbers.max(initial=-1)) + 1)

    def _numbered(self, episodes: EpisodeBatch) -> EpisodeBatch:
        numbers = episodes.episode
        if (numbers < 0).any():
            free = max(self._next_number, int(numbers.max()) + 1)
            numbers = np.where(numbers < 0, free + np.cumsum(numbers < 0) - 1, numbers)
            episodes = replace(episodes, episode=numbers)
        if numbers.max() >= MAX_EXACT_INT:
            raise DatasetError(f"episode {numbers.max()} cannot be stored: its number must be below {MAX_EXACT_INT}")
        fresh = numbers.tolist()
        if twice := self._used_numbers.intersection(fresh) or [
            each for each, count in Counter(fresh).items() if count > 1
        ]:
            raise DatasetError(
                f"episode numbers {sorted(twice)[:5]} would occur twice in {self.folder}; add each number once"
            )
        return episodes

    def commit(self, *, failed: dict[str, int] | None = None, state: Any = None) -> None:
        """Write the added episodes as shards, and append the shards' lines to the manifest.

        `failed` counts failures since the last commit, by kind. The manifest stores `state`, any value that JSON
        can express, for the next writer.

        Raises `DatasetError` if the disk is full (`commit` can be retried). Before writing, raises

        - `DatasetError` if `failed` and `state` are too long,
        - TypeError if JSON cannot express a value's type,
        - ValueError for NaN, infinity, or a count in `failed` that is negative or not an integer.
        """
        self._check_open()
        note = Note(failed or {}, state)
        if (size := len(schema.dump_line(note))) > LARGEST_NOTE:
            raise DatasetError(
                f"failures and state have {size:,} bytes as JSON, but at most {LARGEST_NOTE:,} are allowed"
            )
        if not self._waiting:
            if note != Note():
                with self._changing():
                    self.manifest.append([note])
            return
        *first, last = in_shards(self._waiting, MOST_EPISODES)
        self._waiting = [batch for group in (*first, last) for batch in group]
        for group in first:
            self._commit_shard(group, Note())
        self._commit_shard(last, note)

    def _commit_shard(self, batches: list[EpisodeBatch], note: Note) -> None:
        layout = self._layout
        assert layout is not None, "set by add"
        with self._changing(), self.opened.inside(SHARDS, make=True) as shards:
            name = self._new_name()
            try:
                arrays: Mapping[str, Sequence[np.ndarray]] = columns_of_shard(layout, batches)
                if layout.texts:
                    arrays = with_encoded_texts(arrays)
                files, compressed = write_shard(shards, name, arrays, self.compress)
                line = ShardLine(
                    shard=f"{SHARDS}/{name}",
                    files=files,
                    compressed=compressed,
                    steps=sum(len(batch.reward) for batch in batches),
                    episodes=np.concatenate([batch.episode for batch in batches]).tolist(),
                    lengths=np.concatenate([batch.lengths for batch in batches]).tolist(),
                    returns=np.concatenate([batch.total_rewards for batch in batches]).tolist(),
                    failed=note.failed,
                    state=note.state,
                    text_bytes={text: arrays[bytes_name(text)][0].nbytes for text in layout.texts},
                )
                self.manifest.append([line] if self.manifest.layout is not None else [layout.line(), line])
            except OSError:
                for each in () if self.manifest.unknown else (name + PARTIAL, name):
                    with suppress(OSError):
                        shards.remove(each)
                raise
            self._waiting = self._waiting[len(batches) :]
            self.waiting_bytes = sum(each.nbytes for each in self._waiting)

    def _new_name(self) -> str:
        """Return an unused name. A failed commit's name is not reused, because its line may be on the disk."""
        self._next_shard += 1
        return f"{self._next_shard - 1:06d}"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Make the writer unusable after an unexpected exception (such as Ctrl-C) or an `append` that cannot be undone.

        The disk may then differ from this object.
        """
        self._broken = _INTERRUPTED
        try:
            with writing(self.folder, f"the {len(self.committed):,} episodes committed before are kept"):
                yield
        except DatasetError:
            self._broken = self.manifest.unknown
            raise
        self._broken = ""

    def adopt(self, part: str) -> list[ShardLine]:
        """Move the committed shards of the data set in the subfolder `part` into this data set. Return their lines.

        While a part is still being written, each call moves its new shards.

        Raises `DatasetError` if the layout differs, a number is used already, or the disk cannot be written.
        """
        self._check_open()
        adopted = []
        with self._changing(), self.opened.inside(part) as other, self.opened.inside(SHARDS, make=True) as ours:
            for line, _ in read_lines(other):
                if isinstance(line, LayoutLine):
                    layout = EpisodeLayout.of(line)
                    if self._layout not in (None, layout):
                        raise DatasetError(
                            f"{other.path} has episodes of other dtypes or shapes than {self.folder}: {line}"
                        )
                    if self.manifest.layout is None:
                        self.manifest.append([line])
                    self._layout = layout
                elif isinstance(line, ShardLine) and other.kind(line.shard):
                    if twice := self._used_numbers.intersection(line.episodes):
                        raise DatasetError(f"{other.path} has episodes {sorted(twice)[:5]}, which are stored already")
                    name = self._new_name()
                    with other.inside(SHARDS) as theirs:
                        theirs.rename(line.shard.removeprefix(f"{SHARDS}/"), name, ours)
                    line.shard = f"{SHARDS}/{name}"
                    self.manifest.append([line])
                    self._reserve_numbers(np.array(line.episodes))
                    adopted.append(line)
        return adopted

    def end(self, *, episodes: int | None = None) -> None:
        """Commit, and mark the data set as complete. To leave the data set incomplete, call only `close`.

        Readers see only episodes with numbers below `episodes` (None: all). Before any change, raises `DatasetError` if
        `episodes` is above 0 but there is no episode, and ValueError or TypeError if `episodes` is negative or not an
        integer.
        """
        self._check_open()
        line = End(self._next_number if episodes is None else episodes)
        schema.dump_line(line)
        if self._layout is None and line.episodes:
            raise DatasetError(
                f"{self.folder} has no episodes, so it cannot end with {line.episodes:,}: add episodes first"
            )
        self.commit()
        with self._changing():
            self.manifest.append([line])

    def close(self) -> None:
        """Unlock the folder. Uncommitted episodes are lost."""
        self._files.close()
        self._broken = self._broken or "it is closed"

    def _check_open(self) -> None:
        if self._broken:
            raise DatasetError(f"the writer of {self.folder} cannot continue: {self._broken}; resume with a new writer")
        if self.manifest.end is not None:
            raise DatasetError(
                f"{self.folder} is complete, with episode numbers below {self.manifest.end}; choose another folder"
            )


def _in_order(tree: Any, like: Any) -> Any:
    """Return the tree with the keys of each dict in the order of `like`, which is the order of the columns.

    A tree of another structure stays as it is, and is refused later.
    """
    if isinstance(tree, dict) and isinstance(like, dict) and tree.keys() == like.keys():
        return {key: _in_order(tree[key], part) for key, part in like.items()}
    if isinstance(tree, tuple) and isinstance(like, tuple) and len(tree) == len(like):
        return tuple(map(_in_order, tree, like))
    return tree


def _resume(
    folder: SafeFolder,
    head: dict[str, Any] | None,
    check: Callable[[Manifest], object] = lambda manifest: None,
    reopen: bool = False,
) -> Manifest:
    """Check the data set in a locked folder, then remove uncommitted shards.

    Raises `DatasetError` before any change if the data set is damaged or settings differ.
    """
    before = read_head(folder)
    if head is not None and (found := head_changes(before, head)):
        raise DatasetError(
            f"{folder.path} was begun with other settings ({'; '.join(found)}); resume it with the same "
            "settings, or choose another folder"
        )
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        try:
            with folder.inside(shard.shard) as opened:
                sizes = {name: opened.size(name) for name in shard.files}
        except FileNotFoundError:
            sizes = {}
        if sizes != {name: size for name, (size, _) in shard.files.items()}:
            raise mismatch(folder.path / shard.shard)
    check(manifest)
    if reopen and manifest.end is not None:
        if surplus := int((manifest.index["number"] >= manifest.end).sum()):
            raise DatasetError(
                f"{folder.path} cannot be reopened: it was ended at episode number {manifest.end}, and readers ignore "
                f"{surplus:,} episodes from there on; choose another folder"
            )
        manifest.end, manifest.good_bytes = None, manifest.end_at
    committed = {shard.shard for shard in manifest.shards}
    with suppress(FileNotFoundError), folder.inside(SHARDS) as shards:
        for name, _ in shards.entries():
            if _SHARD.fullmatch(name) and f"{SHARDS}/{name}" not in committed:
                shards.remove(name)
    for name in (HEAD, MANIFEST):
        with suppress(FileNotFoundError):
            folder.remove(name + PARTIAL)
    return manifest
