"""Rows of the benchmark: loops, envs, vector envs, and targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.loops.loop_lane import LoopSpec
from benchmarks.rows import Experiment

AUTO, SHMEM, DUMMY = "vecenv auto", "vecenv Shmem", "vecenv Dummy"
FIXED = (SHMEM, DUMMY)
OURS = (AUTO, *FIXED)
SYNC, ASYNC = "gymnasium Sync", "gymnasium Async"
SB3_DUMMY, SB3_SUBPROC = "SB3 Dummy", "SB3 Subproc"
ONE_THREAD, ALONE = "vecenv Shmem, one torch thread", "learning without a collector"
ENGINE, NO_INFOS = "vecenv ShmemVectorEnv", "vecenv ShmemVectorEnv, no infos"

SIZES = {
    # loop: default sizes, all sizes
    "sb3-ppo": (("busy-32", "cartpole-8", "cartpole-32"), (8, 32, 64)),
    "cleanrl-ppo": (("cartpole-8", "cartpole-32"), (8, 32, 64)),
    "collector": (("cartpole-16", "cartpole-64", "busy-16", "busy-64"), (8, 16, 32, 64)),
    "pauses": (("cartpole-8", "cartpole-64"), (8, 32, 64)),
    "numpy-policy": (("cartpole-64",), (8, 32, 64)),
    "half-cheetah": (("8", "64"), (8, 32, 64)),
}
KINDS = ("cartpole", "busy")
DEFAULT = [f"{loop}-{size}" for loop, (sizes, _) in SIZES.items() for size in sizes]
ALL = [
    f"{loop}-{size}"
    for loop, (_, counts) in SIZES.items()
    for size in ([str(n) for n in counts] if loop == "half-cheetah" else [f"{k}-{n}" for k in KINDS for n in counts])
]


@dataclass(frozen=True)
class Target:
    """Target for the ratio of two lanes in the row `row`."""

    title: str
    row: str
    lane: str
    over: tuple[str, ...]
    """Lanes to compare with. If there are several, the lane with the best median counts."""
    limit: float
    of: str = "rollout_rate"
    """Property of the samples to compare."""
    at_most: bool = False
    counts: float | None = None
    """Limit at which the target counts as reached. Default: `limit`."""

    def reached(self, ratio: float) -> bool:
        wanted = self.limit if self.counts is None else self.counts
        return ratio <= wanted if self.at_most else ratio >= wanted

    def __str__(self) -> str:
        text = f"{'<=' if self.at_most else '>='} {self.limit:g}"
        return text if self.counts is None else f"{text} ({self.counts:g} counts)"


def experiment(row: str, iterations: int) -> Experiment:
    """Return the lanes of a row. `busy` envs run `iterations` per step."""
    loop = next(name for name in SIZES if row.startswith(name + "-"))
    *kind, count = row.removeprefix(loop + "-").split("-")
    envs: dict[str, Any] = {"num_envs": int(count)}
    if kind == ["cartpole"]:
        envs |= {"env_id": "CartPole-v1"}
    elif kind == ["busy"]:
        envs |= {"env_id": "benchmarks.envs:Busy-v0", "iterations": iterations}
    lanes, yardstick = _LANES[loop](envs)
    return Experiment(row, lanes, [], yardstick)


def _sb3_ppo(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    names = (*OURS, SB3_DUMMY, SB3_SUBPROC)
    return _each(names, "sb3_ppo:ppo", envs, "stable_baselines3"), SB3_DUMMY


def _cleanrl_ppo(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    return _each((*OURS, SYNC, ASYNC), "cleanrl_ppo:ppo", envs, "torch"), SYNC


def _numpy_policy(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    return _each((*OURS, SYNC, ASYNC), "numpy_policy:evaluate", envs), SYNC


def _each(names: tuple[str, ...], loop: str, envs: dict[str, Any], *needs: str) -> list[LoopSpec]:
    return [LoopSpec(name, loop, {"vector_env": name, **envs}, needs) for name in names]


def _collector(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    ours = [
        (AUTO, {"vector_env": "auto"}),
        (SHMEM, {"vector_env": "ShmemVectorEnv"}),
        (DUMMY, {"vector_env": "DummyVectorEnv"}),
        ("vecenv Shmem, AsyncDataCollector", {"vector_env": "ShmemVectorEnv", "kind": "AsyncDataCollector"}),
        (ONE_THREAD, {"vector_env": "ShmemVectorEnv", "threads": 1}),
    ]
    peers = [
        ("tianshou Dummy", "tianshou", "DummyVectorEnv"),
        ("tianshou Shmem", "tianshou", "ShmemVectorEnv"),
        ("TorchRL ParallelEnv", "torchrl", "ParallelEnv"),
    ]
    lanes = [LoopSpec(name, "vecenv_collector:collect", {**chosen, **envs}, ("torch",)) for name, chosen in ours]
    lanes += [
        LoopSpec(name, f"{library}_collector:collect", {"vector_env": kind, **envs}, (library,))
        for name, library, kind in peers
    ]
    alone = LoopSpec(ALONE, "vecenv_collector:learn_alone", {"num_envs": envs["num_envs"]}, ("torch",))
    return [*lanes, alone], DUMMY


def _pauses(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    asked = [(SHMEM, 0.0), (SHMEM, 0.2), (SHMEM, 1.0), (AUTO, 1.0), (DUMMY, 1.0), (SYNC, 1.0), (ASYNC, 1.0)]
    return [
        LoopSpec(after(name, ms), "pauses:step_after_pauses", {"vector_env": name, "pause": ms / 1e3, **envs})
        for name, ms in asked
    ], after(SYNC, 1.0)


def after(name: str, milliseconds: float) -> str:
    """Return the title of the lane with this pause before each round."""
    return f"{name}, after {milliseconds:g} ms"


def _half_cheetah(envs: dict[str, Any]) -> tuple[list[LoopSpec], str]:
    lanes = _each((*OURS, SYNC, ASYNC), "half_cheetah:step_gymnasium", envs, "mujoco")
    for name, infos in ((ENGINE, True), (NO_INFOS, False)):
        arguments = {"vector_env": "ShmemVectorEnv", "infos": infos, **envs}
        lanes.append(LoopSpec(name, "half_cheetah:step_vecenv", arguments, ("mujoco",)))
    return lanes, SYNC


_LANES = {
    "sb3-ppo": _sb3_ppo,
    "cleanrl-ppo": _cleanrl_ppo,
    "collector": _collector,
    "pauses": _pauses,
    "numpy-policy": _numpy_policy,
    "half-cheetah": _half_cheetah,
}


def targets() -> Iterator[Target]:
    """Return the targets for a machine with two CPUs."""
    for row in ("collector-cartpole-16", "collector-cartpole-64", "collector-busy-16", "collector-busy-64"):
        yield Target("rollouts, against one torch thread throughout", row, SHMEM, (ONE_THREAD,), 0.95)
        yield Target("learning, against no collector", row, SHMEM, (ALONE,), 0.98, "learning_rate")
    yield Target("Shmem against Dummy", "collector-busy-64", SHMEM, (DUMMY,), 1.7)
    yield Target("Shmem against SB3 DummyVecEnv", "sb3-ppo-busy-32", SHMEM, (SB3_DUMMY,), 1.4)
    yield Target("Shmem against SB3 SubprocVecEnv", "sb3-ppo-busy-32", SHMEM, (SB3_SUBPROC,), 1.8)
    yield Target("AsyncVectorEnv against gymnasium's", "cleanrl-ppo-cartpole-32", SHMEM, (ASYNC,), 2.3)
    for loop, other in (("cleanrl-ppo", SYNC), ("sb3-ppo", SB3_DUMMY)):
        for row in (f"{loop}-cartpole-8", f"{loop}-cartpole-32"):
            yield Target(f"auto against {other}", row, AUTO, (other,), 1.0, counts=0.97)
    for row in DEFAULT:
        if row.startswith(("collector", "sb3", "cleanrl", "numpy")):
            yield Target("auto against the best fixed choice", row, AUTO, FIXED, 0.9)
    for row, limit in (("pauses-cartpole-64", 1.25), ("pauses-cartpole-8", 1.8)):
        for ms in (0.2, 1.0):
            title = f"a round after {ms:g} ms, against no pause"
            yield Target(title, row, after(SHMEM, ms), (after(SHMEM, 0.0),), limit, "p50", at_most=True)
    for row, limit in (("half-cheetah-64", 1.6), ("half-cheetah-8", 1.3)):
        yield Target("Shmem with infos, against without", row, ENGINE, (NO_INFOS,), 0.8)
        yield Target("AsyncVectorEnv against gymnasium's Sync", row, SHMEM, (SYNC,), limit)
