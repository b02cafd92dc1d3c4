"""The folder of a data set on the disk: what may stand in it, how one begins, is taken up again, and is removed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collector.store.errors import DatasetError
from collector.store.files import system_calls
from collector.store.head import FIRST_MANIFEST, HEAD, changes, first_form_error, read_head
from collector.store.manifest import MANIFEST, SHARDS, Manifest, read_manifest

LOCK = "writer.lock"
OURS = re.compile(
    r"(dataset\.json|manifest\.jsonl|metrics\.jsonl|statistics\.json|[\w-]+\.png)(\.partial|\.tmp)?|writer\.lock|shards|videos|tensorboard|job\.(json|toml|yaml)"
)
"""What stands in the folder of a data set; other files are of others, and such a folder is never written to."""
_SHARD = re.compile(r"(\d{6,12})\.npz(\.partial)?")


def check_files(folder: Path) -> None:
    """Raise `DatasetError` where a folder holds what no writer of this form put there."""
    names = {path.name for path in folder.iterdir()}
    if FIRST_MANIFEST in names:
        raise first_form_error(folder)
    foreign = sorted(name for name in names if not OURS.fullmatch(name))
    if foreign:
        raise DatasetError(f"{folder} is not empty: no job wrote {foreign[0]} there; choose another folder")


def contents(folder: Path) -> str:
    """What a folder holds, for a message."""
    try:
        head, count = read_head(folder), len(read_manifest(folder).index)
    except DatasetError:
        return "files of an earlier job"
    job = head["job"]
    return f"{count:,} episodes of {job.get('env', 'an earlier job') if job else 'an earlier program'}"


def begin(folder: Path, head: bytes, overwrite: bool) -> None:
    """Begin a data set in a folder that is locked. Raises `DatasetError` where it holds one that is to stay."""
    present = [path.name for path in folder.iterdir() if path.name != LOCK and not path.name.endswith(".partial")]
    if present and not overwrite:
        raise DatasetError(
            f"{folder} already holds {contents(folder)}; resume it, choose another folder, or overwrite it"
        )
    remove_data(folder)
    system_calls.write_atomically(folder / HEAD, head)
    system_calls.write_atomically(folder / MANIFEST, b"")


def resume(folder: Path, head: dict[str, Any] | None, reopen: bool = False) -> Manifest:
    """Take up the data set of a folder that is locked: what was not committed is removed; returns what was. With
    `reopen` its end is removed, too.

    Raises `DatasetError` where it was begun with another `head`, a shard is missing, or episodes that `reopen` would
    add do not count; nothing is changed then.
    """
    before = read_head(folder)
    if head is not None and (found := changes(head, before)):
        raise DatasetError(
            f"{folder} was begun with other settings ({'; '.join(found)}); resume it with those, or choose "
            "another folder"
        )
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        path = folder / shard.file
        if not path.is_file() or path.stat().st_size != shard.bytes:
            raise DatasetError(f"{path} is missing or does not match {MANIFEST}; restore it, or collect again")
    if reopen and manifest.end is not None:
        if surplus := int((manifest.index.number >= manifest.end).sum()):
            raise DatasetError(
                f"{folder} is complete with {manifest.end:,} episodes, and holds {surplus:,} more that do not count: "
                "choose another folder"
            )
        manifest.end, manifest.good_bytes = None, manifest.end_at
    _cut_off(folder / MANIFEST, manifest.good_bytes)
    committed = {shard.file for shard in manifest.shards}
    for each in sorted((folder / SHARDS).glob("w*")):
        remove_partial(each, committed)
    for name in (HEAD, MANIFEST):
        with suppress(FileNotFoundError):
            system_calls.unlink(folder / f"{name}{system_calls.PARTIAL}")
    return manifest


def _cut_off(path: Path, size: int) -> None:
    """Make a file as short as `size`; one that does not exist is made, empty."""
    if not path.exists():
        system_calls.write_atomically(path, b"")
    elif path.stat().st_size > size:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            system_calls.truncate(fd, size)
            system_calls.fsync(fd)
        finally:
            os.close(fd)


def remove_data(folder: Path) -> None:
    """Remove a data set; the manifest goes first, so that no reader finds one whose shards are missing."""
    order = {MANIFEST: 0, HEAD: 1}
    for path in sorted(folder.iterdir(), key=lambda path: (order.get(path.name, 2), path.name)):
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            system_calls.unlink(path)
    system_calls.fsync_folder(folder)


def remove_partial(folder: Path, committed: Collection[str] | None = None) -> None:
    """Remove half-written shards from the folder of one writer, and those that are not among the `committed`, if given.

    They are named as in the manifest.
    """
    for path in sorted(folder.iterdir()):
        found = _SHARD.fullmatch(path.name)
        listed = committed is None or f"{SHARDS}/{folder.name}/{path.name}" in committed
        if found and (found[2] or not listed):
            system_calls.unlink(path)


def first_free_shard(folder: Path) -> int:
    """The number after those of the shards in the folder of one writer, which may not exist."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return 1 + max((int(found[1]) for found in map(_SHARD.fullmatch, names) if found), default=-1)


def make_folders(folder: Path) -> None:
    """Make a folder and its parents, on the disk."""
    missing = [folder, *folder.parents]
    for each in reversed([path for path in missing if not path.exists()]):
        with suppress(FileExistsError):
            system_calls.mkdir(each)


def write_or_remove(path: Path, data: Any) -> None:
    """Write a file atomically; where the disk refuses it, as far as possible nothing of it stays."""
    try:
        system_calls.write_atomically(path, data)
    except OSError:
        for each in (path.with_name(path.name + system_calls.PARTIAL), path):
            with suppress(OSError):
                system_calls.unlink(each)
        raise


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Raise an OSError inside the `with` block as a `DatasetError`."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error
