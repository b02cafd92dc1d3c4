"""The contract of a vector env as a list of checks that anyone can run on a backend of their own.

Each check opens a fresh vector env of CountingEnvs, drives it, and compares every row with what the same envs do when
they are called one by one in this process.
"""

from __future__ import annotations

import functools
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv import nest
from vecenv.base import BaseVectorEnv
from vecenv.errors import ClosedError, ObservationError
from vecenv.testing.envs import CountingEnv, RaisesInConstructor, RaisesOnStep
from vecenv.testing.model import N, Twins, assert_same

Factory = Callable[..., BaseVectorEnv]
CLOSE_BOUND = 10.0


def check_vector_env(factory: Factory, checks: Iterable[str] | None = None, patience: float = 60.0) -> None:
    """Check that `factory(env_fns, **options) -> BaseVectorEnv` keeps the contract; AssertionError says what broke.

    The options that are passed are `wait_num` and `timeout`. `checks` are names of `CHECKS` (default all); each may
    take `patience` seconds.
    """
    for name in CHECKS if checks is None else checks:
        problem = _run(CHECKS[name], factory, patience)
        if isinstance(problem, AssertionError):
            raise AssertionError(f"{name}: {problem}") from problem
        if problem is not None:
            raise AssertionError(f"{name}: unexpected {type(problem).__name__}: {problem}") from problem


def _run(check: Callable[[Factory], None], factory: Factory, patience: float) -> BaseException | None:
    """What the check raised. In a thread, because a backend that loses an answer lets its caller wait for ever."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            check(factory)
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="vecenv-check", daemon=True)
    thread.start()
    thread.join(patience)
    return raised[0] if raised else AssertionError(f"it did not end within {patience} s; an answer was lost?")


def check_rows(factory: Factory) -> None:
    """Every row is that of its env at that time, for all ids, some, and in any order; in every form."""
    for form in ("array", "dict", "object"):
        twins = Twins(form=form)
        with factory(twins.env_fns) as venv:
            twins.compare(range(N), venv.reset(seed=7), [twins.reset(i, seed=7 + i) for i in range(N)])
            for ids in (None, [3, 0], [4], None, np.array([1, 2, 0]), None):
                asked = list(range(N)) if ids is None else list(ids)
                actions = [10 * i + 1 for i in asked]
                want = [twins.step(i, a) for i, a in zip(asked, actions, strict=True)]
                twins.compare(asked, venv.step(actions, ids), want)
                over = [i for i, row in zip(asked, want, strict=True) if row[2] or row[3]]
                if over:
                    twins.compare(over, venv.reset(over), [twins.reset(i) for i in over])


def check_options_of_reset(factory: Factory) -> None:
    """`seed` is spread over the ids, other arguments go to each."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        options = {"t": 3}
        result = venv.reset([4, 1], seed=[11, 12], options=options)
        twins.compare(
            [4, 1], result, [twins.reset(4, seed=11, options=options), twins.reset(1, seed=12, options=options)]
        )
        twins.compare([2, 3], venv.reset([2, 3], seed=20), [twins.reset(2, seed=22), twins.reset(3, seed=23)])


