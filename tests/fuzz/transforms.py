"""Transforms in a worker, in the parent, on tensors, on a device and in a plain loop give equal results.

Each observation is in the space.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collector.device.torch_vector_env import TorchVectorEnv, TransformedOnDevice
from tests.fuzz.driver import SMALL, Program
from tests.fuzz.envs import SPACES, Notes, Scripted, assert_same, draw, row_of, stacked, transformed
from vecenv import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv, TransformedVectorEnv
from vecenv import transforms as tf

N = 3
IDS = st.lists(st.integers(0, N - 1), min_size=1, unique=True)
CHAINS: dict[str, Any] = {
    "flatten": tf.Flatten,
    "unsqueeze first": partial(tf.UnsqueezeTransform, 0),
    "unsqueeze last": partial(tf.UnsqueezeTransform, -1),
    "squeeze": partial(tf.SqueezeTransform, -1),
    "frames": partial(tf.CatFrames, 2, -1),
    "frames of zeros": partial(tf.CatFrames, 3, -1, padding="constant", padding_value=0),
    "cast": partial(tf.DTypeCast, "float32", "float64"),
    "cast numbers": partial(tf.DTypeCast, "uint8", "int64"),
    "double to float": tf.DoubleToFloat,
    "norm": partial(tf.ObservationNorm, 0.5, 2.0),
    "clip reward": partial(tf.RewardClipping, -0.5, 0.5),
    "scale reward": partial(tf.RewardScaling, 1.0, 0.5),
    "sum rewards": tf.RewardSum,
    "count": tf.StepCounter,
    "count to 2": partial(tf.StepCounter, max_steps=2),
    "time limit": partial(tf.TimeLimit, 3),
    "to tensor": tf.ToTensorImage,
    "gray": tf.GrayScale,
    "resize": partial(tf.Resize, 3, 4),
    "resize bilinear": partial(tf.Resize, 6, 3, "bilinear"),
    "crop": partial(tf.CenterCrop, 2, 2),
    "cat": tf.CatTensors,
    "rename": partial(tf.RenameTransform, ["z"], ["y"]),
    "rename first": partial(tf.RenameTransform, [(0,)], ["a"]),
    "copy first": partial(tf.RenameTransform, [(0,)], ["a"], create_copy=True),
    "norm first": partial(tf.ObservationNorm, 1.0, 2.0, [(0,)], ["z"]),
    "scale actions": tf.ActionScaling,
    "vec norm": tf.VecNorm,
    "notes": Notes,
    "normalize reward": tf.NormalizeReward,
}


def _as_float(obs: np.ndarray) -> np.ndarray:
    return obs if obs.dtype.kind == "f" else obs.astype(np.float32)


PLAIN: dict[str, Any] = {
    "flatten": lambda obs: obs.reshape(-1),
    "unsqueeze first": lambda obs: obs[None],
    "unsqueeze last": lambda obs: obs[..., None],
    "norm": lambda obs: _as_float(obs) * 2.0 + 0.5,
    "double to float": lambda obs: obs.astype(np.float32) if obs.dtype == np.float64 else obs,
    "cast": lambda obs: obs.astype(np.float64) if obs.dtype == np.float32 else obs,
    "clip reward": lambda obs: obs,
    "scale reward": lambda obs: obs,
}
"""The effect of each of these on one observation of numbers."""
LEARNS = ("vec norm", "normalize reward")


def arrays(value: Any) -> Any:
    """The tree with arrays in place of tensors."""
    if isinstance(value, dict):
        return {key: arrays(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(arrays(part) for part in value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.copy()
        value[:] = [arrays(part) for part in value]
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value) if isinstance(value, np.generic) else value


class Fuzz(Program):
    """`places` are vector envs with the same transforms, `envs` the envs without transforms."""

    only: ClassVar[Any] = None
    """Backend of all programs, instead of a random one."""
    first: ClassVar[str] = ""
    """Name of the transform that all chains begin with. A space that it does not fit is replaced."""

    @initialize(
        n=st.integers(1, N),
        backend=st.sampled_from([DummyVectorEnv, DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv]),
        space=st.sampled_from(list(SPACES)),
        actions=st.sampled_from(["discrete", "box", "scalar"]),
        rewards=st.sampled_from(["float", "int", "float32"]),
        chain=st.lists(st.sampled_from(list(CHAINS)), max_size=4),
    )
    def make(self, n: int, backend: Any, space: str, actions: str, rewards: str, chain: list[str]) -> None:
        actions = "box" if self.first == "scale actions" else actions
        self.n = n if not set(LEARNS) & {self.first, *chain} else 1  # in a worker they see one env
        self.places: list[Any] = []
        for place in [space, *SPACES] if self.first else [space]:
            space, self.chain = place, list[str]()
            plain = [partial(Scripted, i, space, actions, rewards) for i in range(self.n)]
            if self.first:
                self.extend(self.first, plain)
            if self.chain or not self.first:
                break
        assert self.chain or not self.first, f"{self.first} fits no space"
        self.envs = [env_fn() for env_fn in plain]
        for name in chain:
            self.extend(name, plain)
        makers = [CHAINS[name] for name in self.chain]
        self.places = [
            TransformedVectorEnv(DummyVectorEnv(plain), tf.Compose(*(make() for make in makers))),
            (self.only or backend)([partial(transformed, env_fn, makers) for env_fn in plain]),
        ]
        rounds = any(
            name.startswith("resize") for name in self.chain
        )  # its integers may differ by one between libraries
        if space not in ("text", "sequence", "dict") and not rounds:
            tensors, arrays_outside = (tf.Compose(*(make() for make in makers)) for _ in range(2))
            self.places += [
                TorchVectorEnv(DummyVectorEnv(plain), "cpu", transforms=tensors, reward_dtype=torch.float64),
                TransformedOnDevice(DummyVectorEnv(plain), arrays_outside, "cpu"),
            ]
        first = self.places[0]
        for place in self.places[1:]:
            assert place.observation_space == first.observation_space, "observation spaces"
            assert place.action_space == first.action_space, "action spaces"
        self.ends = any(name in ("time limit", "count to 2") for name in self.chain)
        self.over = np.zeros(self.n, bool)
        self.reset(list(range(N)), 3)

    def extend(self, name: str, plain: list[Any]) -> None:
        """Add a transform to the chain if it fits; a worker and the parent have to agree about that."""
        makers = [CHAINS[each] for each in [*self.chain, name]]
        fits = []
        for in_worker in (True, False):
            fns = [partial(transformed, env_fn, makers) for env_fn in plain] if in_worker else plain
            try:
                with DummyVectorEnv(fns) as venv:
                    if not in_worker:
                        TransformedVectorEnv(venv, tf.Compose(*(make() for make in makers)))
                fits.append(True)
            except (ValueError, TypeError):
                fits.append(False)
        assert len(set(fits)) == 1, f"{name} fits in a worker: {fits[0]}, in the parent: {fits[1]}"
        self.chain += [name] * fits[0]

    def close(self) -> None:
        for place in getattr(self, "places", ()):
            place.close()

    def compare(self, call: Any, ids: list[int]) -> Any:
        results = [arrays(call(place)) for place in self.places]
        for k, result in enumerate(results[1:], 1):
            # torch and numpy may round the last bit of a statistic in different ways.
            assert_same(result, results[0], ["", "worker", "tensors", "on a device"][k], rounds=k > 1)
        for j, i in enumerate(ids):
            space = self.places[0].observation_space[i]
            row = row_of(space, results[0][0], j)
            assert row in space, f"the observation of env {i}, {row!r}, is not in {space}"
        return results[0]

    def compare_plain(self, obs: Any, raw: list[Any]) -> None:
        """Observations of numbers against a plain loop."""
        is_box = isinstance(self.envs[0].observation_space, gymnasium.spaces.Box)
        if is_box and all(name in PLAIN for name in self.chain):
            for name in self.chain:
                raw = [PLAIN[name](row) for row in raw]
            assert_same(obs, np.stack(raw), "plain loop")

    @rule(ids=IDS, seed=st.none() | SMALL)
    def reset(self, ids: list[int], seed: int | None) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        obs, _ = self.compare(lambda place: place.reset(ids, seed=seed), ids)
        raw = [self.envs[i].reset(seed=None if seed is None else seed + i)[0] for i in ids]
        self.compare_plain(obs, raw)
        self.over[ids] = False

    @rule(ids=IDS | st.just(list(range(N))), action=SMALL, autoreset=st.booleans(), reset=st.booleans())
    def step(self, ids: list[int], action: int, autoreset: bool, reset: bool) -> None:
        ids = [i for i in ids if i < self.n] or [0]
        resets = [i for i in ids if self.over[i]] if reset else []
        space, rng = self.places[0].action_space[0], np.random.default_rng(action)
        actions = stacked(space, [draw(space, rng) for _ in ids])
        autoreset = autoreset and not self.ends
        result = self.compare(lambda place: place.step(actions, ids, reset=resets, autoreset=autoreset), ids)
        raw = []
        scaled = actions if "scale actions" not in self.chain else None
        for k, i in enumerate(ids):
            env = self.envs[i]
            if i in resets:
                raw.append(env.reset()[0])
            elif scaled is not None:
                obs, _, terminated, truncated, _ = env.step(scaled[k])
                raw.append(env.reset()[0] if autoreset and (terminated or truncated) else obs)
        if scaled is not None and not self.ends:
            self.compare_plain(result[0], raw)
        elif scaled is None:
            self.envs = [Lost() for _ in self.envs]
        self.over[ids] = (result[2] | result[3]) & (not autoreset)

    @rule(ids=IDS)
    def swap_states(self, ids: list[int]) -> None:
        ids = [i for i in ids if i < self.n]
        if len(ids) < 2:
            return
        targets = ids[1:] + ids[:1]
        for place in self.places:
            place.set_state(place.get_state(ids), targets)
        states = [self.envs[i].get_state() for i in ids]
        for i, state in zip(targets, states, strict=True):
            self.envs[i].set_state(state)
        self.over[targets] = self.over[ids]


class Lost:
    """Takes the place of an env whose actions the plain loop does not know."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: (None,) * (2 if name == "reset" else 5)
