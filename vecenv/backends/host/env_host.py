"""EnvHost: a block of envs and everything that is done to them, wherever they live.

It never raises for what an env does: a failure comes back as an `Extra`, so that the other envs of a round go on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv.backends.host.env_calls import OPERATIONS, is_env
from vecenv.backends.host.failure import Failure, capture
from vecenv.backends.host.row_writer import FLAGS, NOTHING, RENEWED, REWARDS, Extra, RowWriter, own_containers
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.errors import EnvContractError, VectorEnvError


class EnvReport(NamedTuple):
    """What the parent is told of an env once it is there; a part that the env does not have is None."""

    observation_space: Any
    action_space: Any
    metadata: Any
    spec: Any
    reward_range: Any


class EnvHost:
    """Hosts the envs of `makers`, the first of which has the id `first_id`.

    `local` says that the host lives in the caller's process: exceptions are kept as objects. There, and where envs
    share a worker, infos and object observations are copied, because envs go on living with the original. Before an env
    is used, `progress[0]` becomes a new number that is its index modulo the size of the block: whoever watches sees
    which env is running, and that the host gets on.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]], first_id: int, local: bool) -> None:
        self._makers = makers
        self._first_id = first_id
        self._local = local
        self.envs: list[Any] = []
        self.progress: Any = [0]
        self._used = 0
        self.interrupt: BaseException | None = None
        """The user's own Ctrl-C, if it fell into an env's code: to be raised after the round."""

    def construct(self) -> list[EnvReport] | Failure:
        """Call each maker once. The first failure ends it; the envs made so far are left to be closed."""
        reports = []
        for j, maker in enumerate(self._makers):
            self._mark(j)
            try:
                env = maker()
                _refuse_what_is_no_env(env, f"env_fns[{self._first_id + j}]()")
                self.envs.append(env)
                reports.append(_report(env))
            except BaseException as error:
                if self._local and isinstance(error, KeyboardInterrupt):
                    raise
                return capture(error, self._first_id + j, "__init__", self._local)
        self._spaces = [report.observation_space for report in reports]
        return reports

    def bind(self, layout: Layout, block: Arena) -> None:
        """Write into `block` from now on."""
        self._action_dtype = None if layout.action is None else layout.action.dtype
        keep = copy.deepcopy if self._local else own_containers if len(self._makers) > 1 else None
        self._rows = RowWriter(layout, self._spaces, block, keep=keep)
        self._steps = [env.step for env in self.envs]

    def run(
        self,
        ops: bytes,
        action: np.ndarray | None,
        payload: Callable[[int, int], Any],
        extras: dict[int, Extra] | None = None,
    ) -> dict[int, Extra]:
        """A round of one operation an env (see `opcodes`), with a row of `action` for each env; fills `extras`.

        The loop that decides how fast everything is: what a well-behaved env returns passes one test and is written
        here. Whatever else it is, `write_step` knows.
        """
        extras = {} if extras is None else extras
        progress, rows, ndarray = self.progress, self._rows, np.ndarray
        dtype, shape, rewards = rows.dtype, rows.shape, rows.reward
        terminations, truncations = rows.terminated, rows.truncated
        plain = opcodes.STEP
        quick = plain, opcodes.STEP_RESET
        actions = [None] * len(ops) if action is None else list(own_actions(action, self._action_dtype))
        self._used = mark = self._used + len(ops)
        everyone = range(len(ops))
        for j, op, step, own_action, row in zip(everyone, ops, self._steps, actions, rows.obs_rows, strict=True):
            if op in quick:
                progress[0] = mark + j
                try:
                    result = step(own_action)
                    if result.__class__ is tuple and len(result) == 5:
                        obs, reward, terminated, truncated, info = result
                    else:
                        obs = None  # goes the long way
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
                        if not info and op == plain:
                            continue
                        extra = Extra(rows.own(info)) if info else None
                    else:
                        extra = rows.write_step(j, result)
                    if op != plain and (terminations[j] or truncations[j]):
                        extra = self._next_episode(j, extra)
                except BaseException as error:
                    extra = self._failed(error, j, "step")
            elif opcodes.IDLE < op < opcodes.DONE:
                extra = self.run_one(j, op, action, payload)
            else:
                continue
            if extra is not None:
                extras[j] = extra
        return extras

    def run_one(self, j: int, op: int, action: np.ndarray | None, payload: Callable[[int, int], Any]) -> Extra | None:
        """What `run` does, for env j alone; `payload(j, op)` is what does not fit the arena, or a Failure."""
        if op == opcodes.RESET:
            return self._reset(j, {})
        if op & opcodes.PLAIN == opcodes.STEP:
            assert action is not None
            dtype = action.dtype if op & opcodes.WIDE else self._action_dtype
            return self._step(j, own_actions(action[j : j + 1], dtype)[0], op)
        loaded = payload(j, op)
        if isinstance(loaded, Failure):
            return Extra(failure=loaded)
        return self._reset(j, loaded) if op == opcodes.RESET_KWARGS else self._step(j, loaded, op)

    def _step(self, j: int, action: Any, op: int) -> Extra | None:
        try:
            self._mark(j)
            extra = self._rows.write_step(j, self._steps[j](action))
            if op & opcodes.AUTORESET and (self._rows.terminated[j] or self._rows.truncated[j]):
                return self._next_episode(j, extra)
            return extra
        except BaseException as error:
            return self._failed(error, j, "step")

    def _next_episode(self, j: int, last: Extra | None) -> Extra:
        """Reset env j, whose episode is over: of the row of its last step only the observation changes."""
        rows, last = self._rows, last or NOTHING
        final = rows.final(j, last)
        outcome = rows.reward[j], rows.terminated[j], rows.truncated[j]
        self._mark(j)
        try:
            first = rows.write_reset(j, self.envs[j].reset()) or NOTHING
            if first is NOTHING and last is NOTHING:
                first = RENEWED
            else:
                first = first._replace(reward=last.reward, final=final)
        except BaseException as error:
            failure = self._capture(error, j, "reset")
            failure.stepped = True
            rows.restore(j)
            first = last._replace(objects=final.objects, failure=failure)
        rows.reward[j], rows.terminated[j], rows.truncated[j] = outcome
        return first

    def _reset(self, j: int, kwargs: dict[str, Any]) -> Extra | None:
        try:
            self._mark(j)
            return self._rows.write_reset(j, self.envs[j].reset(**kwargs))
        except BaseException as error:
            return self._failed(error, j, "reset")

    def call(self, j: int, op: str, args: tuple[Any, ...]) -> Any:
        """Run one of `OPERATIONS` on env j: its value, or a Failure."""
        self._mark(j)
        try:
            return OPERATIONS[op](self.envs[j], *args)
        except BaseException as error:
            return self._capture(error, j, op)

    def close(self) -> list[str]:
        """Close every env; returns a line for each that failed."""
        problems = []
        for j, env in enumerate(self.envs):
            try:
                if callable(getattr(env, "close", None)):
                    env.close()
            except BaseException as error:
                if self._local and isinstance(error, KeyboardInterrupt):
                    self.interrupt = error
                    continue
                problems.append(f"env {self._first_id + j} failed in close(): {type(error).__name__}: {error}")
        self.envs = []
        return problems

    def begun(self, before: int) -> int:
        """How many envs of a round were used that began when `progress` was `before` and was interrupted."""
        return 0 if self.progress[0] == before else int(self.progress[0] % len(self._makers)) + 1

    def _mark(self, j: int) -> None:
        self._used += len(self._makers)
        self.progress[0] = self._used + j

    def _failed(self, error: BaseException, j: int, op: str) -> Extra:
        return Extra(failure=self._capture(error, j, op))

    def _capture(self, error: BaseException, j: int, op: str) -> Failure:
        if self._local and isinstance(error, KeyboardInterrupt):
            self.interrupt = error
        env_id = self._first_id + j
        return capture(_located(error, env_id), env_id, op, self._local)


