"""`python -m benchmarks.run`: measure and print the whole table, or a single row.

    python -m benchmarks.run                           # everything: ten to twenty minutes
    python -m benchmarks.run --quick                   # only a check that every row runs: under a minute
    python -m benchmarks.run --only cartpole-64        # a single row with its peers
    python -m benchmarks.run --only busy-8 --lean --ours num_workers=1

`benchmarks/README.md` explains the rows.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.costs import COSTS
from benchmarks.envs import calibrate
from benchmarks.lane import LaneError
from benchmarks.measure import Effort, Measured, Result, run_experiment
from benchmarks.ours import OursShmem
from benchmarks.report import print_contenders, print_results, write_json
from benchmarks.rows import Settings, experiments

RESULTS = Path(__file__).parent / "results"
ROWS = ["busy-64", "busy-8", "pixels-64", "cartpole-64", "cartpole-8", "async-sleep", *COSTS]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 150)
    settings = Settings(
        workers=len(os.sched_getaffinity(0)),
        iterations=calibrate(),
        ours=dict(options.ours),
        quick=options.quick,
        lean=options.lean or options.quick,
    )
    effort = Effort(options.rounds, options.seconds, options.patience)
    wanted = options.only or ROWS
    begun = time.monotonic()
    console.print(
        f"{settings.workers} CPUs, load {os.getloadavg()[0]:.1f}, {settings.iterations} loop iterations take 100 us"
    )
    measured: list[Measured] = []
    results: list[Result] = []
    for experiment in experiments(settings):
        if experiment.name in wanted:
            console.print(f"{experiment.name} ...")
            one = run_experiment(experiment, effort, console.print)
            measured.append(one)
            results += one.results()
    results += _costs(settings, wanted, console)
    print_contenders(console, measured)
    print_results(console, results)
    path = options.json or RESULTS / f"{datetime.datetime.now():%Y-%m-%d}.json"
    if not options.quick or options.json:
        write_json(path, settings, _plain(options), measured, results)
        console.print(f"raw figures: {path}")
    console.print(f"{time.monotonic() - begun:.0f} s")
    return 0


def _costs(settings: Settings, wanted: list[str], console: Console) -> list[Result]:
    results: list[Result] = []
    for name, measure in COSTS.items():
        if name not in wanted:
            continue
        console.print(f"{name} ...")
        if not OursShmem.available():
            results.append(Result(name, "-", "", "skipped: vecenv is not importable"))
            continue
        try:
            results += measure(settings)
        except LaneError as error:
            console.print(f"  {name}: failed\n{error}")
            results.append(Result(name, "-", "", "failed"))
    return results


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", action="append", choices=ROWS, metavar="ROW", help=f"one of: {', '.join(ROWS)}; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="seconds; checks that rows run, proves nothing")
    parser.add_argument("--lean", action="store_true", help="only the contenders that a row compares, for tuning")
    parser.add_argument("--rounds", type=int, help="rounds of each throughput row (default 5)")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement (default 1)")
    parser.add_argument(
        "--patience",
        type=float,
        help="seconds that a row may spend on repeating rounds that other programs disturbed (default 60)",
    )
    parser.add_argument(
        "--ours",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="argument for our Subproc and Shmem, as num_workers=1; may be repeated",
    )
    parser.add_argument("--json", type=Path, help="where the raw figures go")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 2 if options.quick else 5
    if options.seconds is None:
        options.seconds = 0.1 if options.quick else 1.0
    if options.patience is None:
        options.patience = 0.0 if options.quick else 60.0
    return options


def _key_value(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    kept = ("only", "quick", "lean", "rounds", "seconds", "patience")
    return {name: value for name, value in vars(options).items() if name in kept}


if __name__ == "__main__":
    raise SystemExit(main())
