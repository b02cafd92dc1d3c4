"""Facades: the vector APIs of other libraries on top of the engine."""
