"""The collectors of this process, and their parts: config, vector env, loops, evaluation."""
