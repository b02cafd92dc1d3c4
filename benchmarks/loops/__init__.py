"""Loops as users write them, beside the same loops on other vector envs: `python -m benchmarks.loops`.

A loop is a generator in a file of its own, and its code is what a user would write, with the default settings of
everything. Once an iteration (a rollout and the learning after it, or a round and the pause before it) it yields how
many frames it has collected and how many seconds it has done something else: `yield frames, seconds`.
"""
