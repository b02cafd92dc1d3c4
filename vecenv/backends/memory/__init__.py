"""The memory of a batch: its layout, the arena, infos, and memory that processes share; all layers may import it."""
