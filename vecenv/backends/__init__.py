"""Backends, where envs live; engine and vector envs import `backend` (the seam) and the backends themselves."""
