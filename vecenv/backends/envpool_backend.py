"""`EnvPoolBackend`: steps and resets the C++ envs of EnvPool, which run in threads of this process.

    send --> envpool._reset, envpool._send; wait --> envpool._recv --> rows of the arena

Three properties of EnvPool shape this class:

- EnvPool resets an env in its first step, and in the step after the end of an episode. So `envpool._send` resets
  such envs. With `episodic_life=True` only this reset continues the game after a lost life, because `envpool._reset`
  begins a new game. Resets of envs within an episode go to `envpool._reset`.
- A synchronous EnvPool (`batch_size == num_envs`) mixes up two batches in flight. So at most one batch is in flight.
- An asynchronous EnvPool returns exactly `batch_size` results, and waits forever if fewer envs have an action. So
  hidden spare envs fill up a batch.

`EnvPoolBackend` calls the C++ methods `_send` and `_recv`, because the Python methods around them take time in each
step (`python -m benchmarks.envpool_adapter`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.backend import Taken
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.infos import PYTHON, InfoColumns, InfoSchema
from vecenv.backends.native_backend import NativeBackend
from vecenv.backends.system_limits import usable_cpus
from vecenv.errors import VectorEnvError
from vecenv.nest import space_of, tree_of

_MAX_SEED = 2**31
_NO_INFOS = ("info:env_id", "info:players.env_id")


class EnvPoolBackend(NativeBackend):
    resets_with = ("seed",)

    def __init__(self, envpool: Any) -> None:
        config = envpool.config
        n, batch_size, num_threads = config["num_envs"], config["batch_size"], config["num_threads"]
        self.batch_size: int = batch_size or n
        self.is_sync = self.batch_size == n
        super().__init__(n, "EnvPool", num_threads or min(self.batch_size, usable_cpus()))
        self._envpool: Any = envpool
        self._in_flight = 0
        self._all = list(range(n))
        self._order = np.arange(n, dtype=np.int32)
        self._rows: Any = ...
        self._fresh = np.ones(n, dtype=np.bool_)
        """Mask (n,) of the envs that EnvPool would reset in their next step."""
        self._action_dtype = list(envpool.spec.action_array_spec.values())[-1].dtype
        self._keys = list(envpool._state_keys)
        self._obs_keys = _obs_tree([key for key in self._keys if key.startswith("obs")])
        infos = [key for key in self._keys if key.startswith("info:") and key not in _NO_INFOS]
        self._info_keys = {"elapsed_step": "elapsed_step", **{key.removeprefix("info:"): key for key in infos}}
        self._infos: dict[str, np.ndarray] = {}
        if self.batch_size not in (1, n):
            self._rebuild(None)

    def _rebuild(self, seeds: Sequence[int] | None) -> None:
        old = self._envpool
        spare = 0 if self.is_sync else self.batch_size - 1
        settings = {**old.spec.config._asdict(), "num_envs": self.env_num + spare}
        seeds = list(old.config["env_seed"][: self.env_num] if seeds is None else seeds)
        if seeds:
            settings["env_seed"] = [seed % _MAX_SEED for seed in seeds] + [0] * spare
        kind = type(old.spec)
        self._envpool = type(old)(kind(kind.gen_config(**settings)))
        for name, value in vars(old).items():
            if name.startswith("_render_"):  # set by `envpool.make`
                setattr(self._envpool, name, value)
        quiet_spaces(self._envpool)
        self._in_flight = 0
        self._fresh[:] = True
        old.close()

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        obs, self._space = map(with_infinite_bounds, quiet_spaces(self._envpool))
        return self.reports(obs, self._space, self._envpool.metadata, None)

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        if actions is not None and isinstance(self._space, spaces.Discrete):
            self._check_actions(ids, ops, actions)
        super().encode(ids, ops, actions, payloads)
        seeds = [payload.get("seed") for payload in payloads.values()]
        if any(seed is not None for seed in seeds) and (None in seeds or len(seeds) < self.env_num):
            raise ValueError(
                f"EnvPool sets the seeds of all its {self.env_num} envs at once, got {seeds} for envs {list(payloads)}"
            )
        return payloads

    def _check_actions(self, ids: Sequence[int], ops: int | np.ndarray, actions: np.ndarray) -> None:
        """Refuse actions outside a Discrete space, because EnvPool would read out of bounds."""
        low, high = int(self._space.start), int(self._space.start + self._space.n)
        if not low and 0 <= np.bitwise_or.reduce(actions) < high:
            return
        wrong = ((actions < low) | (actions >= high)) & np.equal(ops, opcodes.STEP)  # a reset ignores the action
        for row in wrong.nonzero()[0].tolist():
            raise ValueError(f"the action for env {ids[row]} is {actions[row]}, which is not in {self._space}")

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = self._order if ids is None else ids
        wanted = np.full(len(asked), ops)
        if any(args.get("seed") is not None for args in payloads.values()):
            self._rebuild([args["seed"] for _, args in sorted(payloads.items())])
        forced = ((wanted == opcodes.RESET) | (wanted == opcodes.RESET_KWARGS)) & ~self._fresh[asked]
        if not forced.any():
            self._start(asked, opcodes.STEP)
        else:
            self._start(asked[forced], opcodes.RESET)
            if not forced.all():
                self._start(asked[~forced], opcodes.STEP)

    def _start(self, ids: np.ndarray, op: int) -> None:
        while self.is_sync and self._in_flight:
            self._receive()
        rows = self._rows = ... if ids is self._order else ids
        if op == opcodes.RESET:
            self._envpool._reset(ids.astype(np.int32))
        else:
            self._send(self.arena.action[rows], ids)
        self.arena.status[rows] = op
        self._in_flight += len(ids)

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = perf_counter()
        if done is not None:
            while not done() and self._in_flight:
                self._receive()
        return perf_counter() - begin

    def resynchronise(self, deadline: float) -> None:
        """Mark all envs as lost, because EnvPool may be in the middle of a round."""
        for i in range(self.env_num):
            text = "an interrupt stopped a call of EnvPool, and its results are lost"
            self.lost[i] = VectorEnvError(f"env {i}: {text}; reset() makes the envs anew")
        super().resynchronise(deadline)

    def restart(self, env_id: int) -> Sequence[int]:
        self._rebuild(None)
        self.lost.clear()
        return self._all

    def _receive(self) -> None:
        self._fill_up()
        state = dict(zip(self._keys, self._envpool._recv(), strict=True))
        self._in_flight -= len(state["info:env_id"])
        if not self.is_sync:
            state = nest.take(state, state["info:env_id"] < self.env_num)  # without the spare envs
        ids = self._rows if self.is_sync else state["info:env_id"]
        arena, done, truncated = self.arena, state["done"], state["trunc"]
        nest.put(arena.obs, ids, nest.map(state.__getitem__, self._obs_keys))
        arena.reward[ids] = state["reward"]
        arena.terminated[ids], arena.truncated[ids] = done > truncated, truncated  # `done` includes truncation
        infos = {name: state[key] for name, key in self._info_keys.items()}
        if not self._infos:
            self._schema = InfoSchema(tuple(infos), tuple(map(_kind, infos.values())))
            parts = zip(infos, self._schema.parts, strict=True)
            self._infos = {name: np.zeros((self.env_num, *shape), dtype) for name, (dtype, shape) in parts}
        nest.put(self._infos, ids, infos)
        self._fresh[ids] = done
        arena.status[ids] = opcodes.DONE

    def take(self, ids: Sequence[int] | None) -> Taken:
        taken, rows = super().take(ids), self._all if ids is None else ids
        if not self._infos:
            return taken
        columns = [column.copy() if ids is None else column[rows] for column in self._infos.values()]
        return Taken(taken.extras, [InfoColumns(self._schema, rows, columns)])

    def _send(self, action: np.ndarray, ids: np.ndarray) -> None:
        ids = ids.astype(np.int32, copy=False)
        self._envpool._send([ids, ids, action.astype(self._action_dtype, order="C")])  # env_id, players.env_id, action

    def _fill_up(self) -> None:
        short = 0 if self.is_sync else self.batch_size - self._in_flight
        if short > 0:
            self._send(np.stack([self.some_action] * short), np.arange(self.env_num, self.env_num + short))
            self._in_flight += short

    def called(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        if op == "seed":
            if len(ids) < self.env_num:
                raise ValueError(f"EnvPool seeds all its envs together, got seeds for {list(ids)} only")
            self._rebuild([seed for (seed,) in args])
            return [None] * len(ids)
        if op == "render":
            return list(np.array(self._envpool.render(np.asarray(ids), **args[0][0])))
        if op in ("get_env_attr", "set_env_attr", "call"):
            if args[0][0] == "render_mode":
                return [self._envpool.render_mode] * len(ids)
            raise AttributeError(
                f"the envs of EnvPool are C++, and have no attribute {args[0][0]!r} that Python can reach"
            )
        return super().called(ids, op, args)

    def close(self, timeout: float) -> list[str]:
        if self._envpool is not None:
            self._envpool.close()
            self._envpool = None  # this ends EnvPool's threads
        return []


def _kind(column: np.ndarray) -> Any:
    if column.ndim > 1:
        return column.dtype.str, column.shape[1:]
    return next(kind for kind, dtype in PYTHON.items() if dtype.kind == column.dtype.kind.replace("u", "i"))


def quiet_spaces(envpool: Any) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return envpool.observation_space, envpool.action_space


def with_infinite_bounds(space: Any) -> Any:
    """Replace EnvPool's default bounds by infinity, because `low` (the smallest positive float) excludes negative
    observations.
    """
    if isinstance(space, spaces.Dict):
        return space_of(nest.map(with_infinite_bounds, tree_of(space)))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return spaces.Box(low, high, dtype=space.dtype)


def _obs_tree(keys: Sequence[str]) -> Any:
    if len(keys) == 1:
        return keys[0]
    tree: dict[str, Any] = {}
    for key in keys:
        *path, last = key.removeprefix("obs:").replace(":", ".").split(".")
        branch = tree
        for name in path:
            branch = branch.setdefault(name, {})
        branch[last] = key
    return tree
