"""PoolBackend: carries rounds to an EnvPool pool, whose envs are C++ in threads of this process.

    round --> pool._reset (envs in mid-episode), pool._send (all others) --> pool._recv --> rows of the arena

Three habits of EnvPool decide how. The step of an env whose episode is over, or that was never reset, resets it: the
resets of such envs ride along with the steps of the others. A synchronous pool hands out one batch at a time, and mixes
up two. An asynchronous pool hands out exactly `batch_size` results, and waits without an end if fewer are on their
way: so it is given spare envs, which nobody sees, and whose steps fill up a batch that would stay short.

The methods with an underscore are those of the C++ class, which take and return lists of arrays. What the pool's
`send` and `recv` in Python add to them costs about 10 us a round, of the 95 us that 64 CartPoles take on two CPUs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.base import Backend
from vecenv.backends.host.env_host import EnvReport
from vecenv.backends.host.failure import Failure, capture
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.shield import shield
from vecenv.backends.system_limits import usable_cpus

_MAX_SEED = 2**31
_NO_INFOS = ("info:env_id", "info:players.env_id")  # there is one player an env


class PoolBackend(Backend):
    """Drives `pool`, which nobody else may use from now on."""

    fresh: np.ndarray
    """The envs that a step would reset, bool (n,): the vector env's own record, which is right for every idle env."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        config = pool.config
        self.env_num: int = config["num_envs"]
        self.batch_size: int = config["batch_size"] or self.env_num
        self.is_sync = self.batch_size == self.env_num
        self.num_workers = config["num_threads"] or min(self.batch_size, usable_cpus())
        self._pool = pool
        self._in_flight = 0
        self._all = np.arange(self.env_num, dtype=np.int32)
        self._elapsed = np.zeros(self.env_num, dtype=np.int32)
        """Steps that each episode had after the last round of all envs."""
        self._action_dtype = list(pool.spec.action_array_spec.values())[-1].dtype
        self._keys = list(pool._state_keys)
        self._obs_keys = _obs_tree([key for key in self._keys if key.startswith("obs")])
        told = [key for key in self._keys if key.startswith("info:")]
        self._info_keys = {key.removeprefix("info:"): key for key in told if key not in _NO_INFOS}
        if self.batch_size not in (1, self.env_num):
            self.rebuild(None)

    def rebuild(self, seeds: Sequence[int] | None) -> None:
        """Put a new pool in the place of the old one: with these seeds, and with spare envs if it is asynchronous."""
        old = self._pool
        spare = 0 if self.is_sync else self.batch_size - 1
        settings = {**old.spec.config._asdict(), "num_envs": self.env_num + spare}
        seeds = list(old.config["env_seed"][: self.env_num] if seeds is None else seeds)
        if seeds:
            settings["env_seed"] = [seed % _MAX_SEED for seed in seeds] + [0] * spare
        kind = type(old.spec)
        self._pool = type(old)(kind(kind.gen_config(**settings)))
        for name, value in vars(old).items():
            if name.startswith("_render_"):  # what `envpool.make` wrote there
                setattr(self._pool, name, value)
        quiet_spaces(self._pool)
        self._in_flight = 0
        old.close()

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int, eager: bool) -> list[EnvReport]:
        obs, action = map(mended, quiet_spaces(self._pool))
        # The pool's autoreset is not that of the vector env, which has none.
        metadata = {key: value for key, value in self._pool.metadata.items() if key != "autoreset_mode"}
        self._report = EnvReport(obs, action, metadata, None, None)
        self._some_action = np.asarray(copy.deepcopy(action).sample())
        self.raise_shield()
        return [copy.deepcopy(self._report) for _ in env_fns]

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, self.env_num)
        self._action = layout.action
        return self.arena

    def encode(self, payloads: Mapping[int, Any]) -> dict[int, Any]:
        """Arguments of resets are passed on; an action that is no row of the arena has the wrong form."""
        assert self._action is not None
        for i, payload in payloads.items():
            if not isinstance(payload, Mapping):
                raise ValueError(
                    f"the action for env {i} is {payload!r}, expected an array of {self._action.dtype} with the "
                    f"shape {self._action.shape}"
                )
        return dict(payloads)

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = np.arange(self.env_num) if ids is None else ids
        wanted = np.full(len(asked), ops)
        resets = (wanted == opcodes.RESET) | (wanted == opcodes.RESET_KWARGS)
        if any(args.get("seed") is not None for args in payloads.values()):
            self.rebuild([args["seed"] for _, args in sorted(payloads.items())])  # of all envs, as was checked
        forced = resets if resets.all() else resets & ~self.fresh[asked]
        if forced.any():
            self._start(asked[forced], opcodes.RESET)
        if not forced.all():
            self._start(asked[~forced], opcodes.STEP)

    def _start(self, ids: np.ndarray, op: int) -> None:
        while self.is_sync and self._in_flight:
            self._receive()
        with shield:  # a status byte that asks for what the pool was not told would be waited for without an end
            if op == opcodes.RESET:
                self._pool._reset(ids.astype(np.int32))
            else:
                self._send(self.arena.action[ids].astype(self._action.dtype), ids)  # type: ignore[index,union-attr]
            self.arena.status[ids] = op
            self._in_flight += len(ids)

    def wait(self, done: Callable[[], bool], deadline: float | None) -> None:
        while not done():
            self._receive()

    def _receive(self) -> None:
        """Take the next batch out of the pool; its envs have answered."""
        with shield:
            self._fill_up()
            state = self._recv()
            self._in_flight -= len(state["info:env_id"])
            if not self.is_sync:
                state = nest.take(state, state["info:env_id"] < self.env_num)  # without the spare ones
            ids = state["info:env_id"]
            nest.put(self.arena.obs, ids, self._obs(state))
            self.arena.reward[ids] = state["reward"]
            self.arena.terminated[ids], self.arena.truncated[ids] = state["done"] > state["trunc"], state["trunc"]
            infos = _infos(ids.tolist(), state["elapsed_step"])
            self._add_told(infos, state)
            for info in infos:
                self.answer(info.pop("env_id"), Extra(info))

    def step_all(self, action: np.ndarray, ids: Sequence[int]) -> tuple[Any, ...]:
        """A round of all envs, `ids`, of an idle, synchronous pool, past the arena: obs, reward, ..., infos."""
        with shield:
            self._send(action, self._all)
            # While the threads of the pool work: what the infos say is nearly always known before.
            expected = np.where(self.fresh, 0, self._elapsed + 1)
            infos = _infos(ids, expected)
            state = self._recv()
            self.fresh[:] = state["done"]
        self._elapsed = state["elapsed_step"]
        if (self._elapsed != expected).any():
            infos = _infos(ids, self._elapsed)
        self._add_told(infos, state)
        done, truncated = state["done"], state["trunc"]
        return self._obs(state), state["reward"], done > truncated, truncated, infos

    def _send(self, action: np.ndarray, ids: np.ndarray) -> None:
        ids = ids.astype(np.int32, copy=False)
        self._pool._send([ids, ids, action.astype(self._action_dtype, order="C")])  # env_id, players.env_id, action

    def _recv(self) -> dict[str, np.ndarray]:
        """Wait for the next results; `done` is either kind of end."""
        return dict(zip(self._keys, self._pool._recv(), strict=True))

    def _obs(self, state: Mapping[str, np.ndarray]) -> Any:
        return nest.map(state.__getitem__, self._obs_keys)

    def _add_told(self, infos: Iterable[dict[str, Any]], state: Mapping[str, np.ndarray]) -> None:
        """Add what the task says of each env."""
        for name, key in self._info_keys.items():
            column = state[key]
            values = column.tolist() if column.ndim == 1 else column
            for info, value in zip(infos, values, strict=True):
                info[name] = value

    def _fill_up(self) -> None:
        """Step spare envs if fewer than a batch are on their way."""
        short = 0 if self.is_sync else self.batch_size - self._in_flight
        if short > 0:
            self._send(np.stack([self._some_action] * short), np.arange(self.env_num, self.env_num + short))
            self._in_flight += short

    def ask(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any | Failure]:
        try:
            if op == "seed":
                if len(ids) < self.env_num:
                    raise ValueError(f"the seeds of a pool are those of all its envs, got them for {list(ids)} only")
                self.rebuild([seed for (seed,) in args])
                return [None] * len(ids)
            if op == "render":
                return list(np.array(self._pool.render(np.asarray(ids), **args[0][0])))
            return [self._attribute(op, args[0][0])] * len(ids)
        except Exception as error:
            return [capture(error, i, op, local=True) for i in ids]

    def _attribute(self, op: str, name: str) -> Any:
        if op == "get_env_attr" and name in EnvReport._fields:
            return getattr(self._report, name)
        if op == "get_env_attr" and name == "render_mode":
            return self._pool.render_mode
        raise AttributeError(f"the envs of a pool are C++, and have no attribute {name!r} that Python can reach")

    def close(self, timeout: float) -> list[str]:
        self._pool.close()
        self.lower_shield()
        self.__dict__.clear()  # the threads end with the last reference to the pool
        return []


def _infos(ids: Sequence[int], elapsed: np.ndarray) -> np.ndarray:
    """What the infos of every task say, as an object array of dicts."""
    infos = [{"env_id": i, "elapsed_step": step} for i, step in zip(ids, elapsed.tolist(), strict=True)]
    return np.fromiter(infos, object, len(infos))


def quiet_spaces(pool: Any) -> tuple[Any, Any]:
    """The spaces of one env of the pool, which makes them when they are first asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's, about the precision of EnvPool's bounds
        return pool.observation_space, pool.action_space


def mended(space: Any) -> Any:
    """The space with infinite bounds where EnvPool has its defaults, the smallest positive and the largest float.

    With those no negative observation is in the space.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: mended(child) for key, child in space.spaces.items()})
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return spaces.Box(low, high, dtype=space.dtype)


def _obs_tree(keys: Sequence[str]) -> Any:
    """The keys of the observation in the form of its space: "obs:arm.angle" belongs at ["arm"]["angle"]."""
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
