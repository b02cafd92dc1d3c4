"""StoreWriter: fills a folder with episodes, so that what is committed is never lost, whenever the process ends.

A commit writes a shard under another name, flushes it to the disk, renames it, flushes the folder, and then adds a line
to the manifest and flushes that. A reader believes the manifest only, so that

- before the line there is no shard, and its episodes have to be collected again;
- half a line, without its end, is none, and is cut off when the next writer comes;
- after the line the shard is on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collector.episodes.episode import Episode, EpisodeBatch
from collector.store import folder as on_disk
from collector.store.dataset_head import HEAD, head_bytes, read_head
from collector.store.folder import SHARDS
from collector.store.manifest import Manifest, read_lines
from collector.store.packed import Layout, arrays_of, check_whole, concatenate, pack, returns_of
from collector.store.safe_folder import Closable, DatasetError, FolderLock, SafeFolder
from collector.store.schema import LARGEST, End, LayoutLine, Note, ShardLine
from collector.store.shard import write_shard

_INTERRUPTED = "a commit was interrupted"


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
        compress: deflate the shards: smaller, slower to write and to read at random.
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
        self._files = ExitStack()
        self.folder = Path(os.path.abspath(folder))
        self.compress = compress
        self.manifest = Manifest()
        """All that is committed; `manifest.end` is the number of episodes of a data set that is complete."""
        self.waiting_bytes = 0
        """Size of the episodes that are not committed yet."""
        self._waiting: list[EpisodeBatch] = []
        self._seen: set[int] = set()
        self._next_number = 0
        self._broken = ""
        if head is None and not resume:
            raise DatasetError(f"a new data set in {self.folder} needs a head: pass make_head(...)")
        content = None if head is None else head_bytes(head)
        with on_disk.writing(self.folder, "choose another folder"), ExitStack() as undo:
            self.opened = undo.enter_context(SafeFolder.make(self.folder))
            """The folder, for what else is written there; it is closed with the writer."""
            on_disk.check_files(self.opened)
            undo.enter_context(FolderLock(self.opened))
            if resume and self.opened.kind(HEAD):
                self.manifest = on_disk.resume(self.opened, head, check, reopen)
            elif content is None:
                read_head(self.opened)  # which says that there is none
            else:
                on_disk.begin(self.opened, content, overwrite)
            self._next_shard = 1 + max(
                (int(line.shard.rpartition("/")[2]) for line in self.manifest.shards), default=-1
            )
            self._take_numbers(self.committed)
            undo.callback(self.manifest.close)
            self.manifest.open(self.opened)
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
        check_whole(batch)
        layout = Layout.of(batch)
        expected = self.manifest.layout or (Layout.of(self._waiting[0]) if self._waiting else layout)
        if layout != expected:
            raise DatasetError(
                f"these episodes have the arrays {layout.line()}, and those of {self.folder} have {expected.line()}"
            )
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
        fresh = set(numbers.tolist())
        if len(fresh) < len(numbers) or not fresh.isdisjoint(self._seen):
            twice = sorted(fresh & self._seen)[:5] or numbers[:5].tolist()
            raise DatasetError(f"episodes {twice} are in {self.folder} already; each number is stored once")
        return episodes

    def commit(self, *, failed: dict[str, int] | None = None, state: Any = None) -> None:
        """Write what was added since the last commit as one shard, and then its line in the manifest.

        `failed` counts failures since the last commit by name; `state` is any JSON that the next writer wants to find.
        Raises `DatasetError` where the disk refuses them; what was committed before is unchanged, and the same
        episodes wait for another attempt.
        """
        self._check_open()
        note = Note(failed or {}, state)
        if not self._waiting and note == Note():
            return
        with self._changing():
            if self._waiting:
                self._commit_shard(note)
            else:
                self.manifest.append([note])

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the disk and the state of this writer together; a writer for which they may differ does not go on.

        An OSError leaves both as they were. What else ends the block, such as Ctrl-C, may come between the two.
        """
        self._broken = _INTERRUPTED
        try:
            with on_disk.writing(self.folder, f"the {len(self.committed):,} episodes committed before are kept"):
                yield
        except DatasetError:
            self._broken = self.manifest.unknown
            raise
        self._broken = ""

    def _commit_shard(self, note: Note) -> None:
        episodes = concatenate(self._waiting)
        self._waiting = [episodes]
        # A number is used once: a line that may be on the disk or not never names a folder that is written again.
        name = f"{self._next_shard:06d}"
        self._next_shard += 1
        with self.opened.inside(SHARDS, make=True) as own:
            line = ShardLine(
                shard=f"{SHARDS}/{name}",
                files=write_shard(own, name, arrays_of(episodes), self.compress),
                compressed=self.compress,
                steps=len(episodes.reward),
                episodes=episodes.episode.tolist(),
                lengths=episodes.lengths.tolist(),
                returns=returns_of(episodes).tolist(),
                failed=note.failed,
                state=note.state,
            )
            try:
                self.manifest.append([line] if self.manifest.layout is not None else [Layout.of(episodes).line(), line])
            except OSError:
                if not self.manifest.unknown:  # it is as it was, so the shard is none
                    with suppress(OSError):
                        own.remove(name)
                raise
        self._waiting, self.waiting_bytes = [], 0

    def adopt(self, folder: str | os.PathLike[str]) -> list[ShardLine]:
        """Move the committed shards of another data set here, and return their lines; it may still be written to.

        Each shard gets a new name, and then a line; one that was moved before is left out, so this may be called again.
        The other folder is on the same disk. Raises `DatasetError` where its episodes have another layout or numbers
        that are here already, and where the disk refuses. A shard that is moved and has no line is not committed.
        """
        self._check_open()
        adopted = []
        with SafeFolder(folder) as other, on_disk.writing(self.folder, "nothing that was committed is lost"):
            for line, _ in read_lines(other):
                if isinstance(line, LayoutLine) and self.manifest.layout is None:
                    with self._changing():
                        self.manifest.append([line])
                elif isinstance(line, LayoutLine) and Layout.of_line(line) != self.manifest.layout:
                    raise DatasetError(f"a writer has episodes of another layout than {self.folder}: {line}")
                elif isinstance(line, ShardLine) and other.kind(line.shard):
                    if twice := self._seen.intersection(line.episodes):
                        raise DatasetError(
                            f"a writer has episodes that are in {self.folder} already: {sorted(twice)[:5]}"
                        )
                    own, _, name = line.shard.rpartition("/")
                    with other.inside(own) as theirs, self.opened.inside(SHARDS, make=True) as ours:
                        line.shard = f"{SHARDS}/{self._next_shard:06d}"
                        self._next_shard += 1
                        theirs.rename(name, line.shard.rpartition("/")[2], ours)
                    with self._changing():
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
