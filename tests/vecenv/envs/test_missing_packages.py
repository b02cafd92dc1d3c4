"""If the package of an env is missing, the error says what to install."""

import importlib
import re
import sys

import pytest

from vecenv import DMControlEnv, EnvPoolVectorEnv, MultiThreadedEnv, PettingZooEnv

NO_WHEEL = "use Python 3.12, because labmaze"
MISSING = [
    ("envpool", "pip install 'vecenv[envpool]'", lambda: EnvPoolVectorEnv.make("CartPole-v1", 2)),
    ("envpool", "pip install 'vecenv[envpool]'", lambda: MultiThreadedEnv(2, "CartPole-v1")),
    (
        "dm_control",
        "pip install 'vecenv[dmcontrol]'" if sys.version_info < (3, 13) else NO_WHEEL,
        lambda: DMControlEnv("cartpole", "swingup"),
    ),
    ("ale_py", "pip install 'vecenv[atari]'", lambda: importlib.import_module("vecenv.envs.atari_env")),
    ("pettingzoo", "pip install -U 'vecenv[pettingzoo]'", lambda: PettingZooEnv("classic/rps-v2")),
]


@pytest.mark.parametrize(("package", "advice", "use"), MISSING)
def test_without_a_package_the_error_says_what_to_install(package, advice, use, monkeypatch):
    monkeypatch.delitem(sys.modules, "vecenv.envs.atari_env", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=re.escape(advice)):
        use()
