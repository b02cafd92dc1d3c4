"""`VectorEnvWrapper`: base class of wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.arguments import as_ids, round_envs
from vecenv.backends.info_batch import InfoBatch
from vecenv.base import BaseVectorEnv, engine_of
from vecenv.engine.mark import is_layer_call, mark_of
from vecenv.engine.results import Results, Step
from vecenv.errors import Partial, is_repeated
from vecenv.nest import tensor_on_host


class Forwarded:
    def __init__(self, name: str) -> None:
        self._of, self.__doc__ = attrgetter(f"venv.{name}"), getattr(BaseVectorEnv, name).__doc__

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else self._of(wrapper)


class VectorEnvWrapper(BaseVectorEnv):
    """Wrapper of a vector env. Methods and attributes that a subclass does not define come from `venv`.

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
        self.call_mark = mark_of(venv)

    def __getattr__(self, name: str) -> Any:
        if name == "venv":  # a subclass has not called super().__init__ yet
            raise AttributeError(f"{type(self).__name__} has no venv yet: call super().__init__(venv) first")
        return getattr(self.venv, name)

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.seeded(self.venv.seed, *args, **kwargs)

    def set_seed(self, *args: Any, **kwargs: Any) -> Any:
        return self.seeded(self.venv.set_seed, *args, **kwargs)

    def seeded(self, seed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `seed` (of the wrapped vector env), so that resets in `seed` go through the outermost wrapper."""
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
        if (note := getattr(self.venv, "note_exception", None)) is not None:
            note(error)

    def __len__(self) -> int:
        return len(self.venv)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.venv!r})"


FORWARDED = """reset step send recv get_env_attr set_env_attr call render get_state set_state start close alive stats
action_space observation_space metadata spec reward_range learning_wrappers splits_obs workers num_envs is_closed
ready_id waiting_id failed_id"""
for _name in FORWARDED.split():  # BaseVectorEnv defines these, so Python would not call `__getattr__`
    setattr(VectorEnvWrapper, _name, Forwarded(_name))


class LayerState:
    def __init__(self, below: Any, own: dict[str, Any]) -> None:
        self.below, self.own = below, own


class RowWiseWrapper(VectorEnvWrapper):
    """Base of wrappers that change rows (results of single envs), but not how envs are stepped.

    A subclass overrides `map_action`, `map_reset` or `map_step`. Each row passes `map_reset` or `map_step` once,
    including rows in the `partial` of an error and rows of resets by `seed`. A row with a step and a reset
    (`autoreset=True`) passes both: first `map_step` with `final_obs` and `final_info`, then `map_reset` with the
    first observation of the next episode. If `keeps_autoreset` is False, `autoreset=True` raises TypeError.

    A wrapper with state per episode also overrides `map_repeated`, `episode_state` and `set_episode_state`.

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
        """Ids of envs that a round in flight resets."""

    @property
    def keeps_autoreset(self) -> bool:
        """False if the wrapper ends episodes that the env would continue."""
        return True

    def map_action(self, action: Any) -> Any:
        """Return the actions for the envs."""
        return action

    def map_reset(self, obs: Any, info: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the caller's rows, given the rows (k, ...) of envs that were reset."""
        return obs, info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Return the caller's rows, given the rows (k, ...) of envs that stepped."""
        return obs, rew, terminated, truncated, info

    def note_reset(self, id: Any, kwargs: dict[str, Any]) -> None:
        """Prepare for a call of `reset` with these arguments."""

    def note_round(self, action: Any, id: Any, kwargs: dict[str, Any]) -> None:
        """Prepare for a call of `step` or `send` with these arguments. An override must call `super().note_round`."""
        if not kwargs and not self._resets:
            return
        if not self.keeps_autoreset and all(kwargs.get("autoreset") is not no for no in (None, False, np.False_)):
            raise TypeError(
                f"{type(self).__name__} ends episodes by itself, so no env can be reset in the round of its last step "
                "(autoreset=True): use step(action, reset=terminated | truncated) in the next round"
            )
        if kwargs.get("reset") is None and not self._resets:
            return
        n = len(self)
        ids, resets = round_envs(n, action, id, kwargs)
        asked = set(range(n) if ids is None else ids.tolist())
        asked -= set(self.venv.waiting_id)  # for envs that are still stepping, the call raises and resets nothing
        self._resets = (self._resets - asked) | asked.intersection(resets)

    def map_repeated(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Return the caller's rows for failed steps (`on_error="restart"`). `obs` has the previous observations."""
        return self.map_step(obs, rew, terminated, truncated, info)

    def episode_state(self, ids: np.ndarray) -> dict[Any, Any]:
        """Return the wrapper's state of the running episodes: a dict of trees of arrays (k, ...), or an empty dict."""
        return {}

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        """Restore a result of `episode_state` for these envs."""

    def get_state(self, id: Any = None) -> list[Any]:
        own = self.episode_state(self._ids(id))
        below = self.venv.get_state(id)
        return [LayerState(each, nest.take(own, slice(i, i + 1))) for i, each in enumerate(below)] if own else below

    @is_layer_call
    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """Set states that `get_state` returned. Raises ValueError if the states come from different wrappers."""
        ids = self._ids(id)
        if expected := self.episode_state(ids).keys():
            for state in states:
                if not isinstance(state, LayerState) or state.own.keys() != expected:
                    got = f"with {sorted(state.own)}" if isinstance(state, LayerState) else "without them"
                    raise ValueError(
                        f"set_state() of {type(self).__name__} needs states with {sorted(expected)}, got a state "
                        f"{got}: take states by get_state() of a vector env with the same wrappers"
                    )
        self.venv.set_state([state.below for state in states] if expected else states, id)
        for i, state in zip(ids, states, strict=False):
            self.set_episode_state(np.array([i]), state.own if expected else {})

    def _ids(self, id: Any) -> np.ndarray:
        return np.arange(len(self)) if id is None else as_ids(tensor_on_host(id), len(self))

    @is_layer_call
    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        self.note_reset(id, kwargs)
        rows: tuple[Any, np.ndarray] = self._map_call(self.map_reset, self.venv.reset, id, **kwargs)
        return rows

    @is_layer_call
    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        self.note_round(action, id, kwargs)
        action = action if action is None else self.map_action(action)
        return self._map_call(self.map_round, self.venv.step, action, id, **kwargs)

    @is_layer_call
    def send(self, action: Any, id: Any = None, **kwargs: Any) -> None:
        self.note_round(action, id, kwargs)
        self.venv.send(action if action is None else self.map_action(action), id, **kwargs)

    @is_layer_call
    def recv(self) -> Any:
        return self._map_call(self.map_round, self.venv.recv)

    def _map_call(self, mapped: Callable[..., Any], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            rows = call(*args, **kwargs)
        except Exception as error:
            if isinstance(partial := getattr(error, "partial", None), Partial):
                names = ("obs", "info") if mapped == self.map_reset else Partial._fields[1:]
                columns = mapped(*(getattr(partial, name) for name in names))
                error.partial = partial._replace(**dict(zip(names, columns, strict=True)))  # type: ignore[attr-defined]
            raise
        return mapped(*rows)

    def reset_rows(self, info: np.ndarray) -> np.ndarray | None:
        """Return a mask of the rows of a round that are resets, or `None` if there are none. Call it once per round."""
        if not self._resets:
            return None
        ids = env_ids(info).tolist()
        rows = np.array([i in self._resets for i in ids], np.bool_)
        self._resets.difference_update(ids)
        return rows if rows.any() else None

    def map_round(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Map a round of steps and resets by `map_step` and `map_reset`."""
        if not self._resets and terminated.__class__ is np.ndarray and not (terminated | truncated).nonzero()[0].size:
            return self.map_step(obs, rew, terminated, truncated, info)
        resets = self.reset_rows(info)
        lasts = {"final_obs", "no_final_obs"}
        ended = [row for row, each in enumerate(info) if "final_info" in each and not lasts.isdisjoint(each)]
        repeated = [row for row, each in enumerate(info) if is_repeated(each) and truncated[row]]
        if resets is None and not ended and not repeated:
            return self.map_step(obs, rew, terminated, truncated, info)
        resets = np.zeros(len(info), np.bool_) if resets is None else resets
        return self._map_mixed((obs, rew, terminated, truncated), info, resets, ended, repeated)

    def _map_mixed(
        self, columns: Any, info: np.ndarray, resets: np.ndarray, ended: list[int], repeated: list[int]
    ) -> Any:
        """Map a round with resets (mask `resets`), steps with a reset (`ended`) and failed steps (`repeated`)."""
        is_stepped, begins = ~resets, resets.copy()
        is_stepped[repeated], begins[ended] = False, True
        stepped, first, again = is_stepped.nonzero()[0], begins.nonzero()[0], np.array(repeated, np.int64)
        begun = nest.take(columns[0], first)
        keys = ("final_obs", "final_info")
        finals = {row: {key: info[row][key] for key in keys if key in info[row]} for row in ended}
        mapped: list[tuple[np.ndarray, tuple[Any, ...]]] = []
        kinds: list[tuple[np.ndarray, Callable[..., Any]]] = [(stepped, self.map_step), (again, self.map_repeated)]
        for rows, function in kinds:
            if not len(rows):
                continue
            obs, *others, infos = nest.take((*columns, info), rows)  # copies, because `put` changes `obs`
            last = [(at, row) for at, row in enumerate(rows.tolist()) if row in ended]
            for at, row in last:
                if "final_obs" in finals[row]:  # else it is lost, and the row is the first of the next episode
                    nest.put(obs, at, finals[row]["final_obs"])
                infos[at] = {**finals[row]["final_info"], "env_id": info[row]["env_id"]}
            *values, infos = function(obs, *others, infos)
            mapped.append((rows, tuple(values)))
            for at, row in last:
                del infos[at]["env_id"]
                own = {key: id for key, id in finals[row]["final_info"].items() if key == "env_id"}  # env's own entry
                if "final_obs" in finals[row]:
                    finals[row]["final_obs"] = nest.map(_copy_leaf, nest.take(values[0], at))
                finals[row]["final_info"] = infos[at] | own
                infos[at] = info[row]
            info[rows] = infos
        if len(first):
            first_obs, info[first] = self.map_reset(begun, info[first])
            mapped.append((first, (first_obs,)))
        for row, final in finals.items():
            info[row] |= final
        # Allocate rows in the array library of the results.
        joined = nest.take(mapped[0][1], np.zeros(len(info), np.int64))
        joined = joined if len(joined) > 1 else (*joined, *nest.map(_copy_leaf, columns[1:]))
        for column in joined[1:]:
            column[resets.nonzero()[0]] = 0
        for rows, values in mapped:
            nest.put(joined[: len(values)], rows, values)
        return *joined, info


def env_ids(info: Any) -> np.ndarray:
    """Return the env id of each row of `info`: an `InfoBatch`, or an object array of dicts."""
    return info.ids if info.__class__ is InfoBatch else np.array([row["env_id"] for row in info], np.int64)


def resets_in_step(venv: Any) -> bool:
    """Return True if `venv.step(action, autoreset=True)` resets an env in the round of its last step.

    Return False if a wrapper ends episodes, if a class overrides `reset`, `step`, `send` or `recv`, or if the backend
    has no autoreset.
    """
    while isinstance(venv, VectorEnvWrapper):
        base = RowWiseWrapper if isinstance(venv, RowWiseWrapper) else VectorEnvWrapper
        own = any(getattr(type(venv), name) is not getattr(base, name) for name in ("reset", "step", "send", "recv"))
        if own or not getattr(venv, "keeps_autoreset", True):
            return False
        venv = venv.venv
    engine = engine_of(venv)
    return engine is not None and engine.autoresets


def recover(venv: Any) -> None:
    """After an interrupted call, discard all results in flight. All envs then need a reset, also in a step."""
    engine = getattr(venv, "engine", None)  # custom vector envs have no engine
    if engine is not None and not engine.closed:
        engine.recover()


def latest_round(venv: Any) -> Any:
    """Return a value that changes whenever envs are stepped or reset, or `None` for an object without an engine."""
    engine = getattr(venv, "engine", None)
    return None if engine is None else (engine, engine.statistics.rounds)  # each start makes a new engine


def step_with_views(venv: Any) -> Callable[..., Step] | None:
    """Return a function like `venv.step` that returns batches of all envs as views, valid until the next call.

    Return `None` if the caller must use `venv.step`:

    - if `wait_num` or `timeout` is set,
    - if `venv` is a wrapper, overrides `reset`, `step`, `send` or `recv`, or got a `step` from the program.
    """
    engine = engine_of(venv)
    if engine is None or venv.is_async or "step" in vars(venv):
        return None

    def step(action: Any, id: Any = None, autoreset: Any = False) -> Step:
        if id is not None:
            return venv.step(action, id, autoreset=autoreset)
        return engine.exchange(action, None, autoreset, Results.views)

    return step


def check_send_and_recv(venv: Any, user: str) -> None:
    """Raise TypeError if a class overrides `step` or `reset`, but neither `send` nor `recv`, which `user` calls."""
    while True:
        for cls in type(venv).__mro__:
            if cls in (BaseVectorEnv, RowWiseWrapper, VectorEnvWrapper):
                break
            if cls.__module__.startswith("vecenv."):  # vecenv's own classes are consistent
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


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return leaf.clone() if hasattr(leaf, "clone") else leaf
