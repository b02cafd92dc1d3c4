"""Episodes: numbers, seeds, progress in each env, and whole episodes cut out of batches."""
