"""`VecNorm`: normalisation with running statistics."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.arguments import check_number
from vecenv.errors import warn_caller
from vecenv.nest import as_array, tree_of
from vecenv.running_mean_std import STATE_KEYS, RunningMeanStd, check_keys, for_checkpoint
from vecenv.transforms.arrays import (
    WHOLE,
    Array,
    Path,
    cast,
    dtype_name,
    in_any_mode,
    is_float,
    like,
    numeric_bounds,
    part,
    replace_parts,
)
from vecenv.transforms.compose import Compose
from vecenv.transforms.shapes import RenameTransform
from vecenv.transforms.transform import Freezable, Keys, Rows, Transform
from vecenv.transforms.values import ObservationNorm

REWARD = "reward"


class VecNorm(Freezable):
    """Normalise observations and rewards by their running mean and standard deviation (as torchrl's VecNorm).

    An *entry* is an array of the observation, or the reward. A *row* is the value of an entry for one env. Each entry
    has a mean, a variance and a count of its rows, including rows of resets. They are float64, or float32 on a device
    without float64, such as MPS. A batch first updates these statistics (unless `frozen`), and is then normalised:

        rows = (rows - mean) / max(sqrt(max(var, eps)), eps)

    Rows with NaN, infinity or a number beyond 1e100 (1e15 for float32 statistics) are normalised too, but update only
    the count `<name>_skipped`.

    Arguments:
        in_keys: keys of the observation, and "reward" for the reward. None: all arrays of numbers (not bools), and the
            reward. `("reward",)` is the key "reward" of the observation.
        out_keys: keys to write, one for each of `in_keys` except "reward". None: replace the arrays.
        decay: each batch multiplies the weight of older rows by this factor. With 1, all rows have the same weight.
        eps: lower limit of the variance and of the standard deviation.

    Floats keep their dtype, other numbers become float32. A `TransformedVectorEnv` has common statistics of all envs.
    In a `TransformedEnv`, each env has separate statistics, unless `EnvCreator` makes the envs. `state_dict` has
    `<name>_mean`, `<name>_var`, `<name>_count` and `<name>_skipped` per entry. Raises ValueError for vector rewards
    (leave out "reward"), or if learnt statistics do not fit the env. Warns once if the first 100 rewards are equal and
    not 0, because they become 0, for example in CartPole.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> from vecenv.transforms import TransformedVectorEnv
    >>> norm = VecNorm(["observation"], decay=1.0)
    >>> with TransformedVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 4), norm) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     float(venv.transform[0].state_dict()["observation_count"]), bool(abs(obs.mean()) < 1e-6)
    (4.0, True)
    """

    has_state = True

    def __init__(
        self, in_keys: Keys = None, out_keys: Keys = None, *, decay: float = 0.9999, eps: float = 1e-4
    ) -> None:
        self.decay, self.eps = check_number("decay", decay), check_number("eps", eps, above=0)
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
        self.norms_reward = in_keys is None or REWARD in in_keys
        keys = in_keys if in_keys is None or isinstance(in_keys, str) else [key for key in in_keys if key != REWARD]
        self._watches_reward = self.norms_reward
        """True until 100 rewards have shown if they differ."""
        self._set_arrays({})
        self._shared: Any = None
        """`SharedState` with the statistics, if `EnvCreator` shares them between envs."""
        self._entries: list[tuple[str, Path, Path]] = []
        super().__init__(keys, out_keys)
        if len(set(self.in_keys or ())) < len(self.in_keys or ()):
            raise ValueError(f"in_keys={in_keys!r} names a part twice, so that its rows would count twice")

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return dtype != "bool"

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        low, _ = numeric_bounds(space)
        dtype = low.dtype if low.dtype.kind == "f" else np.dtype(np.float32)
        return spaces.Box(-np.inf, np.inf, low.shape, dtype.type)

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        places = self.find_places(observation_space)
        self._entries = [(_entry_name(source), source, target) for source, target in places]
        new = self._new_state(observation_space)
        if _shapes(self._read()) != _shapes(new):
            self._set_arrays(new)
            self._shared = None

    def transform_observation_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        new, known = self._new_state(space), self._read()
        learnt = any(float(as_array(array)) for key, array in known.items() if key.endswith("_count"))
        if learnt and _shapes(known) != _shapes(new):
            raise ValueError(
                f"the statistics of {self} do not fit this env: expected {_shapes(new)}, got {_shapes(known)}"
            )
        return super().transform_observation_space(space)

    def _new_state(self, space: spaces.Space[Any]) -> dict[str, np.ndarray]:
        tree = tree_of(space)
        shapes = {
            _entry_name(source): numeric_bounds(part(tree, source))[0].shape for source, _ in self.find_places(space)
        }
        if self.norms_reward:
            shapes[REWARD] = ()
        first = [
            (name, (np.zeros(shape), np.ones(shape), np.zeros(()), np.zeros(()))) for name, shape in shapes.items()
        ]
        return {f"{name}_{key}": array for name, arrays in first for key, array in zip(STATE_KEYS, arrays, strict=True)}

    def reset(self, rows: Rows) -> None:
        if self._watches_reward and not self.frozen:
            self._warn_of_equal_rewards()
        self._norm_rows(rows, norms_reward=False)

    def _warn_of_equal_rewards(self) -> None:
        arrays = self._read()
        mean, var, count = (float(as_array(arrays[f"{REWARD}_{key}"])) for key in ("mean", "var", "count"))
        if count < 100:
            return
        self._watches_reward = False
        if mean and var <= 1e-12 * mean**2:
            warn_caller(
                f"{self} subtracts the mean of the rewards. All rewards until now are {mean:g}, and become 0, so a "
                "policy learns nothing from them: pass in_keys without 'reward', such as ['observation']. "
                "NormalizeReward scales rewards without subtracting their mean"
            )

    def step(self, rows: Rows) -> None:
        norms_reward = self.norms_reward and not self.leaves_rewards
        if norms_reward:
            rows.check_reward(self, ": pass in_keys without 'reward'")
        self._norm_rows(rows, norms_reward)

    def _norm_rows(self, rows: Rows, norms_reward: bool) -> None:
        updates_shared = self._shared is not None and not self.frozen
        with self._shared.update() if updates_shared else nullcontext(self._read()) as arrays:
            written = [
                (target, self._normalise(name, part(rows.obs, source), arrays))
                for name, source, target in self._entries
            ]
            if norms_reward:
                rows.reward = self._normalise(REWARD, rows.reward, arrays)
        rows.obs = replace_parts(rows.obs, (), written)

    def _normalise(self, name: str, array: Array, arrays: Mapping[str, Array]) -> Array:
        dtype = dtype_name(array) if is_float(array) else "float32"
        rows = cast(array, "float64")
        if self.frozen:
            mean, std = self._moments(name, arrays)
            centred = rows - like(mean, rows)
        else:
            if not isinstance(rows, np.ndarray):
                self._move_statistics(rows)
            statistics = self._statistics[name] if self._shared is None else RunningMeanStd.of(arrays, name)
            centred, std = statistics.add(rows, self.decay), self._std(statistics.var)
        centred /= like(std, rows)
        return cast(centred, dtype)

    def _moments(self, name: str, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
        return arrays[f"{name}_mean"], self._std(arrays[f"{name}_var"])

    def _std(self, var: Array) -> Array:
        if not isinstance(var, np.ndarray):
            return (var.clip(self.eps) ** 0.5).clip(self.eps)
        std = np.sqrt(np.maximum(var, self.eps))
        return std if self.eps <= 1 else np.maximum(std, self.eps)

    def _read(self) -> dict[str, Array]:
        return self._arrays if self._shared is None else self._shared.read()

    def _move_statistics(self, rows: Array) -> None:
        if self._shared is not None:
            raise RuntimeError("a VecNorm that processes share takes numpy arrays, not tensors; use a separate VecNorm")
        if isinstance(next(iter(self._arrays.values())), np.ndarray):
            with in_any_mode(rows):
                self._set_arrays({key: like(array.copy(), rows) for key, array in self._arrays.items()})

    def _set_arrays(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self._statistics = {name: RunningMeanStd.of(arrays, name) for name in _entry_names(arrays)}

    def denorm(self, obs: Any) -> Any:
        """Undo the normalisation of observations (a batch or a row), and keep the dtypes."""
        written = [(source, self._denormalise(name, part(obs, target))) for name, source, target in self._entries]
        return replace_parts(obs, (), written)

    def denorm_reward(self, reward: Array) -> Array:
        """Undo the normalisation of rewards."""
        return self._denormalise(REWARD, reward)

    def _denormalise(self, name: str, array: Array) -> Array:
        mean, std = (like(each, array) for each in self._moments(name, self._read()))
        return cast(cast(array, "float64") * std + mean, dtype_name(array))

    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return copies of `(mean, standard deviation)` by entry. Raises RuntimeError if there are no entries yet."""
        arrays = self._copies()
        if not arrays:
            raise RuntimeError(f"{self} has no statistics: make it part of an env, or load a state_dict")
        return {name: self._moments(name, arrays) for name in _entry_names(arrays)}

    def to_observation_norm(self) -> Transform:
        """Return the current normalisation of observations as an ObservationNorm or a Compose of transforms."""
        moments = self.moments()
        # Copy all arrays to their `out_keys` first, because a written key may be the source of a later entry.
        moved = [(source or (WHOLE,), target) for _, source, target in self._entries if source != target]
        sources, targets = [source for source, _ in moved], [target for _, target in moved]
        chain: list[Transform] = [RenameTransform(sources, targets, create_copy=True)] if moved else []
        for name, _, target in self._entries:
            chain.append(ObservationNorm(*moments[name], in_keys=[target or (WHOLE,)], standard_normal=True))
        return chain[0] if len(chain) == 1 else Compose(*chain)

    def state_dict(self) -> dict[str, Any]:
        return for_checkpoint(self._copies())

    def _copies(self) -> dict[str, np.ndarray]:
        return {key: np.array(as_array(array)) for key, array in self._read().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state_dict` of a VecNorm, or of an `EnvCreator` whose envs have a single VecNorm.

        If names or shapes do not match, raises ValueError and changes nothing. Without an env, only names are checked.
        """
        state = state if state.keys() == self._read().keys() else _state_of_only_vec_norm(state, type(self).__name__)
        arrays = {key: np.array(as_array(state[key]), np.float64) for key in state}
        if not self._read():
            self._set_entries(arrays)
            self._set_arrays(arrays)
            return
        if _shapes(own := self._read()) != _shapes(arrays):
            raise ValueError(f"the state does not fit {self}: expected {_shapes(own)}, got {_shapes(arrays)}")
        if self._shared is not None:
            self._shared.replace(arrays)
            return
        for key, array in own.items():
            array[...] = like(arrays[key], array)

    def _set_entries(self, state: dict[str, np.ndarray]) -> None:
        names = _entry_names(state)
        paths: dict[str, Path] = {_entry_name(path): path for path in self.in_keys or ()}
        if self.in_keys is not None:
            names = [*paths, *[REWARD] * self.norms_reward]
        check_keys(self, [f"{name}_{each}" for name in names or ["<name>"] for each in STATE_KEYS], state)
        sources = [(name, paths.get(name, _entry_path(name))) for name in names if name != REWARD]
        targets = [path for _, path in sources] if self.out_keys is None else self.out_keys
        self._entries = [(*source, target) for source, target in zip(sources, targets, strict=True)]

    @staticmethod
    def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the state of a transform that has seen the rows of all `states`."""
        found: dict[str, np.ndarray] = {}
        for name in _entry_names(states[0]):
            own = [{each: state[f"{name}_{each}"] for each in STATE_KEYS} for state in states]
            found |= {f"{name}_{each}": as_array(value) for each, value in RunningMeanStd.merged(own).items()}
        return for_checkpoint(found)

    def shared_state(self) -> dict[str, np.ndarray]:
        """Return the statistics: own arrays, or copies of a bound `SharedState`."""
        return self._read()

    @property
    def is_shared(self) -> bool:
        """True if envs share the statistics."""
        return self._shared is not None

    def bind_shared_state(self, state: Any) -> None:
        """Use and update the statistics in `state`, a `SharedState`, from now on."""
        self._shared = state

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_arrays": self._copies(), "_statistics": None, "_shared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_arrays(self._arrays)


def _shapes(arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(array.shape) for key, array in arrays.items()}


def _entry_names(state: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(key.rpartition("_")[0] for key in state))


def _state_of_only_vec_norm(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = [re.fullmatch(r"(\d+)\.([^.]+)\.(.*)", key, re.DOTALL) for key in state]
    own = [match for match in found if match and match[2] == name]
    if not all(found) or len({match[1] for match in own}) != 1:
        return state
    return {match[3]: state[match[0]] for match in own}


def _entry_name(path: Path) -> str:
    """Return a unique name per path: "a.b" for key "b" in key "a", and "('a.b',)" for key "a.b"."""
    if path == (REWARD,) or not all(map(_is_plain, path)):
        return repr(path)  # the name "reward" means the env's reward
    return ".".join(map(str, path)) or WHOLE


def _is_plain(key: Any) -> bool:
    if isinstance(key, str):
        return bool(key) and "." not in key and key[0] != "(" and not key.isdecimal()
    return type(key) is int and key >= 0


def _entry_path(name: str) -> Path:
    if not name.startswith("("):
        return tuple(int(key) if key.isdecimal() else key for key in name.split("."))
    try:
        path: Path = ast.literal_eval(name)
    except (SyntaxError, ValueError):
        raise ValueError(
            f"cannot read the name {name} of a part: load the state once the transform belongs to an env"
        ) from None
    return path
