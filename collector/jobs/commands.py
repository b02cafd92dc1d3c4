"""Commands of jobs: `python -m collector run cartpole.toml --out data/cartpole`, `info`, `export`, `verify`, ...

tyro builds the command line from the arguments and docstrings of these functions and of `Job`. Exit codes:

- 0: done.
- 1: the job failed, `verify` found a problem, or the folder cannot be used.
- 2: wrong arguments or settings, or a missing package.
- 130, 143: ended by SIGINT (Ctrl-C) or SIGTERM. `resume` continues the job.
"""

# ruff: noqa: B006, B008 (tyro never writes to defaults)
from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

import msgspec
import tyro
from tyro.conf import Positional, arg

from collector.jobs.builders import check_cluster, check_env_name
from collector.jobs.dataset_info import dataset_info, import_figure, plot_dataset, statistics_in_words
from collector.jobs.job import Job, JobError, as_display_record, as_record
from collector.jobs.job_files import job_from_settings, load_job, load_stored_job, with_settings
from collector.jobs.job_progress import JobState
from collector.jobs.job_runner import resume_job, run_job
from collector.jobs.player import JobFailedError
from collector.jobs.replay import make_videos, replay_episodes
from collector.store.dataset import Dataset
from collector.store.export import SUFFIXES, check_export
from collector.store.export import export as export_dataset
from collector.store.safe_folder import DatasetError
from vecenv import WorkerTimeoutError

MINARI_ID = re.compile(r"[\w-]{2,}/[\w-]+-v\d+", re.ASCII)
Settings = Annotated[
    list[str], tyro.conf.UseAppendAction, arg(metavar="NAME=VALUE", help_behavior_hint="(may be repeated)")
]
Modules = Annotated[list[str], tyro.conf.UseAppendAction, arg(metavar="MODULE", help_behavior_hint="(may be repeated)")]
ClusterAddress = Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")]
OptionalCount = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
JobFile = Annotated[OptionalPath, Positional, arg(metavar="[FILE]", help_behavior_hint="")]
Folder = Annotated[Path, Positional]


def _flag(field: Any) -> Any:
    many = field.name in ("wrappers", "transforms")
    choices = "|".join(each for each in get_args(field.type) if isinstance(each, str))
    kinds = {str: "TEXT", str | None: "TEXT", bool: "true|false"}
    metavar = (
        "JSON" if many or field.name.endswith(("kwargs", "keys", "ray")) else choices or kinds.get(field.type, "N")
    )
    shown = "" if metavar == "JSON" or field.default in (None, msgspec.NODEFAULT) else f"[{field.default}]"
    aliases = [f"--{field.name[:-1]}"] if many else []
    return Annotated[str, arg(metavar=metavar, help_behavior_hint=shown, aliases=aliases)]


DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Job)}
Flags = TypedDict("Flags", {each.name: _flag(each) for each in msgspec.structs.fields(Job)}, total=False)  # type: ignore[misc]
Flags.__doc__ = Job.__doc__
JobFlags = Annotated[Flags, arg(name="")]


@dataclass
class Running:
    """Options of the commands that run a job.

    Args:
        cluster: address of a Ray cluster to play on. "auto": RAY_ADDRESS if set, else a running cluster on this
            machine, else a new one. Each Ray task makes num_envs envs. A task whose node does not see the folder sends
            its episodes to this machine.
        cluster_actors: number of parallel tasks [as many as fit].
        no_plot: do not draw the returns when the job ends.
        tensorboard: also write metrics for TensorBoard.
        json: print the result as JSON; progress goes to standard error.
    """

    cluster: ClusterAddress = None
    cluster_actors: OptionalCount = None
    no_plot: bool = False
    tensorboard: bool = False
    json: bool = False


RunningFlags = Annotated[Running, arg(name="")]


def _job_of(file: Path | None, settings: list[str], flags: Flags) -> Job:
    settings = [*settings, *(f"{name}={text}" for name, text in flags.items())]
    if file is not None and ":" in file.name and not file.exists():
        raise JobError(f"{file} is not a job file; to name an env, pass --env {file}")
    return load_job(file, settings) if file is not None else job_from_settings(settings)


def _check_count(name: str, value: int, least: int) -> None:
    if value < least:
        raise JobError(f"{name} must be at least {least}, got {value}")


