"""`EnvHost`: runs all operations on a block of envs, for every backend.

The failure of an env becomes an `Extra`, so that the other envs of the round continue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.host.env_access import ENV_CALLS, is_env, learning
from vecenv.backends.host.failure import Failure, capture
from vecenv.backends.host.row_writer import (
    FLAGS,
    IN_INFO_ROW,
    NO_EXTRA,
    RESET_IN_ARENA,
    REWARDS,
    Extra,
    RowWriter,
    copy_containers,
)
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.memory.infos import InfoWriter
from vecenv.errors import EnvContractError, VectorEnvError

Payload = Callable[[int, int], Any]
"""Function (index in the block, opcode) -> value that does not fit the arena, or a Failure."""


class EnvReport(NamedTuple):
    """Report of a new env. A part that the env does not have is `None`."""

    observation_space: Any
    action_space: Any
    metadata: Any
    spec: Any
    reward_range: Any
    learning: Any = None


ATTRIBUTES = EnvReport._fields[:-1]


class EnvHost:
    """Host of the envs of `env_fns`, with ids from `first_id`.

    `local`: the host runs in the caller's process, and keeps exceptions as objects. Infos and object observations are
    copied, because envs may change these later, also for envs that share a worker.

    `interruptible`: a KeyboardInterrupt in an env is the user's Ctrl-C, and is raised.

    Before each use of an env, `progress[0]` gets a new number. Modulo the size of the block, the number is the env's
    index, so a watchdog sees which env runs. If this write raises, no further env is used.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], first_id: int, local: bool, interruptible: bool = False
    ) -> None:
        self._env_fns = env_fns
        self._first_id = first_id
        self._local = local
        self._passes = KeyboardInterrupt if interruptible else ()
        self.envs: list[Any] = []
        self.progress: Any = [0]
        self._used = 0

    def construct(self) -> list[EnvReport] | Failure:
        """Call each env_fn. Stop at the first failure; `close` closes the envs made before."""
        reports = []
        for j, env_fn in enumerate(self._env_fns):
            self.mark(j)
            try:
                env = env_fn()
                check_env(env, f"env_fns[{self._first_id + j}]()")
                check_single_agent(env, f"env_fns[{self._first_id + j}]()")
                self.envs.append(env)
                reports.append(report_of(env))
            except self._passes:
                raise
            except BaseException as error:
                return capture(error, self._first_id + j, "__init__", self._local)
        self._spaces = [report.observation_space for report in reports]
        return reports

    def bind(self, layout: Layout, block: Arena, infos: InfoWriter | None = None) -> None:
        self._write_info = None if infos is None else infos.write
        keep = copy.deepcopy if self._local else copy_containers if len(self._env_fns) > 1 else None
        self._rows = RowWriter(layout, self._spaces, block, keep=keep)
        self._seeds = block.seed
        self._steps = [env.step for env in self.envs]

    def run(self, ops: bytes, action: Any, payload: Payload) -> dict[int, Extra]:
        """Run a round: an opcode (see `opcodes`) and a row of `action` per env.

        This loop determines the speed of a round, so it writes the results of well-behaved envs itself.
        """
        extras: dict[int, Extra] = {}
        progress, rows, ndarray = self.progress, self._rows, np.ndarray
        dtype, shape, rewards = rows.dtype, rows.shape, rows.reward
        terminations, truncations, write_info = rows.terminated, rows.truncated, self._write_info
        plain, quick = opcodes.STEP, (opcodes.STEP, opcodes.STEP_RESET)
        actions = [None] * len(ops) if action is None else copy_actions(action, len(ops))
        self._used = mark = self._used + len(ops)
        for j, op, step, own_action, row in zip(range(len(ops)), ops, self._steps, actions, rows.obs_rows, strict=True):
            if op in quick:
                progress[0] = mark + j
                try:
                    result = step(own_action)
                    if result.__class__ is tuple and len(result) == 5:
                        obs, reward, terminated, truncated, info = result
                    else:
                        obs = None  # fails the check below
                    if (
                        obs.__class__ is ndarray
                        and obs.dtype is dtype
                        and obs.shape == shape
                        and (reward.__class__ is float or reward.__class__ in REWARDS)
                        and (terminated is False or terminated.__class__ in FLAGS)
                        and (truncated is False or truncated.__class__ in FLAGS)
                        and info.__class__ is dict
                    ):
                        row[...] = obs
                        rewards[j] = reward
                        terminations[j] = terminated
                        truncations[j] = truncated
                        if not info:
                            if op == plain:
                                continue
                            extra = None
                        elif (
                            write_info is not None
                            and (op == plain or not (terminated or truncated))
                            and write_info(j, info)
                        ):
                            extra = IN_INFO_ROW
                        else:
                            extra = Extra(rows.copy_info(info))
                    else:
                        extra = rows.write_step(j, result)
                    if op != plain and (terminations[j] or truncations[j]):
                        extra = self._next_episode(j, extra, result[0])
                except self._passes:
                    raise
                except BaseException as error:
                    extra = self._failed(error, j, "step")
            else:
                extra = self.run_one(j, op, action, payload) if opcodes.IDLE < op < opcodes.DONE else None
            if extra is not None:
                extras[j] = extra
        return extras

    def run_one(self, j: int, op: int, action: Any, payload: Payload) -> Extra | None:
        if op == opcodes.RESET:
            return self._reset(j, {})
        if op & opcodes.PLAIN == opcodes.STEP:
            return self._step(j, copy_actions(nest.take(action, slice(j, j + 1)), 1)[0], op)
        self.mark(j)
        loaded = payload(j, op)
        if isinstance(loaded, Failure):
            return Extra(failure=loaded)
        return self._reset(j, loaded) if op == opcodes.RESET_KWARGS else self._step(j, loaded, op)

    def _step(self, j: int, action: Any, op: int) -> Extra | None:
        try:
            self.mark(j)
            extra = self._rows.write_step(j, result := self._steps[j](action))
            if op & opcodes.AUTORESET and (self._rows.terminated[j] or self._rows.truncated[j]):
                return self._next_episode(j, extra, result[0])
            return extra
        except self._passes:
            raise
        except BaseException as error:
            return self._failed(error, j, "step")

    def _next_episode(self, j: int, last: Extra | None, last_obs: Any) -> Extra:
        """Reset env j at the end of its episode. Of the row, only the observation changes."""
        rows, last = self._rows, last or NO_EXTRA
        final = rows.final(j, last, last_obs)
        outcome = rows.reward[j], rows.terminated[j], rows.truncated[j]
        self.mark(j)
        try:
            seed = int(self._seeds[j])
            first = rows.write_reset(j, self.envs[j].reset(**({} if seed < 0 else {"seed": seed}))) or NO_EXTRA
            if first is NO_EXTRA and last is NO_EXTRA and final.obs is None:
                first = RESET_IN_ARENA
            else:
                first = first._replace(reward=last.reward, final=final)
        except self._passes:
            raise
        except BaseException as error:
            failure = self._capture(error, j, "reset")
            failure.stepped = True
            rows.restore(j)
            first = last._replace(objects=final.objects, failure=failure)
        rows.reward[j], rows.terminated[j], rows.truncated[j] = outcome
        return first

    def _reset(self, j: int, kwargs: dict[str, Any]) -> Extra | None:
        try:
            self.mark(j)
            return self._rows.write_reset(j, self.envs[j].reset(**kwargs))
        except self._passes:
            raise
        except BaseException as error:
            return self._failed(error, j, "reset")

    def call(self, j: int, op: str, args: tuple[Any, ...]) -> Any:
        self.mark(j)
        try:
            return ENV_CALLS[op](self.envs[j], *args)
        except self._passes:
            raise
        except BaseException as error:
            return self._capture(error, j, op)

    def close(self) -> list[str]:
        problems = []
        interrupt: BaseException | None = None
        for j, env in enumerate(self.envs):
            try:
                if callable(getattr(env, "close", None)):
                    env.close()
            except self._passes as error:  # raised after all envs are closed
                interrupt = error
            except BaseException as error:
                problems.append(f"env {self._first_id + j} failed in close(): {type(error).__name__}: {error}")
        self.envs = []
        if interrupt is not None:
            raise interrupt
        return problems

    def mark(self, j: int) -> None:
        self._used += len(self._env_fns)
        self.progress[0] = self._used + j

    def _failed(self, error: BaseException, j: int, op: str) -> Extra:
        return Extra(failure=self._capture(error, j, op))

    def _capture(self, error: BaseException, j: int, op: str) -> Failure:
        env_id = self._first_id + j
        return capture(_located(error, env_id), env_id, op, self._local)


