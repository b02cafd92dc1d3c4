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
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.backends.backend import Answers, Backend, EnvCall, Taken, WorkerInfo
from vecenv.backends.host.env_access import ENV_CALLS, copy_if_possible, is_env
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport, make_report
from vecenv.backends.host.failure import capture
from vecenv.backends.host.row_writer import Extra, Final, copy_containers, fit_tree, is_exact
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.errors import ClosedError, EnvContractError, ObservationError
from vecenv.layout import Layout

Infos = list[dict[str, Any]]
FINAL_KEYS = [f"{mask}{key}" for key in ("final_obs", "final_observation", "final_info") for mask in ("", "_")]
DIRECT = frozenset({"get_env_attr", "has_attr", "set_env_attr", "call", "wrapper_classes"})


class NativeBackend(Backend):
    """Backend for envs that a library's object in this process steps together. `name`: the object's name in errors."""

    takes_objects, hosts_here, seeds_autoresets = False, True, False
    resets_with: tuple[str, ...] = ("seed", "options")

    def __init__(self, env_num: int, name: str, num_workers: int = 1) -> None:
        super().__init__()
        self.env_num, self.name, self.num_workers = env_num, name, num_workers
        self.busy_seconds = 0.0

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(range(self.env_num), None, self.busy_seconds)]

    def reports(self, obs: Any, action: Any, metadata: Mapping[str, Any], spec: Any) -> list[EnvReport]:
        # Hide the library's autoreset mode, because `BaseVectorEnv` never resets an env by itself.
        metadata = {key: value for key, value in metadata.items() if key != "autoreset_mode"}
        parts = obs, action, metadata, spec, None
        known = zip(ATTRIBUTES, make_report(parts), strict=False)
        self.known = {name: value for name, value in known if value is not None}
        self.some_action = copy.deepcopy(action).sample()
        return [make_report(parts) for _ in range(self.env_num)]

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, self.env_num)
        self.answers = Answers(self.arena)
        return self.arena

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        for i, payload in payloads.items():
            if not isinstance(payload, Mapping):
                raise ValueError(
                    f"the action for env {i} is {payload!r}, which does not fit {self.known['action_space']}"
                )
            given = {name for name, value in payload.items() if name != "options" or value}
            if unknown := sorted(given.difference(self.resets_with)):
                raise TypeError(f"the reset of {self.name} takes only {' and '.join(self.resets_with)}, got {unknown}")
        return payloads

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self.answers.take(ids)

    def resynchronise(self, deadline: float) -> None:
        self.take(None)

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        try:
            if op == "get_env_attr" and args[0][0] in self.known:
                return EnvCall(ids, op, [self.known[args[0][0]]] * len(ids))
            return EnvCall(ids, op, self.called(ids, op, args))
        except Exception as error:
            return EnvCall(ids, op, [capture(error, i, op, local=True) for i in ids])

    def called(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        if op == "wrapper_classes":
            return [[]] * len(ids)
        if op == "has_attr":
            try:
                return [args[0][0] in self.known or bool(self.called(ids, "get_env_attr", args))] * len(ids)
            except AttributeError:
                return [False] * len(ids)
        raise NotImplementedError(f"{self.name} has no {op} of single envs")


class GymnasiumBackend(NativeBackend):
    """Backend that owns the VectorEnv `envs`. `native`: a `NativeClass` of `envs`."""

    def __init__(self, envs: Any, mode: AutoresetMode, native: Any) -> None:
        super().__init__(envs.num_envs, type(envs).__name__)
        self.mode, self.native = mode, native
        self.autoresets = native.resets_by_id or mode is AutoresetMode.SAME_STEP
        self.was_reset = False
        self.over = np.zeros(self.env_num, np.bool_)
        self.begun: tuple[Any, Infos] | None = None
        """In SAME_STEP mode: first observations and infos of the next episodes, for the envs in the mask `over`."""
        self.envs: Any = envs
        self.closed_by_caller = False

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        envs = self.envs
        return self.reports(envs.single_observation_space, envs.single_action_space, envs.metadata, envs.spec)

    def bind(self, layout: Layout) -> Arena:
        self._row = layout.obs
        return super().bind(layout)

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        super().encode(ids, ops, actions, payloads)
        steps, resets = _steps_and_resets(np.asarray(ids), ops)
        if len(steps):
            self._check_step(steps, resets, payloads)
        else:
            self._check_reset(resets, payloads)
        return payloads

    def _check_step(self, steps: np.ndarray, resets: np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = resets.tolist()
        together = f"{self.name} steps its {self.env_num} envs together"
        if len(steps) + len(resets) < self.env_num:
            raise ValueError(f"{together}: pass an action for each of them, got actions for {steps.tolist()} only")
        if self.mode is not AutoresetMode.NEXT_STEP:
            if asked:
                raise ValueError(f"{together}, and cannot reset some of them instead: call reset({asked}), then step")
        elif asked != (over := np.flatnonzero(self.over).tolist()):
            raise ValueError(
                f"{together}, and a step must reset exactly the envs whose episode ended in the previous step: {over}, "
                f"got reset={asked}"
            )
        elif payloads:
            raise ValueError(f"{together}, and a step cannot reset with seed or options, got them for envs {asked}")

    def _check_reset(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = ids.tolist()
        if len(ids) == self.env_num or self._has_begun(ids, payloads):
            return
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
        asked = np.arange(self.env_num) if ids is None else ids
        steps, resets = _steps_and_resets(asked, ops)
        self.arena.status[asked] = ops  # so that a call from another thread finds these envs busy
        if len(steps):
            self._step(resets, autoreset=bool(np.any(np.asarray(ops) & opcodes.AUTORESET)))
        else:
            infos = self._begin(resets, payloads)
            self.arena.reward[resets] = 0.0
            self.arena.terminated[resets] = self.arena.truncated[resets] = False
            self._answer(resets.tolist(), infos, None, {})
        self.busy_seconds += perf_counter() - begin

    def _step(self, resets: np.ndarray, autoreset: bool) -> None:
        """Step all envs. In NEXT_STEP mode, the step resets the envs `resets`, because their episodes are over."""
        arena = self.arena
        actions = nest.map(np.copy, arena.action)  # because an env may keep its action
        for i in resets.tolist():
            nest.put(actions, i, self.some_action)
        obs, reward, terminated, truncated, found = self.envs.step(actions)
        nest.put(arena.obs, ..., self._fitted(obs, (self.env_num,)))
        rewards, ends = np.array(reward, np.float64), dict[str, Any]()
        if self.mode is AutoresetMode.SAME_STEP:
            found, ends = _without_ends(found)
        infos = nest.split_infos(found, self.env_num)
        rewards[resets] = 0.0
        arena.reward[...] = rewards if rewards.ndim == 1 else 0.0
        arena.terminated[...], arena.truncated[...] = terminated, truncated
        arena.terminated[resets] = arena.truncated[resets] = False
        self.over, self.begun = arena.terminated | arena.truncated, None
        ended, finals, last_obs = np.flatnonzero(self.over), dict[int, Final](), dict[int, Any]()
        self.native.check_autoreset(ended if self.mode is AutoresetMode.SAME_STEP else resets, found)
        if len(ended) and self.mode is AutoresetMode.SAME_STEP:
            self.begun = self._split_ends(ended, infos, nest.split_infos(ends, self.env_num), last_obs)
        if len(ended) and autoreset:
            nest.put(arena.final, ended, nest.take(arena.obs, ended))
            first_infos = self._begin(ended, {})
            for i in ended.tolist():
                infos[i], finals[i] = first_infos[i], Final(None, copy_containers(infos[i]), last_obs.get(i))
        self._answer(range(self.env_num), infos, rewards if rewards.ndim > 1 else None, finals)

    def _split_ends(self, ended: np.ndarray, infos: Infos, ends: Infos, last_obs: dict[int, Any]) -> tuple[Any, Infos]:
        """In SAME_STEP mode, move last observations of the envs `ended` to their rows, and last infos to `infos`.

        `last_obs` gets last observations that lose types in a row (see `is_exact`). Return first observations and infos
        of the next episodes.
        """
        obs, first_infos = nest.map(np.copy, self.arena.obs), list(infos)
        for i in ended.tolist():
            key = "final_obs" if "final_obs" in ends[i] else "final_observation"  # gymnasium 0.29 has the second key
            if key not in ends[i]:
                raise EnvContractError(
                    f"env {i}: {self.name} ended an episode in SAME_STEP mode, but its infos have no final_obs"
                )
            last = ends[i][key]
            nest.put(self.arena.obs, i, self._fitted(last))
            if not is_exact(last, self._row, self._row):
                last_obs[i] = copy_if_possible(last)
            # Without a final_info, as in AtariVectorEnv, the first info of the next episode is also the last info.
            infos[i] = first_infos[i] if (last_info := ends[i].get("final_info")) is None else last_info
        return obs, first_infos

    def _has_begun(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> bool:
        asks = any(payload.get("seed") is not None or payload.get("options") for payload in payloads.values())
        return self.begun is not None and not asks and bool(self.over[ids].all())

    def _begin(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> Infos:
        if self.begun is not None and self._has_begun(ids, payloads):
            obs, infos = self.begun
        else:
            obs, found = self.envs.reset(**self._reset_arguments(ids, payloads))
            self.native.record_reset(found)
            obs, self.was_reset = self._fitted(obs, (self.env_num,)), True
            infos = nest.split_infos(found, self.env_num)
        nest.put(self.arena.obs, ids, nest.take(obs, ids))
        self.over[ids] = False
        return infos

    def _reset_arguments(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> dict[str, Any]:
        given = list(payloads.values())
        options, arguments = dict((given[0].get("options") if given else None) or {}), dict[str, Any]()
        if len(ids) < self.env_num:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            options["reset_mask"] = mask
        seeds = [payloads.get(i, {}).get("seed") for i in range(self.env_num)]
        if any(seed is not None for seed in seeds):
            arguments["seed"] = self.native.seed_argument(seeds, ids.tolist())
        return arguments | ({"options": options} if options else {})

    def _fitted(self, obs: Any, rows: tuple[int, ...] = ()) -> Any:
        try:
            return fit_tree(obs, self._row, rows)
        except ObservationError as error:
            raise ObservationError(
                f"{self.name} returned an observation that does not fit its space: {error}"
            ) from error

    def _answer(self, ids: Sequence[int], infos: Infos, rewards: np.ndarray | None, finals: dict[int, Final]) -> None:
        self.arena.status[ids] = opcodes.DONE
        for i in ids:
            if infos[i] or rewards is not None or i in finals:
                vector = None if rewards is None else rewards[i]
                self.answers.put(i, Extra(copy_containers(infos[i]), None, vector, None, finals.get(i)))

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        return 0.0

    def called(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return a value per env.

        Raises AttributeError for a missing method or attribute, ValueError if `op` needs all envs or frames, and
        NotImplementedError for other operations.
        """
        n, (name, *given) = self.env_num, args[0] or (None,)
        envs = self.envs if hasattr(self.envs, "call") else self.envs.unwrapped
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
        envs: Any = getattr(self.envs.unwrapped, "envs", None)
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


def library_makes_env() -> None:
    """Placeholder for env_fns, because the library has made the envs."""


def _steps_and_resets(asked: np.ndarray, ops: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    plain = np.broadcast_to(np.asarray(ops) & opcodes.PLAIN, asked.shape)
    resets = (plain == opcodes.RESET) | (plain == opcodes.RESET_KWARGS)
    return np.sort(asked[~resets]), np.sort(asked[resets])


def _without_ends(infos: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Split the infos of a step in SAME_STEP mode into infos, and last observations and infos with their masks.

    Some classes return last observations of all envs in each step, and no mask.
    """
    ends = {key: infos[key] for key in FINAL_KEYS if key in infos}
    return {key: value for key, value in infos.items() if key not in ends}, ends
