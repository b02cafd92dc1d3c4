"""Large data of env functions reach worker processes once, and each env still has its own copy."""

from __future__ import annotations

import os
import pickle
import re
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL
from tests.support.ledger import kill
from vecenv import EnvCreator, SharedMemoryError, ShmemVectorEnv, WorkerDiedError

MIB = 2**20
SIZE = 20 * MIB
needs_smaps = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc/PID/smaps")


class Holder(gymnasium.Env[Any, Any]):
    """Env that holds an object, and reads all of it at each reset."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, held: Any) -> None:
        self.held = held

    def sum(self) -> float:
        return float(np.asarray(self.held).sum(dtype=np.float64))

    def fill(self, value: int) -> None:
        self.held[...] = value

    def append(self, value: int) -> None:
        self.held[1].append(value)

    def where(self) -> int:
        return os.getpid()

    def form(self) -> tuple[Any, ...]:
        held = self.held
        return held.dtype.str, held.shape, held.flags.f_contiguous, held.flags.writeable

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self.sum()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self.sum()]), 0.0, False, False, {}


class Tensors(Holder):
    def forms(self) -> list[Any]:
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
        assert venv.call("form") == [each.form() for each in expected]
        assert venv.call("sum") == [each.sum() for each in expected]
        assert type(venv.get_env_attr("held")[-1]) is np.memmap


def functions(array: np.ndarray) -> dict[str, Any]:
    creator = EnvCreator(Holder, held=array)
    return {
        "partial": [partial(Holder, array) for _ in range(4)],
        "lambda": [lambda: Holder(array) for _ in range(4)],
        "the same function": [partial(Holder, array)] * 4,
        "creator": [creator] * 4,
        "variants": [creator.make_variant() for _ in range(4)],
    }


@pytest.mark.parametrize(
    "kind", ["partial", *(pytest.param(kind, marks=FULL) for kind in [*functions(np.ones(1))][1:])]
)
def test_an_env_that_writes_into_its_array_changes_no_other(kind: str) -> None:
    """So equal results follow for every number of workers, as in the originals, which have a process per env."""
    array = np.ones(40_000)
    with ShmemVectorEnv(functions(array)[kind], num_workers=2) as venv:
        venv.call("fill", 5, id=1)
        assert venv.call("sum") == [40_000.0, 200_000.0, 40_000.0, 40_000.0]
    assert (array == 1).all()


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


def mapped(pid: int) -> dict[str, int]:
    """Return the bytes of a worker's mappings of large data, by the names in /proc/PID/smaps."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    found = {"Pss": 0, "Anonymous": 0, "Size": 0}
    for region in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text):
        if "vecenv-env-fns" in region.partition("\n")[0]:
            for name in found:
                found[name] += 1024 * int(re.search(rf"(?m)^{name}: +(\d+) kB", region)[1])  # type: ignore[index]
    return found


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@needs_smaps
@pytest.mark.parametrize("kind", ["partial", *(pytest.param(kind, marks=FULL) for kind in ("lambda", "variants"))])
@pytest.mark.usefixtures("traced")
def test_all_workers_share_one_copy_of_an_array(kind: str) -> None:
    env_fns = functions(np.ones(SIZE // 8))[kind]
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    with ShmemVectorEnv(env_fns, num_workers=2) as venv:
        assert file_size() == SIZE
        assert tracemalloc.get_traced_memory()[1] - before < SIZE / 2, "the caller pickles no copy"
        venv.reset()
        workers = {pid: mapped(pid) for pid in venv.call("where")}
        assert len(workers) == 2
        assert all(found["Size"] >= 2 * SIZE for found in workers.values()), "a mapping per env"
        assert sum(found["Pss"] for found in workers.values()) <= 1.05 * SIZE
        assert not any(found["Anonymous"] for found in workers.values())
        venv.call("fill", 2, id=0)
        changed = [mapped(pid)["Anonymous"] for pid in workers]
        assert changed == [SIZE, 0], "only the env that writes has a copy"


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


def file_size() -> int:
    """Return the bytes of the files with large data that this process has open."""
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(link.stat().st_size for link in links if link.exists() and "vecenv-env-fns" in str(link.readlink()))


@needs_smaps
def test_a_list_that_env_fns_share_is_pickled_once_and_each_env_gets_a_copy() -> None:
    shared = [b"a" * 3 * MIB]
    with ShmemVectorEnv([lambda i=i: Holder([i, shared]) for i in range(4)], num_workers=2) as venv:  # type: ignore[misc]
        assert file_size() < 3.5 * MIB
        assert venv.get_env_attr("held") == [[i, shared] for i in range(4)]
        venv.call("append", 7, id=1)
        assert venv.get_env_attr("held") == [[0, shared], [1, [*shared, 7]], [2, shared], [3, shared]]


@needs_smaps
@FULL
def test_tensors_are_shared_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(500, 200))
    held = [weight, weight, weight.detach()[1:], torch.ones(100_000, dtype=torch.bfloat16), torch.ones(3)]
    with torch.device("meta"):  # as with `torch.set_default_device`
        made = ShmemVectorEnv([partial(Tensors, held) for _ in range(3)], num_workers=1)
    with made as venv:
        venv.reset()
        assert venv.call("forms") == [Tensors(held).forms()] * 3
        assert mapped(venv.call("where")[0])["Size"] > 3 * 500_000
        venv.call("fill", 2, id=1)
        assert venv.call("sum") == [399_803.0, 799_606.0, 399_803.0]


def test_data_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenv.backends.memory.shared_memory.available_memory", lambda: 2**18)
    refused = r"0\.3 MiB of shared memory are needed for the data of env_fns\[1\], but only 0\.2 MiB are available"
    with pytest.raises(SharedMemoryError, match=refused):
        ShmemVectorEnv([partial(Holder, np.ones(length)) for length in (20_000, 40_000)])
