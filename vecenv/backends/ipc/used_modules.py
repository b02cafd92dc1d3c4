"""Modules that a pickled function needs, and which of them take long to import."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import gymnasium

from vecenv.backends.ipc.serialization import ByValuePickler

KNOWN = {"__main__", "numpy", "gymnasium", "vecenv", "cloudpickle", *sys.stdlib_module_names}
"""Packages that workers have already loaded, or that load quickly."""
LIBRARIES = ("site-packages", "dist-packages")


def dumps_and_modules(value: Any) -> tuple[bytes, set[str]]:
    with io.BytesIO() as file:
        pickler = _Recorder(file)
        pickler.dump(value)
        return file.getvalue(), slow_modules(pickler.modules)


class _Recorder(ByValuePickler):
    """Pickler that records the modules of pickled objects, and the modules of envs with pickled ids."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.modules = set[str]()

    def persistent_id(self, value: Any) -> None:
        """Record the module of a value. Returns `None`, so that pickling is unchanged."""
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


def _is_importable(value: Any) -> bool:
    """Return True if a class or function can be imported. If not, it is pickled with its code."""
    found = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def slow_modules(names: Iterable[str]) -> set[str]:
    """Return the modules that import a library outside `KNOWN`, directly or through modules of the user."""
    return {name for name in names if name and _root(name) not in KNOWN and _is_slow(name)}


def _is_slow(name: str) -> bool:
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
            if isinstance(found, str) and found not in seen and _root(found) not in KNOWN and found in sys.modules:
                seen.add(found)
                ahead.append(found)
    return False


def _root(name: str) -> str:
    return name.partition(".")[0]
