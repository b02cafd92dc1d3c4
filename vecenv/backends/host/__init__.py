"""Run a block of envs, in whichever process the block lives."""
