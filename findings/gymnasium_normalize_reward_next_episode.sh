#!/bin/sh
# gymnasium's NormalizeReward carries the return of an episode into the next one, except in SAME_STEP mode.
#
# Versions: gymnasium 1.4.0, numpy 2.4.6, Python 3.11.
# Expected: the wrapper divides rewards by the standard deviation of the discounted return so far, which starts at 0 in
# each episode. An env whose only reward is 10 in the last of 5 steps has the returns 0, 0, 0, 0, 10, with the standard
# deviation 4. So the reward becomes 2.5, as in the vector wrapper with AutoresetMode.SAME_STEP.
# Seen: with the wrapper of one env, and with the vector wrapper in NEXT_STEP mode (gymnasium's default), the same
# episodes give 15.8 if the last step is terminated, and 0.25 if it is truncated. At a termination, the return is set to 0
# before the last reward is added instead of after it. At a truncation, the return is never set to 0.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install gymnasium==1.4.0 numpy==2.4.6
cat >"$folder/play.py" <<'PY'
import sys

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LENGTH, REWARD, EPISODES = 5, 10.0, 200


class LastStep(gymnasium.Env):
    """Env whose last step has the only reward."""

    observation_space = gymnasium.spaces.Box(0, LENGTH, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, flag):
        self.flag = flag

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == LENGTH
        obs = np.full(1, self.steps, np.float32)
        return obs, REWARD * over, over and self.flag == "terminated", over and self.flag == "truncated", {}


def alone(flag):
    """Return the last reward of the last episode."""
    env = gymnasium.wrappers.NormalizeReward(LastStep(flag))
    for _ in range(EPISODES):
        env.reset()
        for _ in range(LENGTH):
            last = env.step(0)[1]
    return float(last)


def vector(flag, mode):
    envs = SyncVectorEnv([lambda: LastStep(flag)] * 2, autoreset_mode=mode)
    envs = gymnasium.wrappers.vector.NormalizeReward(envs)
    envs.reset()
    ended = 0
    while ended < EPISODES:
        _, rewards, terminated, truncated, _ = envs.step(np.zeros(2, int))
        ended += (terminated | truncated)[0]
    return float(rewards[0])


found = {}
for flag in ("terminated", "truncated"):
    found[flag] = [alone(flag), vector(flag, AutoresetMode.NEXT_STEP), vector(flag, AutoresetMode.SAME_STEP)]
    print(flag, "-> one env {:.2f}, vector NEXT_STEP {:.2f}, vector SAME_STEP {:.2f}".format(*found[flag]))
expected = {"terminated": [15.8, 15.8, 2.5], "truncated": [0.246, 0.246, 2.5]}
holds = all(np.allclose(found[flag], expected[flag], rtol=0.02) for flag in found)
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" -W ignore "$folder/play.py"
