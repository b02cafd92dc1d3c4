"""The engine: one object that runs rounds of envs on a backend, and its parts."""
