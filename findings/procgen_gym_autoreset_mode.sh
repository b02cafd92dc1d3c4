#!/bin/sh
# The vector env of procgen-gym says that it resets in the next step, and resets in the same step. So gymnasium's wrappers
# leave out the first step of each episode, and its reward.
#
# Versions: procgen-gym 0.1.1, gymnasium 1.4.0, numpy 2.5.5, Python 3.13 (the package has no older wheel).
# Expected: `metadata["autoreset_mode"]` is SAME_STEP. Or, in NEXT_STEP mode, the step after the end of an episode ignores
# its action and has no reward.
# Seen: the metadata say NEXT_STEP. The observation of the last step is the first one of the next episode, the next step
# plays its action, and can have a reward. `RecordEpisodeStatistics` takes this step for the reset: from the second episode
# on, lengths are one too small, and in `chaser` nearly all returns are too small.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.13}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install procgen-gym==0.1.1 gymnasium==1.4.0 numpy==2.5.5
cat >"$folder/play.py" <<'PY'
import sys

import gymnasium
import numpy as np
from procgen_gym import ProcgenVecEnv


def frames_after_the_end(action):
    """Return the observation of the end, and the next one after `action`."""
    envs = ProcgenVecEnv(num_envs=1, env_name="coinrun", rand_seed=3)
    envs.reset()
    over, step = False, 0
    while not over:
        obs, _, terminated, _, _ = envs.step(np.array([7 if step % 9 else 5]))
        over, step = terminated[0], step + 1
    return obs[0].copy(), envs.step(np.array([action]))[0][0].copy()


(end, right), (same_end, idle) = frames_after_the_end(7), frames_after_the_end(4)
played = np.array_equal(end, same_end) and not np.array_equal(right, idle)
print("the step after the end plays its action:", played)

envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(ProcgenVecEnv(num_envs=2, env_name="chaser", rand_seed=3))
print("metadata:", envs.metadata["autoreset_mode"])
envs.reset()
random = np.random.default_rng(0)
returns, lengths, seen = np.zeros(2), np.zeros(2, int), []
while len(seen) < 100:
    _, rewards, terminated, _, infos = envs.step(random.integers(0, 15, 2))
    returns, lengths = returns + rewards, lengths + 1
    for i in np.flatnonzero(terminated):
        told = infos["episode"]
        seen.append((lengths[i] - told["l"][i], returns[i] - told["r"][i]))
        returns[i], lengths[i] = 0, 0
missing = np.array(seen[2:])
steps, rewards = (missing > 1e-6).sum(axis=0)
print(f"of {len(missing)} episodes, {steps} have too few steps, {rewards} have a return that is too small")
says = envs.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
holds = says and played and steps == len(missing) and rewards > len(missing) / 2
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" -W ignore "$folder/play.py"
