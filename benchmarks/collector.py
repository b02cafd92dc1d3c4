"""`python -m benchmarks.collector`: speed of the collectors, of their peers, and of a loop written by hand.

    python -m benchmarks.collector                     # everything: some minutes
    python -m benchmarks.collector --quick             # only a check that each contender runs
    python -m benchmarks.collector --only random       # some tables: random, mlp, overhead, seeded, job or async

All contenders of a table are in this process. A round measures each contender once, for the same time. Each round
starts with a different contender. A ratio compares the steps per second (or per CPU second of this process and its
workers) of two contenders in the same round. The table shows the median, lowest and highest ratio. torch has one
thread. Peers that are not installed are left out.

- random, mlp: 16 CartPole-v1 envs, batches of 64 steps per env. Actions are random, or come from a network with two
  hidden layers of 64 on the CPU. Each library is measured with its fastest vector env. torchrl is measured twice: with
  its own classes, and with gymnasium's vector env, which it wraps.
- overhead: the collector compared with a loop that a user would write. This loop has the same vector env and policy,
  arrays that are allocated once, `step`, and then `reset(ids)`.
- seeded: random actions with and without `episode_seeds`, with 8 and with 64 CartPole envs.
- job: a job with random actions, including its data set, compared with the collector that plays the same envs, with and
  without `episode_seeds`. Pong has 84 x 84 pixels and episodes of 250 steps. A reset with a seed loads the game again,
  which takes as long as 240 steps, so a job of Pong cannot be faster than about half of the plain collector.
- async: 20 envs that take 1 ms per step (sleeping or computing) in two workers. The policy takes 5 ms per call without
  the CPU, like a policy on a GPU. Two groups of envs that take turns are compared with a single group.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.envs import BusyEnv, calibrate
from benchmarks.job_cost import PIXELS
from benchmarks.procfs import cpu_seconds, descendants
from collector import AsyncDataCollector, EpisodeSeeds, Job, SyncDataCollector
from collector.basics.interruptor import Stopping
from collector.jobs.builders import env_fn
from collector.jobs.job_progress import JobProgress
from collector.jobs.plan import Plan
from collector.jobs.player import EpisodeWriter, Player
from vecenv import DummyVectorEnv, ShmemVectorEnv

ENVS, STEPS = 16, 64
FRAMES = ENVS * STEPS
SLOW_ENVS = 20
POLICY_SECONDS = 5e-3
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 64, "backend": "shmem"}
PONG: dict[str, Any] = {name: value for name, value in PIXELS.items() if name != "compress"}
PONG_STEPS = PIXELS["max_episode_steps"] // 4
"""Steps of an episode. The limit counts frames of the game, four per step."""

Batch = Callable[[], int]
"""Function that collects a batch, and returns its number of steps."""


class Contender:
    def __init__(self, name: str, batch: Batch, close: Callable[[], Any]) -> None:
        self.name, self.batch, self.close = name, batch, close


def make_cartpole() -> Any:
    return gym.make("CartPole-v1")


class Net(nn.Module):
    """Network with two hidden layers of 64. It samples from the softmax of the logits in the cheapest way."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        logits = self.net(obs)
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)


# Ours.


def ours(kind: type, policy: nn.Module | None) -> Contender:
    collector = SyncDataCollector(kind([make_cartpole] * ENVS), policy, frames_per_batch=FRAMES)
    name = f"vecenv {kind.__name__.removesuffix('VectorEnv')}"
    return Contender(name, lambda: collector.rollout().frames, collector.shutdown)


def random_steps(kind: type, make: Callable[[], Any], envs: int, frames: int, **options: Any) -> Contender:
    collector = SyncDataCollector(kind([make] * envs), frames_per_batch=frames, **options)
    name = "seeded" if "episode_seeds" in options else "plain"
    return Contender(name, lambda: collector.rollout().frames, collector.shutdown)


def job(frames: int, **settings: Any) -> Contender:
    """Return a contender that plays and stores a job without an end."""
    described, resources = Job(**settings, steps=2**50), ExitStack()
    folder = Path(resources.enter_context(tempfile.TemporaryDirectory())) / "data"
    plan, progress = Plan(described.seed, steps=described.steps), JobProgress()
    writer = EpisodeWriter(described, plan, progress, folder)
    resources.callback(writer.close)
    episodes = Player(described, plan, resources.enter_context(Stopping()), progress, "cpu").play()
    resources.callback(episodes.close)

    def batch() -> int:
        before = progress.frames
        while progress.frames < before + frames:
            writer.add(next(episodes))
        return progress.frames - before

    return Contender("job", batch, resources.close)


