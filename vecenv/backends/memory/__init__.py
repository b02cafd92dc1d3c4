"""The memory of a batch: arena, infos, shared memory and its control page; all layers above may import it."""
