"""Vector envs that step all their envs themselves, as any other: import their public names from `vecenv`."""
