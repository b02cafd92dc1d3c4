"""Measure workers that a command starts, beside `SubprocVectorEnv`, proxies written by hand, and ssh.

    python -m benchmarks.commands [--rounds 9] [--seconds 0.5] [ROW ...]
    python -m benchmarks.commands ssh --ssh "ssh -c aes128-gcm@openssh.com 127.0.0.1"

The contenders of a row run in turn, `--seconds` each, in all rounds. A time is the median of a step of all envs. A
ratio is the median of the ratios within a round: above 1, the first contender is faster. `CPU` is the processor time of
this process and its children per step; over ssh the worker is not a child.

| row | contenders | target |
|---|---|---|
| cartpole, busy | 64 CartPole, 64 envs that compute 100 us: a command, and Subproc | 0.95 |
| frames | 16 envs with frames (4, 84, 84): a command, and Subproc | 0.9 |
| proxies | 64 CartPole: a command, and a process per env that a hand-written proxy calls by pickle | 5 |
| ssh | 64 CartPole in one worker over ssh. As fast as ssh allows: a local worker, plus bytes through ssh | 0.5 |
"""

from __future__ import annotations

import argparse
import os
import pickle
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from benchmarks.envs import BusyEnv, PixelEnv, calibrate
from benchmarks.procfs import cpu_seconds, descendants
from vecenv import SubprocVectorEnv

COMMAND = [sys.executable, "-m", "vecenv.worker"]
TARGETS = {"cartpole": 0.95, "busy": 0.95, "frames": 0.9, "proxies": 5.0, "ssh": 0.5}
ASKED, ANSWERED = 17 + 64 * (1 + 8 + 8), 17 + 64 * (1 + 16 + 8 + 1 + 1)
"""Bytes of a round of 64 CartPole: opcode, seed and action, and status, observation, reward and flags."""
ECHO = f"""
import os
while data := os.read(0, {ASKED}):
    while len(data) < {ASKED}:
        data += os.read(0, {ASKED} - len(data))
    os.write(1, bytes({ANSWERED}))
"""

Step = Callable[[], object]


@contextmanager
def stepping(env_fns: Sequence[Any], **options: Any) -> Iterator[Step]:
    with SubprocVectorEnv(env_fns, **options) as venv:
        venv.reset(seed=0)
        actions = np.zeros(len(env_fns), np.int64)
        yield lambda: venv.step(actions, autoreset=True)


@contextmanager
def proxies(count: int) -> Iterator[Step]:
    """Run a process per env, which exchanges pickles over pipes."""
    command = [sys.executable, "-m", "benchmarks.commands", "--proxy"]
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(count)]  # type: ignore[call-overload]
        for each in started:
            stack.enter_context(each)
            stack.callback(each.kill)

        def step() -> Any:
            for each in started:
                pickle.dump(0, each.stdin)
                each.stdin.flush()
            obs, reward, terminated, truncated, infos = zip(
                *(pickle.load(each.stdout) for each in started), strict=True
            )
            return np.stack(obs), np.array(reward), np.array(terminated), np.array(truncated), infos

        yield step


def serve_proxy() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    while True:
        try:
            action = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        obs, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            obs, info = env.reset()
        pickle.dump((obs, reward, terminated, truncated, info), sys.stdout.buffer)
        sys.stdout.buffer.flush()


@contextmanager
def bytes_through(words: Sequence[str]) -> Iterator[Step]:
    """Send the bytes of a round to a program behind `words`, and read as many as a worker answers."""
    command = [*words, sys.executable, "-c", shlex.quote(ECHO)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        data = bytes(ASKED)

        def step() -> None:
            os.write(process.stdin.fileno(), data)
            left = ANSWERED
            while left:
                left -= len(os.read(process.stdout.fileno(), left))

        yield step
        process.kill()


def contenders(row: str, ssh: Sequence[str]) -> dict[str, Any]:
    """Return context managers by name. Each yields a function that steps all envs."""
    cartpole = ["CartPole-v1"] * 64
    if row == "proxies":
        return {"command": stepping(cartpole, worker_command=COMMAND), "proxies": proxies(64)}
    if row == "ssh":
        there = [*ssh, "env", f"PYTHONPATH={os.pathsep.join(sys.path)}", *COMMAND]
        return {
            "command over ssh": stepping(cartpole, worker_command=there, num_workers=1),
            "command": stepping(cartpole, worker_command=COMMAND, num_workers=1),
            "bytes through ssh": bytes_through(ssh),
        }
    made: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "cartpole": (gymnasium.make, 64, {"id": "CartPole-v1"}),
        "busy": (BusyEnv, 64, {"iterations": calibrate()}),
        "frames": (PixelEnv, 16, {"iterations": 0}),
    }
    function, count, kwargs = made[row]
    by_name = (f"{function.__module__}:{function.__name__}", kwargs)
    return {
        "command": stepping([by_name] * count, worker_command=COMMAND),
        "Subproc": stepping([partial(function, **kwargs)] * count),
    }


def time_of(step: Step, seconds: float) -> tuple[float, float]:
    """Return the seconds and the processor time of a step."""
    processes = [os.getpid(), *descendants(os.getpid())]
    steps, used, begin = 0, cpu_seconds(processes), time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or not steps:
        step()
        steps += 1
    return spent / steps, (cpu_seconds(processes) - used) / steps


def measure(row: str, rounds: int, seconds: float, ssh: Sequence[str]) -> None:
    with ExitStack() as stack:
        steps = {name: stack.enter_context(each) for name, each in contenders(row, ssh).items()}
        for step in steps.values():
            time_of(step, seconds)
        found = [{name: time_of(step, seconds) for name, step in steps.items()} for _ in range(rounds)]
    for name in steps:
        wall, cpu = (1e6 * median(each[name][k] for each in found) for k in (0, 1))
        print(f"{row:9} {name:18} {wall:8.0f} us  CPU {cpu:8.0f} us", flush=True)
    first, *others = steps
    ratio = median(sum(each[name][0] for name in others) / each[first][0] for each in found)
    print(f"{row:9} {' + '.join(others)} / {first}: {ratio:.2f} (target {TARGETS[row]})", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {list(TARGETS)}; ssh needs --ssh")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--ssh", default="", help="words that run a command on this machine over ssh")
    parser.add_argument("--proxy", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.proxy:
        serve_proxy()
        return
    ssh = shlex.split(options.ssh)
    for row in options.rows or [row for row in TARGETS if ssh or row != "ssh"]:
        if row not in TARGETS or (row == "ssh" and not ssh):
            parser.error(f"unknown row {row}" if row not in TARGETS else "the row ssh needs --ssh")
        measure(row, options.rounds, options.seconds, ssh)


if __name__ == "__main__":
    main()
