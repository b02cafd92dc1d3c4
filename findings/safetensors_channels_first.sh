#!/bin/sh
# safetensors writes a transposed numpy array in the order of its memory, so that other values are read back.
#
# Versions: safetensors 0.8.0, numpy 2.4.6, Python 3.11. With safetensors 0.7.0, the values are right.
# Expected: `load(save({"obs": frames}))` returns the frames, or `save` raises, as `safetensors.torch.save` does for a
# transposed tensor ("You are trying to save a non contiguous tensor").
# Seen: frames that `moveaxis` has made channels first, or a batch (time, env) that is turned into (env, time), come back
# with the right shape and dtype and with the values in another order. There is no error and no warning. Since 0.8.0,
# `save` and `save_file` pass the address of the array, and ignore its strides. `numpy.ascontiguousarray` helps.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
cat >"$folder/play.py" <<'PY'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

frames = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), np.uint8)
rewards = np.arange(12.0).reshape(4, 3)  # (time, env)
arrays = {
    "as it is": frames,
    "channels first": np.moveaxis(frames, -1, 1),
    "channels first, copied": np.ascontiguousarray(np.moveaxis(frames, -1, 1)),
    "time and env swapped": rewards.swapaxes(0, 1),
}
save_file(arrays, sys.argv[1])
read = load_file(sys.argv[1])
equal = {name: bool(np.array_equal(read[name], array)) for name, array in arrays.items()}
print("safetensors", safetensors.__version__)
for name, array in arrays.items():
    print("  ", name, read[name].shape, read[name].dtype, "-> the same values" if equal[name] else "-> OTHER VALUES")
    assert read[name].shape == array.shape and read[name].dtype == array.dtype
right = list(equal.values()) == [True] * 4
wrong = list(equal.values()) == [True, False, True, False]
sys.exit(not (wrong if safetensors.__version__ == "0.8.0" else right))
PY
for version in 0.7.0 0.8.0; do
    "$folder/venv/bin/pip" -q install safetensors=="$version" numpy==2.4.6
    "$folder/venv/bin/python" "$folder/play.py" "$folder/$version.safetensors" || { echo changed; exit 1; }
done
echo "as written above"
