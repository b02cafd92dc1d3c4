"""The picture of the start page: four loops of users with our worker processes and with those of the library itself."""

from __future__ import annotations

from html import escape
from typing import Any

from benchmarks.loops.rows import ASYNC, SB3_SUBPROC, SHMEM
from benchmarks.loops.tables import figure, ratios, rounded, samples_of, words
from benchmarks.sample import Sample

BARS = {
    "collector-busy-64": ("TorchRL ParallelEnv", "TorchRL ParallelEnv"),
    "cleanrl-ppo-cartpole-32": (ASYNC, "gymnasium AsyncVectorEnv"),
    "collector-busy-16": ("tianshou Shmem", "tianshou ShmemVectorEnv"),
    "sb3-ppo-busy-32": (SB3_SUBPROC, "SB3 SubprocVecEnv"),
}
"""The library's own worker processes in each loop, as a lane and in words."""
WIDTH, ROW, BAR = 480, 72, 18
STYLE = """text { font: 14px system-ui, sans-serif; fill: #777 } .name { font-weight: 600 }
.ours { fill: #2a8fa3 } .theirs { fill: #999 } .times { fill: #fff; font-weight: 600 }"""


def bars(document: dict[str, Any]) -> list[tuple[str, str, float, float, float]]:
    """Loop, library, frames a second of the library and of ours, and the median ratio of a round, the highest first."""
    experiments = {one["name"]: samples_of(one) for one in document["experiments"]}
    found = []
    for row, (lane, name) in BARS.items():
        ours, theirs = experiments[row][SHMEM], experiments[row][lane]
        found.append((words(row), name, rate(theirs), rate(ours), sorted(ratios(ours, theirs, "rollout_rate"))))
    shown = [(loop, name, theirs, ours, each[len(each) // 2]) for loop, name, theirs, ours, each in found]
    return sorted(shown, key=lambda bar: -bar[-1])


def rate(samples: list[Sample]) -> float:
    return figure(samples, "rollout_rate")


def alternative_text(document: dict[str, Any]) -> str:
    """The bars in words."""
    return "Frames a second while a loop collects: " + "; ".join(
        f"{loop}: {ratio:.1f} times {name}" for loop, name, _, _, ratio in bars(document)
    )


def picture(document: dict[str, Any]) -> str:
    """An SVG without a background, in colours that can be read on white and on black."""
    rows = bars(document)
    scale = WIDTH / max(ratio for *_, ratio in rows)
    title = escape(alternative_text(document))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * len(rows) - 10}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
    ]
    for number, (loop, name, theirs, ours, ratio) in enumerate(rows):
        top = number * ROW
        lines += [
            f'<text class="name" x="0" y="{top + 14}">{escape(loop)}</text>',
            f'<rect class="ours" x="0" y="{top + 20}" width="{ratio * scale:.0f}" height="{BAR}" rx="2"/>',
            f'<text class="times" x="6" y="{top + 34}">{ratio:.1f}x</text>',
            f'<rect class="theirs" x="0" y="{top + 20 + BAR}" width="{scale:.0f}" height="4"/>',
            f'<text x="{scale + 6:.0f}" y="{top + 53}">{escape(name)} {rounded(theirs)}, vecenv {rounded(ours)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
