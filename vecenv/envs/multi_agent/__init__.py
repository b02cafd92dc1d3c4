"""PettingZoo envs, single and in vector envs: import their public names from `vecenv`."""
