"""Measure how good the choices of `vecenv.tune` and `backend="auto"` are, with several kinds of envs.

    python -m benchmarks.tuning [--envs 8] [--seconds 10] [--only slow-start]

For each kind, `tune` chooses in its 2 seconds. Then all candidates are measured for `--seconds`. The output has the
speed of the choice relative to the fastest candidate, and all candidates. The lines `auto` are for backend="auto".
HalfCheetah-v5 needs `pip install gymnasium[mujoco]`, and is left out without it. The benchmark takes about two minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from benchmarks.envs import BusyEnv, PixelEnv, SleepEnv, calibrate
from vecenv.backends.system_limits import usable_cpus
from vecenv.tuning.auto_backend import choose_backend
from vecenv.tuning.tune import tune


class SlowResets(BusyEnv):
    """Env that computes for 10 ms in each reset. Episodes have about 500 steps."""

    def __init__(self, iterations: int, per_us: float) -> None:
        super().__init__(iterations)
        self._reset_work = BusyEnv(round(10_000 * per_us))

    def reset(self, **options: Any) -> Any:
        self._reset_work.step(0)
        return super().reset(**options)


class SlowStart(BusyEnv):
    """Env whose first 20 steps take 10 ms each, like an env that compiles."""

    def __init__(self, iterations: int) -> None:
        super().__init__(iterations)
        self._taken = 0

    def step(self, action: Any) -> Any:
        self._taken += 1
        if self._taken <= 20:
            end = time.thread_time() + 0.01
            while time.thread_time() < end:
                pass
        return super().step(action)


def kinds() -> dict[str, Callable[[], Any]]:
    per_us = calibrate() / 100
    found: dict[str, Callable[[], Any]] = {
        "10 us": partial(BusyEnv, round(10 * per_us)),
        "300 us": partial(BusyEnv, round(300 * per_us)),
        "5 ms asleep": SleepEnv,
        "pixels": partial(PixelEnv, round(100 * per_us)),
        "10 ms resets": partial(SlowResets, round(10 * per_us), per_us),
        "slow start": partial(SlowStart, round(10 * per_us)),
        "HalfCheetah": partial(gym.make, "HalfCheetah-v5"),
    }
    try:
        found["HalfCheetah"]().close()
    except (ImportError, gym.error.Error) as error:
        print(f"HalfCheetah-v5 is left out: {error}")
        del found["HalfCheetah"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    found = kinds()
    parser = argparse.ArgumentParser(prog="benchmarks.tuning", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the longer measurement")
    parser.add_argument("--only", action="append", choices=found, help="a kind of env; may be repeated")
    options = parser.parse_args(arguments)
    for name, env_fn in found.items():
        if options.only and name not in options.only:
            continue
        env_fns = [env_fn] * options.envs
        begin = time.perf_counter()
        best = tune(env_fns).best
        took, begin = time.perf_counter() - begin, time.perf_counter()
        auto = choose_backend(env_fns, {})
        auto_took = time.perf_counter() - begin
        longer = tune(env_fns, seconds=options.seconds)
        rates = {row[:2]: row.steps_per_second or 0.0 for row in longer.rows}
        most = max(rates.values())
        of_auto = None if auto.backend == "dummy" else auto.num_workers or min(options.envs, usable_cpus())
        auto_rate = rates.get((auto.backend, of_auto), float("nan"))
        print(f"{name}: tune chose {best.name} in {took:.1f} s: {rates[best[:2]] / most:.2f} of the best")
        print(
            f"  auto chose {auto.backend}, {auto.num_workers or 'default'} workers in {auto_took:.2f} s: "
            f"{auto_rate / most:.2f} of the best; {auto.reason}"
        )
        print("  " + str(longer).replace("\n", "\n  "), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
