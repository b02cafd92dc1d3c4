#!/bin/sh
# gymnasium 1.4.0: AsyncVectorEnv hides the exception of an env if the worker's traceback contains a "%".
#
# `AsyncVectorEnv._raise_if_errors` calls `logger.error(f"{trace}")`, and `gymnasium.logger.error` formats its text
# with `msg % args`. A traceback with a "%" (in the message or in a quoted source line) then raises TypeError from
# the logger. Expected: the env's ValueError. Seen: "TypeError: not enough arguments for format string".
# SyncVectorEnv raises the ValueError.
#
# Exits with 0 if this is seen, and with 1 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install "gymnasium==1.4.0" "numpy==2.4.6" 2>/dev/null
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv


class Fails(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        raise ValueError("the battery is at 5 %, so the robot cannot move")


def error_of(kind):
    envs = kind([Fails] * 2)
    envs.reset(seed=0)
    try:
        envs.step(np.zeros(2, np.int64))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        try:
            envs.close()
        except Exception:
            pass


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = {kind.__name__: error_of(kind) for kind in (SyncVectorEnv, AsyncVectorEnv)}
    print("gymnasium", gym.__version__, "numpy", np.__version__, "python", sys.version.split()[0])
    for name, text in found.items():
        print(f"{name}: {text}")
    hidden = found["AsyncVectorEnv"].startswith("TypeError") and found["SyncVectorEnv"].startswith("ValueError")
    sys.exit(0 if hidden else 1)
PROGRAM
timeout 120 "$folder/venv/bin/python" "$folder/program.py"
