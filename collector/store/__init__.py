"""Data sets of whole episodes on disk. Readers do not trust the files."""
