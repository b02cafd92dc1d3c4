"""Envs of the behaviour tests, and the backends that they run on. Workers import this module, so it imports little."""

import contextlib
import copy
import inspect
import multiprocessing
from multiprocessing.connection import wait

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.support.local_ray import NEAR
from vecenv import BaseVectorEnv, EnvWorker, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv
from vecenv.testing import CountingEnv

TAXI = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"  # gymnasium 1.2 has version 3


def discrete(n, dtype):
    """Return a Discrete space of this dtype, or of int64 in gymnasium 1.2, whose spaces have no other."""
    has_dtypes = "dtype" in inspect.signature(spaces.Discrete).parameters
    return spaces.Discrete(n, dtype=dtype) if has_dtypes else spaces.Discrete(n)


def skip_unless_torch_indexes(dtype):
    """Skip the test if this torch cannot read rows of the dtype: torch 2.8 lacks this for uint16, uint32 and uint64."""
    import torch

    try:
        torch.zeros(2, dtype=getattr(torch, dtype))[torch.tensor([0])]
    except NotImplementedError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")


class Plays(gymnasium.Env):
    """Env that returns the observations of a list in turn, and the rewards of a second list."""

    def __init__(self, space, script, rewards=(0.0,), action_space=None):
        if space is not None:
            self.observation_space = space
        self.action_space = action_space or spaces.Discrete(10)
        self.script, self.rewards, self.at = list(script), list(rewards), -1

    def _next(self):
        self.at += 1
        return self.script[self.at % len(self.script)]

    def reset(self, *, seed=None, options=None):
        return self._next(), {}

    def step(self, action):
        return self._next(), self.rewards[self.at % len(self.rewards)], False, False, {}


class Records(gymnasium.Env):
    """Env that keeps every action unchanged."""

    observation_space = spaces.Discrete(1)

    def __init__(self, action_space):
        self.action_space = action_space
        self.actions = []

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.actions.append(action)
        return 0, 0.0, False, False, {}

    def kinds(self):
        """Return the type of each action, with dtype and shape if it has them."""
        return [(type(a).__name__, str(getattr(a, "dtype", None)), getattr(a, "shape", None)) for a in self.actions]


class Writes(Records):
    """Env that overwrites its actions, and observes them."""

    observation_space = spaces.Box(-99, 99, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        if options is not None:
            options["seen"] = options.get("seen", 0) + 1
            self.actions.append(options["seen"])
        return np.zeros(2, np.float32), {}

    def step(self, action):
        row = action["x"] if isinstance(action, dict) else action
        seen = np.array(row, np.float32)
        row[:] = [42.0, 42.0] if isinstance(row, list) else 42
        return seen, 0.0, False, False, {}


class BareWorker(EnvWorker):
    """Worker with only the abstract methods of tianshou's class."""

    def __init__(self, env_fn):
        self.env = env_fn()
        super().__init__(env_fn)

    def get_env_attr(self, key):
        return getattr(self.env, key)

    def set_env_attr(self, key, value):
        setattr(self.env, key, value)

    def send(self, action, **kwargs):
        self.result = self.env.reset(**kwargs) if action is None else self.env.step(action)

    def reset(self, **kwargs):
        return self.env.reset(**kwargs)

    def render(self, **kwargs):
        return self.env.render(**kwargs)

    def close_env(self):
        self.env.close()


class LocalWorker(BareWorker):
    """Worker class of a user, as in code for tianshou. It seeds the action space together with the env."""

    def reset(self, **kwargs):
        if "seed" in kwargs:
            super().seed(kwargs["seed"])
        return super().reset(**kwargs)


class ProcessWorker(EnvWorker):
    """Worker with a process per env. The end of a process raises EOFError or BrokenPipeError, as in tianshou's
    SubprocEnvWorker.
    """

    def __init__(self, env_fn):
        context = multiprocessing.get_context("fork")
        self.channel, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, env_fn), daemon=True)
        self.process.start()
        theirs.close()
        super().__init__(env_fn)

    def ask(self, name, *args, **kwargs):
        self.channel.send((name, args, kwargs))
        return self.recv()

    def recv(self):
        answer = self.channel.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_env_attr(self, key):
        return self.ask("__getattribute__", key)

    def set_env_attr(self, key, value):
        self.ask("__setattr__", key, value)

    def send(self, action, **kwargs):
        self.channel.send(("reset", (), kwargs) if action is None else ("step", (action,), {}))

    @staticmethod
    def wait(workers, wait_num, timeout=None):
        ready = wait([worker.channel for worker in workers], timeout)
        return [worker for worker in workers if worker.channel in ready]

    def render(self, **kwargs):
        return self.ask("render", **kwargs)

    def close_env(self):
        with contextlib.suppress(OSError):  # the process has ended
            self.channel.send(("close", (), {}))
        self.channel.close()
        self.process.join()


def serve(channel, env_fn):
    """Run the loop of a worker process."""
    env = env_fn()
    while True:
        name, args, kwargs = channel.recv()
        if name == "close":
            return env.close()
        try:
            channel.send(getattr(env, name)(*args, **kwargs))
        except Exception as error:
            channel.send(error)


def custom(env_fns, **options):
    """Return a vector env with a user's worker class."""
    return BaseVectorEnv(env_fns, LocalWorker, **options)


def sharing(cls, num_workers, **options):
    """Return a function that makes vector envs of this class with at most `num_workers` workers."""

    def make(env_fns, **more):
        return cls(env_fns, num_workers=min(num_workers, len(env_fns)), **options, **more)

    make.__name__ = f"{cls.__name__} {num_workers} workers"
    return make


WITH_TWO_WORKERS = [sharing(cls, 2) for cls in (ThreadVectorEnv, SubprocVectorEnv, ShmemVectorEnv)]
near = sharing(RayVectorEnv, 2, **NEAR)
"""Actors on the node of the tests."""
NEAR_ON_RAY = pytest.param(near, marks=pytest.mark.local_ray)
"""The same actors in the quick tier. Only few tests use it."""


def counting(n, **options):
    """Return `n` functions that make CountingEnvs."""
    return [lambda i=i: CountingEnv(i, **options) for i in range(n)]


def playing(space, *scripts, **options):
    """Return a function per script, which makes an env that plays the script."""
    return [lambda script=script: Plays(space, script, **options) for script in scripts]


def equal_bits(left, right):
    """Return whether two arrays have the same dtype, shape and bytes."""
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def samples(space, count, seed=0):
    space = copy.deepcopy(space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def described(value):
    """Describe a value, bit for bit, with the types of all its parts."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return "objects", value.shape, [described(part) for part in value.ravel().tolist()]
    if isinstance(value, np.ndarray):
        layout = value.flags.c_contiguous, value.flags.writeable, value.flags.aligned
        return type(value), value.dtype.str, value.shape, layout, value.tobytes()
    if isinstance(value, dict):
        return type(value), [(type(key), repr(key), described(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(part) for part in value]
    return type(value), repr(value)


class RaisesOnce(CountingEnv):
    """CountingEnv that raises in its second reset."""

    raised = False

    def reset(self, **kwargs):
        if self.episode == 0 and not self.raised:
            self.raised = True
            raise ValueError("boom in reset")
        return super().reset(**kwargs)
