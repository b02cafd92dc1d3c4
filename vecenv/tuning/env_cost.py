"""What a step of an env costs, measured in a worker: neither a crash nor a hang of the env reaches the program."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import gymnasium

from vecenv.backends.worker.worker_setup import pickle_env_fn
from vecenv.venvs import ShmemVectorEnv

LEAST_STEPS = 40
PARTS = 10


class EnvCost(NamedTuple):
    """Seconds of a step of one env, its share of resets included, with random actions."""

    wall: float
    cpu: float
    """Seconds in which the env computes: less than `wall` where it waits (for a socket, a sleep)."""
    slow_steps: int
    """How many steps it takes until they are as fast as they stay: the first ones may compile or fill caches."""

    @property
    def waits(self) -> bool:
        """Whether the env waits more than it computes."""
        return self.cpu < 0.5 * self.wall


def measure_cost(env_fn: Callable[[], Any], seconds: float, make_timeout: float, timeout: float) -> EnvCost | str:
    """Make one env in a worker process, step it with random actions for about `seconds`, and close it there.

    Returns the cost, or the reason why the env could be made but not measured. Raises what the constructor raises,
    TypeError for an env_fn that cannot be sent to a worker, WorkerDiedError, and WorkerTimeoutError where it takes
    longer than `make_timeout` seconds to make the env, imports included, or than `timeout` to step and close it.

    >>> cost = measure_cost(lambda: gymnasium.make("CartPole-v1"), seconds=0.05, make_timeout=30, timeout=30)
    >>> 0 < cost.wall < 1, cost.waits
    (True, False)
    """
    make = partial(Measured, pickle_env_fn(0, env_fn), seconds)
    with ShmemVectorEnv([make], start_timeout=make_timeout, step_timeout=timeout) as venv:
        result: EnvCost | str = venv.call("measure")[0]
    return result


class Measured(gymnasium.Env[Any, Any]):
    """An env that does nothing but report what the env of `env_fn` costs."""

    def __init__(self, env_fn: Callable[[], Any], seconds: float) -> None:
        self._env, self._seconds = env_fn(), seconds

    def measure(self) -> EnvCost | str:
        """The cost of a step, or why it could not be measured; closes the env."""
        try:
            return time_steps(self._env, self._seconds)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                self._env.close()


def time_steps(env: Any, seconds: float) -> EnvCost:
    """Step `env` for `seconds`, and until 40 steps are taken but at most for `4 * seconds`."""
    space = env.action_space
    space.seed(0)
    actions = [space.sample() for _ in range(64)]  # drawn before, because that may take longer than a step
    clock = time.perf_counter
    env.reset()
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = now = clock()
    steps: list[float] = []
    ends = [begin]
    while now - begin < (seconds if len(steps) >= LEAST_STEPS else 4 * seconds):
        start = clock()
        _, _, terminated, truncated, _ = env.step(actions[len(steps) % len(actions)])
        steps.append(clock() - start)
        if terminated or truncated:
            env.reset()
        now = clock()
        ends.append(now)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return EnvCost(*_costs(ends, before, after), _slow_steps(steps))


def _costs(ends: list[float], before: resource.struct_rusage, after: resource.struct_rusage) -> tuple[float, float]:
    """(wall, cpu) of a step that ends at such times."""
    count = len(ends) - 1
    bounds = sorted({round(k * count / PARTS) for k in range(PARTS + 1)})
    # A median of means: resets and steps that are slow now and then count, a preemption and the first steps do not.
    parts = [(ends[b] - ends[a]) / (b - a) for a, b in pairwise(bounds)]
    wall = median(parts)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (ends[-1] - ends[0]) * wall
    # An env that is only preempted has used less CPU too, but never gave it up.
    waits = after.ru_nvcsw - before.ru_nvcsw >= count / 2
    return wall, min(cpu, wall) if waits else wall


def _slow_steps(steps: list[float]) -> int:
    """How many steps come before five in a row that are, in their median, nearly as fast as the last half."""
    usual = median(steps[len(steps) // 2 :])
    return next((i for i in range(len(steps)) if median(steps[i : i + 5]) <= 2 * usual), 0)
