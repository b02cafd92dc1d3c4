"""Training loops as users write them, on our vector envs and on the peers': `python -m benchmarks.loops`.

A loop is a generator with the code that a user would write, and default settings. An iteration is a rollout and the
learning after it, or a round and the pause before it. After each iteration, the loop yields the number of collected
frames, and the seconds in which it learned or paused.
"""
