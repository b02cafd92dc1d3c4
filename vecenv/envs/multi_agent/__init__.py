"""PettingZoo envs, single and in vector envs."""
