"""tf.data reads the Parquet export as episodes of steps, the form of RLDS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector import Dataset


def test_episodes_of_steps(run: Callable[[str], dict[str, Any]]) -> None:
    episodes = list(run("import tensorflow")["episodes"])
    for theirs, ours in zip(episodes, Dataset("data/cartpole"), strict=True):
        steps = list(theirs["steps"].as_numpy_iterator())
        assert steps[0]["is_first"]
        for name, expected in (("obs", ours.obs), ("action", ours.action), ("reward", ours.reward)):
            found = np.array([each[name] for each in steps])
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found[: len(expected)], expected)
        ends = [(bool(each["is_last"]), bool(each["is_terminal"])) for each in steps]
        assert ends == [(False, False)] * len(ours) + [(True, bool(ours.terminated[-1]))]
