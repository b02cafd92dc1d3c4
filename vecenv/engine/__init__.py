"""Engine of a vector env: rounds, ids, results, failures."""
