"""RayVectorEnv on a local Ray: the contract, and what may go wrong. `make test-ray` has the rest."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faulty import counters
from tests.ledger import Column, pids
from vecenv import RayVectorEnv, WorkerDiedError
from vecenv.testing import CHECKS, check_vector_env

pytestmark = pytest.mark.local_ray
BLOCKS = Column(RayVectorEnv, "blocks", {"num_workers": 2})


@pytest.mark.parametrize("check", CHECKS)
def test_it_keeps_the_contract(check: object) -> None:
    check_vector_env(RayVectorEnv, [check])


def test_a_killed_actor_is_an_error_with_ids_and_reset_starts_it_again() -> None:
    with BLOCKS.open(counters(4)) as ledger:
        ledger.begin()
        venv = ledger.venv
        os.kill(pids(venv)[1], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"env 0 .*envs \[1\].*reset\(0\)") as caught:
            venv.step([0] * 4)
        print(caught.value)
        assert venv.failed_id == [0, 1]
        venv.reset()
        assert venv.stats()["restarts"] == 1
