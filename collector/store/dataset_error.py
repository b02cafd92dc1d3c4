"""What is raised where a folder of episodes cannot be used."""

from __future__ import annotations


class DatasetError(RuntimeError):
    """A folder of episodes cannot be used; the message has what is wrong with it and what to do."""


class FolderInUseError(DatasetError):
    """Another process writes to the folder."""
