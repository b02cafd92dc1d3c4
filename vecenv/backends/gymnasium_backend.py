"""`GymnasiumBackend`: steps and resets envs of a `gymnasium.vector.VectorEnv`, which steps all its envs together.

    mode        last obs and info of an episode       reset of the env
    DISABLED    result of step                        envs.reset(options={"reset_mask": ...})
    SAME_STEP   final_obs and final_info              in the same step; the result of step begins the next episode
    NEXT_STEP   result of step                        as DISABLED, or in the next step, which ignores its action

In each mode, the caller gets the first and last observation of each episode once. A row without a step
has reward 0 and flags False.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv

from vecenv import nest
from vecenv.backends.backend import Taken
from vecenv.backends.columns import choose, like, zeros_like
from vecenv.backends.host.env_access import ENV_CALLS, is_env
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.info_batch import Finals, RoundInfos
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, ColumnArena
from vecenv.backends.native_backend import NativeBackend
from vecenv.backends.round_reader import RoundReader, without_ends
from vecenv.errors import ClosedError, not_reset
from vecenv.layout import Layout

NO_IDS = np.zeros(0, np.int64)
OF_VECTOR_ENV = ("single_observation_space", "single_action_space", "metadata", "spec", "render_mode")
DIRECT = frozenset({"get_env_attr", "has_attr", "set_env_attr", "call", "wrapper_classes"})


class GymnasiumBackend(NativeBackend):
    """Backend that owns the VectorEnv `envs`. `native`: a `NativeClass` of `envs`.

    A round keeps the columns of `envs`: arrays or tensors (n, ...), and infos in the form of `columns.py`. With
    `tensors`, tensors stay on their device. Without `copy`, results may share memory with `envs`. `has_final_obs`:
    False if `envs` loses last observations in SAME_STEP mode.
    """

    def __init__(
        self, envs: Any, mode: AutoresetMode, native: Any, *, tensors: bool, copy: bool, has_final_obs: bool
    ) -> None:
        super().__init__(of_vector_env(envs, "num_envs"), type(envs).__name__)
        self.mode, self.native = mode, native
        self.autoresets = native.resets_by_id or mode is AutoresetMode.SAME_STEP
        self.takes_tensors, self._copies, self._has_final_obs = tensors, copy, has_final_obs
        self.was_reset = False
        self.over: Any = np.ones(self.env_num, np.bool_)
        """Mask (n,) of the envs that need a reset, on the device of the flags. `None` if no env needs a reset."""
        self.begun: tuple[Any, dict[Any, Any]] | None = None
        """In SAME_STEP mode: first observations and infos of the next episodes, for the envs in the mask `over`."""
        self._infos: dict[Any, Any] = {}
        """Columns of the infos of this round."""
        self._finals: Finals | None = None
        self._rows_to_reset: np.ndarray | None = None
        """Result of `_resets` for the round that `encode` has checked."""
        self.envs: Any = envs
        self.closed_by_caller = False
        self._sends_tensors = tensors or not isinstance(envs, VectorEnv)

    @property
    def _inner(self) -> Any:
        return getattr(self.envs, "unwrapped", self.envs)

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        obs, action, metadata, spec, render_mode = (of_vector_env(self.envs, name) for name in OF_VECTOR_ENV)
        reports = self.reports(obs, action, metadata or {}, spec)
        self.known["render_mode"] = render_mode
        return reports

    def bind(self, layout: Layout) -> Arena:
        self.arena = ColumnArena.build(layout, self.env_num)
        self._reader = RoundReader(self.name, self.env_num, layout.obs, self.takes_tensors, self._copies)
        self._reader.keeps_form = not self.native.collects_envs
        return self.arena

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        super().encode(ids, ops, actions, payloads)
        resets = self._rows_to_reset = _resets(ids, ops)
        if resets is None:
            self._check_reset(ids, payloads)
        elif len(resets) or len(ids) < self.env_num or self.over is not None:
            self._check_step(ids, resets, payloads)
        return payloads

    def _check_step(self, ids: Sequence[int], resets: np.ndarray, payloads: Mapping[int, Any]) -> None:
        chosen, over = self._mask(resets), self._mask(()) if self.over is None else nest.as_array(self.over)
        is_same = chosen.tobytes() == over.tobytes()
        if is_same and not payloads and len(ids) == self.env_num and self.mode is AutoresetMode.NEXT_STEP:
            return  # fast
        if (wrong := over & ~chosen).any():
            raise not_reset(int(wrong.argmax()))
        asked, together = resets.tolist(), f"{self.name} steps its {self.env_num} envs together"
        if len(ids) < self.env_num:
            steps = sorted({*ids} - {*asked})
            raise ValueError(f"{together}: pass an action for each of them, got actions for {steps} only")
        if self.mode is not AutoresetMode.NEXT_STEP:
            if asked:
                raise ValueError(f"{together}, and cannot reset some of them instead: call reset({asked}), then step")
        elif not is_same:
            raise ValueError(
                f"{together}, and a step must reset exactly the envs whose episode ended in the previous step: "
                f"{over.nonzero()[0].tolist()}, got reset={asked}"
            )
        elif payloads:
            raise ValueError(f"{together}, and a step cannot reset with seed or options, got them for envs {asked}")

    def _mask(self, ids: Any) -> np.ndarray:
        mask = np.zeros(self.env_num, np.bool_)
        mask[ids if len(ids) else slice(0)] = True
        return mask

    def _check_reset(self, ids: Sequence[int], payloads: Mapping[int, Any]) -> None:
        if len(ids) == self.env_num or self._has_begun(ids, payloads):
            return
        asked = sorted(ids)
        if not self.native.resets_by_id:
            instead = "pass no ids"
            if self.mode is AutoresetMode.NEXT_STEP:
                instead += ", or let the next step reset the envs whose episode is over: step(action, reset=ids)"
            raise ValueError(
                f"{self.name} is not known to reset only some envs (by options['reset_mask']), got reset({asked}): "
                f"{instead}; if it does, pass resets_by_id=True to from_gymnasium"
            )
        if not self.was_reset:
            raise RuntimeError(f"the first reset of {self.name} must be of all envs, got reset({asked})")

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        begin = perf_counter()
        arena, resets = self.arena, self._rows_to_reset
        rows: Any = ... if ids is None else ids
        arena.status[rows] = opcodes.STEP  # so that a call from another thread finds these envs busy
        self._finals = None
        if resets is not None:
            flags = ops & np.uint8(opcodes.AUTORESET)
            self._infos = self._step(resets, autoreset=bool(flags if isinstance(ops, int) else flags.any()))
        else:
            self._infos = self._begin(np.arange(self.env_num) if ids is None else np.sort(ids), payloads)
            arena.reward, arena.terminated = zeros_like(arena.reward), zeros_like(arena.terminated)
            arena.truncated = arena.terminated
        arena.status[rows] = opcodes.DONE
        self.busy_seconds += perf_counter() - begin

    def _step(self, resets: np.ndarray, autoreset: bool) -> dict[Any, Any]:
        """Step all envs, and return the columns of their infos.

        In NEXT_STEP mode, the step resets the envs `resets`, because their episodes are over.
        """
        arena, reader = self.arena, self._reader
        reader.steps, reader.is_reset, self.begun = reader.steps + 1, False, None
        obs, reward, terminated, truncated, found = self.envs.step(self._actions(resets))
        arena.obs, arena.reward = reader.obs(obs), reader.reward(reward)
        arena.terminated, arena.truncated = reader.flag("terminated", terminated), reader.flag("truncated", truncated)
        if len(resets) and self._copies and not self.takes_tensors:
            arena.reward[resets], arena.terminated[resets], arena.truncated[resets] = 0, False, False
        elif len(resets):
            steps = like(arena.terminated, ~self._mask(resets))
            arena.reward = choose(steps, arena.reward, zeros_like(arena.reward))
            arena.terminated, arena.truncated = arena.terminated & steps, arena.truncated & steps
        same_step = self.mode is AutoresetMode.SAME_STEP
        found, ends = without_ends(found) if same_step else (found, {})
        infos = reader.columns(found)
        over = arena.terminated | arena.truncated
        if self.native.checks_autoreset:
            self.native.check_autoreset(np.flatnonzero(over) if same_step else resets, found)
        if not (autoreset and same_step and (ends or not self._has_final_obs) and self.takes_tensors):
            over = over if has_any(over) else None  # waits for the device of tensors
        self.over = over
        if over is None:
            return infos
        if same_step:
            return self._end_in_step(infos, ends, over, autoreset)
        return self._reset_ended(infos, over) if autoreset else infos

    def _actions(self, resets: np.ndarray) -> Any:
        """Return the actions as the VectorEnv's own, because it may keep them. Tensors are passed on."""
        actions = nest.map(own_array, self.arena.action)
        if self._sends_tensors:
            return nest.map(self._reader.as_tensor, actions)
        if len(resets):
            nest.put(actions, resets, self.some_action)
        return actions

    def _end_in_step(self, infos: dict[Any, Any], ends: Any, over: Any, autoreset: bool) -> dict[Any, Any]:
        """Handle ends in SAME_STEP mode: the envs `over` are in their next episodes already."""
        arena, reader = self.arena, self._reader
        last, returned = reader.last_obs(ends, over) if self._has_final_obs else (None, {})
        last_infos = reader.last_infos(ends, infos, over)
        if autoreset:
            self.over, self._finals = None, Finals(last, last_infos, over, returned)
            return infos
        self.begun = arena.obs, infos
        infos = infos if last_infos is infos else reader.merged(infos, last_infos, over)
        if last is None:
            return {**infos, "no_final_obs": over, "_no_final_obs": over}
        arena.obs = choose(over, last, arena.obs)
        return infos

    def _reset_ended(self, infos: dict[Any, Any], over: Any) -> dict[Any, Any]:
        arena, last = self.arena, self.arena.obs
        first_infos = self._begin(np.flatnonzero(nest.as_array(over)), {})
        arena.obs = choose(over, arena.obs, last)
        self._finals = Finals(last, infos, over)
        return self._reader.merged(infos, first_infos, over)

    def _has_begun(self, ids: Any, payloads: Mapping[int, Any]) -> bool:
        asks = any(payload.get("seed") is not None or payload.get("options") for payload in payloads.values())
        has_begun = self.begun is not None and self.over is not None and not asks
        return has_begun and bool(nest.as_array(self.over)[ids].all())

    def _begin(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> dict[Any, Any]:
        """Begin episodes of the envs `ids`. Return the columns of their infos. Other rows of the arena may change."""
        arena, is_all = self.arena, len(ids) == self.env_num
        if self.begun is not None and self._has_begun(ids, payloads):
            obs, infos = self.begun
            arena.obs = obs if is_all else choose(like(self.over, self._mask(ids)), obs, arena.obs)
        else:
            self._reader.is_reset = True
            obs, found = self.envs.reset(**self._reset_arguments(ids, payloads))
            self.native.record_reset(found)
            arena.obs, infos, self.was_reset = self._reader.obs(obs), self._reader.columns(found), True
        if self.over is not None:
            over = self.over & like(self.over, ~self._mask(ids))
            self.over = None if is_all or not has_any(over) else over
        return infos

    def _reset_arguments(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> dict[str, Any]:
        given = list(payloads.values())
        options, arguments = dict((given[0].get("options") if given else None) or {}), dict[str, Any]()
        if len(ids) < self.env_num:
            options["reset_mask"] = self._mask(ids)
        seeds = [payloads.get(i, {}).get("seed") for i in range(self.env_num)]
        if any(seed is not None for seed in seeds):
            arguments["seed"] = self.native.seed_argument(seeds, ids.tolist())
        return arguments | ({"options": options} if options else {})

    def take(self, ids: Sequence[int] | None) -> Taken:
        self.arena.status[... if ids is None else list(ids)] = opcodes.IDLE
        asked = range(self.env_num) if ids is None else ids
        return Taken({}, (RoundInfos(self._infos, self.env_num, asked, self._finals, self.takes_tensors),))

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        return 0.0

    def called(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return a value per env.

        Raises AttributeError for a missing method or attribute, ValueError if `op` needs all envs or frames, and
        NotImplementedError for other operations.
        """
        n, (name, *given) = self.env_num, args[0] or (None,)
        envs = self.envs if hasattr(self.envs, "call") else self._inner
        if op == "seed":  # the next reset seeds the envs
            return [True] * len(ids)
        if op in DIRECT and (own := self.own_envs) is not None:
            return [ENV_CALLS[op](own[i], *each) for i, each in zip(ids, args, strict=True)]
        if op == "get_env_attr":
            values = envs.get_attr(name) if hasattr(envs, "get_attr") else [getattr(self.envs, name)] * n
        elif op == "render":
            frames = envs.render(**name)
            if frames is None or not len(frames):
                raise ValueError(f"{self.name} renders no frames: make it with render_mode='rgb_array'")
            values = [copy.copy(frames[i * len(frames) // n]) for i in range(n)]  # agents of one game share a frame
        elif op in ("call", "set_env_attr"):
            method = "call" if op == "call" else "set_attr"
            if not hasattr(envs, method):
                raise AttributeError(f"the envs of {self.name} cannot be reached: it has no {method}")
            if len(ids) < n:
                raise ValueError(f"{self.name}.{method} is for all its {n} envs, got {list(ids)}")
            values = envs.call(name, *given[0], **given[1]) if op == "call" else envs.set_attr(name, given * n)
        else:
            return super().called(ids, op, args)
        return [None if values is None else values[i] for i in ids]

    @property
    def own_envs(self) -> Sequence[Any] | None:
        envs: Any = getattr(self._inner, "envs", None)
        is_list = isinstance(envs, (list, tuple)) and len(envs) == self.env_num
        return envs if is_list and all(map(is_env, envs)) else None

    def note_exception(self, error: BaseException) -> None:
        envs = self.envs
        while envs is not None and not hasattr(type(envs), "note_exception"):
            envs = getattr(envs, "env", None)
        if envs is not None:
            envs.note_exception(error)

    def release(self) -> None:
        self.envs = None

    def resynchronise(self, deadline: float) -> None:
        for name in ("step_wait", "reset_wait", "call_wait"):  # of gymnasium's AsyncVectorEnv
            if (wait := getattr(self.envs, name, None)) is not None:
                with contextlib.suppress(NoAsyncCallError):
                    wait(timeout=max(0.0, deadline - time.monotonic()))
        super().resynchronise(deadline)

    def close(self, timeout: float) -> list[str]:
        if not self.closed_by_caller:
            self.note_exception(ClosedError("the vector env was dropped before it was closed"))
        envs, self.envs = self.envs, None
        if envs is not None:
            envs.close()
        return []


def of_vector_env(envs: Any, name: str) -> Any:
    """Return an attribute of `envs`, or of the simulator inside its wrappers (gymnasium.Wrapper forwards none)."""
    return getattr(envs, name, None) if hasattr(envs, name) else getattr(getattr(envs, "unwrapped", envs), name, None)


def own_array(leaf: Any) -> Any:
    return leaf.copy() if leaf.__class__ is np.ndarray else leaf


def has_any(mask: Any) -> bool:
    return bool(np.count_nonzero(mask) if mask.__class__ is np.ndarray else mask.any())


def _resets(ids: Sequence[int], ops: int | np.ndarray) -> np.ndarray | None:
    """Return the sorted ids of the envs to reset in a round with steps, or `None` for a round of resets."""
    if isinstance(ops, int):
        return None if ops in (opcodes.RESET, opcodes.RESET_KWARGS) else NO_IDS
    plain = ops & np.uint8(opcodes.PLAIN)
    resets = ((plain == opcodes.RESET) | (plain == opcodes.RESET_KWARGS)).nonzero()[0]
    if len(resets) == len(ops):
        return None
    return np.sort(np.asarray(ids)[resets])
