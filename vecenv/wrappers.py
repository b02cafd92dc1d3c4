"""`VectorEnvWrapper`: base class of wrappers around a whole vector env."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.base import BaseVectorEnv, engine_of
from vecenv.engine.arguments import as_ids, round_envs
from vecenv.engine.mark import sets_mark
from vecenv.engine.recovery import is_repeated
from vecenv.errors import Partial
from vecenv.nest import tensor_on_host


class Forwarded:
    """The attribute or method `name` of `self.venv`, with its docstring in BaseVectorEnv; an object may set its own."""

    def __init__(self, name: str) -> None:
        self._of, self.__doc__ = attrgetter(f"venv.{name}"), getattr(BaseVectorEnv, name).__doc__

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else self._of(wrapper)


class VectorEnvWrapper(BaseVectorEnv):
    """Wraps a vector env: methods and attributes that a subclass does not define are those of `venv`.

    Works on anything with the methods of a vector env, and is one itself (`isinstance(wrapper, BaseVectorEnv)`).

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> class SignOfReward(VectorEnvWrapper):
    ...     def step(self, action, id=None, **kwargs):
    ...         obs, rew, *rest = self.venv.step(action, id, **kwargs)
    ...         return obs, np.sign(rew), *rest
    >>> with SignOfReward(DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 2)) as venv:
    ...     obs, info = venv.reset()
    ...     venv.step([[1.0], [-1.0]])[1], len(venv)
    (array([-1., -1.]), 2)
    """

    def __init__(self, venv: Any) -> None:
        self.venv = venv

    def __getattr__(self, name: str) -> Any:
        """Forward what only the wrapped object has."""
        if name == "venv":  # used in the constructor of a subclass before it is set
            raise AttributeError(f"{type(self).__name__} has no venv yet: call super().__init__(venv) first")
        return getattr(self.venv, name)

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.seeded(self.venv.seed, *args, **kwargs)

    def set_seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.seeded(self.venv.set_seed, *args, **kwargs)

    def seeded(self, seed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `seed`, a method of a layer below; the resets in it are those of the outermost wrapper."""
        base = self.venv
        while isinstance(base, VectorEnvWrapper):
            base = base.venv
        if not isinstance(base, BaseVectorEnv) or base.outermost is not None:
            return seed(*args, **kwargs)
        base.outermost = self
        try:
            return seed(*args, **kwargs)
        finally:
            base.outermost = None

    def note_exception(self, error: BaseException) -> None:
        if (note := getattr(self.venv, "note_exception", None)) is not None:  # else only used like a vector env
            note(error)

    def __len__(self) -> int:
        return len(self.venv)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"


FORWARDED = """reset step send recv get_env_attr set_env_attr call render get_state set_state start close alive stats
action_space observation_space metadata spec reward_range workers num_envs is_closed ready_id waiting_id failed_id"""
for _name in FORWARDED.split():  # that BaseVectorEnv defines, so that `__getattr__` is not called for them
    setattr(VectorEnvWrapper, _name, Forwarded(_name))


class LayerState:
    """The state of an env under a wrapper that keeps something along its episodes: `below`, and the wrapper's `own`."""

    def __init__(self, below: Any, own: dict[str, Any]) -> None:
        self.below, self.own = below, own


