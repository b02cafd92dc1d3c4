"""`EnvHost`: makes, steps, resets and closes the envs of one worker (a block).

If an env raises in a step or reset, the failure becomes an `Extra`, and the other envs continue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv import nest
from vecenv.backends.host.env_access import ENV_CALLS, learning
from vecenv.backends.host.env_checks import check_coroutines, check_env, check_single_agent, check_spaces, explained
from vecenv.backends.host.failure import Failure, capture
from vecenv.backends.host.operation import Operation, run_operation
from vecenv.backends.host.own_process import check_alone
from vecenv.backends.host.row_writer import (
    BOOLS,
    IN_INFO_ROW,
    NO_EXTRA,
    RESET_IN_ARENA,
    REWARD_TYPES,
    Extra,
    RowWriter,
    copy_containers,
)
from vecenv.backends.host.spare_envs import SpareEnvs, check_spare
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.infos import InfoWriter
from vecenv.errors import EnvContractError, VectorEnvError
from vecenv.layout import Layout

Payload = Callable[[int, int], Any]
"""Function (env index, opcode) that returns an action or reset arguments that do not fit the arena, or a `Failure`."""


class EnvReport(NamedTuple):
    """Attributes of a new env. Missing attributes except spaces are `None`."""

    observation_space: Any
    action_space: Any
    metadata: Any
    spec: Any
    reward_range: Any
    learning: Any = None


ATTRIBUTES = EnvReport._fields[:-1]


class EnvHost:
    """Host of the envs of `env_fns`. The env with index j has the id `first_id + j`.

    - `local`: the host runs in the caller's process, and keeps exceptions as objects. A local host, or a host of
      several envs, copies infos and object observations, because an env may change them later.
    - `interruptible`: the host raises an env's KeyboardInterrupt. If False, the interrupt becomes the env's failure.
    - `coroutines`: the host may make coroutine envs. Run their operations (`operation`, `calling`, `closing`) in an
      event loop, by `await_operation`.
    - `progress[0]`: the host writes a new number before each use of an env, for the watchdog. The number modulo
      `len(env_fns)` is the env's index. If the write raises, the host uses no further env.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        first_id: int,
        local: bool,
        interruptible: bool = False,
        coroutines: bool = False,
    ) -> None:
        self._env_fns = env_fns
        self._first_id = first_id
        self._local = local
        self._passes = KeyboardInterrupt if interruptible else ()
        self._allows_coroutines = coroutines
        self.coroutines: list[bool] = []
        """True for each coroutine env."""
        self.envs: list[Any] = []
        self.before_reset: Callable[[], None] | None = None
        self.spares: SpareEnvs | None = None
        self.progress: Any = [0]
        self._used = 0

    def construct(self, spare_envs: int = 0) -> list[EnvReport] | Failure:
        """Make the envs, and a second instance of the first `spare_envs` envs. Return the reports of the envs."""
        reports, count = [], len(self._env_fns)
        spare_envs = min(spare_envs, count)
        for j in [*range(count), *range(spare_envs)]:
            self.mark(j)
            try:
                env = self._env_fns[j]()
                origin = f"env_fns[{self._first_id + j}]()"
                check_env(env, origin)
                check_single_agent(env, origin)
                self.coroutines.append(check_coroutines(env, origin, self._allows_coroutines))
                self.envs.append(env)
                if not self._local:
                    check_alone(env, self._first_id + j, count)
                if spare_envs:
                    check_spare(env, origin)
                reports.append(report_of(env))
                check_spaces(reports[-1], origin)
            except self._passes:
                raise
            except BaseException as error:
                return capture(error, self._first_id + j, "__init__", self._local)
        reports = reports[:count]
        self._spaces = [report.observation_space for report in reports]
        if spare_envs:
            self.envs, spares = self.envs[:count], self.envs[count:]
            self.spares = SpareEnvs(self.envs, spares)
        return reports

    def split(self) -> list[EnvHost]:
        """Move each env to a new host, and return these hosts."""
        hosts = []
        for j, env in enumerate(self.envs):
            host = EnvHost([self._env_fns[j]], self._first_id + j, self._local)
            host.envs, host._spaces = [env], [self._spaces[j]]
            hosts.append(host)
        self.envs = []
        return hosts

    def bind(self, layout: Layout, block: Arena, infos: InfoWriter | None = None) -> None:
        self._write_info = None if infos is None else infos.write
        keep = copy.deepcopy if self._local else copy_containers if len(self._env_fns) > 1 else None
        self._rows = RowWriter(layout, self._spaces, block, keep=keep)
        self.seeds = block.seed

    def run(self, ops: bytes, action: Any, payload: Payload) -> dict[int, Extra]:
        """Step or reset envs, with an opcode (see `opcodes`) and a row of `action` per env. Return extras by env index.

        The loop itself writes results that need no conversion, because `RowWriter` is slower.
        """
        extras, progress, rows, ndarray = dict[int, Extra](), self.progress, self._rows, np.ndarray
        dtype, shape, rewards = rows.dtype, rows.shape, rows.reward
        terminations, truncations, write_info = rows.terminated, rows.truncated, self._write_info
        plain, quick = opcodes.STEP, (opcodes.STEP, opcodes.STEP_RESET)
        actions = [None] * len(ops) if action is None else copy_actions(action, len(ops))
        self._used = mark = self._used + len(ops)
        for j, op, env, own_action, row in zip(range(len(ops)), ops, self.envs, actions, rows.obs_rows, strict=True):
            if op in quick:
                progress[0] = mark + j
                try:
                    result = env.step(own_action)
                    if result.__class__ is tuple and len(result) == 5:
                        obs, reward, terminated, truncated, info = result
                    else:
                        obs = None  # so that `write_step` below checks the result
                    if (
                        obs.__class__ is ndarray
                        and obs.dtype is dtype
                        and obs.shape == shape
                        and (reward.__class__ is float or reward.__class__ in REWARD_TYPES)
                        and (terminated is False or terminated.__class__ in BOOLS)
                        and (truncated is False or truncated.__class__ in BOOLS)
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
                        extra = run_operation(self._next_episode(j, extra, result[0]))
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
        extra: Extra | None = run_operation(self.operation(j, op, action, payload))
        return extra

    def operation(self, j: int, op: int, action: Any, payload: Payload) -> Operation:
        """Return the operation that `run_one` runs. Its result is an `Extra` or `None`."""
        if op == opcodes.RESET:
            return self._reset(j, {})
        if op & opcodes.PLAIN == opcodes.STEP:
            return self._step(j, copy_action(action, j), op)
        return self._with_payload(j, op, payload)

    def _with_payload(self, j: int, op: int, payload: Payload) -> Operation:
        self.mark(j)
        loaded = payload(j, op)
        if isinstance(loaded, Failure):
            return Extra(failure=loaded)
        return (yield from self._reset(j, loaded) if op == opcodes.RESET_KWARGS else self._step(j, loaded, op))

    def _step(self, j: int, action: Any, op: int) -> Operation:
        try:
            self.mark(j)
            result = yield self.envs[j].step(action)
            extra = self._rows.write_step(j, result)
            if op & opcodes.AUTORESET and (self._rows.terminated[j] or self._rows.truncated[j]):
                return (yield from self._next_episode(j, extra, result[0]))
            return extra
        except self._passes:
            raise
        except BaseException as error:
            return self._failed(error, j, "step")

    def _next_episode(self, j: int, last: Extra | None, last_obs: Any) -> Operation:
        """Reset env j at the end of its episode. The row keeps the reward and flags of the last step."""
        rows, last = self._rows, last or NO_EXTRA
        final = rows.final(j, last, last_obs)
        outcome = rows.reward[j], rows.terminated[j], rows.truncated[j]
        self.mark(j)
        try:
            seed = int(self.seeds[j])
            result = yield self._begin(j, {} if seed < 0 else {"seed": seed})
            first = rows.write_reset(j, result) or NO_EXTRA
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

    def _reset(self, j: int, kwargs: dict[str, Any]) -> Operation:
        try:
            self.mark(j)
            result = yield self._begin(j, kwargs)
            return self._rows.write_reset(j, result)
        except self._passes:
            raise
        except BaseException as error:
            return self._failed(error, j, "reset")

    def _begin(self, j: int, kwargs: dict[str, Any]) -> Any:
        if self.before_reset is not None:
            self.before_reset()
        return self.envs[j].reset(**kwargs) if self.spares is None else self.spares.begin(j, kwargs)

    def call(self, j: int, op: str, args: tuple[Any, ...]) -> Any:
        return run_operation(self.calling(j, op, args))

    def calling(self, j: int, op: str, args: tuple[Any, ...]) -> Operation:
        self.mark(j)
        try:
            if self.spares is not None:
                self.spares.before_call(j, op, args)
            return (yield ENV_CALLS[op](self.envs[j], *args))
        except self._passes:
            raise
        except BaseException as error:
            return self._capture(error, j, op)

    def close(self) -> list[str]:
        problems: list[str] = run_operation(self.closing())
        return problems

    def closing(self) -> Operation:
        problems = []
        interrupt: BaseException | None = None
        spares = [] if self.spares is None else self.spares.end()
        for j, env in [*enumerate(self.envs), *spares]:
            try:
                if callable(getattr(env, "close", None)):
                    yield env.close()
            except GeneratorExit:  # from Python, because an interrupt has dropped this generator
                raise
            except self._passes as error:  # raised after all envs are closed
                interrupt = error
            except BaseException as error:
                problems.append(f"env {self._first_id + j} failed in close(): {type(error).__name__}: {error}")
        self.envs, self.spares = [], None
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
        return capture(_located(explained(error, op), env_id), env_id, op, self._local)


def copy_actions(action: Any, k: int) -> list[Any]:
    """Copy the k rows of a nested action, because envs may keep and change actions."""
    if action.__class__ is np.ndarray:
        return list(action.copy())
    copies = nest.map(np.copy, action)
    return [nest.take(copies, j) for j in range(k)]


def copy_action(action: Any, j: int) -> Any:
    """Copy row j of a nested action."""
    if action.__class__ is np.ndarray:
        return action[j].copy()
    return copy_actions(nest.take(action, slice(j, j + 1)), 1)[0]


def _located(error: BaseException, env_id: int) -> BaseException:
    if isinstance(error, EnvContractError) and error.env_id is None:
        error.env_id = env_id
        error.args = (f"env {env_id}: {error.args[0] if error.args else ''}",)
    elif isinstance(error, VectorEnvError) and error.env_id is None:
        error.env_id = env_id
    return error


def report_of(env: Any) -> EnvReport:
    parts = [getattr(env, name, None) for name in ATTRIBUTES[:-1]]
    ranges = (getattr(each, "reward_range", None) for each in (env, getattr(env, "unwrapped", None)))
    reward_range = next((each for each in ranges if each is not None), None)
    return make_report([*parts, reward_range, learning(env)])


def make_report(parts: Sequence[Any]) -> EnvReport:
    """Build a report with copied spaces, so that the caller's samples do not advance the env's generators.

    A missing space becomes a `gymnasium.Space()`, whose elements may be any objects.
    """
    spaces = copy.deepcopy([gymnasium.Space() if space is None else space for space in parts[:2]])
    return EnvReport(*spaces, *parts[2:])
