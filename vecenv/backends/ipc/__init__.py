"""Communication between the parent and its workers: opcodes, messages, wakeups."""
