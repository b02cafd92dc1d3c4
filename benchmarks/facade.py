"""Measure the gymnasium facade: its cost, and the speed of our AsyncVectorEnv, gymnasium's classes and SB3's classes.

    python -m benchmarks.facade [--rounds 9] [--seconds 1.0]

The cost is the CPU time of this process per step. The same vector env is stepped directly and through the facade in
turn, with empty infos. The rates are steps per second on CartPole with default settings. Resets take time, but rows of
resets are not counted. All contenders of a row are measured in turn. A ratio compares two contenders of the same round.
The output has the median, the lowest and the highest ratio. SB3 is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.envs import EnvSpec, draw_actions
from vecenv import AsyncVectorEnv, DummyVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv

CALLS = 200


class Still(gym.Env):
    """Env that costs as little as possible."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 1.0, False, False, {}


def cpu_of(step: Callable[[Any], Any], actions: Any) -> float:
    """Return the microseconds of CPU time of this process per call."""
    begun = time.process_time()
    for _ in range(CALLS):
        step(actions)
    return 1e6 * (time.process_time() - begun) / CALLS


def measure_cost(kind: type, count: int, rounds: int) -> None:
    envs, actions = GymnasiumVectorEnv(kind([Still] * count)), np.zeros(count, np.int64)
    envs.reset()
    pairs = [(cpu_of(envs.venv.step, actions), cpu_of(envs.step, actions)) for _ in range(10 * rounds)]
    envs.close()
    costs = [through - alone for alone, through in pairs]
    alone, low, high = median(pair[0] for pair in pairs), np.percentile(costs, 10), np.percentile(costs, 90)
    print(
        f"{kind.__name__}, {count} envs: {alone:.1f} us of CPU a step, the facade adds {median(costs):.1f} us", end=" "
    )
    print(f"({low:.1f} to {high:.1f} in 8 of 10 rounds)")


class NextStep:
    """Gymnasium VectorEnv in NEXT_STEP mode that counts steps without resets."""

    def __init__(self, envs: Any) -> None:
        self.envs, self.over = envs, 0
        envs.reset()

    def step(self, actions: Any) -> int:
        _, _, terminated, truncated, _ = self.envs.step(actions)
        steps: int = self.envs.num_envs - self.over
        self.over = int(np.count_nonzero(terminated | truncated))
        return steps


class SameStep(NextStep):
    """Vector env that resets within the step."""

    def step(self, actions: Any) -> int:
        self.envs.step(actions)
        return int(self.envs.num_envs)


def contenders(env_fns: list[Any]) -> dict[str, NextStep]:
    """Return all contenders, ours first."""
    found: dict[str, NextStep] = {
        "vecenv AsyncVectorEnv": NextStep(AsyncVectorEnv(env_fns)),
        "gymnasium AsyncVectorEnv": NextStep(gym.vector.AsyncVectorEnv(env_fns)),
        "vecenv, SAME_STEP": SameStep(AsyncVectorEnv(env_fns, autoreset_mode="SameStep")),
        "gymnasium, SAME_STEP": SameStep(gym.vector.AsyncVectorEnv(env_fns, autoreset_mode="SameStep")),
    }
    if importlib.util.find_spec("stable_baselines3") is not None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        found["SB3 SubprocVecEnv"] = SameStep(SubprocVecEnv(env_fns))
    return found


def rate(contender: NextStep, actions: Any, seconds: float) -> float:
    steps, begun = 0, time.perf_counter()
    while (wall := time.perf_counter() - begun) < seconds:
        for row in actions:
            steps += contender.step(row)
    return steps / wall


def measure_rates(count: int, rounds: int, seconds: float) -> None:
    """Print the rate of each contender, and how many times as fast our AsyncVectorEnv is."""
    found, actions = contenders(list(EnvSpec("cartpole").env_fns(count))), draw_actions(count)
    rates: dict[str, list[float]] = {name: [] for name in found}
    try:
        for number in range(rounds + 1):
            order = list(found) if number % 2 else list(found)[::-1]
            for name in order:
                rates[name].append(rate(found[name], actions, seconds))
    finally:
        for contender in found.values():
            contender.envs.close()
    ours = next(iter(rates))
    for name, values in rates.items():
        ratios = [mine / other for mine, other in zip(rates[ours][1:], values[1:], strict=True)]  # the first warms up
        spread = f"{median(ratios):5.1f}x ({min(ratios):.1f}-{max(ratios):.1f})" if name != ours else ""
        print(f"{count:3} CartPole envs, {name:25} {median(values[1:]):9,.0f} steps/s  {spread}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender in each round")
    options = parser.parse_args()
    for kind in (DummyVectorEnv, ShmemVectorEnv):
        measure_cost(kind, 64, options.rounds)
    for count in (8, 64):
        measure_rates(count, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
