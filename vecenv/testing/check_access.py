"""Checks of everything about the envs but stepping them: attributes, spaces, frames, seeds, counts."""

from __future__ import annotations

import functools

import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenv.engine.arguments import seed_chain
from vecenv.testing.envs import CountingEnv
from vecenv.testing.model import Factory, N, Twins, assert_raises, assert_same


def check_attributes(factory: Factory) -> None:
    """Attributes are lists in the order of the ids, methods are called; unknown names leave the venv usable."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        assert venv.get_env_attr("env_id", [3, 1]) == [3, 1], (
            f"get_env_attr of 3 and 1 gave {venv.get_env_attr('env_id', [3, 1])}"
        )
        venv.set_env_attr("length", 9, [2])
        assert venv.get_env_attr("length") == [5, 5, 9, 5, 5], "set_env_attr on env 2 reached others, or not it"
        assert_raises(AttributeError, "an unknown attribute", lambda: venv.get_env_attr("nope"))
        mine = [1]
        venv.set_env_attr("mine", mine)
        for value in (mine, *venv.get_env_attr("mine")):
            value.append(2)
        assert venv.get_env_attr("mine") == [[1]] * N, "a value that was set or got is the caller's too"
        options = {"t": 3}
        got = tuple(venv.call("reset", id=[4, 1], options=options))
        assert_same(got, tuple(twins.reset(i, options=options)[::4] for i in (4, 1)), "what call of reset returned")
        assert venv.get_env_attr("t") == [0, 3, 0, 0, 3], f"call of reset on 4 and 1 left t at {venv.get_env_attr('t')}"
        assert venv.call("length") == [5, 5, 9, 5, 5], "call of what is no method does not return it"
        assert (len(venv), venv.num_envs, venv.env_num) == (N, N, N), (
            "len, num_envs and env_num differ from the number of envs"
        )


def check_reports(factory: Factory) -> None:
    """Spaces, metadata and specs are those of the envs, one entry each."""
    env = _Described()
    with factory([functools.partial(_Described, i) for i in range(N)]) as venv:
        for name in ("observation_space", "action_space", "metadata", "spec"):
            got, want = getattr(venv, name), [getattr(env, name)] * N
            assert got == want, f"{name} is {got}, expected {want}"


def check_frames(factory: Factory) -> None:
    """`render` gives one frame for each env, in order, and passes its arguments on."""
    with factory([functools.partial(_Described, i) for i in range(N)]) as venv:
        for arguments, shade in (({}, 0), ({"shade": 7}, 7)):
            frames = [int(frame[0, 0, 0]) for frame in venv.render(**arguments)]
            want = [i + shade for i in range(N)]
            assert frames == want, f"render(**{arguments}) gave frames of {frames}, expected {want}"


def check_seeds(factory: Factory) -> None:
    """`seed` gives s, s + 1, ... to the envs and their action spaces."""
    twins = Twins()
    with factory(twins.env_fns) as venv:
        assert venv.seed(3) == [3, 4, 5, 6, 7], "seed(3) did not return the seeds used"
        assert venv.get_env_attr("seeded") == [3, 4, 5, 6, 7], f"seed(3) gave the envs {venv.get_env_attr('seeded')}"
        first = [space.sample() for space in venv.action_space]
        venv.seed(3)
        assert first == [space.sample() for space in venv.action_space], "seed does not seed the action spaces"
        wanted = []
        for i, twin in enumerate(twins.envs):
            twin.action_space.seed(3 + i)
            wanted.append(twin.action_space.sample())
        assert first == wanted, f"action spaces give {first} after seed(3), expected {wanted}"
        chain = seed_chain(9, N)
        for static, wanted_seeds, following in ((False, chain[:-1], chain[-1]), (True, [9] * N, 9)):
            got = venv.set_seed(9, static)
            assert got == following, f"set_seed(9, {static}) returned {got}, expected {following}"
            seeded = venv.get_env_attr("seeded")
            assert seeded == wanted_seeds, f"set_seed(9, {static}) gave the envs {seeded}, expected {wanted_seeds}"


def check_stats(factory: Factory) -> None:
    """`stats` counts rounds, steps and resets, and tells the seconds."""
    with factory(Twins().env_fns) as venv:
        venv.reset()
        venv.step([0] * N)
        venv.step([0, 0], [3, 1])
        venv.step([0] * N, reset=[2])
        stats = venv.stats()
        want = {"rounds": 4, "steps": N + 2 + N - 1, "resets": N + 1, "restarts": 0, "absorbed": 0}
        got = {name: stats.get(name) for name in want}
        assert got == want, f"stats say {got}, expected {want}"
        for name in ("dispatch_s", "wait_s"):
            assert stats.get(name, -1.0) >= 0, f"stats say {name}={stats.get(name)}, expected seconds"


class _Described(CountingEnv):
    """Has a spec, and frames of a shade that the caller chooses."""

    spec = EnvSpec("Described-v0")

    def render(self, shade: int = 0) -> np.ndarray:
        return super().render() + np.uint8(shade)
