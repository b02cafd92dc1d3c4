"""Backends: where envs live and how a round reaches them. `base.Backend` is the seam."""
