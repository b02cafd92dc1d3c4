"""Jobs that are killed, stopped or fail, and then resumed, against a loop that plays the same episodes."""

from __future__ import annotations

import os
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector import Dataset, EpisodeSeeds, Job, action_seed, episode_seed, run_job
from tests.fuzz import kills
from tests.fuzz.driver import Program
from tests.fuzz.episodes import compare_episode, keyed_actions
from tests.support.job_envs import Counting
from tests.support.seeded_envs import Masked

kills.CONTEXT.set_forkserver_preload(["collector.jobs.job_runner", "gymnasium.envs.classic_control", "torch"])
MOMENT = st.tuples(st.integers(1, 40), st.sampled_from(["before", "within", "after", "raise", "signal"]))
LINE = st.tuples(st.integers(1, 6), st.just("line"))
ENVS = {"counting": "tests.support.job_envs:Counting", "masked": "tests.support.seeded_envs:Masked"}
HERE = "tests.fuzz.jobs:"


class Interrupted(Exception):
    """The error of a policy in the call at which the program wants it."""


class Acts:
    """A policy that disturbs the job in one of its calls, as `at` says: "17:raise" or "17:signal"."""

    repeatable = True
    at = ""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.calls = 0

    def disturb(self) -> None:
        self.calls += 1
        call, _, how = self.at.partition(":")
        if how == "raise" and self.calls == int(call):
            raise Interrupted
        if how == "signal" and self.calls == int(call):
            os.kill(os.getpid(), signal.SIGTERM)


class Counts(Acts):
    """A recurrent policy: it acts by the number in the observation, and by its own count of the steps."""

    def __call__(self, count: Any, state: Any) -> Any:
        self.disturb()
        state = np.zeros(len(count), np.int64) if state is None else state
        return {"action": np.stack([count[:, 1] / 32, state / 64], 1).astype(np.float32), "state": state + 1}


class Noisy(Acts):
    """A recurrent policy with keyed noise: it returns distributions, of which the job takes samples."""

    def __call__(self, count: Any, state: Any) -> Any:
        import torch

        self.disturb()
        state = np.zeros(len(count)) if state is None else state
        mean = torch.from_numpy(np.stack([count[:, 1] / 32, state / 64], 1).astype(np.float32))
        return {"action": torch.distributions.Normal(mean, 0.1 + 0 * mean), "state": state + 1}


class Legal(Acts):
    """Takes the first action that the latest info of `Masked` allows."""

    def __call__(self, obs: Any, info: Any) -> Any:
        self.disturb()
        return np.array([row["action_mask"].argmax() + 2 for row in info])


POLICIES = {
    "counting": ["random", f"{HERE}Counts", f"{HERE}Noisy"],
    "masked": ["random", f"{HERE}Legal"],
}


def play(out: str, settings: dict[str, Any], kill_at: str) -> None:
    """Run or resume a job in this process, which kills itself, or whose policy disturbs it."""
    if kill_at.endswith(("raise", "signal")):
        Acts.at, kill_at = kill_at, ""
    kills.arm(kill_at)
    run_job(Job(**settings), out, resume=True)