def by_hand(policy: nn.Module | None) -> Contender:
    venv = DummyVectorEnv([make_cartpole] * ENVS)
    obs_rows, next_rows = (np.empty((STEPS, ENVS, 4), np.float32) for _ in range(2))
    action_rows, reward_rows = np.empty((STEPS, ENVS), np.int64), np.empty((STEPS, ENVS))
    flag_rows = np.empty((2, STEPS, ENVS), np.bool_)
    state = {"obs": venv.reset()[0]}
    draw = np.random.default_rng(0)

    def choose(obs: np.ndarray) -> np.ndarray:
        if policy is None:
            return draw.integers(0, 2, ENVS)
        with torch.inference_mode():
            return policy(torch.from_numpy(obs)).numpy()

    def batch() -> int:
        obs = state["obs"]
        for t in range(STEPS):
            action = choose(obs)
            following, reward, terminated, truncated, _ = venv.step(action)
            obs_rows[t], action_rows[t], next_rows[t], reward_rows[t] = obs, action, following, reward
            flag_rows[0, t], flag_rows[1, t] = terminated, truncated
            obs, over = following, np.flatnonzero(terminated | truncated)
            if len(over):
                obs[over] = venv.reset(over)[0]
        state["obs"] = obs
        return FRAMES

    return Contender("by hand", batch, venv.close)


# Peers.


