"""Transforms of dtypes and numbers, for observations, rewards and actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.arguments import check_number
from vecenv.nest import namespace, space_of, tree_of
from vecenv.transforms.arrays import Array, Constants, cast, cast_box, dtype_name, is_float, numeric_bounds
from vecenv.transforms.transform import Keys, Rows, Transform


class DTypeCast(Transform):
    """Cast arrays of the observation from one dtype to another (as torchrl's DTypeCastTransform).

    Arguments:
        dtype_in, dtype_out: dtypes or their names. Only arrays of `dtype_in` change.
        in_keys: as for `Transform`. None: all arrays of `dtype_in`.
        in_keys_inv: with `["action"]`, Boxes of `dtype_in` in the action space get `dtype_out`, and actions are cast
            back to `dtype_in`.

    >>> DTypeCast("uint8", "float32")(np.zeros((1, 2), np.uint8)).dtype
    dtype('float32')
    """

    def __init__(
        self,
        dtype_in: Any,
        dtype_out: Any,
        in_keys: Keys = None,
        out_keys: Keys = None,
        in_keys_inv: Sequence[str] | None = None,
    ) -> None:
        self.dtype_in, self.dtype_out = np.dtype(dtype_in).name, np.dtype(dtype_out).name
        if in_keys_inv not in (None, [], ["action"], ("action",)):
            raise ValueError(f'in_keys_inv must be ["action"] or None, got {in_keys_inv!r}')
        self.needs_parts = not in_keys_inv
        self._is_cast: Any = None
        """Tree like the action, with True for each array to cast. None: cast no actions."""
        super().__init__(in_keys, out_keys)

    def takes(self, shape: tuple[int, ...], dtype: str) -> bool:
        return dtype == self.dtype_in

    def apply(self, array: Array) -> Array:
        return cast(array, self.dtype_out) if dtype_name(array) == self.dtype_in else array

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        self._places = self.find_places(observation_space)  # not from rows: float32 replaces float64 on some devices
        self._is_cast = None if self.needs_parts else nest.map(self._casts, tree_of(action_space))

    def _casts(self, space: Any) -> bool:
        return isinstance(space, spaces.Box) and space.dtype.name == self.dtype_in

    def transform_action_space(self, space: Any) -> Any:
        return space if self.needs_parts else space_of(nest.map(self._offered, tree_of(space)))

    def _offered(self, space: Any) -> Any:
        return cast_box(space, self.dtype_out, inside=True) if self._casts(space) else space

    def transform_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        return cast_box(space, self.dtype_out) if numeric_bounds(space)[0].dtype.name == self.dtype_in else space

    def inv(self, action: Any) -> Any:
        return action if self._is_cast is None else nest.merge(self._cast_back, [self._is_cast, action])

    def _cast_back(self, is_cast_and_action: list[Any]) -> Any:
        is_cast, action = is_cast_and_action
        action = np.asarray(action) if is_cast and isinstance(action, (list, float)) else action
        return cast(action, self.dtype_in) if is_cast else action


class DoubleToFloat(DTypeCast):
    """Cast float64 observations to float32. With `in_keys_inv=["action"]`, float64 action spaces become float32.

    >>> DoubleToFloat()(np.zeros((1, 2))).dtype
    dtype('float32')
    """

    def __init__(self, in_keys: Keys = None, out_keys: Keys = None, in_keys_inv: Sequence[str] | None = None) -> None:
        super().__init__("float64", "float32", in_keys, out_keys, in_keys_inv)


class ObservationNorm(Transform):
    """Compute `obs * scale + loc`, or `(obs - loc) / scale` with `standard_normal`.

    `loc` and `scale` broadcast to the shape of an observation. Floats keep their dtype, other numbers become float32.
    Raises ValueError for a scale of 0 with `standard_normal`.

    >>> ObservationNorm(1.0, 2.0, standard_normal=True)(np.array([[5.0]]))
    array([[2.]])
    """

    def __init__(
        self, loc: Any, scale: Any, in_keys: Keys = None, out_keys: Keys = None, standard_normal: bool = False
    ) -> None:
        self.loc, self.scale = np.asarray(loc, np.float64), np.asarray(scale, np.float64)
        if standard_normal and not self.scale.all():
            raise ValueError(f"{type(self).__name__} divides by the scale, which must not be zero: {scale!r}")
        self.standard_normal = standard_normal
        self._constants = Constants(self.loc), Constants(self.scale)
        super().__init__(in_keys, out_keys)

    def apply(self, array: Array) -> Array:
        if not is_float(array):
            array = cast(array, "float32")
        loc, scale = (each.like(array) for each in self._constants)
        return (array - loc) / scale if self.standard_normal else array * scale + loc


class RewardScaling(ObservationNorm):
    """Compute `reward * scale + loc`, or `(reward - loc) / scale` with `standard_normal`.

    >>> rows = Rows(None, None, np.array([1.0, 2.0]))
    >>> RewardScaling(loc=0.0, scale=0.1).step(rows)
    >>> rows.reward
    array([0.1, 0.2])
    """

    def __init__(self, loc: float, scale: float, standard_normal: bool = False) -> None:
        loc, scale = check_number("loc", loc), check_number("scale", scale)
        super().__init__(loc, scale, in_keys=[], standard_normal=standard_normal)

    def step(self, rows: Rows) -> None:
        rows.reward = self.apply(rows.reward)


class RewardClipping(Transform):
    """Clip rewards to `clamp_min` and `clamp_max`. `None` means no bound.

    >>> rows = Rows(None, None, np.array([-3.0, 0.5]))
    >>> RewardClipping(-1, 1).step(rows)
    >>> rows.reward
    array([-1. ,  0.5])
    """

    def __init__(self, clamp_min: float | None = None, clamp_max: float | None = None) -> None:
        super().__init__(in_keys=[])
        self.clamp_min = None if clamp_min is None else check_number("clamp_min", clamp_min, infinite=True)
        self.clamp_max = None if clamp_max is None else check_number("clamp_max", clamp_max, infinite=True)
        if clamp_min is not None and clamp_max is not None and clamp_min > clamp_max:
            raise ValueError(f"clamp_min={clamp_min} is above clamp_max={clamp_max}")

    def step(self, rows: Rows) -> None:
        if self.clamp_min is not None or self.clamp_max is not None:
            rows.reward = rows.reward.clip(self.clamp_min, self.clamp_max)


class ActionScaling(Transform):
    """Scale actions from [`low`, `high`] to the env's bounds (as torchrl's ActionScaling, gymnasium's RescaleAction).

    Actions outside [`low`, `high`] are not clipped, so the env gets values outside its bounds. Raises ValueError unless
    the action space is a Box of floats with finite bounds.

    >>> import gymnasium as gym
    >>> from vecenv.transforms import TransformedEnv
    >>> env = TransformedEnv(gym.make("Pendulum-v1"), ActionScaling())
    >>> env.action_space, env.transform[0].inv(np.array([[0.5]], np.float32))
    (Box(-1.0, 1.0, (1,), float32), array([[1.]], dtype=float32))
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        super().__init__(in_keys=[])
        self.low, self.high = check_number("low", low), check_number("high", high)
        if not self.low < self.high:
            raise ValueError(f"low={low} must be below high={high}")
        self._constants: tuple[Constants, ...] | None = None

    def transform_action_space(self, space: Any) -> Any:
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not space.is_bounded():
            raise ValueError(
                f"ActionScaling needs an action space that is a Box of floats with finite bounds, got {space}"
            )
        return spaces.Box(self.low, self.high, space.shape, space.dtype.type)

    def attach(self, owner: Any, num_envs: int, observation_space: Any, action_space: Any) -> None:
        super().attach(owner, num_envs, observation_space, action_space)
        self._dtype = action_space.dtype.name
        low, high = (end.astype(np.float64) for end in (action_space.low, action_space.high))
        scale = (high - low) / (self.high - self.low)
        self._constants = tuple(map(Constants, (low - self.low * scale, scale, low, high)))

    def inv(self, action: Any) -> Any:
        if self._constants is None:
            raise RuntimeError(
                "ActionScaling needs the action space: use it in a TransformedEnv or TransformedVectorEnv"
            )
        action = cast(action, self._dtype)
        loc, scale, least, most = (each.like(action) for each in self._constants)
        scaled = action * scale + loc
        # Rounding may carry an action within [low, high] beyond the env's bound, so clip the result.
        return namespace(action).where((action >= self.low) & (action <= self.high), scaled.clip(least, most), scaled)
