#!/bin/sh
# LeRobot cannot delete episodes from a data set that has a feature with two dimensions.
#
# Versions: lerobot 0.6.1 with datasets 4.8.5, pandas 2.3.3, torch 2.11.0, Python 3.12.
# Expected: `delete_episodes` writes the other episodes, as it does for vectors.
# Seen: AttributeError: 'PandasArrayExtensionDtype' object has no attribute 'v'. LeRobot itself has created and read the
# data set with the feature of the shape (2, 3). `delete_episodes` takes the rows through pandas, which returns an array
# type of `datasets` that cannot be written again.
# The script ends with 0 while this holds, and with 1 if it has changed. It installs about 5 GB.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install torch==2.11.0 "lerobot[dataset]==0.6.1" datasets==4.8.5 pandas==2.3.3
cat >"$folder/play.py" <<'PY'
import sys
import tempfile
from pathlib import Path

import numpy as np
from lerobot.datasets.dataset_tools import delete_episodes
from lerobot.datasets.lerobot_dataset import LeRobotDataset

found = {}
for shape in ((6,), (2, 3)):
    root = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    features = {name: {"dtype": "float32", "shape": shape, "names": None} for name in ("observation.state", "action")}
    data = LeRobotDataset.create("me/all", fps=10, features=features, root=root / "all", use_videos=False)
    for _ in range(3):
        for step in range(4):
            row = np.full(shape, step, np.float32)
            data.add_frame({"observation.state": row, "action": row, "task": "count"})
        data.save_episode()
    data.finalize()
    data = LeRobotDataset("me/all", root=root / "all")
    assert data[5]["observation.state"].shape == shape
    try:
        found[shape] = f"{delete_episodes(data, [0], root / 'rest', 'me/rest').num_episodes} episodes"
    except Exception as error:
        found[shape] = f"{type(error).__name__}: {error}"
    print(shape, "->", found[shape])
holds = found[6,] == "2 episodes" and found[2, 3].startswith("AttributeError: 'PandasArrayExtensionDtype'")
print("as written above" if holds else "changed")
sys.exit(not holds)
PY
"$folder/venv/bin/python" "$folder/play.py" "$folder"
