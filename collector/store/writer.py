"""`StoreWriter`: append episodes to a folder. A committed episode survives a kill at any time.

A commit writes a shard under another name, flushes it to the disk, renames it, flushes the folder, and then adds a line
to the manifest and flushes that. A reader believes the manifest only, so that

- before the line there is no shard, and its episodes have to be collected again;
- half a line, without its end, is none, and is cut off when the next writer comes;
- after the line the shard is on the disk.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import Episode, EpisodeBatch
from collector.store import schema
from collector.store.dataset_folder import check_free, open_locked, remove_data, writing
from collector.store.dataset_head import HEAD, head_bytes, head_changes, read_head, spaces_of
from collector.store.manifest import LONGEST_LINE, MANIFEST, Manifest, read_lines, read_manifest
from collector.store.safe_folder import PARTIAL, Closable, DatasetError, SafeFolder
from collector.store.schema import LARGEST, End, LayoutLine, Note, ShardLine
from collector.store.shard import mismatch, write_shard
from collector.store.shard_layout import EpisodeLayout, check_spaces, check_whole, columns_of_shard, in_shards, pack

_INTERRUPTED = "a commit was interrupted"
SHARDS = "shards"
MOST_EPISODES = 2**20
"""Episodes in a shard: their numbers, lengths and returns have less than 70 bytes each in a line of the manifest."""
LARGEST_NOTE = LONGEST_LINE // 4
_SHARD = re.compile(r"\d{6,12}(\.partial)?|w\d{3,9}", re.ASCII)
"""A shard, or a folder for a part of the data set, whose shards are then adopted."""


class StoreWriter(Closable):
    """Writes episodes to a folder, shard by shard.

    Args:
        folder: made if it does not exist, with its parents.
        head: what `make_head` returns; None: that of the folder, with `resume`.
        resume: go on with a data set, whose head must agree with `head`. What was not committed is removed: shards
            without a line, and half a line.
        reopen: with `resume`, go on with a data set that is complete too: its end is removed, so that it is incomplete
            until the next `end`. Without, nothing can be added to it.
        overwrite: remove the data set that is there.
        compress: deflate the shards (up to 4 GB): smaller, slower to write and to read at random.
        check: with `resume`, called with the manifest of the data set before anything is changed; what it raises, the
            constructor does.

    Raises `DatasetError` where the folder is locked by another writer, holds links, files of others or another data
    set, or cannot be written; nothing is changed then.

    Example::

        with StoreWriter(folder, make_head(space, space)) as writer:
            writer.add(episodes)
            writer.commit()                 # these are now safe
            writer.end()
    """

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
        self._files, self._broken = ExitStack(), ""
        self.folder = Path(os.path.abspath(folder))
        self.compress = compress
        self.manifest = Manifest()
        """All that is committed; `manifest.end` is the number of episodes of a data set that is complete."""
        self.waiting_bytes = 0
        """Size of the episodes that are not committed yet."""
        self._waiting: list[EpisodeBatch] = []
        self._seen: set[int] = set()
        self._next_number = 0
        if head is None and not resume:
            raise DatasetError(f"a new data set in {self.folder} needs a head: pass make_head(...)")
        content = None if head is None else head_bytes(head)
        with writing(self.folder, "choose another folder"), ExitStack() as undo:
            self.opened, _ = open_locked(self.folder, undo)
            """The folder, for what else is written there; it is closed with the writer."""
            if resume and self.opened.kind(HEAD):
                self.manifest = _resume(self.opened, head, check, reopen)
            elif content is None:
                read_head(self.opened)  # which says that there is none
            else:
                check_free(self.opened, overwrite)
                remove_data(self.opened)
                self.opened.write(HEAD, content)
            self.head = read_head(self.opened)
            """The head of the folder."""
            self._spaces = spaces_of(self.head)
            self._next_shard = 1 + max(
                (int(line.shard.rpartition("/")[2]) for line in self.manifest.shards), default=-1
            )
            self._take_numbers(self.committed)
            self._layout = self.manifest.layout
            """The layout of all episodes; None until the first are added."""
            self.manifest.fd = self.opened.open(MANIFEST, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            undo.callback(os.close, self.manifest.fd)
            self.manifest.cut_off()
            self.opened.sync()
            self._files = undo.pop_all()

    # Episodes

    @property
    def committed(self) -> np.ndarray:
        """int64: the numbers of the episodes that are committed, in the order of their commits."""
        return self.manifest.index["number"]

    def add(self, episodes: Episode | Sequence[Episode] | EpisodeBatch) -> None:
        """Take episodes for the next shard; those without a number get the next free one.

        Raises `DatasetError` for one that is not whole, has rewards that are not finite, does not fit to those before,
        or has a number that was taken; then none of them is taken.
        """
        several = [episodes] if isinstance(episodes, Episode) else episodes
        self._check_open()
        if not len(several):
            return
        batch = self._numbered(several if isinstance(several, EpisodeBatch) else pack(several))
        layout = EpisodeLayout.of(batch)
        check_whole(batch, layout)
        if self._layout is None:
            check_spaces(layout, self._spaces)
        elif layout != self._layout:
            raise DatasetError(
                f"these episodes have the arrays {layout.line()}, and those of {self.folder} have {self._layout.line()}"
            )
        self._layout = layout
        self._take_numbers(batch.episode)
        self._waiting.append(batch)
        self.waiting_bytes += layout.nbytes(len(batch.reward), len(batch))

    def _take_numbers(self, numbers: np.ndarray) -> None:
        self._seen.update(numbers.tolist())
        self._next_number = max(self._next_number, int(numbers.max(initial=-1)) + 1)

    def _numbered(self, episodes: EpisodeBatch) -> EpisodeBatch:
        numbers = episodes.episode
        if (numbers < 0).any():
            free = max(self._next_number, int(numbers.max()) + 1)
            numbers = np.where(numbers < 0, free + np.cumsum(numbers < 0) - 1, numbers)
            episodes = replace(episodes, episode=numbers)
        if numbers.max() >= LARGEST:
            raise DatasetError(f"episode {numbers.max()} cannot be stored: numbers are below {LARGEST}")
        fresh = numbers.tolist()
        if twice := self._seen.intersection(fresh) or [each for each, count in Counter(fresh).items() if count > 1]:
            raise DatasetError(f"episodes {sorted(twice)[:5]} are in {self.folder} already; each number is stored once")
        return episodes

    def commit(self, *, failed: dict[str, int] | None = None, state: Any = None) -> None:
        """Write what was added since the last commit as one shard, and then its line in the manifest.

        `failed` counts failures since the last commit by name; `state` is any JSON that the next writer wants to find.
        Raises `DatasetError` where the disk refuses them; what was committed before is unchanged, and the same
        episodes wait for another attempt. So it does, before anything is written, for a state that is too large.
        """
        self._check_open()
        note = Note(failed or {}, state)
        if (size := len(schema.dump(note))) > LARGEST_NOTE:
            raise DatasetError(f"failures and state have {size:,} bytes as JSON, and {LARGEST_NOTE:,} are the most")
        if not self._waiting:
            if note != Note():
                with self._changing():
                    self.manifest.append([note])
            return
        # Each shard is a line of the manifest, and lines have a limit.
        *first, last = in_shards(self._waiting, MOST_EPISODES)
        self._waiting = [batch for group in (*first, last) for batch in group]
        for group in first:
            self._commit_shard(group, Note())
        self._commit_shard(last, note)

    def _commit_shard(self, batches: list[EpisodeBatch], note: Note) -> None:
        """Write the first batches that wait as one shard, and then its line."""
        layout = self._layout
        assert layout is not None, "set by add"
        with self._changing(), self.opened.inside(SHARDS, make=True) as shards:
            name = self._new_name()
            try:
                files, compressed = write_shard(shards, name, columns_of_shard(layout, batches), self.compress)
                line = ShardLine(
                    shard=f"{SHARDS}/{name}",
                    files=files,
                    compressed=compressed,
                    steps=sum(len(batch.reward) for batch in batches),
                    episodes=np.concatenate([batch.episode for batch in batches]).tolist(),
                    lengths=np.concatenate([batch.lengths for batch in batches]).tolist(),
                    returns=np.concatenate([batch.returns for batch in batches]).tolist(),
                    failed=note.failed,
                    state=note.state,
                )
                self.manifest.append([line] if self.manifest.layout is not None else [layout.line(), line])
            except OSError:
                for each in () if self.manifest.unknown else (name + PARTIAL, name):  # it has no line
                    with suppress(OSError):
                        shards.remove(each)
                raise
            self._waiting = self._waiting[len(batches) :]
            self.waiting_bytes = sum(layout.nbytes(len(each.reward), len(each)) for each in self._waiting)

    def _new_name(self) -> str:
        """A name that no shard has had: a line that may be on the disk or not never names one that is written again."""
        self._next_shard += 1
        return f"{self._next_shard - 1:06d}"

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the disk and the state of this writer together; a writer for which they may differ does not go on.

        An OSError leaves both as they were. What else ends the block, such as Ctrl-C, may come between the two.
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
        """Move the committed shards of `part`, a data set in a folder inside this one, here, and return their lines.

        It may still be written to, and this be called again: what was moved before is left out. Raises `DatasetError`
        where its episodes have another layout or numbers that are here already, and where the disk refuses. A shard
        that is moved and has no line is not committed: the next writer removes it, as all that is left of a part.
        """
        self._check_open()
        adopted = []
        with self._changing(), self.opened.inside(part) as other, self.opened.inside(SHARDS, make=True) as ours:
            for line, _ in read_lines(other):
                if isinstance(line, LayoutLine) and self.manifest.layout is None:
                    self.manifest.append([line])
                elif isinstance(line, LayoutLine) and EpisodeLayout.of(line) != self.manifest.layout:
                    raise DatasetError(f"{other.path} has episodes of another layout than {self.folder}: {line}")
                elif isinstance(line, ShardLine) and other.kind(line.shard):
                    if twice := self._seen.intersection(line.episodes):
                        raise DatasetError(f"{other.path} has episodes {sorted(twice)[:5]}, which are here already")
                    name = self._new_name()
                    with other.inside(SHARDS) as theirs:
                        theirs.rename(line.shard.removeprefix(f"{SHARDS}/"), name, ours)
                    line.shard = f"{SHARDS}/{name}"
                    self.manifest.append([line])
                    self._take_numbers(np.array(line.episodes))
                    adopted.append(line)
        return adopted

    # End

    def end(self, *, episodes: int | None = None) -> None:
        """Commit what waits, and end the data set: those of its episodes count whose number is below `episodes`.

        `episodes`: None: all. Nothing can be added afterwards. A data set that is not complete has no end: call `close`
        alone.
        """
        self.commit()
        count = self._next_number if episodes is None else episodes
        with self._changing():
            self.manifest.append([End(count)])

    def close(self) -> None:
        """Give the folder back, without committing; once more does nothing."""
        self._files.close()
        self._broken = self._broken or "it is closed"

    def _check_open(self) -> None:
        if self._broken:
            raise DatasetError(f"the writer of {self.folder} cannot go on: {self._broken}; resume with another one")
        if self.manifest.end is not None:
            raise DatasetError(f"{self.folder} is complete, with {self.manifest.end:,} episodes; choose another folder")


def _resume(
    folder: SafeFolder,
    head: dict[str, Any] | None,
    check: Callable[[Manifest], object] = lambda manifest: None,
    reopen: bool = False,
) -> Manifest:
    """Take up the data set of a folder that is locked: all that was not committed is removed, and with `reopen` its
    end; of the manifest by `Manifest.cut_off`.

    Raises `DatasetError` where it was begun with another `head`, a shard is missing, or episodes that `reopen` would
    add do not count; raises as `check`, which is called with the manifest. Nothing is changed then.
    """
    before = read_head(folder)
    if head is not None and (found := head_changes(before, head)):
        raise DatasetError(
            f"{folder.path} was begun with other settings ({'; '.join(found)}); resume it with those, or choose "
            "another folder"
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
                f"{folder.path} is complete with {manifest.end:,} episodes, and holds {surplus:,} more that do not "
                "count: choose another folder"
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
