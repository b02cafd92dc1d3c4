"""Kill jobs by SIGKILL, resume them, and compare with an undisturbed job.

Each job has a separate process, and small shards, so that it commits all the time. The process kills itself before,
within or after a random system call of its commits (write, fsync, rename). A kill between two calls leaves the files
of a kill before the second. After each kill, the folder must open, all shards must be whole, and no committed episode
may be missing. Then the job is resumed. In the end, its episodes must equal the undisturbed job's bit for bit.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium

from collector import Dataset, DatasetError, Job, run_job
from collector.store import safe_folder
from tests.support.job_envs import assert_same

CALLS = ("write", "fsync", "rename")
"""Of `collector.store.safe_folder`: what a commit consists of."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["collector.jobs.job_runner", "gymnasium.envs.classic_control"])
"""Jobs are forked from a process that has imported everything, because that takes longer than most of them live."""
DRIVER, ACTOR = "driver", "actor"


@dataclass(frozen=True)
class LocalJobs:
    """Jobs that are killed: their settings, and which processes of one can be killed."""

    backend: str
    victims: ClassVar[Any] = ({DRIVER},)

    def settings(self, out: Path) -> dict[str, Any]:
        """Return the settings of `Job` that name the envs. `out` is the folder of the job."""
        return {"env": "CartPole-v1", "backend": self.backend}

    def options(self) -> dict[str, Any]:
        """Return further arguments of `run_job`."""
        return {}

    def undisturbed(self) -> LocalJobs:
        """Return the jobs that write the same episodes and are not killed."""
        return self


@dataclass(frozen=True)
class RayJobs(LocalJobs):
    """Jobs on the cluster with this address. Without an address they run in this process.

    When a task's process makes its first env, it takes the order in the folder of orders, if there is one, and kills
    itself at the system call that the order names.
    """

    backend: str = "dummy"
    address: str = ""
    victims = ({DRIVER}, {ACTOR}, {DRIVER, ACTOR})

    def settings(self, out: Path) -> dict[str, Any]:
        logging.getLogger("vecenv").setLevel(logging.ERROR)  # it warns of actors that die
        return {"env": "tests.fuzz.kills:obeying", "env_kwargs": {"orders": str(orders_of(out))}, "backend": "dummy"}

    def options(self) -> dict[str, Any]:
        return {"cluster": self.address, "cluster_actors": 2} if self.address else {}

    def undisturbed(self) -> RayJobs:
        return RayJobs()


def orders_of(out: Path) -> Path:
    """Return the folder of orders for actors of the job with this folder."""
    folder = out.parent / "orders"
    folder.mkdir(exist_ok=True)
    return folder


_processes_that_know: set[int] = set()


def obeying(orders: str) -> gymnasium.Env[Any, Any]:
    """Make a CartPole, in an actor that obeys an order."""
    if os.getpid() not in _processes_that_know:
        _processes_that_know.add(os.getpid())
        taken = Path(orders) / f"taken-{os.getpid()}"
        with suppress(FileNotFoundError):
            (Path(orders) / "order").rename(taken)
            arm(taken.read_text(), lambda: taken.rename(taken.with_name(f"done-{os.getpid()}")))
    return gymnasium.make("CartPole-v1")


def arm(kill_at: str, last_words: Callable[[], Any] = lambda: None) -> None:
    """Have this process kill itself at a system call of a commit: "17:before", "17:within" or "17:after"; "": never.

    "3:line": within the third line of the manifest, because most commits have many more calls than one write of a line.
    """
    at, _, when = kill_at.partition(":")
    count = 0

    def die() -> None:
        last_words()
        os.kill(os.getpid(), signal.SIGKILL)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def and_killed(*args: Any, **folder: int) -> Any:
            nonlocal count
            data = b""
            if at and call.__name__ == "write":
                data = b"".join(args[1]) if isinstance(args[1], list) else bytes(args[1])
            if when == "line" and not data.startswith(b'{"line"'):
                return call(*args, **folder)
            count += 1
            here = bool(at) and count == int(at)
            if here and when in ("within", "line") and data:
                os.write(args[0], data[: len(data) // 2])
            if here and when != "after":
                die()
            result = call(*args, **folder)
            if here:
                die()
            return result

        return and_killed

    for name in CALLS:
        setattr(safe_folder, name, watched(getattr(safe_folder, name)))


def job_process(out: str, jobs: LocalJobs, episodes: int, kill_at: str, transforms: tuple[Any, ...] = ()) -> None:
    """Run or resume the job in this process, which kills itself before, within or after a system call of a commit."""
    arm(kill_at)
    settings, options = jobs.settings(Path(out)), jobs.options()
    job = Job(**settings, episodes=episodes, num_envs=4, seed=5, shard_bytes=3000, transforms=transforms)
    run_job(job, out, resume=True, **options)


def start(out: Path, jobs: LocalJobs, episodes: int, kill_at: str = "", transforms: tuple[Any, ...] = ()) -> Any:
    """Start or resume the job in a process. `kill_at`: "17:before", "17:after" or "17:within"."""
    running = CONTEXT.Process(target=job_process, args=(str(out), jobs, episodes, kill_at, transforms))
    running.start()
    return running


def finish(running: Any, codes: tuple[int, ...] = (0,)) -> int:
    """Let a job come to its end, and return its exit code, which must be one of `codes`."""
    running.join(timeout=300)
    code = running.exitcode
    running.kill()
    running.join()
    running.close()
    assert code in codes, f"the job ended with {code}; its traceback is above"
    return int(code)


def check(out: Path, before: set[int]) -> set[int]:
    """Return the committed episodes. All of `before` must be among them, and every shard must be whole."""
    if not (out / "dataset.json").exists():
        assert not before
        return set()
    try:
        data = Dataset(out)
    except DatasetError as error:
        raise AssertionError(f"the folder cannot be read after a kill: {error}") from error
    assert data.verify() == [], "a shard is damaged after a kill"
    numbers = set(data.numbers.tolist())
    assert before <= numbers, f"episodes are lost: {sorted(before - numbers)}"
    return numbers


def kill_jobs(folder: Path, jobs: LocalJobs, kills: int, seed: int, episodes: int) -> tuple[int, int]:
    """Kill and resume jobs in `folder`, at least `kills` times in all. Return the numbers of kills and of jobs.

    Raise AssertionError if anything is lost, or if a job differs from the undisturbed one.
    """
    rng, killed, complete = random.Random(seed), 0, 0
    finish(start(folder / "whole", jobs.undisturbed(), episodes))
    while killed < kills:
        out, committed, code = folder / f"job{complete}", set[int](), -1
        while code:
            orders, victims = orders_of(out), rng.choice(jobs.victims) if killed < kills else ()
            # A commit is about seven calls. The first calls of a new job write the head.
            moments = [f"{rng.randrange(1, 30)}:{rng.choice(['before', 'within', 'after'])}" for _ in range(2)]
            if ACTOR in victims:
                (orders / "order").write_text(moments[0])
            code = finish(start(out, jobs, episodes, moments[1] if DRIVER in victims else ""), (0, -signal.SIGKILL))
            committed = check(out, committed)
            killed += (code != 0) + len(list(orders.glob("done-*")))
            shutil.rmtree(orders)
        assert_same(out, folder / "whole")
        assert Dataset(out).complete
        complete += 1
        shutil.rmtree(out)
    return killed, complete
