#!/bin/sh
# Deleting one rendering MuJoCo env makes the other envs of the process render black frames.
#
# Versions:  gymnasium 1.4.0, mujoco 3.17.0, MUJOCO_GL=egl (Mesa or NVIDIA), Python 3.11 or newer
# Expected:  env b renders the same picture before and after env a is closed and deleted.
# Seen:      env b renders black from then on: no error, no warning. A reset does not help.
# Cause:     mujoco.egl.GLContext.free calls eglReleaseThread, so no context is current afterwards. gymnasium's renderer
#            makes its context current only when it is created, or if one env has several viewers.
#
# Exit code: 0 if the behaviour is as described, 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gymnasium==1.4.0 mujoco==3.17.0 imageio==2.38.1 packaging
cat > "$folder/program.py" <<'PYTHON'
import gc
import sys

import gymnasium


def make():
    env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=64, height=64)
    env.reset(seed=0)
    return env


a, b = make(), make()
a.render()
before = b.render().mean()
a.close()
del a
gc.collect()
after = b.render().mean()
print(f"mean of env b's picture: {before:.1f} before, {after:.1f} after env a was closed and deleted")
sys.exit(0 if before > 0 and after == 0 else 1)
PYTHON
MUJOCO_GL=egl "$folder/venv/bin/python" "$folder/program.py"
