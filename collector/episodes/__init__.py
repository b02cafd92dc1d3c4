"""Episodes: numbers, seeds, the episode of each env, and whole episodes from batches."""