def run(
    job: JobFile = None,
    *,
    out: OptionalPath = None,
    set: Settings = [],
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    running: RunningFlags = Running(),
    flags: JobFlags = {},
) -> int:
    """Collect the episodes of a job into a folder.

    Args:
        job: a JSON, TOML or YAML file. Without a file, pass --env and --episodes or --steps.
        out: folder for the episodes [data/NAME, with the name of the job file or env].
        set: NAME=VALUE or NAME.KEY=VALUE, overrides the file.
        resume: continue an earlier run of this job, if any.
        overwrite: replace the data of an earlier job.
        dry_run: check and print the job, without running it.
        running: options of the run.
        flags: settings of the job.
    """
    wanted = _job_of(job, set, flags)
    folder = out or Path("data") / (job.stem if job is not None else re.sub(r"[/:]", "-", wanted.env))
    if dry_run:
        check_env_name(wanted)
        check_cluster(wanted, running.cluster, running.cluster_actors)
        shown = as_display_record(as_record(wanted))
        plan = {"out": str(folder), "job": shown, "statistics": statistics_in_words(shown)}
        if running.cluster is not None:
            plan["cluster"] = {"address": running.cluster, "actors": running.cluster_actors or "as many as fit"}
        return _print_json(plan)

    return _collect(wanted, folder, running, partial(run_job, wanted, folder, overwrite=overwrite, resume=resume))


def resume(folder: Folder, *, set: Settings = [], allow_import: Modules = [], running: RunningFlags = Running()) -> int:
    """Resume the job of a folder.

    Args:
        folder: a folder that `run` wrote.
        set: NAME=VALUE, for settings that do not change episodes: backend, num_workers, step_timeout, ...
        allow_import: a trusted module that the stored job may import.
        running: options of the run.
    """
    job = with_settings(load_stored_job(folder, allow_import), set)
    return _collect(job, folder, running, partial(resume_job, folder, None, set, allow_import=allow_import))


def info(folder: Folder, *, json: bool = False) -> int:
    """Print a summary: episodes, returns, failures, speed and size.

    Args:
        folder: a data set.
        json: print JSON.
    """
    found = dataset_info(folder)
    if json:
        return _print_json(found)
    from collector.jobs.report import make_console, rows_of, table_of

    make_console().print(table_of(rows_of(found)))
    return 0


def verify(folder: Folder, *, replay: int = 0, allow_import: Modules = [], json: bool = False) -> int:
    """Check the data of a folder: sizes, hashes and the content of the shards.

    Args:
        folder: a data set.
        replay: also replay this many episodes, and compare them with the data. If the job is repeatable, the policy
            chooses the actions. If not, the stored actions are repeated.
        allow_import: a trusted module that the stored job may import.
        json: print JSON.
    """
    _check_count("--replay", replay, 0)
    data = Dataset(folder)
    problems = data.verify()
    replayed = replay_episodes(folder, replay, allow_import) if replay and not problems else {}
    differences = {number: text for number, text in replayed.items() if text}
    if json:
        result = {"episodes": len(data), "problems": problems, "replayed": len(replayed), "differences": differences}
        _print_json(result)
    else:
        lines = [*problems, *(f"episode {number}, played again: {text}" for number, text in differences.items())]
        same = len(replayed) - len(differences)
        lines.append(f"{len(data):,} episodes in {len(data.shard_files)} shards: {'damaged' if problems else 'whole'}")
        if replayed:
            how = "with the policy" if data.head.get("repeatable") else "with the stored actions"
            lines.append(f"{same} of {len(replayed)} episodes, played again {how}, are the same bit for bit")
        sys.stdout.write("\n".join(lines) + "\n")
    return 1 if problems or differences else 0


def plot(folder: Folder, *, out: OptionalPath = None) -> int:
    """Draw returns, lengths and speed.

    Args:
        folder: a data set.
        out: the PNG file [returns.png inside the data set].
    """
    if out is not None and out.suffix.lower() not in ("", ".png"):
        raise JobError(f"--out names a PNG file, got {out}")
    sys.stdout.write(f"{plot_dataset(folder, out)}\n")
    return 0


def video(
    folder: Folder,
    *,
    episodes: Annotated[list[int], arg(metavar="N ...", help_behavior_hint="")] = [],
    out: OptionalPath = None,
    num_workers: int = 2,
    allow_import: Modules = [],
) -> int:
    """Render episodes as videos by replaying their seeds and actions.

    Args:
        folder: a folder that a job wrote.
        episodes: numbers of the episodes [the one with the highest return].
        out: folder for the videos ["videos" inside the job's folder].
        num_workers: processes that render.
        allow_import: a trusted module that the stored job may import.
    """
    _check_count("--num-workers", num_workers, 1)
    videos = make_videos(folder, episodes or None, out, num_workers=num_workers, allow_import=allow_import)
    for each in videos:
        note = f"  (not as it was stored: {each.difference})" if each.difference else ""
        sys.stdout.write(f"{each.path}{note}\n")
    return 0


