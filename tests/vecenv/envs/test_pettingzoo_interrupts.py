"""Ctrl-C during a call of ParallelVectorEnv and AECVectorEnv: a reset makes every env usable, and no row is stale."""

from functools import partial

import numpy as np
import pytest

from tests.support.agent_envs import Herd, herd_in_turns
from tests.support.ctrl_c import interrupt_at_random, interrupted
from vecenv import AECVectorEnv, InterruptedCallError, ParallelVectorEnv
from vecenv.envs.agent_spaces import AgentActions

KINDS = [(ParallelVectorEnv, Herd), (AECVectorEnv, herd_in_turns)]


pytestmark = [pytest.mark.usefixtures("ctrl_c"), pytest.mark.full]


def any_actions(venv, n=None):
    zeros = np.zeros(n or len(venv), int)
    return zeros if isinstance(venv, AECVectorEnv) else dict.fromkeys(venv.agents, zeros)


def usable(venv):
    """Check that a reset makes every env usable."""
    obs, infos = venv.reset(seed=0)
    assert infos["alive"]["cow_0"].all() if isinstance(obs, dict) else not infos["agent"].any()
    for t in (1, 2, 3):
        obs, _, _, _, infos = venv.step(any_actions(venv))
        seen = obs["cow_2"][:, 1] if isinstance(obs, dict) else obs[:, 1]
        assert seen.tolist() == [t if isinstance(obs, dict) else t // 3] * len(venv)
        assert infos["env_id"].tolist() == list(range(len(venv)))
    assert (venv.waiting_id, venv.failed_id) == ([], [])


@pytest.mark.parametrize(
    ("kind", "make", "moment", "ids"),
    [
        *((ParallelVectorEnv, Herd, moment, [1]) for moment in ("send", "wait", "take", "record")),
        *((*each, moment, [0, 1]) for each in KINDS for moment in ("wait", "record")),
    ],
)
def test_after_an_interrupted_step_only_a_reset_of_all_envs_is_accepted(kind, make, moment, ids, monkeypatch):
    with kind([make] * 2, "shmem", num_workers=2) as venv:
        venv.reset(seed=0)
        owner = AgentActions if moment == "record" else venv.venv.engine.backend
        with monkeypatch.context() as patch:
            patch.setattr(owner, moment, interrupted(getattr(owner, moment)))
            with pytest.raises(KeyboardInterrupt):
                venv.step(any_actions(venv, len(ids)), ids)
        assert (venv.waiting_id, venv.failed_id) == ([], [0, 1])
        for call in (partial(venv.step, any_actions(venv, len(ids)), ids), partial(venv.reset, [0])):
            with pytest.raises(InterruptedCallError, match=r"call reset\(\)"):
                call()
        usable(venv)


def test_an_interrupt_while_the_next_episodes_begin_in_same_step_mode(monkeypatch):
    with ParallelVectorEnv([Herd] * 2, "dummy", autoreset_mode="SameStep") as venv:
        venv.reset()
        for _ in range(3):
            venv.step(any_actions(venv))
        with monkeypatch.context() as patch:
            patch.setattr(venv.venv, "reset", interrupted(venv.venv.reset))
            with pytest.raises(KeyboardInterrupt):
                venv.step(any_actions(venv))
        assert venv.failed_id == [0, 1]
        usable(venv)


@pytest.mark.parametrize(("kind", "make"), KINDS)
def test_interrupts_at_random_moments(kind, make):
    with kind([make] * 4, "dummy") as venv:
        venv.reset()
        step = partial(venv.step, any_actions(venv))
        assert interrupt_at_random(step, lambda: usable(venv), 100, longest=2e-3) == 100
