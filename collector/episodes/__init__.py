"""Episodes: where each env is, whole episodes, and their statistics."""
