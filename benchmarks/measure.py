"""Interleaved measurement: every lane of an experiment in turn, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

from benchmarks.lane import Lane, LaneError, Spec
from benchmarks.procfs import busy_seconds, cpu_seconds, descendants
from benchmarks.rows import Claim, Experiment
from benchmarks.sample import Sample

Say = Callable[[str], None]

CALM = 0.15  # CPUs that other programs may keep busy in a round that counts as undisturbed


@dataclass
class Result:
    """One line of the table, ready to print."""

    row: str
    value: str
    yardstick: str = ""
    ratio: str = ""
    target: str = ""
    reached: bool | None = None
    """None where there is no target, or no figure to hold against it."""


@dataclass
class Measured:
    """All rounds of one experiment. `samples[title][r]` is round r; a lane that failed has no rounds."""

    experiment: Experiment
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    disturbed: int = 0
    """The number of rounds that count and were measured while other programs were busy."""

    def take(self, rounds: list[dict[str, Sample]]) -> None:
        """Keep these rounds of every lane that lived through all of them."""
        self.disturbed = len(rounds) - _calm(rounds)
        for spec in self.experiment.lanes:
            if all(spec.title in samples for samples in rounds):
                self.samples[spec.title] = [samples[spec.title] for samples in rounds]

    def results(self) -> list[Result]:
        return [self._judge(claim) for claim in self.experiment.claims]

    def _judge(self, claim: Claim) -> Result:
        for title in filter(None, (claim.lane, claim.over)):
            if title not in self.samples:
                return Result(claim.title, "-", claim.over, "not measured", _target(claim))
        own = self.samples[claim.lane]
        if not claim.over:
            costs = [sample.cpu_per_call * 1e6 for sample in own]
            text = f"{median(costs):.1f} us"
            spread = f"({min(costs):.1f}-{max(costs):.1f}){self.warning()}"
            return Result(claim.title, text, "", spread, _target(claim), self.verdict(median(costs) <= claim.target))
        other = self.samples[claim.over]
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(own, other, strict=True)]
        return Result(
            claim.title,
            _rate(own),
            f"{claim.over} {_rate(other)}",
            f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}){self.warning()}",
            _target(claim),
            self.verdict(median(ratios) >= claim.target),
        )

    def verdict(self, reached: bool) -> bool | None:
        """No verdict where most of the rounds were disturbed: neither a yes nor a no would be worth anything."""
        rounds = max((len(samples) for samples in self.samples.values()), default=0)
        return None if 2 * self.disturbed > rounds else reached

    def warning(self) -> str:
        """A note behind a ratio, if other programs disturbed some of its rounds."""
        return f", {self.disturbed} rounds disturbed" if self.disturbed else ""


@dataclass(frozen=True)
class Effort:
    """The length and number of measurements, and the time to wait for other programs to finish."""

    rounds: int
    seconds: float
    patience: float
    """Seconds an experiment may spend on rounds that other programs disturbed, before it takes them."""
    servers: tuple[int, ...] = ()
    """Processes that work for the lanes, such as those of Ray: with all below them they are no other programs."""


def run_experiment(experiment: Experiment, effort: Effort, say: Say) -> Measured:
    """Open all lanes, then measure them in turn; the order shifts by one lane every round.

    A ratio is taken within a round, so that a slow spell of the machine hits both of its sides.
    A round in which other programs were busy is set aside and repeated while patience lasts; the
    least disturbed rounds count.
    """
    measured = Measured(experiment)
    lanes: list[Lane] = []
    rounds: list[dict[str, Sample]] = []
    try:
        for spec in experiment.lanes:
            lane = _open(spec, measured, say)
            if lane is not None:
                lanes.append(lane)
        give_up = time.monotonic() + effort.patience
        while len(rounds) < effort.rounds or (_calm(rounds) < effort.rounds and time.monotonic() < give_up):
            shift = len(rounds) % max(1, len(lanes))
            rounds.append({})
            for lane in lanes[shift:] + lanes[:shift]:
                _sample(lane, effort, rounds[-1], measured, say)
            lanes = [lane for lane in lanes if lane.spec.title not in measured.skipped]
            if _foreign(rounds[-1]) > CALM:
                _wait_for_calm(give_up)
    finally:
        for lane in lanes:
            with suppress(LaneError):
                lane.close()
    measured.take(sorted(rounds, key=_foreign)[: effort.rounds])
    return measured


def _foreign(samples: dict[str, Sample]) -> float:
    return max((sample.foreign for sample in samples.values()), default=0.0)


def _calm(rounds: list[dict[str, Sample]]) -> int:
    return sum(_foreign(samples) <= CALM for samples in rounds)


def _wait_for_calm(deadline: float) -> None:
    """Wait, with every lane idle, until the machine is idle too or the deadline has passed."""
    while time.monotonic() < deadline:
        before = busy_seconds()
        time.sleep(1.0)
        if busy_seconds() - before <= CALM:
            return


def _open(spec: Spec, measured: Measured, say: Say) -> Lane | None:
    if reason := spec.missing():
        measured.skipped[spec.title] = reason
        say(f"  {spec.title}: skipped, {reason}")
        return None
    try:
        return Lane(spec)
    except LaneError as error:
        measured.skipped[spec.title] = str(error)
        say(f"  {spec.title}: skipped, it could not be opened: {_last_line(error)}")
        return None


def _sample(lane: Lane, effort: Effort, into: dict[str, Sample], measured: Measured, say: Say) -> None:
    title = lane.spec.title
    tree = sorted({pid for root in (lane.pid, *effort.servers) for pid in (root, *descendants(root))})
    try:
        everything, own, begun = busy_seconds(), cpu_seconds(tree), time.perf_counter()
        sample = lane.call("measure", effort.seconds)
        wall = time.perf_counter() - begun
        foreign = (busy_seconds() - everything - (cpu_seconds(tree) - own)) / wall
    except LaneError as error:
        lane.kill()
        measured.skipped[title] = str(error)
        say(f"  {title}: dropped, it failed while being measured: {_last_line(error)}")
        return
    into[title] = replace(sample, foreign=max(0.0, foreign))
    time.sleep(lane.spec.settle)


def _last_line(error: LaneError) -> str:
    """The exception of a remote traceback; all of it is in the JSON file."""
    return str(error).strip().splitlines()[-1]


def _rate(samples: list[Sample]) -> str:
    return f"{median(sample.rate for sample in samples):,.0f}/s"


def _target(claim: Claim) -> str:
    return f">= {claim.target:g}" if claim.over else f"<= {claim.target:g} us"
