"""Folder of a data set: allowed files, and the lock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from collector.store.dataset_head import HEAD, read_head
from collector.store.manifest import MANIFEST, read_manifest
from collector.store.safe_folder import LOCK, PARTIAL, DatasetError, FolderLock, SafeFolder

ALLOWED_NAMES = re.compile(
    r"(dataset\.json|manifest\.jsonl|metrics\.jsonl|statistics\.json|[\w-]+\.png)(\.partial|\.tmp)?|writer\.lock|shards|videos|tensorboard|job\.(json|toml|yaml)"
)
"""Names in a data set's folder. Folders with other names are refused."""
MOST_ATTEMPTS = 10


def check_folder(path: Path, overwrite: bool) -> None:
    """Raise `DatasetError` early if a new data set cannot be written."""
    with writing(path, "choose another folder"), ExitStack() as context:
        is_new = not path.exists()
        folder, lock = open_locked(path, context)
        check_free(folder, overwrite)
        if is_new:
            lock.remove_if_empty()


def open_locked(path: Path, context: ExitStack) -> tuple[SafeFolder, FolderLock]:
    """Open a folder, created if missing, and lock it. Raises as `StoreWriter`."""
    for attempt in count(1):
        folder = context.enter_context(SafeFolder.make(path))
        _check_files(folder)
        try:
            return folder, context.enter_context(FolderLock(folder))
        except FileNotFoundError:  # another process has removed the folder
            if attempt == MOST_ATTEMPTS:
                raise
    raise AssertionError


def _check_files(folder: SafeFolder) -> None:
    """Raise `DatasetError` for foreign files and links."""
    foreign = [name for name, _ in folder.entries() if not ALLOWED_NAMES.fullmatch(name)]
    if foreign:
        raise DatasetError(
            f"{folder.path} is not empty: {foreign[0]} is not a file of a data set; choose another folder"
        )
    folder.check()


def check_free(folder: SafeFolder, overwrite: bool) -> None:
    """Raise `DatasetError` if the folder holds a data set, unless `overwrite`."""
    if overwrite or all(name == LOCK or name.endswith(PARTIAL) for name, _ in folder.entries()):
        return
    try:
        job, count = read_head(folder).get("job"), len(read_manifest(folder).index)
        held = f"{count:,} episodes of {job.get('env', 'an earlier job') if job else 'an earlier program'}"
    except DatasetError:
        held = "files of an earlier job"
    raise DatasetError(
        f"{folder.path} already holds {held}: continue it (resume), choose another folder, or replace it "
        "(overwrite=True, --overwrite)"
    )


def remove_data(folder: SafeFolder) -> None:
    """Remove all files except the lock. The manifest is removed first, so that it never lists missing shards."""
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


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Convert an OSError in the `with` block to `DatasetError`."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error


def read_files(folder: Path) -> dict[str, np.ndarray]:
    """Return the bytes of each file of the shards, then of manifest.jsonl, by path relative to `folder`."""
    paths = [path for path in sorted(folder.glob("shards/**/*")) if path.is_file()]
    paths += [folder / MANIFEST] if (folder / MANIFEST).exists() else []
    return {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in paths}


def write_files(folder: SafeFolder, part: str, files: Mapping[str, np.ndarray]) -> None:
    """Write the result of `read_files` into the subfolder `part`, in the same order."""
    for name, data in files.items():
        above, _, last = f"{part}/{name}".rpartition("/")
        with folder.inside(above, make=True) as inner:
            inner.create(last, data)
