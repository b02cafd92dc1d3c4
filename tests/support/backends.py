"""The vector env classes that tests run on. A light module of its own: workers import it with the envs of tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.local_ray import NEAR
from vecenv import DummyVectorEnv, RayVectorEnv, ShmemVectorEnv, SubprocVectorEnv, ThreadVectorEnv

PROCESS_BACKENDS = [ShmemVectorEnv, SubprocVectorEnv]
BACKENDS = [DummyVectorEnv, *PROCESS_BACKENDS, ThreadVectorEnv]
FULL = pytest.mark.full
"""The mark of tests that `make test-all` adds to `make test`."""
RAY = [pytest.mark.local_ray, pytest.mark.ray]
"""The marks of what runs on Ray, by `make test-ray`."""
ON_RAY = pytest.param(RayVectorEnv, marks=RAY)
"""One more class for a test: its actors are spread over two nodes."""
NEEDS_DM_CONTROL = pytest.mark.skipif(
    sys.version_info >= (3, 13) and find_spec("dm_control") is None,
    reason="labmaze, which dm_control needs, has no wheel for Python 3.13",
)


def one_of(classes: Sequence[type]) -> list[Any]:
    """Parameters of a test of what these classes share: the first is in the quick tier, the others in the full one."""
    return [classes[0], *full(classes[1:])]


def vector_env_classes(parameters: Sequence[Any]) -> Any:
    """A fixture with each of these classes in turn."""

    def vector_env_class(request: pytest.FixtureRequest) -> type:
        return request.param

    return pytest.fixture(params=parameters, ids=lambda cls: cls.__name__)(vector_env_class)


def and_ray(classes: Sequence[type], quick: bool = True) -> Any:
    """A fixture with each of these classes in turn, and RayVectorEnv; without `quick` none is in the quick tier.

    In a module whose tests are for Ray too it takes the place of a fixture of conftest: `backend = and_ray(BACKENDS)`.
    """
    return vector_env_classes([*(one_of(classes) if quick else full(classes)), ON_RAY])


def full(classes: Sequence[type]) -> list[Any]:
    """Parameters of a test of these classes in the full tier."""
    return [pytest.param(cls, marks=FULL) for cls in classes]


def on_this_node(backend: type) -> dict[str, Any]:
    """Options that place actors on the node of the tests. There the end of an idle one is seen at once, and which env
    has ended one; on another node it is seen when it is used, and its envs are lost together.
    """
    return dict(NEAR) if backend is RayVectorEnv else {}
