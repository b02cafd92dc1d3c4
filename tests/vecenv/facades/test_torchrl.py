"""TorchRL's GymWrapper takes vecenv's gymnasium facades: right ends, resets, seeds and specs."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("torchrl")

from torchrl.envs import GymWrapper, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs

from tests.support.paths import ROOT
from vecenv import AsyncVectorEnv, GymnasiumVectorEnv, ShmemVectorEnv, SyncVectorEnv

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
N = 3


class Counted(gym.Env[Any, Any]):
    """Env `i` has episodes of 3 + i steps, truncated and terminated in turn. It observes `i`, episode and step."""

    observation_space = spaces.Dict(count=spaces.Box(0, 9999, (3,), np.float32), last=spaces.Discrete(10))
    action_space = spaces.Discrete(3)
    episode = 0

    def __init__(self, i: int) -> None:
        self.i = i

    def observe(self) -> dict[str, Any]:
        return {"count": np.array([self.i, self.episode, self.steps], np.float32), "last": self.steps % 10}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        end, is_even = self.steps == 3 + self.i, self.episode % 2 == 0
        return self.observe(), float(self.steps), end and is_even, end and not is_even, {"key": self.steps}


MAKERS = {
    "sync": partial(SyncVectorEnv, autoreset_mode="Disabled"),
    "async": partial(AsyncVectorEnv, autoreset_mode="Disabled"),
    "facade": lambda env_fns: GymnasiumVectorEnv(ShmemVectorEnv(env_fns), autoreset_mode="Disabled"),
}


COUNTED = [partial(Counted, i) for i in range(N)]


def wrapped(kind: str, env_fns: Any = COUNTED, **options: Any) -> Any:
    return GymWrapper(MAKERS[kind](env_fns), **{"categorical_action_encoding": True, **options})


def assert_right_ends(batch: Any, limit: int = 100) -> None:
    """Check each transition of a batch (N, T), with episodes of at most `limit` steps."""
    ends = 0
    for i, row in enumerate(batch):
        before = None
        for each in row:
            (env, episode, step), after = each["count"].tolist(), each["next", "count"].tolist()
            assert (env, after) == (i, [i, episode, step + 1])
            assert each["next", "reward"] == step + 1
            own = step + 1 == 3 + i
            done, terminated = (bool(each["next", key]) for key in ("done", "terminated"))
            assert (done, terminated) == (own or step + 1 == limit, own and episode % 2 == 0)
            assert before is None or [episode, step] == ([before[0] + 1, 0] if before[2] else [before[0], before[1]])
            before, ends = (episode, step + 1, done), ends + done
    assert ends > N


@pytest.mark.parametrize("kind", MAKERS)
def test_rollouts_and_collectors_have_the_right_ends(kind: str) -> None:
    env = wrapped(kind)
    assert_right_ends(env.rollout(20, break_when_any_done=False))
    env.close()
    env = TransformedEnv(wrapped(kind), StepCounter(4))  # a time limit of TorchRL resets single envs
    assert_right_ends(env.rollout(20, break_when_any_done=False), limit=4)
    env.close()
    from torchrl.collectors import Collector  # warns when it is imported

    collector = Collector(wrapped(kind), None, frames_per_batch=16 * N, total_frames=32 * N)
    for batch in collector:
        assert_right_ends(batch)
    collector.shutdown()


def test_rollouts_are_those_of_the_vector_env() -> None:
    env_fns = [partial(gym.make, "CartPole-v1")] * N
    env = wrapped("async", env_fns)
    peer = GymWrapper(gym.vector.SyncVectorEnv(env_fns, autoreset_mode="Disabled"), categorical_action_encoding=True)
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
    env = wrapped("async", [partial(gym.make, name)] * N, categorical_action_encoding=is_categorical)
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
