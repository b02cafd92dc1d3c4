"""Four envs of the DeepMind control suite with pixels as observations, each in a separate worker.

python examples/dm_control_pixels.py [--fast]

Needs `pip install 'vecenv[dmcontrol]'`, Python 3.11 or 3.12, and OpenGL. No display is needed.
"""

import argparse
import time

import numpy as np

from vecenv import DMControlEnv, ShmemVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few steps, to see that it works")
steps = 5 if parser.parse_args().fast else 200
rng = np.random.default_rng(0)


def swingup() -> DMControlEnv:
    return DMControlEnv("cartpole", "swingup", from_pixels=True, height=48, width=64, frame_skip=4)


try:
    # Workers make the envs, because OpenGL does not survive a fork of a process that has rendered.
    venv = ShmemVectorEnv([swingup] * 4, num_workers=4)
except RuntimeError as error:
    raise SystemExit(f"no pixels: {error}") from None

with venv:
    obs, info = venv.reset(seed=0)
    first = obs["pixels"].astype(int)
    begin = time.perf_counter()
    for _ in range(steps):
        obs, rew, terminated, truncated, info = venv.step(rng.uniform(-1, 1, (4, 1)))
    seconds = time.perf_counter() - begin

shape, dtype = obs["pixels"].shape, obs["pixels"].dtype
moved = np.mean(np.abs(obs["pixels"] - first) > 20)
print(f"{4 * steps / seconds:.0f} frames a second of {dtype} {shape[1:]}, {moved:.1%} of the pixels changed")
