"""The vector env classes that tests run on. Workers import this module, so it imports little."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium
import pytest
from packaging.version import Version

from tests.support.local_ray import NEAR
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

PROCESS_BACKENDS = [ShmemVectorEnv, SubprocVectorEnv]
BACKENDS = [DummyVectorEnv, *PROCESS_BACKENDS, ThreadVectorEnv]
FULL = pytest.mark.full
"""Mark of the tests that `make test-all` runs in addition to `make test`."""
RAY = [pytest.mark.local_ray, pytest.mark.ray]
"""Marks of the tests that run on Ray, with `make test-ray`."""
ON_RAY = pytest.param(RayVectorEnv, marks=RAY)
"""RayVectorEnv as one more class for a test, with actors on two nodes."""
OLD_GYMNASIUM = Version(gymnasium.__version__) < Version("1.4")
"""gymnasium 1.3 writes into the metadata of env classes, and refuses SAME_STEP in its wrappers of statistics."""
NEEDS_DM_CONTROL = pytest.mark.skipif(
    sys.version_info >= (3, 13) and find_spec("dm_control") is None,
    reason="labmaze, which dm_control needs, has no wheel for Python 3.13",
)


def one_of(classes: Sequence[type]) -> list[Any]:
    """Return parameters for a test of shared behaviour: the first class in the quick tier, the rest in the full
    tier.
    """
    return [classes[0], *full(classes[1:])]


def vector_env_classes(parameters: Sequence[Any]) -> Any:
    """Return a fixture with each of these classes in turn."""

    def vector_env_class(request: pytest.FixtureRequest) -> type:
        return request.param

    return pytest.fixture(params=parameters, ids=lambda cls: cls.__name__)(vector_env_class)


def and_ray(classes: Sequence[type], quick: bool = True) -> Any:
    """Return a fixture with each of these classes and RayVectorEnv. Without `quick`, no class is in the quick tier.

    In a module with tests for Ray, it replaces a fixture of conftest: `backend = and_ray(BACKENDS)`.
    """
    return vector_env_classes([*(one_of(classes) if quick else full(classes)), ON_RAY])


def full(classes: Sequence[type]) -> list[Any]:
    """Return parameters for a test of these classes in the full tier."""
    return [pytest.param(cls, marks=FULL) for cls in classes]


def on_this_node(backend: type) -> dict[str, Any]:
    """Return options that place actors on the node of the tests.

    On this node, vecenv notices the end of an idle actor immediately, and knows which env ended the actor. On another
    node, vecenv notices the end at the next use, and all envs of the actor are lost.
    """
    return dict(NEAR) if backend is RayVectorEnv else {}