def torchrl(kind: str, policy: nn.Module | None) -> Contender:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper, ParallelEnv, SerialEnv

    def make() -> Any:
        return GymWrapper(make_cartpole(), categorical_action_encoding=True)

    if kind == "GymWrapper":
        envs = gym.vector.SyncVectorEnv([make_cartpole] * ENVS, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        env: Any = GymWrapper(envs, categorical_action_encoding=True)
    else:
        env = {"SerialEnv": SerialEnv, "ParallelEnv": ParallelEnv}[kind](ENVS, make)
    acts = None if policy is None else TensorDictModule(policy, in_keys=["observation"], out_keys=["action"])
    collector = Collector(env, acts, frames_per_batch=FRAMES, total_frames=-1)
    batches = iter(collector)
    place = "over gymnasium" if kind == "GymWrapper" else f"own {kind}"
    return Contender(f"torchrl {place}", lambda: next(batches).numel(), collector.shutdown)


def tianshou(policy: nn.Module | None) -> Contender:
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv as TianshouDummy

    class Actor(nn.Module):
        """Network whose logits tianshou's policy samples from. With random actions, tianshou does not call it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = policy.net if policy is not None else nn.Linear(4, 2)

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            return self.net(torch.as_tensor(obs)), state

    space = make_cartpole().action_space
    acting = DiscreteActorPolicy(
        actor=Actor(),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=space,
        deterministic_eval=False,
    )
    collector = Collector(acting, TianshouDummy([make_cartpole] * ENVS), VectorReplayBuffer(20_000, ENVS))
    collector.reset()

    def batch() -> int:
        with torch.no_grad():
            return int(collector.collect(n_step=FRAMES, random=policy is None).n_collected_steps)

    return Contender("tianshou Dummy", batch, collector.close)


# Slow environments.


class Sleeping(BusyEnv):
    def _work(self) -> None:
        time.sleep(1e-3)


def make_slow(kind: str, iterations: int, index: int) -> Any:
    return Sleeping(0, index) if kind == "sleep" else BusyEnv(iterations, index)


def slow_policy(obs: np.ndarray) -> np.ndarray:
    time.sleep(POLICY_SECONDS)
    return np.zeros(len(obs), np.int64)


def slow(kind: str, iterations: int, groups: int) -> Contender:
    fns = [partial(make_slow, kind, iterations, index) for index in range(SLOW_ENVS)]
    venv, frames = ShmemVectorEnv(fns, num_workers=2), 10 * SLOW_ENVS
    if groups == 1:
        sync = SyncDataCollector(venv, slow_policy, frames_per_batch=frames)
        return Contender(f"{kind}, all together", lambda: sync.rollout().frames, sync.shutdown)
    collector = AsyncDataCollector(venv, slow_policy, frames_per_batch=frames, groups=groups)
    return Contender(f"{kind}, {groups} groups", lambda: collector.rollout().frames, collector.shutdown)


# Measuring.


class Rates(NamedTuple):
    wall: float
    """Steps per second."""
    cpu: float
    """Steps per CPU second of this process and its workers."""


class Comparison:
    """Row of a table. Compares the fastest contender with a name `own...` with the fastest `other...`."""

    def __init__(self, own: str, other: str, target: float) -> None:
        self.own, self.other, self.target = own, other, target

    def line(self, rounds: list[dict[str, Rates]]) -> tuple[str, str, str, str, str]:
        own, other = (self._fastest(name, rounds) for name in (self.own, self.other))
        if not own or not other:
            return own or self.own, other or self.other, "not measured", "not measured", f">= {self.target:g}"
        ratios = [_ratio([rates[own][i] / rates[other][i] for rates in rounds]) for i in (0, 1)]
        return _figure(own, rounds), _figure(other, rounds), *ratios, f">= {self.target:g}"

    def _fastest(self, name: str, rounds: list[dict[str, Rates]]) -> str:
        found = [each for each in rounds[0] if each.startswith(name)]
        return max(found, key=lambda each: statistics.median(rates[each].wall for rates in rounds), default="")


def _ratio(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _figure(name: str, rounds: list[dict[str, Rates]]) -> str:
    return f"{name}: {statistics.median(rates[name].wall for rates in rounds):,.0f}"


def measure(makers: list[Callable[[], Contender]], rounds: int, seconds: float) -> list[dict[str, Rates]]:
    """Return the rates of each contender in each round."""
    contenders = []
    for make in makers:
        try:
            contenders.append(make())
        except ImportError as error:
            print(f"left out: {error}", file=sys.stderr)
    for contender in contenders:
        contender.batch()
        contender.batch()
    found: list[dict[str, Rates]] = []
    for number in range(rounds):
        shift = number % len(contenders)
        found.append({each.name: rate(each.batch, seconds) for each in contenders[shift:] + contenders[:shift]})
    for contender in contenders:
        contender.close()
    return found


def rate(batch: Batch, seconds: float) -> Rates:
    pids = [os.getpid(), *descendants(os.getpid())]
    frames, cpu, begin = 0, cpu_seconds(pids), time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        frames += batch()
    return Rates(frames / spent, frames / (cpu_seconds(pids) - cpu))


def tables(iterations: int) -> dict[str, tuple[list[Callable[[], Contender]], list[Comparison]]]:
    kinds = ("SerialEnv", "ParallelEnv", "GymWrapper")
    found: dict[str, tuple[list[Callable[[], Contender]], list[Comparison]]] = {}
    for name, policy, targets in (("random", None, (12.0, 5.0)), ("mlp", Net(), (8.0, 4.0))):
        makers: list[Callable[[], Contender]] = [
            *(partial(ours, kind, policy) for kind in (DummyVectorEnv, ShmemVectorEnv)),
            *(partial(torchrl, kind, policy) for kind in kinds),
            partial(tianshou, policy),
        ]
        found[name] = (
            makers,
            [
                Comparison("vecenv", "torchrl own", targets[0]),
                Comparison("vecenv", "torchrl over gymnasium", targets[0]),
                Comparison("vecenv", "tianshou", targets[1]),
            ],
        )
        loops = [partial(ours, DummyVectorEnv, policy), partial(by_hand, policy)]
        found[f"overhead-{name}"] = loops, [Comparison("vecenv", "by hand", round(1 / 1.1, 3))]
    for name, kind_, target in (("dummy", DummyVectorEnv, 0.85), ("shmem", ShmemVectorEnv, 0.8)):
        for n in (8, 64):
            pair = [
                partial(random_steps, kind_, make_cartpole, n, STEPS * n),
                partial(random_steps, kind_, make_cartpole, n, STEPS * n, episode_seeds=EpisodeSeeds(0)),
            ]
            found[f"seeded-{name}-{n}"] = pair, [Comparison("seeded", "plain", target)]
    for name, settings, steps, targets in (
        ("shmem-64", CARTPOLE, STEPS, (0.8, 0.9)),
        ("pong-8", PONG, PONG_STEPS, (0.45, 0.9)),
    ):
        make, n = env_fn(Job(**settings, steps=1)), settings["num_envs"]
        steps_of = partial(random_steps, ShmemVectorEnv, make, n, steps * n)
        three = [steps_of, partial(steps_of, episode_seeds=EpisodeSeeds(0)), partial(job, steps * n, **settings)]
        beside = zip(("plain", "seeded"), targets, strict=True)
        found[f"job-{name}"] = three, [Comparison("job", other, target) for other, target in beside]
    for kind in ("sleep", "busy"):
        makers = [partial(slow, kind, 10 * iterations, groups) for groups in (1, 2)]
        found[f"async-{kind}"] = makers, [Comparison(f"{kind}, 2 groups", f"{kind}, all together", 1.4)]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collector", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--only", metavar="NAME", help="only tables whose names start with NAME")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rounds, seconds = (1, 0.05) if options.quick else (7, 1.0)
    table = Table("table", "steps/s", "beside", "ratio: median (lowest-highest)", "of CPU time", "target")
    for name, (makers, comparisons) in tables(calibrate()).items():
        if not name.startswith(options.only or ""):
            continue
        found = measure(makers, rounds, seconds)
        for comparison in comparisons:
            table.add_row(name, *comparison.line(found))
    Console(width=170).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
