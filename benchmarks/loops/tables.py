"""Print the results of the loops, and write the table of docs/explanation/benchmarks.md from a file of results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.loops.rows import ALONE, AUTO, DUMMY, SHMEM, Target, after
from benchmarks.measure import Measured, Result
from benchmarks.sample import Sample

BEGIN, END = "<!-- loops: begin -->", "<!-- loops: end -->"
WORDS = {
    "sb3-ppo": "SB3 PPO",
    "cleanrl-ppo": "CleanRL-style PPO",
    "collector": "collector, small network",
    "pauses": "rounds 1 ms apart",
    "numpy-policy": "numpy policy",
    "half-cheetah": "stepping with infos",
}


def figure(samples: Sequence[Sample], of: str) -> float:
    return median(getattr(sample, of) for sample in samples)


def ratios(own: Sequence[Sample], other: Sequence[Sample], of: str) -> list[float]:
    """Return a ratio per round. The list is empty if a loop lacks the property, for example if it does not learn."""
    pairs = [(getattr(mine, of), getattr(theirs, of)) for mine, theirs in zip(own, other, strict=True)]
    return [mine / theirs for mine, theirs in pairs if theirs]


def with_quartiles(values: Sequence[float]) -> str:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def judge(target: Target, measured: Measured | None) -> Result:
    """Return the row of a target. It has no verdict if a lane is missing, or if most rounds were disturbed."""
    row = f"{target.row}: {target.title}"
    samples = measured.samples if measured is not None else {}
    missing = [name for name in (target.lane, *target.over) if name not in samples]
    if measured is None or missing:
        return Result(row, "-", "", f"not measured: {', '.join(missing)}", str(target))
    choose = min if target.at_most else max
    best = choose(target.over, key=lambda name: figure(samples[name], target.of))
    own, other = samples[target.lane], samples[best]
    found = ratios(own, other, target.of)
    shown = with_quartiles(found)
    if target.of == "rollout_rate" and any(sample.outside for sample in other):
        shown += f", with learning {median(ratios(own, other, 'rate')):.2f}"
    return Result(
        row,
        _figure(own, target.of),
        f"{best} {_figure(other, target.of)}",
        shown + measured.warning(),
        str(target),
        measured.verdict(target.reached(median(found))),
    )


def _figure(samples: Sequence[Sample], of: str) -> str:
    value = figure(samples, of)
    return f"{value * 1e6:,.0f} us" if of == "p50" else f"{value:,.0f}/s"


def print_loop(console: Console, one: Measured) -> None:
    """Print every lane of a row. The lane that collects fastest comes first."""
    if not one.samples:
        return
    base = one.samples.get(one.experiment.yardstick)
    title = f"{one.experiment.name}{one.warning()}"
    table = Table("loop", "frames/s", "while it collects", "lowest-highest", "a rollout (median)", title=title)
    table.add_column(f"of {one.experiment.yardstick}, while it collects (quartiles)")
    for name, samples in sorted(one.samples.items(), key=lambda item: -figure(item[1], "rollout_rate")):
        cells = [f"{figure(samples, 'rate'):,.0f}"]
        if name != ALONE:
            rates = [sample.rollout_rate for sample in samples]
            cells += [f"{median(rates):,.0f}", f"{min(rates):,.0f}-{max(rates):,.0f}"]
            cells += [f"{figure(samples, 'p50') * 1e6:,.0f} us"]
            cells += [with_quartiles(ratios(samples, base, "rollout_rate")) if base else "-"]
        table.add_row(name, *cells)
    console.print(table)


# The page.


def write_table(page: Path, results: Path) -> None:
    """Replace the text between the two marks in `page` by the table of a file of results.

    Raises ValueError if a mark is missing.
    """
    text = page.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no place for the table: write {BEGIN} and {END} where it belongs")
    table = page_table(json.loads(results.read_text()))
    page.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text))


def page_table(document: dict[str, Any]) -> str:
    """Return the table in Markdown, below a line that says where, when and how it was measured."""
    machine, versions = document["machine"], document["versions"]
    peers = [name for name in ("gymnasium", "stable-baselines3", "tianshou", "torchrl", "torch") if name in versions]
    lines = [
        f"Frames per second while the loop collects, in brackets with the learning, on {machine['cpus_usable']} CPUs "
        f"({machine['cpu']}, Linux {machine['kernel'].partition('-')[0]}, Python {machine['python']}, "
        f"{document['date'][:10]}); medians of {document['options']['rounds']} interleaved runs, default settings of "
        f"everything ({', '.join(f'{name} {versions[name]}' for name in peers)}).",
        "",
        "| loop | `auto` | Shmem | Dummy | others |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_page_row, document["experiments"])])


def _page_row(one: dict[str, Any]) -> str:
    suffix = after("", 1.0)
    found = {name.removesuffix(suffix): samples for name, samples in samples_of(one).items()}
    ours = [_cell(found[name]) if name in found else "-" for name in (AUTO, SHMEM, DUMMY)]
    others = [
        f"{name} {_cell(samples)}" for name, samples in found.items() if not name.startswith("vecenv") and name != ALONE
    ]
    return f"| {words(one['name'])} | {' | '.join(ours)} | {', '.join(others) or '-'} |"


def samples_of(one: dict[str, Any]) -> dict[str, list[Sample]]:
    """Return the samples of an experiment in a file of results, by lane."""
    return {
        name: [Sample(**{key: value for key, value in sample.items() if key != "rate"}) for sample in samples]
        for name, samples in one["samples"].items()
    }


def _cell(samples: Sequence[Sample]) -> str:
    collecting, all_of_it = (rounded(figure(samples, of)) for of in ("rollout_rate", "rate"))
    learns = any(sample.outside for sample in samples)
    return f"{collecting} ({all_of_it})" if learns else collecting


def rounded(rate: float) -> str:
    """Return the number with three digits. Repeated measurements differ by more."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def words(row: str) -> str:
    loop = next(name for name in WORDS if row.startswith(name + "-"))
    *kind, count = row.removeprefix(loop + "-").split("-")
    if loop == "half-cheetah":
        return f"{WORDS[loop]}, {count} HalfCheetah-v5"
    env = "envs of 100 us" if kind == ["busy"] else "CartPole envs"
    return f"{WORDS[loop]}, {count} {env}"
