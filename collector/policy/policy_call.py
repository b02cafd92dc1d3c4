"""Call a policy by the names of its parameters, and read the actions from its output."""

from __future__ import annotations

import enum
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from collector.policy.recurrent_state import RecurrentState, with_state
from collector.policy.weights import is_module
from vecenv import nest

Policy = Callable[..., Any]


class ExplorationType(enum.Enum):
    """Value to take from a distribution that a policy returns (names as in torchrl).

    RANDOM is a sample, MODE the most likely action, and MEAN the mean, for continuous actions.
    """

    RANDOM = "random"
    MODE = "mode"
    MEAN = "mean"


_current: ContextVar[tuple[ExplorationType | None, bool]] = ContextVar("exploration_type", default=(None, False))
"""Exploration type, and whether the type comes from `set_exploration_type`."""


def exploration_type() -> ExplorationType | None:
    """Return the exploration type in effect, or `None` if not set. For policies that explore by themselves.

    >>> with set_exploration_type(ExplorationType.MODE):
    ...     exploration_type()
    <ExplorationType.MODE: 'mode'>
    """
    return _current.get()[0]


def set_exploration_type(wanted: ExplorationType) -> AbstractContextManager[None]:
    """Override the exploration type of collectors in the `with` block::

        with set_exploration_type(ExplorationType.MODE):
            stats = collector.collect(n_episode=10)

    `RayCollector` refuses to collect in the block, because its policies run in other processes.
    """
    return _exploring(as_exploration_type(wanted, None))


def requested_exploration_type() -> ExplorationType | None:
    """Return the type of the `set_exploration_type` block, if any. A running batch hides an outer block."""
    wanted, requested = _current.get()
    return wanted if requested else None


def begin_exploring(default: ExplorationType) -> ExplorationType:
    """Set the exploration type of a batch in the current `contextvars` context, and return the type."""
    wanted = requested_exploration_type() or default
    _current.set((wanted, False))
    return wanted


@contextmanager
def _exploring(wanted: ExplorationType) -> Iterator[None]:
    token = _current.set((wanted, True))
    try:
        yield
    finally:
        _current.reset(token)


def as_exploration_type(wanted: ExplorationType, mode: str | None) -> ExplorationType:
    """Return `wanted` as a type. A `mode` (deprecated) replaces `wanted`. Raises `ValueError` for unknown values."""
    if mode is not None:
        warnings.warn("exploration_mode is deprecated; use exploration_type", DeprecationWarning, stacklevel=3)
        wanted = str(mode).lower()  # type: ignore[assignment]
    try:
        return ExplorationType(getattr(wanted, "value", wanted))
    except ValueError:
        names = ", ".join(kind.value for kind in ExplorationType)
        raise ValueError(f"an exploration type is one of {names}; got {wanted!r}") from None


@lru_cache
def is_distribution(kind: type) -> bool:
    """Return whether `kind` is a distribution. The cache avoids slow failed lookups on tensors."""
    return hasattr(kind, "sample") and hasattr(kind, "log_prob")


def _prefers_rsample(distribution: Any) -> bool:
    """Return whether this is a torch distribution built on `Normal`.

    `sample` of such a distribution waits for the device, which fails in a CUDA graph. `rsample` draws the same numbers
    without waiting.
    """
    while has_torch_sampling(type(distribution)):  # type: ignore[arg-type]
        if type(distribution).__name__ == "Normal":
            return True
        distribution = getattr(distribution, "base_dist", None)
    return False


@lru_cache
def has_torch_sampling(kind: type) -> bool:
    ways = (getattr(kind, name, None) for name in ("sample", "rsample"))
    return all((getattr(way, "__module__", None) or "").startswith("torch.distributions.") for way in ways)


