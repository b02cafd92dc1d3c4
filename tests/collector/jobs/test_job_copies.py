"""A job copies an observation three times: into the rollout buffer, out of the buffer, and into the file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import collector
import vecenv
from collector import Dataset, Job, run_job
from collector.batch.rollout_buffer import RolloutBuffer
from tests.support.job_envs import HERE, stop_at
from vecenv import nest

CODE = tuple(str(Path(package.__file__).parent) for package in (collector, vecenv))
ENVS = 4  # a network gets a multiple of four rows


class Memory:
    """Record of all memory blocks outside the arena that held observations of one shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype, self._nbytes = shape, np.dtype(dtype), int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._blocks: dict[int, Any] = {}

    @contextmanager
    def watched(self) -> Iterator[Memory]:
        """Inspect the arguments, locals and results of all functions of the project. Blocks are kept, so that none is
        reused.
        """

        def look(frame: FrameType, event: str, arg: Any) -> None:
            if event in ("call", "return") and frame.f_code.co_filename.startswith(CODE):
                for value in (*frame.f_locals.values(), arg):
                    self._look_at(value)

        sys.setprofile(look)
        try:
            yield self
        finally:
            sys.setprofile(None)

    def _look_at(self, value: Any) -> None:
        for leaf in nest.leaves(tuple(value)) if isinstance(value, list) else nest.leaves(value):
            if isinstance(leaf, bytes):
                if len(leaf) >= self._nbytes:
                    self._blocks[id(leaf)] = leaf
            elif type(leaf) is np.ndarray and leaf.nbytes >= self._nbytes:
                while type(leaf.base) is np.ndarray:
                    leaf = leaf.base
                if leaf.base is None:
                    self._blocks[id(leaf)] = leaf

    def count(self) -> Counter[bytes]:
        """Return the number of blocks that hold each observation."""
        found: Counter[bytes] = Counter()
        for block in self._blocks.values():
            data = block if isinstance(block, bytes) else block.tobytes()
            rows = len(data) // self._nbytes
            found.update({data[i * self._nbytes : (i + 1) * self._nbytes] for i in range(rows)})
        return found


@pytest.mark.parametrize(
    ("env", "policy", "episodes"),
    [("CartPole-v1", "random", 40), ("CartPole-v1", "mlp", 40), (f"{HERE}:Pictures", "random", 6)],
)
def test_three_copies_of_an_observation(
    env: str, policy: str, episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = 0
    finish: Callable[..., Any] = RolloutBuffer.finish

    def counted(*args: Any) -> Any:
        nonlocal batches
        batches += 1
        return finish(*args)

    monkeypatch.setattr(RolloutBuffer, "finish", counted)
    shape, dtype = ((4,), np.float32) if env == "CartPole-v1" else ((84, 84, 4), np.uint8)
    wanted = Job(env=env, episodes=10_000, num_envs=ENVS, num_workers=1, backend="shmem", policy=policy, device="cpu")
    with Memory(shape, dtype).watched() as memory:
        run_job(wanted, tmp_path / "a", on_progress=stop_at(episodes))  # as long as each env has a next episode
    blocks = memory.count()
    inside = [row.tobytes() for episode in Dataset(tmp_path / "a") for row in episode.obs[:-1]]
    assert min(blocks[row] for row in inside) == 2, "the buffer, and the memory of the episode"
    # The last observations of a batch are also the first of the next batch.
    assert sum(blocks[row] > 2 for row in inside) <= ENVS * batches
