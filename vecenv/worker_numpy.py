"""Worker for envs that run elsewhere, in one file for Python 3.8 and numpy 1.22 or newer.

Copy this file to a place where vecenv cannot be installed:

    SubprocVectorEnv(["my_envs:make"] * 8, worker_command=["/opt/sim/bin/python", "worker_numpy.py"])

The worker serves envs of gymnasium, and of gym 0.17 to 0.26, over its standard streams. The page "Frames of a worker
command" defines the frames. `python -m vecenv.worker` shares the values, the adapter and the guard of this file.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import json
import mmap
import os
import random
import select
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MAGIC, PROTOCOL, HEADER = b"\x93VECENV\n", 1, struct.Struct("<QBQ")
READY, ANSWERS, REPLY, CLOSED, SYNCED, HELLO, ENDED = 1, 2, 3, 5, 7, 8, 9
SETUP, ROUND, CALL, CLOSE, SYNC, START = 16, 17, 19, 20, 21, 22
STEP, RESET, STEP_OBJECT, RESET_KWARGS, AUTORESET = 1, 2, 3, 4, 64
DONE, EXTRA, FINAL = 128, 1, 2
PROGRESS, BUSY_NS, DOING, HUNG = 0, 2, 3, 4  # numbers that worker and guard share
NOTHING, A_ROUND, A_CALL, SENDING = range(4)
NO_REWARD = np.float64(0), np.bool_(False), np.bool_(False)
KINDS = "biufcSU"  # of dtypes


class Tagged:
    """JSON object with one key that begins with "$"."""

    def __init__(self, tag: str, content: Any) -> None:
        self.tag, self.content = tag, content


def encode(value: Any, convert: Callable[[Any], Any] = lambda value: None, strict: bool = False) -> bytes:
    """Return `value` as bytes. `convert` turns an object into a `Tagged`, or returns None.

    An object outside the closed set of values becomes its text, or with `strict` raises TypeError.
    """
    data = bytearray()

    def tree(v: Any, depth: int = 0) -> Any:
        kind, start = type(v), len(data)
        if v is None or kind in (bool, int, str):
            return v
        if kind is float:
            return v if np.isfinite(v) else {"$float": repr(v)}
        if isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in KINDS and v.dtype.itemsize:
            data.extend(v.tobytes())
            is_array = isinstance(v, np.ndarray)
            return {"$array": [v.dtype.str, list(v.shape), start]} if is_array else {"$scalar": [v.dtype.str, start]}
        if isinstance(v, (bytes, bytearray)):
            data.extend(v)
            return {"$bytes": [start, len(v)]}
        if isinstance(v, (str, int, float)):  # their subclasses
            return str(v) if isinstance(v, str) else int(v) if isinstance(v, int) else tree(float(v))
        if depth < 100:
            found = convert(v)
            v = v if found is None else found
            if isinstance(v, Tagged):
                return {v.tag: tree(v.content, depth + 1)}
            if isinstance(v, (list, tuple)):
                parts = [tree(part, depth + 1) for part in v]
                return parts if isinstance(v, list) else {"$tuple": parts}
            if isinstance(v, dict) and all(isinstance(key, (str, int, np.integer)) for key in v):
                pairs = [(str(k) if isinstance(k, str) else int(k), tree(part, depth + 1)) for k, part in v.items()]
                is_object = all(isinstance(key, str) and key[:1] != "$" for key, _ in pairs)
                return dict(pairs) if is_object else {"$dict": pairs}
        if strict:
            raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot cross to the worker of a command")
        return {"$text": [f"{kind.__module__}.{kind.__qualname__}", text_of(v)]}

    text = json.dumps(tree(value), separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + data


def text_of(value: Any) -> str:
    try:
        return str(value)[:65536]
    except Exception as error:
        return f"<no text: {type(error).__name__}>"


def decode(payload: Any, tags: dict[str, Callable[[Any], Any]] = {}) -> Any:  # noqa: B006
    """Return the value of bytes that may come from anybody. Raises ValueError, TypeError, KeyError and so on.

    `tags`: functions that build an object from the content of a tag.
    """
    view = memoryview(payload)
    end = 4 + struct.unpack_from("<I", view)[0]
    data = view[end:]

    def array(name: str, shape: list[int], start: int) -> Any:
        dtype = np.dtype(name)
        size = dtype.itemsize
        for each in (*shape, start):
            if type(each) is not int or each < 0:
                raise ValueError(f"an array of the shape {shape!r} at {start!r}")
        for each in shape:
            size *= each
        if dtype.kind not in KINDS or not dtype.itemsize or size > len(data) - start:
            raise ValueError(f"an array {name!r} of {size} bytes in a message of {len(data)}")
        return np.ndarray(shape, dtype, bytes(data[start : start + size]) or b"\0").copy()

    def value(v: Any) -> Any:
        if isinstance(v, list):
            return [value(part) for part in v]
        if not isinstance(v, dict):
            return v
        tag = next(iter(v), "")
        if tag[:1] != "$":
            return {key: value(part) for key, part in v.items()}
        content = v[tag]
        if tag == "$array":
            return array(*content)
        if tag == "$scalar":
            return array(content[0], [], content[1])[()]
        if tag == "$bytes":
            return bytes(data[content[0] : content[0] + content[1]])
        if tag == "$float":
            return float(content)
        if tag == "$tuple":
            return tuple(map(value, content))
        if tag == "$dict":
            return {key: value(part) for key, part in content}
        return tags[tag](value(content))

    return value(json.loads(bytes(view[4:end])))


SPACES = {
    "Box": ("low", "high"), "Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start"), "MultiBinary": ("shape",),
    "Text": ("min_length", "max_length", "characters"), "Dict": ("spaces",), "Tuple": ("spaces",), "OneOf": ("spaces",),
    "Sequence": ("feature_space", "stack"), "Graph": ("node_space", "edge_space"),
}  # fmt: skip
"""Attributes that define a space of gym or gymnasium, by class."""


def space_as_value(space: Any) -> Any:
    """Return a space as a `Tagged`, or None if `space` is not a space. Other classes keep shape and dtype."""
    names = [cls.__name__ for cls in type(space).__mro__]
    if "Space" not in names:
        return None
    kind = next((name for name in names if name in SPACES), "Space")
    fields: dict[str, Any] = {name: getattr(space, name, None) for name in SPACES.get(kind, ())}
    if "spaces" in fields:
        parts = fields["spaces"]
        fields["spaces"] = dict(parts) if hasattr(parts, "keys") else list(parts)
    dtype, shape = getattr(space, "dtype", None), getattr(space, "shape", None)
    fields["dtype"] = None if dtype is None else np.dtype(dtype).str
    fields["shape"] = None if shape is None else list(map(int, shape))
    return Tagged("$space", [kind, fields])


class AnyGym:
    """Env with gymnasium's `reset` and `step`, around an env of any version of gym.

    - `reset` may return only the observation, and may lack `seed`. Then `seed()` of the env gets the seed.
    - `step` may return four values. Rewards and flags may be lists, with a number per agent.
    - Keys of an observation that the Dict space lacks move into the info.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.unwrapped = env, getattr(env, "unwrapped", env)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.spec = getattr(env, "metadata", None), getattr(env, "spec", None)
        self._known = getattr(self.observation_space, "spaces", None)
        self._reset = inspect.signature(self.unwrapped.reset).parameters

    def _takes(self, name: str) -> bool:
        return name in self._reset or any(each.kind is each.VAR_KEYWORD for each in self._reset.values())

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        if seed is not None and not self._takes("seed"):
            self._seed(seed)
        given = {"seed": seed, "options": options}
        result = self.env.reset(
            **{name: each for name, each in given.items() if each is not None and self._takes(name)}
        )
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return self._known_keys(*(result if has_info else (result, {})))

    def _seed(self, seed: int) -> None:
        try:
            inspect.signature(self.unwrapped.seed).bind(seed)
        except (AttributeError, TypeError):
            warnings.warn(f"{self.unwrapped} takes no seed in reset() or seed()", RuntimeWarning, stacklevel=2)
            return
        self.env.seed(seed)

    def step(self, action: Any) -> Any:
        obs, reward, *flags, info = self.env.step(action)
        ends = [bool(np.all(flag)) for flag in flags]
        if len(ends) == 1:
            cut = ends[0] and bool(info.get("TimeLimit.truncated", False))
            ends = [ends[0] and not cut, cut]
        obs, info = self._known_keys(obs, info)
        return obs, np.asarray(reward) if isinstance(reward, (list, tuple)) else reward, ends[0], ends[1], info

    def _known_keys(self, obs: Any, info: dict[str, Any]) -> Any:
        if isinstance(obs, dict) and isinstance(self._known, dict) and obs.keys() != self._known.keys():
            info = {**{key: each for key, each in obs.items() if key not in self._known}, **info}
            obs = {key: each for key, each in obs.items() if key in self._known}
        return obs, info

    def render(self, **kwargs: Any) -> Any:
        if "mode" in inspect.signature(self.unwrapped.render).parameters:
            kwargs = {"mode": "rgb_array", **kwargs}
        return self.env.render(**kwargs)

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def make_env(name: str, kwargs: dict[str, Any]) -> Any:
    """Call the function "module:function", or make the env with a gymnasium or gym id."""
    module, _, function = name.rpartition(":")
    if module and function.isidentifier():
        return getattr(importlib.import_module(module), function)(**kwargs)
    try:
        import gymnasium as package
    except ImportError:
        package = importlib.import_module("gym")
    return package.make(name, **kwargs)


