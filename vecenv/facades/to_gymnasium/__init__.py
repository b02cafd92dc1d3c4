"""Vector envs as gymnasium.vector.VectorEnv."""
