"""Draw the learning curves of the PPO examples for a page: `python docs/learning_curves.py [FOLDER]`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/images"
WINDOW = 20
"""Number of episodes in the moving mean."""
END = 80_000
"""Last step on the horizontal axis."""


def run(example: str) -> dict[str, Any]:
    """Run a program of the folder `examples`, and return its variables."""
    sys.argv = [example]
    return runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")


def ppo_cleanrl() -> tuple[np.ndarray, np.ndarray]:
    """Train. Return the steps at the end of each episode, and the returns."""
    returns = np.array(run("ppo_cleanrl.py")["returns"])
    return np.cumsum(returns), returns  # a step of CartPole has the reward 1


def sb3_ppo() -> tuple[np.ndarray, np.ndarray]:
    """Train. Return the steps at the end of each episode, and the returns, without the evaluation."""
    from stable_baselines3.common import vec_env

    steps, ended = 0, []

    class Recorder(vec_env.VecMonitor):
        def step_wait(self) -> Any:
            nonlocal steps
            result = super().step_wait()
            steps += self.num_envs
            ended.extend((steps, info["episode"]["r"]) for info in result[3] if "episode" in info)
            return result

    vec_env.VecMonitor = Recorder  # type: ignore[misc]
    trained = run("sb3_ppo.py")["model"].num_timesteps
    at, returns = np.array(ended).T
    return at[at <= trained], returns[at <= trained]


def path(steps: np.ndarray, returns: np.ndarray, dot: bool = False) -> str:
    """Return the data of an SVG path through the points, or with a dot at each point."""
    points = zip(60 + steps / END * 520, 210 - returns / 500 * 180, strict=True)
    return "".join(
        f"M{x:.0f} {y:.0f}h0" if dot else f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points)
    )


def draw(title: str, steps: np.ndarray, returns: np.ndarray) -> str:
    """Return the picture. In dark mode, the style sheet of the site inverts it."""
    means = np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid")
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 260" role="img">',
        f"<title>{title}</title>",
        "<style>text { font: 12px system-ui, sans-serif; fill: #1f2937 } path { fill: none; stroke: #d1d5db }",
        ".dots { stroke: #93c5fd; stroke-width: 3; stroke-linecap: round } .mean { stroke: #1d4ed8; stroke-width: 2 }",
        "</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for value in range(0, 501, 100):
        y = 210 - value / 500 * 180
        lines.append(f'<path d="M60 {y:.0f}H580"/><text x="52" y="{y + 4:.0f}" text-anchor="end">{value}</text>')
    for step in range(0, END + 1, 20_000):
        x = 60 + step / END * 520
        lines.append(f'<text x="{x:.0f}" y="228" text-anchor="middle">{step:,}</text>')
    lines += [
        f'<path class="dots" d="{path(steps, returns, dot=True)}"/>',
        f'<path class="mean" d="{path(steps[WINDOW - 1 :], means)}"/>',
        '<text x="320" y="250" text-anchor="middle">steps of all envs</text>',
        '<text x="60" y="18">return: <tspan fill="#3b82f6">episode</tspan>,',
        f'<tspan fill="#1d4ed8">mean of {WINDOW} episodes</tspan></text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    for curve in (ppo_cleanrl, sb3_ppo):
        picture = draw(f"Returns of examples/{curve.__name__}.py", *curve())
        (folder / f"{curve.__name__}.svg").write_text(picture, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PICTURES)
