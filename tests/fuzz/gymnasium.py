"""Our gymnasium vector envs against gymnasium's SyncVectorEnv, in each autoreset mode, with gymnasium's wrappers."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import vector as wrappers
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.fuzz.driver import Program
from tests.fuzz.envs import ACTIONS, SPACES, assert_same, draw, make_env, stacked
from vecenv import (
    AsyncVectorEnv,
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
}
WRAPPERS: dict[str, Any] = {
    "normalize obs": wrappers.NormalizeObservation,
    "normalize reward": wrappers.NormalizeReward,
    "statistics": wrappers.RecordEpisodeStatistics,
    "clip reward": partial(wrappers.ClipReward, min_reward=-0.5, max_reward=0.5),
    "flatten": wrappers.FlattenObservation,
    "clip action": wrappers.ClipAction,
    "dtype": partial(wrappers.DtypeObservation, dtype=np.float64),
    "list": wrappers.DictInfoToList,
}
FLOATS = ("floats", "doubles", "half")
SMALL = st.integers(0, 99)


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

    @initialize(
        n=st.integers(1, N),
        ours=st.sampled_from(list(OURS)),
        mode=st.sampled_from(["NextStep", "SameStep", "Disabled"]),
        space=st.sampled_from(list(SPACES)),
        actions=st.sampled_from(list(ACTIONS)),
        rewards=st.sampled_from(["float", "int", "float32"]),
        around=st.sampled_from(["none", "time limit", "statistics", "scaled"]),
        wrapped=st.lists(st.sampled_from(list(WRAPPERS)), max_size=2, unique=True),
    )
    def make(self, n: int, ours: str, mode: str, actions: str, wrapped: list[str], **settings: Any) -> None:
        self.n, self.actions, self.mode = n, ACTIONS[actions], mode
        if ours == "wrapper" and settings["space"] == "scalar":
            settings["space"] = "floats"  # a wrapper hands on batches, which do not tell a scalar from an array
        self.casts = ours == "native"  # actions are cast to the dtype of their space
        if ours == "native":  # takes arrays only
            settings["space"] = "image" if settings["space"] in ("text", "sequence", "dict") else settings["space"]
            actions = actions if actions in ("discrete", "multi") else "box"
            self.actions = ACTIONS[actions]
        env_fns = [partial(make_env, i, actions=actions, **settings) for i in range(n)]
        self.both = [
            gymnasium.vector.SyncVectorEnv(env_fns, autoreset_mode=mode),
            OURS[ours](env_fns, autoreset_mode=mode),
        ]
        for name in sorted(wrapped, key=lambda name: name == "list"):
            fits = not (mode == "SameStep" and name in ("flatten", "dtype"))
            fits &= name != "normalize obs" or (mode == "NextStep" and settings["space"] in FLOATS)
            # gymnasium's SyncVectorEnv takes the mask out of the options before this wrapper reads it.
            fits &= name != "statistics" or mode != "Disabled"
            fits &= name != "dtype" or settings["space"] in FLOATS
            fits &= name != "clip action" or actions == "box"
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
        return theirs

    @rule(
        seed=st.none() | SMALL | st.lists(st.none() | SMALL, min_size=N, max_size=N),
        at=st.none() | SMALL,
        mask=st.none() | st.lists(st.booleans(), min_size=N, max_size=N),
    )
    def reset(self, seed: Any, at: int | None, mask: Any) -> None:
        seed = seed[: self.n] if isinstance(seed, list) else seed
        options = {} if at is None else {"at": at}
        chosen = np.ones(self.n, bool)
        if mask is not None and any(mask[: self.n]) and self.takes_masks:
            chosen = options["reset_mask"] = np.array(mask[: self.n])
        self.over &= ~chosen
        self.compare(lambda envs: envs.reset(seed=seed, options=dict(options) or None))

    @rule(action=SMALL, form=st.sampled_from(["batch", "batch", "rows", "wide"]))
    def step(self, action: int, form: str) -> None:
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
        result = self.compare(lambda envs: envs.step(batch))
        if result is not None:
            self.over = result[2] | result[3]

    @rule(value=SMALL, each=st.booleans())
    def access(self, value: int, each: bool) -> None:
        values = [value + i for i in range(self.n)] if each else value
        for call in (
            lambda envs: envs.unwrapped.set_attr("mark", values),
            lambda envs: envs.unwrapped.get_attr("mark"),
            lambda envs: envs.unwrapped.get_attr("received"),
            lambda envs: envs.unwrapped.call("echo", value, x=value),
            lambda envs: envs.unwrapped.np_random_seed,
        ):
            results = [call(envs) for envs in self.both]
            assert_same(results[1], results[0], "access")
