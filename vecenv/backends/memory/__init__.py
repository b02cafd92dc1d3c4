"""The memory of a batch: its layout, the arena, and memory that processes share."""
