"""The loops: rounds of a vector env and a policy, and what surrounds one batch of them."""
