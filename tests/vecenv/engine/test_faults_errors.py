"""Envs that raise: the error names the env, all results of other envs are kept, and a reset repairs the env."""

from __future__ import annotations

import gc
import traceback
import weakref
from functools import partial
from typing import Any

import pytest

from tests.support import faulty, oddities
from tests.support.faulty import BOOM, Counter, RaisesOnStep, counters
from tests.support.ledger import Column, N, columns, said
from tests.support.oddities import Breaks
from vecenv import DummyVectorEnv, EnvContractError, EnvStepError, RemoteTraceback, ThreadVectorEnv


def check_error(error: BaseException, column: Column, env_id: int, op: str) -> None:
    """Check that the error names the env, the operation and, from a worker, the line of the env."""
    assert BOOM in str(error)
    assert f"env {env_id}, {op}()" in said(error)
    if column.remote:
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "tests" in str(error.__cause__)
        assert "worker pid" in said(error)


@columns("blocks", "async blocks")
def test_any_number_of_envs_may_raise_in_one_round(column: Column) -> None:
    with column.open([partial(Breaks, i) for i in range(N)]) as ledger:
        ledger.begin()
        for bad in ([0], [0, 2], [0, 1, 2, 3]):
            for op in ("step", "reset"):
                ledger.venv.set_env_attr("fault", f"raise in {op}", bad)
                errors = ledger.round() if op == "step" else [ledger.reset_fails(ValueError)]
                assert {type(error) for error in errors} == {ValueError}
                first = int(errors[0].__notes__[0].split()[1].rstrip(",")) if column.is_async else bad[0]
                check_error(errors[0], column, first, op)
                ledger.goes_on(bad, ValueError)


@columns("blocks", "async")
def test_a_failed_env_stays_failed_when_its_reset_is_refused(column: Column) -> None:
    """A refused reset changes nothing."""
    with column.open(counters(N, env1=RaisesOnStep)) as ledger:
        ledger.begin()
        ledger.fails(ValueError)
        for refused in ({"seed": "x"}, {"options": oddities.RaisesAtPickle()}):
            if column.remote or "seed" in refused:
                with pytest.raises((TypeError, ValueError)):
                    ledger.venv.reset([1], **refused)
                assert ledger.venv.failed_id == [1]
        ledger.goes_on([1], ValueError)


def zoo() -> dict[str, tuple[Any, type[BaseException], str]]:
    """By name: the exception of the env, the exception from a worker, and words of its message."""
    entries: dict[str, tuple[Any, type[BaseException], str]] = {
        "two arguments": (partial(oddities.TwoArguments, "one", 2), EnvStepError, "one and 2"),
        "keyword only": (partial(oddities.KeywordOnly, what="w"), EnvStepError, "keyword w"),
        "reduce raises": (partial(oddities.ReduceRaises, "r"), EnvStepError, "r"),
        "holds a lock": (partial(oddities.HoldsLock, "held"), EnvStepError, "held"),
        "holds 100 MB": (partial(oddities.HoldsHugeArray, "huge"), EnvStepError, "huge"),
        "no attributes": (partial(oddities.NoAttributes, "bare"), EnvStepError, "NoAttributes: bare"),
        "no text of vecenv": (EnvContractError, EnvContractError, "env 1: "),
        "raises when rebuilt": (partial(oddities.RaisesWhenRebuilt, "x"), EnvStepError, "x"),
        "local class": (oddities.local_class, Exception, "from a function"),
        "KeyError": (partial(KeyError, "missing\nkey"), KeyError, "missing\\nkey"),
        "UnicodeDecodeError": (oddities.decode_error, UnicodeDecodeError, "bad %s {byte}"),
        "StopIteration": (partial(StopIteration, 5), StopIteration, "5"),
        "no arguments": (ValueError, ValueError, ""),
        "OSError": (partial(FileNotFoundError, 2, "No such", "f"), FileNotFoundError, "[Errno 2] No such: 'f'"),
        "huge text": (partial(ValueError, "y" * (10 << 20)), EnvStepError, "yyy"),
        "SystemExit": (partial(SystemExit, 3), EnvStepError, "SystemExit: 3"),
        "KeyboardInterrupt": (KeyboardInterrupt, EnvStepError, "KeyboardInterrupt"),
        "GeneratorExit": (partial(GeneratorExit, "g"), EnvStepError, "GeneratorExit: g"),
        "BaseException": (partial(oddities.OwnBase, "base"), EnvStepError, "OwnBase: base"),
        "percent and braces": (faulty.boom, ValueError, BOOM),
        "exits when rebuilt": (partial(oddities.ExitsWhenRebuilt, "x"), EnvStepError, "x"),
        "ExceptionGroup": (
            partial(ExceptionGroup, "several", [ValueError("one"), KeyError("two")]),
            ExceptionGroup,
            "several",
        ),
    }
    return entries


