"""The system calls of the store, which tests replace to let the disk fail."""

from collector.store import safe_folder as disk

SafeFolder = disk.SafeFolder
