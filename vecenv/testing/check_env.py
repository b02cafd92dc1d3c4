"""`check_env`: finds out if an env meets the conditions for equal results on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from vecenv.arguments import check_count, check_env_fns, check_seed, check_timeout
from vecenv.backends.worker.worker_setup import pickle_env_fn
from vecenv.errors import VectorEnvError, WorkerTimeoutError
from vecenv.testing import env_probe
from vecenv.testing.env_probe import EnvCosts, EnvProbe, Trace
from vecenv.tuning.repeats import first_difference
from vecenv.venvs import ShmemVectorEnv

MARKS = {True: "ok", False: "FAIL", None: "note"}
LEAK = 2**16
"""Growth of memory in bytes per episode from which a row is a note."""


class CheckRow(NamedTuple):
    """Row of a `CheckResult`."""

    name: str
    holds: bool | None
    """True ("ok"): the condition holds. False ("FAIL"): the env breaks a condition for equal results on every backend.
    None ("note"): vecenv accepts this, but it may surprise you.
    """
    text: str


@dataclass(frozen=True)
class CheckResult:
    """Result of `check_env`. `print` shows a table."""

    rows: list[CheckRow]

    @property
    def ok(self) -> bool:
        """True if no row fails."""
        return all(row.holds is not False for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        indent = "\n" + " " * (width + 8)
        return "\n".join(
            f"{MARKS[row.holds]:4}  {row.name:{width}}  {row.text.strip().replace(chr(10), indent)}".rstrip()
            for row in self.rows
        )


def check_env(
    env_fn: Callable[[], Any] | str, *, seed: int = 0, steps: int = 200, timeout: float = 60.0
) -> CheckResult:
    """Play an env in worker processes, and report whether it repeats, is independent of other envs, and what it costs.

    The env plays `steps` random steps: twice in a row, in a new process, and beside a second env in one process. If the
    env gives an `action_mask`, all actions are legal. An episode that does not end is left by a reset. Floats must be
    equal bit for bit, and NaN is equal to NaN.

    env_fn: function that makes the env, or a gymnasium id.
    seed: seed of the first episode and of the actions.
    steps: number of steps of each play. Slow envs play fewer, in a tenth of `timeout`.
    timeout: seconds that an env may take for each play or measurement. A worker that takes longer is killed.

    Errors, hangs and crashes of the env become rows. Raises TypeError, ValueError and gymnasium's error for wrong
    arguments.

    >>> import gymnasium as gym
    >>> result = check_env(lambda: gym.make("CartPole-v1"), steps=50)
    >>> result.ok, result.rows[0]
    (True, CheckRow(name='env_fn can be pickled', holds=True, text=''))
    """
    (make,) = check_env_fns([env_fn])
    seed, steps, seconds = check_seed(seed), check_count("steps", steps), check_timeout(timeout)
    if seconds is None:
        raise ValueError("timeout must be a positive number of seconds, got None")
    try:
        pickled = pickle_env_fn(0, make)
    except TypeError as error:
        return CheckResult([CheckRow("env_fn can be pickled", False, f"{error} The other checks use processes.")])
    rows = _play(partial(EnvProbe, pickled, steps), seed, seconds)
    return CheckResult([CheckRow("env_fn can be pickled", True, ""), *rows])


def _play(probe: Callable[[], EnvProbe], seed: int, timeout: float) -> list[CheckRow]:
    worker = partial(ShmemVectorEnv, [probe], step_timeout=timeout)
    try:
        with worker() as venv:
            first: Trace = venv.call("play", seed, None, timeout / 10)[0]
            again: Trace = venv.call("play", seed, len(first.records), timeout)[0]
            costs: EnvCosts = venv.call("measure", timeout / 10)[0]
            fork = _ask(venv, "fork", seed, min(10.0, timeout / 2))
    except VectorEnvError as error:
        return [CheckRow("plays in vecenv", False, _text(error))]
    with worker(context="spawn") as venv:
        fresh = _ask(venv, "play", seed, len(first.records), timeout)
    with worker() as venv:
        neighbor = _ask(venv, "make_neighbor")
        beside = neighbor if isinstance(neighbor, str) else _ask(venv, "play_beside", seed, len(first.records))
    resets = sum(not record.step for record in first.records)
    length = f"{len(first.records) - resets} steps, {resets} episode{'s' * (resets > 1)}"
    return [
        CheckRow("plays in vecenv", True, length),
        *_repeat_rows(first, again, fresh, beside),
        *_result_rows(again, "" if isinstance(fresh, str) else _difference(first, fresh, "info")[1]),
        *_cost_rows(costs, fork),
    ]


def _ask(venv: ShmemVectorEnv, method: str, *args: Any) -> Any:
    """Call a method of the probe. Return its result, or its failure as text."""
    try:
        return venv.call(method, *args)[0]
    except VectorEnvError as error:
        return _text(error)


def _text(error: VectorEnvError) -> str:
    if not isinstance(error, WorkerTimeoutError):
        return str(error).partition("; the envs of other workers")[0]
    stack = str(error).rpartition("thread ")[2].partition(env_probe.__file__)[0].splitlines()[1:-1]
    return "\n".join([str(error).partition(";")[0], *stack])


def _repeat_rows(first: Trace, again: Trace, fresh: Trace | str, beside: Trace | str) -> Iterator[CheckRow]:
    episode, text = _difference(first, again)
    in_new, elsewhere = _difference(first, fresh)
    text = f"numbered episodes depend on what the env has played before: {text}" if text else ""
    if episode == 0:
        yield CheckRow("reset(seed) repeats", False, text)
        yield CheckRow("later episodes repeat", None, "not compared, because the first episode differs")
    else:
        yield CheckRow("reset(seed) repeats", True, "twice in a row in one env")
        if episode > 0 and in_new > 0:  # compare only the seeded episode in the other rows
            text = f"reset() without a seed starts a random episode: {elsewhere}"
            first = Trace([record for record in first.records if not record.episode], first.findings)
            in_new, elsewhere = _difference(first, fresh)
        if first.records[-1].episode or text:
            yield CheckRow("later episodes repeat", not text, text or "after reset() without a seed")
        else:
            yield CheckRow("later episodes repeat", None, "not played in the time of a play; pass a larger timeout")
    yield CheckRow("a new process plays the same", not elsewhere, elsewhere)
    _, text = _difference(first, beside)
    if elsewhere and not isinstance(beside, str):
        yield CheckRow("envs do not affect each other", None, "not compared, because an env alone does not repeat")
    elif text:
        text = f"give each env its own process (num_workers = number of envs): beside a second env, {text}"
        yield CheckRow("envs do not affect each other", False, text)
    else:
        yield CheckRow("envs do not affect each other", True, "beside a second env in one process")


def _result_rows(trace: Trace, info_difference: str) -> Iterator[CheckRow]:
    if changed := ", ".join(trace.findings["state"]):
        changed = f"changed: {changed}. Other envs and, with DummyVectorEnv, your program see the change"
    yield CheckRow("process state unchanged", None if changed else True, changed)
    for name, topic in (
        ("observations fit the space", "obs"),
        ("rewards are numbers", "reward"),
        ("infos repeat, with equal keys", "info"),
    ):
        text = "".join(trace.findings[topic]) or (info_difference if topic == "info" else "")
        yield CheckRow(name, None if text else True, text)


def _cost_rows(costs: EnvCosts, fork: str | None) -> Iterator[CheckRow]:
    yield CheckRow("cost", True, f"a step takes {costs.step * 1e6:,.0f} us, a reset {costs.reset * 1e6:,.0f} us")
    text = "not measured: the episodes are too long, or the system has no /proc"
    if costs.growth is not None:
        text = f"grows by {max(0.0, costs.growth) / 2**20:.2f} MiB per episode ({costs.episodes} episodes)"
    is_stable = costs.growth is not None and costs.growth < LEAK
    yield CheckRow("memory is stable", True if is_stable else None, text)
    text = f'do not pass context="fork": with an env made before the fork, {fork}' if fork else ""
    yield CheckRow("works after a fork", None if text else True, text)


def _difference(one: Trace, other: Trace | str, field: str = "values") -> tuple[int, str]:
    """Return the episode and a description of the first difference, or (-1, "") if there is none."""
    if isinstance(other, str):
        return 0, other
    found = first_difference(*([getattr(record, field) for record in trace.records] for trace in (one, other)))
    if found is None:
        return -1, ""
    episode, step, *_ = one.records[found.row]
    where = f"step {step}" if step else "the reset"
    return episode, f"{where} of episode {episode} differs: {found.name}: {found.one} and {found.other}"
