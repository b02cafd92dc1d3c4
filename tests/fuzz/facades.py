"""Facades against their originals: gymnasium's SyncVectorEnv and SB3's DummyVecEnv, with the wrappers of both."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import vector as wrappers
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.monitor import Monitor

from tests.fuzz.driver import SMALL, Pair
from tests.fuzz.envs import ACTIONS, AROUND, SPACES, assert_same, draw, make_env, stacked
from tests.support.cases import LocalWorker
from vecenv import (
    AsyncVectorEnv,
    BaseVectorEnv,
    DummyVectorEnv,
    GymnasiumVectorEnv,
    SB3VecEnv,
    ShmemVectorEnv,
    SubprocVectorEnv,
    SyncVectorEnv,
    ThreadVectorEnv,
    VectorEnvWrapper,
    from_gymnasium,
)

N = 3
MODES = ("NextStep", "SameStep", "Disabled")
SPACE, ACTION, ENV = tuple(SPACES), tuple(ACTIONS), tuple(each for each in AROUND if each != "monitor")
FLOATS = ("floats", "doubles", "half")
ARRAYS = tuple(name for name in SPACE if name not in ("text", "sequence", "dict"))
ONE_ARRAY = tuple(name for name in ARRAYS if name != "tuple")
NOT_SCALAR = ("floats", *(name for name in SPACE if name != "scalar"))
"""For wrappers: they pass on batches, which do not tell a scalar from an array without dimensions."""


class Kind(NamedTuple):
    """A way to make our vector env, or a wrapper, and what it takes. The first of each replaces what it cannot take."""

    make: Any
    spaces: Sequence[str] = SPACE
    actions: Sequence[str] = ACTION
    around: Sequence[str] = ENV
    modes: Sequence[str] = MODES


def one_of(name: str, allowed: Sequence[str]) -> str:
    return name if name in allowed else allowed[0]


class Facade(Pair):
    """Common operations of both facades."""

    steps = 20
    kinds: ClassVar[Sequence[str]]
    """Kinds of our vector env that programs draw."""
    wraps: ClassVar[Sequence[str]] = ()
    """Wrappers of all programs, instead of random ones."""
    n: int
    actions: Any

    def batch(self, action: int, form: str) -> Any:
        """Return a batch of actions, as the space says, with wider numbers, or as a list of rows."""
        rng = np.random.default_rng(action)
        rows = [draw(self.actions, rng) for _ in range(self.n)]
        batch = stacked(self.actions, rows)
        if form == "wide" and isinstance(batch, np.ndarray):
            return batch.astype(np.float64 if batch.dtype.kind == "f" else np.int32)
        return rows if form == "rows" and isinstance(batch, np.ndarray) else batch

    def step(self, action: int, form: str = "batch", halves: bool = False) -> None:
        raise NotImplementedError

    def reset(self, seed: Any, at: int | None = None) -> None:
        raise NotImplementedError

    def call(self, envs: Any, name: str, *arguments: Any) -> Any:
        """Call a method of all envs."""
        raise NotImplementedError

    @rule(actions=st.lists(SMALL, min_size=4, max_size=8))
    def step_on(self, actions: list[int]) -> None:
        """Steps, so that episodes end."""
        for action in actions:
            self.step(action)

    @rule(ids=st.sets(st.integers(0, N - 1), min_size=1), action=SMALL)
    def fail(self, ids: set[int], action: int) -> None:
        """Some envs raise in a step. The originals step the envs before them, and vecenv also the envs behind."""
        for envs in self.both:
            self.call(envs, "break_in", sorted(ids))
        self.step(action)
        for envs in self.both:
            envs.unwrapped.reset()  # without the wrappers, which would learn from states that are not equal yet
        states = self.call(self.both[0], "get_state")
        self.call(self.both[1], "set_states", list(states))
        self.reset(action)


GYMNASIUM = {
    "sync": Kind(SyncVectorEnv),
    "shmem": Kind(AsyncVectorEnv),
    "subproc": Kind(partial(AsyncVectorEnv, shared_memory=False)),
    "shmem, one worker": Kind(partial(AsyncVectorEnv, num_workers=1)),
    "threads": Kind(lambda fns, **options: GymnasiumVectorEnv(ThreadVectorEnv(fns), **options)),
    "views": Kind(lambda fns, **options: GymnasiumVectorEnv(DummyVectorEnv(fns, copy=False), **options)),
    "native": Kind(
        lambda fns, **options: GymnasiumVectorEnv(from_gymnasium(gym.vector.SyncVectorEnv(fns, **options)), **options),
        spaces=("image", *ARRAYS),
        actions=("box", "discrete", "multi"),
        around=[each for each in ENV if each not in ("named", "loose")],
    ),
    "wrapper": Kind(
        lambda fns, **options: GymnasiumVectorEnv(VectorEnvWrapper(DummyVectorEnv(fns)), **options), NOT_SCALAR
    ),
    # tianshou's workers do not look for methods below wrappers. Last observations are rows of the batch.
    "own workers": Kind(
        lambda fns, **options: GymnasiumVectorEnv(BaseVectorEnv(fns, LocalWorker), **options),
        ["floats"],
        around=["none"],
    ),
}
NO_SAME_STEP = ("NextStep", "Disabled")
GYMNASIUM_WRAPPERS = {
    "normalize obs": Kind(wrappers.NormalizeObservation, FLOATS, modes=["NextStep"]),
    "normalize reward": Kind(wrappers.NormalizeReward),
    # gymnasium's SyncVectorEnv takes the mask of a reset out of the options before this wrapper reads it.
    "statistics": Kind(wrappers.RecordEpisodeStatistics, modes=["SameStep", "NextStep"]),
    "clip reward": Kind(partial(wrappers.ClipReward, min_reward=-0.5, max_reward=0.5)),
    "flatten": Kind(wrappers.FlattenObservation, ARRAYS, modes=NO_SAME_STEP),
    "clip action": Kind(wrappers.ClipAction, actions=["box"]),
    "dtype": Kind(partial(wrappers.DtypeObservation, dtype=np.float64), FLOATS, modes=NO_SAME_STEP),
    "filter": Kind(partial(wrappers.FilterObservation, filter_keys=["z"]), ["boxes"], modes=NO_SAME_STEP),
    "rescale action": Kind(partial(wrappers.RescaleAction, min_action=-1, max_action=1), actions=["box"]),
    "transform": Kind(
        partial(
            wrappers.VectorizeTransformObservation,
            wrapper=gym.wrappers.TransformObservation,
            func=lambda obs: obs * 2,
            observation_space=None,
        ),
        FLOATS,
        modes=NO_SAME_STEP,
    ),
    "list": Kind(wrappers.DictInfoToList),
}


def without_times(value: Any) -> Any:
    """Return infos without the seconds that an episode took."""
    if isinstance(value, dict):
        return {
            key: {k: v for k, v in part.items() if k not in ("t", "_t")}
            if key in ("episode", "final_info") and isinstance(part, dict) and "episode" not in part
            else without_times(part)
            for key, part in value.items()
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


class Gymnasium(Facade):
    """Our vector envs of gymnasium in each autoreset mode. `over` are the envs whose episode has ended."""

    kinds = tuple(GYMNASIUM)
    modes: ClassVar[Sequence[str]] = MODES

    @initialize(
        n=st.integers(1, N),
        kind=SMALL,
        mode=SMALL,
        copies=st.booleans(),
        space=st.sampled_from(SPACE),
        actions=st.sampled_from(ACTION),
        rewards=st.sampled_from(["float", "int", "float32"]),
        around=st.sampled_from(ENV),
        wrapped=st.lists(st.sampled_from(list(GYMNASIUM_WRAPPERS)), max_size=2, unique=True),
    )
    def make(
        self, n: int, kind: int, mode: int, copies: bool, space: str, actions: str, wrapped: list[str], **given: Any
    ) -> None:
        name = self.kinds[kind % len(self.kinds)]
        ours, self.mode = GYMNASIUM[name], self.modes[mode % len(self.modes)]
        for each in self.wraps:
            wrapped, given["around"] = [*self.wraps], "none"
            space = one_of(space, GYMNASIUM_WRAPPERS[each].spaces)
            actions = one_of(actions, GYMNASIUM_WRAPPERS[each].actions)
        space, actions = one_of(space, ours.spaces), one_of(actions, ours.actions)
        given["around"] = one_of(given["around"], ours.around)
        self.n, self.actions, self.casts = n, ACTIONS[actions], name == "native"
        fns = [partial(make_env, i, space=space, actions=actions, **given) for i in range(n)]
        options = {"autoreset_mode": self.mode, "copy": copies or bool(wrapped)}
        self.both = [gym.vector.SyncVectorEnv(fns, **options), ours.make(fns, **options)]
        self.owns = copies and not wrapped
        for each in sorted(wrapped, key=lambda each: each == "list"):  # no wrapper takes lists of infos
            of_space, of_actions = space in GYMNASIUM_WRAPPERS[each].spaces, actions in GYMNASIUM_WRAPPERS[each].actions
            has_bounds = each != "rescale action" or "clip action" not in wrapped
            if of_space and of_actions and has_bounds and self.mode in GYMNASIUM_WRAPPERS[each].modes:
                self.both = [GYMNASIUM_WRAPPERS[each].make(envs) for envs in self.both]
        self.over, self.takes_masks = np.zeros(n, bool), "statistics" not in wrapped
        for each in (
            "num_envs",
            "observation_space",
            "single_observation_space",
            "action_space",
            "single_action_space",
        ):
            assert getattr(self.both[1], each) == getattr(self.both[0], each), each
        self.reset(3)

    def both_do(self, call: Any) -> Any:
        return self.compare(call, plain=lambda result: without_times(list(result)))

    def call(self, envs: Any, name: str, *arguments: Any) -> Any:
        return envs.unwrapped.call(name, *arguments)

    @rule(
        seed=st.none() | SMALL | st.lists(st.none() | SMALL, min_size=N, max_size=N),
        at=st.none() | SMALL,
        mask=st.none() | st.lists(st.booleans(), min_size=N, max_size=N),
        halves=st.booleans(),
    )
    def reset(self, seed: Any, at: int | None = None, mask: Any = None, halves: bool = False) -> None:
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

        self.both_do(reset)

    @rule(action=SMALL, form=st.sampled_from(["batch", "batch", "rows", "wide"]), halves=st.booleans())
    def step(self, action: int, form: str = "batch", halves: bool = False) -> None:
        if self.mode == "Disabled" and self.over.any():
            mask = self.over.copy()
            self.both_do(lambda envs: envs.reset(options={"reset_mask": mask.copy()}))
            self.over[:] = False
            return
        batch = self.batch(action, "batch" if self.casts else form)

        def step(envs: Any) -> Any:
            if halves and isinstance(envs, GymnasiumVectorEnv):
                envs.step_async(batch)
                return envs.step_wait()
            return envs.step(batch)

        if (result := self.both_do(step)) is not None:
            self.over = result[2] | result[3]

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
            assert_same(call(self.both[1]), call(self.both[0]), "access")


class ResetsAlone(VectorEnvWrapper):
    """Wrapper whose envs cannot be reset within a step, because it overrides `reset`."""

    def reset(self, id: Any = None, **kwargs: Any) -> Any:
        return super().reset(id, **kwargs)


WITH_MONITOR = ("none", "time limit", "named", "loose", "monitor")
IN_WORKERS = WITH_MONITOR[:-1]
"""Without SB3's Monitor, because each worker would import torch."""
SB3 = {
    "dummy": Kind(DummyVectorEnv, around=WITH_MONITOR),
    "views": Kind(partial(DummyVectorEnv, copy=False), around=WITH_MONITOR),
    "shmem": Kind(ShmemVectorEnv, around=IN_WORKERS),
    "shmem, one worker": Kind(partial(ShmemVectorEnv, num_workers=1), around=IN_WORKERS),
    "subproc": Kind(partial(SubprocVectorEnv, num_workers=1), around=IN_WORKERS),
    "thread": Kind(ThreadVectorEnv, around=WITH_MONITOR),
    "wrapper": Kind(lambda fns: VectorEnvWrapper(DummyVectorEnv(fns)), NOT_SCALAR, around=WITH_MONITOR),
    "async": Kind(AsyncVectorEnv, around=IN_WORKERS),
    "sync": Kind(partial(SyncVectorEnv, autoreset_mode="Disabled"), around=WITH_MONITOR),
    "own workers": Kind(lambda fns: BaseVectorEnv(fns, LocalWorker), ["floats"], around=["none"]),
    "own reset": Kind(
        lambda fns: ResetsAlone(DummyVectorEnv(fns, copy=False)),
        ["floats"],
        around=("time limit", "none", "named", "monitor"),
    ),
}
SB3_WRAPPERS = {
    "normalize": Kind(partial(sb3.VecNormalize, clip_obs=3.0), FLOATS),
    "normalize part": Kind(partial(sb3.VecNormalize, norm_obs_keys=["z"]), ["boxes"]),
    "normalize reward": Kind(partial(sb3.VecNormalize, norm_obs=False)),
    "monitor": Kind(sb3.VecMonitor),
    "stack": Kind(partial(sb3.VecFrameStack, n_stack=2), (*FLOATS, "image")),
    "nan": Kind(sb3.VecCheckNan, (*FLOATS, "discrete")),
    "transpose": Kind(sb3.VecTransposeImage, ["image"]),
    "extract": Kind(partial(sb3.VecExtractDictObs, key="z"), ["boxes"]),
}


