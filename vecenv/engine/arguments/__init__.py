"""What callers pass: ids, actions, seeds, masks of resets, constructor arguments."""
