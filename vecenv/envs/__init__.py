"""Sources of envs: import their public names from `vecenv`; each file adapts one library, imported when it is used."""
