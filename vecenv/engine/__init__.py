"""The machinery of one vector env: `engine.Engine` runs rounds; vector envs, facades and collectors may import all of it."""
