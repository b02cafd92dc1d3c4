"""`python -m tests.fuzz`: random programs against independent oracles; `make fuzz MINUTES=10` runs all fuzzers.

    python -m tests.fuzz                            # each fuzzer for a minute, with new seeds
    python -m tests.fuzz engine sb3 --minutes 10
    python -m tests.fuzz engine --seed 17           # repeat the batch of a finding
    python -m tests.fuzz engine --seed 0 --minutes 1

A fuzzer ends at its first finding, and prints the shortest program that fails. The exit status is the number of
fuzzers with a finding.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import subprocess
import sys

from tests.fuzz.driver import fuzz

FUZZERS = {
    "engine": "engine:Fuzz",
    "gymnasium": "facades:Gymnasium",
    "sb3": "facades:StableBaselines",
    "tianshou": "tianshou:Fuzz",
    "columns": "columns:Fuzz",
    "pools": "pools:Fuzz",
    "pettingzoo": "pettingzoo:Fuzz",
    "aec": "aec:Fuzz",
    "transforms": "transforms:Fuzz",
    "interrupts": "interrupts:Fuzz",
    "threads": "threads:Fuzz",
    "stress": "threads:Stress",
    "collectors": "collectors:Fuzz",
    "jobs": "jobs:Fuzz",
}
"""Module and class of each fuzzer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="fuzzer", help=f"of {', '.join(FUZZERS)} [all]")
    parser.add_argument("--minutes", type=float, help="for each fuzzer [1, or one batch with --seed]")
    parser.add_argument("--seed", type=int, help="of the first batch [random]")
    options = parser.parse_args()
    names = options.names or list(FUZZERS)
    if unknown := [name for name in names if name not in FUZZERS]:
        parser.error(f"no fuzzer {unknown[0]!r}; choose from {', '.join(FUZZERS)}")
    minutes = 1.0 if options.minutes is None and options.seed is None else options.minutes
    seed = random.randrange(10**6) if options.seed is None else options.seed
    if len(names) > 1:  # each in a separate process
        more = [] if minutes is None else ["--minutes", str(minutes)]
        command = [sys.executable, "-m", "tests.fuzz", "--seed", str(seed), *more]
        return sum(subprocess.run([*command, name]).returncode != 0 for name in names)
    if names[0] == "tianshou" and importlib.util.find_spec("tianshou") is None:
        print("tianshou: skipped, because tianshou is not installed (pip install tianshou)")
        return 0
    module, _, program = FUZZERS[names[0]].partition(":")
    return fuzz(names[0], getattr(importlib.import_module(f"tests.fuzz.{module}"), program), seed, minutes)


if __name__ == "__main__":
    sys.exit(main())
