"""`EnvCreator`: build envs whose transforms and wrappers share their statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.host.env_access import parts
from vecenv.backends.host.env_host import EnvReport, check_env, report_of
from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value
from vecenv.backends.memory.shared_state import SharedState, Stateful, form_of

Kwargs = dict[str, Any]


class EnvCreator:
    """Calls `create_env_fn` for envs that share their state: an env_fn that vector envs send to their workers.

        make_env = EnvCreator(lambda: TransformedEnv(gym.make("Pendulum-v1"), VecNorm()))
        venv = ShmemVectorEnv([make_env] * 8)     # all eight are normalised by the same statistics

    Parts with state are the env's wrappers (`.env`) and transforms of a `TransformedEnv` that have the methods
    `shared_state` and `bind_shared_state`; `vecenv.backends.memory.shared_state` describes them.

    Arguments:
        create_env_fn: a function (lambdas and local ones too) or class that makes an env.
        create_env_kwargs: arguments for it; or a list of dicts, one for each env of the vector env that is made with
            `[creator] * n`, which raises ValueError if the list has not n entries.
        share_memory: False gives each env a state of its own.
        kwargs: further arguments; those in `create_env_kwargs` come before them.

    `create_env_fn` is called once an env, and with `share_memory` once more in the constructor, to see what state there
    is; that env is not reset and is closed at once. `meta_data` needs such an env too, where there was none. A vector
    env keeps the arguments that the creator had when it was made, also for envs that it restarts. docs/guarantees.md
    ("Shared state") has the guarantees.

    Raises TypeError for what cannot be called, or does not make an env, and what `create_env_fn` raises. To pickle one
    that shares state is a TypeError outside of the start of a process, because memory without a name cannot be found
    later; without state, or with `share_memory=False`, it is pickled as any function.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> creator = EnvCreator(gym.make, id="Pendulum-v1", g=5.0)
    >>> moon = creator.make_variant(g=1.6)
    >>> with DummyVectorEnv([creator, moon]) as venv:
    ...     venv.get_env_attr("g")
    [5.0, 1.6]
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        create_env_kwargs: Kwargs | Sequence[Kwargs] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        if not callable(create_env_fn):
            raise TypeError(f"create_env_fn must be a callable that makes an env, got {create_env_fn!r}")
        self._shares = share_memory
        self._freezes = ""
        """Parts that are frozen: "" for none, "shared" for those that share their state, "all"."""
        self._fn, self._kwargs = create_env_fn, _merged(kwargs, {} if create_env_kwargs is None else create_env_kwargs)
        self._states: list[SharedState] | None = None
        """The shared state of each part, outermost first; None for envs that share nothing."""
        self._names: list[str] = []
        self._report: EnvReport | None = None
        if isinstance(create_env_fn, EnvCreator):  # a creator of the same envs, as the arguments of both have it
            other = create_env_fn
            self._fn, self._kwargs = other._fn, _merged(self._kwargs, other._kwargs)
            self._freezes = other._freezes
            if share_memory:
                self._states, self._names = other._states, other._names
        if share_memory and self._states is None:
            self._look()

    # Envs.

    def __call__(self, **kwargs: Any) -> Any:
        """A new env, with the shared state; the arguments of the creator come before `kwargs`.

        Raises RuntimeError for a creator with a list of arguments (see `for_env`), and ValueError for an env whose
        state has other names, shapes or dtypes than the one that is shared.
        """
        if isinstance(self._kwargs, list):
            raise RuntimeError(
                f"{self!r} has arguments for {len(self._kwargs)} envs, one each; put it into a list of env_fns as "
                f"often, or use for_env(i, {len(self._kwargs)})"
            )
        env = self._fn(**{**kwargs, **self._kwargs})
        if self._states is not None:
            self._bind(env, self._states)
        for part in parts(env) if self._freezes else ():
            is_shared = isinstance(part, Stateful) and self._states is not None
            is_known = isinstance(part, Stateful) or hasattr(part, "frozen")
            if (is_shared or (is_known and self._freezes == "all")) and hasattr(part, "freeze"):
                part.freeze()
        return env

    def for_env(self, i: int, n: int) -> EnvCreator:
        """The creator of env `i` of `n`: with entry `i` of a list of arguments. Vector envs call this.

        Raises ValueError if that list has not `n` entries.
        """
        kwargs = self.create_env_kwargs
        if isinstance(kwargs, list):
            _check_length(kwargs, n)
            kwargs = kwargs[i]
        return self._variant(_kwargs=kwargs)

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """A creator that shares this one's state, with these arguments instead of those of the same names.

        This creator is not changed, unlike torchrl's.
        """
        return self._variant(_kwargs=_merged(self._kwargs, kwargs))

    def _variant(self, **attributes: Any) -> EnvCreator:
        """A creator with these attributes instead of this one's."""
        variant: EnvCreator = type(self).__new__(type(self))
        vars(variant).update({**vars(self), "_report": None, **attributes})
        return variant

    def unshared(self) -> EnvCreator:
        """A creator of the same envs that each have a state of their own; `tune` and backend="auto" measure these."""
        return self._variant(_shares=False, _states=None, _names=[])

    def frozen_copy(self, *, shared_only: bool = False) -> EnvCreator:
        """Return a creator of the same envs for evaluation. They share a copy of the state as it is now, and those of
        their parts that can be frozen (`VecNorm`, `NormalizeReward`) are not updated.

        With `share_memory=False` there is no state to copy: each env is frozen as `create_env_fn` makes it. With
        `shared_only`, parts whose statistics are not shared are not frozen, because the copy does not have them.
        """
        states = self._states and [SharedState(state.read(), share=True) for state in self._states]
        return self._variant(_freezes="shared" if shared_only else "all", _states=states)

    def update_kwargs(self, kwargs: Kwargs | Sequence[Kwargs]) -> None:
        """Replace these arguments for the vector envs and envs made from now on; a list has a dict for each env.

        Raises ValueError for a list of another length than the one that the creator has.
        """
        self._kwargs, self._report = _merged(self._kwargs, kwargs), None

    # State.

    def state_dict(self) -> dict[str, np.ndarray]:
        """The shared state, as copies: of part k, counted from the outermost, array `name` is "k.Class.name".

        Empty where nothing is shared. Each part is as it was after one and the same update.
        """
        return {
            f"{k}.{owner}.{name}": array
            for k, (owner, state) in enumerate(zip(self._names, self._states or (), strict=True))
            for name, array in state.read().items()
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the shared state, for all envs at once, to a `state_dict`.

        Raises ValueError, with nothing changed, for other names or shapes.
        """
        now = self.state_dict()
        wrong = [*(now.keys() ^ state_dict.keys())]
        wrong += [key for key in now.keys() & state_dict.keys() if now[key].shape != np.shape(state_dict[key])]
        if wrong:
            shapes = {key: value.shape for key, value in now.items()}
            raise ValueError(f"the state_dict does not fit in {sorted(wrong)}; expected the shapes {shapes}")
        for k, (owner, state) in enumerate(zip(self._names, self._states or (), strict=True)):
            with state.update() as arrays:
                for name in arrays:
                    arrays[name][...] = state_dict[f"{k}.{owner}.{name}"]

    # The envs as they report themselves.

    @property
    def create_env_kwargs(self) -> Kwargs | list[Kwargs]:
        """The arguments for `create_env_fn`, all together: a copy."""
        return _merged(self._kwargs, {})

    @property
    def meta_data(self) -> EnvReport:
        """The observation_space, action_space, metadata, spec and reward_range of its envs (of the first, with a list).

        Those of a variant are its own. Makes and closes an env where the creator has not made one for this yet.
        """
        if self._report is None:
            self._look()
        assert self._report is not None
        return self._report

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", None) or repr(self._fn)
        kwargs = {"create_env_kwargs": self._kwargs} if isinstance(self._kwargs, list) else self._kwargs
        parts = [name, *(f"{key}={value!r}" for key, value in kwargs.items())]
        return f"{type(self).__name__}({', '.join(parts)}{'' if self._shares else ', share_memory=False'})"

    def _look(self) -> None:
        """Make an env, note its report and (the first time) its state, and close it."""
        first = self._kwargs[0] if isinstance(self._kwargs, list) else self._kwargs
        env = self._fn(**first)
        check_env(env, "create_env_fn(...)")
        try:
            self._report = report_of(env)
            if self._shares and self._states is None:
                parts = stateful_parts(env)
                self._names = [type(part).__name__ for part in parts]
                self._states = [SharedState(part.shared_state(), share=True) for part in parts]
        finally:
            if callable(getattr(env, "close", None)):
                env.close()

    def _bind(self, env: Any, states: Sequence[SharedState]) -> None:
        parts = stateful_parts(env)
        found, shared = [form_of(part.shared_state()) for part in parts], [state.form for state in states]
        if found != shared:
            raise ValueError(
                f"the env has the state {[*zip([type(part).__name__ for part in parts], found, strict=True)]}, but the "
                f"creator shares {[*zip(self._names, shared, strict=True)]}; make an EnvCreator of its own for envs "
                "with other state, or pass share_memory=False"
            )
        for part, state in zip(parts, states, strict=True):
            part.bind_shared_state(state)

    # Copies. `create_env_fn` is pickled with cloudpickle, which multiprocessing's own pickling does not use.

    def __getstate__(self) -> dict[str, Any]:
        return {
            "call": dumps_by_value((self._fn, self._kwargs)),
            "_shares": self._shares,
            "_freezes": self._freezes,
            "_states": self._states,
            "_names": self._names,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fn, self._kwargs = loads_by_value(state.pop("call"))
        self._report = None
        vars(self).update(state)

    def __copy__(self) -> EnvCreator:
        return self.make_variant()

    def __deepcopy__(self, memo: Any) -> EnvCreator:
        return self.make_variant()


def stateful_parts(env: Any) -> list[Stateful]:
    """The parts of an env that have state: its wrappers, outermost first, and itself; of each `TransformedEnv` its
    transforms in their order (`env.transform`, a transform or an iterable of them).
    """
    found: list[Stateful] = []
    for part in parts(env):
        if isinstance(part, Stateful) and not any(part is other for other in found):
            found.append(part)
    return found


def _merged(kwargs: Kwargs | Sequence[Kwargs], first: Kwargs | Sequence[Kwargs]) -> Any:
    """`kwargs` with those of `first` instead where both have a name; a list, one an env, if either is one.

    Raises TypeError for what is neither, and ValueError for lists of two lengths.
    """
    for each in (kwargs, first):
        dicts = each if isinstance(each, (list, tuple)) else [each]
        if not dicts or not all(isinstance(one, Mapping) for one in dicts):
            raise TypeError(
                f"create_env_kwargs must be a dict of arguments, or a list of dicts, one an env; got {each!r}"
            )
    if isinstance(kwargs, Mapping) and isinstance(first, Mapping):
        return {**kwargs, **first}
    n = len(first if isinstance(kwargs, Mapping) else kwargs)
    if not isinstance(first, Mapping):
        _check_length(first, n)
    rows = [[each] * n if isinstance(each, Mapping) else each for each in (kwargs, first)]
    return [{**one, **other} for one, other in zip(*rows, strict=True)]


def _check_length(kwargs: Sequence[Kwargs], n: int) -> None:
    if len(kwargs) != n:
        raise ValueError(f"create_env_kwargs has {len(kwargs)} entries, expected one for each of {n} envs")
