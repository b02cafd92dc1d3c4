"""`python -m tests.fuzz.leak_soak --minutes 20`: envs that leak 1 MB per episode, in workers that are replaced.

The memory of all workers must stay within the bound, and every row must equal the row of an env without a leak.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from tests.support.leaky import Leaky
from tests.support.rounds import by_autoreset, plain
from vecenv import DummyVectorEnv, ShmemVectorEnv

ENVS, WORKERS = 8, 2
MB, LIMIT = 10**6, 300
LEAK_WHILE_REPLACED = 1000
"""MB that all workers may leak while new workers start on a busy machine."""
PAUSE = 0.02
"""Seconds between two rounds, so that envs leak about 80 MB per second."""


def soak(seconds: float, pause: float = PAUSE) -> dict[str, float]:
    """Run for some seconds. Return the number of replaced workers, of rounds, and the largest memory in MB."""
    leaking, still = [partial(Leaky, MB)] * ENVS, [Leaky] * ENVS
    largest = rounds = leaked = 0
    end = time.monotonic() + seconds
    with (
        ShmemVectorEnv(leaking, num_workers=WORKERS, recycle_after=f"{LIMIT} MB") as venv,
        DummyVectorEnv(still) as other,
    ):
        assert plain(venv.reset(seed=0)) == plain(other.reset(seed=0))
        rng = np.random.default_rng(0)
        while time.monotonic() < end:
            actions = rng.integers(0, 9, ENVS)
            got, wanted = (by_autoreset(each, actions, None) for each in (venv, other))
            assert plain(got) == plain(wanted), f"round {rounds} differs"
            leaked += int((got[2] | got[3]).sum())
            largest = max(largest, sum(worker.memory for worker in venv.engine.backend.workers) // MB)
            assert largest <= (WORKERS + 1) * LIMIT + LEAK_WHILE_REPLACED, f"{largest} MB in round {rounds}"
            rounds += 1
            time.sleep(pause)
        return {
            "recycled": venv.stats()["recycled"],
            "rounds": rounds,
            "leaked_mb": leaked,
            "largest_mb": largest,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.leak_soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    print(soak(60 * parser.parse_args().minutes))
