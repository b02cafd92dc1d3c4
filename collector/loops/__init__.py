"""Only collectors import from here: rounds of a vector env and a policy, and what surrounds one batch of them."""