ZOO = zoo()


@columns("blocks", command=False)
@pytest.mark.parametrize("op", ["step", "reset"])
def test_the_whole_zoo_of_exceptions_arrives_with_class_text_and_env(column: Column, op: str) -> None:
    """One vector env for all exceptions, because an exception must not affect the next."""
    with column.open(counters(N, env1=partial(Zookeeper, op=op))) as ledger:
        ledger.begin()
        for name in ZOO:
            if name == "KeyboardInterrupt" and not column.remote:
                continue  # that is the user's own Ctrl-C
            ledger.venv.set_env_attr("animal", name, [1])
            print(name)
            (error,) = ledger.round([0, 1, 2]) if op == "step" else [ledger.reset_fails(BaseException)]
            check_animal(error, name, column, op)
            ledger.venv.set_env_attr("animal", None, [1])
            ledger.goes_on([1], type(error))


def check_animal(error: BaseException, name: str, column: Column, op: str) -> None:
    raised, remote, text = ZOO[name]
    if column.remote:
        assert isinstance(error, remote)
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "tests" in str(error.__cause__)
    elif isinstance(raised(), Exception) and name != "no attributes":
        assert isinstance(error, type(raised())) or name == "local class"
    else:
        assert type(error) is EnvStepError
        assert type(error.__cause__) is type(raised())
    assert text in str(error)
    assert len(str(error)) < 100_000 or not column.remote
    assert "env 1" in said(error)
    if isinstance(error, EnvStepError):
        assert f"{type(raised()).__name__}: " in str(error)
        assert (error.env_id, error.op) == (1, op)


class Zookeeper(Counter):
    """Env that raises the exception `animal` in `op`."""

    def __init__(self, id: int, op: str) -> None:
        super().__init__(id)
        self.op, self.animal = op, None

    def on_step(self) -> None:
        if self.op == "step" and self.animal is not None:
            raise ZOO[self.animal][0]()

    def on_reset(self) -> None:
        if self.op == "reset" and self.animal is not None:
            raise ZOO[self.animal][0]()


def test_an_error_and_what_its_traceback_holds_are_let_go_with_the_reset() -> None:
    with DummyVectorEnv([partial(RaisesOnStep, 0, at=1, error=partial(EnvStepError, "the env's own"))]) as venv:
        venv.reset()
        for _ in range(3):
            with pytest.raises(EnvStepError) as caught:
                venv.step([0])
        gone = weakref.ref(caught.value)
        del caught
        assert gone() is not None
        venv.reset()
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("backend", [DummyVectorEnv, ThreadVectorEnv])
def test_the_very_exception_is_raised_where_the_env_lives_here(backend: Any) -> None:
    """With one note and its context, even if raised repeatedly."""

    class Chained(Counter):
        def on_step(self) -> None:
            try:
                raise OSError("the real reason")
            except OSError:
                raise mine  # noqa: B904

    mine = ValueError("what it led to")
    with backend([partial(Chained, 0)]) as venv:
        for _ in range(2):
            venv.reset()
            with pytest.raises(ValueError, match="what it led to") as caught:
                venv.step([0])
            assert caught.value is mine
    assert "on_step" in [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert mine.__notes__ == ["env 0, step()"]
    assert isinstance(mine.__context__, OSError)
    assert not mine.__suppress_context__
