"""Draw the learning curve of examples/ppo_cleanrl.py for a page: `python docs/learning_curves.py [PICTURE]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/ppo_cleanrl.png"
WINDOW = 20
"""Number of episodes in the moving mean."""


def main(picture: Path) -> None:
    sys.argv = ["ppo_cleanrl.py"]
    returns = np.array(runpy.run_path(str(ROOT / "examples/ppo_cleanrl.py"), run_name="__main__")["returns"])
    steps = np.cumsum(returns)  # a step of CartPole has the reward 1
    means = np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid")
    figure = Figure((7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns, ".", color="C0", alpha=0.25, markersize=3, label="an episode")
    axes.plot(steps[WINDOW - 1 :], means, color="C0", label=f"mean of {WINDOW} episodes")
    axes.set(xlabel="steps of all envs", ylabel="return")
    axes.legend(loc="upper left")
    figure.savefig(picture, dpi=70)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
