"""Pickling of values, file descriptors, and classes and functions of the main script, for other processes."""

from __future__ import annotations

import functools
import io
import pickle
import socket
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Sequence
from multiprocessing import context, reduction
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

QUICK_PACKAGES = {"__main__", "numpy", "gymnasium", "vecenv", "cloudpickle", *sys.stdlib_module_names}
"""Packages that workers have loaded already, or load quickly."""
LIBRARIES = ("site-packages", "dist-packages")
LARGE = 1 << 16
"""Bytes. Smaller arrays are copied into pickles."""
CODE_FILENAME = 10
"""Position of the file name in the arguments of `CodeType`, in Python 3.11 to 3.14."""
_CachedFunction: Any = type(functools.lru_cache(maxsize=None)(len))


def dumps(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        return dumps_by_value(value)


def dumps_by_value(value: Any, large: list[np.ndarray] | None = None) -> bytes:
    """Pickle `value` with the code of classes and functions that other processes cannot import.

    Unlike `cloudpickle.dumps`, this pickles functions with `lru_cache` (without cached results) and classes with
    `cached_property`. If `large` is a list, the bytes of large arrays and tensors are left out, and `large` gets views
    of these bytes, as uint8 arrays. `loads_by_value` needs the same bytes.
    """
    with io.BytesIO() as file:
        ByValuePickler(file, large).dump(value)
        return file.getvalue()


def loads_by_value(blob: bytes | memoryview, large: Sequence[Any] = ()) -> Any:
    return pickle.loads(blob, buffers=large)


class Code(NamedTuple):
    """Functions that encode the values of messages between parent and workers.

    A message has parts, for example a result per env. `pack` encodes a part by itself, so that an error of the encoding
    fails only the part's env.
    """

    dumps: Callable[[Any], bytes]
    loads: Callable[[Any], Any]
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


PICKLED = Code(pickle.dumps, pickle.loads, dumps, pickle.loads)


def _reduce_cached_function(function: Any) -> Any:
    if _is_importable(function):
        return function.__reduce__()
    return _cached_function, (function.__wrapped__, function.cache_parameters())


def _cached_function(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_cached_property(found: functools.cached_property[Any]) -> Any:
    return _cached_property, (found.func, found.attrname)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    found = functools.cached_property(function)
    if name is not None:
        found.__set_name__(object, name)  # Python does this only for attributes in a class body
    return found


def _reduce_code(code: CodeType) -> Any:
    """Keep the file name, which stacks and coverage show. cloudpickle 3.1.3 writes "<dynamic-code>" instead."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, (*arguments[:CODE_FILENAME], code.co_filename, *arguments[CODE_FILENAME + 1 :])


def _is_importable(function: Any) -> bool:
    module = function.__module__
    by_value = ["__main__", *cloudpickle.list_registry_pickle_by_value()]
    if any(module == each or str(module).startswith(f"{each}.") for each in by_value):
        return False
    found: Any = sys.modules.get(module)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _reduce_storage(storage: Any) -> Any:
    """Reduce the memory of a tensor to an array, because torch would copy the memory into the pickle."""
    torch = sys.modules["torch"]
    untyped = storage._untyped_storage  # `untyped()` warns that typed storages are deprecated
    if untyped.device.type != "cpu" or untyped.nbytes() < LARGE:
        return storage.__reduce__()
    return _storage, (torch.empty(0, dtype=torch.uint8, device="cpu").set_(untyped).numpy(), storage.dtype)


def _storage(data: np.ndarray, dtype: Any) -> Any:
    import torch

    return torch.TypedStorage(
        wrap_storage=torch.frombuffer(data, dtype=torch.uint8).untyped_storage(), dtype=dtype, _internal=True
    )


def _reduce_memmap(array: np.memmap[Any, Any]) -> Any:
    """Reduce an array in a file to a plain array, because numpy would copy the bytes into the pickle."""
    return _memmap, (np.asarray(array),)


def _memmap(array: np.ndarray) -> Any:
    return array.view(np.memmap)


class ByValuePickler(cloudpickle.Pickler):
    dispatch_table = ChainMap(
        {
            _CachedFunction: _reduce_cached_function,
            functools.cached_property: _reduce_cached_property,
            CodeType: _reduce_code,
        },
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: Any, large: list[np.ndarray] | None = None) -> None:
        if large is not None:
            storage = getattr(sys.modules.get("torch"), "TypedStorage", None)
            self.dispatch_table = self.dispatch_table.new_child(
                {np.memmap: _reduce_memmap, **({storage: _reduce_storage} if storage else {})}
            )
        super().__init__(file, buffer_callback=None if large is None else functools.partial(_stays, large))


def _stays(large: list[np.ndarray], buffer: pickle.PickleBuffer) -> bool:
    """Return True if `buffer` is small, so that the pickle contains its bytes. Else append its bytes to `large`."""
    data = buffer.raw()
    if data.nbytes >= LARGE:
        large.append(np.frombuffer(data, np.uint8))
    return data.nbytes < LARGE


def dumps_and_modules(value: Any, large: list[np.ndarray] | None = None) -> tuple[bytes, set[str]]:
    """Return `dumps_by_value(value, large)`, and the names of slowly imported modules that workers need."""
    with io.BytesIO() as file:
        pickler = _Recorder(file, large)
        pickler.dump(value)
        slow = {name for name in pickler.modules if name and _root(name) not in QUICK_PACKAGES and _is_slow(name)}
        return file.getvalue(), slow


class _Recorder(ByValuePickler):
    """Pickler that records the modules of pickled objects, and an env's module if its gymnasium id is pickled."""

    def __init__(self, file: Any, large: list[np.ndarray] | None) -> None:
        super().__init__(file, large)
        self.modules = set[str]()

    def persistent_id(self, value: Any) -> None:
        """Return `None`, so that pickling is unchanged."""
        if isinstance(value, str):
            self._record_text(value)
        elif isinstance(value, ModuleType):
            self.modules.add(value.__name__)
        elif isinstance(value, (type, FunctionType)) and _is_importable(value):
            self.modules.add(value.__module__)

    def _record_text(self, text: str) -> None:
        module, colon, id = text.partition(":")
        if colon and module in sys.modules:
            self.modules.add(module)
        spec = gymnasium.registry.get(id or text)
        if spec is not None and isinstance(spec.entry_point, str):
            self.modules.add(spec.entry_point.partition(":")[0])


def _is_slow(name: str) -> bool:
    """Return True if importing a module loads a library outside `QUICK_PACKAGES`, even indirectly."""
    seen, ahead = {name}, [name]
    while ahead:
        module = sys.modules.get(ahead.pop())
        file = getattr(module, "__file__", None)
        if module is None or (file and any(f"/{folder}/" in file for folder in LIBRARIES)):
            return True
        for value in list(vars(module).values()):
            found = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", None)
            if isinstance(value, (type, FunctionType)):
                found = value.__module__
            if (
                isinstance(found, str)
                and found not in seen
                and _root(found) not in QUICK_PACKAGES
                and found in sys.modules
            ):
                seen.add(found)
                ahead.append(found)
    return False


def _root(name: str) -> str:
    return name.partition(".")[0]


class Descriptor:
    """File descriptor that can be pickled by `dumps_apart`, or among the arguments of a new process.

    The receiver owns a duplicate.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        if (fds := getattr(_pickling, "fds", None)) is None:
            return _detached, (reduction.DupFd(self.fd),)
        fds.append(self.fd)
        return _arrived, (len(fds) - 1,)


def _detached(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


def _arrived(place: int) -> Descriptor | None:
    return Descriptor(_pickling.arrived[place]) if _pickling.arrived else None


_pickling = threading.local()


def dumps_apart(value: Any) -> tuple[bytes, list[int]]:
    """Return a pickle of `value`, and the file descriptors in `value`, which must be sent separately."""
    _pickling.fds = fds = list[int]()
    try:
        return pickle.dumps(value), fds
    finally:
        _pickling.fds = None


def loads_apart(blob: bytes, fds: Sequence[int]) -> Any:
    """Unpickle the bytes of `dumps_apart`. If `fds` is empty, descriptors become `None`."""
    _pickling.arrived = fds
    return pickle.loads(blob)


def may_travel() -> bool:
    return context.get_spawning_popen() is not None or getattr(_pickling, "fds", None) is not None


MOST_DESCRIPTORS = 250
"""Linux sends at most 253 in a message."""


def receive_descriptors(sock: socket.socket) -> list[int]:
    """Receive the descriptors of a call of `socket.send_fds`.

    Raises EOFError if the sender closes the socket, OSError if this process has too many open files.
    """
    data, fds, flags, _ = socket.recv_fds(sock, 1, MOST_DESCRIPTORS)
    if not data:
        raise EOFError("the sender of descriptors is gone")
    if flags & socket.MSG_CTRUNC:
        raise OSError(
            f"this process can open only {len(fds)} of the file descriptors that another process sent: raise `ulimit "
            "-n`"
        )
    return fds
