"""Tools to test vector envs.

`check_vector_env` checks a new backend. `RaisesOnStep` and similar envs fail. `Gates` let a test decide
when an env continues.

    check_vector_env(lambda env_fns, **options: BaseVectorEnv(env_fns, backend=MyBackend(), **options))

>>> from vecenv import SubprocVectorEnv
>>> with Gates(2, ops=["step"]) as gates, SubprocVectorEnv(gates.env_fns, wait_num=1) as venv:
...     obs, info = venv.reset()
...     venv.send([0, 0])
...     gates.open(1)  # env 1 may continue, env 0 may not
...     obs, rew, terminated, truncated, info = venv.recv()
...     gates.open(0)
>>> info[0]["env_id"]
1
"""

from vecenv.testing.check_env import CheckResult, CheckRow, check_env
from vecenv.testing.contract import CHECKS, check_vector_env
from vecenv.testing.envs import (
    CountingEnv,
    ExitsOnReset,
    ExitsOnStep,
    GateEnv,
    Gates,
    HangsOnStep,
    RaisesInConstructor,
    RaisesOnReset,
    RaisesOnStep,
)
from vecenv.testing.fake_backend import FakeBackend

__all__ = [
    "CHECKS",
    "CheckResult",
    "CheckRow",
    "CountingEnv",
    "ExitsOnReset",
    "ExitsOnStep",
    "FakeBackend",
    "GateEnv",
    "Gates",
    "HangsOnStep",
    "RaisesInConstructor",
    "RaisesOnReset",
    "RaisesOnStep",
    "check_env",
    "check_vector_env",
]
