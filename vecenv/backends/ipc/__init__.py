"""Messages between the parent and its workers; memory, backends and workers import it, and all may use `opcodes`."""
