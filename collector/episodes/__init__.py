"""Episodes and their seeds."""
