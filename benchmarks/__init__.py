"""Benchmarks of vecenv. `benchmarks/README.md` explains the commands and the rows."""
