"""A policy as CUDA graphs: all kernels are launched at once, where launching each takes longer than running it.

A graph is recorded once for each size of batch and then replayed on the same memory::

    obs --copy--> static inputs --replay--> static outputs --> valid until the next call

What the policy does in Python happens while it is recorded, and never again.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from collector.device.process_setting import TurnedOff
from collector.device.tensors import is_lazy, tensors_of, torch
from collector.policy.exploration import ExplorationType
from collector.policy.interface import Policy
from collector.policy.padding import PaddedPolicy, fill_up
from vecenv import nest

Run = Callable[[], Any]
"""Reads its inputs from where they always are, and returns a tree of tensors."""


class GraphedPolicy(PaddedPolicy):
    """Runs a policy by replaying CUDA graphs, one for each size of batch (and form of input), recorded when needed.

    Guarantees:

    1. Random numbers go on from call to call, as without graphs: those of the device's default generator, and of the
       ones in `generators`.
    2. Weights that are changed in place take effect. Where a parameter or buffer moved in memory (`module.to`,
       `param.data = ...`), or `module.training` or autocast changed, the graphs are recorded again. New `Parameter`
       objects in place of old ones are not noticed: load weights in place.
    3. Recording advances no random generator, and the caller's stream stays the current one.

    Outputs carry no gradient, and are valid until the next call. Neither recording nor replaying waits for the device;
    PyTorch 2.13 itself waits for the default stream once a recording, where it sets up the random numbers. `sizes` as
    in `batch_sizes`; `faster` as in `PaddedPolicy`; `warmup` calls come before a recording; `capture` turns a run into
    one that does the same on static memory.

    Example::

        policy = GraphedPolicy(module.cuda(), rows=64)
        actions = policy(torch.zeros(64, 4, device="cuda"))
    """

    def __init__(
        self,
        policy: Policy,
        rows: int,
        exploration: ExplorationType = ExplorationType.RANDOM,
        *,
        sizes: Sequence[int] | None = None,
        generators: Sequence[torch.Generator] = (),
        warmup: int = 3,
        faster: Policy | None = None,
        capture: Callable[[Run], Run] | None = None,
    ) -> None:
        super().__init__(policy, rows, exploration, sizes=sizes, faster=faster)
        self._module = _module_of(policy)
        self._capture = capture or CudaCapture(generators, warmup)
        self._programs: dict[Any, _Program] = {}
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            return super().__call__(*args, **kwargs)

    def _run(self, inputs: Any, rows: int, size: int) -> Any:
        if [tensor.data_ptr() for tensor in self._tensors] != self._addresses:
            self._programs.clear()
        training = self._module is not None and self._module.training
        autocast = torch.is_autocast_enabled() and torch.get_autocast_dtype("cuda")
        key = (size, training, autocast, _form(inputs))
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._record(inputs, size)
        for static, given in zip(program.inputs, nest.leaves(inputs), strict=True):
            if static is not None:
                static[:rows].copy_(given)
        return program.run()

    def close(self) -> None:
        """Free the graphs and their memory."""
        self._programs.clear()

    def _record(self, inputs: Any, size: int) -> _Program:
        if self._module is not None:
            if is_lazy(self._module):
                self._make_parameters(inputs)
            self._tensors = tensors_of(self._module)
            self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        static = nest.map(lambda leaf: None if leaf is None else fill_up(leaf, size), inputs)
        inputs = list(nest.leaves(static))
        with torch.cuda.device_of(next(leaf for leaf in inputs if leaf is not None)):
            return _Program(inputs, self._capture(lambda: self._call(static, size)))

    def _make_parameters(self, inputs: Any) -> None:
        """Call a lazy module once, as it is: parameters that were made in inference mode could not be trained."""
        args, kwargs = inputs
        with torch.inference_mode(False), torch.no_grad():
            self.policy(*args, **kwargs)


class _Program(NamedTuple):
    """What was recorded for one size and form of input."""

    inputs: list[torch.Tensor | None]
    run: Run


class CudaCapture:
    """Turns a run into the replay of a CUDA graph on the current device.

    The graphs share memory for what lies between inputs and outputs: one replay at a time, on one stream.
    """

    def __init__(self, generators: Sequence[torch.Generator] = (), warmup: int = 3) -> None:
        self._generators = list(generators)
        self._warmup = warmup
        self._streams: list[torch.cuda.Stream] = []
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def __call__(self, run: Run) -> Run:
        if not self._streams:
            # Two: what libraries allocate for a stream in the warm-up is no memory of the graph, and may be freed.
            self._streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        warm_up, record = self._streams
        with unchecked_distributions():
            self._warm_up(run, warm_up)
            return self._record(run, record)

    def _warm_up(self, run: Run, stream: torch.cuda.Stream) -> None:
        """Run the first calls, in which libraries set themselves up; random generators are not advanced."""
        current = torch.cuda.current_stream()
        states = [generator.get_state() for generator in self._generators]
        stream.wait_stream(current)
        with torch.random.fork_rng(devices=[current.device]), torch.cuda.stream(stream):
            for _ in range(self._warmup):
                run()
        current.wait_stream(stream)
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _record(self, run: Run, stream: torch.cuda.Stream) -> Run:
        # Only a pool that a graph still uses can be shared.
        pool = next((other.pool() for other in self._graphs), None) or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream), no_collection():
                outputs = _captured(run, graph, pool, self._generators)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                "the policy cannot be recorded as a CUDA graph. It must not wait for the device (.item(), .cpu(), "
                "print, an `if` on a tensor, validate_args=True) nor draw from a generator that is not in "
                "cudagraph_policy={'generators': [...]}; or collect with cudagraph_policy=False"
            ) from error
        self._graphs.add(graph)

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay


def _captured(run: Run, graph: torch.cuda.CUDAGraph, pool: Any, generators: Sequence[torch.Generator]) -> Any:
    """Record a run on the current stream, and return its outputs.

    `torch.cuda.graph` would wait for the whole device first, to give back the memory that PyTorch keeps for later: a
    learner that uses the device too would wait, and allocate its memory again.
    """
    _begin(graph, pool, generators)
    try:
        outputs = run()
        graph.capture_end()
    except BaseException:
        _abandon(graph, pool, generators)
        raise
    return outputs


def _begin(graph: torch.cuda.CUDAGraph, pool: Any, generators: Sequence[torch.Generator]) -> None:
    with torch.inference_mode(False):  # the state of a generator is made here, and others write to it later
        for generator in generators:  # the default one is registered by the capture itself
            graph.register_generator_state(generator)
        # thread_local: a learner in another thread may allocate meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, generators: Sequence[torch.Generator]) -> None:
    """Undo what a recording that failed has begun.

    PyTorch up to 2.11 leaves the memory pool and the random generators as if it still went on, and the next random
    number on the device would be an error: the pool is closed explicitly here, and a recording that succeeds frees the
    generators. Errors in here are suppressed: the one that led here is raised.
    """
    with suppress(Exception):
        graph.capture_end()
    with suppress(Exception):
        # Not public: nothing public closes the pool of a recording that failed.
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with suppress(Exception):
        graph.reset()
    with suppress(Exception):
        spare = torch.cuda.CUDAGraph()
        _begin(spare, torch.cuda.graph_pool_handle(), generators)
        try:
            torch.zeros(1, device="cuda")
        finally:
            spare.capture_end()


no_collection = TurnedOff(gc.isenabled, lambda on: gc.enable() if on else gc.disable())
"""Garbage collection: giving memory or graphs back to CUDA would end a recording."""

unchecked_distributions = TurnedOff(
    lambda: bool(torch.distributions.Distribution._validate_args),  # torch has no public way to read it
    torch.distributions.Distribution.set_default_validate_args,
)
"""Checks of the arguments of distributions, for which they would have to wait for the device."""


def _module_of(policy: Policy) -> torch.nn.Module | None:
    """The module that a policy is, or a method of."""
    return next(
        (each for each in (policy, getattr(policy, "__self__", None)) if isinstance(each, torch.nn.Module)), None
    )


def _form(tree: Any) -> Any:
    """What has to be equal for a graph to be used again: names, shapes of a row, dtypes and devices."""
    if isinstance(tree, dict):
        return tuple((key, _form(child)) for key, child in tree.items())
    if isinstance(tree, tuple):
        return tuple(map(_form, tree))
    return None if tree is None else (tree.shape[1:], tree.dtype, tree.device)
