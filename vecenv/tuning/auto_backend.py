"""`backend="auto"`: chooses this process, worker processes or (on free-threaded Python) threads for the envs.

The choice depends on the speed of one env, measured in a worker process, so that a crash or hang does no harm.
`vecenv.tune` is more accurate, because it measures whole vector envs.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import gymnasium

from vecenv.arguments import check_env_fns, unshared_env_fns
from vecenv.backends.free_threading import gil_modules, has_gil
from vecenv.backends.host.env_access import find_attr, has_attr
from vecenv.backends.host.env_checks import check_coroutines
from vecenv.backends.host.own_process import HINT, distribution_of
from vecenv.backends.system_limits import default_num_workers, usable_cpus
from vecenv.backends.worker.worker_setup import pickle_env_fn
from vecenv.base import BaseVectorEnv
from vecenv.errors import WorkerDiedError, WorkerTimeoutError, add_note
from vecenv.portability import system_file
from vecenv.random_actions import find_mask, sample_action
from vecenv.venvs import BACKENDS, EnvFns, ShmemVectorEnv

logger = logging.getLogger("vecenv")

SECONDS = 0.15
MAKE_TIMEOUT, TIMEOUT = 5.0, 1.0
"""Time limits in seconds: for making one env, with its imports, and for stepping and closing the env."""
DUMMY_ROUND, SHMEM_ROUND = 10e-6, 250e-6
"""Assumed overhead of a round in seconds, in this process and with worker processes.

