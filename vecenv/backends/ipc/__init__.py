"""What the parent and its workers say to each other: opcodes, messages, wake-ups."""
