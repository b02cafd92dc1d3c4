"""backend="auto": envs in this process or in worker processes, whichever is faster for them.

One env is stepped in a worker for a moment (`env_cost`), and the time of a round is predicted for both. Predictions are
rough; `vecenv.tune` measures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vecenv.backends.system_limits import default_num_workers, usable_cpus
from vecenv.backends.worker.worker_setup import pickle_env_fn
from vecenv.base import BaseVectorEnv
from vecenv.engine.arguments import check_env_fns, measured_env_fns
from vecenv.errors import WorkerDiedError, WorkerTimeoutError
from vecenv.tuning.env_cost import EnvCost, measure_cost
from vecenv.venvs import BACKENDS, EnvFns

logger = logging.getLogger("vecenv")

SECONDS = 0.15
MAKE_TIMEOUT, TIMEOUT = 5.0, 1.0
"""Seconds that it may take to make the env, with all that it imports, and to step and close it; then it is given up.
A worker may import for seconds what the program has imported already, such as torch, which says nothing of the env."""
DUMMY_ROUND, SHMEM_ROUND = 10e-6, 250e-6
"""Seconds of a round beside the steps. That of workers is for a caller that has computed for 0.3 ms or more between two
rounds: they have fallen asleep (measured on two CPUs: 80 to 250 us after a sleep, 250 to 450 us after numpy or torch,
whose threads take the CPUs of the workers)."""
ROW = 1e-6
"""Seconds of an env in a round beside its step."""
GAIN = 0.9
"""Workers are taken where they shorten a round to this share: predictions are no better, and one process is simpler."""
MOST_WORKERS = 64

ONLY_PROCESSES: Mapping[str, Any] = {
    "num_workers": None,
    "context": None,
    "start_timeout": None,
    "step_timeout": None,
    "affinity": False,
    "wait_num": None,
    "timeout": None,
    "on_error": "raise",
}
"""Arguments that ask for worker processes, each with the value that does not. (With `wait_num` and `timeout` envs are
to run side by side.)"""


class Choice(NamedTuple):
    """Which backend, with which `num_workers` (None: its default), and why."""

    backend: str
    num_workers: int | None
    reason: str


def auto_vector_env(env_fns: EnvFns, **options: Any) -> BaseVectorEnv:
    """A DummyVectorEnv or a ShmemVectorEnv of these envs, as `choose_backend` says; `options` are arguments of either.

    >>> import gymnasium as gym
    >>> with auto_vector_env([lambda: gym.make("CartPole-v1")] * 2) as venv:
    ...     venv
    DummyVectorEnv(2 envs, 1 workers)
    """
    choice = choose_backend(env_fns, options)
    return BACKENDS[choice.backend](env_fns, **arguments_for(choice, options))


VECTOR_ENVS: dict[str, Callable[..., BaseVectorEnv]] = {**BACKENDS, "auto": auto_vector_env}
"""What `backend` arguments of collectors and of the command line accept, with what makes the vector env of each."""


def choose_backend(
    env_fns: EnvFns, options: Mapping[str, Any], only_processes: Mapping[str, Any] = ONLY_PROCESSES
) -> Choice:
    """Choose "dummy" or "shmem" for these envs; never threads, which not all envs allow.

    It takes the time to make one env in a worker, at most 5 s, and at most a second more.

    Shmem without a measurement where one of `options` asks for processes. Else Dummy for one env; and for env_fns that
    cannot be sent to a worker, or whose env cannot be made there, because an error is worse than a slow choice. Else
    one env more is made, in a worker, stepped and closed there. Where it hangs, ends its process or takes too long, or
    cannot be stepped with random actions, it is Shmem. The choice is logged as info. Raises what is wrong with env_fns.
    """
    fns = check_env_fns(env_fns)
    asks = [name for name, value in only_processes.items() if options.get(name, value) != value]
    choice = Choice("shmem", None, f"{asks[0]}= asks for processes") if asks else _choose(measured_env_fns(fns))
    logger.info("backend='auto' takes %r for %d envs: %s", choice.backend, len(fns), choice.reason)
    return choice


def arguments_for(
    choice: Choice, options: Mapping[str, Any], only_processes: Mapping[str, Any] = ONLY_PROCESSES
) -> dict[str, Any]:
    """The arguments for the chosen class: without those that only workers have, or with their number."""
    if choice.backend == "dummy":
        return {name: value for name, value in options.items() if name not in only_processes}
    return dict(options) if choice.num_workers is None else {**options, "num_workers": choice.num_workers}


def _choose(env_fns: Sequence[Callable[[], Any]]) -> Choice:
    if len(env_fns) == 1:
        return Choice("dummy", None, "one env gains nothing from a worker")
    try:
        for i, env_fn in {id(env_fn): (i, env_fn) for i, env_fn in reversed(list(enumerate(env_fns)))}.values():
            pickle_env_fn(i, env_fn)
        cost = measure_cost(env_fns[0], SECONDS, MAKE_TIMEOUT, TIMEOUT)
    except WorkerTimeoutError:
        late = f"one env was not made in {MAKE_TIMEOUT} s, or not stepped and closed in {TIMEOUT} s"
        return Choice("shmem", None, late)
    except WorkerDiedError as error:
        return Choice("shmem", None, f"one env could not be measured: {error}")
    except Exception as error:
        return Choice("dummy", None, f"an env cannot be made in a worker: {type(error).__name__}: {error}")
    if isinstance(cost, str):
        return Choice("shmem", None, f"one env could not be measured: {cost}")
    return predict(cost, len(env_fns), usable_cpus())


def predict(cost: EnvCost, n: int, cpus: int) -> Choice:
    """The choice for `n` envs of this cost on so many CPUs.

    >>> predict(EnvCost(10e-6, 10e-6, 0), 8, cpus=2).backend, predict(EnvCost(1e-3, 1e-3, 0), 8, cpus=2).backend
    ('dummy', 'shmem')
    >>> predict(EnvCost(5e-3, 1e-5, 0), 8, cpus=1)[:2]  # it sleeps
    ('shmem', 8)
    """
    here = dummy_round(cost, n)
    workers = min(n, MOST_WORKERS) if cost.waits else min(n, cpus)
    there = workers_round(cost, n, workers, cpus)
    reason = (
        f"a step takes {cost.wall * 1e6:.3g} us{', most of it waiting' if cost.waits else ''}; a round about "
        f"{here * 1e3:.2g} ms in this process and {there * 1e3:.2g} ms in {workers} workers"
    )
    if there > GAIN * here:
        return Choice("dummy", None, reason)
    return Choice("shmem", None if workers == default_num_workers(n, False) else workers, reason)


def dummy_round(cost: EnvCost, n: int) -> float:
    """Seconds of a round of `n` envs one after the other."""
    return DUMMY_ROUND + n * (cost.wall + ROW)


def workers_round(cost: EnvCost, n: int, workers: int, cpus: int) -> float:
    """Seconds of a round of `n` envs in blocks, limited by the largest block and by the CPUs."""
    return SHMEM_ROUND + max(-(-n // workers) * (cost.wall + ROW), n * (cost.cpu + ROW) / cpus)
