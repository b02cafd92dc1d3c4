"""`PLAIN`: encoding of messages for worker commands, which need no pickle and are not trusted.

`vecenv/worker_numpy.py` defines the values. This module adds spaces, reports of envs, layouts and failures.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import GraphInstance

from vecenv.backends.host.env_host import EnvReport, make_report
from vecenv.backends.host.failure import Failure
from vecenv.backends.ipc.serialization import Code
from vecenv.backends.memory.infos import PYTHON, SCALARS
from vecenv.errors import RemoteTraceback
from vecenv.layout import Layout, Leaf, ObjectLeaf
from vecenv.worker_numpy import Tagged, arguments_of, decode, encode, space_as_value

RAISED_AGAIN = ("builtins", "vecenv.errors", "gymnasium.error")
"""Modules whose exceptions keep their class."""
LARGEST = 1 << 30
"""Bytes of the largest frame and of the largest array of an observation."""
SPEC = ("id", "max_episode_steps", "reward_threshold", "nondeterministic")


def own_name() -> str:
    """Return the name and version of vecenv, for the handshake."""
    return f"vecenv {sys.modules[__name__.partition('.')[0]].__version__}"


class RemoteObject(NamedTuple):
    """Text of an object that cannot cross from a worker command: a set, an exception, an object of a class.

    >>> RemoteObject("builtins.set", "{1, 2}").text
    '{1, 2}'
    """

    type_name: str
    text: str


def _convert(value: Any) -> Tagged | None:
    if isinstance(value, gymnasium.Space):
        return space_as_value(value)
    if isinstance(value, Failure):
        return _of_failure(value)
    if isinstance(value, EnvReport):
        return Tagged("$report", {**value._asdict(), "spec": _of_spec(value.spec)})
    if isinstance(value, EnvSpec):
        return _of_spec(value)
    if isinstance(value, Layout):
        return Tagged("$layout", [value.obs, value.action])
    if isinstance(value, Leaf):
        return Tagged("$leaf", [value.path, list(value.shape), value.dtype.str])
    if isinstance(value, ObjectLeaf):
        return Tagged("$objects", [value.path, value.is_text])
    if isinstance(value, GraphInstance):
        return Tagged("$graph", list(value))
    if isinstance(value, type) and value in SCALARS:
        return Tagged("$type", value.__name__ if value in PYTHON else np.dtype(value).str)
    return None


def _of_spec(spec: Any) -> Tagged | None:
    """Keep the numbers of a spec of gymnasium or gym."""
    fields = {name: getattr(spec, name, None) for name in SPEC}
    return Tagged("$spec", fields) if isinstance(fields["id"], str) else None


def _as_spec(content: dict[str, Any]) -> EnvSpec | None:
    with contextlib.suppress(gymnasium.error.Error):  # an id that gymnasium does not allow
        return EnvSpec(**{name: content[name] for name in SPEC})
    return None


def _of_failure(failure: Failure) -> Tagged:
    error: Any = None
    if failure.blob is not None:  # made by this process
        with contextlib.suppress(Exception):
            error = pickle.loads(failure.blob)
    kind = type(error)
    names = {"module": kind.__module__, "type": kind.__qualname__} if error else {"type": failure.type_name}
    content = {name: getattr(failure, name) for name in ("env_id", "op", "text", "trace", "began", "stepped")}
    return Tagged("$failure", {**content, **names, "args": arguments_of(error) if error else []})


def _as_failure(content: dict[str, Any]) -> Failure:
    text, trace, type_name = (str(content.get(name, "")) for name in ("text", "trace", "type"))
    failure = Failure(int(content["env_id"]), str(content["op"]), type_name.rpartition(".")[2], text, trace)
    failure.began, failure.stepped = content.get("began") is not False, content.get("stepped") is True
    failure.error = _exception(content.get("module"), type_name, content.get("args", ()), text)
    if failure.error is not None:
        failure.error.__cause__ = RemoteTraceback(trace)
    return failure


def _exception(module: Any, name: str, args: Any, text: str) -> Exception | None:
    kind = getattr(sys.modules[module], name, None) if module in RAISED_AGAIN else None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    with contextlib.suppress(Exception):
        error = kind(*args)
        if type(error) is kind and str(error) == text:
            return error
    return None


def _as_report(content: dict[str, Any]) -> EnvReport:
    parts = dict.fromkeys(EnvReport._fields) | content
    for name in ("observation_space", "action_space"):
        if parts[name] is not None and not isinstance(parts[name], gymnasium.Space):
            raise TypeError(f"{name} is a {type(parts[name]).__name__}")
    if not isinstance(parts["metadata"], dict):
        parts["metadata"] = None
    return make_report([parts[name] for name in EnvReport._fields])


def _as_space(content: Any) -> gymnasium.Space[Any]:
    kind, fields = content
    shape, dtype = fields.get("shape"), fields.get("dtype")
    dtype = None if dtype is None else np.dtype(dtype)
    if dtype is not None and shape is not None:
        size = dtype.itemsize
        for each in shape:
            size *= each
        if size > LARGEST:
            raise ValueError(f"a space of {size} bytes")
    found: gymnasium.Space[Any]
    if kind == "Box":
        found = spaces.Box(fields["low"], fields["high"], dtype=dtype)
    elif kind == "Discrete":
        found = spaces.Discrete(int(fields["n"]), start=int(fields["start"] or 0))
        found.dtype = dtype if dtype is not None else found.dtype
    elif kind == "MultiDiscrete":
        start = {} if fields["start"] is None else {"start": fields["start"]}
        found = spaces.MultiDiscrete(fields["nvec"], dtype=dtype, **start)
    elif kind == "MultiBinary":
        found = spaces.MultiBinary(shape)
    elif kind == "Text":
        found = spaces.Text(fields["max_length"], min_length=fields["min_length"], charset=fields["characters"])
    elif kind == "Dict":
        found = spaces.Dict([(key, _checked(part)) for key, part in fields["spaces"].items()])
    elif kind in ("Tuple", "OneOf"):
        found = getattr(spaces, kind)([_checked(part) for part in fields["spaces"]])
    elif kind == "Sequence":
        found = spaces.Sequence(_checked(fields["feature_space"]), stack=bool(fields["stack"]))
    elif kind == "Graph":
        edge = fields["edge_space"]
        found = spaces.Graph(_checked(fields["node_space"]), None if edge is None else _checked(edge))
    else:
        found = gymnasium.Space(None if shape is None else tuple(shape), dtype)
    return found


def _checked(space: Any) -> Any:
    if not isinstance(space, gymnasium.Space):
        raise TypeError(f"a part of a space is a {type(space).__name__}")
    return space


def _as_type(name: str) -> Any:
    return next((kind for kind in PYTHON if kind.__name__ == name), None) or np.dtype(name).type


TAGS: dict[str, Callable[[Any], Any]] = {
    "$space": _as_space,
    "$failure": _as_failure,
    "$report": _as_report,
    "$spec": _as_spec,
    "$layout": lambda content: Layout(*content),
    "$leaf": lambda content: Leaf.of(*content),
    "$objects": lambda content: ObjectLeaf(*content),
    "$graph": lambda content: GraphInstance(*content),
    "$type": _as_type,
    "$text": lambda content: RemoteObject(*map(str, content)),
}
PLAIN = Code(partial(encode, convert=_convert), partial(decode, tags=TAGS), lambda part: part, lambda part: part)


def check_sendable(value: Any) -> None:
    """Raise TypeError if `value` is not in the closed set of values that may cross to a worker command."""
    encode(value, _convert, strict=True)
