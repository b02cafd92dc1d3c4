"""Vector envs of this project as contenders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.envs import EnvFn
from benchmarks.peers import PEERS, Contender, StepThenReset, TianshouRay


class _Ours(StepThenReset):
    """Contender that resets finished envs in the round in which the remaining envs step."""

    needs = "vecenv"
    kind: ClassVar[str]

    def __init__(self, env_fns: Sequence[EnvFn], **options: Any) -> None:
        import vecenv

        self._ended: np.ndarray | None = None
        self._resetting = 0
        self._start(getattr(vecenv, self.kind)(list(env_fns), **options), len(env_fns))

    def step(self, actions: np.ndarray) -> int:
        _, _, terminated, truncated, _ = self.venv.step(actions, reset=self._ended)
        steps = self._count - self._resetting
        ended = np.logical_or(terminated, truncated)
        self._resetting = int(np.count_nonzero(ended))
        self._ended = ended if self._resetting else None
        return steps


class OursDummy(_Ours):
    name = "vecenv Dummy"
    kind = "DummyVectorEnv"


class OursSubproc(_Ours):
    name = "vecenv Subproc"
    kind = "SubprocVectorEnv"


class OursShmem(_Ours):
    name = "vecenv Shmem"
    kind = "ShmemVectorEnv"


class OursShmemTwoRounds(OursShmem):
    """Contender that calls `step`, then `reset(ids)`, like code for tianshou. This takes two rounds, not one."""

    name = "vecenv Shmem, step then reset"

    def step(self, actions: np.ndarray) -> int:
        return StepThenReset.step(self, actions)


class OursRay(_Ours):
    """Contender that is not in OURS, because it needs the cluster of `benchmarks.ray`."""

    name = "vecenv Ray"
    kind = "RayVectorEnv"


OURS: list[type[Contender]] = [OursDummy, OursSubproc, OursShmem, OursShmemTwoRounds]

CONTENDERS: dict[str, type[Contender]] = {cls.name: cls for cls in (*OURS, OursRay, *PEERS, TianshouRay)}
