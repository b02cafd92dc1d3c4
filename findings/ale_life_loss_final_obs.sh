#!/usr/bin/env bash
# ale-py's AtariVectorEnv with life_loss_info=True and AutoresetMode.SAME_STEP: `final_obs` after a lost life.
#
# Versions: ale-py 0.12.1, gymnasium 1.4.0, Python 3.11 on Linux x86-64.
# Expected: `final_obs` of an env whose `terminated` is True is the last observation of its episode. After a lost life
#     ALE does not reset the game, so the last observation is also `obs`, the observation of this step. The newest frame
#     of both must be equal.
# Seen: `final_obs` has another picture. It is the content of a buffer that only a real reset fills: old pictures, or
#     memory that nobody has written. After the last life, when ALE resets the game, `final_obs` is right.
# Exit status: 0 while this is so, 1 if `final_obs` is right after each lost life.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ale-py==0.12.1" "gymnasium==1.4.0"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

options = {"life_loss_info": True, "noop_max": 1}
same = AtariVectorEnv("breakout", 1, autoreset_mode=AutoresetMode.SAME_STEP, **options)
plain = AtariVectorEnv("breakout", 1, autoreset_mode=AutoresetMode.NEXT_STEP, **options)
same.reset(seed=0), plain.reset(seed=0)
wrong = lost = 0
while lost < 4:  # the four lives before the last
    action = np.array([1])
    obs, _, terminated, _, infos = same.step(action)
    expected = plain.step(action)[0]  # the same game: both continue after a lost life
    assert np.array_equal(obs, expected)
    if terminated[0]:
        lost += 1
        different = not np.array_equal(infos["final_obs"][0, -1], obs[0, -1])
        wrong += different
        means = infos["final_obs"][0, -1].mean(), obs[0, -1].mean()
        print(f"lives {infos['lives'][0]}: final_obs has mean {means[0]:.2f}, the step's observation {means[1]:.2f}")
print(f"{wrong} of {lost} lost lives have a final_obs that is not the last observation")
sys.exit(0 if wrong else 1)
PYTHON
