"""What critics learn at a time limit, with the trainers that are installed: `python -m benchmarks.time_limits`."""
