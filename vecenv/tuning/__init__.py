"""Import `tune`, `TuneResult` and `TuneRow` from `vecenv`, and `auto_vector_env` from `auto_backend`: which vector env
is the fastest for some envs, measured or (backend="auto") predicted.
"""
