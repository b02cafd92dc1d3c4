"""Which vector env is the fastest for some envs: `tune` measures it, and backend="auto" predicts it."""
