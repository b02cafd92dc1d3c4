"""`python -m benchmarks.batched`: how much of a batched simulator's own speed is left through vecenv.

    python -m benchmarks.batched                          # everything: some minutes
    python -m benchmarks.batched --quick                  # only a check that each row runs
    python -m benchmarks.batched --only torch-columns     # some rows; --list prints their names

A simulator steps `--envs` envs in one call, and returns columns: arrays or tensors with a row per env. Each env has 48
numbers. `batched_simulators.py` has simulators of numpy, torch and JAX. The real ones are gymnasium's native CartPole
and ManiSkill's Empty-v1, which is a single env on a CPU. Simulators that are not installed are left out.

Both contenders of a row are in this process, and have a simulator each. A round measures each contender for the same
time, in turn. The figures are rounds per CPU second of this process, so that other programs do not count. A ratio
compares vecenv with the simulator alone, in the same round. The table has the median, the lowest and the highest ratio.
torch and numpy have one thread.

- from_gymnasium, SB3VecEnv: `step` with actions that were drawn before. Envs reset in the step that ends the episode.
- collector: batches of 32 steps by a network with two hidden layers of 64, compared with a loop that writes into
  tensors.
- recorder: the same collector with `RecordEpisodes`, compared with the collector alone. Shards are removed between
  rounds.
- memory: additional memory, and the CPU time, of a step in which all of 2,048 envs end. Each line is a new process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy reads it when it is imported

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from benchmarks.batched_simulators import make_simulator
from vecenv import from_gymnasium

STEPS = 32
LENGTH = 100
"""Steps of an episode in the rows with ends."""
SEED = 0
MEMORY_ENVS = 2048

Step = Callable[[], Any]
"""Function that steps all envs once, or collects a batch."""


class Row(NamedTuple):
    library: str
    through: str
    """"from_gymnasium", "SB3VecEnv", "collector" or "recorder"."""
    target: float
    length: int = 0
    """Steps of an episode, or 0 if no episode ends."""
    columns: int = 0
    """Number of columns in the infos."""
    size: int = 48
    """Numbers per env."""
    apart: bool = False
    """True if a few envs end in each step, instead of all in one step."""


ROWS = {
    "cartpole": Row("cartpole", "from_gymnasium", 0.75),
    "maniskill": Row("maniskill", "from_gymnasium", 0.0),
    "torch": Row("torch", "from_gymnasium", 0.85),
    "torch-sb3": Row("torch", "SB3VecEnv", 0.80),
    "torch-ends": Row("torch", "from_gymnasium", 0.75, LENGTH),
    "torch-ends-sb3": Row("torch", "SB3VecEnv", 0.40, LENGTH),
    "numpy-columns": Row("numpy", "from_gymnasium", 0.7, columns=4),
    "torch-columns": Row("torch", "from_gymnasium", 0.7, columns=4),
    "jax-columns": Row("jax", "from_gymnasium", 0.5, columns=4),
    "torch-columns-sb3": Row("torch", "SB3VecEnv", 0.3, columns=4),
    "torch-collector": Row("torch", "collector", 0.9),
    "recorder-16": Row("numpy", "recorder", 0.8, LENGTH, size=16),
    "recorder-16-apart": Row("numpy", "recorder", 0.8, LENGTH, size=16, apart=True),
    "recorder-48": Row("numpy", "recorder", 0.8, LENGTH),
    "recorder-48-apart": Row("numpy", "recorder", 0.8, LENGTH, apart=True),
    "torch-recorder": Row("torch", "recorder", 0.8, LENGTH, apart=True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*ROWS, "memory"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="CPU seconds of each contender in a round")
    parser.add_argument("--quick", action="store_true", help="only a check that each row runs")
    parser.add_argument("--ending-step", metavar="CONTENDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ending_step:
        print(*ending_step(options.ending_step, options.envs))
        return 0
    if options.quick:
        options.envs, options.rounds, options.seconds = 8, 1, 0.01
    with suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    print(f"{'row':20} {'alone':>9} {'vecenv':>9}  vecenv / alone ({options.rounds} rounds)   to reach", flush=True)
    for name in options.only:
        if name == "memory":
            print_memory(options.envs if options.quick else MEMORY_ENVS)
        else:
            print_row(name, options.envs, options.rounds, options.seconds)
    return 0


def print_row(name: str, envs: int, rounds: int, seconds: float) -> None:
    row = ROWS[name]
    with ExitStack() as opened:
        try:
            contending = contenders(row, envs, opened)
        except ImportError as error:
            print(f"{name:20} left out: {error}", flush=True)
            return
        rates = measure(contending, rounds, seconds)
    ratios = [mine / theirs for theirs, mine in rates]
    speeds = [f"{median(column):7,.1f}/s" for column in zip(*rates, strict=True)]
    spread = f"{median(ratios):.4f} ({min(ratios):.4f}-{max(ratios):.4f})"
    print(f"{name:20} {speeds[0]:>9} {speeds[1]:>9}  {spread:26} {row.target:g}", flush=True)


def measure(steps: Sequence[Step], rounds: int, seconds: float) -> list[tuple[float, ...]]:
    """Return the rates of the contenders in each round. Every second round has the opposite order."""
    for step in steps:
        step()
        step()
    found = []
    for number in range(rounds):
        for step in steps:
            if isinstance(step, Recording):
                step.remove_shards()
        order = [0, 1] if number % 2 else [1, 0]
        rates = {place: rate(steps[place], seconds) for place in order}
        found.append((rates[0], rates[1]))
    return found


def rate(step: Step, seconds: float) -> float:
    count, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not count:
        step()
        count += 1
    return count / spent


# Contenders.


def contenders(row: Row, envs: int, opened: ExitStack) -> tuple[Step, Step]:
    """Return the simulator alone (or a loop by hand), and the same through vecenv.

    For the recorder, return the collector alone, and the same with `RecordEpisodes`.
    """
    if row.through == "recorder":
        return collecting(row, envs), Recording(row, envs, opened)
    if row.through == "collector":
        return loop_by_hand(row, envs), collecting(row, envs)
    through = {"from_gymnasium": through_from_gymnasium, "SB3VecEnv": through_sb3}[row.through]
    return alone(simulator(row, envs)), through(simulator(row, envs))


def simulator(row: Row, envs: int) -> gym.vector.VectorEnv:
    if row.library == "cartpole":
        return gym.make_vec("CartPole-v1", envs, vectorization_mode="vector_entry_point")
    if row.library == "maniskill":
        import mani_skill.envs  # noqa: F401, which registers the env
        from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

        one = gym.make("Empty-v1", num_envs=1, sim_backend="physx_cpu", render_backend="none")
        return ManiSkillVectorEnv(one)
    return make_simulator(row.library, envs, row.length, row.columns, row.size, row.apart)


def drawn_actions(envs: gym.vector.VectorEnv) -> list[Any]:
    space = batch_space(envs.single_action_space, envs.num_envs)  # ManiSkill's `action_space` of one env has no batch
    space.seed(SEED)
    return [space.sample() for _ in range(16)]


class Cycle:
    """Function that returns the elements of a list in turn."""

    def __init__(self, elements: list[Any]) -> None:
        self.elements, self.place = elements, 0

    def __call__(self) -> Any:
        self.place = (self.place + 1) % len(self.elements)
        return self.elements[self.place]


def alone(envs: gym.vector.VectorEnv) -> Step:
    """Step the simulator with actions of its own library."""
    action = Cycle([getattr(envs, "as_own", lambda array: array)(each) for each in drawn_actions(envs)])
    envs.reset(seed=SEED)
    return lambda: envs.step(action())


def through_from_gymnasium(envs: gym.vector.VectorEnv) -> Step:
    action, venv = Cycle(drawn_actions(envs)), from_gymnasium(envs)
    venv.reset(seed=SEED)
    if venv.resets_alone:
        return lambda: venv.step(action(), autoreset=True)
    over = np.zeros(len(venv), np.bool_)

    def step() -> None:
        nonlocal over
        _, _, terminated, truncated, _ = venv.step(action(), reset=over)
        over = terminated | truncated

    return step


def through_sb3(envs: gym.vector.VectorEnv) -> Step:
    from vecenv import SB3VecEnv

    action, env = Cycle(drawn_actions(envs)), SB3VecEnv(envs)
    env.seed(SEED)
    env.reset()
    return lambda: env.step(action())


def network(envs: gym.vector.VectorEnv) -> Any:
    from torch import nn

    inputs, outputs = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
    hidden = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs), nn.Tanh())


def loop_by_hand(row: Row, envs: int) -> Step:
    """Collect a batch in tensors that are allocated once."""
    import torch

    sim = simulator(row, envs)
    policy, n = network(sim), sim.num_envs
    obs_rows, next_rows = (torch.empty(STEPS, n, *sim.single_observation_space.shape) for _ in range(2))
    action_rows = torch.empty(STEPS, n, *sim.single_action_space.shape)
    reward_rows, flag_rows = torch.empty(STEPS, n), torch.empty(2, STEPS, n, dtype=torch.bool)
    state = {"obs": sim.reset(seed=SEED)[0]}

    def batch() -> None:
        obs = state["obs"]
        for t in range(STEPS):
            obs_rows[t] = obs
            with torch.inference_mode():
                action = policy(obs)
            obs, reward, terminated, truncated, _ = sim.step(action)
            action_rows[t], next_rows[t], reward_rows[t] = action, obs, reward
            flag_rows[0, t], flag_rows[1, t] = terminated, truncated
        state["obs"] = obs

    return batch


def collecting(row: Row, envs: int, wrap: Callable[[Any], Any] = lambda venv: venv) -> Step:
    from collector import SyncDataCollector

    sim = simulator(row, envs)
    tensors = row.through == "recorder" and row.library != "numpy"
    venv = from_gymnasium(sim, tensors=tensors)
    return SyncDataCollector(wrap(venv), network(sim), frames_per_batch=STEPS * envs).rollout


class Recording:
    """Collector whose episodes are recorded."""

    def __init__(self, row: Row, envs: int, opened: ExitStack) -> None:
        from collector import RecordEpisodes

        self.folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="vecenv-"))
        self.step = collecting(row, envs, lambda venv: opened.enter_context(RecordEpisodes(venv, self.folder)))

    def __call__(self) -> Any:
        return self.step()

    def remove_shards(self) -> None:
        """Remove what was written, so that the system reuses pages of its cache, as on a machine without free pages."""
        for shard in Path(self.folder, "shards").glob("*"):
            shutil.rmtree(shard)


# Memory.


def print_memory(envs: int) -> None:
    for contender in ("alone", "from_gymnasium", "SB3VecEnv"):
        command = [sys.executable, "-m", "benchmarks.batched", "--ending-step", contender, "--envs", str(envs)]
        found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        print(f"{'memory ' + contender:24} {float(found[0]):+8.1f} MB {1000 * float(found[1]):10.1f} ms", flush=True)


def ending_step(contender: str, envs: int) -> tuple[float, float]:
    """Return the additional memory in MB, and the seconds, of a step in which all envs end."""
    simulator = make_simulator("torch", envs, 3, 4)
    step = {"alone": alone, "from_gymnasium": through_from_gymnasium, "SB3VecEnv": through_sb3}[contender](simulator)
    for _ in range(2):
        step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begin = _kilobytes("VmRSS"), time.process_time()
    results = step()
    spent = time.process_time() - begin
    del results
    return (_kilobytes("VmHWM") - before) / 1024, spent


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    raise SystemExit(main())
