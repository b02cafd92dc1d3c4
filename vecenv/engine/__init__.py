"""The machinery of a vector env; vector envs, facades and collectors may import all of it."""
