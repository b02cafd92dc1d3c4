"""Draw the learning curves of the PPO examples on CartPole: `python docs/learning_curves.py [FOLDER]`."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 20
"""Number of episodes in the moving mean."""


def run(example: str) -> dict[str, object]:
    """Run an example, and return its variables."""
    sys.argv = [f"{example}.py"]
    return runpy.run_path(str(ROOT / f"examples/{example}.py"), run_name="__main__")


def cleanrl_returns() -> np.ndarray:
    return np.array(run("ppo_cleanrl")["returns"])


def sb3_returns() -> np.ndarray:
    """Let VecMonitor write a file, and read the returns from it. The last 8 episodes are the example's evaluation."""
    from stable_baselines3.common import vec_env

    with tempfile.TemporaryDirectory() as folder:

        class Recorded(vec_env.VecMonitor):
            def __init__(self, venv: vec_env.VecEnv) -> None:
                super().__init__(venv, filename=f"{folder}/sb3")

        vec_env.VecMonitor = Recorded
        run("sb3_ppo")
        return np.loadtxt(f"{folder}/sb3.monitor.csv", delimiter=",", skiprows=2, usecols=0)[:-8]


def draw(returns: np.ndarray, picture: Path) -> None:
    steps = np.cumsum(returns)  # a step of CartPole has the reward 1
    means = np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid")
    figure = Figure((7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns, ".", color="C0", alpha=0.25, markersize=3, label="an episode")
    axes.plot(steps[WINDOW - 1 :], means, color="C0", label=f"mean of {WINDOW} episodes")
    axes.set(xlabel="steps of all envs", ylabel="return")
    axes.legend(loc="upper left")
    figure.savefig(picture, dpi=70)


def main(folder: Path) -> None:
    draw(sb3_returns(), folder / "sb3_ppo.png")
    draw(cleanrl_returns(), folder / "ppo_cleanrl.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs/images")
