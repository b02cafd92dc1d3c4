"""VecNorm: observations and rewards by the mean and deviation of what came so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.nest import as_array
from vecenv.transforms.arrays import Array, cast, copied, dtype_name, is_float, like, namespace
from vecenv.transforms.parts import Path, bounds_of, part, with_part
from vecenv.transforms.transform import Compose, Freezable, Rows, Transform
from vecenv.transforms.values import ObservationNorm

REWARD = "reward"
PARTS = ("sum", "ssq", "count")


class LocalState:
    """Arrays of one process, with the two methods of those that processes share."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def update(self) -> LocalState:
        """The context in which the arrays may be changed, in place."""
        return self

    def read(self) -> dict[str, Array]:
        """The arrays, to be looked at."""
        return self.arrays

    def __enter__(self) -> dict[str, Array]:
        return self.arrays

    def __exit__(self, *exception: object) -> None:
        return None


class VecNorm(Freezable):
    """Observations and rewards with their running mean taken off, divided by their running deviation (as torchrl's).

    Of each entry there are decayed sums in float64, over all rows of all envs, those of resets too. A batch of k rows
    first updates them, then it is normalised:

        sum = decay * sum + rows.sum()      ssq = decay * ssq + (rows**2).sum()      count = decay * count + k
        mean = sum / count      std = sqrt(max(ssq / count - mean**2, eps))      rows = (rows - mean) / max(std, eps)

    Arguments:
        in_keys: parts of the observation, and "reward"; None: all arrays of numbers in the observation, and the reward.
        out_keys: see `Transform`; of the observation only.
        decay, eps: see above.

    Floats keep their dtype, other numbers become float32. In a `TransformedVectorEnv` it sees whole batches; in
    workers each env has its own, unless `EnvCreator` makes the envs, which then share one. `freeze` ends the updates.
    `state_dict` has `<name>_sum`, `<name>_ssq` and `<name>_count` of each entry; the arrays are updated in place.
    ValueError for vector rewards: leave "reward" out.

    >>> import gymnasium as gym
    >>> from vecenv import DummyVectorEnv
    >>> from vecenv.transforms.transformed_vector_env import TransformedVectorEnv
    >>> with TransformedVectorEnv(DummyVectorEnv([lambda: gym.make("CartPole-v1")] * 4), VecNorm(decay=1.0)) as venv:
    ...     obs, info = venv.reset(seed=0)
    ...     venv.transform[0].state_dict()["observation_count"], bool(abs(obs.mean()) < 1e-6)
    (array(4.), True)
    """

    has_state = True

    def __init__(
        self,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
        *,
        decay: float = 0.9999,
        eps: float = 1e-4,
    ) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {decay}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        self.decay, self.eps = float(decay), float(eps)
        self.norms_reward = in_keys is None or REWARD in in_keys
        keys = None if in_keys is None else [key for key in in_keys if key != REWARD]
        self.frozen = False
        self._state: Any = LocalState({})
        self._entries: list[tuple[str, Path, Path]] = []
        super().__init__(keys, out_keys)

    # As a transform.

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return dtype != "bool"

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        low, _ = bounds_of(space)
        dtype = low.dtype if low.dtype.kind == "f" else np.dtype(np.float32)
        return spaces.Box(-np.inf, np.inf, low.shape, dtype.type)

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        places = self.places(observation_space)
        self._entries = [(_name(source), source, target) for source, target in places]
        shapes = {name: bounds_of(part(observation_space, source))[0].shape for name, source, _ in self._entries}
        if self.norms_reward:
            shapes[REWARD] = ()
        known = {key: array.shape for key, array in self._state.read().items()}
        needed = {
            f"{name}_{each}": () if each == "count" else shape for name, shape in shapes.items() for each in PARTS
        }
        if known != needed:
            self._state = LocalState({key: np.zeros(shape) for key, shape in needed.items()})

    def reset(self, rows: Rows) -> None:
        self._norm_rows(rows)

    def step(self, rows: Rows) -> None:
        self._norm_rows(rows)
        if self.norms_reward:
            if rows.reward.ndim != 1:
                raise ValueError(
                    f"VecNorm normalises rewards that are numbers, got the shape {tuple(rows.reward.shape[1:])}: pass "
                    "in_keys without 'reward'"
                )
            rows.reward = self._normed(REWARD, rows.reward)

    def _norm_rows(self, rows: Rows) -> None:
        for name, source, target in self._entries:
            rows.obs = with_part(rows.obs, target, self._normed(name, part(rows.obs, source)))

    def _normed(self, name: str, array: Array) -> Array:
        """The rows normalised, after an update with them unless it is frozen."""
        dtype = dtype_name(array) if is_float(array) else "float32"
        rows = cast(array, "float64")
        if not self.frozen:
            mean, std = self._updated(name, rows)
        else:
            mean, std = self._moments(name, self._state.read())
        centred = rows - like_of(mean, rows)
        centred /= like_of(std, rows)
        return cast(centred, dtype)

    def _updated(self, name: str, rows: Array) -> tuple[Array, Array]:
        if isinstance(rows, np.ndarray):
            total, squares = np.add.reduce(rows, 0), np.add.reduce(rows * rows, 0)
        else:
            xp = namespace(rows)
            total, squares = xp.sum(rows, axis=0), xp.sum(rows * rows, axis=0)
            self._move_to(rows)
        with self._state.update() as arrays:
            for key, new in ((f"{name}_sum", total), (f"{name}_ssq", squares), (f"{name}_count", rows.shape[0])):
                kept = arrays[key]
                if self.decay != 1:
                    kept *= self.decay
                kept += new
            return self._moments(name, arrays)

    def _moments(self, name: str, arrays: dict[str, Array]) -> tuple[Array, Array]:
        """Mean and deviation; 0 and 1 before the first update."""
        count = arrays[f"{name}_count"]
        if isinstance(count, np.ndarray):
            n = float(count)
            if not n:
                return np.zeros(()), np.ones(())
            mean = arrays[f"{name}_sum"] / n
            std = arrays[f"{name}_ssq"] / n
            std -= mean * mean
            std = np.sqrt(np.maximum(std, self.eps))
            return mean, std if self.eps <= 1 else np.maximum(std, self.eps)
        xp = namespace(count)
        mean = arrays[f"{name}_sum"] / count
        std = xp.sqrt(xp.clip(arrays[f"{name}_ssq"] / count - mean * mean, min=self.eps))
        return mean, xp.clip(std, min=self.eps)

    def _move_to(self, rows: Array) -> None:
        """Keep the sums where the rows are: in their library, on their device."""
        arrays = self._state.read()
        if isinstance(next(iter(arrays.values())), np.ndarray):
            if not isinstance(self._state, LocalState):
                raise RuntimeError("VecNorm that processes share works on arrays of numpy")
            self._state = LocalState({key: copied(like(array, rows)) for key, array in arrays.items()})

    # What it has learnt.

    def denorm(self, obs: Any) -> Any:
        """Observations (a batch, or one) as they were before, in the dtype that they have."""
        for name, source, target in self._entries:
            obs = with_part(obs, source, self._denormed(name, part(obs, target)))
        return obs

    def denorm_reward(self, reward: Array) -> Array:
        """Rewards as they were before."""
        return self._denormed(REWARD, reward)

    def _denormed(self, name: str, array: Array) -> Array:
        mean, std = (like_of(each, array) for each in self._moments(name, self._state.read()))
        return cast(cast(array, "float64") * std + mean, dtype_name(array))

    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and deviation of each entry, by its name: copies."""
        arrays = {key: as_array(array) for key, array in self._state.read().items()}
        names = [name for name, _, _ in self._entries] + [REWARD] * self.norms_reward
        return {name: self._moments(name, arrays) for name in names}

    def to_observation_norm(self) -> Transform:
        """What it does to observations now, as an ObservationNorm (of several parts: a Compose of them)."""
        moments = self.moments()
        norms = []
        for name, source, target in self._entries:
            keys = (
                {} if source == () and target == () else {"in_keys": [source or ("observation",)], "out_keys": [target]}
            )
            norms.append(ObservationNorm(*moments[name], standard_normal=True, **keys))
        return norms[0] if len(norms) == 1 else Compose(*norms)

    def state_dict(self) -> dict[str, Any]:
        """The sums and counts: copies of numpy, safe to keep."""
        return {key: np.array(as_array(array)) for key, array in self._state.read().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, in place; ValueError where names or shapes differ."""
        with self._state.update() as arrays:
            own = {key: tuple(array.shape) for key, array in arrays.items()}
            given = {key: np.shape(array) for key, array in state.items()}
            if own and own != given:
                raise ValueError(f"the state has {given}, this VecNorm has {own}")
            if not own:
                arrays.update({key: np.array(array, np.float64) for key, array in state.items()})
                return
            for key, array in arrays.items():
                array[...] = like(np.asarray(state[key], np.float64), array)

    @staticmethod
    def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The state with the sums and counts of all of these.

        >>> VecNorm.merged([{"observation_count": 2.0}, {"observation_count": 3.0}])
        {'observation_count': array(5.)}
        """
        return {key: np.array(sum(np.asarray(state[key], np.float64) for state in states)) for key in states[0]}

    # For processes that share it.

    def shared_state(self) -> dict[str, np.ndarray]:
        """The live arrays, of numpy: those that `bind_shared_state` replaces by shared ones."""
        arrays: dict[str, np.ndarray] = self._state.read()
        return arrays

    def bind_shared_state(self, state: Any) -> None:
        """Keep the sums in `state` from now on: `with state.update() as arrays` is locked, `state.read()` looks."""
        self._state = state

    def __getstate__(self) -> dict[str, Any]:
        arrays = {key: np.array(as_array(array)) for key, array in self._state.read().items()}
        return {**super().__getstate__(), "_state": LocalState(arrays)}

    def __repr__(self) -> str:
        return f"VecNorm(decay={self.decay}, eps={self.eps}{', frozen' if self.frozen else ''})"


def like_of(values: Array, array: Array) -> Array:
    """Values that may be of numpy, in the library of `array`."""
    return like(values, array) if isinstance(values, np.ndarray) else values


def _name(path: Path) -> str:
    return ".".join(map(str, path)) or "observation"
