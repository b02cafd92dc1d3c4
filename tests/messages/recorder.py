"""Messages of `RecordEpisodes`: what cannot be stored is refused, and the episodes before and after it are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from collector import Dataset, DatasetError, RecordEpisodes
from tests.messages.rows import NOTHING, Subject, each, rows_for
from tests.support.numbered import Mapped, Numbered, assert_whole, env_fns, float_obs, play, whole_obs, without_mode
from vecenv import DummyVectorEnv


class Tile(IntEnum):
    """Keys of a Dict space, as in pgtg 0.6.1."""

    WALL = 1


class Spaced(Numbered):
    """Env with another space."""

    def __init__(self, number: int = 0, **changed: Any) -> None:
        super().__init__(number)
        vars(self).update(changed)


class Odd(Numbered):
    """Env that observes None instead of a text after the reset."""

    def observe(self) -> Any:
        return super().observe() if self.taken == 0 else None


def records(make: Any, **options: Any) -> Any:
    """Return a call that wraps the vector env that `make` returns. It leaves no folder."""

    def record() -> None:
        with TemporaryDirectory() as name, closing(make()) as venv:
            try:
                RecordEpisodes(venv, Path(name, "a"), **options)
            finally:
                assert not Path(name, "a").exists()

    return record


def spaced(**changed: Any) -> Any:
    return records(lambda: DummyVectorEnv([partial(Spaced, **changed)]))


@contextmanager
def _recorded(make: Any) -> Iterator[Any]:
    """Record episodes, and give the vector env and the folder."""
    with TemporaryDirectory() as folder, RecordEpisodes(make(), folder) as envs:
        play(envs, 9)
        yield SimpleNamespace(envs=envs, folder=folder)


def _goes_on(it: Any) -> None:
    play(it.envs, 9)
    it.envs.close()
    assert len(assert_whole(Dataset(it.folder))) > 10


def mapped() -> Mapped:
    return Mapped(SyncVectorEnv(env_fns(), autoreset_mode=AutoresetMode.SAME_STEP), whole_obs, whole_obs, whole_obs)


def observes(*says: str, **wrong: Any) -> tuple[Any, ...]:
    """Return a row: observations after these functions are refused."""

    def step(it: Any) -> None:
        vars(it.envs.env).update(wrong)
        try:
            play(it.envs, 4)
        finally:
            vars(it.envs.env).update(first=whole_obs, later=whole_obs, last=whole_obs)

    return step, DatasetError, *says


def steps(*action: Any) -> Any:
    return lambda it: it.envs.step([*action])


def odd_step(make: Any) -> None:
    with TemporaryDirectory() as folder, RecordEpisodes(make([partial(Odd, 0, "text")] * 2), folder) as envs:
        envs.reset()
        envs.step(["a", "b"])


def wrong_step(env_fn: Any, *action: Any) -> Any:
    """Return a call: a step with actions that the envs take and that are not elements of their action space."""

    def step() -> None:
        with TemporaryDirectory() as folder, RecordEpisodes(DummyVectorEnv([env_fn] * len(action)), folder) as venv:
            venv.reset()
            venv.step([*action])

    return step


def get(it: Any, name: str) -> Any:
    return getattr(it.envs, name)


def with_keys(keys: Any) -> None:
    records(INFORMED, info_keys=keys)()


INFORMED = partial(DummyVectorEnv, env_fns(informs=True))
NARROW = partial(Spaced, 1, observation_space=spaces.Box(-1, 9, (4,)))
TILES = spaces.Dict(map=spaces.Tuple([spaces.Dict({Tile.WALL: spaces.Discrete(2)})]))
LONG = spaces.Box(0, 1, (1,), np.longdouble)
SMALL = partial(Spaced, action_space=spaces.Box(0, 99, (), np.uint8))
TALKS = partial(Numbered, 0, "text")
NO_ELEMENTS = "not elements of the action space, so they cannot be stored"
FLOATS = "says float32 in the shape (3,): cor"
ROWS = [
    *rows_for(
        NOTHING,
        (spaced(observation_space=TILES), DatasetError, "obs['map'][0] has the keys [<Tile.WALL: 1>]; only text"),
        (spaced(action_space=LONG), DatasetError, "action is ", "integers and floats of up to 64 bits"),
        (spaced(observation_space=spaces.Sequence(spaces.Text(5))), DatasetError, "of numbers can be stored: obs"),
        (records(lambda: DummyVectorEnv([Spaced, NARROW])), DatasetError, "obs is not an array with"),
        (records(lambda: DummyVectorEnv(env_fns("tree"), stack_obs=False)), ValueError, "with stack_obs=True"),
        (records(Spaced), TypeError, "wraps vector envs"),
        (records(without_mode), ValueError, "pass autoreset_mode="),
        (each(("mask", 5), with_keys), TypeError, "info_keys are the names"),
        (records(INFORMED, info_keys=("mask", "mask")), ValueError, "info_keys"),
        ([wrong_step(SMALL, 300), wrong_step(TALKS, "a", 5)], DatasetError, NO_ELEMENTS),
        (each((DummyVectorEnv, SyncVectorEnv), odd_step), DatasetError, "returned obs as", "says a text per env"),
    ),
    *rows_for(
        Subject(partial(_recorded, lambda: DummyVectorEnv(env_fns())), _goes_on),
        (steps(1, 2), ValueError, "got 2 actions for 3 envs"),
        (steps(0.5, 1, 2), TypeError, "must be whole numbers that fit"),
        (steps([1, 2], [1, 2], [1, 2]), ValueError, "has the shape (3, 2), expected (3,)"),
        (lambda it: it.envs.step("abc"), TypeError, "got the str 'abc' for envs"),
    ),
    *rows_for(
        Subject(partial(_recorded, mapped), _goes_on),
        (each(("reset_async", "step_wait"), get), AttributeError, "it records `reset` and `step`"),
        observes("float64", "and casting would change the values: cor", first=lambda obs: float_obs(obs) + 1e300),
        observes("obs as float32 in the shape (2,)", FLOATS, later=lambda obs: obs[:, :2]),
        observes("as a dict with the keys ['a']; ", FLOATS, later=lambda obs: {"a": obs}),
        observes("<U", last=lambda obs: obs.astype(str)),
    ),
]
