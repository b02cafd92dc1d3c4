"""What a folder holds about the job that made it, and whether a job is still the same."""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import vecenv
from collector.jobs.job import ANYWHERE, Job, JobError, as_record, as_shown, make_job
from collector.jobs.making import declares_repeatable, hash_of, with_statistics
from collector.jobs.names import check_names
from collector.store.dataset_head import HEAD, make_head, read_head
from collector.store.folder import check_files, contents
from collector.store.safe_folder import DatasetError, FolderLock, SafeFolder

SAME = ("observation_space", "action_space", "policy_hash")
"""Entries of the head that are to be the same when a job goes on, besides the job itself."""
OTHER_FOLDER = "choose another folder, or replace what is there with --overwrite"


def check_folder(folder: Path, overwrite: bool) -> None:
    """Make a folder, with its parents, and see that a new job may write there. Raises `DatasetError`.

    The same is asked when the job begins to write; this is early, before envs are made.
    """
    try:
        with SafeFolder.make(folder) as opened:
            check_files(opened)
            FolderLock(opened).release()
            held = contents(opened) if opened.kind(HEAD) and not overwrite else ""
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from error
    if held:
        raise DatasetError(
            f"{folder} already holds {held}: go on with it by `resume {folder}`, choose another folder, or "
            "replace it with --overwrite"
        )


class JobHead(msgspec.Struct, frozen=True):
    """Entries that a job needs in the head of its folder, besides those of every data set."""

    job: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    policy_hash: str | None
    repeatable: bool
    versions: dict[str, str]
    cpu: str
    device: str


def read_job_head(folder: Path) -> dict[str, Any]:
    """The head of the folder of a job. Raises `DatasetError` where it is none, or no job wrote it."""
    head = read_head(folder)
    if head.get("job") is None:
        raise DatasetError(f"no job wrote {folder}: it has episodes, but nothing says how to play them")
    try:
        msgspec.convert(head, JobHead)
        make_job(head["job"], "job")
    except (msgspec.ValidationError, JobError) as error:
        raise DatasetError(f"{folder / HEAD} is not the head of a job: {error}; restore it, or collect again") from None
    return head


def stored_job(folder: Path) -> Job:
    """The job that a folder says it belongs to, to be compared or shown: not to be run, for it names code.

    Raises `DatasetError` as `read_job_head`.
    """
    return make_job(read_job_head(folder)["job"], str(folder))


def job_of(folder: Path, allow_import: Iterable[str] = ()) -> Job:
    """The job that a folder belongs to, which may be run.

    A folder may come from anybody, and a job names code: what the closed list of `collector.jobs.names` has, and
    classes and functions of the modules in `allow_import`, may be named. Raises `JobError` for all else, `DatasetError`
    as `stored_job`.
    """
    job = stored_job(folder)
    check_names(job, allow_import, folder)
    return job


def job_head(job: Job, batches: Any, policy: Any, device: str) -> dict[str, Any]:
    """The head of the folder of a job: what another run would need to give the same episodes.

    batches: the collector, which has collected a first batch with `policy`.
    """
    venv = batches.env
    keyed = declares_repeatable(policy) or batches.everything_keyed
    more: dict[str, Any] = {
        "ran_on": {"vector_env": type(venv).__name__, "num_workers": venv.num_workers},
        "cpu": cpu_capability(),
        "device": device,
        "policy_hash": hash_of(policy),
        "repeatable": keyed and not with_statistics(job),
    }
    versions = {"vecenv": vecenv.__version__}
    if "torch" in sys.modules:  # one more that decides about bits, beside numpy and gymnasium
        torch = sys.modules["torch"]
        versions["torch"] = str(torch.__version__)
        if device.startswith("cuda"):
            more["device"] += f" ({torch.cuda.get_device_name(device)})"
    head = make_head(venv.observation_space[0], venv.action_space[0], as_record(job), **more)
    return {**head, "versions": {**head["versions"], **versions}}


def cpu_capability() -> str:
    """The instructions of this CPU that numpy and torch choose by.

    >>> cpu_capability().startswith(platform.machine())
    True
    """
    config: Any = np.show_config(mode="dicts")
    found = config.get("SIMD Extensions", {}).get("found", [])
    torch = sys.modules.get("torch")
    more = [] if torch is None else [f"torch:{torch.backends.cpu.get_cpu_capability()}"]
    return " ".join([platform.machine(), *found, *more])


def check_unchanged(
    folder: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any], may_differ: Collection[str] = ()
) -> None:
    """Raise `JobError` with what differs, where anything does but `may_differ`."""
    changes = [
        f"{name} was {_short(stored.get(name))}, and is {_short(wanted.get(name))}"
        for name in {**stored, **wanted}
        if stored.get(name) != wanted.get(name) and name not in may_differ
    ]
    if changes:
        raise JobError(f"the job of {folder} has changed: {'; '.join(changes)}; {OTHER_FOLDER}")


def check_same_job(folder: Path, stored: Job, wanted: Job) -> None:
    """Raise `JobError` with what differs between the job of a folder and another one that is to go on with it."""
    old, new = (as_shown(as_record(job)) for job in (stored, wanted))
    before, after = old["transforms"], new["transforms"]
    if before != after and len(before) == len(after):  # rather the one that differs than the start of the list
        for i, pair in enumerate(zip(before, after, strict=True)):
            old[f"transforms[{i}]"], new[f"transforms[{i}]"] = pair
        old["transforms"] = new["transforms"] = None
    check_unchanged(folder, old, new, ANYWHERE)


def notes_on(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since a repeatable job began that may change bits, though not what the job is."""
    if not stored.get("repeatable"):
        return []
    old, new = (
        {**head.get("versions", {}), "cpu": head.get("cpu"), "device": head.get("device")} for head in (stored, now)
    )
    return [
        f"{name} was {old.get(name)} when the job began, and is {new[name]}: the same bits are not promised"
        for name in new
        if old.get(name) != new[name]
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
