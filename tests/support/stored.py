"""Small data sets for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from collector import Episode, StoreWriter, make_head
from tests.support.compare import same_columns
from vecenv import nest

OBS = spaces.Box(-9, 9, (3,))
ACTION = spaces.Discrete(5)
LENGTHS = (5, 1, 3, 8, 2, 4)


def episode(number: int, /, length: int | None = None, **changes: Any) -> Episode:
    """Return an episode that observes its number and the step. Odd numbers terminate, even numbers are truncated."""
    length = LENGTHS[number % len(LENGTHS)] if length is None else length
    steps = np.arange(length + 1)
    last = np.arange(length) == length - 1
    columns = {
        "obs": np.stack([np.full(length + 1, number), steps, steps * 0.5], 1).astype(np.float32),
        "action": (steps[:-1] + number) % 5,
        "reward": steps[:-1] * 0.25 + number,
        "terminated": last if number % 2 else np.zeros(length, np.bool_),
        "truncated": np.zeros(length, np.bool_) if number % 2 else last,
    }
    return Episode(**{**columns, "env_id": number % 3, "number": number, "seed": 1000 + number, **changes})


def tree_episode(number: int, /, **changes: Any) -> Episode:
    """Return an episode with Dict and Tuple observations and actions, a picture among them."""
    plain = episode(number)
    pixels = np.random.default_rng(number).integers(0, 256, (len(plain) + 1, 36, 40, 3), np.uint8)
    obs = {"pixels": pixels, "pose": (plain.obs, np.arange(len(plain) + 1, dtype=np.int64))}
    action = {"move": plain.obs[:-1, :2].copy(), "press": plain.action}
    return episode(number, **{"obs": obs, "action": action, **changes})


def text_episode(number: int, /, **changes: Any) -> Episode:
    """Return an episode with texts of one to four bytes per character, empty ones and null characters among them."""
    plain = episode(number)
    words = ["", "go", "\0", "tür", "\N{EURO SIGN}", "\N{GRINNING FACE}" * 3, "x" * 300, "a\0"]
    said = nest.object_array([words[(number + step) % 8] for step in range(len(plain) + 1)])
    return episode(number, **{"obs": {"say": said, "x": plain.obs}, "action": said[1:], **changes})


def info_episode(number: int, /, **changes: Any) -> Episode:
    """Return an episode with infos and a vector of rewards."""
    plain = episode(number)
    steps = np.arange(len(plain))
    info = {"count": steps, "legal": np.stack([steps, steps + 1], 1).astype(np.int8), "stats.total": steps / 2}
    info |= {"said": nest.object_array([f"tür {step}" for step in steps]), "success": steps % 2 == 0}
    return episode(number, **{"reward": np.stack([plain.reward, -plain.reward / 2], 1), "info": info, **changes})


TREE_OBS = spaces.Dict(
    {
        "pixels": spaces.Box(0, 255, (36, 40, 3), np.uint8),
        "pose": spaces.Tuple([spaces.Box(-99, 99, (3,)), spaces.Discrete(99)]),
    }
)
TREE_ACTION = spaces.Dict({"move": spaces.Box(-99, 99, (2,)), "press": ACTION})
SAYING = spaces.Text(300, min_length=0, charset="gotürxa\0\N{EURO SIGN}\N{GRINNING FACE}")
SPACES = {
    episode: (OBS, ACTION),
    tree_episode: (TREE_OBS, TREE_ACTION),
    text_episode: (spaces.Dict({"say": SAYING, "x": OBS}), SAYING),
    info_episode: (OBS, ACTION),
}


def head(**more: Any) -> dict[str, Any]:
    return make_head(OBS, ACTION, job={"env": "Numbers-v0", "seed": 0}, **more)


def write(
    folder: Path, shards: Iterable[Iterable[int]] = ((0, 2), (3, 1), (5, 4)), make: Any = episode, **options: Any
) -> Path:
    """Write a complete data set with these episode numbers in its shards."""
    spaces_of = SPACES.get(make, (OBS, ACTION))
    with StoreWriter(folder, make_head(*spaces_of, job={"env": "Numbers-v0", "seed": 0}), **options) as writer:
        for numbers in shards:
            writer.add([make(number) for number in numbers])
            writer.commit()
        writer.end()
    return folder


def write_one(folder: Path, spaces_of: Any = (None, None), job: Any = None, **columns: Any) -> Path:
    """Write a complete data set of episode 0 with these columns."""
    with StoreWriter(folder, make_head(*spaces_of, job)) as writer:
        writer.add(episode(0, **columns))
        writer.end()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files, without the lock."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "writer.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def assert_same(ours: Episode, theirs: Episode) -> None:
    """Check that two episodes are equal, bit for bit."""
    same_columns(ours, theirs, *(column.name for column in fields(Episode)))
