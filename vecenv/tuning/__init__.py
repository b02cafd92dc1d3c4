"""Find the fastest vector env: `tune` measures candidates, and `auto_vector_env` measures one env and predicts."""
