"""Our gymnasium vector envs against gymnasium's SyncVectorEnv, in each autoreset mode, with gymnasium's wrappers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import vector as wrappers
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import Program
from tests.fuzz.envs import ACTIONS, SPACES, assert_same, draw, make_env, stacked
from tests.support.cases import LocalWorker
from vecenv import (
    AsyncVectorEnv,
    BaseVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvWrapper,
    from_gymnasium,
)

N = 4


OURS: dict[str, Any] = {
    "sync": SyncVectorEnv,
    "shmem": AsyncVectorEnv,
    "subproc": partial(AsyncVectorEnv, shared_memory=False),
    "shmem, one worker": partial(AsyncVectorEnv, num_workers=1),
    "threads": lambda env_fns, **options: GymnasiumVectorEnv(ThreadVectorEnv(env_fns), **options),
    "views": lambda env_fns, **options: GymnasiumVectorEnv(DummyVectorEnv(env_fns, copy=False), **options),
    "native": lambda env_fns, **options: GymnasiumVectorEnv(
        from_gymnasium(gymnasium.vector.SyncVectorEnv(env_fns, **options)), **options
    ),
    "wrapper": lambda env_fns, **options: GymnasiumVectorEnv(VectorEnvWrapper(DummyVectorEnv(env_fns)), **options),
    "own workers": lambda env_fns, **options: GymnasiumVectorEnv(BaseVectorEnv(env_fns, LocalWorker), **options),
}
WRAPPERS: dict[str, Any] = {
    "normalize obs": wrappers.NormalizeObservation,
    "normalize reward": wrappers.NormalizeReward,
    "statistics": wrappers.RecordEpisodeStatistics,
    "clip reward": partial(wrappers.ClipReward, min_reward=-0.5, max_reward=0.5),
    "flatten": wrappers.FlattenObservation,
    "clip action": wrappers.ClipAction,
    "dtype": partial(wrappers.DtypeObservation, dtype=np.float64),
    "filter": partial(wrappers.FilterObservation, filter_keys=["z"]),
    "rescale action": partial(wrappers.RescaleAction, min_action=-1, max_action=1),
    "transform": partial(
        wrappers.VectorizeTransformObservation,
        wrapper=gymnasium.wrappers.TransformObservation,
        func=lambda obs: obs * 2,
        observation_space=None,
    ),
    "list": wrappers.DictInfoToList,
}
FLOATS = ("floats", "doubles", "half")
SMALL = st.integers(0, 99)


class Named(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Env whose infos have the key `env_id`, which vecenv uses as well."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "env_id": "first"}

    def step(self, action: Any) -> Any:
        *result, info = self.env.step(action)
        return (*result, {**info, "env_id": "later"} if info else info)


class Loose(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """Env whose observations have other types than their space, as in published envs."""

    def observation(self, obs: Any) -> Any:
        return loosened(self.observation_space, obs)


def loosened(space: Any, obs: Any) -> Any:
    """Return an observation with wider floats, lists, numpy integers, and keys in another order."""
    if isinstance(space, spaces.Dict):
        return {key: loosened(space[key], obs[key]) for key in reversed(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return [loosened(part, value) for part, value in zip(space.spaces, obs, strict=True)]
    if isinstance(space, spaces.Discrete):
        return np.int64(obs)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.shape != ():
        return np.asarray(obs, np.float64) if len(space.shape) == 1 else obs.tolist()
    return obs


def make(i: int, around: str = "none", **settings: Any) -> Any:
    kinds = {"named": Named, "loose": Loose}
    return kinds[around](make_env(i, **settings)) if around in kinds else make_env(i, around, **settings)


def written_over(tree: Any) -> Any:
    """Fill all arrays of a result with ones, as its owner may. Return a copy."""
    if isinstance(tree, dict):
        return {key: written_over(part) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [written_over(part) for part in tree]
    if isinstance(tree, np.ndarray) and tree.dtype != object:
        tree[...] = 1
    return copy.deepcopy(tree)


def without_times(value: Any) -> Any:
    """The infos without the seconds that an episode took."""
    if isinstance(value, dict):
        return {
            key: {k: v for k, v in part.items() if k not in ("t", "_t")}
            if key in ("episode", "final_info") and isinstance(part, dict) and "episode" not in part
            else without_times(part)
            for key, part in value.items()
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


class Fuzz(Program):
    """Each operation is called on both, and has to return or raise the same."""

    kinds: ClassVar[Sequence[str]] = tuple(OURS)
    modes: ClassVar[Sequence[str]] = ("NextStep", "SameStep", "Disabled")
    wraps: ClassVar[Sequence[str]] = ()
    """Wrappers of all programs, instead of random ones, around envs with the space `boxes` or `floats`."""

    @initialize(
        n=st.integers(1, N),
        kind=SMALL,
        mode_at=SMALL,
        copies=st.booleans(),
        space=st.sampled_from(list(SPACES)),
        actions=st.sampled_from(list(ACTIONS)),
        rewards=st.sampled_from(["float", "int", "float32"]),
        around=st.sampled_from(["none", "time limit", "statistics", "scaled", "named", "loose"]),
        wrapped=st.lists(st.sampled_from(list(WRAPPERS)), max_size=2, unique=True),
    )
    def make(
        self, n: int, kind: int, mode_at: int, copies: bool, actions: str, wrapped: list[str], **settings: Any
    ) -> None:
        ours, mode = self.kinds[kind % len(self.kinds)], self.modes[mode_at % len(self.modes)]
        if self.wraps:
            wrapped, actions = [*self.wraps], "box"
            settings["space"] = "boxes" if "filter" in wrapped else "floats"
        self.n, self.actions, self.mode = n, ACTIONS[actions], mode
        if ours == "own workers":
            settings["around"] = "none"  # tianshou's workers do not look for methods below wrappers
            settings["space"] = "floats"  # last observations are rows of the batch
        if ours in ("wrapper", "own workers") and settings["space"] == "scalar":
            settings["space"] = "floats"  # a wrapper hands on batches, which do not tell a scalar from an array
        self.casts = ours == "native"  # actions are cast to the dtype of their space
        if ours == "native":  # takes arrays only
            settings["space"] = "image" if settings["space"] in ("text", "sequence", "dict") else settings["space"]
            actions = actions if actions in ("discrete", "multi") else "box"
            self.actions = ACTIONS[actions]
            settings["around"] = "none" if settings["around"] in ("named", "loose") else settings["around"]
        env_fns = [partial(make, i, actions=actions, **settings) for i in range(n)]
        options = {"autoreset_mode": mode, "copy": copies or bool(wrapped)}
        self.both = [gymnasium.vector.SyncVectorEnv(env_fns, **options), OURS[ours](env_fns, **options)]
        self.is_owner, self.kept = copies and not wrapped, ([], [])
        for name in sorted(wrapped, key=lambda name: name == "list"):
            fits = not (mode == "SameStep" and name in ("flatten", "dtype", "filter", "transform"))
            fits &= name != "normalize obs" or (mode == "NextStep" and settings["space"] in FLOATS)
            # gymnasium's SyncVectorEnv takes the mask out of the options before this wrapper reads it.
            fits &= name != "statistics" or mode != "Disabled"
            fits &= name not in ("dtype", "transform") or settings["space"] in FLOATS
            fits &= name != "filter" or settings["space"] == "boxes"
            fits &= name not in ("clip action", "rescale action") or actions == "box"
            fits &= name != "rescale action" or "clip action" not in wrapped  # which leaves no bounds
            fits &= name != "flatten" or settings["space"] not in ("text", "sequence", "dict")
            if fits:
                self.both = [WRAPPERS[name](envs) for envs in self.both]
        self.over, self.takes_masks = np.zeros(n, bool), "statistics" not in wrapped
        theirs, mine = self.both
        for name in (
            "num_envs",
            "observation_space",
            "single_observation_space",
            "action_space",
            "single_action_space",
        ):
            assert getattr(mine, name) == getattr(theirs, name), name
        self.compare(lambda envs: envs.reset(seed=3))

    def close(self) -> None:
        for envs in getattr(self, "both", ()):
            envs.close()

    def compare(self, call: Any) -> Any:
        """The call's result for gymnasium's vector env, once ours has returned the same, or raised as well."""
        results: list[Any] = []
        for envs in self.both:
            try:
                results.append(call(envs))
            except Exception as error:
                results.append(error)
        theirs, mine = results
        if isinstance(theirs, Exception) or isinstance(mine, Exception):
            both_raised = isinstance(theirs, Exception) and isinstance(mine, Exception)
            if not both_raised:
                error = mine if isinstance(mine, Exception) else theirs
                raise AssertionError(f"gymnasium: {theirs!r}; ours: {mine!r}") from error
            return None
        assert_same(without_times(list(mine)), without_times(list(theirs)), "result")
        if self.is_owner:
            assert_same(*self.kept, "an earlier result has changed")
            self.kept = list(mine), written_over(mine)
        return theirs

    @rule(
        seed=st.none() | SMALL | st.lists(st.none() | SMALL, min_size=N, max_size=N),
        at=st.none() | SMALL,
        mask=st.none() | st.lists(st.booleans(), min_size=N, max_size=N),
        halves=st.booleans(),
    )
    def reset(self, seed: Any, at: int | None, mask: Any, halves: bool) -> None:
        seed = seed[: self.n] if isinstance(seed, list) else seed
        options = {} if at is None else {"at": at}
        chosen = np.ones(self.n, bool)
        if mask is not None and any(mask[: self.n]) and self.takes_masks:
            chosen = options["reset_mask"] = np.array(mask[: self.n])
        self.over &= ~chosen

        def reset(envs: Any) -> Any:
            if halves and isinstance(envs, GymnasiumVectorEnv):
                envs.reset_async(seed, dict(options) or None)
                return envs.reset_wait()
            return envs.reset(seed=seed, options=dict(options) or None)

        self.compare(reset)

    @rule(action=SMALL, form=st.sampled_from(["batch", "batch", "rows", "wide"]), halves=st.booleans())
    def step(self, action: int, form: str, halves: bool) -> None:
        if self.mode == "Disabled" and self.over.any():
            mask = self.over.copy()
            self.compare(lambda envs: envs.reset(options={"reset_mask": mask.copy()}))
            self.over[:] = False
            return
        form = "batch" if self.casts else form
        rng = np.random.default_rng(action)
        rows = [draw(self.actions, rng) for _ in range(self.n)]
        batch = stacked(self.actions, rows)
        if form == "wide" and isinstance(batch, np.ndarray):
            batch = batch.astype(np.float64 if batch.dtype.kind == "f" else np.int32)
        if form == "rows" and isinstance(batch, np.ndarray) and not any(isinstance(w, str) for w in rows):
            batch = rows

        def step(envs: Any) -> Any:
            if halves and isinstance(envs, GymnasiumVectorEnv):
                envs.step_async(batch)
                return envs.step_wait()
            return envs.step(batch)

        result = self.compare(step)
        if result is not None:
            self.over = result[2] | result[3]

    @rule(actions=st.lists(SMALL, min_size=4, max_size=8))
    def step_on(self, actions: list[int]) -> None:
        """Steps, so that episodes end."""
        for action in actions:
            self.step(action, "batch", False)

    @rule(value=SMALL, each=st.booleans())
    def access(self, value: int, each: bool) -> None:
        values = [value + i for i in range(self.n)] if each else value
        for call in (
            lambda envs: envs.unwrapped.set_attr("mark", values),
            lambda envs: envs.unwrapped.set_attr("new", values),
            lambda envs: ["new" in attributes for attributes in envs.unwrapped.call("__dict__")],
            lambda envs: envs.unwrapped.render(),
            lambda envs: envs.unwrapped.get_attr("mark"),
            lambda envs: envs.unwrapped.get_attr("received"),
            lambda envs: envs.unwrapped.call("echo", value, x=value),
            lambda envs: envs.unwrapped.np_random_seed,
            lambda envs: [rng.bit_generator.state for rng in envs.unwrapped.np_random],
        ):
            results = [call(envs) for envs in self.both]
            assert_same(results[1], results[0], "access")
