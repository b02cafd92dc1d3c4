"""The parent's side of workers, processes or threads; only backends import it; `extending` has `release_pool`."""
