"""`BaseVectorEnv`: run many envs behind one object. A backend decides where the envs live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Backend
from vecenv.backends.env_worker import EnvWorkerBackend, backend_maker
from vecenv.engine.arguments import (
    as_ids,
    check_count,
    check_env_fns,
    check_seed,
    check_timeout,
    own_env_fns,
    seed_chain,
    spread_seeds,
)
from vecenv.engine.engine import Engine
from vecenv.engine.env_calls import EngineProperties
from vecenv.engine.lifetime import NotStarted
from vecenv.engine.mark import INTERRUPTS
from vecenv.engine.results import Step


class BaseVectorEnv(EngineProperties):
    """Runs many envs as one (contract of tianshou's BaseVectorEnv: ids, no autoreset, `wait_num` and `timeout`).

        venv = ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
        obs, info = venv.reset()
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], info[done] = venv.reset(done)

    Arguments:
        env_fns: one callable an env, each called exactly once, or the id of an env for `gymnasium.make`, as in
            `["CartPole-v1"] * 8`. `EnvCreator` makes callables whose envs share state.
        worker_fn: a class or function that makes an `EnvWorker` of an env_fn, for workers of your own; else `backend`
            decides.
        wait_num: return from `step` as soon as this many envs are done (1 .. n); more if more are.
        timeout: seconds after which `step` returns what is done; if nothing is, it returns as soon as the first env is.
        backend: a fresh `Backend`, or (needed with `lazy`) a function that makes one.
        num_workers: how many workers share the envs; default: the CPUs that this process may use, or one worker an
            env with `wait_num` or `timeout`.
        copy: False returns views of the arena for full batches, valid until the next call.
        stack_obs: False returns Dict and Tuple observations as an object array of one dict or tuple per env.
        on_error: "raise", or "restart" to turn the failure of an env into a row with the observation before (for which
            each round copies the observations once more), truncated=True, info["restarted"]=True and info["error"], its
            text (both in `final_info` with `autoreset`); at most `max_restarts` times a minute and env. The end of a
            worker counts for the env that was running alone; the error that is raised when they are spent says so.
        strict: refuse to step an env that was not reset, or whose episode is over.
        check_spaces: refuse envs with unequal spaces.
        check_actions: refuse actions that are not in the action space; else only numbers of another shape are
            refused, and values outside of the space reach the env as they are.
        lazy: make the envs in the first `start`, `reset` or `seed`, and again after `close`; else NotStartedError.

    docs/guarantees.md has the guarantees: of ids, results, copies, actions, seeds, failures, waiting and closing.
    """

    outermost: Any = None
    """The wrapper through which `seed` is being called, if any: its `reset` begins the episodes in every layer."""
    _warns_unclosed = True
    """True if an object that is dropped unclosed warns."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str],
        worker_fn: Callable[[Callable[[], Any]], Any] | None = None,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        backend: Backend | Callable[[], Backend] | None = None,
        num_workers: int | None = None,
        copy: bool = True,
        stack_obs: bool = True,
        on_error: str = "raise",
        max_restarts: int = 5,
        strict: bool = False,
        check_spaces: bool = False,
        check_actions: bool = False,
        lazy: bool = False,
    ) -> None:
        fns = check_env_fns(env_fns)
        n = self.env_num = len(fns)
        self.wait_num = n if wait_num is None else check_count("wait_num", wait_num, n)
        self.timeout = check_timeout(timeout)
        self.num_workers = num_workers if num_workers is None else check_count("num_workers", num_workers, n)
        """Number of workers that share the envs."""
        self.is_async = self.wait_num != n or self.timeout is not None
        self._is_plain = overrides_nothing(self, "send", "recv")
        """True if `step` may do without `send` and `recv`."""
        self._exchanges = not self.is_async and self._is_plain
        """True if `step` of all envs is one exchange with the engine."""
        make_backend, name = backend_maker(worker_fn, backend, lazy), type(self).__name__
        options: dict[str, Any] = {"wait_num": self.wait_num, "timeout": self.timeout, "num_workers": self.num_workers}
        options |= {"copy": copy, "stack_obs": stack_obs, "on_error": on_error, "max_restarts": max_restarts}
        options |= {"strict": strict, "check_spaces": check_spaces, "check_actions": check_actions}
        options |= {"name": name, "warns": self._warns_unclosed}

        def new_engine() -> Engine:
            return Engine(make_backend(), own_env_fns(fns), **options)

        self.engine: Engine = NotStarted(name)  # type: ignore[assignment]
        """Runs the rounds; for facades and collectors, see `engine_of`."""
        self.lazy = lazy
        self._restart = new_engine if lazy else None
        if not lazy:
            self._open(new_engine)

    def _open(self, new_engine: Callable[[], Engine]) -> None:
        self.engine = new_engine()
        self.num_workers = self.engine.num_workers

    # Stepping.

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Reset the envs `id` (default all) and wait for them, also in async mode; returns (obs, info).

        Rows are in the order of `id`. `seed`: an int s gives env i the seed s + i, a list has one seed for each env of
        `id`. `options`: a dict for all, or a list with one for each. Other arguments go to every `reset`. An env that
        failed is started again. Raises RuntimeError for an env that is still stepping.
        """
        self.start()
        return self.engine.reset(self._as_ids(id, env_id), kwargs)

    def step(
        self, action: Any, id: Any = None, *, env_id: Any = None, reset: Any = None, autoreset: Any = False
    ) -> Step:
        """Step the envs `id` (default all) and return (obs, rew, terminated, truncated, info).

        Row j belongs to env id[j]; with `wait_num` or `timeout` the rows are those of the envs that are ready, by
        ascending id, and `info[j]["env_id"]` is their id. `action` has one row an env, of any array library; None sends
        nothing and only waits for what is in flight. Actions are cast to the dtype of the action space; numbers of
        another shape than (k, *space.shape) are a ValueError, but (k,) and (k, 1) are the same. Envs in `reset`
        (ids or a mask, among `id`) are reset instead of stepped, in the same round; their action is ignored. With
        `autoreset` an env whose episode this step ends is reset in the same round too: its row has the first
        observation of the next episode and the reward and flags of the last step, and its info is that of the reset,
        with `final_obs` and `final_info` of the step (as SAME_STEP mode of gymnasium's vector envs). Instead of True
        it takes the seeds of these resets: an array or list with one for each env that steps (-1 or None: no seed).

        obs: stacked (k, ...), a dict or tuple of such, or an object array for what cannot be stacked; rew: float64
        (k,) or (k, m); terminated, truncated: bool (k,); info: object array of dicts.
        """
        engine = self.engine
        if self._exchanges and action is not None and id is None and env_id is None:
            return engine.exchange(action, reset, autoreset)
        if action is None and reset is None:
            engine.check_open()
            self._as_ids(id, env_id)
            if not self.is_async and not engine.status.in_flight:
                raise ValueError(
                    "step(None) waits for steps in flight, which only async mode or send() can have; "
                    "action must be not-None for non-async: pass one action for each env"
                )
            return self.recv()
        if self._is_plain:
            return engine.step(action, self._ids_of_round(action, id, env_id, reset), reset, autoreset)
        try:
            self.send(action, id, env_id=env_id, reset=reset, autoreset=autoreset)
            return self.recv()
        except INTERRUPTS as error:  # between the two
            engine.abandon(error)
            raise

    def send(
        self,
        action: Any,
        id: Any = None,
        *,
        env_id: Any = None,
        reset: Any = None,
        autoreset: Any = False,
        **kwargs: Any,
    ) -> None:
        """The first half of `step`: check everything, start the envs, return at once.

        `kwargs` go to the envs in `reset`; a list as `seed` follows the order of `reset`. `send(None, reset=ids)` only
        resets. ValueError for a wrong number of actions or no action, IndexError, TypeError and ValueError for ids,
        RuntimeError for an env that is stepping, and the old error of an env that failed: then nothing is sent.
        """
        ids = self._ids_of_round(action, id, env_id, reset)
        if action is not None:
            self.engine.send(action, ids, reset, autoreset, kwargs)
        else:
            self.engine.send(None, ids, None, False, kwargs)

    def _ids_of_round(self, action: Any, id: Any, env_id: Any, reset: Any) -> np.ndarray | None:
        """The ids of a call of `send`, None for all in their order."""
        self.engine.check_open()
        if action is not None:
            return self._as_ids(id, env_id)
        if reset is None:
            raise ValueError("send() needs one action for each env, or ids to reset")
        if id is not None or env_id is not None:
            raise ValueError("send(None, id) has nothing to do for these envs; pass actions, or only reset=")
        return self._as_ids(reset)

    def recv(self) -> Step:
        """The second half of `step`: wait for what is in flight and return it.

        All of it, or as much as `wait_num` and `timeout` say. RuntimeError if nothing is in flight. The error of an env
        that failed is raised with the others' results in its `partial`.
        """
        return self.engine.receive()

    def rand_step(self, id: Any = None, **kwargs: Any) -> Step:
        """`step` with an action drawn from the action space of each env `id` (default all), which `seed` seeds."""
        spaces = self.action_space
        return self.step([spaces[i].sample() for i in self._wrap_id(id)], id, **kwargs)

    # The ids of a call.

    def _as_ids(self, id: Any, env_id: Any = None) -> np.ndarray | None:
        """The ids of a call, None for all in their order."""
        if env_id is not None:
            if id is not None:
                raise TypeError("pass id or env_id, which are two names of one argument, not both")
            id = env_id
        if id is None:
            return None
        ids = as_ids(id, self.env_num)
        return None if len(ids) == self.env_num and ids.tolist() == self.engine.all_ids else ids

    def _wrap_id(self, id: Any = None) -> list[int]:
        """The ids of a call as a list (a name that subclasses written for tianshou use)."""
        ids = self._as_ids(id)
        return list(self.engine.all_ids) if ids is None else ids.tolist()

    # Counts and states.

    @property
    def workers(self) -> list[Any]:
        """The workers that `worker_fn` made, one an env; AttributeError for a vector env without."""
        self.engine.check_open()
        backend = self.engine.backend
        if not isinstance(backend, EnvWorkerBackend):
            reach = "reach its envs by get_env_attr, set_env_attr and call"
            raise AttributeError(f"{type(self).__name__} has no workers of one env each; {reach}")
        return backend.env_workers

    @property
    def is_closed(self) -> bool:
        """True if `close` was called, or the envs of one with `lazy` are not made yet."""
        return self.engine.closed

    @property
    def num_envs(self) -> int:
        """The number of envs, as gymnasium calls it."""
        return self.env_num

    def alive(self) -> list[bool]:
        """Return for each env if it exists: False if its worker has ended. Does not wait."""
        return self.engine.alive()

    def stats(self) -> dict[str, Any]:
        """Return counts and seconds since the start, and which envs are slow.

        `rounds`, `steps`, `resets`: counts of calls and of envs; `dispatch_s`, `wait_s`: seconds of this process;
        `round_p50_s`, `round_p99_s`: percentiles of the last 1,024 rounds (None before the first); `worker_busy_s`:
        seconds of each worker inside rounds; `slowest_worker`, `slowest_env_ids`: the busiest and its envs; `restarts`:
        of workers; `absorbed`: failures that on_error="restart" turned into truncated rows. With worker processes,
        unless `wait_num` or `timeout` is set, also `openmp_active`, `openmp_rounds` (rounds before which OpenMP threads
        of this process were ended), `openblas_shortened` (OpenBLAS's sleep sooner): they take the workers' CPUs.
        """
        return self.engine.stats()

    # Attributes.

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """The attribute `key` of the envs `id` (default all), found through wrappers, as a list in the order of `id`.

        AttributeError, with the env named, if an env and its wrappers do not have it; RuntimeError for an env that is
        stepping.
        """
        return self._call(id, "get_env_attr", (key,))

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set the attribute where `get_env_attr` finds it, or on the innermost env if it is new."""
        self._call(id, "set_env_attr", (key, value))

    def call(self, name: str, /, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call the method `name` of the envs `id`, in all workers at once; what is not a method is returned (as
        gymnasium's `call`).
        """
        return self._call(id, "call", (name, args, kwargs))

    def render(self, id: Any = None, **kwargs: Any) -> list[Any]:
        """The frame of each env `id` (default all), by `env.render(**kwargs)`; RuntimeError while any is stepping."""
        self.engine.check_open()
        if self.engine.status.in_flight:
            raise RuntimeError(f"Environments {self.waiting_id} are still stepping, cannot render them now.")
        return self._call(id, "render", (kwargs,))

    def get_state(self, id: Any = None) -> list[Any]:
        """The state of each env `id` (default all), for `set_state`; it can be pickled where the env's can.

        NotImplementedError for an env without one: there is that of the emulator (ale-py), of the physics (gymnasium's
        MuJoCo envs), or what the env's own `get_state()` returns; and what wrappers of gymnasium and transforms keep
        along the episode: steps, frames, sums.
        """
        return self._call(id, "get_state", ())

    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """Put the envs `id` (default all) into these states, one each, of `get_state`; they can be stepped then."""
        self.engine.check_open()
        self.engine.calls.set_states(self._as_ids(id), states)

    def _call(self, id: Any, op: str, args: tuple[Any, ...]) -> list[Any]:
        self.engine.check_open()
        return self.engine.calls.run(self._as_ids(id), op, args)

    # Seeds.

    def seed(self, seed: Any = None) -> list[int | None]:
        """Seed every env and action space: an int s gives s, s + 1, ..., a list needs one seed an env.

        An env with a `seed` method is seeded by it, any other by `reset(seed=)`, so that it can be stepped; that is a
        call of the outermost wrapper's `reset`. None does nothing. ValueError for a wrong count or a bad seed, before
        any env is touched.
        """
        self.start()
        self.engine.status.check_idle(None)
        seeds = spread_seeds(seed, self.engine.all_ids)
        self._seed(seeds)
        return seeds

    def _seed(self, seeds: Sequence[int | None]) -> None:
        if ids := self.engine.calls.seed(seeds):
            outermost = self if self.outermost is None else self.outermost
            outermost.reset(None if len(ids) == self.env_num else np.array(ids), seed=[seeds[i] for i in ids])

    def set_seed(self, seed: int | None, static_seed: bool = False) -> int | None:
        """Seed the envs with a chain of seeds that starts at `seed`, and return the next one (as torchrl's `set_seed`).

        `static_seed` gives every env the same seed, and returns it.
        """
        self.start()
        self.engine.status.check_idle(None)
        if seed is None:
            return None
        chain = [check_seed(seed)] * (self.env_num + 1) if static_seed else seed_chain(seed, self.env_num)
        self._seed(chain[:-1])
        return chain[-1]

    # Life.

    def start(self) -> None:
        """Make the envs if they are not there; only with `lazy`, otherwise ClosedError after `close`."""
        if self._restart is not None and self.is_closed:
            self._open(self._restart)
        self.engine.check_open()

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        self.engine.close()

    def __enter__(self) -> Any:
        return self

    def note_exception(self, error: BaseException) -> None:
        """Called before `close` where an exception ends the caller's loop; for classes that keep data of the loop."""

    def __exit__(self, *exception: Any) -> None:
        try:
            if exception and exception[1] is not None:
                self.note_exception(exception[1])
        finally:
            self.close()

    def __len__(self) -> int:
        return self.env_num

    def __repr__(self) -> str:
        parts = [f"{self.env_num} envs", *([f"{self.num_workers} workers"] if self.num_workers else [])]
        if self.is_async:
            parts += [f"wait_num={self.wait_num}", f"timeout={self.timeout}"]
        return f"{type(self).__name__}({', '.join(parts)}{', closed' if self.is_closed else ''})"

    def __reduce__(self) -> Any:
        raise TypeError("vector envs hold processes and cannot be pickled or copied; pickle the env_fns instead")


def overrides_nothing(venv: Any, *methods: str) -> bool:
    """True if these methods are those of BaseVectorEnv: a wrapper or subclass may have its own, which must be used."""
    return all(getattr(type(venv), name, None) is getattr(BaseVectorEnv, name) for name in methods)


def engine_of(venv: Any) -> Engine | None:
    """The engine of `venv`, if stepping that directly is the same as stepping `venv`; else None.

    None for what is no vector env of ours, and for wrappers and subclasses with a `reset`, `step`, `send` or `recv` of
    their own, which would be bypassed.
    """
    return venv.engine if overrides_nothing(venv, "reset", "step", "send", "recv") else None
