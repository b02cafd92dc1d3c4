"""Sources of envs: each file adapts one library, which it imports when it is used."""
