"""Draw the chart of the landing page: four loops with `auto` and with the fastest class of a peer."""

from __future__ import annotations

from html import escape
from typing import Any

from benchmarks.loops.rows import ALONE, AUTO
from benchmarks.loops.tables import figure, ratios, rounded, samples_of, words
from benchmarks.sample import Sample

BARS = ("half-cheetah-64", "collector-busy-64", "sb3-ppo-busy-32", "cleanrl-ppo-cartpole-32")
CLASSES = {
    "gymnasium Sync": "gymnasium SyncVectorEnv",
    "SB3 Dummy": "SB3 DummyVecEnv",
    "tianshou Dummy": "tianshou DummyVectorEnv",
}
"""Name of the class, for each lane that is the fastest peer in a loop."""
WIDTH, ROW, BAR = 480, 72, 18
STYLE = """text { font: 14px system-ui, sans-serif; fill: #777 } .name { font-weight: 600 }
.ours { fill: #2a8fa3 } .theirs { fill: #999 } .times { fill: #fff; font-weight: 600 }"""


def bars(document: dict[str, Any]) -> list[tuple[str, str, float, float, float]]:
    """Return loop, peer's class, frames per second of both, and their median ratio. The highest ratio comes first."""
    experiments = {one["name"]: samples_of(one) for one in document["experiments"]}
    found = []
    for row in BARS:
        samples = experiments[row]
        best = max(
            (lane for lane in samples if not lane.startswith("vecenv") and lane != ALONE),
            key=lambda lane: rate(samples[lane]),
        )
        ours, theirs = samples[AUTO], samples[best]
        found.append(
            (words(row), CLASSES[best], rate(theirs), rate(ours), sorted(ratios(ours, theirs, "rollout_rate")))
        )
    shown = [(loop, name, theirs, ours, each[len(each) // 2]) for loop, name, theirs, ours, each in found]
    return sorted(shown, key=lambda bar: -bar[-1])


def rate(samples: list[Sample]) -> float:
    return figure(samples, "rollout_rate")


def alternative_text(document: dict[str, Any]) -> str:
    return "Frames per second while a loop collects: " + "; ".join(
        f"{loop}: {ratio:.1f} times {name}" for loop, name, _, _, ratio in bars(document)
    )


def picture(document: dict[str, Any]) -> str:
    """Return an SVG without a background, in colours that can be read on white and on black."""
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
            f'<text x="0" y="{top + 55}">{escape(name)} {rounded(theirs)}, vecenv {rounded(ours)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
