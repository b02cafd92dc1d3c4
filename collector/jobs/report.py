"""Terminal output of jobs and `info`."""

from __future__ import annotations

import re
import shlex
from typing import Any

from collector.jobs.builders import NOT_CHECKED
from collector.jobs.job import Job
from collector.jobs.job_progress import JobState
from collector.jobs.names import modules_to_allow

try:
    from rich.console import Console, Group
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise ImportError("the command line needs rich: pip install 'vecenv[job]'") from error


POLICY_NOTES = {"mlp": "a network with random weights, not trained", "random": "uniform random actions"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which a terminal would execute."""


def make_console(stderr: bool = False) -> Console:
    return Console(stderr=stderr)


def wanted(job: Job) -> str:
    return f"{job.episodes:,} episodes" if job.episodes is not None else f"{job.steps:,} steps"


class Report:
    """Progress display: `with Report(console, job, heading) as report: run_job(job, out, on_progress=report)`."""

    def __init__(self, console: Console, job: Job, heading: str) -> None:
        self._console, self._job, self._heading = console, job, heading
        self._next_line = 1.0
        self._warned = False
        self._bar = Progress(
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> Report:
        self._print(self._heading)
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, state: JobState) -> None:
        self._bar.update(self._task, completed=state.done, description=_figures(state))
        if not self._console.is_terminal and state.seconds >= self._next_line:
            self._next_line = state.seconds + min(max(1.0, state.seconds / 2), 60.0)
            self._print(f"{state.done:.0%} of {wanted(self._job)}: {state.steps:,} steps  {_figures(state)}")
        if not state.returns and not self._warned and state.frames >= (self._job.steps or 100_000):
            self._warned = True
            self._print(
                f"note: no episode has ended in {state.frames:,} steps, and only whole episodes are stored; "
                "--max-episode-steps truncates episodes"
            )

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def _figures(state: JobState) -> str:
    mean = state.returns_in_words() if state.returns else "no episode ended yet"
    figures = f"{state.steps_per_second:,.0f} steps/s  {state.episodes:,} episodes  {mean}"
    if state.retried or state.skipped:
        figures += f"  {state.retried} played again, {len(state.skipped)} skipped"
    return f"{figures}  {state.bottleneck}" if state.bottleneck else figures


def summary(state: JobState, info: dict[str, Any] | None) -> Group:
    """Build the final output of a job. `info`: result of `dataset_info`; None if no episode is stored."""
    job, folder = state.job, shlex.quote(str(state.out))
    where = f"{state.workers} workers" if state.workers else "this process"
    where = f"each of {state.actors} tasks" if state.actors else where
    policy = (
        f"{job.policy}, weights of {job.checkpoint}" if job.checkpoint else POLICY_NOTES.get(job.policy, job.policy)
    )
    rows = [
        *([("folder", str(state.out)), ("status", "not begun"), ("env", job.env)] if info is None else rows_of(info)),
        ("this run", f"{job.num_envs} envs in {where} ({job.backend}), {policy}, on {state.device}"),
        ("", f"{state.steps_per_second:,.0f} steps/s for {state.seconds:.1f} s"),
        *((f"episode {number}", reason[:300]) for number, reason in list(state.skipped.items())[:3]),
        *(("note", note) for note in state.notes),
    ]
    if state.status == "complete":
        return Group("Collected:", table_of(rows))
    if info is None or (modules := modules_to_allow(job, state.out)) is None:
        advice = "To resume, run the same command with --resume and without --overwrite"
    else:
        flags = (f" --allow-import {module}" for module in modules)
        advice = f"Resume with: python -m collector resume {folder}{''.join(flags)}"
    # `Text`, because Rich would read brackets in a path as markup.
    return Group("Interrupted; collected until then, and kept:", table_of(rows), Text(advice))


def rows_of(info: dict[str, Any]) -> list[tuple[str, str]]:
    job, speed = info["job"] or {}, info["steps_per_second"]
    how_many = {name: job[name] for name in ("episodes", "steps") if type(job.get(name)) is int}
    asked = ", ".join(f"{count:,} {name}" for name, count in how_many.items())
    return [
        ("folder", info["folder"]),
        ("status", info["status"]),
        ("env", str(job.get("env", "written by a program, not a job"))),
        ("policy", f"{job.get('policy', '?')}; seed {job.get('seed', '?')}"),
        *(("transform", text) for text in info["statistics"]),
        ("repeatable", repeatable_in_words(info)),
        ("episodes", f"{info['episodes']:,}" + (f" of a job of {asked}" if asked else "")),
        ("steps", f"{info['steps']:,}"),
        ("return", spread_in_words(info["returns"]) + interval_in_words(info["returns"], info["episodes"])),
        ("length", spread_in_words(info["lengths"])),
        ("failures", ", ".join(f"{count:,} {name}" for name, count in info["failed"].items()) or "none"),
        ("speed", "?" if speed is None else f"{speed:,.0f} steps/s in the last run"),
        ("size", f"{info['shards']} shard{'s' * (info['shards'] != 1)}, {decimal(info['bytes'])}"),
        ("made on", f"{info['cpu'] or '?'}, {info['device'] or '?'}"),
    ]


def repeatable_in_words(info: dict[str, Any]) -> str:
    answer, reason = {"True": "yes", "False": "no"}.get(str(info["repeatable"]), "?"), info["not_repeatable_because"]
    if answer != "no" or not reason:
        return answer
    return str(reason) if str(reason).startswith(NOT_CHECKED) else f"no: {reason}"


def table_of(rows: list[tuple[str, str]]) -> Table:
    """Build a table. Texts are untrusted, so control characters are replaced."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)))
    return table


def interval_in_words(values: dict[str, float] | None, count: int) -> str:
    if values is None or count < 2:
        return ""
    half = 1.96 * values["std"] / (count - 1) ** 0.5
    return f" (95 % interval of the mean: {values['mean'] - half:,.1f} to {values['mean'] + half:,.1f})"


def spread_in_words(values: dict[str, float] | None) -> str:
    if values is None:
        return "-"
    mean, std, low, high = (values[name] for name in ("mean", "std", "min", "max"))
    return f"mean {mean:,.1f}, deviation {std:,.1f}, from {low:g} to {high:g}"
