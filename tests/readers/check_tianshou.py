"""tianshou learns the value behind a time limit, the same over its own vector envs and over vecenv's."""

from __future__ import annotations

import pytest
import torch

from benchmarks.time_limits import tianshou
from benchmarks.time_limits.cut_env import MOST, RIGHT, Ends


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_same_over_both(algorithm: str) -> None:
    def learn(ends: Ends, *, ours: bool) -> float:
        torch.manual_seed(0)
        return float(getattr(tianshou, algorithm)(ends, ours=ours))

    truncated, terminated = learn("truncated", ours=True), learn("terminated", ours=True)
    assert truncated == pytest.approx(RIGHT, abs=0.1)
    assert terminated < MOST
    own = learn("truncated", ours=False), learn("terminated", ours=False)
    assert (truncated, terminated) == pytest.approx(own, abs=0 if algorithm == "ppo" else 0.1)  # DQN explores unseeded
