"""Measure the memory of eight envs that share a large array, in vecenv and its peers.

    python -m benchmarks.memory [--megabytes 200] [--envs 8] [CONTENDER ...]

Each contender runs in a fresh process. Each env reads its whole array in its constructor and in every step. The figures
are the sum of the proportional set size (PSS) of all processes: the largest value during start and steps, and the value
between two steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.procfs import descendants, memory

STEPS = 5
INTERVAL = 0.01
"""Seconds between two measurements."""


class Reader(gymnasium.Env[Any, Any]):
    """Env whose observation depends on all of `data`."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._read()

    def _read(self) -> np.ndarray:
        return self._data.sum(keepdims=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._read(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._read(), 0.0, False, False, {}


EnvFns = Sequence[Callable[[], Any]]


def _vecenv(env_fns: EnvFns, context: str) -> Any:
    from vecenv import ShmemVectorEnv

    return ShmemVectorEnv(env_fns, num_workers=2, context=context)


def _gymnasium(env_fns: EnvFns, context: str) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    return AsyncVectorEnv(env_fns, context=context)


def _sb3(env_fns: EnvFns, context: str) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv(list(env_fns), start_method=context)


def _tianshou(env_fns: EnvFns, context: str) -> Any:
    from tianshou.env import SubprocVectorEnv

    return SubprocVectorEnv(env_fns, context=context)


CONTENDERS: dict[str, tuple[str, Callable[[EnvFns, str], Any], str]] = {
    "vecenv": ("vecenv", _vecenv, "forkserver"),
    "gymnasium": ("gymnasium", _gymnasium, "fork"),
    "gymnasium-forkserver": ("gymnasium", _gymnasium, "forkserver"),
    "sb3": ("stable_baselines3", _sb3, "forkserver"),
    "tianshou": ("tianshou", _tianshou, "fork"),
}
"""By name: the library, a function that makes a vector env, and the start method that is the library's default."""


def play(name: str, megabytes: int, envs: int) -> None:
    """Run a contender. Print a line before the start, and a line when the envs are idle."""
    _, make, context = CONTENDERS[name]
    data = np.ones(megabytes * 2**20 // 8)
    _report("start")
    venv = make([partial(Reader, data) for _ in range(envs)], context)
    venv.reset()
    for _ in range(STEPS):
        venv.step(np.zeros(envs, np.int64))
    _report("idle")
    venv.close()


def _report(text: str) -> None:
    print(text, flush=True)
    sys.stdin.readline()


def measure(name: str, megabytes: int, envs: int) -> tuple[float, float, float]:
    """Return the largest and the last memory of a contender in MB, and the seconds from its start to idle."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--play", name]
    command += ["--megabytes", str(megabytes), "--envs", str(envs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _await(process.stdout, "start")
        sampler = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory", "--sample", str(process.pid)], stdin=-1, stdout=-1, text=True
        )
        assert sampler.stdout is not None
        sampler.stdout.readline()
        begin = time.perf_counter()
        _continue(process)
        _await(process.stdout, "idle")
        seconds = time.perf_counter() - begin
        peak, _ = sampler.communicate("stop\n")
        steady = resident(process.pid)
        _continue(process)
        return max(float(peak), steady), steady, seconds


def _await(stream: Any, text: str) -> None:
    for line in stream:
        if line.strip() == text:
            return
    raise RuntimeError(f"the process ended before it wrote {text!r}")


def _continue(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def sample(pid: int) -> None:
    """Print the largest memory of a process tree until a line arrives."""
    import select

    print("sampling", flush=True)
    peak = 0.0
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        peak = max(peak, resident(pid))
    print(peak)


def resident(pid: int) -> float:
    """Return the MB of a process and its descendants. Shared pages count once."""
    total = 0.0
    for each in (pid, *descendants(pid)):
        try:
            total += memory(each).pss
        except (OSError, KeyError):  # the process has ended
            continue
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {list(CONTENDERS)} (default: all that are installed)")
    parser.add_argument("--megabytes", type=int, default=200, help="size of the array")
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--sample", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.play:
        play(options.play, options.megabytes, options.envs)
    elif options.sample:
        sample(options.sample)
    else:
        for name in options.names or CONTENDERS:
            library, _, context = CONTENDERS[name]
            if importlib.util.find_spec(library) is not None:
                peak, steady, seconds = measure(name, options.megabytes, options.envs)
                print(
                    f"{name:21} {context:11} peak {peak:6,.0f} MB  idle {steady:6,.0f} MB  {seconds:5.1f} s", flush=True
                )


if __name__ == "__main__":
    # Import this module by name, so that workers import the class of the envs instead of getting copies.
    from benchmarks import memory as module

    module.main()
