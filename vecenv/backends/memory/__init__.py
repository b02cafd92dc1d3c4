"""Memory that workers and their parent share: batches, infos, counters, state of envs."""
