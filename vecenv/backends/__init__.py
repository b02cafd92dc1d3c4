"""Backends, where envs live; engine and vector envs import `base` (the seam) and the backends themselves."""
