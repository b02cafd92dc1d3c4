"""`BaseVectorEnv`: many envs behind one object. A backend runs the envs in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenv.arguments import (
    as_ids,
    check_count,
    check_env_fns,
    check_seed,
    check_timeout,
    resolve_env_fns,
    seed_chain,
    spread_seeds,
)
from vecenv.backends.backend import Backend
from vecenv.backends.env_worker import EnvWorkerBackend, backend_maker
from vecenv.backends.host.own_process import logger
from vecenv.engine.engine import Engine
from vecenv.engine.env_calls import EngineProperties
from vecenv.engine.lifetime import NotStarted
from vecenv.engine.mark import Layer, Mark, is_layer_call
from vecenv.engine.results import Step
from vecenv.errors import OneEnvPerProcess


class BaseVectorEnv(Layer, EngineProperties):
    """Vector env that steps all or some envs, and resets an env only on request (as tianshou's BaseVectorEnv).

        venv = ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
        obs, info = venv.reset()
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], info[done] = venv.reset(done)

    Arguments:
        env_fns: one callable or `gymnasium.make` id per env, for example `["CartPole-v1"] * 8`. An `EnvCreator` lets
            envs share state.
        worker_fn: a function that makes an `EnvWorker` from an env_fn, in place of `backend`.
        wait_num: `step` returns as soon as this many envs (1 to n) have answered.
        timeout: seconds after which `step` returns the ready results. If none is ready, it waits for the first.
        backend: a new `Backend`, or a function that makes a backend. `lazy` requires a function.
        num_workers: number of workers. Default: one per CPU. One per env if `wait_num` or `timeout` is set, or for envs
            that share state in their process (see docs/guides/works-with.md).
        copy: False returns batches of all envs as views, valid until the next call.
        stack_obs: False returns Dict and Tuple observations as an object array with a dict or tuple per env.
        on_error: "raise", or "restart" to retry failed resets, and to turn a failed step into a truncated row (result)
            with the previous observation. The info (with `autoreset`: `final_info`) has `restarted=True` and the
            failure's message as `error`.
        max_restarts: failures per env and minute that "restart" absorbs. The next failure raises.
        strict: raise for a step of an env that was not reset, or whose episode is over.
        check_spaces: raise if envs have different spaces.
        check_actions: raise for actions outside the action space, not only for wrong shapes.
        lazy: make the envs in the first `start`, `reset` or `seed`. After `close`, these calls make new envs.

    docs/guarantees.md has all guarantees.
    """

    outermost: Any = None
    """Outermost wrapper while `seed` runs, else None. `seed` resets envs through this wrapper."""
    _warns_unclosed = True

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
        self.is_async = self.wait_num != n or self.timeout is not None
        self._is_plain = overrides_nothing(self, "send", "recv")
        """True if `step` may bypass `send` and `recv`, because no subclass overrides them."""
        self._exchanges = not self.is_async and self._is_plain
        make_backend, name = backend_maker(worker_fn, backend, lazy), type(self).__name__
        options: dict[str, Any] = {"wait_num": self.wait_num, "timeout": self.timeout, "num_workers": self.num_workers}
        options |= {"copy": copy, "stack_obs": stack_obs, "on_error": on_error, "max_restarts": max_restarts}
        options |= {"strict": strict, "check_spaces": check_spaces, "check_actions": check_actions}
        self.call_mark = Mark()
        options |= {"name": name, "warns": self._warns_unclosed, "mark": self.call_mark}

        def new_engine() -> Engine:
            try:
                return Engine(make_backend(), resolve_env_fns(fns), **options)
            except OneEnvPerProcess as error:
                if options["num_workers"] is not None or isinstance(backend, Backend):
                    instead = f"leave num_workers (num_processes, max_concurrency) out, or pass {n}"
                    raise OneEnvPerProcess(f"{error}: {instead}") from None
                logger.info("%s: %d workers run one env each", str(error), n)
            return Engine(make_backend(), resolve_env_fns(fns), **{**options, "num_workers": n})

        self.engine: Engine = NotStarted(name)  # type: ignore[assignment]
        """Engine that runs the envs. Facades and collectors use `engine_of`, because a subclass may override `step`."""
        self.lazy = lazy
        self._restart = new_engine if lazy else None
        if not lazy:
            self._open(new_engine)

    def _open(self, new_engine: Callable[[], Engine]) -> None:
        self.engine = new_engine()
        self.num_workers = self.engine.num_workers

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Reset the envs `id` (default: all), wait for them, and return (obs, info).

        Rows follow the order of `id`. With an int `seed`, env i gets seed + i. A list `seed` has an entry per env in
        `id`. `options` is a dict, or a list with a dict per env. Other arguments go to each env's `reset`. If the
        worker of an env has ended, a new worker starts. Raises RuntimeError if an env to reset is still stepping.
        """
        self.start()
        return self.engine.reset(self._as_ids(id, env_id), kwargs)

    def step(
        self,
        action: Any,
        id: Any = None,
        *,
        env_id: Any = None,
        reset: Any = None,
        autoreset: Any = False,
        **kwargs: Any,
    ) -> Step:
        """Step the envs `id` (default: all), and return (obs, rew, terminated, truncated, info).

        Arguments:
            action: one action per env, of any array library. Actions are cast to the dtype of the action space. A wrong
                shape raises ValueError; `(k,)` and `(k, 1)` count as equal. With None, `step` only waits for
                envs that are stepping, or resets the envs in `reset`.
            id, env_id: ids or a mask (synonyms). Row j belongs to env `id[j]`. With `wait_num` or `timeout`, rows
                follow ascending ids, and `info[j]["env_id"]` is the id.
            reset: ids or a mask of envs to reset instead of stepping. The actions for these envs are ignored.
            autoreset: True, or one seed per env (-1: no seed), also resets envs whose episode ends in this step (as
                gymnasium's SAME_STEP). Their rows have the reward and flags of the step, and the observation and info
                of the reset. The step's observation and info are in the info, as `final_obs` and `final_info`.
            kwargs: arguments of `reset` for the envs in `reset`, such as `options` and `seed`. Lists follow the order
                of `reset`.

        Returns for k envs:
            obs: `(k, ...)`, a dict or tuple of such arrays, or an object array if observations cannot be stacked.
            rew: float64 `(k,)` or `(k, m)`. terminated, truncated: bool `(k,)`. info: object array of dicts.
        """
        if self._exchanges and action is not None and id is None and env_id is None and not kwargs:
            return self.engine.exchange(action, reset, autoreset)
        engine = self.engine
        if action is None and reset is None and not kwargs:
            engine.check_open()
            self._as_ids(id, env_id)
            if not self.is_async and not engine.status.in_flight:
                raise ValueError(
                    "step(None) waits for steps in flight, which only async mode or send() can have; "
                    "action must be not-None for non-async: pass one action for each env"
                )
            return self.recv()
        if self._is_plain:
            return engine.step(action, self._ids_of_round(action, id, env_id, reset), reset, autoreset, kwargs)
        return self._step_in_halves(action, id, env_id=env_id, reset=reset, autoreset=autoreset, **kwargs)

    @is_layer_call
    def _step_in_halves(self, *args: Any, **kwargs: Any) -> Step:
        self.send(*args, **kwargs)
        return self.recv()

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
        """Start a step without waiting: the first half of `step`.

        `kwargs` are reset arguments for the envs in `reset`. Lists `seed` and `options` follow the order of `reset`.
        `send(None, reset=ids)` only resets.

        Raises ValueError, IndexError or TypeError for wrong actions or ids, RuntimeError if one of these envs is
        still stepping, and the earlier error of a failed env. After an error, no env has started.
        """
        ids = self._ids_of_round(action, id, env_id, reset)
        if action is not None:
            self.engine.send(action, ids, reset, autoreset, kwargs)
        else:
            self.engine.send(None, ids, None, False, kwargs)

    def _ids_of_round(self, action: Any, id: Any, env_id: Any, reset: Any) -> np.ndarray | None:
        self.engine.check_open()
        if action is not None:
            return self._as_ids(id, env_id)
        if reset is None:
            raise ValueError("send() needs one action for each env, or ids to reset")
        if id is not None or env_id is not None:
            raise ValueError("send(None, id) has nothing to do for these envs; pass actions, or only reset=")
        return self._as_ids(reset)

    def recv(self) -> Step:
        """Wait as `wait_num` and `timeout` require, and return the results: the second half of `step`.

        Raises RuntimeError if no env is stepping or being reset. If an env fails, raises its error, with the remaining
        results as `error.partial`.
        """
        return self.engine.receive()

    def rand_step(self, id: Any = None, **kwargs: Any) -> Step:
        """Step the envs `id` (default: all) with samples of their action spaces."""
        spaces = self.action_space
        return self.step([spaces[i].sample() for i in self._wrap_id(id)], id, **kwargs)

    def _as_ids(self, id: Any, env_id: Any = None) -> np.ndarray | None:
        if env_id is not None:
            if id is not None:
                raise TypeError("pass id or env_id, which are two names of one argument, not both")
            id = env_id
        if id is None:
            return None
        ids = as_ids(id, self.env_num)
        return None if len(ids) == self.env_num and ids.tolist() == self.engine.all_ids else ids

    def _wrap_id(self, id: Any = None) -> list[int]:
        """Return `id` as a list of ids. Subclasses written for tianshou call this method."""
        ids = self._as_ids(id)
        return list(self.engine.all_ids) if ids is None else ids.tolist()

    @property
    def workers(self) -> list[Any]:
        """Workers that `worker_fn` made, one per env. Raises AttributeError without `worker_fn`."""
        self.engine.check_open()
        backend = self.engine.backend
        if not isinstance(backend, EnvWorkerBackend):
            reach = "reach its envs by get_env_attr, set_env_attr and call"
            raise AttributeError(f"{type(self).__name__} has no workers of one env each; {reach}")
        return backend.env_workers

    @property
    def is_closed(self) -> bool:
        """True after `close`, and with `lazy` also before the start."""
        return self.engine.closed

    @property
    def num_envs(self) -> int:
        """Number of envs."""
        return self.env_num

    def alive(self) -> list[bool]:
        """Return a bool per env, without waiting: True if the env's worker runs.

        An idle Ray actor on another node is asked by this call, and its end is known to a later call.
        """
        return self.engine.alive()

    def stats(self) -> dict[str, Any]:
        """Return counts and seconds since the start. A round is a call that steps or resets envs.

        - `rounds`, `steps`, `resets`: number of rounds, env steps, and env resets (without autoresets)
        - `dispatch_s`, `wait_s`: seconds that this process computed in rounds, and waited for envs
        - `round_p50_s`, `round_p99_s`: percentiles of the last 1,024 rounds (`None` before the first): seconds of a
          sync `step` of all envs, else seconds of waiting
        - `worker_busy_s`: seconds in rounds, per worker
        - `slowest_worker`, `slowest_env_ids`: index of the busiest worker, and its env ids
        - `restarts`, `absorbed`: number of restarted workers, and of failures that on_error="restart" absorbed
        - `recycled`, `recycled_because`: with `recycle_after`, number of replaced workers, in all and by reason
          ("episodes", "memory", "function")
        - `openmp_active`, `openmp_rounds`: True if rounds end idle OpenMP threads, and the number of such rounds
        - `openblas_shortened`: True if OpenBLAS threads sleep sooner

        The last three exist with `release_openmp` and worker processes, without `wait_num` and `timeout`.
        """
        return self.engine.stats()

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """Return the attribute `key` of each env in `id` (default: all), searched from the outermost wrapper inwards.

        Raises AttributeError if an env lacks the attribute, RuntimeError if one of these envs is still stepping.
        """
        return self._call(id, "get_env_attr", (key,))

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set an attribute on the wrapper or env where `get_env_attr` finds it, else on the innermost env."""
        self._call(id, "set_env_attr", (key, value))

    def call(self, name: str, /, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call the method `name` of the envs `id` in parallel. If the attribute is not callable, return its value."""
        return self._call(id, "call", (name, args, kwargs))

    def render(self, id: Any = None, **kwargs: Any) -> list[Any]:
        """Return `env.render(**kwargs)` of the envs `id` (default: all).

        Raises RuntimeError if any env is still stepping.
        """
        self.engine.check_open()
        if self.engine.status.in_flight:
            raise RuntimeError(f"Environments {self.waiting_id} are still stepping, cannot render them now.")
        return self._call(id, "render", (kwargs,))

    def get_state(self, id: Any = None) -> list[Any]:
        """Return the states of the envs `id` (default: all), for `set_state`.

        A state has the counters of wrappers, and the emulator's state (ale-py), the physics (gymnasium's MuJoCo envs)
        or the result of the env's `get_state()`. Raises NotImplementedError for other envs.
        """
        return self._call(id, "get_state", ())

    def set_state(self, states: Sequence[Any], id: Any = None) -> None:
        """Set the states of the envs `id` (default: all). These envs need no reset afterwards."""
        self.engine.check_open()
        self.engine.calls.set_states(self._as_ids(id), states)

    def _call(self, id: Any, op: str, args: tuple[Any, ...]) -> list[Any]:
        self.engine.check_open()
        return self.engine.calls.run(self._as_ids(id), op, args)

    def seed(self, seed: Any = None) -> list[int | None]:
        """Seed all envs and action spaces, and return the seeds: s, s + 1, ... for an int s.

        A list `seed` has a seed per env. An env without a method `seed` is reset with the seed. `None` seeds nothing.

        Raises ValueError for wrong seeds, and RuntimeError if an env is still stepping, before any env is seeded.
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
        """Seed the envs with a chain of seeds from `seed`, and return the next seed (as torchrl's `set_seed`).

        With `static_seed`, all envs get `seed`, which is also returned.
        """
        self.start()
        self.engine.status.check_idle(None)
        if seed is None:
            return None
        chain = [check_seed(seed)] * (self.env_num + 1) if static_seed else seed_chain(seed, self.env_num)
        self._seed(chain[:-1])
        return chain[-1]

    def start(self) -> None:
        """With `lazy`, make the envs unless they are open. Without `lazy`, raises ClosedError after `close`."""
        if self._restart is not None and self.is_closed:
            self._open(self._restart)
        self.engine.check_open()

    def close(self) -> None:
        """Close all envs and end the workers. After 5 seconds, kill the remaining worker processes."""
        self.engine.close()

    def __enter__(self) -> Any:
        return self

    def note_exception(self, error: BaseException) -> None:
        """Hook that `__exit__` calls with the exception of the `with` block, before `close`."""

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
        raise TypeError("vector envs cannot be pickled or copied; make another one from the same env_fns")


def overrides_nothing(venv: Any, *methods: str) -> bool:
    return all(getattr(type(venv), name, None) is getattr(BaseVectorEnv, name) for name in methods)


def engine_of(venv: Any) -> Engine | None:
    """Return the engine, or None if the engine would bypass an override of `reset`, `step`, `send` or `recv`."""
    return venv.engine if overrides_nothing(venv, "reset", "step", "send", "recv") else None