`python -m benchmarks.tuning` compares the choices that follow with the best.
"""
ONE_WORKER_ROUND = 100e-6
"""Overhead with a single worker process, which no other worker delays."""
ROW = 1e-6
GAIN = 0.9
MOST_WORKERS = 64
LEAST_STEPS = 40
PARTS = 10

ONLY_PROCESSES: Mapping[str, Any] = {
    **dict.fromkeys(
        ["num_workers", "context", "start_timeout", "step_timeout", "wait_num", "timeout", "recycle_after"]
    ),
    "affinity": False,
    "on_error": "raise",
    "spare_envs": 0,
}
"""Arguments and their defaults. If an argument has another value, `choose_backend` chooses worker processes."""

LOCKED = "the interpreter lock is on"
EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)
SAFE_PACKAGES = {*sys.stdlib_module_names, "numpy"}
"""Packages with extension modules that are safe without the interpreter lock."""


class EnvCost(NamedTuple):
    """Cost of a step of one env with random actions, including the time of resets per step."""

    wall: float
    """Seconds per step on an idle machine."""
    cpu: float
    """CPU seconds per step. Equal to `wall` if the env does not wait."""
    slow_steps: int
    no_threads: str = LOCKED
    """Result of `reason_against_threads`."""
    one_per_process: str | None = None
    """Result of `distribution_of`."""

    @property
    def waits(self) -> bool:
        return self.cpu < 0.5 * self.wall

    def round_seconds(self, n: int, workers: int | None, cpus: int) -> float:
        """Predict the seconds of a round of `n` envs, in this process (`workers=None`) or in `workers` processes."""
        if workers is None:
            return DUMMY_ROUND + n * (self.wall + ROW)
        fixed = ONE_WORKER_ROUND if workers == 1 else SHMEM_ROUND
        return fixed + max(-(-n // workers) * (self.wall + ROW), n * (self.cpu + ROW) / cpus)


def measure_cost(env_fn: Callable[[], Any], seconds: float, make_timeout: float, timeout: float) -> EnvCost | str:
    """Measure the cost of an env by `time_steps` in a worker process.

    Returns the cost, or an error as text if the env cannot be reset or stepped.

    Raises:
        TypeError: `env_fn` cannot be pickled.
        WorkerDiedError: the worker process ended.
        WorkerTimeoutError: making the env took over `make_timeout` seconds, or the measurement over `timeout` seconds.
        Exception: the error of `env_fn`.

    >>> cost = measure_cost(lambda: gymnasium.make("CartPole-v1"), seconds=0.05, make_timeout=30, timeout=30)
    >>> 0 < cost.wall < 1
    True
    """
    make = partial(CostProbe, env_fn, seconds)
    try:
        with ShmemVectorEnv([make], start_timeout=make_timeout, step_timeout=timeout) as venv:
            result: EnvCost | str = venv.call("measure")[0]
    except WorkerTimeoutError as error:
        late = f"one env, alone in a worker, was not made in {make_timeout} s, or not stepped and closed in {timeout} s"
        raise WorkerTimeoutError(late) from error
    return result


class CostProbe(gymnasium.Env[Any, Any]):
    def __init__(self, env_fn: Callable[[], Any], seconds: float) -> None:
        self._env, self._seconds = env_fn(), seconds
        check_coroutines(self._env, "env_fns[0]()")

    def measure(self) -> EnvCost | str:
        try:
            cost = time_steps(self._env, self._seconds)
            threads, alone = reason_against_threads(self._env), distribution_of(self._env)
            return cost._replace(no_threads=threads, one_per_process=alone)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                self._env.close()


def reason_against_threads(env: Any) -> str:
    """Return a reason not to run `env` in threads, or "".

    Threads need a Python without the interpreter lock. An env may run in threads if its attribute `thread_safe` is
    True. Without this attribute, the env's process must have loaded no extension modules besides Python's and numpy's.
    """
    if has_gil():
        return f"importing {gil_modules[0]!r} has turned the interpreter lock on" if gil_modules else LOCKED
    if has_attr(env, "thread_safe"):
        return "" if find_attr(env, "thread_safe") is True else "the env's attribute thread_safe is not True"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).endswith(EXTENSIONS) and name.partition(".")[0] not in SAFE_PACKAGES:
            return f"the env's process has loaded the extension module {name!r}, and the env has no thread_safe = True"
    return ""


def time_steps(env: Any, seconds: float) -> EnvCost:
    """Measure `env` with random actions for `seconds`. If under 40 steps are done, continue up to `4 * seconds`."""
    space, clock = env.action_space, time.perf_counter
    space.seed(0)
    actions = [space.sample() for _ in range(64)]  # before the loop, because sampling may be slow
    obs, info = env.reset()
    has_masks = find_mask(space, obs, info) is not None
    begin, own = clock(), time.thread_time()
    before, delayed = resource.getrusage(resource.RUSAGE_SELF), _preempted_seconds()
    steps, in_resets, now = list[float](), 0.0, clock()
    while not steps or now - begin < (seconds if len(steps) >= LEAST_STEPS else 4 * seconds):
        action = sample_action(space, obs, info) if has_masks else actions[len(steps) % len(actions)]
        start = clock() if has_masks else now
        obs, _, terminated, truncated, info = env.step(action)
        now = clock()
        steps.append(now - start)
        if terminated or truncated:
            obs, info = env.reset()
            in_resets -= now
            now = clock()
            in_resets += now
    after, delay, count = resource.getrusage(resource.RUSAGE_SELF), _preempted_seconds(), len(steps)
    own, total = time.thread_time() - own, clock() - begin
    # The median leaves out interruptions. It would leave out rare resets too, so add the mean time of resets.
    wall = _median_step(steps[slow_steps(steps) :]) + in_resets / count
    if delay is not None and delayed is not None:
        wall = max(own / count, min(wall, (total - (delay - delayed)) / count))
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count
    # A waiting env gives up the CPU. Otherwise, a virtual machine that lost its CPU makes `cpu` less than `wall`.
    yields = after.ru_nvcsw - before.ru_nvcsw
    waits = yields >= count / 2 or (delay is not None and yields > 0 and cpu < 0.5 * wall)
    return EnvCost(wall, min(cpu, wall) if waits else wall, slow_steps(steps))


def _median_step(steps: Sequence[float]) -> float:
    parts = max(1, min(PARTS, len(steps) // LEAST_STEPS))
    bounds = [round(k * len(steps) / parts) for k in range(parts + 1)]
    return median(sum(steps[a:b]) / (b - a) for a, b in pairwise(bounds))


def _preempted_seconds() -> float | None:
    """Return the time that this process has waited for a CPU."""
    found = system_file("/proc/self/schedstat")
    return float(found.split()[1]) / 1e9 if found else None


def slow_steps(steps: Sequence[float]) -> int:
    """Return the number of slow steps at the start, before five steps with a median of at most twice the usual time."""
    usual = median(steps[len(steps) // 2 :])
    return next((i for i in range(len(steps)) if median(steps[i : i + 5]) <= 2 * usual), 0)


class Choice(NamedTuple):
    backend: str
    num_workers: int | None
    reason: str


def make_auto(
    env_fns: EnvFns,
    options: Mapping[str, Any],
    classes: Mapping[str, Callable[..., Any]] = BACKENDS,
    only_processes: Mapping[str, Any] = ONLY_PROCESSES,
) -> Any:
    """Make the vector env that `choose_backend` chooses. Only "shmem" gets the options in `only_processes`.

    If the constructor of a later env in a process fails, try once with a worker per env.
    """
    chosen, chosen_workers, _ = choose_backend(env_fns, options, only_processes)

    def make(backend: str, num_workers: int | None) -> Any:
        own = {name: value for name, value in options.items() if backend == "shmem" or name not in only_processes}
        return classes[backend](env_fns, **(own if num_workers is None else own | {"num_workers": num_workers}))

    first = partial(make, chosen, chosen_workers)
    if any(options.get(name) is not None for name in ("num_workers", "max_concurrency")):
        return first()
    return retried_alone(first, partial(make, "shmem", len(env_fns)), len(env_fns))


def retried_alone(make: Callable[[], Any], make_alone: Callable[[], Any], n: int) -> Any:
    """Return `make()`. If that fails with a hint (see `hint_at_own_process`), return `make_alone()`.

    If both fail, raise the first error, with a note about the second.
    """
    try:
        return make()
    except Exception as error:
        if not any(note.startswith(HINT) for note in getattr(error, "__notes__", ())):
            raise
        cause = f"{type(error).__name__}: {error}"
        logger.info("an env failed in a process with other envs, so %d workers run one env each: %s", n, cause)
        try:
            return make_alone()
        except Exception as again:
            add_note(error, f"{n} workers that run one env each fail too: {type(again).__name__}: {again}")
        raise


def auto_vector_env(env_fns: EnvFns, **options: Any) -> BaseVectorEnv:
    """Make the vector env that `choose_backend` chooses.

    >>> import gymnasium as gym
    >>> with auto_vector_env([lambda: gym.make("CartPole-v1")] * 2) as venv:
    ...     venv
    DummyVectorEnv(2 envs, 1 workers)
    """
    venv: BaseVectorEnv = make_auto(env_fns, options)
    return venv


VECTOR_ENVS: dict[str, Callable[..., BaseVectorEnv]] = {**BACKENDS, "auto": auto_vector_env}
"""Function or class for each `backend` name of collectors and the command line."""


def choose_backend(
    env_fns: EnvFns, options: Mapping[str, Any], only_processes: Mapping[str, Any] = ONLY_PROCESSES
) -> Choice:
    """Choose "dummy" (this process), "shmem" (worker processes) or "thread", and log the choice as info.

    The first condition that holds decides:

    - an option differs from its default in `only_processes`: shmem. If only `on_error` does, and the first env is
      cheap, a single worker runs all envs
    - there is a single env: dummy
    - an env_fn cannot be pickled, or the first env_fn raises in a worker: dummy, because it may work in this process
    - the first env hangs (5 s to make it, 1 s to measure it), ends its worker or cannot be stepped: shmem
    - the first env is from a package of `ONE_PER_PROCESS`: shmem with a worker per env
    - workers save less than 10 % of a round: dummy
    - `reason_against_threads` is "": thread. Otherwise: shmem
    """
    fns = check_env_fns(env_fns)
    asks = [name for name, value in only_processes.items() if options.get(name, value) != value]
    if asks and (asks != ["on_error"] or len(fns) == 1):
        choice = Choice("shmem", None, f"{asks[0]}= asks for processes")
    else:
        choice = _choose(unshared_env_fns(fns), in_processes=bool(asks))
    logger.info("backend='auto' chooses %r for %d envs: %s", choice.backend, len(fns), choice.reason)
    return choice


def _choose(env_fns: Sequence[Callable[[], Any]], in_processes: bool) -> Choice:
    if len(env_fns) == 1:
        return Choice("dummy", None, "one env gains nothing from a worker")
    try:
        for i, env_fn in {id(env_fn): (i, env_fn) for i, env_fn in reversed(list(enumerate(env_fns)))}.values():
            pickle_env_fn(i, env_fn, [])  # without copies of large data
        cost = measure_cost(env_fns[0], SECONDS, MAKE_TIMEOUT, TIMEOUT)
    except (WorkerTimeoutError, WorkerDiedError) as error:
        cost = str(error)
    except Exception as error:
        backend = "shmem" if in_processes else "dummy"  # ShmemVectorEnv raises the error again
        return Choice(backend, None, f"an env cannot be made in a worker: {type(error).__name__}: {error}")
    if isinstance(cost, str):
        return Choice("shmem", None, f"one env could not be measured: {cost}")
    return predict(cost, len(env_fns), usable_cpus(), in_processes)


def predict(cost: EnvCost, n: int, cpus: int, in_processes: bool = False) -> Choice:
    """Choose a backend by the predicted time of a round of `n` envs. `in_processes`: always choose shmem.

    >>> predict(EnvCost(10e-6, 10e-6, 0), 8, cpus=2).backend, predict(EnvCost(1e-3, 1e-3, 0), 8, cpus=2).backend
    ('dummy', 'shmem')
    >>> predict(EnvCost(5e-3, 1e-5, 0), 8, cpus=1)[:2]  # the env sleeps
    ('shmem', 8)
    >>> predict(EnvCost(10e-6, 10e-6, 0), 8, cpus=2, in_processes=True)[:2]
    ('shmem', 1)
    """
    if cost.one_per_process is not None:
        return Choice("shmem", n, f"envs of {cost.one_per_process} share state in their process")
    workers = min(n, MOST_WORKERS if cost.waits else cpus)
    here, there = (cost.round_seconds(n, each, cpus) for each in (1 if in_processes else None, workers))
    reason = (
        f"a step takes {cost.wall * 1e6:.3g} us{', most of it waiting' if cost.waits else ''}; stepping all envs takes "
        f"about {here * 1e3:.2g} ms in {'one' if in_processes else 'this'} process and {there * 1e3:.2g} ms in "
        f"{workers} workers"
    )
    if there > GAIN * here:
        return Choice("shmem", 1, reason) if in_processes else Choice("dummy", None, reason)
    several = None if workers == default_num_workers(n, False) else workers
    if in_processes or cost.no_threads == LOCKED:
        return Choice("shmem", several, reason)
    if cost.no_threads:
        return Choice("shmem", several, f"{reason}; not in threads: {cost.no_threads}")
    return Choice("thread", several, f"{reason}; in threads: the interpreter lock is off")