def check_mixed_rounds(factory: Factory) -> None:
    """A round may step some envs and reset others; send and recv are the halves of step."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        twins.compare(range(N), venv.reset(), [twins.reset(i) for i in range(N)])
        mask = np.array([False, True, False, False, True])
        result = venv.step([5] * N, reset=mask)
        twins.compare(range(N), result, [twins.reset(i) if mask[i] else twins.step(i, 5) for i in range(N)])
        venv.send([7, 8], [3, 1], reset=[1], seed=50)
        assert venv.waiting_id == [1, 3], f"waiting_id is {venv.waiting_id} after send to 3 and 1"
        venv.send(None, reset=[0])
        result = venv.recv()
        twins.compare([3, 1, 0], result, [twins.step(3, 7), twins.reset(1, seed=51), twins.reset(0)])
        assert venv.ready_id == list(range(N)), f"ready_id is {venv.ready_id} after recv"


def check_async(factory: Factory) -> None:
    """With `wait_num` and `timeout` each accepted action is answered exactly once, whatever the batches are."""
    for wait_num, timeout in ((1, None), (3, None), (None, 0.01), (2, 0.01)):
        twins = Twins(length=1000)
        with factory(twins.env_fns, wait_num=wait_num, timeout=timeout) as venv:
            assert venv.is_async, f"is_async is False with wait_num={wait_num}, timeout={timeout}"
            venv.reset()
            for i in range(N):
                twins.reset(i)
            free, waiting = list(range(N)), dict[int, Any]()
            for turn in range(12):
                actions = [(i + turn) % 100 for i in free]
                waiting |= {i: twins.step(i, a) for i, a in zip(free, actions, strict=True)}
                result = venv.step(actions, free)
                free = [row["env_id"] for row in result[4]]
                least = wait_num if wait_num and not timeout else 1
                assert len(free) >= least, f"{len(free)} rows came back, expected at least {least}"
                assert set(free) <= waiting.keys(), f"rows are of envs {free}, in flight were {sorted(waiting)}"
                assert len(set(free)) == len(free), f"rows are of envs {free}: one came twice"
                twins.compare(free, result, [waiting.pop(i) for i in free])
                assert venv.waiting_id == sorted(waiting), f"{venv.waiting_id} are waiting, expected {waiting.keys()}"
            while waiting:
                result = venv.step(None)
                free = [row["env_id"] for row in result[4]]
                twins.compare(free, result, [waiting.pop(i) for i in free])
            _assert_raises(RuntimeError, "step(None) with nothing in flight", lambda: venv.step(None))


def check_returned_arrays_stay(factory: Factory) -> None:
    """What was returned does not change later, also where the caller or the env writes into its own."""
    for form in ("array", "dict"):
        twins = Twins(form=form)
        with factory(twins.env_fns) as venv:
            kept: list[tuple[np.ndarray, np.ndarray]] = []
            for turn in range(4):
                result = venv.reset() if turn % 2 else venv.step(np.arange(N))
                partial = venv.step([1, 2], [2, 0])
                arrays = [leaf for batch in (result, partial) for part in batch for leaf in nest.leaves(part)]
                kept += [(array, array.copy()) for array in arrays]
                for array, copy in kept:
                    assert bool(np.all(array == copy)), (
                        f"an array of {array.dtype} {array.shape} changed after it was returned"
                    )
                for part in partial[:4]:
                    for leaf in nest.leaves(part):
                        leaf[...] = 0  # the caller's own: must not reach the next results
                kept = [(array, array.copy()) for array, _ in kept]


def check_infos(factory: Factory) -> None:
    """Each info is a fresh dict with its env_id; the env's own is not written to."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        for info in (venv.reset()[1], venv.step([0] * N)[4], venv.step([0], [2])[4]):
            for row in info:
                assert row.__class__ is dict, f"an info is a {type(row).__name__}, expected a dict"
                assert "env_id" in row, f"an info is {row!r}, expected one with env_id"
                row["mine"] = True
        own = venv.get_env_attr("own_info")
        assert own == [{"t": 1}, {"t": 1}, {}, {"t": 1}, {"t": 1}], f"the envs' own infos became {own}"


