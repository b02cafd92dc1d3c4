"""`python -m benchmarks.kills`: kill jobs by SIGKILL, resume them, and compare with what a job writes undisturbed.

    python -m benchmarks.kills                            # 200 kills: some minutes
    python -m benchmarks.kills --kills 20 --backend shmem

A job runs in a process of its own, with small shards, so that it commits all the time. Two of three kills are injected:
the process kills itself before or after the k-th system call of its commits (write, fsync, rename, the line of the
manifest, and its fsync), k at random. The others come from outside at a random moment. After each kill the folder must
open, all its shards must be whole, and nothing that was committed before may be missing; then the job is resumed, and
killed again, until it is complete. Then it must equal, bit for bit, the same job that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collector import Dataset, DatasetError
from vecenv import nest

ROOT = Path(__file__).resolve().parent.parent
CALLS = ("write", "fsync", "rename")
"""Of `collector.store.files.system_calls`: what a commit consists of."""
PROGRAM = """
import os, signal, sys
from collector.job.job import Job
from collector.job.run import resume_job, run_job
from collector.store.files import system_calls

out, backend, episodes, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
at, _, when = kill_at.partition(":")
count = 0

def watched(call):
    def and_killed(*args):
        global count
        count += 1
        here = at and count == int(at)
        if here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and when == "within" and call.__name__ == "write":
            os.write(args[0], memoryview(args[1]).cast("B")[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return and_killed

for name in ("write", "fsync", "rename"):
    setattr(system_calls, name, watched(getattr(system_calls, name)))
job = Job(env="CartPole-v1", episodes=episodes, num_envs=4, backend=backend, seed=5, shard_bytes=6000)
if os.path.exists(os.path.join(out, "dataset.json")):
    resume_job(out, job)
else:
    run_job(job, out)
"""


class Tally(NamedTuple):
    """What came of some kills."""

    kills: int
    within_commits: int
    jobs: int
    """That were complete, and equal to the one that nobody disturbed."""


def start(out: Path, backend: str, episodes: int, kill_at: str = "") -> subprocess.Popen[bytes]:
    """The job in a process of its own: new, or resumed. `kill_at`: "17:before", "17:after" or "17:within"."""
    arguments = [sys.executable, "-c", PROGRAM, str(out), backend, str(episodes), kill_at]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(arguments, cwd=ROOT, env=env, stderr=subprocess.PIPE)


def kill_jobs(folder: Path, backend: str, kills: int, seed: int, episodes: int = 300) -> Tally:
    """Kill and resume jobs in `folder` until they were killed so often. AssertionError where anything is lost."""
    rng = random.Random(seed)
    whole = folder / "whole"
    finish(start(whole, backend, episodes))
    tally = Tally(0, 0, 0)
    while tally.kills < kills:
        out = folder / f"job{tally.jobs}"
        for within in kill_until_complete(out, backend, episodes, rng):
            tally = tally._replace(kills=tally.kills + 1, within_commits=tally.within_commits + within)
            if tally.kills == kills:
                finish(start(out, backend, episodes))
                break
        assert_same(Dataset(out), Dataset(whole))
        tally = tally._replace(jobs=tally.jobs + 1)
        shutil.rmtree(out)
    return tally


def kill_until_complete(out: Path, backend: str, episodes: int, rng: random.Random) -> Iterator[bool]:
    """Kill a job and resume it until it is complete; for each kill, whether it was within a commit."""
    committed: set[int] = set()
    while True:
        inject = rng.random() < 2 / 3
        # A commit is about seven calls; the first ones of a new job write the head.
        at = f"{rng.randrange(1, 60)}:{rng.choice(['before', 'within', 'after'])}" if inject else ""
        with start(out, backend, episodes, at) as running:
            if not inject:
                wait_for_growth(out, running)
                time.sleep(rng.random() * 0.2)
                running.kill()
            assert running.stderr is not None
            error = running.stderr.read().decode()
            code = running.wait(timeout=120)
        assert code in (0, -signal.SIGKILL), error
        committed = check(out, committed)
        if code == 0:
            return
        yield inject


def wait_for_growth(out: Path, running: subprocess.Popen[bytes]) -> None:
    """Wait until the job has committed something, or has ended."""
    manifest = out / "manifest.jsonl"
    before = manifest.stat().st_size if manifest.exists() else 0
    while running.poll() is None and not (manifest.exists() and manifest.stat().st_size > before):
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


def finish(running: subprocess.Popen[bytes]) -> None:
    """Let a job come to its end."""
    _, error = running.communicate(timeout=300)
    assert running.returncode == 0, error.decode()


def assert_same(one: Dataset, two: Dataset) -> None:
    """The same episodes, bit for bit, by number."""
    assert one.complete
    assert one.numbers.tolist() == two.numbers.tolist()
    for a, b in zip(one, two, strict=True):
        assert (a.number, a.seed) == (b.number, b.seed)
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            pairs = zip(nest.leaves(getattr(a, name)), nest.leaves(getattr(b, name)), strict=True)
            assert all(x.tobytes() == y.tobytes() for x, y in pairs), f"{name} of episode {a.number} differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="in all [%(default)s]")
    parser.add_argument("--backend", default="dummy,shmem", help="backends that share the kills [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    backends = options.backend.split(",")
    begin = time.perf_counter()
    for i, backend in enumerate(backends):
        kills = options.kills // len(backends) + (i < options.kills % len(backends))
        with tempfile.TemporaryDirectory() as folder:
            tally = kill_jobs(Path(folder), backend, kills, options.seed + i)
        print(
            f"{backend}: {tally.kills} kills, {tally.within_commits} of them within a commit; {tally.jobs} jobs "
            f"complete and equal to the undisturbed one; {time.perf_counter() - begin:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
