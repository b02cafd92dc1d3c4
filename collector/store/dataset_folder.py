"""Lock a data set's folder, and check, remove or copy the files there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np

from collector.store.dataset_head import HEAD, read_head
from collector.store.manifest import MANIFEST, read_manifest
from collector.store.safe_folder import LOCK, PARTIAL, DatasetError, FolderLock, SafeFolder

JOB_FILE = re.compile(r"job\.(json|toml|ya?ml)")
ALLOWED_NAMES = re.compile(
    r"(dataset\.json|manifest\.jsonl|metrics\.jsonl|statistics\.json|[\w-]+\.png)(\.partial|\.tmp)?"
    rf"|writer\.lock|shards|videos|tensorboard|{JOB_FILE.pattern}"
)
"""Names of a data set's files and subfolders."""
SHARDS = "shards"
MOST_ATTEMPTS = 10


def check_folder(path: Path, overwrite: bool) -> None:
    """Raise `DatasetError` if a new data set cannot be written to `path`."""
    with writing(path, "choose another folder"), ExitStack() as context:
        is_new = not path.exists()
        folder, lock = open_locked(path, context)
        check_free(folder, overwrite)
        if is_new:
            lock.remove_if_empty()


def check_outside(path: Path) -> None:
    """Raise `DatasetError` if a path is inside of a data set, because writers refuse a data set with other files."""
    here = Path(os.path.realpath(path.parent))
    for above in (here, *here.parents):
        if all(os.path.exists(above / name) for name in (HEAD, MANIFEST)):  # False if the folder cannot be searched
            raise DatasetError(f"{path} is inside of the data set {above}; choose another place")


def check_extra(path: Path) -> None:
    """Raise `DatasetError` if a file or folder would be inside of a data set, with a name that writers refuse."""
    if not ALLOWED_NAMES.fullmatch(path.name):
        check_outside(path)


def open_locked(path: Path, context: ExitStack) -> tuple[SafeFolder, FolderLock]:
    """Open and lock a folder. Create the folder if it is missing."""
    if not path.exists() and path.parent.name != SHARDS:  # tasks on a cluster write parts into this folder
        check_outside(path)
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
    """Raise `DatasetError` for links, and for files of other programs."""
    foreign = [name for name, _ in folder.entries() if not ALLOWED_NAMES.fullmatch(name)]
    if foreign:
        raise DatasetError(
            f"{folder.path} is not empty: {foreign[0]} is not a file of a data set; choose another folder"
        )
    folder.check()


def check_free(folder: SafeFolder, overwrite: bool) -> None:
    """Raise `DatasetError` if the folder holds data. With `overwrite`, a data set is allowed, other data are not."""
    names = [name for name, _ in folder.entries() if not (name == LOCK or name.endswith(PARTIAL))]
    data = [name for name in names if not JOB_FILE.fullmatch(name)]
    if not data or (overwrite and not {HEAD, MANIFEST}.isdisjoint(data)):
        return
    if overwrite:
        raise DatasetError(
            f"{folder.path} has no data set to overwrite, but it has {data[0]}: choose another folder, or remove the "
            "files"
        )
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
    """Remove all files except the lock and the user's job file.

    The manifest is removed first, so that it never lists missing shards. dataset.json is removed last, because its
    presence marks the other files as parts of a data set.
    """
    present = [name for name, _ in folder.entries() if name != LOCK and not JOB_FILE.fullmatch(name)]
    if MANIFEST in present:
        folder.remove(MANIFEST)
        folder.sync()
    for name in sorted(present, key=HEAD.__eq__):
        if name != MANIFEST:
            folder.remove(name)
    folder.sync()


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error


def read_files(folder: Path) -> dict[str, np.ndarray]:
    """Return the bytes of all shard files, then of manifest.jsonl, by relative path."""
    paths = [path for path in sorted(folder.glob("shards/**/*")) if path.is_file()]
    paths += [folder / MANIFEST] if (folder / MANIFEST).exists() else []
    return {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in paths}


def write_files(folder: SafeFolder, part: str, files: Mapping[str, np.ndarray]) -> None:
    """Write the result of `read_files` into the subfolder `part`, the manifest after its shards."""
    for name, data in files.items():
        above, _, last = f"{part}/{name}".rpartition("/")
        with folder.inside(above, make=True) as inner:
            inner.create(last, data)