def check_rejected_calls(factory: Factory) -> None:
    """A call with a mistake in it raises before any env is touched."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        venv.reset()
        before = venv.get_env_attr("calls")
        calls: list[tuple[type[Exception], str, Callable[[], Any]]] = [
            (ValueError, "two actions for three envs", lambda: venv.step([0, 1], [0, 1, 2])),
            (ValueError, "too many actions", lambda: venv.step([0] * (N + 1))),
            (ValueError, "one action for all", lambda: venv.step(3)),
            (ValueError, "no action", lambda: venv.step(None)),
            (IndexError, "an id out of range", lambda: venv.step([0, 0], [0, N])),
            (IndexError, "a negative id", lambda: venv.reset([-1])),
            (ValueError, "an id given twice", lambda: venv.step([0, 0, 0], [1, 2, 1])),
            (ValueError, "no ids", lambda: venv.reset([])),
            (ValueError, "a short mask", lambda: venv.reset([True, False])),
            (TypeError, "a float id", lambda: venv.reset(1.0)),
            (ValueError, "too few seeds", lambda: venv.seed([1, 2])),
            (ValueError, "a negative seed", lambda: venv.reset(seed=-1)),
        ]
        for expected, what, call in calls:
            _assert_raises(expected, what, call)
        after = venv.get_env_attr("calls")
        assert after == before, f"rejected calls reached the envs: they were called {after} times, {before} before"


def check_attributes(factory: Factory) -> None:
    """Attributes are lists in the order of the ids; unknown names raise and leave the venv usable."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        assert venv.get_env_attr("env_id", [3, 1]) == [3, 1], (
            f"get_env_attr of 3 and 1 gave {venv.get_env_attr('env_id', [3, 1])}"
        )
        venv.set_env_attr("length", 9, [2])
        assert venv.get_env_attr("length") == [5, 5, 9, 5, 5], "set_env_attr on env 2 reached others, or not it"
        _assert_raises(AttributeError, "an unknown attribute", lambda: venv.get_env_attr("nope"))
        frames = venv.render()
        assert [int(frame[0, 0, 0]) for frame in frames] == list(range(N)), (
            "render does not give one frame for each env, in order"
        )
        space = twins.envs[0].action_space
        assert venv.action_space == [space] * N, f"action_space is {venv.action_space}, expected {N} times {space}"
        assert (len(venv), venv.num_envs, venv.env_num) == (N, N, N), (
            "len, num_envs and env_num differ from the number of envs"
        )