class RowWiseWrapper(VectorEnvWrapper):
    """Base of wrappers that change rows of what passes between the caller and the envs, but not how envs are stepped.

    A subclass defines what it changes of `map_action`, `map_reset` and `map_step`. Each row that the envs
    return passes one of the last two once, whether `reset`, `step` or `recv` returns it or it is in the `partial` of an
    error. A round in which episodes begin passes both: first its steps, those that ended an episode with their last
    observation (`final_obs` in the info), then its resets, as if these were a round of their own. So collectors and
    facades go on resetting an env in the round of its last step (`autoreset=True`), unless `keeps_autoreset` is False:
    then that is a TypeError. The resets by which `seed` and `set_seed` seed envs pass `map_reset` too.

    A wrapper that keeps something along an episode also defines `map_repeated`, for the row of an env that failed
    (`on_error="restart"`), which repeats an observation; and `episode_state` and `set_episode_state`, as transforms do,
    for `get_state` and `set_state`.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> class Clipped(RowWiseWrapper):
    ...     def map_step(self, obs, rew, terminated, truncated, info):
    ...         return obs, np.sign(rew), terminated, truncated, info
    >>> with Clipped(DummyVectorEnv([lambda: gym.make("Pendulum-v1")] * 2)) as venv:
    ...     obs, info = venv.reset()
    ...     venv.send([[1.0], [-1.0]])
    ...     venv.recv()[1]
    array([-1., -1.])
    """

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self._resets: set[int] = set()
        """The envs in flight that are being reset in a round of steps."""

    @property
    def keeps_autoreset(self) -> bool:
        """True if the episodes that the caller sees end are those that the envs end."""
        return True

    def map_action(self, action: Any) -> Any:
        """The actions that the envs get, for those that the caller passed."""
        return action

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return rows (k, ...) of envs that were reset as the caller gets them."""
        return obs, info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Return rows (k, ...) of envs that stepped as the caller gets them, in the order of `step`."""
        return obs, rew, terminated, truncated, info

    def note_reset(self, id: Any, kwargs: dict[str, Any]) -> None:
        """Called with the arguments of `reset` before it is passed on; does nothing here."""

    def note_round(self, action: Any, id: Any, kwargs: dict[str, Any]) -> None:
        """Called with the arguments of `step` or `send` before the round is sent. A subclass that overrides it calls
        this one too.
        """
        if not kwargs and not self._resets:
            return
        asks = all(kwargs.get("autoreset") is not no for no in (None, False, np.False_))
        if asks and not self.keeps_autoreset:
            raise TypeError(
                f"{type(self).__name__} ends episodes by itself, so no env can be reset in the round of its last step "
                "(autoreset=True): use step(action, reset=terminated | truncated) in the next round"
            )
        if kwargs.get("reset") is None and not self._resets:
            return
        n = len(self)
        ids, resets = round_envs(n, action, id, kwargs)
        asked = set(range(n) if ids is None else ids.tolist())
        asked -= set(self.venv.waiting_id)  # of these the round is refused, and they go on as they are
        self._resets = (self._resets - asked) | asked.intersection(resets)

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Return rows (k, ...) of envs that failed, whose `obs` is that of the step before, as the caller gets them."""
        return self.map_step(obs, rew, terminated, truncated, info)

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        """The state that is kept along the episodes of these envs: a tree of arrays (k, ...), empty if nothing is."""
        return {}

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        """Go on from the state that `episode_state` returned for as many envs: they have been put into another one."""

    def get_state(self, id: Any = None) -> list[Any]:
        """As `venv.get_state`, with the state along the episodes; NotImplementedError where that has no form."""
        own = self.episode_state(self._ids(id))
        below = self.venv.get_state(id)
        return [LayerState(each, nest.take(own, slice(i, i + 1))) for i, each in enumerate(below)] if own else below

    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """As `venv.set_state`; ValueError for states without, or with other, parts of the state that is kept here."""
        ids = self._ids(id)
        if expected := self.episode_state(ids).keys():
            for state in states:
                if not isinstance(state, LayerState) or state.own.keys() != expected:
                    got = f"with {sorted(state.own)}" if isinstance(state, LayerState) else "without them"
                    raise ValueError(
                        f"set_state() of {type(self).__name__} needs states with {sorted(expected)}, got one {got}: "
                        "take them by get_state() of a vector env with equal layers"
                    )

        def put() -> None:
            self.venv.set_state([state.below for state in states] if expected else states, id)
            for i, state in zip(ids, states, strict=False):
                self.set_episode_state(np.array([i]), state.own if expected else {})

        self._as_one_call(((), id, {}), put)

    def _ids(self, id: Any) -> np.ndarray:
        return np.arange(len(self)) if id is None else as_ids(tensor_on_host(id), len(self))

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """As `venv.reset`, with the rows of `map_reset`."""

        def reset() -> tuple[Any, np.ndarray]:
            self.note_reset(id, kwargs)
            rows: tuple[Any, np.ndarray] = self._mapped(self.map_reset, self.venv.reset, id, **kwargs)
            return rows

        return self._as_one_call(((), id, kwargs), reset)

    @sets_mark
    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        """As `venv.step`, with the rows of `map_step`."""
        # As `_as_one_call`, without the cost of two more calls in each round.
        if self._in_call is not None:
            self._recover(sys._getframe(1))
        self._in_call = action, id, kwargs
        try:
            self.note_round(action, id, kwargs)
            action = action if action is None else self.map_action(action)
            rows = self._mapped(self.map_round, self.venv.step, action, id, **kwargs)
        except BaseException as error:
            self._note_end(error)
            raise
        self._in_call = None
        return rows

    def send(self, action: Any, id: Any = None, **kwargs: Any) -> None:
        """As `venv.send`."""

        def send() -> None:
            self.note_round(action, id, kwargs)
            self.venv.send(action if action is None else self.map_action(action), id, **kwargs)

        self._as_one_call((action, id, kwargs), send)

    def recv(self) -> Any:
        """As `venv.recv`, with the rows of `map_step`."""
        asked: tuple[Any, Any, dict[str, Any]] = (), self.venv.waiting_id, {}
        return self._as_one_call(asked, lambda: self._mapped(self.map_round, self.venv.recv))

    def _mapped(self, mapped: Callable[..., Any], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The rows of a call, or of the `partial` of its error, mapped."""
        try:
            rows = call(*args, **kwargs)
        except Exception as error:
            if isinstance(partial := getattr(error, "partial", None), Partial):
                names = ("obs", "info") if mapped == self.map_reset else Partial._fields[1:]
                columns = mapped(*(getattr(partial, name) for name in names))
                error.partial = partial._replace(**dict(zip(names, columns, strict=True)))  # type: ignore[attr-defined]
            raise
        return mapped(*rows)

    def _abandon(self, error: BaseException | None) -> None:
        """Abandon the envs that the interrupted call asked for, also where the engine had done its part."""
        engine = getattr(self, "engine", None)
        if engine is not None and not engine.closed and self._in_call is not None:
            action, id, kwargs = self._in_call
            if action is None and kwargs.get("reset") is None:
                action = ()  # it waits for all that is in flight
            ids: Any = ()  # of arguments that are wrong, or for a `recv` of nothing
            with suppress(TypeError, ValueError, IndexError):
                ids = round_envs(len(self), action, id, kwargs)[0]
            engine.abandon(error, engine.all_ids if ids is None else [int(i) for i in ids])
        self._in_call = None

    def _reset_rows(self, info: np.ndarray) -> np.ndarray | None:
        """A mask of the rows of a round of envs that were reset in it; None for none."""
        ids = [row["env_id"] for row in info]
        rows = np.array([i in self._resets for i in ids], np.bool_)
        self._resets.difference_update(ids)
        return rows if rows.any() else None

    def map_round(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Map a round of steps, in which envs may have been reset, by `map_step` and `map_reset`."""
        resets = self._reset_rows(info) if self._resets else None
        if resets is None and terminated.__class__ is np.ndarray and not (terminated | truncated).nonzero()[0].size:
            return self.map_step(obs, rew, terminated, truncated, info)  # no episode ended
        ended = [row for row, each in enumerate(info) if "final_obs" in each and "final_info" in each]
        repeated = [row for row, each in enumerate(info) if is_repeated(each) and truncated[row]]
        if resets is None and not ended and not repeated:
            return self.map_step(obs, rew, terminated, truncated, info)
        resets = np.zeros(len(info), np.bool_) if resets is None else resets
        return self._map_mixed((obs, rew, terminated, truncated), info, resets, ended, repeated)

    def _map_mixed(
        self, columns: Any, info: np.ndarray, resets: np.ndarray, ended: list[int], repeated: list[int]
    ) -> Any:
        """A round of several kinds of rows: in the mask `resets` an episode begins by a reset alone, in the rows
        `ended` by one after the step; those in `repeated` are of envs that failed.
        """
        is_stepped, begins = ~resets, resets.copy()
        is_stepped[repeated], begins[ended] = False, True
        stepped, first, again = is_stepped.nonzero()[0], begins.nonzero()[0], np.array(repeated, np.int64)
        begun = nest.take(columns[0], first)
        mapped: list[tuple[np.ndarray, tuple[Any, ...]]] = []  # rows, and their columns
        kinds: list[tuple[np.ndarray, Callable[..., Any]]] = [(stepped, self.map_step), (again, self.map_repeated)]
        for rows, function in kinds:
            if not len(rows):
                continue
            obs, *others = nest.take(columns, rows)  # copies
            last = [(at, row) for at, row in enumerate(rows.tolist()) if row in ended]
            for at, row in last:
                nest.put(obs, at, info[row]["final_obs"])
            mapped.append((rows, function(obs, *others, info[rows])[:4]))
            for at, row in last:
                info[row]["final_obs"] = nest.map(_own, nest.take(mapped[-1][1][0], at))
        if len(first):
            mapped.append((first, (self.map_reset(begun, info[first])[0],)))
        # Rows of the right kind, whatever array library they are of, to be written over.
        joined = nest.take(mapped[0][1], np.zeros(len(info), np.int64))
        joined = joined if len(joined) > 1 else (*joined, *nest.map(_own, columns[1:]))
        for column in joined[1:]:
            column[resets.nonzero()[0]] = 0
        for rows, values in mapped:
            nest.put(joined[: len(values)], rows, values)
        return *joined, info


def resets_in_step(venv: Any) -> bool:
    """Return whether `venv.step(action, autoreset=True)` resets an env in the round of its last step.

    False for a wrapper or subclass with a `reset`, `step`, `send` or `recv` of its own, for what ends episodes by
    itself, and for backends that cannot.
    """
    while isinstance(venv, VectorEnvWrapper):
        base = RowWiseWrapper if isinstance(venv, RowWiseWrapper) else VectorEnvWrapper
        own = any(getattr(type(venv), name) is not getattr(base, name) for name in ("reset", "step", "send", "recv"))
        if own or not getattr(venv, "keeps_autoreset", True):
            return False
        venv = venv.venv
    engine = engine_of(venv)
    return engine is not None and engine.autoresets


def check_send_and_recv(venv: Any, user: str) -> None:
    """TypeError if a wrapper or subclass overrides `step` or `reset` but neither `send` nor `recv`, as those written
    for tianshou do: `user`, which calls `send` and `recv`, would bypass it.
    """
    while True:
        for cls in type(venv).__mro__:
            if cls in (BaseVectorEnv, RowWiseWrapper, VectorEnvWrapper):
                break
            if cls.__module__.startswith("vecenv."):  # the overrides of vecenv itself are consistent
                continue
            own = vars(cls).keys()
            if own & {"step", "reset"} and not own & {"send", "recv"}:
                raise TypeError(
                    f"{cls.__name__} defines {' and '.join(sorted(own & {'step', 'reset'}))}, but {user} steps envs by "
                    f"send and recv: define these in {cls.__name__} too"
                )
        if not isinstance(venv, VectorEnvWrapper):
            return
        venv = venv.venv


def _own(leaf: Any) -> Any:
    """A copy of an array or a tensor; any other object as it is."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if hasattr(leaf, "clone") else leaf