class Fuzz(Program):
    """Each rule is a run that is killed or stopped, or whose policy raises; at the end the job runs to completion."""

    per_seed = 3
    steps = 4
    patience = 240.0

    @initialize(
        episodes=st.integers(1, 25),
        num_envs=st.integers(1, 5),
        backend=st.sampled_from(["dummy", "dummy", "dummy", "thread", "shmem", "subproc"]),
        env_and_policy=st.sampled_from([(env, policy) for env, policies in POLICIES.items() for policy in policies]),
        most=st.none() | st.integers(3, 9),
        seed=st.integers(0, 99),
        every=st.sampled_from([0, 0, 5]),
        how=st.sampled_from(["raise", "nan", "inf", "huge", "kill"]),
        at=st.sampled_from(["step", "reset"]),
        shard_bytes=st.sampled_from([500, 3000, 2**20]),
        compress=st.booleans(),
        retries=st.integers(0, 2),
        recycle_after=st.sampled_from([None, None, 1]),
        spare_envs=st.integers(0, 2),
    )
    def make(
        self, env_and_policy: tuple[str, str], most: int | None, every: int, how: str, at: str, **settings: Any
    ) -> None:
        env, settings["policy"] = env_and_policy
        if how == "kill" and settings["backend"] in ("dummy", "thread"):
            how = "raise"  # the env would end the job
        if settings["backend"] in ("dummy", "thread"):
            settings |= {"recycle_after": None, "spare_envs": 0}
        if how == "kill":
            settings["spare_envs"] = 0  # a thread would kill the worker while other envs step
        if how in ("nan", "inf", "huge"):
            at = "step"  # they are rewards
        self.every = every if env == "counting" else 0
        settings["env_kwargs"] = {"every": self.every, "how": how, "at": at} if env == "counting" else {"place": "info"}
        settings |= {"env": ENVS[env], "max_episode_steps": most, "max_failed": 30, "device": "cpu"}
        self.settings, self.folder = settings, tempfile.TemporaryDirectory()
        self.out, self.committed, self.complete = Path(self.folder.name) / "job", set[int](), False
        numbers, every, first = range(settings["episodes"]), self.every, settings["seed"]
        self.numbers = [number for number in numbers if not every or episode_seed(first, number) % every]

    def close(self) -> None:
        try:
            if hasattr(self, "folder") and not self.failed:
                self.run("")
                if self.numbers:
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
        running = kills.CONTEXT.Process(target=play, args=(str(self.out), self.settings, kill_at))
        running.start()
        may_fail = kill_at.endswith("raise") or not self.numbers
        ended = (0, -9, 143) if kill_at.endswith("signal") else (0, -9)
        code = kills.finish(running, (*ended, 1) if may_fail else ended)
        # A job that is stopped before its first episode has ended makes no data set.
        self.complete = (self.out / "dataset.json").exists() and Dataset(self.out).complete
        assert not self.complete or (self.numbers and code != 1), f"a job that ended with {code} is complete"
        if not kill_at:
            assert self.complete or (not self.numbers and code == 1), "a job that nothing disturbed is not complete"
        self.committed = kills.check(self.out, self.committed)
        self.failed = False

    @rule(moment=MOMENT | LINE)
    def kill(self, moment: tuple[int, str]) -> None:
        self.run("{}:{}".format(*moment))

    def compare(self) -> None:
        """The data set has the episodes of a plain loop, and no other."""
        data, job = Dataset(self.out), Job(**self.settings)
        assert data.complete
        assert data.numbers.tolist() == self.numbers, f"episodes {data.numbers.tolist()}, expected {self.numbers}"
        samples = {}
        if job.policy.endswith("Noisy"):
            seeds = EpisodeSeeds(job.seed, numbers=range(job.episodes or 0))
            samples = keyed_actions(partial(Counting, every=0), Noisy(), seeds, job.max_episode_steps)
        for episode in data:
            self.compare_episode(episode, job, samples.get(episode.number))

    def compare_episode(self, episode: Any, job: Job, samples: Any) -> None:
        env: Any = Counting() if job.env == ENVS["counting"] else Masked("info")
        seed = episode_seed(job.seed, episode.number)
        env.action_space.seed(action_seed(job.seed, episode.number))

        def choose(obs: Any, info: Any, step: int) -> Any:
            if samples is not None:
                return samples[step]
            if job.policy.endswith("Counts"):
                return np.array([obs["count"][1] / 32, step / 64], np.float32)
            if job.policy.endswith("Legal"):
                return np.int64(info["action_mask"].argmax() + 2)
            return env.action_space.sample(info.get("action_mask"))

        assert episode.seed == seed, f"the seed of episode {episode.number}"
        compare_episode(episode, env, seed, job.max_episode_steps, choose)
