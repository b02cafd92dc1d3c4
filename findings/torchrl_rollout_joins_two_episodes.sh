#!/bin/sh
# With TorchRL's GymWrapper around a vector env in SAME_STEP mode, the first transition of each further rollout joins two
# episodes: the observation is from the episode before, and the next observation is from the new one.
#
# Versions: torchrl 0.14.1, tensordict 0.14.3, torch 2.13.0, gymnasium 1.4.0, Python 3.11.
# Expected: `env.rollout(20)` begins with `env.reset()`, so it begins with the first observation of an episode in all envs.
# Seen: the envs are reset, but in envs whose last episode was not over, the TensorDict keeps their last observation.
# With AutoresetMode.DISABLED, rollouts are right. `rollout(..., break_when_any_done=False)` resets once, and is right.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install torch==2.13.0
"$folder/venv/bin/pip" -q install torchrl==0.14.1 tensordict==0.14.3 gymnasium==1.4.0
cat >"$folder/play.py" <<'PY'
import sys
import warnings

warnings.filterwarnings("ignore")
import gymnasium
import numpy as np
from torchrl.envs import GymWrapper


class Counts(gymnasium.Env):
    """Env that observes the number of its episode and of the step."""

    observation_space = gymnasium.spaces.Box(0, 9999, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def __init__(self, length):
        self.length = length

    def observe(self):
        return np.array([self.episode, self.steps], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), 1.0, self.steps == self.length, False, {}


def first_transitions(mode):
    envs = gymnasium.vector.SyncVectorEnv([lambda: Counts(3), lambda: Counts(9)], autoreset_mode=mode)
    env, found = GymWrapper(envs), []
    for _ in range(3):
        batch = env.rollout(20)  # until the first env ends its episode
        found.append((batch["observation"][1, 0].tolist(), batch["next", "observation"][1, 0].tolist()))
        print(mode, "second env, first transition: episode and step", found[-1][0], "->", found[-1][1])
    env.close()
    return found


def joins(transition):
    (episode, step), (next_episode, next_step) = transition
    return (next_episode, next_step) != (episode, step + 1)


modes = gymnasium.vector.AutoresetMode
same, disabled = ([joins(each) for each in first_transitions(mode)] for mode in (modes.SAME_STEP, modes.DISABLED))
holds = same == [False, True, True] and disabled == [False] * 3
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" "$folder/play.py"
