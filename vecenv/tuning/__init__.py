"""Find the fastest vector env: `tune` measures all backends, and `auto_vector_env` predicts from one env."""
