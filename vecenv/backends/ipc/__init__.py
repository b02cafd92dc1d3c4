"""Communication between the parent and its workers; backends, workers and pool import it, and all may use `opcodes`."""
