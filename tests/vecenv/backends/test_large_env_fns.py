"""Large data of env functions reach worker processes once, and each env still has its own copy."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.backends import FULL, full
from tests.support.ledger import kill
from vecenv import EnvCreator, SharedMemoryError, ShmemVectorEnv, WorkerDiedError
from vecenv.testing import CountingEnv

MIB = 2**20


class Holder(CountingEnv):
    """Env that holds an object."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def sum(self) -> float:
        return float(np.asarray(self.held).sum(dtype=np.float64))

    def fill(self, value: int) -> None:
        self.held[...] = value

    def append(self, value: int) -> None:
        self.held[1].append(value)

    def where(self) -> int:
        return os.getpid()

    def description(self) -> tuple[Any, ...]:
        held = self.held
        return held.dtype.str, held.shape, held.flags.f_contiguous, held.flags.writeable


class Tensors(Holder):
    def description(self) -> Any:
        return [(type(each).__name__, each.dtype, each.shape, each.stride(), each.requires_grad) for each in self.held]

    def sum(self) -> float:
        return sum(float(each.detach().double().sum()) for each in self.held)

    def fill(self, value: int) -> None:
        for each in self.held:
            each.detach().fill_(value)


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


ARRAYS = (
    np.arange(30_000.0),
    np.asfortranarray(np.arange(60_000, dtype=np.int32).reshape(200, 300)),
    frozen(np.ones((300, 300), ">f4")),
    np.arange(90_000)[::3],  # a view with gaps
    np.arange(90_000)[30_000:],
    np.arange(9),
)


def test_an_array_arrives_as_from_any_pickle(tmp_path: Path) -> None:
    """An array in a file, as of `np.load(path, mmap_mode="r")`, stays one that cannot be written."""
    np.save(tmp_path / "data.npy", np.ones((400, 100)))
    in_file = np.load(tmp_path / "data.npy", mmap_mode="r")
    expected = [*(Holder(pickle.loads(pickle.dumps(array, protocol=5))) for array in ARRAYS), Holder(in_file)]
    with ShmemVectorEnv([partial(Holder, array) for array in (*ARRAYS, in_file)], num_workers=1) as venv:
        assert venv.call("description") == [each.description() for each in expected]
        assert venv.call("sum") == [each.sum() for each in expected]
        assert type(venv.get_env_attr("held")[-1]) is np.memmap


def variants(array: np.ndarray) -> list[Any]:
    creator = EnvCreator(Holder, held=array)
    return [creator.make_variant() for _ in range(4)]


FUNCTIONS: dict[str, Callable[[np.ndarray], list[Any]]] = {
    "partial": lambda array: [partial(Holder, array) for _ in range(4)],
    "lambda": lambda array: [lambda: Holder(array) for _ in range(4)],
    "the same function": lambda array: [partial(Holder, array)] * 4,
    "creator": lambda array: [EnvCreator(Holder, held=array)] * 4,
    "variants": variants,
}


@pytest.mark.parametrize("kind", ["partial", *full([*FUNCTIONS][1:])])
def test_an_array_is_sent_once_and_an_env_that_writes_changes_no_other(kind: str) -> None:
    """So equal results follow for every number of workers, as in the originals, which have a process per env."""
    array = np.ones(MIB // 8)
    with ShmemVectorEnv(FUNCTIONS[kind](array), num_workers=2) as venv:
        assert file_size() == MIB
        venv.call("fill", 5, id=1)
        assert venv.call("sum") == [len(array), 5 * len(array), len(array), len(array)]
    assert (array == 1).all()


def file_size() -> int:
    """Return the bytes of the files with large data that this process has open."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(link.stat().st_size for link in links if link.exists() and "vecenv-env-fns" in str(link.readlink()))


class Makes:
    """Env function that uses the same memory for the pickles of all objects."""

    memory = np.zeros(40_000)

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self) -> Holder:
        return Holder(self.held)

    def __getstate__(self) -> dict[str, Any]:
        self.memory[:] = self.value
        return {"held": self.memory}


def test_arrays_at_the_same_address_are_shared_only_if_they_are_equal() -> None:
    with ShmemVectorEnv([Makes(value) for value in (1, 2, 2, 1)], num_workers=2) as venv:
        assert venv.call("sum") == [40_000.0, 80_000.0, 80_000.0, 40_000.0]


def test_a_restarted_worker_gets_the_data_of_the_start() -> None:
    array = np.ones(40_000)
    with ShmemVectorEnv([partial(Holder, array) for _ in range(4)], num_workers=2) as venv:
        venv.reset()
        array[:] = 3
        venv.call("fill", 2)
        kill(venv.call("where", id=0)[0])
        with pytest.raises(WorkerDiedError):
            venv.step([0] * 4)
        venv.reset(id=[0, 1])
        assert venv.call("sum") == [40_000.0, 40_000.0, 80_000.0, 80_000.0]


def test_a_list_that_env_fns_share_is_pickled_once_and_each_env_gets_a_copy() -> None:
    shared = [b"a" * 3 * MIB]
    with ShmemVectorEnv([lambda i=i: Holder([i, shared]) for i in range(4)], num_workers=2) as venv:  # type: ignore[misc]
        assert file_size() < 3.5 * MIB
        assert venv.get_env_attr("held") == [[i, shared] for i in range(4)]
        venv.call("append", 7, id=1)
        assert venv.get_env_attr("held") == [[0, shared], [1, [*shared, 7]], [2, shared], [3, shared]]


@FULL
def test_tensors_are_shared_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(500, 200))
    held = [weight, weight, weight.detach()[1:], torch.ones(100_000, dtype=torch.bfloat16), torch.ones(3)]
    with torch.device("meta"):  # as with `torch.set_default_device`
        made = ShmemVectorEnv([partial(Tensors, held) for _ in range(3)], num_workers=1)
    with made as venv:
        assert venv.call("description") == [Tensors(held).description()] * 3
        venv.call("fill", 2, id=1)
        assert venv.call("sum") == [399_803.0, 799_606.0, 399_803.0]


def test_data_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.backends.memory.shared_memory.available_memory", lambda: 2**18)
    refused = r"0\.3 MiB of shared memory are needed for the data of env_fns\[1\], but only 0\.2 MiB are available"
    with pytest.raises(SharedMemoryError, match=refused):
        ShmemVectorEnv([partial(Holder, np.ones(length)) for length in (20_000, 40_000)])