def export(
    folder: Folder,
    *,
    to: Literal["minari", "lerobot", "parquet", "d3rlpy", "robomimic", "ogbench"],
    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")] = None,
) -> int:
    """Write the episodes of a folder in the format of another tool.

    Args:
        folder: a data set.
        to: the format.
        out: the folder or file to write. With --to minari, an id such as mine/cartpole-v0 is a path inside Minari's
            folder. [for data/cartpole: data/cartpole-parquet, data/cartpole-d3rlpy.h5, or the id exported/cartpole-v0]
    """
    logging.basicConfig(format="%(message)s")  # shows what the export cannot store
    name = folder.resolve().name
    if to == "minari":
        out = out or f"exported/{re.sub(r'[^A-Za-z0-9_-]', '-', name)}-v0"
        where = _minari_folder() / out if MINARI_ID.fullmatch(out) else Path(out)
    else:
        where = Path(out) if out is not None else folder.resolve().with_name(f"{name}-{to}{SUFFIXES.get(to, '')}")
    sys.stdout.write(f"{export_dataset(folder, to, where)}\n")
    return 0


def check(folder: Folder, export: Folder, *, json: bool = False) -> int:
    """Compare an export with its data set, bit for bit, and print what the format does not hold.

    Args:
        folder: a data set.
        export: a folder or file that the command `export` wrote.
        json: print JSON.
    """
    found = check_export(folder, export)
    if json:
        _print_json(found)
    else:
        from collector.jobs.report import make_console, table_of

        make_console().print(table_of([*found.items()]))
    return 1 if any(text.startswith("DIFFERENT") for text in found.values()) else 0


def _minari_folder() -> Path:
    try:
        return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    except RuntimeError:
        raise JobError(
            "the user has no home folder for data sets of Minari: set MINARI_DATASETS_PATH, or pass --out ./NAME"
        ) from None


COMMANDS: dict[str, Callable[..., int]] = {
    each.__name__: each for each in (run, resume, info, verify, export, check, plot, video)
}


def _collect(job: Job, folder: Path, running: Running, play: Callable[..., JobState]) -> int:
    from collector.jobs.report import Report, make_console, summary, wanted  # --help works without rich

    if not running.no_plot:
        import_figure("; or use --no-plot")  # fail before the collection
    console = make_console(stderr=running.json)
    if not running.json:
        settings = as_display_record(as_record(job)).items()
        changed = {name: each for name, each in settings if each != DEFAULTS.get(name) and each not in ([], {})}
        console.print(f"Job: {json.dumps(changed)}", highlight=False, soft_wrap=True, markup=False)
    where = "" if running.cluster is None else " in each task"
    heading = f"Collecting {wanted(job)} of {job.env} from {job.num_envs} envs{where} into {folder}"
    options: Any = {name: getattr(running, name) for name in ("cluster", "cluster_actors", "tensorboard")}
    whole = os.path.abspath(folder)  # an env in this process may change the current folder
    try:
        with Report(console, job, heading) as report:
            state = play(on_progress=report, **options)
    except (KeyboardInterrupt, SystemExit) as error:
        if not hasattr(error, "state"):  # a second Ctrl-C
            raise
        state = error.state
    except (JobError, DatasetError):
        raise
    except WorkerTimeoutError as error:  # needs no traceback
        raise JobFailedError(str(error)) from None
    except Exception:
        sys.stderr.write(f"the job failed; whole episodes until then are kept in {folder}\n")
        raise
    if not running.no_plot and state.episodes:
        try:
            plot_dataset(whole)
        except DatasetError as error:  # the job itself has succeeded
            state.notes.append(f"there is no picture: {error}")
    # without episodes, the folder may not exist
    info = {**dataset_info(whole), "folder": str(folder)} if state.episodes else None
    console.print(summary(state, info), soft_wrap=True)
    if running.json:
        found = {"signal": state.signum, "skipped": state.skipped, "retried": state.retried, **(info or {})}
        _print_json({"interrupted": state.status == "interrupted", **found})
    return 128 + state.signum if state.signum else 0


def _print_json(value: Any) -> int:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    return 0
