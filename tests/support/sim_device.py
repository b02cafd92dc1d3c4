"""`sim`: a simulated accelerator, for machines without one. It computes as late as a GPU may.

`pytest -p tests.support.sim_device` registers `sim` in the process of the tests. A process has one accelerator, so the
tests of `sim` run in processes of their own (see tests/collector/device/test_simulated_device.py).

A tensor on `sim` hides a CPU tensor. Operators go into the queue of the current stream, and run when the host waits for
the stream or for an event behind them::

    host       copy from pinned    policy    copy to pinned    record event    ...    wait for event
    stream                                                                            copy, policy, copy

- A copy from pinned memory reads the memory when it runs. A buffer that is overwritten before gives wrong numbers.
- A copy to the host with `non_blocking=True` leaves wrong numbers in its target until it runs.
- Two streams do not wait for each other.
- New memory has wrong numbers.
- The host reads a tensor only through a copy. `numpy()` raises, as for CUDA.
- An operator waits for its stream if it draws random numbers, or if the shape of its result depends on values. Random
  numbers come from the CPU's generator, so that a program draws the same numbers on `sim` and on the CPU.

`counts` has the numbers of copies, bytes and waits.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils import backend_registration

aten = torch.ops.aten

NAME = "sim"
counts: Counter[str] = Counter()
"""`uploads`, `downloads`, `upload_bytes`, `download_bytes`, and `waits` of the host."""
refused_dtypes: set[torch.dtype] = set()
"""Dtypes that the device does not have, such as float64 on MPS."""
_pinned: dict[int, torch.Tensor] = {}
"""Pinned memory by address. It is never freed."""
_lock = threading.RLock()
_local = threading.local()


class Stream:
    """Queue of work. Works run in order, as late as possible."""

    def __init__(self, device: Any = None) -> None:
        self._queue: deque[Callable[[], Any]] = deque()
        self.queued = self.done = 0

    def add(self, work: Callable[[], Any]) -> None:
        with _lock:
            self._queue.append(work)
            self.queued += 1

    def run(self, until: float = math.inf) -> None:
        # A work may write to tensors of inference mode, and run when the host has left the mode.
        with _lock, torch.inference_mode():
            while self._queue and self.done < until:
                work = self._queue.popleft()
                self.done += 1
                work()

    def synchronize(self) -> None:
        counts["waits"] += 1
        self.run()


class Event:
    """Mark in a stream's queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stream: Stream | None = None
        self.until = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or current_stream()
        self.until = self.stream.queued

    def synchronize(self) -> None:
        counts["waits"] += 1
        if self.stream is not None:
            self.stream.run(self.until)


_default = Stream()


def current_stream(device: Any = None) -> Stream:
    return getattr(_local, "stream", _default)


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    before, _local.stream = current_stream(), stream
    try:
        yield
    finally:
        _local.stream = before


class SimTensor(torch.Tensor):
    """Tensor on `sim`. Only operators reach `hidden`, a CPU tensor with the same sizes and strides."""

    hidden: torch.Tensor

    @staticmethod
    def __new__(cls, hidden: torch.Tensor) -> SimTensor:
        if hidden.dtype in refused_dtypes:
            raise TypeError(f"{NAME} has no {hidden.dtype}")
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            hidden.size(),
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.hidden = hidden
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(operator, args, kwargs or {})

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy: copy the tensor to the host first")

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:
        return self.hidden.data_ptr()

    def __repr__(self, **kwargs: Any) -> str:
        return f"SimTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made = self.detach().clone()
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(made, self.requires_grad) if is_parameter else made
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuilt, (self.detach().cpu(), isinstance(self, torch.nn.Parameter), self.requires_grad)


def _rebuilt(here: torch.Tensor, is_parameter: bool, requires_grad: bool) -> Any:
    tensor = here.to(NAME)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor


