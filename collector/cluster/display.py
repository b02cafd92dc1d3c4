"""A `RayCollector` on the terminal: its progress bar, and the table of its actors."""

from __future__ import annotations

from typing import Any

from collector.cluster.cluster_stats import HEADINGS, ClusterStats

try:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ImportError as error:
    raise ImportError("progress=True and tables need rich: pip install vecenv[job]") from error


class ProgressBar:
    """Shows the frames that are collected, and how fast actors are."""

    def __init__(self, total: int, console: Any = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=total if total > 0 else None)
        self._bar.start()

    def show(self, frames: int, stats: ClusterStats) -> None:
        """Show how far the collector is."""
        alive = sum(each.state != "dropped" for each in stats.actors)
        speed = sum(each.steps_per_second for each in stats.actors if each.state != "dropped")
        text = f"{frames:,} frames  {speed:,.0f} steps/s  {alive} actors"
        if stats.restarts:
            text += f"  {stats.restarts} restarts"
        self._bar.update(self._task, completed=frames, description=text)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self._bar.stop()


def as_table(stats: ClusterStats) -> Table:
    """The table of the actors."""
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    *actors, total = stats.rows()
    for row in actors:
        table.add_row(*row)
    table.add_section()
    table.add_row(*total)
    return table
