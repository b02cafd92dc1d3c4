"""The env of the fuzzers, and comparisons that share no code with vecenv."""

from __future__ import annotations

import copy
import os
import signal
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.support.compare import assert_same as assert_same
from tests.support.compare import is_list
from vecenv.transforms import Rows, Transform

FAR = 2**40
SPACES: dict[str, Any] = {
    "floats": spaces.Box(-FAR, FAR, (3,), np.float32),
    "doubles": spaces.Box(-FAR, FAR, (1, 1), np.float64),
    "scalar": spaces.Box(-FAR, FAR, (), np.float64),
    "half": spaces.Box(-9, 9, (2, 1), np.float16),
    "picture": spaces.Box(0, 255, (2, 3), np.uint8),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "discrete": spaces.Discrete(1000, start=-7),
    "multi": spaces.MultiDiscrete([[9, 5], [3, 2]]),
    "binary": spaces.MultiBinary(5),
    "text": spaces.Text(8),
    "sequence": spaces.Sequence(spaces.Discrete(9)),
    "dict": spaces.Dict(
        {
            "b": spaces.Box(-FAR, FAR, (2,), np.int64),
            "a": spaces.Tuple((spaces.Discrete(9), spaces.MultiBinary(3), spaces.Text(4))),
        }
    ),
    "boxes": spaces.Dict({"z": spaces.Box(-FAR, FAR, (3,), np.float32), "k": spaces.Discrete(5)}),
    "tuple": spaces.Tuple((spaces.Box(-1, 1, (2, 2), np.float32), spaces.Dict({"x": spaces.Discrete(4)}))),
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(100),
    "box": spaces.Box(-9, 9, (2,), np.float32),
    "scalar": spaces.Box(-9, 9, (), np.float64),
    "multi": spaces.MultiDiscrete([5, 6, 7]),
    "dict": spaces.Dict({"go": spaces.Discrete(5), "at": spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (2,), np.float32))),
}
Pair = namedtuple("Pair", "a b")
INFOS: dict[str, Any] = {
    "few of each": lambda i, t: [
        {}, {"t": 1, "x": 0.5}, {"at": np.arange(3)}, {"deep": {"k": [1, "a"]}, "flag": np.bool_(True)}, {"s": "text"},
    ][(t + i) % 5],
    "python numbers": lambda i, t: {"float": t + i / 7, "int": -t, "bool": t % 2 == 0, "x y": 0.5, "": 1},
    "numpy numbers": lambda i, t: {
        np.dtype(kind).name: np.dtype(kind).type((t + i) % 100) for kind in ("?", *"bhilBHIL", *"efd")},
    "arrays": lambda i, t: {
        "matrix": np.full((2, 3), t, np.float32), "vector": np.arange(3) + i, "0-d": np.array(t),
        "none": np.zeros((0, 2)), "flags": np.array([t % 2 == 0, True]), "other end first": np.array([t, i], ">i4"),
        "columns first": np.asfortranarray([[t, 1.0], [2.0, i]]), "every other": np.arange(8)[::2] + t,
        "complex": np.array([t + 1j])},
    "odd floats": lambda i, t: {
        "python": [float("nan"), float("inf"), -0.0, 5e-324][t % 4], "array": np.array([np.nan, -0.0, np.inf]),
        "single": [np.float32("nan"), np.float32(-0.0), np.float32(1e-45)][t % 3]},
    "large ints": lambda i, t: {"n": [2**63 - 1, -(2**63), 2**63, 2**70, -(2**63) - 1][(t + i) % 5], "t": t},
    "keys that change": lambda i, t: {"abc"[t % 3]: t, "always": 1.5, "xyz"[i % 3]: i},
    "types that change": lambda i, t: {"x": [t, t + 0.5, True, np.float64(t), np.int8(t % 100), None][(t + i) % 6]},
    "shapes that change": lambda i, t: {"x": np.arange(t % 4), "y": np.zeros((1, i + 1))},
    "dtypes that change": lambda i, t: {"x": np.array([0, 1, 1], dtype=["i4", "i8", ">i8", "f4", "?"][t % 5])},
    "some without": lambda i, t: {"x": t} if i % 2 else {},
    "objects": lambda i, t: {
        "x": [None, "text", b"bytes", [1, t], {"deep": {"er": np.arange(t)}}, Pair(1, 2.0)][t % 6], "t": t},
    "other numpy values": lambda i, t: {"x": [
        np.datetime64("2020-01-01"), np.str_("a"), np.complex128(1j), np.array(["a", "bc"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.array([None, 1], dtype=object)][t % 6]},
    "keys of other types": lambda i, t: [{1: t}, {("a",): t}, {np.str_("x"): t}, {"x": t}][t % 4],
    "an id of its own": lambda i, t: {"env_id": 100 + i, "x": t},
    "large arrays": lambda i, t: {"x": np.arange(1000.0) + t, "t": t},
    "many keys": lambda i, t: {f"key {k}": float(k) for k in range(62 + t % 4)},
    "many forms": lambda i, t: {f"key {t}": t, "x": float(i)},
}  # fmt: skip
"""Infos of env i in its call t. Numbers and small arrays travel as bytes (512 per env), all others pickled."""


class Died(Exception):
    """Takes the place of the end of the process, in the oracle."""


class Unpicklable(Exception):
    """Cannot travel between processes."""

    def __init__(self, one: Any, two: Any) -> None:
        super().__init__("cannot travel")

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle this")


OURS = {"env_id", "final_obs", "final_info"}


class Notes(Transform):
    """Writes into each info what the info said before, and the reward of a step."""

    def __init__(self) -> None:
        super().__init__(in_keys=[])

    def reset(self, rows: Rows) -> None:
        for info in rows.info:
            info["told"] = len(info.keys() - OURS)

    def step(self, rows: Rows) -> None:
        for info, reward in zip(rows.info, np.asarray(rows.reward).tolist(), strict=True):
            info["told"] = [len(info.keys() - OURS), reward]


STATE = ("calls", "episode", "t", "seeded", "options", "mark", "received")
"""Attributes of `Scripted` on which results depend."""


class Scripted(gymnasium.Env):
    """Observations, rewards and infos follow from the env's id, and from all that was done to it.

    `faults`: by ("step" or "reset", number of this call modulo 12), one of "raise", "short", "misfit", "unpicklable"
    and "die". `infos`: kinds of INFOS, one per episode in turn. Episodes end after `2 + (id + episode) % 5` steps, in
    turn by termination, truncation and both.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        id: int,
        space: str = "floats",
        actions: str = "discrete",
        rewards: str = "float",
        faults: Mapping[tuple[str, int], str] | None = None,
        infos: Sequence[str] = ("few of each",),
        is_oracle: bool = False,
    ) -> None:
        self.infos = infos
        self.observation_space, self.action_space = SPACES[space], ACTIONS[actions]
        self.id, self.rewards, self.faults, self.is_oracle = id, rewards, faults or {}, is_oracle
        self.calls = self.episode = self.t = 0
        self.seeded, self.options, self.mark = -1, 0, 0
        self.broken = False
        """Whether the next step raises."""
        self.received: Any = None
        """The types of the last action."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t, self.broken = self.episode + 1, 0, False
        self.seeded = self.seeded if seed is None else seed
        self.options = (options or {}).get("at", 0)
        row = self._row("reset", 0)
        return row if len(row) == 3 else (row[0], row[-1])

    def step(self, action: Any) -> Any:
        if self.broken:
            raise OverflowError(f"boom of env {self.id}")
        self.t += 1
        self.received = type_of(action)
        return self._row("step", action)

    def _row(self, op: str, action: Any) -> Any:
        self.calls += 1
        fault = self.faults.get((op, self.calls % 12))
        if fault == "raise":
            raise KeyError(f"boom in {op} {self.calls}")
        if fault == "unpicklable":
            raise Unpicklable(1, 2)
        if fault == "die":
            if self.is_oracle:
                raise Died
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng([self.id, self.episode, self.t, self.seeded + 1, self.options, self.mark])
        over = self.t >= 2 + (self.id + self.episode) % 5
        kind = self.episode % 3
        obs = draw(self.observation_space, rng, number(action))
        if fault == "misfit":
            obs = misfit(obs)
        reward = float(rng.normal())
        value: Any = {"float": reward, "int": int(9 * reward), "float32": np.float32(reward)}.get(self.rewards, reward)
        if self.rewards == "vector" or (self.rewards == "mixed" and (self.calls + self.id) % 7 == 0):
            value = np.array([reward, self.t])
        info = INFOS[self.infos[(self.episode + self.id) % len(self.infos)]](self.id, self.calls)
        if fault == "short":
            return (obs,) * 3
        return obs, value, over and kind != 1, over and kind != 0, info

    def get_state(self) -> Any:
        return {name: getattr(self, name) for name in STATE}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    episode_state, set_episode_state = get_state, set_state
    """What the env of a new worker continues."""

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return self.id, self.t, args, kwargs

    def set_mark(self, value: int) -> None:
        self.mark = value

    def break_in(self, ids: Sequence[int]) -> None:
        """Raise in the next step, if these are ids of this env too."""
        self.broken = self.id in ids

    def set_states(self, states: Sequence[Any]) -> None:
        """Set the state of this env, of the states of all envs."""
        self.set_state(states[self.id])

    def render(self) -> Any:
        return np.full((2, 2, 3), self.id, np.uint8)


class Named(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Env whose infos have the key `env_id`, which vecenv uses as well."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "env_id": "first"}

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        return (*result, {**info, "env_id": "later"} if info else info)


class Loose(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """Env whose observations have other types than their space, as in published envs."""

    def observation(self, obs: Any) -> Any:
        return loosened(self.observation_space, obs)


def loosened(space: Any, obs: Any) -> Any:
    """Return an observation with wider floats, lists, numpy integers, and keys in another order."""
    if isinstance(space, spaces.Dict):
        return {key: loosened(space[key], obs[key]) for key in reversed(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return [loosened(part, value) for part, value in zip(space.spaces, obs, strict=True)]
    if isinstance(space, spaces.Discrete):
        return np.int64(obs)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.shape != ():
        return np.asarray(obs, np.float64) if len(space.shape) == 1 else obs.tolist()
    return obs


def monitored(env: Any) -> Any:
    from stable_baselines3.common.monitor import Monitor  # imports torch, which takes seconds in a worker

    return Monitor(env)


AROUND: dict[str, Any] = {
    "none": lambda env: env,
    "time limit": lambda env: gymnasium.wrappers.TimeLimit(env, 3),
    "statistics": gymnasium.wrappers.RecordEpisodeStatistics,
    "scaled": lambda env: gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward),
    "named": Named,
    "loose": Loose,
    "monitor": monitored,
}
"""Wrappers of single envs."""


def make_env(i: int, around: str = "none", **settings: Any) -> Any:
    """Make env i, with this wrapper around it."""
    return AROUND[around](Scripted(i, **settings))


def type_of(value: Any) -> Any:
    """The types of all parts of an action."""
    if isinstance(value, Mapping):
        return {key: type_of(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [type_of(part) for part in value]
    return type(value).__name__, str(getattr(value, "dtype", "")), np.shape(value)


def number(value: Any) -> int:
    """A number that follows from every part of an action."""
    if isinstance(value, Mapping):
        return sum((k + 1) * number(value[key]) for k, key in enumerate(sorted(value)))
    if isinstance(value, (tuple, list)):
        return sum((k + 1) * number(part) for k, part in enumerate(value))
    flat = np.asarray(len(value) if isinstance(value, str) else value, np.float64).ravel()
    return int(np.round((flat * 64).dot(np.arange(1, len(flat) + 1))))


def draw(space: Any, rng: np.random.Generator, action: int = 0) -> Any:
    """An element of the space that follows from the generator and, in numbers, from the action."""
    if isinstance(space, spaces.Dict):
        return {key: draw(part, rng, action) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw(part, rng, action) for part in space.spaces)
    if isinstance(space, spaces.Box):
        if space.dtype.kind in "iu":
            low, high = int(space.low.min(initial=0)), int(space.high.max(initial=1))
            return (low + (rng.integers(0, 2**30, space.shape) + action) % (high - low)).astype(space.dtype)
        values = rng.uniform(-1, 1, space.shape) + (action % 7 if space.high.max(initial=0) > 8 else 0)
        return np.asarray(values, space.dtype)
    if isinstance(space, spaces.Discrete):
        return int(space.start + (rng.integers(0, 2**30) + action) % space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return (rng.integers(0, 2**30, space.shape) % space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, space.shape, np.int8)
    if isinstance(space, spaces.Text):
        return "abcdefgh"[: 1 + int(rng.integers(space.max_length))]
    return tuple(np.int64(part) for part in rng.integers(0, 9, int(rng.integers(4))))


def misfit(obs: Any) -> Any:
    """The observation with an object that does not fit, in its last part that may not be an object."""
    if isinstance(obs, dict):
        return {**obs, max(obs): object()}
    return (*obs[:-1], object()) if isinstance(obs, tuple) else object()


def stacked(space: Any, rows: Sequence[Any]) -> Any:
    """The batch of these rows, by a plain loop."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, [row[key] for row in rows]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [row[k] for row in rows]) for k, part in enumerate(space.spaces))
    if isinstance(space, (spaces.Text, spaces.Sequence)):
        return objects(rows)
    return np.stack([np.asarray(row, space.dtype) for row in rows])


def objects(rows: Sequence[Any]) -> np.ndarray:
    batch = np.empty(len(rows), object)
    for j, row in enumerate(rows):
        batch[j] = row
    return batch


class Results:
    """The latest results of a vector env. No later call may change them, whatever the caller writes into them."""

    def __init__(self, most: int = 3, plain: Callable[[Any], Any] = lambda result: result) -> None:
        self.most, self.plain = most, plain
        self.kept: list[tuple[Any, Any]] = []

    def add(self, result: Any, *, write: bool = False) -> None:
        """Keep a result. `write`: overwrite its arrays first, as their owner may."""
        if write:
            overwrite(result)
        self.kept.append((result, copy.deepcopy(self.plain(result))))
        if len(self.kept) > self.most:
            self.check(1)

    def check(self, count: int | None = None) -> None:
        """Check that the oldest results have not changed, all by default, and forget them."""
        for result, before in self.kept[:count]:
            assert_same(self.plain(result), before, "an earlier result has changed")
        del self.kept[:count]


def overwrite(value: Any) -> None:
    """Fill all arrays of a result with ones."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if is_list(value):
        for part in value:
            overwrite(part)
    elif isinstance(value, np.ndarray) and value.flags.writeable and value.dtype.kind in "biufc":
        value[...] = 1


def transformed(env_fn: Any, makers: Sequence[Any]) -> Any:
    """The env of `env_fn` with these transforms around it."""
    from vecenv.transforms import Compose, TransformedEnv

    return TransformedEnv(env_fn(), Compose(*(make() for make in makers)))


def row_of(space: Any, batch: Any, j: int) -> Any:
    """Return row j of a batch, an element of the space."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(part, batch[key], j) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(part, batch[k], j) for k, part in enumerate(space.spaces))
    return np.asarray(batch[j]) if isinstance(space, spaces.Box) else batch[j]


class Told(gymnasium.Env):
    """Observes its id, the seed of its episode, the number of the step and the action; so a stale row shows."""

    action_space = spaces.Discrete(1000)

    def __init__(self, id: int, objects: bool = False, length: int | None = 4) -> None:
        numbers = spaces.Box(-(2**20), 2**20, (4,), np.float64)
        self.observation_space: Any = numbers
        if objects:
            self.observation_space = spaces.Dict({"x": numbers, "text": spaces.Text(9)})
        self.id, self.objects, self.first, self.t, self.length = id, objects, -1, 0, length
        self.pid = os.getpid()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.first, self.t = -1 if seed is None else seed, 0
        return self.observe(-1), {"at": self.t}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == (2 + self.first % 5 if self.length is None else self.length)
        return self.observe(action), float(self.t), over, False, {"at": self.t}

    def observe(self, action: Any) -> Any:
        numbers = np.array([self.id, self.first, self.t, action], np.float64)
        return {"x": numbers, "text": str(self.t)} if self.objects else numbers

    def get_state(self) -> Any:
        return self.first, self.t

    def set_state(self, state: Any) -> None:
        self.first, self.t = state

    def echo(self, value: Any) -> Any:
        return self.id, value


def normed(i: int, objects: bool = False) -> Any:
    from vecenv import TransformedEnv, VecNorm

    return TransformedEnv(Told(i), VecNorm(in_keys=["observation"], out_keys=["normed"]))
