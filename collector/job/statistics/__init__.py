"""Statistics of transforms: those that a job file names, and those that a job keeps while it runs."""
