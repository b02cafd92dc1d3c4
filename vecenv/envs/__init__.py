"""Sources of environments: each file adapts one library, which it imports when it is used."""
