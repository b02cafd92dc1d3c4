"""Comparison of an env's episodes: `play`, `first_difference`, and `RepeatProbe`, which plays in a worker.

    new env:           episode 0
    another new env:   episode 0    episode 1    episode 0    episode 0, with other draws

All episodes 0 have the same seed and actions, and must be equal. Other draws are draws between the steps from `random`,
`np.random`, and torch's generator if torch is imported.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from vecenv import nest
from vecenv.backends.host.env_checks import check_coroutines
from vecenv.random_actions import sample_action

STEPS = 200
"""Most steps of an episode that `RepeatProbe` plays."""
SECONDS = 0.25
"""Seconds of steps after which `RepeatProbe` leaves an episode."""
Row = dict[str, Any]
"""Values of a reset or a step, by name, such as "obs['position']"."""


def play(env: Any, seed: int, act: Callable[[Any, Any], Any], steps: int = STEPS) -> Iterator[Row]:
    """Yield the results of a reset and of each step, until the episode ends or has `steps` steps. Infos are left out.

    act: returns the action for an observation and an info.

    >>> [sorted(row) for row in play(gymnasium.make("Blackjack-v1"), 0, lambda obs, info: 0, steps=1)]
    [['obs[0]', 'obs[1]', 'obs[2]'], ['obs[0]', 'obs[1]', 'obs[2]', 'reward', 'terminated', 'truncated']]
    """
    obs, info = env.reset(seed=seed)
    yield flatten({"obs": obs}, copy.deepcopy)
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(act(obs, info))
        results = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated}
        yield flatten(results, copy.deepcopy)  # an env may write into its observation
        if terminated or truncated:
            return


def flatten(results: dict[str, Any], copied: Callable[[Any], Any]) -> Row:
    """Return copies of the leaves of nested results, by name.

    >>> flatten({"obs": {"position": (1, 2)}}, int)
    {"obs['position'][0]": 1, "obs['position'][1]": 2}
    """
    return {
        str(path[0]) + "".join(f"[{key!r}]" for key in path[1:]): copied(leaf) for path, leaf in nest.items(results)
    }


class Difference(NamedTuple):
    """Index of a row, name of a value in the row, and the value of both trajectories as texts."""

    row: int
    name: str
    one: str
    other: str


def first_difference(one: Iterable[Row], other: Iterable[Row]) -> Difference | None:
    """Return the first value that differs in its type or bits. NaN equals NaN.

    The longer trajectory may have further rows.

    >>> first_difference([{"obs['x']": np.array([1, 2])}], [{"obs['x']": np.array([1, 3])}])
    Difference(row=0, name="obs['x'][1]", one='2', other='3')
    """
    for i, (left, right) in enumerate(zip(one, other, strict=False)):
        for name in {**left, **right}:
            if words := value_difference(left.get(name, "missing"), right.get(name, "missing")):
                return Difference(i, name + words[0], *words[1:])
    return None


def value_difference(one: Any, other: Any) -> tuple[str, str, str] | None:
    """Return where two values first differ in their type or bits, and both values as texts. NaN equals NaN.

    >>> value_difference(np.array([1, 2]), np.array([1, 3])), value_difference(np.nan, np.nan)
    (('[1]', '2', '3'), None)
    """
    try:
        a, b = np.asarray(one), np.asarray(other)
    except Exception:  # lists of different lengths
        a = b = np.array(None)
    if {a.dtype.kind, b.dtype.kind} & {"O", "U"}:
        return None if data_equivalence(one, other, exact=True) else ("", _short(one), _short(other))
    if type(one) is not type(other) or a.dtype != b.dtype or a.shape != b.shape:
        words = [f"a {type(each).__name__} {array.dtype}{array.shape}" for each, array in ((one, a), (other, b))]
        return "", words[0], words[1]
    a, b = with_equal_nans(a), with_equal_nans(b)
    if a.tobytes() == b.tobytes():
        return None
    size = max(1, a.itemsize)
    bits = [np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, size) for each in (a, b)]
    place = np.unravel_index(int((bits[0] != bits[1]).any(1).argmax()), a.shape)
    return "".join(f"[{i}]" for i in place), _short(a[place].item()), _short(b[place].item())


def with_equal_nans(array: np.ndarray) -> np.ndarray:
    """Give all NaNs of an array the same bits, because `-np.nan` has other bits than `np.nan`."""
    return np.where(np.isnan(array), array.dtype.type(np.nan), array) if array.dtype.kind in "fc" else array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class RepeatProbe(gymnasium.Env[Any, Any]):
    """Env whose method `find_difference` makes two envs of `env_fn`, one after the other, and compares their episodes.

    `seeds`: the seeds of reset and action space for episodes 0 and 1.
    """

    def __init__(self, env_fn: Callable[[], Any], seeds: Sequence[tuple[int, int]]) -> None:
        self._env_fn, self._seeds = env_fn, seeds

    def find_difference(self) -> str:
        """Return the reason why the env does not repeat episodes, or "". Raise the env's error if it cannot be reset.

        The global generators of the process (`random`, `np.random` and torch's) are not restored.
        """
        first = self._use_new_env(lambda env: self._play(env, 0))
        return self._use_new_env(lambda env: self._compare(env, first))

    def _use_new_env(self, use: Callable[[Any], Any]) -> Any:
        env = self._env_fn()
        check_coroutines(env, "the env function")
        try:
            return use(env)
        finally:
            env.close()
            # If a MuJoCo env is deleted later, all other MuJoCo envs of the process render black.
            del env
            gc.collect()

    def _compare(self, env: Any, first: list[Row]) -> str:
        if found := _difference(first, self._play(env, 0)):
            return f"reset(seed=...) does not decide the episode of a new env: {found} in two new envs"
        self._play(env, 1)
        if found := _difference(first, self._play(env, 0)):
            return f"reset(seed=...) keeps a state of the episode before: {found} in a new and in a used env"
        if found := _difference(first, self._play(env, 0, draw=True)):
            return f"the env uses a generator of its process (random, np.random or torch's): {found} after other draws"
        return ""

    def _play(self, env: Any, number: int, draw: bool = False) -> list[Row]:
        """Play an episode with random actions, until its end, `STEPS`, `SECONDS`, or an error in a step."""
        seed, action_seed = self._seeds[number]
        space = copy.deepcopy(env.action_space)
        space.seed(action_seed)
        results = play(env, seed, partial(sample_action, space))
        rows = [next(results)]
        end = time.monotonic() + SECONDS  # without the reset, because the first one may import libraries
        with suppress(Exception):  # StopIteration ends the episode
            while len(rows) == 1 or time.monotonic() < end:
                if draw:
                    draw_from_shared_generators()
                rows.append(next(results))
        return rows


def _difference(one: list[Row], other: list[Row]) -> str:
    found = first_difference(one, other)
    if found is None:
        return ""
    where = f"of step {found.row}" if found.row else "of the reset"
    return f"{found.name} {where} is {found.one} and {found.other}"


def draw_from_shared_generators() -> None:
    random.random()
    np.random.random()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.rand(1)
