"""Compare two checkouts of this project: the time of a round, in pairs of fresh processes.

    git worktree add /tmp/other 535bc85                       # the other checkout, of any commit
    python -m benchmarks.paired /tmp/other [--pairs 10] [--rows shmem-8 facade-64] [--seconds 1.0]
    git worktree remove /tmp/other

The checkouts run in turn, each in a new process, for `--seconds`, with default settings. A ratio compares the two
processes of a pair, because a machine may be twice as fast a minute later. The output has the median time of each
checkout, and the median and the quartiles of the ratios. If a ratio is above 1, this checkout is slower. All rows with
ten pairs take about ten minutes.

A process runs the text of this file, with its checkout first in `sys.path`. The code that runs there may use only names
that both checkouts have: public names of `vecenv`, and `benchmarks.envs`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import vecenv
from benchmarks.envs import EnvSpec, calibrate, draw_actions

WARM_UP = 0.2
ROUNDS = 32
"""Number of rounds that are timed together: enough to include resets."""
PATIENCE = 120.0
"""Time limit of a process in seconds, in addition to its rounds."""


class Row(NamedTuple):
    """Vector env that a process steps."""

    kind: str
    """Name of a class of `vecenv`."""
    env: str
    """Kind of an `EnvSpec`."""
    envs: int


CLASSES = {"dummy": "DummyVectorEnv", "subproc": "SubprocVectorEnv", "shmem": "ShmemVectorEnv"}
ROWS = {
    **{f"{name}-{n}": Row(kind, "cartpole", n) for name, kind in CLASSES.items() for n in (8, 64)},
    **{f"{name}-busy-64": Row(kind, "busy", 64) for name, kind in CLASSES.items()},
    **{f"facade-{n}": Row("AsyncVectorEnv", "cartpole", n) for n in (8, 64)},
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of each process")
    options = parser.parse_args(arguments)
    this, other = Path(__file__).resolve().parent.parent, options.other.resolve()
    if options.pairs < 1:
        parser.error(f"--pairs must be at least 1, got {options.pairs}")
    if not (other / "vecenv" / "__init__.py").is_file():
        parser.error(f"{other} is not a checkout of this project: it has no vecenv/__init__.py")
    iterations = calibrate()
    print(f"this: {this}\nother: {other}\n")
    print(f"{'row':16} {'this':>10} {'other':>10}  this / other (quartiles of {options.pairs} pairs)")
    for name in options.rows:
        pairs = [
            tuple(timed_in(checkout, name, iterations, options.seconds) for checkout in (this, other))
            for _ in range(options.pairs)
        ]
        print(_line(name, pairs), flush=True)
    return 0


def _line(name: str, pairs: list[tuple[float, ...]]) -> str:
    this, other = (1e6 * median(column) for column in zip(*pairs, strict=True))
    low, middle, high = np.percentile([mine / theirs for mine, theirs in pairs], (25, 50, 75))
    return f"{name:16} {this:7.1f} us {other:7.1f} us  {middle:.3f} ({low:.3f}-{high:.3f})"


def timed_in(checkout: Path, name: str, iterations: int, seconds: float) -> float:
    """Return the seconds of a round of this row, measured in a new process of the checkout."""
    # As text, because the folder of a file would be first in `sys.path`.
    command = [sys.executable, "-c", Path(__file__).read_text(), name, str(iterations), str(seconds)]
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=seconds + PATIENCE,
    )
    result = json.loads(found.stdout.splitlines()[-1])
    if checkout not in Path(result["package"]).resolve().parents:
        raise RuntimeError(f"the process for {checkout} imported {result['package']}")
    return float(result["seconds"])


# The code that runs in the processes.


def time_row(row: Row, iterations: int, seconds: float) -> float:
    """Return the seconds of a round, resets included: the median over groups of rounds."""
    env_fns = EnvSpec(row.env, iterations).env_fns(row.envs)
    actions = draw_actions(row.envs)
    venv = getattr(vecenv, row.kind)(env_fns)
    try:
        venv.reset(seed=0)
        step = venv.step if row.kind == "AsyncVectorEnv" else _resetting(venv)
        _group_times(step, actions, WARM_UP)
        gc.collect()
        return median(_group_times(step, actions, seconds)) / ROUNDS
    finally:
        venv.close()


def _resetting(venv: Any) -> Callable[[Any], None]:
    """Return a function that steps, and resets the envs that ended in the previous round."""
    over = np.zeros(len(venv), np.bool_)

    def step(action: Any) -> None:
        nonlocal over
        _, _, terminated, truncated, _ = venv.step(action, reset=over)
        over = terminated | truncated

    return step


def _group_times(step: Callable[[Any], Any], actions: np.ndarray, seconds: float) -> list[float]:
    """Return the time of each group of rounds, at least one."""
    times: list[float] = []
    clock = time.perf_counter
    stop = clock() + seconds
    while not times or clock() < stop:
        start = len(times) * ROUNDS % len(actions)
        group = actions[start : start + ROUNDS]
        begun = clock()
        for action in group:
            step(action)
        times.append(clock() - begun)
    return times


def _time_one(name: str, iterations: str, seconds: str) -> None:
    found = time_row(ROWS[name], int(iterations), float(seconds))
    print(json.dumps({"seconds": found, "package": vecenv.__file__}))


if __name__ == "__main__":
    if sys.argv[0] == "-c":
        _time_one(*sys.argv[1:])
    else:
        raise SystemExit(main())
