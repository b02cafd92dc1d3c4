"""`python -m benchmarks.loops`: loops of users, on our vector envs and on the peers', with default settings.

    python -m benchmarks.loops                            # every loop: twenty to thirty minutes, peers installed
    python -m benchmarks.loops --full                     # every loop in every size: hours
    python -m benchmarks.loops --targets                  # only rows with a target; --other CHECKOUT adds pure stepping
    python -m benchmarks.loops --only sb3-ppo-busy-32     # a single row; may be repeated
    python -m benchmarks.loops --page FILE                # write the table of the page Benchmarks, and the chart

`benchmarks/README.md` explains the rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks import paired
from benchmarks.envs import calibrate
from benchmarks.loops.picture import picture
from benchmarks.loops.rows import ALL, DEFAULT, Target, experiment, targets
from benchmarks.loops.tables import judge, print_loop, with_quartiles, write_table
from benchmarks.measure import Effort, Measured, Result, run_experiment
from benchmarks.report import print_results, write_json
from benchmarks.rows import Experiment, Settings

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE, PICTURE = ROOT / "docs/explanation/benchmarks.md", ROOT / "docs/images/loops.svg"
THREAD_SETTINGS = ("OMP_", "OPENBLAS_", "MKL_", "GOMP_", "KMP_")


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.page:
        write_table(PAGE, options.page)
        PICTURE.write_text(picture(json.loads(options.page.read_text())))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 170)
    for name in sorted(name for name in os.environ if name.startswith(THREAD_SETTINGS)):
        console.print(f"{name}={os.environ[name]} is set: these are not default settings")
    settings = Settings(workers=len(os.sched_getaffinity(0)), iterations=calibrate())
    begun = time.monotonic()
    console.print(
        f"{settings.workers} CPUs, load {os.getloadavg()[0]:.1f}, {settings.iterations} loop iterations take 100 us"
    )
    rows = options.only or (ALL if options.full else DEFAULT)
    wanted = [target for target in targets() if target.row in rows]
    if options.targets:
        rows = [row for row in rows if any(target.row == row for target in wanted)]
    effort = Effort(options.rounds, options.seconds, options.patience)
    measured: dict[str, Measured] = {}
    for row in rows:
        console.print(f"{row} ...")
        one = experiment(row, settings.iterations)
        measured[row] = run_experiment(_lean(one, wanted) if options.targets else one, effort, console.print)
        print_loop(console, measured[row])
    results = [judge(target, measured.get(target.row)) for target in wanted]
    if options.other:
        results += _stepping(options.other.resolve(), settings.iterations, options.rounds, options.seconds)
    elif options.targets and not options.only:
        note = "not measured: --other CHECKOUT is what it is held against"
        results.append(Result("pure stepping: not slower than before", "-", "", note, ">= 1 (0.97 counts)"))
    print_results(console, results, "What is to be reached (ratio: median of the rounds, with the quartiles)")
    path = options.json or ROOT / "benchmarks" / "results" / f"{datetime.datetime.now():%Y-%m-%d}-loops.json"
    kept = {name: value for name, value in vars(options).items() if name not in ("json", "readme", "other")}
    write_json(path, settings, kept, list(measured.values()), results)
    console.print(f"raw figures: {path}")
    console.print(f"{time.monotonic() - begun:.0f} s")
    return 0


def _lean(one: Experiment, wanted: list[Target]) -> Experiment:
    names = {name for target in wanted if target.row == one.name for name in (target.lane, *target.over)}
    return replace(one, lanes=[lane for lane in one.lanes if lane.title in names])


def _stepping(other: Path, iterations: int, rounds: int, seconds: float) -> list[Result]:
    """Return the rows of `benchmarks.paired`, as speed. If a ratio is above 1, this checkout is faster."""
    this, found = ROOT, []
    for row in paired.ROWS:
        pairs = [[paired.timed_in(each, row, iterations, seconds) for each in (this, other)] for _ in range(rounds)]
        mine, theirs = (f"{1e6 * median(column):.1f} us" for column in zip(*pairs, strict=True))
        target = Target("", row, "", (), 1.0, counts=0.97)
        speeds = [before / now for now, before in pairs]
        shown, reached = with_quartiles(speeds), target.reached(median(speeds))
        found.append(Result(f"pure stepping: {row}", mine, f"before {theirs}", shown, str(target), reached))
    return found


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="every loop in every size, not only those of the table")
    parser.add_argument("--targets", action="store_true", help="only the lanes that a target is about")
    parser.add_argument(
        "--only", action="append", choices=ALL, metavar="ROW", help=f"one of: {', '.join(ALL)}; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5, help="interleaved runs of each loop (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (default 1), in whole iterations")
    parser.add_argument(
        "--patience",
        type=float,
        default=10.0,
        help="seconds that a row may spend on repeating rounds that other programs disturbed (default 10)",
    )
    parser.add_argument(
        "--other", type=Path, metavar="CHECKOUT", help="the checkout that pure stepping is held against"
    )
    parser.add_argument("--json", type=Path, help="where the raw figures go")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the site's table and picture from these")
    options: Any = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
