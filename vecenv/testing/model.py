"""`ReferenceEnvs`: envs whose results `check_vector_env` compares with the vector env's results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.testing.envs import CountingEnv

Factory = Callable[..., BaseVectorEnv]
N = 5


class ReferenceEnvs:
    def __init__(self, n: int = N, **options: Any) -> None:
        self.envs = [CountingEnv(i, **options) for i in range(n)]
        self.env_fns = [functools.partial(CountingEnv, i, **options) for i in range(n)]

    def reset(self, i: int, **kwargs: Any) -> tuple[Any, ...]:
        obs, info = self.envs[i].reset(**kwargs)
        return obs, 0.0, False, False, info

    def step(self, i: int, action: int) -> tuple[Any, ...]:
        return self.envs[i].step(action)

    @staticmethod
    def compare(ids: Sequence[int], result: tuple[Any, ...], expected: Sequence[tuple[Any, ...]]) -> None:
        if len(result) == 2:
            k = len(ids)
            result = result[0], np.zeros(k), np.zeros(k, np.bool_), np.zeros(k, np.bool_), result[1]
        obs, rew, terminated, truncated, info = result
        assert_columns(len(ids), rew, terminated, truncated, info)
        got = [row["env_id"] for row in info]
        assert got == list(ids), f"rows are of envs {got}, expected {list(ids)}"
        for j, i in enumerate(ids):
            want = expected[j]
            assert_same(nest.take(obs, j), want[0], f"observation of env {i}")
            row = rew[j], terminated[j], truncated[j]
            assert row == want[1:4], f"(rew, terminated, truncated) of env {i} are {row}, expected {want[1:4]}"
            assert info[j] == {**want[4], "env_id": i}, (
                f"info of env {i} is {info[j]}, expected {want[4]} and its env_id"
            )


def assert_columns(k: int, rew: Any, terminated: Any, truncated: Any, info: Any) -> None:
    columns = (
        ("rew", rew, np.float64),
        ("terminated", terminated, np.bool_),
        ("truncated", truncated, np.bool_),
        ("info", info, object),
    )
    for name, array, dtype in columns:
        assert isinstance(array, np.ndarray), f"{name} is a {type(array).__name__}, expected an array"
        assert array.dtype == dtype, f"{name} has the dtype {array.dtype}, expected {np.dtype(dtype)}"
        assert array.shape == (k,), f"{name} has the shape {array.shape}, expected {(k,)}"


def assert_same(got: Any, want: Any, what: str) -> None:
    """Assert that two trees are equal in structure, dtype, shape and each bit."""
    if isinstance(want, dict):
        assert isinstance(got, dict), f"{what} is a {type(got).__name__}, expected a dict"
        assert got.keys() == want.keys(), f"{what} has the keys {list(got)}, expected {list(want)}"
        for key in want:
            assert_same(got[key], want[key], f"{what}[{key!r}]")
    elif isinstance(want, tuple):
        assert isinstance(got, tuple), f"{what} is a {type(got).__name__}, expected a tuple"
        assert len(got) == len(want), f"{what} has {len(got)} parts, expected {len(want)}"
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{what}[{k}]")
    elif isinstance(want, (np.ndarray, np.generic)):
        a, b = np.asarray(got), np.asarray(want)
        assert a.dtype == b.dtype, f"{what} has the dtype {a.dtype}, expected {b.dtype}"
        assert a.shape == b.shape, f"{what} has the shape {a.shape}, expected {b.shape}"
        same = a.tobytes() == b.tobytes() if a.dtype != object else bool(np.all(a == b))
        assert same, f"{what} is {got!r}, expected {want!r}"
    else:
        assert got == want, f"{what} is {got!r}, expected {want!r}"


def assert_raises(expected: type[Exception], what: str, call: Callable[[], Any]) -> Exception:
    try:
        value = call()
    except expected as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__} ({error}), expected {expected.__name__}") from error
    raise AssertionError(f"{what} raised nothing and returned {value!r}, expected {expected.__name__}")
