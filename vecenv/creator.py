"""`EnvCreator`: makes envs whose transforms and wrappers share statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv import nest
from vecenv.backends.host.env_access import parts
from vecenv.backends.host.env_checks import check_env
from vecenv.backends.host.env_host import EnvReport, report_of
from vecenv.backends.ipc.serialization import dumps_by_value, loads_by_value
from vecenv.backends.memory.shared_state import SharedState, Stateful
from vecenv.backends.memory.state_rows import form_of
from vecenv.nest import cast_exactly
from vecenv.running_mean_std import for_checkpoint

Kwargs = dict[str, Any]


class EnvCreator:
    """Callable for `env_fns`. Its envs share state, also across processes.

        make_env = EnvCreator(lambda: TransformedEnv(gym.make("Pendulum-v1"), VecNorm(["observation"])))
        venv = ShmemVectorEnv([make_env] * 8)     # all eight share the statistics

    Wrappers and transforms with the methods `shared_state` and `bind_shared_state` share state (see `SharedState`).

    Arguments:
        create_env_fn: a function or class that makes an env.
        create_env_kwargs: dict of arguments for `create_env_fn`, or a list with a dict per env in `[creator] * n`.
        share_memory: False gives each env separate state.
        kwargs: further arguments of `create_env_fn`.

    With `share_memory`, the constructor makes and closes one additional env. See docs/guarantees.md ("Shared state").

    Raises TypeError if `create_env_fn` is not callable or (with `share_memory`) does not make an env, or if
    `create_env_kwargs` has a wrong type, and ValueError if arrays to share begin with NaN or infinity. A creator with
    shared state can be pickled only as an argument of a new process, because the shared memory has no name.

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
        self._fn, self._kwargs = (
            create_env_fn,
            _merge_kwargs(kwargs, {} if create_env_kwargs is None else create_env_kwargs),
        )
        self._states: list[SharedState] | None = None
        self._names: list[str] = []
        self._report: EnvReport | None = None
        if isinstance(create_env_fn, EnvCreator):
            other = create_env_fn
            self._fn, self._kwargs = other._fn, _merge_kwargs(self._kwargs, other._kwargs)
            self._freezes = other._freezes
            if share_memory:
                self._states, self._names = other._states, other._names
        if share_memory and self._states is None:
            self._inspect_env()

    def __call__(self, **kwargs: Any) -> Any:
        """Make an env with the shared state. The creator's arguments override `kwargs`.

        Raises RuntimeError if the creator has a list of arguments, and ValueError if the env's state has other names,
        shapes or dtypes than the shared state.
        """
        if isinstance(self._kwargs, list):
            raise RuntimeError(
                f"{self!r} has arguments for {len(self._kwargs)} envs; pass [creator] * {len(self._kwargs)} as "
                f"env_fns, or use for_env(i, {len(self._kwargs)})"
            )
        env = self._fn(**{**kwargs, **self._kwargs})
        if self._states is not None:
            self._bind(env, self._states)
        for part in parts(env) if self._freezes else ():
            is_shared = isinstance(part, Stateful) and self._states is not None
            is_known = isinstance(part, Stateful) or hasattr(part, "frozen")
            if (is_shared or (is_known and self._freezes == "all")) and hasattr(part, "freeze"):
                part.freeze()
                if self._freezes == "shared" and hasattr(part, "leaves_rewards"):
                    part.leaves_rewards = True
        return env

    def for_env(self, i: int, n: int) -> EnvCreator:
        """Return the creator for env `i` of `n` envs. If the arguments are a list, the new creator has entry `i`.

        Raises ValueError if the list does not have `n` entries.
        """
        kwargs = self.create_env_kwargs
        if isinstance(kwargs, list):
            _check_length(kwargs, n)
            kwargs = kwargs[i]
        return self._variant(_kwargs=kwargs)

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """Return a creator with changed arguments. The envs of both creators share state."""
        return self._variant(_kwargs=_merge_kwargs(self._kwargs, kwargs))

    def _variant(self, **attributes: Any) -> EnvCreator:
        variant: EnvCreator = type(self).__new__(type(self))
        vars(variant).update({**vars(self), "_report": None, **attributes})
        return variant

    def unshared(self) -> EnvCreator:
        """Return a creator of envs without shared state, for measurements that must not change the state."""
        return self._variant(_shares=False, _states=None, _names=[])

    def frozen_copy(self, *, shared_only: bool = False) -> EnvCreator:
        """Return a creator of envs for evaluation. These envs share a copy of the state, and have frozen statistics.

        Wrappers without `freeze` still update, such as gymnasium's `NormalizeObservation`. Unshared statistics (all
        with `EnvCreator(share_memory=False)`) stay as `create_env_fn` made them. With `shared_only`, they still update.
        """
        states = self._states and [SharedState(state.read(), share=True) for state in self._states]
        return self._variant(_freezes="shared" if shared_only else "all", _states=states)

    def update_kwargs(self, kwargs: Kwargs | Sequence[Kwargs]) -> None:
        """Change the given arguments of `create_env_fn`. Vector envs that have started do not change.

        kwargs: dict, or a list with a dict per env.

        Raises TypeError for any other `kwargs`, and ValueError if this creator has a list of a different length.
        """
        self._kwargs, self._report = _merge_kwargs(self._kwargs, kwargs), None

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the shared state.

        Key "k.Class.name" has the array `name` of the k-th wrapper, transform or env with state, outermost first. The
        arrays with the same k are a consistent snapshot. If the program has imported torch, the arrays are tensors.
        """
        return for_checkpoint(self._read())

    def _read(self) -> dict[str, np.ndarray]:
        return {
            f"{k}.{owner}.{name}": array
            for k, (owner, state) in enumerate(zip(self._names, self._states or (), strict=True))
            for name, array in state.read().items()
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the shared state of all envs to `state_dict`.

        Raises ValueError for wrong names or shapes, or values that a dtype cannot hold, before any change.
        """
        now = self._read()
        new: dict[str, Any] = {
            key: _cast(nest.as_array(state_dict[key]), now[key]) for key in now.keys() & state_dict.keys()
        }
        if wrong := [*(now.keys() ^ state_dict.keys()), *(key for key, array in new.items() if array is None)]:
            forms = {key: (value.shape, value.dtype.name) for key, value in now.items()}
            raise ValueError(f"the state_dict does not fit at {sorted(wrong)}; expected the shapes and dtypes {forms}")
        for k, (owner, state) in enumerate(zip(self._names, self._states or (), strict=True)):
            state.replace({name: new[f"{k}.{owner}.{name}"] for name, _, _ in state.form})

    @property
    def create_env_kwargs(self) -> Kwargs | list[Kwargs]:
        """Copy of all arguments for `create_env_fn`."""
        return _merge_kwargs(self._kwargs, {})

    @property
    def meta_data(self) -> EnvReport:
        """Spaces, metadata, spec and reward_range of the first env. Reading them may make and close an env."""
        if self._report is None:
            self._inspect_env()
        assert self._report is not None
        return self._report

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", None) or repr(self._fn)
        kwargs = {"create_env_kwargs": self._kwargs} if isinstance(self._kwargs, list) else self._kwargs
        parts = [name, *(f"{key}={value!r}" for key, value in kwargs.items())]
        return f"{type(self).__name__}({', '.join(parts)}{'' if self._shares else ', share_memory=False'})"

    def _inspect_env(self) -> None:
        first = self._kwargs[0] if isinstance(self._kwargs, list) else self._kwargs
        env = self._fn(**first)
        check_env(env, "create_env_fn(...)")
        try:
            self._report = report_of(env)
            if self._shares and self._states is None:
                parts = stateful_parts(env)
                self._names = [type(part).__name__ for part in parts]
                self._states = [_new_state(part) for part in parts]
        finally:
            if callable(getattr(env, "close", None)):
                env.close()

    def _bind(self, env: Any, states: Sequence[SharedState]) -> None:
        parts = stateful_parts(env)
        found, shared = [form_of(part.shared_state()) for part in parts], [state.form for state in states]
        if found != shared:
            raise ValueError(
                f"the env has the state {[*zip([type(part).__name__ for part in parts], found, strict=True)]}, but the "
                f"creator shares {[*zip(self._names, shared, strict=True)]}; make a separate EnvCreator for envs "
                "with different state, or pass share_memory=False"
            )
        for part, state in zip(parts, states, strict=True):
            part.bind_shared_state(state)

    # `dumps_by_value` uses cloudpickle, because pickle cannot store lambdas

    def __getstate__(self) -> dict[str, Any]:
        large: list[np.ndarray] = []
        return {
            "call": (dumps_by_value((self._fn, self._kwargs), large), large),
            "_shares": self._shares,
            "_freezes": self._freezes,
            "_states": self._states,
            "_names": self._names,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fn, self._kwargs = loads_by_value(*state.pop("call"))
        self._report = None
        vars(self).update(state)

    def __copy__(self) -> EnvCreator:
        return self.make_variant()

    def __deepcopy__(self, memo: Any) -> EnvCreator:
        return self.make_variant()


def stateful_parts(env: Any) -> list[Stateful]:
    """Return the wrappers and transforms with state, outermost first, then the env if it has state."""
    found: list[Stateful] = []
    for part in parts(env):
        if isinstance(part, Stateful) and not any(part is other for other in found):
            found.append(part)
    return found


def _new_state(part: Stateful) -> SharedState:
    arrays = part.shared_state()
    state = SharedState(arrays, share=True)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(
            f"envs share sums of changes, so the arrays of {type(part).__name__} must begin with finite numbers, got "
            f"{arrays}. For a maximum, give each env an element of its own"
        )
    return state


def _cast(array: np.ndarray, own: np.ndarray) -> np.ndarray | None:
    if array.shape != own.shape:
        return None
    return array if array.dtype == own.dtype else cast_exactly(array, own.dtype)


def _merge_kwargs(kwargs: Kwargs | Sequence[Kwargs], overrides: Kwargs | Sequence[Kwargs]) -> Any:
    """Merge two dicts. `overrides` takes precedence. Return a list of dicts if an argument is a list of dicts."""
    for each in (kwargs, overrides):
        dicts = each if isinstance(each, (list, tuple)) else [each]
        if not dicts or not all(isinstance(one, Mapping) for one in dicts):
            raise TypeError(
                f"create_env_kwargs must be a dict of arguments, or a list of dicts, one per env; got {each!r}"
            )
    if isinstance(kwargs, Mapping) and isinstance(overrides, Mapping):
        return {**kwargs, **overrides}
    n = len(overrides if isinstance(kwargs, Mapping) else kwargs)
    if not isinstance(overrides, Mapping):
        _check_length(overrides, n)
    rows = [[each] * n if isinstance(each, Mapping) else each for each in (kwargs, overrides)]
    return [{**one, **other} for one, other in zip(*rows, strict=True)]


def _check_length(kwargs: Sequence[Kwargs], n: int) -> None:
    if len(kwargs) != n:
        raise ValueError(f"create_env_kwargs has {len(kwargs)} entries, expected one for each of {n} envs")
