"""Memory of a batch: arena, rows of infos, shared memory."""
