"""Measure the lanes of an experiment alternately, round after round."""

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

CALM = 0.15  # CPUs that other programs may use in an undisturbed round


@dataclass
class Result:
    """A printed line of the table."""

    row: str
    value: str
    yardstick: str = ""
    ratio: str = ""
    target: str = ""
    reached: bool | None = None
    """None if there is no target, or no figure to compare."""


@dataclass
class Measured:
    """All rounds of an experiment. `samples[title][r]` is round r. A failed lane has no rounds."""

    experiment: Experiment
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    disturbed: int = 0
    """Number of used rounds during which other programs were busy."""

    def take(self, rounds: list[dict[str, Sample]]) -> None:
        """Keep the rounds of every lane that has measured all of them."""
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
        """Return `reached`, or None if most rounds were disturbed and the result means little."""
        rounds = max((len(samples) for samples in self.samples.values()), default=0)
        return None if 2 * self.disturbed > rounds else reached

    def warning(self) -> str:
        """Return a note for a ratio if other programs disturbed some rounds."""
        return f", {self.disturbed} rounds disturbed" if self.disturbed else ""


@dataclass(frozen=True)
class Effort:
    """Length and number of measurements, and the time to wait for other programs."""

    rounds: int
    seconds: float
    patience: float
    """Seconds that an experiment may spend on repeating disturbed rounds."""
    servers: tuple[int, ...] = ()
    """Processes that work for the lanes, for example Ray. They and their children do not count as other programs."""


def run_experiment(experiment: Experiment, effort: Effort, say: Say) -> Measured:
    """Open all lanes, and measure them alternately. The order of the lanes changes every round.

    A ratio compares two lanes of the same round, so that a slow phase of the machine affects both. While `patience`
    lasts, rounds during which other programs were busy are repeated. The least disturbed rounds count.
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
    """Wait, with all lanes idle, until other programs are idle or the deadline has passed."""
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
    """Return the last line of a remote traceback. The JSON file has the whole traceback."""
    return str(error).strip().splitlines()[-1]


def _rate(samples: list[Sample]) -> str:
    return f"{median(sample.rate for sample in samples):,.0f}/s"


def _target(claim: Claim) -> str:
    return f">= {claim.target:g}" if claim.over else f"<= {claim.target:g} us"