def own_actions(action: np.ndarray, dtype: Any) -> np.ndarray:
    """Rows of actions from the arena in the dtype of their space, the envs' to keep."""
    if action.dtype == dtype:
        return action.copy()
    with np.errstate(over="ignore"):  # wide ones that are not meant
        return action.astype(dtype)


def _located(error: BaseException, env_id: int) -> BaseException:
    """Our own errors with the env named in their text."""
    if isinstance(error, EnvContractError) and error.env_id is None:
        error.env_id = env_id
        error.args = (f"env {env_id}: {error.args[0]}",)
    elif isinstance(error, VectorEnvError) and error.env_id is None:
        error.env_id = env_id
    return error


def _refuse_what_is_no_env(env: Any, origin: str) -> None:
    if isinstance(env, type):
        raise TypeError(f"{origin} returned the class {env.__name__}, expected an env; use lambda: {env.__name__}()")
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise TypeError(f"{origin} returned the vector env {env!r}, expected one env; use lambda: gym.make(...)")
    if not is_env(env):
        raise TypeError(f"{origin} returned {env!r}, expected an env with step and reset")


def _report(env: Any) -> EnvReport:
    parts = [getattr(env, name, None) for name in EnvReport._fields]
    if parts[-1] is None:
        parts[-1] = getattr(getattr(env, "unwrapped", None), "reward_range", None)
    return own_report(parts)


def own_report(parts: Sequence[Any]) -> EnvReport:
    """The report of these parts. The spaces in it are the caller's own, one an env, on every backend: envs may share
    one, and sampling from it must not move the generators of the envs.
    """
    return EnvReport(*copy.deepcopy(parts[:2]), *parts[2:])
