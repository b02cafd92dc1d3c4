"""Code that runs the envs of one worker (a block)."""
