"""PettingZoo envs, one by one and in batches."""
