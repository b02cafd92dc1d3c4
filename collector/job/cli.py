"""The command line of collection jobs: `python -m collector --env CartPole-v1 --steps 50000 --out data/cartpole`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collector.arguments import whole
from collector.job.run import DEVICES, POLICIES, JobConfig, JobError, run_job
from collector.store.errors import DatasetError
from vecenv.tuning.auto_backend import VECTOR_ENVS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job of a command line, and return the exit code.

    0: collected. 1: it failed, or the folder cannot be used. 2: it cannot run with these arguments. 130, 143: ended by
    Ctrl-C (SIGINT), by SIGTERM; what was collected is kept.
    """
    parser = make_parser()
    options = vars(parser.parse_args(argv))
    options.setdefault("out", Path("data") / re.sub(r"[/:]", "-", options["env"]))
    workers = options.get("workers")
    if workers is not None and options["backend"] == "dummy":
        parser.error("argument --workers: the dummy backend has none; use --backend shmem or subproc")
    if workers is not None and workers > options["num_envs"]:
        parser.error(f"argument --workers: {workers} workers for {options['num_envs']} envs; one each is the most")
    try:
        return _run(parser, options)
    except KeyboardInterrupt:
        print(f"\nstopped at once; episodes committed before are in {options['out']}", file=sys.stderr)
        return 130


def _run(parser: argparse.ArgumentParser, options: dict[str, Any]) -> int:
    try:
        # Imported here, so that --help and wrong arguments are answered without it.
        from collector.job.progress_report import Report, make_console, summary
    except ImportError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    console, config = make_console(), JobConfig(**options)
    try:
        with Report(console, config) as report:
            state = run_job(config, report)
    except JobError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except DatasetError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except Exception:
        print(f"{parser.prog}: the job failed; whole episodes until then are kept in {config.out}", file=sys.stderr)
        raise
    console.print(summary(state))
    return 128 + state.signum if state.signum else 0


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments; their names are those of `JobConfig`."""
    parser = argparse.ArgumentParser(
        prog="python -m collector",
        description="Collect whole episodes of a gymnasium env into a folder.",
        epilog="Ctrl-C and SIGTERM end a job cleanly: whole episodes so far are kept. Read them with "
        "collector.load_episodes(folder), or with np.load. Exit status: 0 all collected, 1 failed, 2 wrong arguments, "
        "130 and 143 ended by a signal.",
    )

    def add(name: str, help: str, **options: Any) -> None:
        default = getattr(JobConfig, name, None)
        if default is None:  # not passed, so that `JobConfig` has the default
            default = argparse.SUPPRESS
        else:
            help += " [%(default)s]"
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=help, **options)

    count = {"type": _count, "metavar": "N"}
    add("env", "gymnasium id, such as CartPole-v1 or my_module:MyEnv-v0", required=True, metavar="ID")
    add("steps", "stop once whole episodes have this many steps", **count)
    add("out", "folder for the episodes [data/ID]", type=Path, metavar="FOLDER")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier job wrote there")
    add("num_envs", "envs side by side", **count)
    add(
        "backend",
        "where envs run; dummy: in this process; auto: what is faster",
        choices=VECTOR_ENVS,
    )
    add("workers", "worker processes [one for each CPU]", **count)
    add("policy", "mlp: a network with random weights", choices=POLICIES)
    add("device", "where the network runs", choices=DEVICES)
    add("policy_threads", "threads for the network on the CPU", **count)
    add("seed", "the same seed, the same episodes", type=_seed, metavar="N")
    add("max_episode_steps", "truncate episodes after this many steps [the limit of the env]", **count)
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="draw no picture of the returns")
    return parser


def _count(text: str) -> int:
    return _whole_number(text, 1)


def _seed(text: str) -> int:
    return _whole_number(text, 0)


def _whole_number(text: str, least: int) -> int:
    try:
        digits = text.replace(",", "")
        number = whole(text, float(digits) if set("eE.") & set(digits) else int(digits))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number