def choose(action: Any, wanted: ExplorationType) -> Any:
    """Take an action from each distribution. Raises `ValueError` if a distribution lacks the `wanted` mode or mean."""
    if isinstance(action, (dict, tuple)):
        return nest.map(lambda leaf: choose(leaf, wanted), action)
    if not is_distribution(type(action)):  # type: ignore[arg-type]
        return action
    if wanted is ExplorationType.RANDOM:
        return action.rsample().detach() if _prefers_rsample(action) else action.sample()
    try:
        return getattr(action, wanted.value)
    except (NotImplementedError, AttributeError):
        raise ValueError(
            f"{type(action).__name__} has no {wanted.value}; collect with another exploration_type, "
            "or return the action itself"
        ) from None


Choose = Callable[[Any, ExplorationType], Any]


NAMES = frozenset({"state", "env_id", "info"})
"""Names of parameters with a meaning of their own. Other names come from a Dict observation or from `info_keys`."""


class Signature(NamedTuple):
    keys: tuple[str, ...] = ()
    """Entries of a dict observation to pass by name. Empty: pass the whole observation first."""
    named: tuple[str, ...] = ()
    """Other parameters to pass by name: some of `NAMES` and `info_keys`."""
    tensordict: bool = False

    @property
    def info_keys(self) -> tuple[str, ...]:
        return tuple(name for name in self.named if name not in NAMES)


def original_of(policy: Policy) -> Policy:
    """Return the module inside of `torch.compile(module)`, DataParallel and DistributedDataParallel.

    Only the module has the policy's signature, because these wrappers take any arguments.
    """
    inner: Any = policy
    while is_module(inner):
        policy = inner
        is_parallel = type(policy).__name__ in ("DataParallel", "DistributedDataParallel")
        inner = getattr(policy, "module" if is_parallel else "_orig_mod", None)
    return policy


