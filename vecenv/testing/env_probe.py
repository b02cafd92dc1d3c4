"""`EnvProbe`: plays and measures one env in a worker process, for `check_env`."""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.host.env_checks import check_coroutines
from vecenv.backends.host.row_writer import REWARD_TYPES
from vecenv.errors import VectorEnvError
from vecenv.portability import system_file
from vecenv.random_actions import sample_action
from vecenv.tuning.repeats import Row, flatten, with_equal_nans
from vecenv.venvs import DummyVectorEnv, ShmemVectorEnv

LONGEST_ARRAY = 1024
"""Size in bytes above which a trace holds the hash of an array instead of the array."""
EPISODES, IN_COPY = 20, 5
"""Number of episodes that `measure` plays, and of results in a forked copy."""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)


class Record(NamedTuple):
    """Result of a reset (`step` 0) or step."""

    episode: int
    step: int
    values: Row
    info: Row


class Trace(NamedTuple):
    records: list[Record]
    findings: dict[str, list[str]]
    """Texts by topic: "state", "obs", "reward", "info"."""


class EnvCosts(NamedTuple):
    """Median seconds of a step and a reset, and growth of the process in bytes per episode (`None`: unknown)."""

    step: float
    reset: float
    growth: float | None
    episodes: int


class EnvProbe(gymnasium.Env[Any, Any]):
    """Env that a `ShmemVectorEnv` runs, so that `venv.call` can call the methods, which use envs of `env_fn`."""

    def __init__(self, env_fn: Callable[[], Any], steps: int) -> None:
        self._env_fn, self._steps, self._players = env_fn, steps, list[_Player]()
        # With equal generators, an env that draws from them differs only if it or another env has drawn before.
        np.random.seed(0)
        random.seed(0)
        os.dup2(2, 1)  # the env's prints must not mix with the caller's table

    def play(self, seed: int, count: int | None, seconds: float) -> Trace:
        """Return the first `count` results (`None`: of all steps), or the results until `seconds` have passed.

        The first call makes the env, and later calls use this env.
        """
        player = self._players[0] if self._players else self._make()
        end, records = time.monotonic() + seconds, list[Record]()
        for record in islice(player.play(seed, self._steps), count):
            records.append(record)
            if record.step and time.monotonic() > end:
                break
        return Trace(records, player.findings)

    def make_neighbor(self) -> None:
        """Make an env that `play_beside` plays."""
        self._make()

    def play_beside(self, seed: int, count: int) -> Trace:
        """Make a second env, and return its first `count` results. The neighbor plays with a different seed between."""
        neighbor, player = self._players[0], self._make()
        pairs = zip(player.play(seed, self._steps), neighbor.play(seed + 1, self._steps), strict=False)
        return Trace([record for record, _ in islice(pairs, count)], player.findings)

    def measure(self, seconds: float) -> EnvCosts:
        """Measure the env of `play` for `EPISODES` episodes, or stop after `seconds`."""
        env, space, clock = self._players[0].env, self._players[0].seeded_space(0), time.perf_counter
        resets, steps, sizes, end = list[float](), list[float](), [resident_bytes()], clock() + seconds
        with located("a measured episode"):
            while len(sizes) <= EPISODES and (not steps or clock() < end):
                begin = clock()
                obs, info = env.reset()
                resets.append(clock() - begin)
                for _ in range(longest_episode(self._steps)):
                    action = sample_action(space, obs, info)
                    begin = clock()
                    obs, _, terminated, truncated, info = env.step(action)
                    steps.append(clock() - begin)
                    if terminated or truncated or clock() > end:
                        break
                sizes.append(resident_bytes())
        half = [size for size in sizes[len(sizes) // 2 :] if size is not None]  # the first half fills caches
        growth = (half[-1] - half[0]) / (len(half) - 1) if len(half) > 1 else None
        return EnvCosts(median(steps), median(resets), growth, len(resets))

    def fork(self, seed: int, timeout: float) -> None:
        """Play a new env in a forked copy of this process."""
        probe = partial(EnvProbe, self._env_fn, self._steps)
        with ShmemVectorEnv([probe], context="fork", start_timeout=timeout, step_timeout=timeout) as venv:
            venv.call("play", seed, IN_COPY, timeout)

    def close(self) -> None:
        for player in self._players:
            player.venv.close()

    def _make(self) -> _Player:
        self._players.append(_Player(self._env_fn))
        return self._players[-1]


class _Player:
    """An env in a `DummyVectorEnv`, so that vecenv checks all results. The env sees the calls that vecenv makes."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.findings: dict[str, list[str]] = {topic: [] for topic in ("state", "obs", "reward", "info")}
        watched: list[_WatchedEnv] = []

        def make() -> _WatchedEnv:
            with watch_state(self.findings["state"], "the constructor"):
                env = env_fn()
            check_coroutines(env, "env_fn()")
            watched.append(_WatchedEnv(env, self.findings))
            return watched[0]

        with located("the constructor"):
            self.venv = DummyVectorEnv([make])
        self._watched, self.env = watched[0], watched[0].env

    def seeded_space(self, seed: int) -> Any:
        """Return a copy of the action space, because envs may share the space."""
        space = copy.deepcopy(self.venv.action_space[0])
        if space is None:
            raise VectorEnvError("the env has no action_space, which is needed to draw random actions")
        space.seed(seed)
        return space

    def play(self, seed: int, steps: int) -> Iterator[Record]:
        """Yield the results of a seeded episode and of further episodes, with `steps` steps in all.

        `reset` also ends an episode after `longest_episode` steps.
        """
        space, episode, done = self.seeded_space(seed), 0, 0
        while done < steps:
            with located(f"reset of episode {episode}"):
                obs, infos = self.venv.reset(**({} if episode else {"seed": seed}))
            yield Record(episode, 0, *self._watched.last)
            for step in range(1, min(longest_episode(steps), steps - done) + 1):
                with located(f"step {step} of episode {episode}"):
                    action = sample_action(space, nest.take(obs, 0), infos[0])
                    obs, _, terminated, truncated, infos = self.venv.step([action])
                done += 1
                yield Record(episode, step, *self._watched.last)
                if terminated[0] or truncated[0]:
                    break
            episode += 1


class _WatchedEnv:
    """Env that records the results and effects of another env."""

    last: tuple[Row, Row]
    """Values and info of the last result, as in `Record`."""

    def __init__(self, env: Any, findings: dict[str, list[str]]) -> None:
        self.env, self._findings, self._keys = env, findings, dict[str, list[str]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        with watch_state(self._findings["state"], "reset"):
            result = self.env.reset(**kwargs)
        self._record("reset", result, ["obs", "info"])
        return result

    def step(self, action: Any) -> Any:
        with watch_state(self._findings["state"], "step"):
            result = self.env.step(action)
        self._record("step", result, ["obs", "reward", "terminated", "truncated", "info"])
        return result

    def _record(self, method: str, result: Any, names: list[str]) -> None:
        if not isinstance(result, tuple) or len(result) != len(names):
            return  # vecenv raises an error
        named = dict(zip(names, result, strict=True))
        info = named.pop("info")
        info = info if isinstance(info, Mapping) else {}
        self.last = flatten(named, frozen), {f"info[{key!r}]": frozen(each) for key, each in info.items()}
        if not self._findings["obs"] and (
            problem := misfit(getattr(self.env, "observation_space", None), named["obs"])
        ):
            self._findings["obs"].append(f"{method}() returned an observation {problem}"[:300])
        reward = named.get("reward", 0.0)
        if not self._findings["reward"] and (type(reward) not in REWARD_TYPES or reward != reward):
            self._findings["reward"].append(f"step() returned {reward!r} of type {type(reward).__name__}"[:200])
        keys = self._keys.setdefault(method, sorted(self.last[1]))
        if not self._findings["info"] and keys != sorted(self.last[1]):
            self._findings["info"].append(f"infos of {method}() have the keys {keys} or {sorted(self.last[1])}"[:300])


def longest_episode(steps: int) -> int:
    return max(1, steps // 2)


@contextlib.contextmanager
def located(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise VectorEnvError(f"{place} raised {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def watch_state(changes: list[str], method: str) -> Iterator[None]:
    """Add a text such as "np.random (step)" to `changes` for each state of the process that the block changes."""
    before, environ = process_state(), os.environ.copy()
    yield
    found = [name for name, value in process_state().items() if before.get(name, value) != value]
    names = {*environ, *os.environ}
    found += [f"os.environ[{name!r}]" for name in sorted(names) if environ.get(name) != os.environ.get(name)]
    changes += [text for name in found if (text := f"{name} ({method})") not in changes]


def process_state() -> dict[str, Any]:
    state: dict[str, Any] = {"np.random": pickle.dumps(np.random.get_state(legacy=False)), "random": random.getstate()}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        state["torch's generator"] = torch.get_rng_state().numpy().tobytes()
    state["signal handlers"] = {number: signal.getsignal(number) for number in SIGNALS}
    return {**state, "working directory": os.stat(".").st_ino}


def frozen(value: Any) -> Any:
    """Return a copy of a leaf. A large array becomes its dtype, shape and hash. Other objects become a hash or type."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (set, frozenset)):  # the order of strings differs between processes
        return sorted(map(repr, value))
    with contextlib.suppress(Exception):
        array = with_equal_nans(np.array(nest.tensor_on_host(value)))
        if array.dtype.kind in "biufc":
            digest = hashlib.sha1(array.tobytes(), usedforsecurity=False).hexdigest()[:12]
            return array if array.nbytes <= LONGEST_ARRAY else (str(array.dtype), array.shape, digest)
        return type(value).__name__, hashlib.sha1(pickle.dumps(value), usedforsecurity=False).hexdigest()[:12]
    return type(value).__name__


def misfit(space: Any, obs: Any) -> str:
    """Return "", or why an observation is not exactly an element of its space."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium warns about lists, which become arrays
        if space is None or not space.contains(obs):
            return "" if space is None else f"outside of {space}: {obs!r}"
    dtypes = nest.leaves(nest.merge(lambda pair: _cast_dtype(*pair), [nest.tree_of(space), obs]))
    return next((f"with the dtype {dtype}, which vecenv casts: {space}" for dtype in dtypes if dtype), "")


def _cast_dtype(space: Any, leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, np.ndarray) and leaf.dtype != space.dtype else ""


def resident_bytes() -> int | None:
    gc.collect()
    found = system_file("/proc/self/statm")
    return int(found.split()[1]) * os.sysconf("SC_PAGE_SIZE") if found else None
