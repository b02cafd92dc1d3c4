"""Results that do not fit the space, or are not the gymnasium API: errors of EnvHost, which all use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faulty import Counter, ReturnsOnStep, counters
from vecenv import DummyVectorEnv, EnvContractError, ObservationError


def array(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


FLOATS = spaces.Box(-np.inf, np.inf, (3,), np.float32), array(1, 2, 3)
BYTES = spaces.Box(0, 255, (3,), np.uint8), array(1, 2, 3, dtype=np.uint8)
NUMBER = spaces.Discrete(300), np.int64(4)
PAIR = spaces.Tuple([spaces.Discrete(9), FLOATS[0]]), (np.int64(1), FLOATS[1])
NAMED = spaces.Dict(a=spaces.Discrete(9), b=FLOATS[0]), {"a": np.int64(1), "b": FLOATS[1]}
DEEP = spaces.Dict(c=NAMED[0], d=PAIR[0]), {"c": NAMED[1], "d": PAIR[1]}

WRONG: dict[str, tuple[Any, Any, str]] = {
    "too large for uint8": (BYTES, np.array([300, 1, 2]), "int64 (3,) with values in [1, 300]"),
    "floats for uint8": (BYTES, np.array([300.0, -1.0, 2.7]), "float64 (3,) with values in [-1.0, 300.0]"),
    "NaN for uint8": (BYTES, np.array([np.nan, 1, 2]), "float64 (3,)"),
    "fraction for Discrete": (NUMBER, 2.7, "float64 ()"),
    "complex for float": (FLOATS, np.array([1j, 0, 0]), "complex128 (3,)"),
    "(1,) for (3,)": (FLOATS, array(1), "float32 (1,)"),
    "(3, 1) for (3,)": (FLOATS, np.ones((3, 1), np.float32), "float32 (3, 1)"),
    "() for (3,)": (FLOATS, 1.0, "float64 ()"),
    "ragged": (FLOATS, [[1], [2, 3]], "ragged"),
    "text": (FLOATS, "abc", "str"),
    "None": (FLOATS, None, "object"),
    "missing key": (NAMED, {"a": np.int64(1)}, "missing ['b']"),
    "extra key": (NAMED, {**NAMED[1], "x": 1}, "not in the space ['x']"),
    "array for dict": (NAMED, array(1, 2, 3), "a ndarray, expected a dict"),
    "list for tuple": (PAIR, [np.int64(1), FLOATS[1]], "a list, expected a tuple of 2"),
    "short tuple": (PAIR, (np.int64(1),), "a tuple of 1, expected a tuple of 2"),
    "deep inside": (DEEP, {"c": {"a": 1, "b": array(1, 2)}, "d": PAIR[1]}, "obs['c']['b'] is float32 (2,)"),
    "deep key": (DEEP, {"c": {"a": 1}, "d": PAIR[1]}, "obs['c'] has the wrong keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_observation_that_does_not_fit_the_space_is_an_error(name: str) -> None:
    (space, good), bad, reported = WRONG[name]
    text = check_refused(space, good, lambda result: (bad, *result[1:]), ObservationError)
    assert text.startswith("env 1: obs")
    assert reported in text


def check_refused(space: Any, good: Any, change: Any, kind: type[EnvContractError]) -> str:
    """Step 2 of env 1 is refused; the results of its neighbours, and all that follows, are right. Returns the text."""
    actions = np.zeros(3, np.int64)
    with DummyVectorEnv([partial(ReturnsOnStep, i, space, good, change if i == 1 else None) for i in range(3)]) as venv:
        venv.reset()
        assert venv.step(actions)[1].tolist() == [1.0, 1.001, 1.002]
        with pytest.raises(kind) as caught:
            venv.step(actions)
        assert (caught.value.env_id, caught.value.op) == (1, "step")
        assert (caught.value.partial.env_id.tolist(), caught.value.partial.rew.tolist()) == ([0, 2], [2.0, 2.002])
        venv.reset([1])
        assert venv.step(actions)[1].tolist() == [3.0, 1.001, 3.002]
    return str(caught.value)


ACCEPTED: dict[str, tuple[Any, Any, Any]] = {
    "NaN and inf are floats": (FLOATS, array(np.nan, np.inf, 1), array(np.nan, np.inf, 1)),
    "float64 for float32": (FLOATS, np.array([0.5, 1, 2]), array(0.5, 1, 2)),
    "integers for float32": (FLOATS, [1, 2, 3], array(1, 2, 3)),
    "values that fit uint8": (BYTES, np.array([255, 0, 2]), array(255, 0, 2, dtype=np.uint8)),
    "whole floats for uint8": (BYTES, np.array([255.0, 0.0, 2.0]), array(255, 0, 2, dtype=np.uint8)),
    "(1,) for ()": (NUMBER, np.array([7]), np.int64(7)),
    "bool for Discrete": (NUMBER, True, np.int64(1)),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_observation_that_can_be_cast_without_loss_is(name: str) -> None:
    (space, good), given, wanted = ACCEPTED[name]
    with DummyVectorEnv([partial(ReturnsOnStep, 0, space, good, lambda result: (given, *result[1:]))]) as venv:
        venv.reset()
        venv.step([0])
        obs = venv.step([0])[0]
    assert obs.dtype == space.dtype
    np.testing.assert_array_equal(obs, [wanted])


BROKEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "4 values": (lambda result: (result[0], result[1], False, {}), "step() returned 4 values, expected 5"),
    "6 values": (lambda result: (*result, {}), "step() returned 6 values, expected 5"),
    "None": (lambda _: None, "step() returned a NoneType, expected 5"),
    "only the observation": (lambda result: result[0], "step() returned a ndarray, expected 5"),
    "info is None": (lambda result: (*result[:4], None), "an info of type NoneType, expected a dict"),
    "info is a list": (lambda result: (*result[:4], [1]), "an info of type list, expected a dict"),
    "reward is None": (lambda result: (result[0], None, *result[2:]), "the reward None"),
    "reward is text": (lambda result: (result[0], "much", *result[2:]), "the reward 'much'"),
    "terminated is text": (lambda result: (*result[:2], "no", *result[3:]), "terminated='no' of type str"),
    "truncated is None": (lambda result: (*result[:3], None, result[4]), "truncated=None of type NoneType"),
    "terminated is 2": (lambda result: (*result[:2], 2, *result[3:]), "terminated=2 of type int"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_result_that_is_not_the_gymnasium_api_is_an_error(name: str) -> None:
    change, reported = BROKEN[name]
    text = check_refused(*FLOATS, change, EnvContractError)
    assert text.startswith(f"env 1: step() returned {reported.removeprefix('step() returned ')}")


class OldReset(Counter):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


def test_an_old_reset_is_reported() -> None:
    with DummyVectorEnv(counters(3, env1=OldReset)) as venv:
        with pytest.raises(EnvContractError, match=r"env 1: reset\(\) returned .*expected 2: \(obs, info\)") as caught:
            venv.reset()
        assert caught.value.partial.env_id.tolist() == [0, 2]
