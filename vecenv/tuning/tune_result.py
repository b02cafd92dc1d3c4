"""What `vecenv.tune` returns: a table, the best row, and the vector env that it describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vecenv.backends.system_limits import usable_cpus
from vecenv.base import BaseVectorEnv
from vecenv.venvs import BACKENDS

BAR = 40
THREAD_SAFE = "envs must be thread-safe"


class TuneRow(NamedTuple):
    """One candidate: what was measured of it, or why not."""

    backend: str
    """"dummy", "shmem" or "thread", as for `vecenv.make_vec`."""
    num_workers: int | None
    """How many workers or threads; None where there are none."""
    steps_per_second: float | None
    """Env steps in a second of the caller's loop; None for a candidate that failed or was not measured."""
    note: str

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments for the vector env besides the env_fns."""
        return {} if self.num_workers is None else {"num_workers": self.num_workers}

    @property
    def name(self) -> str:
        """The class and its arguments, in words."""
        kind = BACKENDS[self.backend].__name__
        unit = "thread" if self.backend == "thread" else "worker"
        workers = "" if self.num_workers is None else f", {self.num_workers} {unit}{'s' * (self.num_workers > 1)}"
        return kind + workers

    @property
    def line(self) -> str:
        """The line to write."""
        kind = BACKENDS[self.backend].__name__
        arguments = ["env_fns", *(f"{name}={value}" for name, value in self.kwargs.items())]
        return f"vecenv.{kind}({', '.join(arguments)})"


@dataclass(frozen=True)
class TuneResult:
    """The table of `vecenv.tune`; `print` shows it with a bar a row."""

    env_fns: Sequence[Callable[[], Any]]
    pause: float
    """Seconds of the caller's work in each round."""
    rows: list[TuneRow]
    """All candidates, the fastest first."""
    best: TuneRow
    """The simplest of those that are as fast as the fastest."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments of the best row."""
        return self.best.kwargs

    def make(self, **options: Any) -> BaseVectorEnv:
        """A new vector env of the same env_fns with the best arguments; `options` are other arguments for it."""
        return BACKENDS[self.best.backend](self.env_fns, **{**self.kwargs, **options})

    def __str__(self) -> str:
        lines = [
            f"{len(self.env_fns)} envs, {self.pause * 1e3:g} ms of the caller's work in each round, "
            f"{usable_cpus()} CPUs: env steps a second"
        ]
        width = max(len(row.name) for row in self.rows)
        most = max(row.steps_per_second or 0.0 for row in self.rows)
        for row in self.rows:
            rate = row.steps_per_second
            figure = "-" if rate is None else f"{rate:,.0f}"
            bar = "#" * round(BAR * (rate or 0.0) / most)
            note = ", ".join(part for part in ("best" if row is self.best else "", row.note) if part)
            lines.append(f"  {row.name:{width}}  {figure:>11}  {bar:{BAR}}  {note}".rstrip())
        lines.append(f"write: venv = {self.best.line}" + (f"  # {self.best.note}" if self.best.note else ""))
        if self.best.backend == "thread" and (safe := self._best_without_threads()):
            lines.append(f"   or: venv = {safe.line}")
        return "\n".join(lines)

    def _best_without_threads(self) -> TuneRow | None:
        return next((row for row in self.rows if row.steps_per_second and row.backend != "thread"), None)
