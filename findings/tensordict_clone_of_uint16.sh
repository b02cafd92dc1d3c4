#!/bin/sh
# A TensorDict of uint16, uint32 or uint64 tensors cannot be cloned if it has a device.
#
# Versions: torch 2.13.0, tensordict 0.14.3, Python 3.11.
# Expected: `td.clone()` copies, as it does without a device, and as `tensor.clone()` does.
# Seen: NotImplementedError: "add_stub" not implemented for 'UInt16'. With a device, `clone` adds 0 to all tensors in one
# call (torch._foreach_add), and torch cannot add wide unsigned integers. Depth images are often uint16.
# The script ends with 0 while this holds, and with 1 if it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install torch==2.13.0
"$folder/venv/bin/pip" -q install tensordict==0.14.3
cat >"$folder/play.py" <<'PY'
import sys

import torch
from tensordict import TensorDict

found = {}
for dtype in (torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64):
    for device in (None, "cpu"):
        depth = torch.ones(2, 3, dtype=dtype)
        td = TensorDict({"depth": depth}, batch_size=[2], device=device)
        try:
            copied = td.clone()["depth"]
            found[dtype, device] = "copied" if torch.equal(copied, depth.clone()) else "other values"
        except NotImplementedError as error:
            found[dtype, device] = f"NotImplementedError: {error}"
        print(dtype, "device", device, "->", found[dtype, device])
wide = (torch.uint16, torch.uint32, torch.uint64)
holds = all(text.startswith("Not" if dtype in wide and device else "copied") for (dtype, device), text in found.items())
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" "$folder/play.py"