def copy_actions(action: Any, k: int) -> list[Any]:
    """Copy the k rows of an action tree, because envs may keep and change actions."""
    if action.__class__ is np.ndarray:
        return list(action.copy())
    copies = nest.map(np.copy, action)
    return [nest.take(copies, j) for j in range(k)]


def _located(error: BaseException, env_id: int) -> BaseException:
    if isinstance(error, EnvContractError) and error.env_id is None:
        error.env_id = env_id
        error.args = (f"env {env_id}: {error.args[0]}",)
    elif isinstance(error, VectorEnvError) and error.env_id is None:
        error.env_id = env_id
    return error


def check_env(env: Any, origin: str) -> None:
    if isinstance(env, type):
        raise TypeError(f"{origin} returned the class {env.__name__}, expected an env; use lambda: {env.__name__}()")
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"{origin} returned the vector env {env!r}, expected one env; use lambda: gym.make(...)")
    if not is_env(env):
        raise TypeError(f"{origin} returned {env!r}, expected an env with step and reset")


def check_single_agent(env: Any, origin: str) -> None:
    """Raise TypeError for a PettingZoo env, because its spaces are functions of an agent."""
    if not (callable(getattr(env, "observation_space", None)) and callable(getattr(env, "action_space", None))):
        return
    if callable(getattr(env, "last", None)):
        kind = "an AECEnv of PettingZoo: use AECVectorEnv(env_fns), or let each function return PettingZooEnv(env)"
    else:
        kind = (
            "a ParallelEnv of PettingZoo: use ParallelVectorEnv(env_fns), and flatten_agents of that for a row an agent"
        )
    raise TypeError(f"{origin} returned {env!r}, {kind}")


def check_distinct(envs: Sequence[Any]) -> None:
    """Raise ValueError if two ids have the same env object (`lambda: env`), which would step twice per round."""
    seen: dict[int, int] = {}
    for i, env in enumerate(envs):
        first = seen.setdefault(id(getattr(env, "unwrapped", env)), i)
        if first != i:
            raise ValueError(
                f"env_fns[{first}] and env_fns[{i}] returned the same env object; each must make a new one: "
                "lambda: gym.make(...), not lambda: env"
            )


def report_of(env: Any) -> EnvReport:
    *parts, reward_range = (getattr(env, name, None) for name in ATTRIBUTES)
    if reward_range is None:
        reward_range = getattr(getattr(env, "unwrapped", None), "reward_range", None)
    return make_report([*parts, reward_range, learning(env)])


def make_report(parts: Sequence[Any]) -> EnvReport:
    """Build a report with copied spaces, because envs may share a space, and the caller may sample from it."""
    return EnvReport(*copy.deepcopy(parts[:2]), *parts[2:])
