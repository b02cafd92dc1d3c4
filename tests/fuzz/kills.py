"""`python -m tests.fuzz.kills`: kill jobs by SIGKILL, resume them, and compare with what a job writes undisturbed.

    python -m tests.fuzz.kills                            # 200 kills: some minutes
    python -m tests.fuzz.kills --kills 20 --backend shmem
    python -m tests.fuzz.kills --kills 30 --backend ray   # drivers and actors of jobs on a cluster that it starts

A job runs in a process of its own, with small shards, so that it commits all the time. Two of three kills are injected:
the process kills itself before or after the k-th system call of its commits (write, fsync, rename, the line of the
manifest, and its fsync), k at random. The others come from outside at a random moment. After each kill the folder must
open, all its shards must be whole, and nothing that was committed before may be missing; then the job is resumed, and
killed again, until it is complete. Then it must equal, bit for bit, the same job undisturbed.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from collector import Dataset, DatasetError, Job, resume_job, run_job
from collector.store import safe_folder
from vecenv import nest

CALLS = ("write", "fsync", "rename")
"""Of `collector.store.safe_folder`: what a commit consists of."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["collector.jobs.job_runner", "gymnasium.envs.classic_control"])
"""Jobs are forked from a process that has imported everything, because that takes longer than most of them live."""


def job_process(out: str, backend: str, episodes: str, kill_at: str, transforms: tuple[Any, ...] = ()) -> None:
    """Run or resume the job in this process, which kills itself before, within or after a system call of a commit."""
    arm(kill_at)
    settings: dict[str, Any] = {"env": "CartPole-v1", "backend": backend}
    options: dict[str, Any] = {}
    if backend.startswith("ray"):
        from tests.fuzz import ray_kills

        logging.getLogger("vecenv").setLevel(logging.ERROR)  # it warns of actors that die
        settings = ray_kills.settings(Path(out).parent / "orders")
        if address := backend.removeprefix(ray_kills.PREFIX):
            options = {"cluster": address, "cluster_actors": ray_kills.ACTORS}
    job = Job(**settings, episodes=int(episodes), num_envs=4, seed=5, shard_bytes=3000, transforms=transforms)
    if os.path.exists(os.path.join(out, "dataset.json")):
        resume_job(out, job, **options)
    else:
        run_job(job, out, **options)


def arm(kill_at: str, last_words: Callable[[], Any] = lambda: None) -> None:
    """Have this process kill itself at a system call of a commit: "17:before", "17:within" or "17:after"; "": never."""
    at, _, when = kill_at.partition(":")
    count = 0

    def die() -> None:
        last_words()
        os.kill(os.getpid(), signal.SIGKILL)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def and_killed(*args: Any, **folder: int) -> Any:
            nonlocal count
            count += 1
            here = bool(at) and count == int(at)
            if here and when == "within" and call.__name__ == "write":
                data = b"".join(args[1]) if isinstance(args[1], list) else bytes(args[1])
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


def start(out: Path, backend: str, episodes: int, kill_at: str = "", transforms: tuple[Any, ...] = ()) -> Any:
    """The job in a process of its own: new, or resumed. `kill_at`: "17:before", "17:after" or "17:within"."""
    running = _context.Process(target=job_process, args=(str(out), backend, str(episodes), kill_at, transforms))
    running.start()
    return running


def kill_jobs(folder: Path, backend: str, kills: int, seed: int, episodes: int = 150) -> Tally:
    """Kill and resume jobs in `folder` until they were killed so often. AssertionError where anything is lost."""
    rng = random.Random(seed)
    whole, undisturbed, kill = folder / "whole", backend, kill_until_complete
    if backend.startswith("ray"):
        from tests.fuzz import ray_kills

        undisturbed, kill = ray_kills.PREFIX, ray_kills.kill_until_complete  # undisturbed it needs no cluster
    finish(start(whole, undisturbed, episodes))
    tally = Tally(0, 0, 0)
    while tally.kills < kills:
        out = folder / f"job{tally.jobs}"
        for within in kill(out, backend, episodes, rng):
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
        running = start(out, backend, episodes, moment(rng) if inject else "")
        if not inject:
            wait_for_growth(out, running)
            time.sleep(rng.random() * 0.2)
            running.kill()
        code = finish(running, (0, -signal.SIGKILL))
        committed = check(out, committed)
        if code == 0:
            return
        yield inject


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


def place(backend: str) -> Any:
    """A context that gives the backend as `kill_jobs` takes it: for "ray" with a cluster that it starts."""
    if backend != "ray":
        return nullcontext(backend)
    from tests.fuzz import ray_kills

    return ray_kills.cluster()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="in all [%(default)s]")
    parser.add_argument("--backend", default="dummy,shmem", help="backends that share the kills [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    backends = options.backend.split(",")
    begin = time.perf_counter()
    for i, backend in enumerate(backends):
        kills = options.kills // len(backends) + (i < options.kills % len(backends))
        with tempfile.TemporaryDirectory() as folder, place(backend) as where:
            tally = kill_jobs(Path(folder), where, kills, options.seed + i)
        print(
            f"{backend}: {tally.kills} kills, {tally.within_commits} of them within a commit; {tally.jobs} jobs "
            f"complete and equal to the undisturbed one; {time.perf_counter() - begin:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
