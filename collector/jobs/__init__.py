"""Collection jobs: from a command line to episodes on disk."""
