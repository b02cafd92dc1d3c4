"""`python -m benchmarks.gpu`: a convolutional policy on a GPU, for envs with (4, 84, 84) uint8 frames.

    python -m benchmarks.gpu                          # 8, 32 and 128 envs: some minutes
    python -m benchmarks.gpu --device cpu --fast      # only a check that each part runs

Without CUDA, a message says so, and the exit status is 2. All lanes are in this process. A round measures each lane
once. A ratio compares two lanes of the same round, and the table shows medians. The JSON file has the figures of every
round.

- frames: env steps per second of our collector (on CUDA also with `cudagraph_policy`), of a bare loop (step, policy,
  step, ...), and of torchrl's collector if it is installed.
- path: bytes per second from the vector env's observations to the device, with a wait for each batch. The peer is a
  copy of as much pinned memory. The difference is the copy into pinned memory.
- idle: the share of the wall time in which the device runs no kernel and no copy, measured by PyTorch's profiler in the
  bare loop. The profiler slows the loop down, so the share is smaller without it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.envs import EnvSpec, calibrate
from benchmarks.report import git_revision, machine, versions
from collector import ExplorationType, SyncDataCollector
from collector.device.tensors import Transfer, resolve_device
from collector.policy.make_policy import make_policy
from vecenv import ShmemVectorEnv

NO_CUDA = 2

Lane = Callable[[float], float]
"""Function that runs for some seconds, and returns a rate per second."""


@dataclass
class Figure:
    """Row of the table. `rounds` are the figures of `what`, and `ratios` compare them with `against`."""

    part: str
    envs: int
    what: str
    unit: str
    rounds: list[float]
    against: str = ""
    ratios: list[float] = field(default_factory=list)


class Cnn(nn.Module):
    """Network of the DQN paper: three convolutions and a hidden layer. It samples from the softmax of the logits."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1)]
        self.net = nn.Sequential(
            *convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions)
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return actions `(k,)`. The frames `(k, 4, 84, 84)` are bytes, and become floats on the device."""
        logits = self.net(obs.float() / 255)
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)


class Bench:
    def __init__(self, device: torch.device, seconds: float, rounds: int, steps: int, iterations: int) -> None:
        self.device, self.seconds, self.rounds = device, seconds, rounds
        self.steps = steps  # per env in a batch of a collector
        self.spec = EnvSpec("pixels", iterations)
        self.module = Cnn().to(device)

    def venv(self, envs: int) -> ShmemVectorEnv:
        return ShmemVectorEnv(self.spec.env_fns(envs))

    def measure(self, lanes: dict[str, Lane]) -> dict[str, list[float]]:
        """Return the rates of every lane in each round. Each round starts with a different lane."""
        rates: dict[str, list[float]] = {name: [] for name in lanes}
        for lane in lanes.values():  # buffers, graphs and libraries are made in the first calls
            lane(self.seconds / 10)
        names = list(lanes)
        for number in range(self.rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                rates[name].append(lanes[name](self.seconds))
        return rates

    def timed(self, once: Callable[[], float]) -> Lane:
        """Return a lane that calls `once` repeatedly. `once` returns its amount of work."""

        def lane(seconds: float) -> float:
            done, begin = 0.0, time.perf_counter()
            while not done or time.perf_counter() - begin < seconds:
                done += once()
            return done / (time.perf_counter() - begin)

        return lane


# Frames a second.


def loop(bench: Bench, envs: int, opened: ExitStack) -> Callable[[], float]:
    """Return a function that runs a round of the bare loop. The round also resets envs with ended episodes."""
    venv = opened.enter_context(bench.venv(envs))
    asked, ids = make_policy(bench.module, venv, ExplorationType.RANDOM, bench.device), np.arange(envs)
    infos = np.full(envs, None)
    state = {"obs": venv.reset()[0], "over": np.zeros(envs, np.bool_)}

    def once() -> float:
        action, over = asked.actions(state["obs"], ids, infos)["action"], state["over"]
        state["obs"], _, terminated, truncated, _ = venv.step(action, reset=over if over.any() else None)
        state["over"] = (terminated | truncated) & ~over
        return float(envs - np.count_nonzero(over))

    return once


def collecting(bench: Bench, envs: int, opened: ExitStack, **options: Any) -> Callable[[], float]:
    """Return a function that collects a batch with our collector."""
    options |= {"frames_per_batch": envs * bench.steps, "policy_device": bench.device}
    collector = opened.enter_context(SyncDataCollector(bench.venv(envs), bench.module, **options))
    return lambda: float(collector.rollout().frames)


def torchrl(bench: Bench, envs: int, opened: ExitStack) -> Callable[[], float]:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper, ParallelEnv

    makers = [lambda fn=fn: GymWrapper(fn(), categorical_action_encoding=True) for fn in bench.spec.env_fns(envs)]
    policy = TensorDictModule(bench.module, in_keys=["observation"], out_keys=["action"])
    frames = envs * bench.steps
    env = ParallelEnv(envs, makers)
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=-1, policy_device=bench.device)
    opened.callback(collector.shutdown)
    batches = iter(collector)
    return lambda: float(next(batches).numel())


def frames(bench: Bench, envs: int, say: Callable[[str], None]) -> list[Figure]:
    with ExitStack() as opened:
        lanes = {
            "collector": bench.timed(collecting(bench, envs, opened)),
            "loop": bench.timed(loop(bench, envs, opened)),
        }
        if bench.device.type == "cuda":
            lanes["collector, graphs"] = bench.timed(collecting(bench, envs, opened, cudagraph_policy=True))
        try:
            lanes["torchrl"] = bench.timed(torchrl(bench, envs, opened))
        except Exception as error:  # if torchrl is missing or broken, the other figures are still measured
            say(f"torchrl is left out: {type(error).__name__}: {error}")
        rates = bench.measure(lanes)
    against = "torchrl" if "torchrl" in rates else "collector"
    return [
        _against(Figure("frames", envs, name, "frames/s", rounds), against, rates) for name, rounds in rates.items()
    ]


# The path of the observations.


def path(bench: Bench, envs: int) -> list[Figure]:
    pin = bench.device.type == "cuda"
    with bench.venv(envs) as venv:
        obs, _ = venv.reset()
    plain, staged = torch.from_numpy(obs), Transfer(bench.device, envs)
    plain = plain.pin_memory() if pin else plain.clone()

    def copying() -> float:
        plain.to(bench.device, non_blocking=True, copy=True)
        if pin:
            torch.cuda.current_stream(bench.device).synchronize()
        return float(obs.nbytes)

    def sending() -> float:
        staged.to_device(obs)
        staged.wait_for_copies()
        return float(obs.nbytes)

    rates = bench.measure({"pinned copy": bench.timed(copying), "observations": bench.timed(sending)})
    figures = [Figure("path", envs, name, "bytes/s", rounds) for name, rounds in rates.items()]
    return [_against(each, "pinned copy", rates) for each in figures]


# How idle the device is.


def idle(bench: Bench, envs: int) -> Figure:
    cuda = bench.device.type == "cuda"
    shares = []
    with ExitStack() as opened:
        once = loop(bench, envs, opened)
        bench.timed(once)(bench.seconds / 10)
        for _ in range(bench.rounds):
            with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
                begin = time.perf_counter()
                bench.timed(once)(bench.seconds / 4)
                wall = time.perf_counter() - begin
            events = seen.key_averages()
            busy = sum(each.self_device_time_total if cuda else each.self_cpu_time_total for each in events) / 1e6
            shares.append(max(0.0, 1 - busy / wall))
    return Figure("idle", envs, "loop", "of the time", shares)


# The table and the command line.


def _against(figure: Figure, against: str, rates: dict[str, list[float]]) -> Figure:
    if rates[against] is not figure.rounds:
        figure.against = against
        figure.ratios = [own / other for own, other in zip(figure.rounds, rates[against], strict=True)]
    return figure


def print_figures(console: Console, figures: list[Figure], title: str) -> None:
    table = Table(title=title)
    for column in ("part", "envs", "what", "figure", "against", "ratio"):
        table.add_column(column, justify="right" if column in ("envs", "figure", "ratio") else "left")
    for each in figures:
        value = median(each.rounds)
        text = f"{value:.0%}" if each.part == "idle" else f"{value:,.3g}" if value >= 1e6 else f"{value:,.0f}"
        ratio = f"{median(each.ratios):.2f} ({min(each.ratios):.2f}-{max(each.ratios):.2f})" if each.ratios else ""
        table.add_row(each.part, str(each.envs), each.what, f"{text} {each.unit}", each.against, ratio)
    console.print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", type=int, nargs="+", help="numbers of environments [8 32 128; --fast: 2]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each lane in a round [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fast", action="store_true", help="everything once, as short as can be")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go [benchmarks/results/gpu.json]")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        console.print("There is no CUDA device, so nothing was measured. --device cpu --fast shows whether it runs.")
        return NO_CUDA
    seconds, rounds = (0.02, 1) if options.fast else (options.seconds, options.rounds)
    steps, iterations = (2, 0) if options.fast else (32, calibrate())
    bench = Bench(resolve_device(device), seconds, rounds, steps, iterations)
    figures: list[Figure] = []
    for envs in options.envs or ([2] if options.fast else [8, 32, 128]):
        figures += frames(bench, envs, console.print)
        figures += [*path(bench, envs), idle(bench, envs)]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print_figures(console, figures, f"(4, 84, 84) uint8 frames and a convolutional policy on {name}")
    document = {
        "git": git_revision(),
        "machine": {**machine(), "device": name},
        "versions": versions(),
        "options": {"seconds": seconds, "rounds": rounds, "fast": options.fast},
        "figures": [asdict(each) for each in figures],
    }
    target = options.json or Path(__file__).parent / "results" / "gpu.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"Every round is in {target}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
