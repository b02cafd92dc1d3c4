"""Data sets on disk: whole episodes in shards, written so that nothing committed is lost, and read with suspicion."""
