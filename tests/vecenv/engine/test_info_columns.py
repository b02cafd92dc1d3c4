"""Vector infos from worker processes equal those of envs in this process. Random programs compare single infos."""

from functools import partial

import numpy as np
import pytest

from tests.fuzz.envs import INFOS, Scripted
from tests.support.cases import described
from vecenv import AsyncVectorEnv, SyncVectorEnv

N, STEPS = 5, 13
GROUPS = [[*INFOS][k::N] for k in range(N)]
"""Names of INFOS, so that each batch has all kinds."""


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_vector_infos_are_those_of_envs_in_this_process(names):
    """test_gymnasium_infos.py compares their types with gymnasium's."""
    fns = [partial(Scripted, i, infos=(names[i % len(names)],)) for i in range(N)]
    mode = {"autoreset_mode": ["NextStep", "SameStep"][GROUPS.index(names) % 2]}
    far, near = AsyncVectorEnv(fns, num_workers=2, **mode), SyncVectorEnv(fns, **mode)
    for step in range(STEPS):
        got, want = (envs.step(np.zeros(N, int))[-1] if step else envs.reset(seed=3)[1] for envs in (far, near))
        assert described(got) == described(want)
    far.close()
    near.close()


def test_a_vector_info_shares_no_memory_with_others():
    envs = AsyncVectorEnv([partial(Scripted, i, infos=("numpy numbers",)) for i in range(N)], num_workers=2)
    envs.reset()
    first, second = (envs.step(np.zeros(N, int))[-1] for _ in range(2))
    before = described(second)
    for column in first.values():
        column[...] = 0
    assert described(second) == before
    envs.close()