class Stream:
    """Frames over stdin and stdout. Prints of envs go to stderr, also prints of C code."""

    line: Any = (0,) * 8

    def __init__(self) -> None:
        self.input, self.output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def greet(self, worker: str, **versions: str) -> dict[str, Any]:
        """Send the first frame, and return the content of START."""
        versions = {"python": sys.version.split()[0], "numpy": np.__version__, **versions}
        os.write(self.output, MAGIC)
        self.write(HELLO, 0, encode({"protocol": PROTOCOL, "worker": worker, **versions}))
        kind, _, payload = self.read_frame()
        if kind != START:
            raise ValueError(f"the first frame has the kind {kind}, expected {START}")
        start: dict[str, Any] = decode(payload)
        return start

    def write(self, kind: int, number: int, *parts: Any) -> None:
        while self.line[HUNG]:  # the signal has woken the env, but the guard ends this process
            time.sleep(1)
        view = memoryview(b"".join((HEADER.pack(sum(map(len, parts)), kind, number), *parts)))
        while view:
            view = view[os.write(self.output, view) :]

    def read_frame(self) -> tuple[int, int, bytearray]:
        """Return kind, number and payload of the next frame."""
        size, kind, number = HEADER.unpack(self._read(HEADER.size))
        return kind, number, self._read(size)

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self.input, min(size - len(data), 1 << 18))
            if not chunk:
                raise EOFError
            data += chunk
        return data


