"""Print the tables, and write the JSON file."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Measured, Result
from benchmarks.rows import Settings

PACKAGES = [
    "vecenv",
    "numpy",
    "gymnasium",
    "stable-baselines3",
    "tianshou",
    "torchrl",
    "torch",
    "pufferlib",
    "envpool",
]
_REACHED = {True: "[green]yes[/]", False: "[red]NO[/]", None: "-"}


TITLE = "Speed and cost (ratio: median of the rounds, lowest and highest behind it)"


def print_results(console: Console, results: list[Result], title: str = TITLE) -> None:
    table = Table(title=title)
    for column in ("row", "value", "against", "ratio", "to reach", "reached"):
        table.add_column(column, overflow="fold")
    for result in results:
        table.add_row(
            result.row,
            result.value,
            result.yardstick,
            result.ratio,
            result.target,
            _REACHED[result.reached],
        )
    console.print(table)


def print_contenders(console: Console, measured: list[Measured]) -> None:
    """Print every contender of every experiment, fastest first, relative to the experiment's reference lane."""
    for one in measured:
        if not one.samples:
            continue
        base = one.samples.get(one.experiment.yardstick)
        title = f"{one.experiment.name}: all contenders"
        if one.disturbed:
            title += f" ({one.disturbed} rounds while other programs kept the machine busy)"
        table = Table(title=title)
        for column in ("contender", "steps/s", "lowest-highest", "of the yardstick", "CPU main/call"):
            table.add_column(column, justify="left" if column == "contender" else "right")
        by_rate = sorted(one.samples.items(), key=lambda item: -median(sample.rate for sample in item[1]))
        for name, samples in by_rate:
            rates = [sample.rate for sample in samples]
            share = "-"
            if base:
                pairs = zip(samples, base, strict=True)
                share = f"{median(mine.rate / other.rate for mine, other in pairs):.3f}"
            cpu = median(sample.cpu_per_call for sample in samples) * 1e6
            spread = f"{min(rates):,.0f}-{max(rates):,.0f}"
            table.add_row(name, f"{median(rates):,.0f}", spread, share, f"{cpu:.0f} us" if cpu else "-")
        console.print(table)


def write_json(
    path: Path,
    settings: Settings,
    options: dict[str, Any],
    measured: list[Measured],
    results: list[Result],
) -> None:
    document = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "git": git_revision(),
        "machine": machine(),
        "versions": versions(),
        "settings": asdict(settings),
        "options": options,
        "results": [asdict(result) for result in results],
        "experiments": [
            {
                "name": one.experiment.name,
                "skipped": one.skipped,
                "disturbed_rounds": one.disturbed,
                "samples": {
                    title: [{**asdict(sample), "rate": sample.rate} for sample in samples]
                    for title, samples in one.samples.items()
                },
            }
            for one in measured
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    model = ""
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cpus_usable": len(os.sched_getaffinity(0)),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision() -> str:
    """Return the measured commit, with `+changes` if the working tree differs."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        return (git("rev-parse", "--verify", "-q", "HEAD") or "no commit") + (
            "+changes" if git("--no-optional-locks", "status", "--porcelain") else ""
        )
    except FileNotFoundError:
        return "git is not installed"
