"""TorchRL's GymWrapper around vecenv's gymnasium facade: the same rollouts as around gymnasium's, specs, the page."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import gymnasium as gym
import pytest

pytest.importorskip("torchrl")

from torchrl.envs import GymWrapper
from torchrl.envs.utils import check_env_specs

from tests.support.paths import ROOT
from vecenv import AsyncVectorEnv

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
N = 3


def wrapped(kind: Any, name: str = "CartPole-v1", is_categorical: bool = True) -> Any:
    envs = kind([partial(gym.make, name)] * N, autoreset_mode="Disabled")
    return GymWrapper(envs, categorical_action_encoding=is_categorical)


def test_rollouts_are_those_of_the_vector_env() -> None:
    """The envs end at different times, and TorchRL resets the ended envs alone."""
    env, peer = wrapped(AsyncVectorEnv), wrapped(gym.vector.SyncVectorEnv)
    for each in (env, peer):
        each.set_seed(10)
    batch = env.rollout(60, break_when_any_done=False)
    actions = iter(batch["action"].unbind(1))
    assert (batch == peer.rollout(60, lambda td: td.set("action", next(actions)), break_when_any_done=False)).all()
    assert batch["next", "done"].sum() > 2
    env.close()
    peer.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("is_categorical", [True, False])
def test_the_specs_are_those_of_the_data(name: str, is_categorical: bool) -> None:
    env = wrapped(AsyncVectorEnv, name, is_categorical)
    check_env_specs(env, break_when_any_done="both", seed=0)
    env.close()


def test_the_line_on_the_page_makes_an_env() -> None:
    page = (ROOT / "docs/guides/works-with.md").read_text("utf-8")
    (line,) = re.findall(r"`(GymWrapper\(.*?\))`", page)
    env_fns = [partial(gym.make, "CartPole-v1")] * N
    env = eval(line, {"GymWrapper": GymWrapper, "AsyncVectorEnv": AsyncVectorEnv, "env_fns": env_fns})
    assert env.rollout(3, break_when_any_done=False).shape == (N, 3)
    env.close()
    assert env.is_closed
