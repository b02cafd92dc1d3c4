"""Data sets of whole episodes on disk. A reader does not trust the files."""
