"""PoolBackend: carries rounds to an EnvPool pool, whose envs are C++ in threads of this process.

    round --> pool._reset (envs in mid-episode), pool._send (all others) --> pool._recv --> rows of the arena

Three properties of EnvPool decide how. The step of an env whose episode is over, or that was never reset, resets it:
the resets of such envs are sent with the steps of the others. A synchronous pool returns one batch at a time, and mixes
up two. An asynchronous pool returns exactly `batch_size` results, and waits forever if fewer are in flight: so it has
spare envs, hidden from the caller, whose steps fill up a batch that would stay short.

The methods with an underscore are those of the C++ class, which take and return lists of arrays. What the pool's
`send` and `recv` in Python add to them costs about 10 us a round, of the 95 us that 64 CartPoles take on two CPUs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.backends.backend import Answered, Answers, Backend, Taken, WorkerInfo
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport
from vecenv.backends.host.failure import capture, died_failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.arena import Arena, Layout
from vecenv.backends.system_limits import usable_cpus
from vecenv.errors import VectorEnvError
from vecenv.nest import space_of, tree_of

_MAX_SEED = 2**31
_NO_INFOS = ("info:env_id", "info:players.env_id")  # there is one player an env


class PoolBackend(Backend):
    """Drives `pool`, which nothing else may use from now on."""

    takes_objects = False

    def __init__(self, pool: Any) -> None:
        super().__init__()
        config = pool.config
        self.env_num: int = config["num_envs"]
        self.batch_size: int = config["batch_size"] or self.env_num
        self.is_sync = self.batch_size == self.env_num
        self.num_workers = config["num_threads"] or min(self.batch_size, usable_cpus())
        self._pool: Any = pool
        self._in_flight = 0
        self._torn = False
        """True after an interrupt fell into an exchange with the pool: then its results are not known any more."""
        self._columns: Any = None
        self._expected: np.ndarray | None = None
        """Of a round past the arena that is in flight: the steps that each episode will have."""
        self._all = np.arange(self.env_num, dtype=np.int32)
        self._fresh = np.ones(self.env_num, dtype=np.bool_)
        """The envs that a step would reset."""
        self._elapsed = np.zeros(self.env_num, dtype=np.int32)
        """Steps that each episode had after the last round of all envs."""
        self._action_dtype = list(pool.spec.action_array_spec.values())[-1].dtype
        self._keys = list(pool._state_keys)
        self._obs_keys = _obs_tree([key for key in self._keys if key.startswith("obs")])
        infos = [key for key in self._keys if key.startswith("info:")]
        self._info_keys = {key.removeprefix("info:"): key for key in infos if key not in _NO_INFOS}
        if self.batch_size not in (1, self.env_num):
            self._rebuild(None)

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(self._all.tolist(), None, 0.0)]

    def _rebuild(self, seeds: Sequence[int] | None) -> None:
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
        self._in_flight, self._torn = 0, False
        self._fresh[:] = True
        old.close()

    def start(self, env_fns: Sequence[Callable[[], Any]], num_workers: int | None, eager: bool) -> list[EnvReport]:
        obs, action = map(mended, quiet_spaces(self._pool))
        # The pool's autoreset is not that of the vector env, which has none.
        metadata = {key: value for key, value in self._pool.metadata.items() if key != "autoreset_mode"}
        self._report = EnvReport(obs, action, metadata, None, None)
        self._some_action = np.asarray(copy.deepcopy(action).sample())
        self._space = action
        is_discrete = isinstance(action, spaces.Discrete)
        self._choices = range(int(action.start), int(action.start + action.n)) if is_discrete else None
        return [copy.deepcopy(self._report) for _ in env_fns]

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        """Refuse what would make EnvPool crash, hang or guess."""
        if actions is not None:
            self._check_actions(ids, ops, actions)
        for i, payload in payloads.items():
            if not isinstance(payload, Mapping):
                raise ValueError(
                    f"the action for env {i} is {payload!r}, expected an array of {self._space.dtype} with the shape "
                    f"{self._space.shape}"
                )
            unknown = sorted(payload.keys() - {"seed", "options"})
            if unknown or payload.get("options") is not None:
                raise TypeError(f"the reset of a pool takes nothing but seed, got {unknown or ['options']}")
        seeds = [payload.get("seed") for payload in payloads.values()]
        if any(seed is not None for seed in seeds) and (None in seeds or len(seeds) < self.env_num):
            raise ValueError(
                f"the seeds of a pool are set for all its {self.env_num} envs at once, got {seeds} for envs "
                f"{list(payloads)}"
            )
        return payloads

    def _check_actions(self, ids: Sequence[int], ops: int | np.ndarray, actions: np.ndarray) -> None:
        """ValueError for an action outside of a Discrete space, for which EnvPool would read out of bounds."""
        choices = self._choices
        if choices is None:
            return
        if not isinstance(ops, int):  # of an env that is reset it is ignored
            stepped = ops == opcodes.STEP
            ids, actions = np.asarray(ids)[stepped].tolist(), actions[stepped]
        if not len(actions) or (not choices.start and 0 <= np.bitwise_or.reduce(actions) < choices.stop):
            return  # the second is half the cost of the bounds, and mostly enough
        if actions.min() < choices.start or actions.max() >= choices.stop:
            row = next(row for row, action in enumerate(actions.tolist()) if action not in choices)
            raise ValueError(f"the action for env {ids[row]} is {actions[row]}, which is not in {self._space}")

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, self.env_num)
        self._answers = Answers(self.arena)
        self._action = layout.action
        return self.arena

    def send(self, ids: np.ndarray | None, ops: int | np.ndarray, payloads: Mapping[int, Any]) -> None:
        asked = np.arange(self.env_num) if ids is None else ids
        wanted = np.full(len(asked), ops)
        resets = (wanted == opcodes.RESET) | (wanted == opcodes.RESET_KWARGS)
        if any(args.get("seed") is not None for args in payloads.values()):
            self._rebuild([args["seed"] for _, args in sorted(payloads.items())])  # of all envs, as was checked
        self._torn = True
        if ids is None and self.is_sync and not resets.all() and (resets == self._fresh).all():
            # The pool resets the envs whose episode is over, and only those: a round as it has them, past the arena.
            self._expected = np.where(self._fresh, 0, self._elapsed + 1)
            self._send(self.arena.action, self._all)
            self.arena.status[...] = ops
        else:
            forced = resets if resets.all() else resets & ~self._fresh[asked]
            if forced.any():
                self._start(asked[forced], opcodes.RESET)
            if not forced.all():
                self._start(asked[~forced], opcodes.STEP)
        self._torn = False

    def _start(self, ids: np.ndarray, op: int) -> None:
        while self.is_sync and self._in_flight:
            self._receive()
        if op == opcodes.RESET:
            self._pool._reset(ids.astype(np.int32))
        else:
            self._send(self.arena.action[ids].astype(self._action.dtype), ids)
        self.arena.status[ids] = op
        self._in_flight += len(ids)

    def wait(self, done: Callable[[], bool] | None, deadline: float | None) -> float:
        begin = perf_counter()
        if self._torn:
            self._lose_all()
        if done is not None:
            while not done() and (self._in_flight or self._expected is not None):
                self._torn = True
                if self._expected is None:
                    self._receive()
                else:
                    self._receive_columns()
                self._torn = False
        return perf_counter() - begin

    def _lose_all(self) -> None:
        """An interrupt fell into an exchange with the pool: a new one has to take its place."""
        self._torn, self._expected, self._columns = False, None, None
        for i in range(self.env_num):
            text = "an interrupt fell into an exchange with the pool, whose results are lost"
            self.lost[i] = VectorEnvError(f"env {i}: {text}; reset() makes a new pool")
            if self._answers.busy(i):
                self._answers.put(i, Extra(failure=died_failure(i, "step", self.lost[i])))

    def restart(self, env_id: int) -> Sequence[int]:
        self._rebuild(None)
        self.lost.clear()
        return self._all.tolist()

    def _receive(self) -> None:
        """Take the next batch out of the pool; its envs have answered."""
        self._fill_up()
        state = self._recv()
        self._in_flight -= len(state["info:env_id"])
        if not self.is_sync:
            state = nest.take(state, state["info:env_id"] < self.env_num)  # without the spare ones
        ids = state["info:env_id"]
        nest.put(self.arena.obs, ids, self._obs(state))
        self.arena.reward[ids] = state["reward"]
        self.arena.terminated[ids], self.arena.truncated[ids] = state["done"] > state["trunc"], state["trunc"]
        self._fresh[ids] = state["done"]
        infos = _infos(ids.tolist(), state["elapsed_step"])
        self._add_infos(infos, state)
        for info in infos:
            self._answers.put(info.pop("env_id"), Extra(info))

    def _receive_columns(self) -> None:
        """Take a round of all envs out of a synchronous pool, past the arena."""
        ids, expected = self._all.tolist(), np.asarray(self._expected)
        infos = _infos(ids, expected)  # while the threads of the pool work: nearly always known before
        state = self._recv()
        self._elapsed, self._expected = state["elapsed_step"], None
        if (self._elapsed != expected).any():
            infos = _infos(ids, self._elapsed)
        self._add_infos(infos, state)
        done, truncated = state["done"], state["trunc"]
        self._fresh[:] = done
        obs, reward = (
            nest.merge(lambda pair: pair[0].astype(pair[1].dtype, copy=False), [self._obs(state), self.arena.obs]),
            state["reward"].astype(np.float64),
        )
        self._columns = obs, reward, done > truncated, truncated, infos
        self.arena.status[...] = opcodes.DONE

    def take(self, ids: Sequence[int] | None) -> Taken:
        columns, self._columns = self._columns, None
        return self._answers.take(ids)._replace(columns=columns) if columns is not None else self._answers.take(ids)

    def _send(self, action: np.ndarray, ids: np.ndarray) -> None:
        ids = ids.astype(np.int32, copy=False)
        self._pool._send([ids, ids, action.astype(self._action_dtype, order="C")])  # env_id, players.env_id, action

    def _recv(self) -> dict[str, np.ndarray]:
        """Wait for the next results; `done` is either kind of end."""
        return dict(zip(self._keys, self._pool._recv(), strict=True))

    def _obs(self, state: Mapping[str, np.ndarray]) -> Any:
        return nest.map(state.__getitem__, self._obs_keys)

    def _add_infos(self, infos: Iterable[dict[str, Any]], state: Mapping[str, np.ndarray]) -> None:
        """Add what the task reports of each env."""
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

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> Answered:
        try:
            if op == "seed":
                if len(ids) < self.env_num:
                    raise ValueError(f"the seeds of a pool are those of all its envs, got them for {list(ids)} only")
                self._rebuild([seed for (seed,) in args])
                return Answered([None] * len(ids))
            if op == "render":
                return Answered(list(np.array(self._pool.render(np.asarray(ids), **args[0][0]))))
            if op in ("get_state", "set_state"):
                raise NotImplementedError("the envs of a pool are C++, and have no state that can be taken and set")
            return Answered([self._attribute(op, args[0][0])] * len(ids))
        except Exception as error:
            return Answered([capture(error, i, op, local=True) for i in ids])

    def _attribute(self, op: str, name: str) -> Any:
        if op == "get_env_attr" and name in ATTRIBUTES:
            return getattr(self._report, name)
        if op == "get_env_attr" and name == "render_mode":
            return self._pool.render_mode
        raise AttributeError(f"the envs of a pool are C++, and have no attribute {name!r} that Python can reach")

    def close(self, timeout: float) -> list[str]:
        if self._pool is not None:
            self._pool.close()
            self._pool = None  # the threads end with the last reference to it
        return []


def _infos(ids: Sequence[int], elapsed: np.ndarray) -> np.ndarray:
    """The infos of every task, as an object array of dicts."""
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
        return space_of(nest.map(mended, tree_of(space)))
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
