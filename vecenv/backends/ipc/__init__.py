"""Communication between the parent and its workers: messages, status bytes, wakeups."""
