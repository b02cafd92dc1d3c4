"""If the package of an env or of a facade is missing, the error says what to install."""

import importlib
import re
import sys

import pytest

from vecenv import DMControlEnv, EnvPoolVectorEnv, MultiThreadedEnv, PettingZooEnv

DM_CONTROL = "pip install 'vecenv[dmcontrol]'" if sys.version_info < (3, 13) else "use Python 3.12, because labmaze"
SB3 = "stable_baselines3.common.vec_env", "pip install 'vecenv[sb3]'"
MISSING = [
    ("envpool", "pip install 'vecenv[envpool]'", lambda: EnvPoolVectorEnv.make("CartPole-v1", 2)),
    ("envpool", "pip install 'vecenv[envpool]'", lambda: MultiThreadedEnv(2, "CartPole-v1")),
    ("dm_control", DM_CONTROL, lambda: DMControlEnv("cartpole", "swingup")),
    ("ale_py", "pip install 'vecenv[atari]'", lambda: importlib.import_module("vecenv.envs.atari_env")),
    ("pettingzoo", "pip install -U 'vecenv[pettingzoo]'", lambda: PettingZooEnv("classic/rps-v2")),
    (*SB3, lambda: importlib.import_module("vecenv.facades.to_sb3")),
    (*SB3, lambda: importlib.import_module("vecenv.sb3")),
]


@pytest.mark.parametrize(("package", "advice", "use"), MISSING)
def test_without_a_package_the_error_says_what_to_install(package, advice, use, monkeypatch):
    for name in ("vecenv.envs.atari_env", "vecenv.facades.to_sb3", "vecenv.sb3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=re.escape(advice)):
        use()
