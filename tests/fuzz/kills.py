"""`python -m tests.fuzz.kills`: kill jobs by SIGKILL, resume them, and compare with an undisturbed job.

    python -m tests.fuzz.kills                            # 200 kills: some minutes
    python -m tests.fuzz.kills --kills 20 --backend shmem
    python -m tests.fuzz.ray_kills                        # drivers and tasks of jobs on a Ray cluster

Each job has a separate process, and small shards, so that it commits all the time. In two of three kills, the process
kills itself before or after a random system call of its commits (write, fsync, rename). The other kills come from
outside at a random moment. After each kill, the folder must open, all shards must be whole, and no committed episode
may be missing. Then the job is resumed. In the end, its episodes must equal the undisturbed job's bit for bit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from collector import Dataset, DatasetError, Job, run_job
from collector.store import safe_folder
from vecenv import nest

CALLS = ("write", "fsync", "rename")
"""Of `collector.store.safe_folder`: what a commit consists of."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["collector.jobs.job_runner", "gymnasium.envs.classic_control"])
"""Jobs are forked from a process that has imported everything, because that takes longer than most of them live."""


@dataclass(frozen=True)
class LocalJobs:
    """Jobs that are killed: their settings, and how to kill one of them until it is complete."""

    backend: str

    def settings(self, out: Path) -> dict[str, Any]:
        """Return the settings of `Job` that name the envs. `out` is the folder of the job."""
        return {"env": "CartPole-v1", "backend": self.backend}

    def options(self) -> dict[str, Any]:
        """Return further arguments of `run_job` and `resume_job`."""
        return {}

    def undisturbed(self) -> LocalJobs:
        """Return the jobs that write the same episodes and are not killed."""
        return self

    def kill_until_complete(self, out: Path, episodes: int, rng: random.Random) -> Iterator[bool]:
        """Kill a job and resume it until it is complete. Yield for each kill whether it came within a commit."""
        committed: set[int] = set()
        while True:
            inject = rng.random() < 2 / 3
            running = start(out, self, episodes, moment(rng) if inject else "")
            if not inject:
                wait_for_growth(out, running)
                time.sleep(rng.random() * 0.2)
                running.kill()
            code = finish(running, (0, -signal.SIGKILL))
            committed = check(out, committed)
            if code == 0:
                return
            yield inject


def job_process(out: str, jobs: LocalJobs, episodes: int, kill_at: str, transforms: tuple[Any, ...] = ()) -> None:
    """Run or resume the job in this process, which kills itself before, within or after a system call of a commit."""
    arm(kill_at)
    settings, options = jobs.settings(Path(out)), jobs.options()
    job = Job(**settings, episodes=episodes, num_envs=4, seed=5, shard_bytes=3000, transforms=transforms)
    run_job(job, out, resume=True, **options)


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


class Tally(NamedTuple):
    """The outcome of some kills."""

    kills: int
    within_commits: int
    jobs: int
    """That were complete, and equal to the undisturbed one."""


def start(out: Path, jobs: LocalJobs, episodes: int, kill_at: str = "", transforms: tuple[Any, ...] = ()) -> Any:
    """Start or resume the job in a process. `kill_at`: "17:before", "17:after" or "17:within"."""
    running = CONTEXT.Process(target=job_process, args=(str(out), jobs, episodes, kill_at, transforms))
    running.start()
    return running


def kill_jobs(folder: Path, jobs: LocalJobs, kills: int, seed: int, episodes: int = 150) -> Tally:
    """Kill and resume jobs in `folder`, `kills` times in all. Raise AssertionError if anything is lost."""
    rng = random.Random(seed)
    whole = folder / "whole"
    finish(start(whole, jobs.undisturbed(), episodes))
    tally = Tally(0, 0, 0)
    while tally.kills < kills:
        out = folder / f"job{tally.jobs}"
        for within in jobs.kill_until_complete(out, episodes, rng):
            tally = tally._replace(kills=tally.kills + 1, within_commits=tally.within_commits + within)
            if tally.kills == kills:
                finish(start(out, jobs, episodes))
                break
        assert_same(Dataset(out), Dataset(whole))
        tally = tally._replace(jobs=tally.jobs + 1)
        shutil.rmtree(out)
    return tally


def moment(rng: random.Random) -> str:
    """One for `arm`. A commit is about seven calls; the first ones of a new job write the head."""
    return f"{rng.randrange(1, 30)}:{rng.choice(['before', 'within', 'after'])}"


def wait_for_growth(out: Path, running: Any) -> None:
    """Wait until the job has committed something, or has ended."""
    manifest = out / "manifest.jsonl"
    before = manifest.stat().st_size if manifest.exists() else 0
    while running.exitcode is None and not (manifest.exists() and manifest.stat().st_size > before):
        time.sleep(0.005)


def check(out: Path, before: set[int]) -> set[int]:
    """The episodes that are committed; all of `before` must be among them, and every shard whole."""
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


def finish(running: Any, codes: tuple[int, ...] = (0,)) -> int:
    """Let a job come to its end, and return its exit code, which must be one of `codes`."""
    running.join(timeout=300)
    code = running.exitcode
    running.kill()
    running.join()
    running.close()
    assert code in codes, f"the job ended with {code}; its traceback is above"
    return int(code)


def assert_same(one: Dataset, two: Dataset) -> None:
    """The same episodes, bit for bit, by number."""
    assert one.complete
    assert one.numbers.tolist() == two.numbers.tolist()
    for a, b in zip(one, two, strict=True):
        assert (a.number, a.seed) == (b.number, b.seed)
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            pairs = zip(nest.leaves(getattr(a, name)), nest.leaves(getattr(b, name)), strict=True)
            assert all(x.tobytes() == y.tobytes() for x, y in pairs), f"{name} of episode {a.number} differs"


def report(name: str, jobs: LocalJobs, kills: int, seed: int) -> None:
    """Kill jobs in a temporary folder, and print the outcome."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally = kill_jobs(Path(folder), jobs, kills, seed)
    print(
        f"{name}: {tally.kills} kills, {tally.within_commits} of them within a commit; {tally.jobs} jobs "
        f"complete and equal to the undisturbed job; {time.perf_counter() - begin:.0f} s",
        flush=True,
    )


def parser(doc: str | None, kills: int) -> argparse.ArgumentParser:
    """Return the parser of the arguments of both commands."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--kills", type=int, default=kills, help="in all [%(default)s]")
    made.add_argument("--seed", type=int, default=0, help="of the moments [%(default)s]")
    return made


def main() -> None:
    arguments = parser(__doc__, 200)
    arguments.add_argument("--backend", default="dummy,shmem", help="backends that share the kills [%(default)s]")
    options = arguments.parse_args()
    backends = options.backend.split(",")
    for i, backend in enumerate(backends):
        kills = options.kills // len(backends) + (i < options.kills % len(backends))
        report(backend, LocalJobs(backend), kills, options.seed + i)


if __name__ == "__main__":
    main()
