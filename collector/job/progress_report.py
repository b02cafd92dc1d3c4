"""The output of a job: progress while it runs, a table when it ends.

On a terminal progress is a bar; elsewhere (a log file, CI) a plain line now and then, without control characters.
"""

from __future__ import annotations

import numpy as np

from collector.job.run import POLICIES, JobConfig, JobState

try:
    from rich.console import Console, Group
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as error:
    raise ImportError("the command line needs rich: pip install vecenv[job]") from error

RECENT = 100


def make_console() -> Console:
    """Standard output."""
    return Console()


class Report:
    """Shows the progress of one job: pass it to `run_job` as `on_progress`, inside `with`."""

    def __init__(self, console: Console, config: JobConfig) -> None:
        self._console = console
        self._steps = config.steps
        self._heading = (
            f"Collecting {config.steps:,} steps of {config.env} from {config.num_envs} envs into {config.out}"
        )
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
        self._task = self._bar.add_task("", total=config.steps)

    def __enter__(self) -> Report:
        self._say(self._heading)
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, state: JobState) -> None:
        """Show the progress of the job."""
        self._bar.update(self._task, completed=min(state.steps, self._steps), description=_figures(state))
        if not self._console.is_terminal and state.seconds >= self._next_line:
            # Lines grow rarer, down to one a minute; rich flushes each, so a reader of the log gets it at once.
            self._next_line = state.seconds + min(max(1.0, state.seconds / 2), 60.0)
            self._say(f"{state.steps:,} of {self._steps:,} steps  {_figures(state)}")
        if not state.returns and state.unfinished_steps >= self._steps and not self._warned:
            self._warned = True
            self._say(
                f"note: no episode has ended in {state.unfinished_steps:,} steps, and only whole episodes are stored; "
                "--max-episode-steps ends them"
            )

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def _figures(state: JobState) -> str:
    mean = f"mean return {np.mean(state.returns[-RECENT:]):,.1f}" if state.returns else "no episode ended yet"
    figures = f"{state.steps_per_second:,.0f} steps/s  {len(state.returns):,} episodes  {mean}"
    return f"{figures}  {state.bottleneck}" if state.bottleneck else figures


def summary(state: JobState) -> Group:
    """The last output of a job: a line on how it ended, and a table."""
    config = state.config
    heading = "Collected:" if state.status == "complete" else "Interrupted; collected until then, and kept:"
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    where = f"{state.workers} worker processes" if state.workers else "this process"
    table.add_row("env", f"{config.env}, {config.num_envs} in {where} ({config.backend})")
    policy = POLICIES[config.policy] + ("" if config.policy == "random" else f", on {state.device}")
    table.add_row("policy", f"{policy}; seed {config.seed}")
    table.add_row("episodes", f"{len(state.returns):,} whole ones")
    table.add_row("steps", f"{state.steps:,} ({config.steps:,} requested)")
    table.add_row("left out", f"{state.unfinished_steps:,} steps of episodes that had not ended")
    table.add_row("return", _spread(state.returns))
    table.add_row("length", _spread(state.lengths))
    table.add_row("speed", f"{state.steps_per_second:,.0f} steps/s for {state.seconds:.1f} s")
    table.add_row("data", f"{config.out} ({_size(state)})")
    if state.picture is not None:
        table.add_row("picture", str(state.picture))
    return Group(heading, table)


def _spread(values: list[float] | list[int]) -> str:
    if not values:
        return "-"
    return f"mean {np.mean(values):,.1f}, deviation {np.std(values):,.1f}, from {min(values):,g} to {max(values):,g}"


def _size(state: JobState) -> str:
    shards = state.manifest["shards"]
    size = sum(shard["bytes"] for shard in shards)
    return f"{len(shards)} shard{'s' * (len(shards) != 1)}, {size / 2**20:,.1f} MiB"
