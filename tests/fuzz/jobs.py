"""Jobs that are killed by SIGKILL and resumed, against a loop that plays the same episodes one after another.

`python -m tests.fuzz.kills` kills longer jobs, also on a Ray cluster.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector import Dataset, Job, action_seed, episode_seed, resume_job, run_job
from tests.fuzz import kills
from tests.fuzz.driver import Program
from tests.fuzz.envs import assert_same, stacked
from tests.support.job_envs import Counting

MOMENT = st.tuples(st.integers(1, 40), st.sampled_from(["before", "within", "after"]))


class Counts:
    """A recurrent policy: it acts by the number in the observation, and by its own count of the steps."""

    repeatable = True

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        pass

    def __call__(self, count: Any, state: Any) -> Any:
        state = np.zeros(len(count), np.int64) if state is None else state
        return {"action": np.stack([count[:, 1] / 32, state / 64], 1).astype(np.float32), "state": state + 1}


def play(out: str, settings: dict[str, Any], kill_at: str) -> None:
    """Run or resume a job in this process, which kills itself."""
    kills.arm(kill_at)
    if (Path(out) / "dataset.json").exists():
        resume_job(out, Job(**settings))
    else:
        run_job(Job(**settings), out)


class Fuzz(Program):
    """Each rule is a run of the job that is killed; at the end it runs to completion."""

    per_seed = 3
    steps = 4
    patience = 120.0

    @initialize(
        episodes=st.integers(1, 25),
        num_envs=st.integers(1, 5),
        backend=st.sampled_from(["dummy", "dummy", "dummy", "thread", "shmem"]),
        policy=st.sampled_from(["random", "tests.fuzz.jobs:Counts"]),
        most=st.none() | st.integers(2, 9),
        seed=st.integers(0, 99),
        every=st.sampled_from([0, 0, 5]),
        shard_bytes=st.sampled_from([500, 3000, 2**20]),
        compress=st.booleans(),
    )
    def make(self, policy: str, most: int | None, every: int, **settings: Any) -> None:
        settings |= {"env": "tests.support.job_envs:Counting", "env_kwargs": {"every": every}, "policy": policy}
        settings |= {"max_episode_steps": most, "max_failed": 30, "device": "cpu"}
        self.settings, self.folder = settings, tempfile.TemporaryDirectory()
        self.out, self.committed, self.complete = Path(self.folder.name) / "job", set[int](), False

    def close(self) -> None:
        try:
            if hasattr(self, "folder") and not self.failed:
                self.run("")
                self.compare()
        finally:
            if hasattr(self, "folder"):
                self.folder.cleanup()

    failed = True
    """Until a rule has ended without a failure."""

    def run(self, kill_at: str) -> None:
        if self.complete:
            return
        self.failed = True
        running = kills._context.Process(target=play, args=(str(self.out), self.settings, kill_at))
        running.start()
        self.complete = kills.finish(running, (0, -9)) == 0
        self.committed = kills.check(self.out, self.committed)
        self.failed = False

    @rule(moment=MOMENT)
    def kill(self, moment: tuple[int, str]) -> None:
        self.run("{}:{}".format(*moment))

    def compare(self) -> None:
        """The data set has the episodes of a plain loop, and no other."""
        data, job = Dataset(self.out), Job(**self.settings)
        assert data.complete
        every = self.settings["env_kwargs"]["every"]
        numbers = [e for e in range(self.settings["episodes"]) if not every or episode_seed(job.seed, e) % every]
        assert data.numbers.tolist() == numbers, f"episodes {data.numbers.tolist()}, expected {numbers}"
        for episode in data:
            self.compare_episode(episode, job)

    def compare_episode(self, episode: Any, job: Job) -> None:
        env, seed = Counting(), episode_seed(job.seed, episode.number)
        env.action_space.seed(action_seed(job.seed, episode.number))
        obs, _ = env.reset(seed=seed)
        seen, rows, over = [obs], list[Any](), False
        while not over:
            action: Any = env.action_space.sample()
            if job.policy != "random":
                action = np.array([obs["count"][1] / 32, len(rows) / 64], np.float32)
            obs, reward, terminated, truncated, _ = env.step(action)
            truncated = truncated or len(rows) + 1 == job.max_episode_steps
            seen.append(obs)
            rows.append((action, float(reward), terminated, truncated))
            over = terminated or truncated
        what = f"of episode {episode.number}"
        assert episode.seed == seed, f"the seed {what}"
        assert_same(as_arrays(episode.obs), stacked(env.observation_space, seen), f"obs {what}")
        for name, column in zip(("action", "reward", "terminated", "truncated"), zip(*rows, strict=True), strict=True):
            assert_same(np.asarray(getattr(episode, name)), np.array(column), f"{name} {what}")


def as_arrays(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: as_arrays(part) for key, part in tree.items()}
    return tuple(map(as_arrays, tree)) if isinstance(tree, (tuple, list)) else np.asarray(tree)