def check_seeds(factory: Factory) -> None:
    """`seed` gives s, s + 1, ... to the envs and their action spaces."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        assert venv.seed(3) == [3, 4, 5, 6, 7], "seed(3) did not return the seeds used"
        assert venv.get_env_attr("seeded") == [3, 4, 5, 6, 7], f"seed(3) gave the envs {venv.get_env_attr('seeded')}"
        first = [space.sample() for space in venv.action_space]
        venv.seed(3)
        assert first == [space.sample() for space in venv.action_space], "seed does not seed the action spaces"
        wanted = []
        for i, twin in enumerate(twins.envs):
            twin.action_space.seed(3 + i)
            wanted.append(twin.action_space.sample())
        assert first == wanted, f"action spaces give {first} after seed(3), expected {wanted}"


def check_env_errors(factory: Factory) -> None:
    """An env's error arrives as itself, the others' results in `partial`; then the env takes nothing but reset."""
    twins = Twins(infos=False)
    env_fns = [*twins.env_fns[:2], functools.partial(RaisesOnStep, 2, at=2, infos=False), *twins.env_fns[3:]]
    with factory(env_fns) as venv:
        venv.reset()
        for i in range(N):
            twins.reset(i)
        twins.compare(range(N), venv.step([0] * N), [twins.step(i, 0) for i in range(N)])
        error = _assert_raises(ValueError, "an env that raises", lambda: venv.step([4] * N))
        assert "boom in step" in str(error), f"the text of the env's error is lost: {error}"
        partial = getattr(error, "partial", None)
        assert partial is not None, "the results of the other envs are lost: the error has no partial"
        others = [0, 1, 3, 4]
        twins.compare(others, partial[1:], [twins.step(i, 4) for i in others])
        assert venv.failed_id == [2], f"failed_id is {venv.failed_id}, expected [2]"
        assert venv.ready_id == others, f"ready_id is {venv.ready_id}, expected {others}"
        _assert_raises(ValueError, "a step of a failed env", lambda: venv.step([0, 0], [1, 2]))
        twins.compare([1], venv.step([6], [1]), [twins.step(1, 6)])
        twins.compare([2], venv.reset([2]), [twins.reset(2)])
        twins.compare([4, 2], venv.step([8, 9], [4, 2]), [twins.step(4, 8), twins.step(2, 9)])


def check_errors_of_constructors(factory: Factory) -> None:
    """The error of an env_fn arrives as itself."""
    error = _assert_raises(
        ValueError, "an env_fn that raises", lambda: factory([CountingEnv, RaisesInConstructor]).close()
    )
    assert "boom in __init__" in str(error), f"the text of the constructor's error is lost: {error}"


def check_observations_fit_their_space(factory: Factory) -> None:
    """Values keep the dtype and shape of the space; one that would change is an ObservationError."""
    for dtype in (np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64):
        with factory([functools.partial(_Emits, dtype, (2,)), functools.partial(_Emits, dtype, (2,))]) as venv:
            obs, _ = venv.reset()
            assert_same(obs, np.ones((2, 2), dtype), f"an observation of {np.dtype(dtype)}")
    with factory([functools.partial(_Emits, np.uint8, (2,), np.array([300, 1]))] * 2) as venv:
        _assert_raises(ObservationError, "300 for uint8", venv.reset)
    with factory([functools.partial(_Emits, np.float32, (2,), np.ones(1))] * 2) as venv:
        _assert_raises(ObservationError, "a shape of (1,) for (2,)", venv.reset)


def check_env_fns_are_called_once(factory: Factory) -> None:
    """Each env_fn is called exactly once."""
    with tempfile.TemporaryDirectory() as folder:
        with factory([functools.partial(_noted, folder, i) for i in range(N)]) as venv:
            venv.reset()
        calls = [len(list(Path(folder).glob(f"{i}-*"))) for i in range(N)]
        assert calls == [1] * N, f"the env_fns were called {calls} times"


def check_actions_are_the_envs_own(factory: Factory) -> None:
    """What an env does to its action reaches neither the caller nor another env."""
    with factory([_WritesToAction] * 2) as venv:
        venv.reset()
        actions = np.ones((2, 3), np.float32)
        obs = [venv.step(actions)[0] for _ in range(2)][-1]
        assert bool(np.all(actions == 1)), "an env wrote into the caller's actions"
        assert_same(obs, np.ones((2, 3), np.float32), "the action that came to the envs")


def check_close(factory: Factory) -> None:
    """`close` is idempotent and bounded, and ends everything but `len` and `is_closed`; nothing can be pickled."""
    venv = factory(Twins().env_fns)
    venv.reset()
    _assert_raises(TypeError, "pickling a vector env", lambda: pickle.dumps(venv))
    begin = time.monotonic()
    for _ in range(2):
        venv.close()
    took = time.monotonic() - begin
    assert took < CLOSE_BOUND, f"close took {took:.1f} s"
    assert venv.is_closed, "is_closed is False after close"
    assert len(venv) == N, f"len is {len(venv)} after close"
    calls = (
        venv.reset,
        lambda: venv.step([0] * N),
        lambda: venv.seed(0),
        lambda: venv.get_env_attr("t"),
        lambda: venv.action_space,
    )
    for call in calls:
        _assert_raises(ClosedError, "a call after close", call)


class _Emits(CountingEnv):
    """Observes one fixed value."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], value: Any = None) -> None:
        super().__init__()
        self.observation_space = spaces.MultiBinary(shape) if dtype is np.bool_ else spaces.Box(0, 100, shape, dtype)
        if dtype is np.bool_:
            self.observation_space.dtype = np.dtype(np.bool_)
        self.value = np.ones(shape, dtype) if value is None else value

    def _observation(self) -> Any:
        return self.value


class _WritesToAction(CountingEnv):
    """Observes the action that came, then writes over it."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-9, 9, (3,), np.float32)
        self.observation_space = spaces.Box(-9, 9, (3,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen = action.copy()
        action[...] = 7
        return seen, 0.0, False, False, {}


def _noted(folder: str, i: int) -> CountingEnv:
    """Make an env, and a file that says so."""
    tempfile.NamedTemporaryFile(prefix=f"{i}-", dir=folder, delete=False).close()
    return CountingEnv(i)


def _assert_raises(expected: type[Exception], what: str, call: Callable[[], Any]) -> Exception:
    """The exception that `call` raised, which has to be of the class expected."""
    try:
        value = call()
    except expected as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__} ({error}), expected {expected.__name__}") from error
    raise AssertionError(f"{what} raised nothing and returned {value!r}, expected {expected.__name__}")


CHECKS: dict[str, Callable[[Factory], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_rows,
        check_options_of_reset,
        check_mixed_rounds,
        check_async,
        check_returned_arrays_stay,
        check_infos,
        check_rejected_calls,
        check_attributes,
        check_seeds,
        check_env_errors,
        check_errors_of_constructors,
        check_observations_fit_their_space,
        check_env_fns_are_called_once,
        check_actions_are_the_envs_own,
        check_close,
    )
}
