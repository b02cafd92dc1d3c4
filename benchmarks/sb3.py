"""Compare SB3VecEnv (around ShmemVectorEnv) with SB3's SubprocVecEnv: env steps per second on CartPole.

    python -m benchmarks.sb3 [--rounds 9] [--seconds 1.0]

Both have default settings, and run in turn. A ratio compares both in the same round. The output has the median ratio,
the lowest and the highest. Needs stable-baselines3.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv

from benchmarks.envs import EnvSpec, draw_actions
from vecenv import SB3VecEnv, ShmemVectorEnv


def steps_per_second(env: Any, actions: Any, seconds: float) -> float:
    """Return the env steps per second. Resets happen within the steps and are not counted."""
    calls, begin = 0, time.perf_counter()
    while (wall := time.perf_counter() - begin) < seconds:
        for action in actions:
            env.step(action)
        calls += len(actions)
    return float(calls * env.num_envs / wall)


def measure(count: int, rounds: int, seconds: float) -> None:
    env_fns, actions = EnvSpec("cartpole").env_fns(count), draw_actions(count)
    ours, theirs = SB3VecEnv(ShmemVectorEnv(env_fns)), SubprocVecEnv(list(env_fns))
    rates: list[tuple[float, ...]] = []
    try:
        for env in (ours, theirs):
            env.reset()
            steps_per_second(env, actions, seconds / 4)
        for number in range(rounds):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            found = {id(env): steps_per_second(env, actions, seconds) for env in order}
            rates.append((found[id(ours)], found[id(theirs)]))
    finally:
        ours.close()
        theirs.close()
    ratios = [mine / other for mine, other in rates]
    mine, other = (median(column) for column in zip(*rates, strict=True))
    print(
        f"{count:3} envs: ours {mine:9,.0f}/s, SubprocVecEnv {other:9,.0f}/s, "
        f"ratio {median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender in each round")
    options = parser.parse_args()
    for count in (8, 64):
        measure(count, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
