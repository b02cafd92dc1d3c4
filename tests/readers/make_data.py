"""Make the data sets and exports that the tests in this folder read: python -m tests.readers.make_data FOLDER."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from collector import DatasetError, Episode, Job, StoreWriter, export, make_head, run_job
from collector.store.export import SUFFIXES, TARGETS
from vecenv import nest


def frames(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


PARTS = {
    "half": spaces.Box(-1, 1, (3,), np.float16),
    "image": frames(8, 9, 3),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "pressed": spaces.MultiBinary(4),
    "wide": spaces.Box(-1, 1, (2,), np.float64),
}
BOX, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)
AGENTS = {"red_0": BOX, "blue_0": BOX}
SPACES = {
    "dict": (spaces.Dict(PARTS), spaces.Box(-1, 1, (2,))),
    "stack_last": (frames(84, 84, 4), ACTIONS),
    "stack_first": (frames(4, 84, 84), ACTIONS),
    "rgb": (frames(84, 84, 3), ACTIONS),
    "rewards": (spaces.Box(-1, 1, (3,), np.float64), spaces.MultiDiscrete([3, 2])),
    "start": (spaces.Discrete(5, start=-2), spaces.Discrete(4, start=-2)),
    "tuple": (spaces.Tuple([spaces.Box(-1, 1, (3,)), spaces.Discrete(4)]), spaces.Box(-1, 1, (2,))),
    "agents": (spaces.Dict(AGENTS), spaces.Dict(dict.fromkeys(AGENTS, ACTIONS))),
    "texts": (spaces.Dict({"mission": spaces.Text(12), "view": BOX}), ACTIONS),
}
REFUSED = {
    "lerobot": {"stack_last", "stack_first", "texts"},
    "d3rlpy": {"rewards", "start", "agents", "texts"},
    "robomimic": {"rewards", "agents", "texts"},
    "ogbench": {"dict", "rewards", "tuple", "agents", "texts"},
}
"""Data sets that a format cannot hold."""


def sampled(space: Any, count: int) -> Any:
    rows = [space.sample() for _ in range(count)]
    found = nest.stack(rows)
    for leaf in nest.leaves(found):
        if leaf.dtype == np.uint8 and leaf.ndim > 2:
            leaf[:, -1] = 0  # readers have shortened pictures that end in black
    return found


def episode(name: str, number: int) -> Episode:
    length, ends = 4 + number, np.arange(4 + number) == 3 + number
    none = np.zeros_like(ends)
    reward = np.random.default_rng(number).normal(size=(length, 2) if name == "rewards" else length)
    flags = {"terminated": none if number == 1 else ends, "truncated": none if number == 0 else ends}
    obs, action = (sampled(space, count) for space, count in zip(SPACES[name], (length + 1, length), strict=True))
    info: dict[str, Any] = {}
    if name in ("texts", "rgb"):
        info = {"is_success": ends, "distance": reward.astype(np.float32), "mask": np.tile(ends, (3, 1)).T}
    if name == "texts":
        info["reason"] = np.array(["", "time is up \N{SNOWMAN}"], object)[ends.astype(int)]
    return Episode(
        obs=obs, action=action, reward=reward, **flags, env_id=0, number=number, seed=100 + number, info=info
    )


def main(folder: Path) -> None:
    """Number 0 of each data set is terminated, number 1 truncated, and number 2 both."""
    shutil.rmtree(folder, ignore_errors=True)
    job = Job(env="CartPole-v1", episodes=40, max_episode_steps=25, num_envs=4, backend="dummy")
    run_job(job, folder / "cartpole")
    for name, (observations, actions) in SPACES.items():
        for space in (observations, actions):
            space.seed(1)
        with StoreWriter(folder / name, make_head(observations, actions)) as writer:
            writer.add([episode(name, number) for number in range(3)])
            writer.end()
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    for name in ("cartpole", *SPACES):
        for to in TARGETS:
            out = folder / (f"minari/vecenv/{name}-v0" if to == "minari" else f"{name}-{to}{SUFFIXES.get(to, '')}")
            try:
                export(folder / name, to, out)
            except DatasetError as error:
                if name not in REFUSED.get(to, ()):
                    raise
                print(error)
            else:
                assert name not in REFUSED.get(to, ()), (name, to)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
