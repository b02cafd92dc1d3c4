"""GymnasiumBackend: carries rounds to a `gymnasium.vector.VectorEnv`, which steps all its envs together.

    a round of steps --> envs.step(actions)

    mode        row of an env whose episode ends      what its reset is
    DISABLED    what step returned                    envs.reset(options={"reset_mask": ...})
    SAME_STEP   final_obs and final_info              what step returned: the next episode has begun
    NEXT_STEP   what step returned                    the same mask; or the next step of the others, for which its
                                                      action is dropped

So the caller gets each last and each first observation once, and never a step that was a reset.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv import nest
from vecenv.backends.base import Answered, Answers, Backend, Taken, WorkerInfo
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport, own_report
from vecenv.backends.host.failure import capture
from vecenv.backends.host.row_writer import Extra, Final, cast_exactly, own_containers
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.envs.pools.gymnasium_calls import GymnasiumCalls
from vecenv.envs.pools.whole_rounds import WholeRounds, steps_and_resets
from vecenv.errors import ClosedError, EnvContractError, ObservationError
from vecenv.facades.to_gymnasium.vector_infos import split_infos

Infos = list[dict[str, Any]]
Finals = dict[int, Final]


class GymnasiumBackend(Backend):
    """Drives `envs`, which nothing else may use from now on.

    `resets_by_id`: whether its `reset` takes `options["reset_mask"]`, and a list with one seed an env.
    """

    takes_objects = False

    def __init__(self, envs: Any, mode: AutoresetMode, resets_by_id: bool) -> None:
        super().__init__()
        self.env_num: int = envs.num_envs
        self.num_workers = 1
        self.mode, self.resets_by_id = mode, resets_by_id
        self.autoresets = resets_by_id or mode is AutoresetMode.SAME_STEP
        self.was_reset = False
        self.over = np.zeros(self.env_num, np.bool_)
        """The envs whose episode ended in the last step, and that were not reset since."""
        self._begun: tuple[Any, Infos] | None = None
        """SAME_STEP: a batch and its infos, of which the rows of those in `over` are the first of the next episodes."""
        self._envs: Any = envs
        self.closed_by_caller = False
        """Whether `close` of the vector env was called; else it was dropped, or the program ends."""
        self._name = type(envs).__name__
        self._busy_seconds = 0.0

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(range(self.env_num), None, self._busy_seconds)]

    def has_begun(self, ids: np.ndarray) -> bool:
        """Whether the next episode of each of these envs has begun in the step that ended the last one."""
        return self._begun is not None and bool(self.over[ids].all())

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        envs = self._envs
        # Its autoreset is not that of the vector env, which has none.
        metadata = {key: value for key, value in envs.metadata.items() if key != "autoreset_mode"}
        parts = envs.single_observation_space, envs.single_action_space, metadata, envs.spec, None
        self.codec = WholeRounds(self, self._name, envs.single_action_space)
        self._calls = GymnasiumCalls(envs, dict(zip(ATTRIBUTES, own_report(parts), strict=False)))
        self._some_action = copy.deepcopy(envs.single_action_space).sample()
        return [own_report(parts) for _ in env_fns]

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, self.env_num)
        self._answers = Answers(self.arena)
        self._layout = layout
        return self.arena

    # Rounds.

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        begin = perf_counter()
        asked = np.arange(self.env_num) if ids is None else ids
        steps, resets = steps_and_resets(asked, ops)
        self.arena.status[asked] = ops  # a call from another thread finds that they are stepping
        try:
            if len(steps):
                self._step(resets, autoreset=bool(np.any(np.asarray(ops) & opcodes.AUTORESET)))
            else:
                self._reset(resets, payloads)
        except BaseException:  # the engine abandons the round, and all its envs have to be reset
            self._answers.take(asked.tolist())
            raise
        self._busy_seconds += perf_counter() - begin

    def _step(self, resets: np.ndarray, autoreset: bool) -> None:
        """A step of all envs, which resets `resets`: their episodes ended in the step before."""
        arena = self.arena
        actions = nest.map(np.copy, arena.action)  # an env may keep its action
        for i in resets.tolist():
            nest.put(actions, i, self._some_action)
        obs, reward, terminated, truncated, found = self._envs.step(actions)
        self._write_obs(obs, slice(None))
        infos, rewards = split_infos(found, self.env_num), np.array(reward, np.float64)
        rewards[resets] = 0.0
        arena.reward[...] = rewards if rewards.ndim == 1 else 0.0
        arena.terminated[...], arena.truncated[...] = terminated, truncated
        arena.terminated[resets] = arena.truncated[resets] = False
        self.over, self._begun = arena.terminated | arena.truncated, None
        finals: Finals = {}
        if self.over.any():
            if self.mode is AutoresetMode.SAME_STEP:
                finals = self._begin_episodes(infos, autoreset)
            elif autoreset:
                finals = self._reset_ended(infos)
        self._answer(range(self.env_num), infos, rewards if rewards.ndim > 1 else None, finals)

    def _begin_episodes(self, infos: Infos, autoreset: bool) -> Finals:
        """SAME_STEP: take the last observations out of the infos. Without `autoreset` they become the rows, and the
        first ones of the next episodes are kept for the resets.
        """
        obs, ends, finals = self.arena.obs, np.flatnonzero(self.over).tolist(), Finals()
        first, first_infos = nest.map(np.copy, obs), list(infos)
        for i in ends:
            info = dict(infos[i])
            if "final_obs" not in info:
                raise EnvContractError(
                    f"env {i}: {self._name} ended an episode in SAME_STEP mode, but its infos have no final_obs"
                )
            last = self._fitted(info.pop("final_obs"), self._layout.obs, ())
            last_info = info.pop("final_info", None)
            # Some VectorEnvs (Atari's) keep no info of the last step apart.
            final = Final(None, own_containers(info if last_info is None else last_info))
            first_infos[i] = info
            if autoreset:
                nest.put(self.arena.final, i, last)
                infos[i], finals[i] = info, final
            else:
                nest.put(obs, i, last)
                infos[i] = dict(final.info)
        if autoreset:
            self.over[:] = False
        else:
            self._begun = first, first_infos
        return finals

    def _reset_ended(self, infos: Infos) -> Finals:
        """Reset the envs whose episodes ended, by their mask, and nothing else."""
        over = self.over.copy()
        nest.put(self.arena.final, over, nest.take(self.arena.obs, over))
        obs, found = self._envs.reset(options={"reset_mask": over.copy()})
        self._write_obs(obs, over)
        first_infos, finals = split_infos(found, self.env_num), Finals()
        for i in np.flatnonzero(over).tolist():
            infos[i], finals[i] = first_infos[i], Final(None, own_containers(infos[i]))
        self.over[:] = False
        return finals

    def _reset(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> None:
        """A round of resets alone."""
        arena = self.arena
        if not payloads and self.has_begun(ids):
            assert self._begun is not None
            obs, infos = self._begun
            nest.put(arena.obs, ids, nest.take(obs, ids))
        else:
            obs, found = self._envs.reset(**self._reset_arguments(ids, payloads))
            infos = split_infos(found, self.env_num)
            self._write_obs(obs, ids)
            self.was_reset = True
        arena.reward[ids] = 0.0
        arena.terminated[ids] = arena.truncated[ids] = self.over[ids] = False
        self._answer(ids.tolist(), infos, None, {})

    def _reset_arguments(self, ids: np.ndarray, payloads: Mapping[int, Any]) -> dict[str, Any]:
        """The arguments of `envs.reset`: the mask, the options, which are the same for all, and the seeds."""
        given = list(payloads.values())
        options, arguments = dict((given[0].get("options") if given else None) or {}), dict[str, Any]()
        if len(ids) < self.env_num:
            mask = np.zeros(self.env_num, np.bool_)
            mask[ids] = True
            options["reset_mask"] = mask
        seeds = [payloads.get(i, {}).get("seed") for i in range(self.env_num)]
        if known := [seed for seed in seeds if seed is not None]:
            # All that an env with one random stream for all its rows takes, and what others make the same seeds of.
            is_one = not self.resets_by_id or seeds == list(range(known[0], known[0] + self.env_num))
            arguments["seed"] = known[0] if is_one else seeds
        return arguments | ({"options": options} if options else {})

    def _write_obs(self, obs: Any, rows: Any) -> None:
        """Write these rows of a batch of all envs into the arena."""
        nest.put(self.arena.obs, rows, nest.take(self._fitted(obs, self._layout.obs, (self.env_num,)), rows))

    def _fitted(self, obs: Any, tree: Any, batch: tuple[int, ...]) -> Any:
        """An observation, or a batch, in the dtypes of its space; ObservationError if a value would change."""
        if isinstance(tree, dict):
            return {key: self._fitted(obs[key], child, batch) for key, child in tree.items()}
        if isinstance(tree, tuple):
            return tuple(self._fitted(part, child, batch) for part, child in zip(obs, tree, strict=True))
        array = np.asarray(obs)
        cast = array if array.dtype == tree.dtype else cast_exactly(array, tree.dtype)
        if cast is None or cast.shape != (*batch, *tree.shape):
            raise ObservationError(
                f"{self._name} returned {tree.path} as {array.dtype.name} {array.shape}, expected {tree.dtype.name} "
                f"{(*batch, *tree.shape)} as its space says"
            )
        return cast

    def _answer(self, ids: Sequence[int], infos: Infos, rewards: np.ndarray | None, finals: Finals) -> None:
        """Note that these envs have answered."""
        self.arena.status[ids] = opcodes.DONE
        for i in ids:
            if infos[i] or rewards is not None or i in finals:
                vector = None if rewards is None else rewards[i]
                self._answers.put(i, Extra(own_containers(infos[i]), None, vector, None, finals.get(i)))

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        return 0.0

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self._answers.take(ids)

    # Calls, life.

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Answered:
        try:
            # A reset seeds the envs.
            return Answered([True] * len(ids) if op == "seed" else self._calls.run(ids, op, args[0]))
        except Exception as error:
            return Answered([capture(error, i, op, local=True) for i in ids])

    def note_exception(self, error: BaseException) -> None:
        """Pass it on to the outermost wrapper of the VectorEnv that keeps data, if there is one."""
        envs = self._envs
        while envs is not None and not hasattr(type(envs), "note_exception"):
            envs = getattr(envs, "env", None)
        if envs is not None:
            envs.note_exception(error)

    def release(self) -> None:
        """Leave the VectorEnv to the caller: `close` does not close it any more."""
        self._envs = None

    def close(self, timeout: float) -> list[str]:
        if not self.closed_by_caller:
            self.note_exception(ClosedError("the vector env was dropped, or the program ended, before it was closed"))
        envs, self._envs = self._envs, None
        if envs is not None:
            envs.close()
        return []