class StableBaselines(Facade):
    """`SB3VecEnv` around vector envs of all kinds."""

    kinds = tuple(SB3)

    @initialize(
        n=st.integers(1, N),
        kind=SMALL,
        space=st.sampled_from(ONE_ARRAY),
        actions=st.sampled_from(["discrete", "box", "scalar", "multi"]),
        rewards=st.sampled_from(["float", "int", "float32"]),
        around=st.sampled_from(WITH_MONITOR),
        wrapped=st.lists(st.sampled_from(list(SB3_WRAPPERS)), max_size=2, unique=True),
    )
    def make(self, n: int, kind: int, space: str, actions: str, around: str, wrapped: list[str], rewards: str) -> None:
        ours = SB3[self.kinds[kind % len(self.kinds)]]
        if self.wraps:
            wrapped, space = [*self.wraps], SB3_WRAPPERS[self.wraps[0]].spaces[0]
        space, around = one_of(space, ours.spaces), one_of(around, ours.around)
        self.n, self.actions = n, ACTIONS[actions]
        fns = [partial(make_env, i, around, space=space, actions=actions, rewards=rewards) for i in range(n)]
        self.both = [sb3.DummyVecEnv(fns), SB3VecEnv(ours.make(fns))]
        self.wrapped = [name for name in wrapped if space in SB3_WRAPPERS[name].spaces]
        self.wrapped = ["extract"] if "extract" in self.wrapped else self.wrapped
        # SB3 cannot tell where the channels of a stack of pictures are.
        self.wrapped.sort(key=lambda name: name != "transpose")
        for name in self.wrapped:
            self.both = [SB3_WRAPPERS[name].make(envs) for envs in self.both]
        self.owns = not self.wrapped  # SB3's wrappers write into results
        for name in ("num_envs", "observation_space", "action_space", "render_mode", "metadata"):
            assert getattr(self.both[1], name) == getattr(self.both[0], name), name
        self.reset(3)

    def call(self, envs: Any, name: str, *arguments: Any) -> Any:
        return envs.env_method(name, *arguments)

    @rule(seed=st.none() | SMALL, at=st.none() | SMALL)
    def reset(self, seed: Any, at: int | None = None) -> None:
        if seed is not None:
            self.compare(lambda envs: envs.seed(seed), "seeds", keep=False)
        if at is not None:
            for envs in self.both:
                envs.set_options([{"at": at + i} for i in range(self.n)] if at % 2 else {"at": at})
        self.compare(lambda envs: [envs.reset()], "reset")
        self.compare(lambda envs: envs.reset_infos, "reset_infos", keep=False)

    @rule(action=SMALL, form=st.sampled_from(["batch", "wide"]), halves=st.booleans())
    def step(self, action: int, form: str = "batch", halves: bool = False) -> None:
        batch = self.batch(action, form)

        def step(envs: Any) -> Any:
            if halves:
                envs.step_async(batch)
                return envs.step_wait()
            return envs.step(batch)

        if self.compare(step, "step", lambda result: [*result[:3], without_times(result[3])]) is None:
            return
        self.compare(lambda envs: envs.reset_infos, "reset_infos", keep=False)
        if all(hasattr(envs, "get_original_reward") for envs in self.both):
            self.compare(lambda envs: [envs.get_original_reward()], "original reward", keep=False)

    @rule(value=SMALL, indices=st.none() | st.integers(0, N - 1) | st.lists(st.integers(0, N - 1)))
    def access(self, value: int, indices: Any) -> None:
        if isinstance(indices, list):
            indices = [i - self.n * (value % 2) for i in indices if i < self.n]
            indices = (list, tuple, np.array)[value % 3](indices) if indices else indices
        elif indices is not None:
            indices %= self.n
        for envs in self.both:
            envs.set_attr("mark_of_caller", value, indices)
            envs.env_method("set_mark", value, indices=indices)
        for call in (
            *(lambda envs, name=name: envs.get_attr(name, indices) for name in ("mark", "received", "t")),
            lambda envs: ["mark_of_caller" in each for each in envs.get_attr("__dict__")],
            lambda envs: envs.env_method("echo", value, x=1, indices=indices),
            lambda envs: envs.env_is_wrapped(Monitor, indices),
            lambda envs: [envs.has_attr(name) for name in ("mark", "nothing")],
        ):
            assert_same(call(self.both[1]), call(self.both[0]), "access")

    @rule(training=st.booleans())
    def swap_statistics(self, training: bool) -> None:
        """Statistics of VecNormalize survive a pickle, and can be frozen."""
        if self.wrapped and self.wrapped[-1].startswith("normalize"):
            for k, envs in enumerate(self.both):
                state, inner = pickle.dumps(envs), envs.venv
                self.both[k] = pickle.loads(state)
                self.both[k].set_venv(inner)
                self.both[k].training = training
            self.compare(lambda envs: [envs.old_reward], "old reward", keep=False)
