"""Env of a library that ends at exit, before vecenv does, because the library is imported later."""

import atexit
import multiprocessing
import os
import time

import gymnasium as gym
import numpy as np

_is_open = True
_is_here = multiprocessing.parent_process() is None


@atexit.register
def _end() -> None:
    global _is_open
    _is_open = False
    if _is_here:
        print("the library ends", flush=True)


class LateEnv(gym.Env):
    """Env whose `close` hangs after the end of its library. Its deletion prints a line, as gymnasium's RecordVideo."""

    observation_space = action_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, True, {}

    def close(self):
        while not _is_open:
            time.sleep(1)

    def __del__(self, write=os.write, here=_is_here):
        if here:
            write(1, b"deleted\n")
