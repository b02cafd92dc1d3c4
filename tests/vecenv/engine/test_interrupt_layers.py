"""Two KeyboardInterrupts in a call of a layer above the engine, the second while the first is handled.

Later rows are right, and a reset makes all envs usable.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from tests.support.agent_envs import Herd
from tests.support.ctrl_c import interrupting
from tests.support.faulty import Counter
from tests.support.interrupts import interrupted
from vecenv import DummyVectorEnv, GymnasiumVectorEnv, InterruptedCallError, ParallelVectorEnv, TransformedVectorEnv
from vecenv.facades.to_sb3 import SB3VecEnv
from vecenv.transforms import StepCounter, TimeLimit

ACTIONS = np.zeros(2, np.int64)
END = 3


class Ends(Counter):
    """Env with episodes of three steps. A fourth step shows."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, self.t >= END, False, info


class HasItsOwnSend(DummyVectorEnv):
    def send(self, *args: Any, **kwargs: Any) -> None:
        super().send(*args, **kwargs)


def made(kind: str) -> Any:
    fns: Any = [partial(Ends, i) for i in range(2)]
    if kind == "wrapper":
        return TransformedVectorEnv(DummyVectorEnv([partial(Counter, i) for i in range(2)]), StepCounter())
    if kind == "own send":
        return HasItsOwnSend([partial(Counter, i) for i in range(2)])
    if kind == "pettingzoo":
        return ParallelVectorEnv([Herd] * 2, "dummy")
    mode, *more = kind.split(", ")
    return GymnasiumVectorEnv(DummyVectorEnv(fns), autoreset_mode=mode, seed_episodes=bool(more))


def stepped(envs: Any) -> list[int]:
    """Step all envs, and return their step numbers, which must be equal in all layers."""
    if isinstance(envs, ParallelVectorEnv):
        obs, *_, infos = envs.step(dict.fromkeys(envs.agents, ACTIONS))
        assert infos["env_id"].tolist() == [0, 1]
        return obs["cow_2"][:, 1].tolist()
    obs = envs.step(ACTIONS)[0]
    if isinstance(envs, TransformedVectorEnv):
        assert obs["step_count"].ravel().tolist() == obs["observation"][:, 2].tolist()
        return obs["observation"][:, 2].tolist()
    return obs[:, 2].tolist()


CALLS: dict[str, Callable[[Any], Any]] = {"step": stepped, "reset": lambda envs: envs.reset()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "kind",
    [
        "wrapper",
        "own send",
        "pettingzoo",
        "NextStep",
        "SameStep",
        "SameStep, two rounds",
        "Disabled",
    ],
)
def test_after_two_interrupts_no_row_is_wrong_and_a_reset_makes_all_usable(kind: str, call: str) -> None:
    envs, rng, n, twice = made(kind), np.random.default_rng(0), 1, 0
    while True:
        envs.reset()
        for t in range(1, 1 + n % 3):
            assert stepped(envs) == [t, t]
        raised, _ = interrupted(lambda: CALLS[call](envs), n, int(rng.integers(1, 30)), at_looks=True)
        if not raised:
            break
        twice += raised == 2
        try:
            steps = stepped(envs)
        except (RuntimeError, ResetNeeded):
            pass
        else:
            assert steps[0] == steps[1] <= (END if isinstance(envs, GymnasiumVectorEnv) else 4)
        n += int(rng.integers(1, 12))
    envs.close()
    assert twice > 3


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_before_the_resets_of_sb3s_step_lets_no_env_step_past_its_end() -> None:
    fns: Any = [partial(Ends, i) for i in range(2)]
    wrapped = TransformedVectorEnv(DummyVectorEnv(fns), TimeLimit(99))  # leaves the resets to the facade
    with closing(SB3VecEnv(wrapped)) as envs:
        envs.reset()
        envs.step(ACTIONS)
        envs.step(ACTIONS)
        with interrupting(envs, "_from_dicts", first=True):
            envs.step(ACTIONS)
        for call in (lambda: envs.step(ACTIONS), lambda: envs.get_attr("t")):
            with pytest.raises(InterruptedCallError, match=r"call reset\(\)"):
                call()
        assert envs.reset()[:, 2].tolist() == [0, 0]
        assert envs.step(ACTIONS)[0][:, 2].tolist() == [1, 1]
