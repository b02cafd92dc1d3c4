"""The folder of a data set on the disk: what may stand in it, how one begins, is taken up again, and is removed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collector.store.errors import DatasetError
from collector.store.files import system_calls
from collector.store.files.lock import LOCK
from collector.store.files.safe_folder import FILE, FOLDER, PARTIAL, SafeFolder
from collector.store.head import FIRST_MANIFEST, HEAD, changes, first_form_error, read_head
from collector.store.manifest import MANIFEST, SHARDS, Manifest, read_manifest

OURS = re.compile(
    r"(dataset\.json|manifest\.jsonl|metrics\.jsonl|statistics\.json|[\w-]+\.png)(\.partial|\.tmp)?|writer\.lock|shards|videos|tensorboard|job\.(json|toml|yaml)"
)
"""What stands in the folder of a data set; other files are of others, and such a folder is never written to."""
_SHARD = re.compile(r"(\d{6,12})\.npz(\.partial)?")


def check_files(folder: SafeFolder) -> None:
    """Raise `DatasetError` where a folder holds what no writer of this form put there, or at any depth a link."""
    names = [name for name, _ in folder.entries()]
    if FIRST_MANIFEST in names:
        raise first_form_error(folder.path)
    foreign = [name for name in names if not OURS.fullmatch(name)]
    if foreign:
        raise DatasetError(f"{folder.path} is not empty: no job wrote {foreign[0]} there; choose another folder")
    folder.check()


def contents(folder: SafeFolder) -> str:
    """What a folder holds, for a message."""
    try:
        head, count = read_head(folder), len(read_manifest(folder).index)
    except DatasetError:
        return "files of an earlier job"
    job = head.get("job")
    return f"{count:,} episodes of {job.get('env', 'an earlier job') if job else 'an earlier program'}"


def begin(folder: SafeFolder, head: bytes, overwrite: bool) -> None:
    """Begin a data set in a folder that is locked. Raises `DatasetError` where it holds one that is to stay."""
    present = [name for name, _ in folder.entries() if name != LOCK and not name.endswith(PARTIAL)]
    if present and not overwrite:
        raise DatasetError(
            f"{folder.path} already holds {contents(folder)}; resume it, choose another folder, or overwrite it"
        )
    remove_data(folder)
    folder.write(HEAD, head)
    folder.write(MANIFEST, b"")


def resume(
    folder: SafeFolder,
    head: dict[str, Any] | None,
    check: Callable[[Manifest], object] = lambda manifest: None,
    reopen: bool = False,
) -> Manifest:
    """Take up the data set of a folder that is locked: what was not committed is removed; returns what was. With
    `reopen` its end is removed, too.

    Raises `DatasetError` where it was begun with another `head`, a shard is missing, or episodes that `reopen` would
    add do not count, and what `check` raises, which is called with the manifest; nothing is changed then.
    """
    before = read_head(folder)
    if head is not None and (found := changes(head, before)):
        raise DatasetError(
            f"{folder.path} was begun with other settings ({'; '.join(found)}); resume it with those, or choose "
            "another folder"
        )
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        if folder.size(shard.file) != shard.bytes:
            raise DatasetError(
                f"{folder.path / shard.file} is missing or does not match {MANIFEST}; restore it, or collect again"
            )
    check(manifest)
    if reopen and manifest.end is not None:
        if surplus := int((manifest.index.number >= manifest.end).sum()):
            raise DatasetError(
                f"{folder.path} is complete with {manifest.end:,} episodes, and holds {surplus:,} more that do not "
                "count: choose another folder"
            )
        manifest.end, manifest.good_bytes = None, manifest.end_at
    _cut_off(folder, MANIFEST, manifest.good_bytes)
    committed = {shard.file for shard in manifest.shards}
    if folder.kind(SHARDS):
        with folder.inside(SHARDS) as shards:
            for name, kind in shards.entries():
                if kind == FOLDER:
                    with shards.inside(name) as each:
                        remove_partial(each, committed)
    for name in (HEAD, MANIFEST):
        with suppress(FileNotFoundError):
            folder.remove(name + PARTIAL)
    return manifest


def _cut_off(folder: SafeFolder, name: str, size: int) -> None:
    """Make a file as short as `size`; one that does not exist is made, empty."""
    found = folder.size(name)
    if found is None:
        folder.write(name, b"")
    elif found > size:
        fd = folder.open(name, os.O_WRONLY)
        try:
            system_calls.truncate(fd, size)
            system_calls.fsync(fd)
        finally:
            os.close(fd)


def remove_data(folder: SafeFolder) -> None:
    """Remove a data set; the manifest goes first, on the disk too, so that none is found whose shards are missing."""
    present = [name for name, _ in folder.entries() if name != LOCK]
    heads = [name for name in (MANIFEST, HEAD) if name in present]
    for name in heads:
        folder.remove(name)
    if heads:
        folder.sync()
    for name in present:
        if name not in heads:
            folder.remove(name)
    folder.sync()


def remove_partial(folder: SafeFolder, committed: Collection[str] | None = None) -> None:
    """Remove half-written shards from the folder of one writer, and those that are not among the `committed`, if given.

    They are named as in the manifest.
    """
    for name in (name for name, kind in folder.entries() if kind == FILE):
        found = _SHARD.fullmatch(name)
        listed = committed is None or f"{SHARDS}/{folder.path.name}/{name}" in committed
        if found and (found[2] or not listed):
            folder.remove(name)


def first_free_shard(folder: SafeFolder, own: str) -> int:
    """The number after those of the shards in the folder of one writer, which may not exist."""
    try:
        with folder.inside(own) as shards:
            names = [name for name, _ in shards.entries()]
    except FileNotFoundError:
        names = []
    return 1 + max((int(found[1]) for found in map(_SHARD.fullmatch, names) if found), default=-1)


def write_or_remove(folder: SafeFolder, name: str, data: Any) -> None:
    """Write a file atomically; where the disk refuses it, as far as possible nothing of it stays."""
    try:
        folder.write(name, data)
    except OSError:
        for each in (name + PARTIAL, name):
            with suppress(OSError):
                folder.remove(each)
        raise


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Raise an OSError inside the `with` block as a `DatasetError`."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error