def _call(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if operator is aten._to_copy.default and _is_host(kwargs.get("device")):
        return _download_copy(*args, **kwargs)
    if operator is aten.copy_.default and not all(isinstance(each, SimTensor) for each in args[:2]):
        return _copy_across(*args, **kwargs)
    if operator is aten._local_scalar_dense.default:
        counts["downloads"] += 1
        counts["download_bytes"] += args[0].element_size()
        current_stream().synchronize()
        return operator(args[0].hidden)
    kwargs = {name: value for name, value in kwargs.items() if name != "non_blocking"}
    is_copied = _is_host(kwargs.get("device"))  # such as `zeros_like(tensor, device="cpu")`
    hidden = [_hidden(each, operator) for each in args]
    options = {name: _hidden(value, operator) for name, value in kwargs.items()}
    if is_copied:
        return operator(*hidden, **options)
    if "device" in options:
        options["device"] = "cpu"
    schema, tags, stream = operator._schema, operator.tags, current_stream()
    aliases = [each.alias_info for each in schema.returns if each.alias_info is not None]
    if torch.Tag.inplace_view in tags:
        raise NotImplementedError(f"{NAME} cannot run {operator}, which changes the shape of a tensor in place")
    if any(not each.is_write for each in aliases):
        return _wrapped(operator(*hidden, **options))  # a view reads no values
    is_random = torch.Tag.nondeterministic_seeded in tags
    if schema.is_mutable:
        if is_random:
            stream.run()
            operator(*hidden, **options)
        else:
            stream.add(lambda: operator(*hidden, **options))
        return _written(schema, args, kwargs)
    like = None if is_random else _results_like(operator, hidden, options)
    if like is None:
        counts["waits"] += not is_random
        stream.run()
        return _wrapped(operator(*hidden, **options))
    results = _map(lambda form: _empty(*form), like, _Form)
    targets = [each.hidden for each in (results if isinstance(results, (list, tuple)) else [results])]

    def compute() -> None:
        found = operator(*hidden, **options)
        for target, value in zip(targets, found if isinstance(found, (list, tuple)) else [found], strict=True):
            target.copy_(value)

    stream.add(compute)
    return results


def _map(function: Callable[[Any], Any], value: Any, kind: type) -> Any:
    """Apply `function` to each object of this kind, in lists and tuples too."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map(function, each, kind) for each in value])
    return value


class _Form(NamedTuple):
    """Form of a tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _form(tensor: torch.Tensor) -> _Form:
    return _Form(tuple(tensor.shape), tensor.stride(), tensor.dtype)


_forms: dict[Any, Any] = {}
"""Forms of results, by operator and arguments."""


def _results_like(operator: Any, args: Any, kwargs: Any) -> Any:
    """Return the forms of the results, or `None` if these depend on values, or if the operator raises."""

    def is_mask(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)

    masked = any(is_mask(each) for value in args if isinstance(value, (list, tuple)) for each in value)
    if torch.Tag.data_dependent_output in operator.tags or (
        torch.Tag.dynamic_output_shape in operator.tags and (masked or operator is not aten.index.Tensor)
    ):
        return None
    key = repr(
        (operator.name(), _map(_form, list(args), torch.Tensor), _map(_form, list(kwargs.items()), torch.Tensor))
    )
    if key not in _forms:

        def zeros(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()

        options = {name: _map(zeros, value, torch.Tensor) for name, value in kwargs.items()}
        try:
            _forms[key] = _map(_form, operator(*_map(zeros, list(args), torch.Tensor), **options), torch.Tensor)
        except Exception:
            return None
    return _forms[key]


def _hidden(value: Any, operator: Any) -> Any:
    """Return the CPU tensors of an argument.

    Refuse host tensors among tensors of the device, except scalars, and indices, which torch copies.
    """

    def hidden(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, SimTensor):
            return tensor.hidden
        if tensor.dim() == 0:
            return tensor.clone()
        if operator.name().startswith("aten::index"):
            return tensor.to(NAME).hidden
        raise RuntimeError(f"{operator} got tensors on {NAME} and on {tensor.device}")

    return _map(hidden, value, torch.Tensor)


def _written(schema: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments that an operator in place returns."""
    given = {each.name: value for each, value in zip(schema.arguments, args, strict=False)} | kwargs
    names = {
        alias: each.name
        for each in schema.arguments
        if each.alias_info is not None
        for alias in each.alias_info.before_set
    }
    found = [given[names[next(iter(each.alias_info.before_set))]] for each in schema.returns]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def _copy_across(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    stream = current_stream()
    if isinstance(target, SimTensor):
        hidden = target.hidden
        counts["uploads"] += 1
        counts["upload_bytes"] += source.numel() * source.element_size()
        if not (non_blocking and source.untyped_storage().data_ptr() in _pinned):
            source = source.clone()  # the driver reads pageable memory before it returns
        stream.add(lambda: hidden.copy_(source))
    else:
        values = source.hidden  # type: ignore[attr-defined]
        counts["downloads"] += 1
        counts["download_bytes"] += target.numel() * target.element_size()
        _spoil(target)
        stream.add(lambda: target.copy_(values))
    if not non_blocking:
        stream.synchronize()
    return target


def _download_copy(source: SimTensor, *, dtype: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    return _copy_across(torch.empty_like(source.hidden, dtype=dtype), source, non_blocking)


def _is_host(device: Any) -> bool:
    return device is not None and torch.device(device).type != NAME


def _wrapped(value: Any) -> Any:
    return _map(SimTensor, value, torch.Tensor)


def _spoil(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(math.nan if tensor.dtype.is_floating_point else 77)


def _empty(size: Any, stride: Any, dtype: torch.dtype | None) -> SimTensor:
    return SimTensor(_spoil(torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype(), device="cpu")))


def _empty_tensor(size: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any) -> SimTensor:
    like = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    return _empty(size, like.stride(), dtype)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> SimTensor:
    return _empty(size, stride, dtype)


def _on_host_first(name: str) -> Callable[..., SimTensor]:
    """Return a kernel of a factory, such as `arange`, that makes values on the host."""

    def kernel(*args: Any, device: Any = None, **options: Any) -> Any:
        return getattr(torch, name)(*args, **{**options, "device": "cpu", "pin_memory": False}).to(NAME)

    return kernel


class Module(backend_registration._DummyBackendModule):
    """`torch.sim`, with the functions of `torch.cuda` that programs use."""

    Event = Event
    Stream = Stream
    current_stream = staticmethod(current_stream)
    stream = staticmethod(use_stream)

    def synchronize(self, device: Any = None) -> None:
        current_stream().synchronize()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.uint8)  # the device draws from the CPU's generator

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


def _register() -> None:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")
    kernels: dict[str, Callable[..., SimTensor]] = {
        "empty.memory_format": _empty_tensor,
        "empty_strided": _empty_strided,
        **{f"arange{overload}": _on_host_first("arange") for overload in ("", ".start", ".start_step")},
        "randperm": _on_host_first("randperm"),
        "_copy_from": lambda source, target, non_blocking=False: _call(
            aten.copy_.default, (target, source, non_blocking), {}
        ),
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "PrivateUse1")
    globals()["_library"] = library  # the kernels live as long as this object
    plain_empty = torch.empty

    def empty(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        tensor = plain_empty(*args, **options)
        if pin_memory:
            _pinned[_spoil(tensor).untyped_storage().data_ptr()] = tensor
        return tensor

    torch.empty = empty


_register()
