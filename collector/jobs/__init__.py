"""Collection jobs: from a command line or a job file to a data set on disk."""
