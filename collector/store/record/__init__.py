"""Recording the episodes of any loop."""
