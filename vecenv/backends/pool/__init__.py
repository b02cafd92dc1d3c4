"""The parent's side of workers, processes or threads; only backends import it, and collectors `spinning_threads`."""
