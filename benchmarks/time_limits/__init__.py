"""Print what critics learn at a time limit with the installed trainers: `python -m benchmarks.time_limits`."""
