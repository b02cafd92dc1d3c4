"""`policy_threads` sets the number of torch threads of a CPU policy, and no other setting."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector import Job, MLPPolicy, SyncDataCollector, run_job
from tests.support.backends import FULL
from tests.support.collector_envs import cartpoles, kinds
from tests.support.ctrl_c import interrupt_at_random
from vecenv import DummyVectorEnv
from vecenv.portability import PORTABLE

torch = pytest.importorskip("torch")

from collector.device.math_libraries import policy_threads  # noqa: E402

CALLER = 3
"""Number of threads that the program has set. Differs from torch's default here and from the collector's."""
OWN = 2
"""Number that a thread sets for itself and for the threads that begin later."""
PATIENCE = 60.0
NEEDS_LINUX = pytest.mark.skipif(PORTABLE or not Path("/proc/self/task").exists(), reason="needs Linux")


@pytest.fixture(autouse=True)
def callers_setting() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(CALLER)
    yield
    torch.set_num_threads(before)


def mkl_threads() -> int:
    """Return MKL's number of threads, or torch's number if torch is built without MKL."""
    found = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return int(found[1]) if found else int(torch.get_num_threads())


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Return the result of `function` in a new thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(PATIENCE)
    return found[0]


class Watching(torch.nn.Module):
    """Policy with the action 0, which records the result of `look` in each call."""

    def __init__(self, look: Callable[[], Any] = torch.get_num_threads) -> None:
        super().__init__()
        self.look, self.seen = look, []

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.look())
        return torch.zeros(len(obs), dtype=torch.int64)


def seen_in_batches(policy: Any, kind: Any = SyncDataCollector, **options: Any) -> set[Any]:
    with kind(DummyVectorEnv(cartpoles(2)), policy, frames_per_batch=8, **options) as collector:
        collector.rollout()
    return set(policy.seen)


def both_counts() -> tuple[int, int]:
    return torch.get_num_threads(), mkl_threads()


@pytest.mark.guarantee("G10.9")
@kinds
@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"policy_threads": 2}, 2), ({"policy_threads": np.int64(1)}, 1), ({"policy_threads": None}, CALLER)],
)
def test_a_policy_runs_on_one_thread_or_on_the_number_that_is_passed(kind: Any, options: Any, expected: int) -> None:
    assert seen_in_batches(Watching(both_counts), kind=kind, **options) == {(expected, expected)}


def test_a_thread_that_is_born_meanwhile_has_the_callers_number() -> None:
    assert seen_in_batches(Watching(lambda: in_a_thread(both_counts))) == {(CALLER, CALLER)}


@kinds
def test_the_threads_own_number_is_back_between_batches_and_in_callbacks(kind: Any) -> None:
    """The policy is a function of arrays."""
    policy_saw, seen = set[int](), list[Any]()

    def policy(obs: np.ndarray) -> np.ndarray:
        policy_saw.add(torch.get_num_threads())
        return np.zeros(len(obs), np.int64)

    def note(given: Any) -> Any:
        seen.append((*both_counts(), in_a_thread(torch.get_num_threads)))
        return given

    def collect() -> None:
        torch.set_num_threads(OWN)
        with kind(cartpoles(2), policy, frames_per_batch=8, postproc=note, backend="dummy") as batches:
            note(batches.next())
            note(batches.collect(n_step=8))
            batches.collect(n_episode=2, on_episode=note)

    in_a_thread(collect)
    assert seen == [(OWN, OWN, OWN)] * 5
    assert policy_saw == {1}
    assert torch.get_num_threads() == CALLER


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_is_back_after_an_exception(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("of the policy")

    with pytest.raises(error, match="of the policy"):
        seen_in_batches(Watching(fail))
    assert both_counts() == (CALLER, CALLER)


@FULL
def test_it_is_back_after_ctrl_c_at_any_moment(ctrl_c: None) -> None:
    def batch() -> None:
        with policy_threads(1):
            assert torch.get_num_threads() == 1

    def check() -> None:
        assert both_counts() == (CALLER, CALLER)

    assert interrupt_at_random(batch, check, times=300, longest=2e-4) > 0


@FULL
@pytest.mark.parametrize(("options", "expected"), [({}, 1), ({"policy_threads": 2}, 2)])
def test_jobs_have_it_too(options: Any, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, between = list[int](), list[int]()
    forward = MLPPolicy.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(torch.get_num_threads())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(MLPPolicy, "forward", watched)
    job = Job(env="CartPole-v1", steps=20, num_envs=2, backend="dummy", policy="mlp", device="cpu", **options)
    run_job(job, tmp_path / "a", on_progress=lambda state: between.append(torch.get_num_threads()))
    assert (set(seen), set(between)) == ({expected}, {CALLER})


@FULL
@NEEDS_LINUX
def test_a_process_that_is_forked_after_learning_collects() -> None:
    program = """
import os, signal, sys
import gymnasium, torch
from collector import SyncDataCollector
from collector.device import math_libraries
torch.set_num_threads(3)
torch.ones(2_000_000).sin()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(30)  # ends the process if it hangs
policy = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.Linear(256, 2), torch.nn.Softmax(-1))
net = lambda obs: policy(obs).argmax(-1)
make = [lambda: gymnasium.make("CartPole-v1")] * 2
with SyncDataCollector(make, net, frames_per_batch=64, policy_device="cpu") as batches:
    for _ in range(3):
        batches.rollout()
os._exit(7)
"""
    result = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True)
    assert result.returncode == 7, result