def start_guard(stream: Stream, limit: float | None) -> Any:
    """Fork a guard, and return the numbers that it reads. The guard kills the process group of this worker:

    - when stdin hangs up, because the other end of the command has ended or closed it
    - when this process ends
    - when an env takes more than `limit` seconds for a call. First, the guard sends the stack.

    The guard is a process, because an env may hold the interpreter lock, so that no thread runs. In a namespace of
    processes, nothing inside can kill process 1. There process 1 becomes the guard, and its child the worker.
    """
    line = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    alive, ours = os.pipe()
    stacks, theirs = os.pipe()
    faulthandler.register(signal.SIGUSR1, file=theirs, all_threads=False)
    first, is_init = os.getpid(), os.getpid() == 1
    # The guard keeps these signals blocked. The worker may send SIGTERM to its group before the guard runs.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy may have threads, which the guard does not use
        forked = os.fork()
    if is_init == bool(forked):
        try:
            os.close(ours)
            _guard(stream, line, forked or first, alive, stacks, limit or 0.0)
        finally:
            if forked:  # the kernel ends all processes of the namespace
                pid, status = os.waitpid(forked, os.WNOHANG)
                os._exit(os.WEXITSTATUS(status) if pid and os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
            os.killpg(0, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    stream.line = line
    os.close(alive)
    os.close(stacks)
    ends = [ours, stream.input, stream.output]

    def close_ends() -> None:
        while ends:
            os.close(ends.pop())

    os.register_at_fork(after_in_child=close_ends)  # copies in processes of envs would hide an end
    return line


def _guard(stream: Stream, line: Any, worker: int, alive: int, stacks: int, limit: float) -> None:
    poller = select.poll()
    poller.register(stream.input, getattr(select, "POLLRDHUP", 0))  # in any case, POLLHUP and POLLERR
    poller.register(alive, select.POLLIN)
    seen, spent, at, stack = None, 0.0, time.monotonic(), None
    while not (events := poller.poll(limit * 100 or None)):
        found, now = (line[PROGRESS], line[DOING]), time.monotonic()
        spent = spent + min(now - at, limit / 2) if found == seen and found[1] in (A_ROUND, A_CALL) else 0.0
        seen, at = found, now
        if spent >= limit:
            line[HUNG] = 1
            if found != (line[PROGRESS], line[DOING]):
                line[HUNG] = 0
                continue
            os.kill(worker, signal.SIGUSR1)
            asked = select.poll()
            asked.register(stacks, select.POLLIN)
            stack = ""
            while asked.poll(20 if stack else 300):
                stack += os.read(stacks, 65536).decode(errors="replace")
            os.kill(worker, signal.SIGKILL)
            events = poller.poll(1000)
            break
    else:
        found = line[PROGRESS], line[DOING]
    if any(fd == alive for fd, _ in events) and found[1] != SENDING:
        stream.write(ENDED, 0, encode({"progress": found[0], "doing": found[1], "stack": stack}))


def failure(error: BaseException, env_id: int, op: str, stepped: bool = False) -> Tagged:
    """Describe an exception. The caller raises builtin exceptions again, and otherwise an EnvStepError."""
    kind, trace = type(error), "".join(traceback.format_exception(type(error), error, error.__traceback__))
    content = {"env_id": env_id, "op": op, "module": kind.__module__, "type": kind.__qualname__, "stepped": stepped}
    content["args"] = arguments_of(error)
    return Tagged("$failure", {**content, "text": text_of(error), "trace": trace[-65536:]})


def arguments_of(error: BaseException) -> list[Any]:
    try:
        return list(error.__reduce__()[1])  # also has the file name of an OSError
    except Exception:
        return []


LAYOUT: dict[str, Any] = {"$layout": tuple, "$leaf": lambda leaf: np.zeros(*leaf[1:]), "$objects": lambda leaf: None}
"""Functions that build the tree of a layout. Its leaves are arrays of zeros, or None for parts without an array."""


def leaves(layout: Any) -> list[np.ndarray]:
    if isinstance(layout, (dict, tuple)):
        return [leaf for part in (layout.values() if isinstance(layout, dict) else layout) for leaf in leaves(part)]
    return [] if layout is None else [layout]


def split(layout: Any, value: Any, arrays: list[np.ndarray], objects: list[Any], path: str = "obs") -> None:
    """Append the arrays of an observation to `arrays`, and its other parts to `objects`."""
    if isinstance(layout, (dict, tuple)):
        if len(value) != len(layout):
            raise ValueError(f"{path} has {len(value)} parts, expected {len(layout)}")
        for key, part in layout.items() if isinstance(layout, dict) else enumerate(layout):
            split(part, value[key], arrays, objects, f"{path}[{key!r}]")
    elif layout is None:
        objects.append(value)
    else:
        target, found = np.empty_like(layout), np.asarray(value)
        if found.size != target.size or (found.ndim and found.shape != target.shape and found.size > 1):
            raise ValueError(f"{path} has the shape {found.shape}, the space has {target.shape}")
        target[...] = found = found.reshape(target.shape)
        if target.dtype.kind in "biu" and not np.array_equal(target, found):
            raise ValueError(f"{path} has values that {target.dtype} cannot hold: {found.min()} to {found.max()}")
        arrays.append(target)


def join(layout: Any, arrays: Iterator[np.ndarray]) -> Any:
    """Return an action of the next arrays."""
    if isinstance(layout, dict):
        return {key: join(part, arrays) for key, part in layout.items()}
    return tuple(join(part, arrays) for part in layout) if isinstance(layout, tuple) else next(arrays)


class Server:
    """Serves the envs of a START frame."""

    def __init__(self, stream: Stream, line: Any, start: dict[str, Any]) -> None:
        self.stream, self.line, self.first_id, self.eager = stream, line, start["first_id"], start["eager"]
        self.envs: list[Any] = []
        reports: list[Any] = []
        for name, kwargs in start["envs"]:
            try:
                env = AnyGym(make_env(name, kwargs))
                self.envs.append(env)
                names = ("observation_space", "action_space", "metadata")
                reports.append(Tagged("$report", {each: getattr(env, each) for each in names}))
            except BaseException as error:
                reports = [failure(error, self.first_id + len(self.envs), "__init__")]
                break
        stream.write(READY, 0, encode(reports, space_as_value))

    def serve(self) -> None:
        while True:
            kind, number, payload = self.stream.read_frame()
            if kind == SETUP:
                self._bind(decode(payload, LAYOUT))
            elif kind == ROUND:
                self._round(payload)
            elif kind == CALL:
                op, calls = decode(payload)
                found = {j: self._guarded(A_CALL, j, op, self._call, j, op, calls[j]) for j in calls}
                self.stream.write(REPLY, number, encode(found, space_as_value))
            elif kind == SYNC:
                self.stream.write(SYNCED, number)
            elif kind == CLOSE:
                found = {j: self._guarded(NOTHING, j, "close", env.close) for j, env in enumerate(self.envs)}
                self.stream.write(CLOSED, 0, encode([f.content["text"] for f in found.values() if f is not None]))
                return

    def _bind(self, layout: Any) -> None:
        self.obs, self.action = layout
        self.rows = [[*leaves(self.obs), *NO_REWARD] for _ in self.envs]
        self.finals: list[list[Any]] = [[] for _ in self.envs]

    def _guarded(self, doing: int, j: int, op: str, function: Any, *args: Any) -> Any:
        """Return the result of `function`, or a failure. The guard limits the time of the call."""
        self.line[PROGRESS] = (self.line[PROGRESS] // len(self.envs) + 1) * len(self.envs) + j
        self.line[DOING] = doing
        try:
            return function(*args)
        except BaseException as error:
            failed = failure(error, self.first_id + j, op)
            return [None, None, None, failed, None] if doing == A_ROUND else failed
        finally:
            self.line[DOING] = NOTHING

    def _round(self, payload: bytearray) -> None:
        k = len(self.envs)
        seeds, end, actions = np.frombuffer(payload, "<i8", k, k), 9 * k, []
        for leaf in leaves(self.action):
            actions.append(np.ndarray((k, *leaf.shape), leaf.dtype, payload, end))
            end += k * leaf.nbytes
        objects = decode(payload[end:]) if len(payload) > end else {}
        asked, begin = [j for j in range(k) if payload[j]], time.perf_counter_ns()
        for some in [[j] for j in asked] if self.eager else [asked]:
            extras = {}
            for j in some:
                is_array = payload[j] & ~AUTORESET == STEP
                given = join(self.action, (each[j].copy() for each in actions)) if is_array else objects.get(j)
                extras[j] = self._play(j, payload[j], int(seeds[j]), given)
            self.line[BUSY_NS] += time.perf_counter_ns() - begin
            self._answer(some, {j: extra for j, extra in extras.items() if any(part is not None for part in extra)})
            begin = time.perf_counter_ns()

    def _play(self, j: int, op: int, seed: int, given: Any) -> list[Any]:
        """Step or reset env j. Return [info, object leaves, reward vector, failure, [objects, info, None]]."""
        if op in (RESET, RESET_KWARGS):
            self.rows[j][-3:] = NO_REWARD
            return self._guarded(A_ROUND, j, "reset", self._reset, j, given or {})
        last = self._guarded(A_ROUND, j, "step", self._step, j, given)
        if last[3] is not None or not (op & AUTORESET and any(self.rows[j][-2:])):
            return last
        self.finals[j] = self.rows[j][:-3]
        first = self._guarded(A_ROUND, j, "reset", self._reset, j, {} if seed < 0 else {"seed": seed})
        if first[3] is None:
            return [first[0], first[1], last[2], None, [last[1], last[0] or {}, None]]
        first[3].content["stepped"] = True
        return [*last[:3], first[3], None]

    def _reset(self, j: int, kwargs: dict[str, Any]) -> list[Any]:
        obs, info = self.envs[j].reset(**kwargs)
        return self._observe(j, obs, info, self.rows[j][-3:])

    def _step(self, j: int, action: Any) -> list[Any]:
        obs, reward, terminated, truncated, info = self.envs[j].step(action)
        vector = np.asarray(reward, np.float64)
        number = np.float64(0) if vector.size > 1 else vector.reshape(())
        extra = self._observe(j, obs, info, [number, np.bool_(terminated), np.bool_(truncated)])
        extra[2] = vector if vector.size > 1 else None
        return extra

    def _observe(self, j: int, obs: Any, info: Any, rest: list[Any]) -> list[Any]:
        arrays: list[Any] = []
        objects: list[Any] = []
        split(self.obs, obs, arrays, objects)
        self.rows[j] = arrays + rest
        return [info or None, objects or None, None, None, None]

    def _answer(self, some: list[int], extras: dict[int, Any]) -> None:
        self.line[DOING] = SENDING
        status = bytearray(len(self.envs))
        for j in some:
            status[j] = DONE | (EXTRA if j in extras else 0) | (FINAL if j in extras and extras[j][4] else 0)
        columns = [*zip(*(self.rows[j] for j in some)), *zip(*(self.finals[j] for j in some if status[j] & FINAL))]
        rest = encode(list(extras.items())) if extras else b""
        arrays = (each.tobytes() for column in columns for each in column)
        self.stream.write(ANSWERS, self.line[BUSY_NS], status, *arrays, rest)
        self.line[DOING] = NOTHING

    def _call(self, j: int, op: str, args: list[Any]) -> Any:
        if op == "render":
            return self.envs[j].render(**args[0])
        if op == "seed":
            self.envs[j].action_space.seed(*args)
            return True  # the next reset seeds the env
        if op == "wrapper_classes":
            return []
        if op not in ("get_env_attr", "has_attr", "set_env_attr", "call"):
            raise NotImplementedError(f"worker_numpy.py has no {op}; python -m vecenv.worker has it")
        name, env = args[0], self.envs[j].env
        if op == "set_env_attr":  # an attribute that a wrapper forwards by `__getattr__` belongs to a layer inside
            while not hasattr(type(env), name) and name not in vars(env) and "env" in vars(env):
                env = env.env
            return setattr(env, *args)
        while not hasattr(env, name) and "env" in getattr(env, "__dict__", ()):
            env = env.env
        if op == "has_attr":
            return hasattr(env, name)
        found = getattr(env, name)
        return found(*args[1], **args[2]) if op == "call" and callable(found) else found


def main() -> None:
    if os.isatty(0) or sys.argv[1:]:
        sys.exit(f"{__doc__}\nThis program is a worker_command of vecenv, and takes no arguments.")
    sys.path.insert(0, os.getcwd())
    stream = Stream()
    try:
        start = stream.greet("worker_numpy")
        np.random.seed(np.frombuffer(start["seeds"][0], np.uint32))
        random.seed(start["seeds"][1])
        Server(stream, start_guard(stream, start["step_timeout"]), start).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other end is gone


if __name__ == "__main__":
    main()
