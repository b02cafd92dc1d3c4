#!/bin/sh
# An env of pyRDDLGym with a continuous action refuses every action that its own action space draws.
#
# Versions: pyRDDLGym 2.7, rddlrepository 2.2, gymnasium 1.4.0, numpy 2.4.6, Python 3.11.
# Expected: `env.step(env.action_space.sample())` works, and observations lie in `env.observation_space`, as in any env
# of gymnasium.
# Seen: RDDLInvalidActionError in each step of the cart pole and of the mountain car: the space says Box(1,), and a step
# takes numbers without an axis only. Observations have no axis either, so `observation_space.contains` is False, also
# for the cart pole with two discrete actions, which does step.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install pyRDDLGym==2.7 rddlrepository==2.2 gymnasium==1.4.0 numpy==2.4.6
cat >"$folder/play.py" <<'PY'
import sys

import pyRDDLGym

found = {}
for name in ("CartPole_Continuous_gym", "MountainCar_Continuous_gym", "CartPole_Discrete_gym"):
    env = pyRDDLGym.make(name, "0")
    obs, info = env.reset(seed=0)
    env.action_space.seed(0)
    action = env.action_space.sample()
    try:
        env.step(action)
        stepped = "stepped"
    except Exception as error:
        stepped = f"{type(error).__name__}: {error}"
    found[name] = (stepped.partition(":")[0], env.observation_space.contains(obs))
    print(name, env.action_space, "sample:", action, "->", stepped)
    print("   observation in its space:", found[name][1])
refused = ("RDDLInvalidActionError", False)
holds = list(found.values()) == [refused, refused, ("stepped", False)]
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" -W ignore "$folder/play.py"
