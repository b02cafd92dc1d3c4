"""BaseVectorEnv: many envs behind one object. Where the envs live is the backend's business."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from vecenv.backends.base import Backend
from vecenv.backends.env_worker import PerEnvBackend
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.memory.layout import Layout, common_layout
from vecenv.caller_warnings import warn_caller
from vecenv.engine.checks import check_count, check_env_fns, check_spaces_equal, check_timeout, default_workers, keeps
from vecenv.engine.recovery import Recovery
from vecenv.engine.results import HandOver, Step
from vecenv.errors import ClosedError
from vecenv.rounds import Rounds

CLOSE_TIMEOUT = 5.0
_forks = 0
"""How often this process is a copy of another: a cheaper question than the process id."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class BaseVectorEnv(Rounds):
    """Runs many envs as one (contract of tianshou's BaseVectorEnv: ids, no autoreset, `wait_num` and `timeout`).

        venv = ShmemVectorEnv([lambda: gym.make("CartPole-v1")] * 8)
        obs, info = venv.reset()
        while True:
            obs, rew, terminated, truncated, info = venv.step(policy(obs))
            done = terminated | truncated
            if done.any():
                obs[done], info[done] = venv.reset(done)

    Arguments:
        env_fns: one callable an env, each called exactly once.
        worker_fn: a class or function that makes an `EnvWorker` of an env_fn, for workers of your own; else `backend`
            decides.
        wait_num: return from `step` as soon as this many envs are done (1 .. n); more if more are.
        timeout: seconds after which `step` returns what is done; if nothing is, it returns as soon as the first env is.
        backend: a fresh `Backend`.
        num_workers: how many workers share the envs; default: the CPUs that this process may use, or one worker an
            env with `wait_num` or `timeout`.
        copy: False returns views of the arena for full batches, valid until the next call.
        stack_obs: False returns Dict and Tuple observations as an object array of one dict or tuple an env.
        on_error: "raise", or "restart" to turn the failure of an env into a row with truncated=True and
            info["restarted"]=True and info["error"], its text; at most `max_restarts` times a minute and env.
        strict: refuse to step an env that was not reset, or whose episode is over.
        check_spaces: refuse envs with unequal spaces.
        check_actions: refuse actions that are not in the action space; else they reach the env as they are.

    Guarantees: a call that is refused leaves every env untouched; returned arrays never change later; the failure of
    one env loses no result of another (`error.partial`); every wait ends when a worker dies.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        worker_fn: Callable[[Callable[[], Any]], Any] | None = None,
        wait_num: int | None = None,
        timeout: float | None = None,
        *,
        backend: Backend | None = None,
        num_workers: int | None = None,
        copy: bool = True,
        stack_obs: bool = True,
        on_error: str = "raise",
        max_restarts: int = 5,
        strict: bool = False,
        check_spaces: bool = False,
        check_actions: bool = False,
    ) -> None:
        self.is_closed = False
        self._env_fns = check_env_fns(env_fns)
        n = self.env_num = len(self._env_fns)
        self.wait_num = n if wait_num is None else check_count("wait_num", wait_num, n)
        self.timeout = check_timeout(timeout)
        self.is_async = self.wait_num != n or timeout is not None
        self._backend = _backend_for(worker_fn, backend)
        self._recovery = Recovery(self._backend, on_error, max_restarts)
        if num_workers is None:
            num_workers = default_workers(n, self.is_async)
        num_workers = check_count("num_workers", num_workers, n)
        layout = self._start(num_workers, check_spaces)
        self.num_workers = self._backend.num_workers
        self._action_leaf = layout.action
        spaced = any(r.observation_space is not None for r in self._reports)
        self._strict, self._check_actions = strict, check_actions
        if layout.action is not None and not strict and not check_actions:
            self._plain_actions = (n, *layout.action.shape), layout.action.dtype
            self._steps_plainly = not self.is_async and keeps(self, BaseVectorEnv, "send", "recv")
        self._all_ids = list(range(n))
        self._hand_over = HandOver(self._arena, layout, self._all_ids, copy=copy, stack_obs=stack_obs, spaced=spaced)
        self._unreset = np.ones(n, dtype=np.bool_)
        self._order: list[np.ndarray | None] = []
        self._status: Any = self._arena.status.data
        self._all_done, self._all_idle = bytes([opcodes.DONE]) * n, bytes([opcodes.IDLE]) * n
        self._all_answered = self._enough(n)
        self._resets_in_flight = {}
        self._rounds = self._steps = self._resets = 0
        self._dispatch_time = self._wait_time = 0.0

    def _start(self, num_workers: int, check_spaces: bool) -> Layout:
        """Make the envs and the memory for their batches, or close what was made of them."""
        self._owner, self._forks = os.getpid(), _forks
        # Before anything is started, so that an interrupted constructor leaves nothing behind.
        self._finalizer = weakref.finalize(self, _shut_down, self._backend, type(self).__name__, self._owner)
        self._finalizer.atexit = False
        _open.add(self)
        try:
            self._reports = self._backend.start(self._env_fns, num_workers, self.is_async)
            if check_spaces:
                check_spaces_equal(self._reports)
            layout = common_layout(
                [r.observation_space for r in self._reports], [r.action_space for r in self._reports]
            )
            self._arena = self._backend.bind(layout)
        except BaseException:
            self.is_closed = True
            self._finalizer.detach()
            self._backend.close(CLOSE_TIMEOUT)
            raise
        return layout

    # Stepping.

    def reset(self, id: Any = None, *, env_id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Reset the envs `id` (default all) and wait for them, also in async mode; returns (obs, info).

        Rows are in the order of `id`. `seed`: an int s gives env i the seed s + i, a list has one seed for each env of
        `id`. Other arguments go to every `reset`. An env that failed is started again. Raises RuntimeError for an env
        that is still stepping.
        """
        self._check_open()
        ids = self._as_ids(id, env_id)
        self._send_resets(ids, kwargs)
        asked = self._all_ids if ids is None else ids.tolist()
        self._wait(self._answered(asked), None)
        extras = self._take(ids, asked)
        return self._hand_over.obs(ids, extras), self._hand_over.info(asked, extras)

    def step(
        self, action: Any, id: Any = None, *, env_id: Any = None, reset: Any = None, autoreset: bool = False
    ) -> Step:
        """Step the envs `id` (default all) and return (obs, rew, terminated, truncated, info).

        Row j belongs to env id[j]; with `wait_num` or `timeout` the rows are those of the envs that are ready, by
        ascending id, and `info[j]["env_id"]` tells which. `action` has one row an env, of any array library; None sends
        nothing and only waits for what is in flight. Envs in `reset` (ids or a mask, among `id`) are reset instead of
        stepped, in the same round; their action is ignored. With `autoreset` an env whose episode this step ends is
        reset in the same round too: its row has the first observation of the next episode and the reward and flags of
        the last step, and its info is that of the reset, with `final_obs` and `final_info` of the step (as SAME_STEP
        mode of gymnasium's vector envs).

        obs: stacked (k, ...), a dict or tuple of such, or an object array for what cannot be stacked; rew: float64
        (k,) or (k, m); terminated, truncated: bool (k,); info: object array of dicts.
        """
        self._check_open()
        if self._steps_plainly and id is None and env_id is None:
            extras = self._exchange(action, reset, autoreset)
            if extras is not None:
                return self._hand_over.rows(None, self._all_ids, extras)
        if action is None and reset is None:
            self._as_ids(id, env_id)
            if not self.is_async and not self._in_flight():
                raise ValueError(
                    "step(None) waits for steps in flight, which only async mode or send() can have; "
                    "action must be not-None for non-async: pass one action for each env"
                )
        else:
            self.send(action, id, env_id=env_id, reset=reset, autoreset=autoreset)
        return self.recv()

    def send(
        self,
        action: Any,
        id: Any = None,
        *,
        env_id: Any = None,
        reset: Any = None,
        autoreset: bool = False,
        **kwargs: Any,
    ) -> None:
        """The first half of `step`: check everything, start the envs, return at once.

        `kwargs` go to the envs in `reset`. `send(None, reset=ids)` only resets. Nothing is sent if anything is wrong:
        ValueError for a wrong number of actions or no action, IndexError, TypeError and ValueError for ids,
        RuntimeError for an env that is still stepping, and the old error of an env that failed.
        """
        self._check_open()
        begin = perf_counter()
        if id is None and env_id is None and not kwargs and self._send_plainly(action, reset, autoreset):
            ids = None
        elif action is not None:
            ids = self._as_ids(id, env_id)
            resets = None if reset is None else self._reset_rows(ids, reset)
            if autoreset and not self._backend.autoresets:
                raise TypeError(
                    f"{type(self._backend).__name__} cannot reset an env in the round of its last step (autoreset="
                    "True); use reset(id), or step(action, reset=terminated | truncated) in the next round"
                )
            self._send_steps(ids, action, resets, autoreset, kwargs)
        elif reset is None:
            raise ValueError("send() needs one action for each env, or ids to reset")
        elif id is not None or env_id is not None:
            raise ValueError("send(None, id) has nothing to do for these envs; pass actions, or only reset=")
        else:
            ids = self._as_ids(reset)
            self._send_resets(ids, kwargs)
        self._order.append(ids)
        self._dispatch_time += perf_counter() - begin

    def recv(self) -> Step:
        """The second half of `step`: wait for what is in flight and return it.

        All of it, or as much as `wait_num` and `timeout` say. RuntimeError if nothing is in flight. The error of an env
        that failed is raised with the others' results in its `partial`.
        """
        received = self._receive()
        return self._hand_over.rows(*received)

    def _receive(self) -> tuple[np.ndarray | None, list[int], Mapping[int, Extra]]:
        """Wait for what `recv` returns and take it: what `HandOver.rows` makes the batch of."""
        self._check_open()
        order = self._order
        if len(order) == 1 and order[0] is None and not self.is_async:
            self._wait(self._all_answered, None)
            self._order = []
            return None, self._all_ids, self._take(None, self._all_ids)
        in_flight = self._in_flight()
        if in_flight == 0:
            raise RuntimeError("step(None): no step is in flight; call step(action) or send(action) first")
        need = min(self.wait_num, in_flight) if self.is_async else in_flight
        self._wait(self._enough(need), self.timeout)
        if self.is_async and not (one := self._enough(1))():
            self._wait(one, None)
        ids, asked = self._finished_ids()
        return ids, asked, self._take(ids, asked)

    # Life.

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"Methods of {type(self).__name__} cannot be called after close.")
        if self._forks != _forks:
            raise ClosedError(
                f"this vector env belongs to process {self._owner} and cannot be used in process {os.getpid()}; "
                "make one here"
            )

    def close(self) -> None:
        """Close all envs and end the workers: at most 5 seconds, then by force. A second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._finalizer.detach() is None or self._owner != os.getpid():
            return
        try:
            for problem in self._backend.close(CLOSE_TIMEOUT):
                warn_caller(problem)
        finally:
            # The memory goes with the last view of it that the caller holds, not with this object.
            for name in ("_arena", "_status", "_all_answered", "_hand_over", "_recovery", "_backend"):
                self.__dict__.pop(name, None)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return self.env_num

    def __repr__(self) -> str:
        parts = [f"{self.env_num} envs", f"{self.num_workers} workers"]
        if self.is_async:
            parts += [f"wait_num={self.wait_num}", f"timeout={self.timeout}"]
        return f"{type(self).__name__}({', '.join(parts)}{', closed' if self.is_closed else ''})"

    def __reduce__(self) -> Any:
        raise TypeError("vector envs hold processes and cannot be pickled or copied; pickle the env_fns instead")


def _backend_for(worker_fn: Any, backend: Any) -> Backend:
    """The backend that is meant; TypeError for none, for two and for what is none."""
    if (worker_fn is None) == (backend is None):
        raise TypeError(
            "pass either worker_fn, which makes a worker of each env_fn, or backend; "
            "or use DummyVectorEnv, SubprocVectorEnv or ShmemVectorEnv"
        )
    if not callable(worker_fn) and not isinstance(backend, Backend):
        raise TypeError(f"worker_fn must be callable and backend a Backend, got {worker_fn!r} and {backend!r}")
    return PerEnvBackend(worker_fn) if backend is None else backend


_open: weakref.WeakSet[BaseVectorEnv] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At interpreter exit: whatever is still open, without a word."""
    for venv in list(_open):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            venv.close()


def _shut_down(backend: Backend, name: str, owner: int) -> None:
    """End the workers of a vector env that was never closed; not in a forked copy of the process."""
    if owner == os.getpid():
        backend.close(CLOSE_TIMEOUT)
        warnings.warn(f"unclosed {name}: call close() or use it in a with statement", ResourceWarning, stacklevel=2)