def signature_of(
    policy: Policy, observation_space: spaces.Space[Any] | None, info_keys: Sequence[str] = ()
) -> Signature:
    """Read the signature of a policy. Raises `TypeError` if one of several required parameters cannot be filled."""
    policy = original_of(policy)
    tensordict = sys.modules.get("tensordict")  # a policy of tensordict has imported the package
    if tensordict is not None and isinstance(policy, tensordict.nn.TensorDictModuleBase):
        return Signature(tensordict=True)
    try:
        parameters = inspect.signature(getattr(policy, "forward", policy)).parameters
    except (TypeError, ValueError):  # a callable written in C
        return Signature()
    keys = set(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else set()
    named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    filled = [p.name for p in named if p.name in {*NAMES, *info_keys} - keys]
    required = [p.name for p in named if p.default is p.empty and p.name not in filled]
    by_name = bool(required) and keys.issuperset(required)
    if not by_name and next(iter(parameters), None) in filled:  # the first parameter takes the observation
        required.append(filled.pop(0))
    if required in (["tensordict"], ["td"]) or (named and len(required) <= 1 and _is_tensordict(named[0])):
        return Signature(tensordict=True)
    if by_name:
        return Signature(tuple(required), tuple(filled))
    if len(required) > 1:
        known = f"a dict with the keys {sorted(keys)}" if keys else "one argument"
        raise TypeError(
            f"the parameters of the policy are incompatible with the observations: the policy needs {required}, but "
            f"observations are {known}; entries of infos are passed if info_keys names them, and info_keys is "
            f"{tuple(info_keys)}"
        )
    return Signature((), tuple(filled))


def _is_tensordict(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.strip("'\"").rpartition(".")[2] in ("TensorDict", "TensorDictBase")


def read_output(output: Any, exploration: ExplorationType, pick: Choose = choose) -> dict[str, Any]:
    """Return a policy's outputs by name. Raises `TypeError` for a dict without `action`."""
    if isinstance(output, tuple):
        output = {("action" if i == 0 else f"output{i}"): value for i, value in enumerate(output)}
    if not isinstance(output, dict):
        return {"action": pick(output, exploration)}
    if "action" not in output:
        raise TypeError(
            f"the policy returned a dict without 'action'; its keys are {sorted(map(str, output))}. (The actions of a "
            "Dict space are a dict under that key.)"
        )
    return {**output, "action": pick(output["action"], exploration)}


class PolicyCall:
    """Call of a policy with the arguments of its signature.

    rows: maximum number of rows. pick: takes an action from a distribution. compile, cudagraph: keyword arguments for
        `torch.compile` and tensordict's `CudaGraphModule`, or `None`.
    """

    def __init__(
        self,
        policy: Policy,
        signature: Signature,
        rows: int,
        exploration: ExplorationType,
        pick: Choose = choose,
        compile: dict[str, Any] | None = None,
        cudagraph: dict[str, Any] | None = None,
    ) -> None:
        self.exploration = exploration
        self.wants_rows = bool({*signature.named} - {"info"})
        """True if a call's `inputs` are `(observations, result of rows_of, entries of infos)`."""
        self.takes_info = "info" in signature.named
        self.infos: Any = None
        self.state = RecurrentState(original_of(policy), rows) if "state" in signature.named else None
        self._signature, self._pick = signature, pick
        if self.takes_info and (compile is not None or cudagraph is not None):
            raise ValueError(
                "compile_policy and cudagraph_policy are for policies on tensors, and `info` holds dicts: name the "
                "entries that the policy needs in info_keys, and give it a parameter for each"
            )
        if compile is not None:
            import torch

            policy = torch.compile(policy, **compile)
        self._policy = policy if cudagraph is None else self._graphed(policy, rows, cudagraph)

    def rows_of(self, env_ids: np.ndarray, stepping: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        if self.state is None:
            return (env_ids,)
        return self.state.rows(env_ids, stepping, needs_ids="env_id" in self._signature.named)

    def __call__(self, inputs: Any) -> dict[str, Any]:
        """Return the outputs by name. `inputs` are observations `(k, ...)`, or a tuple if `wants_rows`."""
        keys, obs = self._signature.keys, inputs
        rows: Any = None
        of_infos: dict[str, Any] = {}
        if self.wants_rows:
            obs, rows, of_infos = inputs
        if self._signature.tensordict:
            from collector.batch.tensordict_form import call_with_tensordict

            output: Any = call_with_tensordict(self._policy, obs, self.exploration.name)
        else:
            named = {key: obs[key] for key in keys}
            named |= {name: self._argument(name, rows, of_infos) for name in self._signature.named}
            output = self._policy(**named) if keys else self._policy(obs, **named)
            if self.state is not None:
                output = self.state.keep(rows, output)
        return read_output(output, self.exploration, self._pick)

    def _argument(self, name: str, rows: Any, of_infos: dict[str, Any]) -> Any:
        if name == "state" and self.state is not None:
            return self.state.recall(rows)
        return self.infos if name == "info" else rows[0] if name == "env_id" else of_infos.get(name)

    def _graphed(self, policy: Policy, rows: int, options: dict[str, Any]) -> Policy:
        """Return a policy with a CUDA graph per exploration type. Calls with fewer than `rows` rows use no graph."""
        try:
            from tensordict.nn import CudaGraphModule
        except ImportError as error:
            raise ImportError("cudagraph_policy needs tensordict: pip install 'vecenv[tensordict]'") from error
        graphs: dict[ExplorationType, Any] = {}

        def decide(*args: Any, **named: Any) -> dict[str, Any]:  # a graph cannot return distributions
            output = policy(*args, **named)
            return read_output(output if self.state is None else with_state(output), self.exploration)

        def call(*args: Any, **named: Any) -> Any:
            if len(next(nest.leaves((args, named)))) != rows:
                return policy(*args, **named)
            wanted = self.exploration
            if wanted not in graphs:
                graphs[wanted] = CudaGraphModule(policy if self._signature.tensordict else decide, **options)
            return graphs[wanted](*args, **named)

        return call
