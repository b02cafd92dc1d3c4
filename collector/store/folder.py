"""The folder of a data set on the disk: its files, and how one is begun, taken up again, and removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collector.store.dataset_head import HEAD, changes, read_head
from collector.store.manifest import MANIFEST, Manifest, read_manifest
from collector.store.safe_folder import LOCK, PARTIAL, DatasetError, SafeFolder
from collector.store.shard import mismatch

OURS = re.compile(
    r"(dataset\.json|manifest\.jsonl|metrics\.jsonl|statistics\.json|[\w-]+\.png)(\.partial|\.tmp)?|writer\.lock|shards|videos|tensorboard|job\.(json|toml|yaml)"
)
"""Names in the folder of a data set; a folder with other names is never written to."""
SHARDS = "shards"
_SHARD = re.compile(r"\d{6,12}(\.partial)?|w\d{3,9}", re.ASCII)
"""A shard, or a folder in which another writer begins a data set, whose shards are then adopted."""


def check_files(folder: SafeFolder) -> None:
    """Raise `DatasetError` where a folder holds a file that no writer puts there, or at any depth a link."""
    foreign = [name for name, _ in folder.entries() if not OURS.fullmatch(name)]
    if foreign:
        raise DatasetError(f"{folder.path} is not empty: no job wrote {foreign[0]} there; choose another folder")
    folder.check()


def contents(folder: SafeFolder) -> str:
    """Describe the data set of a folder, for a message."""
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


def resume(
    folder: SafeFolder,
    head: dict[str, Any] | None,
    check: Callable[[Manifest], object] = lambda manifest: None,
    reopen: bool = False,
) -> Manifest:
    """Take up the data set of a folder that is locked: all that was not committed is removed, and with `reopen` its
    end; of the manifest by `Manifest.open`.

    Raises `DatasetError` where it was begun with another `head`, a shard is missing, or episodes that `reopen` would
    add do not count; raises as `check`, which is called with the manifest. Nothing is changed then.
    """
    before = read_head(folder)
    if head is not None and (found := changes(head, before)):
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


@contextmanager
def writing(folder: Path, advice: str) -> Iterator[None]:
    """Raise an OSError inside the `with` block as a `DatasetError`."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; {advice}") from error
