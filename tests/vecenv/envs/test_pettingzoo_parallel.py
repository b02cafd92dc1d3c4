"""ParallelVectorEnv: batches of simultaneous PettingZoo envs, with agents that die, appear and differ.

Random programs compare the results (tests/fuzz/pettingzoo.py). tests/messages/agents.py has the errors.
"""

import numpy as np
import pytest
from gymnasium import spaces

from tests.fuzz import pettingzoo as programs
from tests.fuzz.driver import run
from tests.support.agent_envs import Herd, Nameless, Zoo
from vecenv import ParallelVectorEnv, ShmemVectorEnv


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", programs.Fuzz.modes)
def test_steps_are_those_of_pettingzoos_own_envs(mode):
    """The arrays of a result never change later."""
    run(type("Fuzz", (programs.Fuzz,), {"only": "dummy", "modes": [mode]}), [0], count=4)


def all_do(venv, actions):
    """Return the same batch of actions for every agent."""
    return dict.fromkeys(venv.agents, actions)


def zoo_actions(n):
    return {
        "cat": {"paw": np.zeros((n, 2), np.float32), "purr": np.zeros(n, int)},
        "ant": np.zeros(n, int),
        "bee": np.ones(n, int),
        "dog": np.zeros((n, 2), int),
    }


def test_attributes_methods_and_frames_of_some_envs():
    with ParallelVectorEnv([Zoo] * 3, ShmemVectorEnv, num_workers=1) as venv:
        assert type(venv.venv) is ShmemVectorEnv
        assert (len(venv), venv.is_closed, venv.render_mode) == (3, False, "rgb_array")
        assert repr(venv).startswith("ParallelVectorEnv(4 agents")
        assert venv.observation_space("bee") == spaces.Box(-99, 99, (3,), np.int64)
        assert venv.action_space("dog") == spaces.MultiDiscrete([3, 2])
        obs, _ = venv.reset(options={"t": 2})
        assert venv.agents == venv.possible_agents == Zoo.possible_agents == list(obs)
        venv.set_env_attr("t", 3, [0])
        assert venv.get_env_attr("t") == [3, 2, 2]
        assert [frame.max() for frame in venv.render()] == [3, 2, 2]
        assert venv.call("time", id=[0]) == [3]
        before = venv.stats()["steps"]
        venv.send(zoo_actions(1), [1])
        assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 2], [1], [])
        venv.recv()
        assert (venv.alive(), venv.stats()["steps"]) == ([True] * 3, before + 1)
    venv.close()


def test_seeds_and_options_reach_the_envs():
    with ParallelVectorEnv([Zoo] * 3, "dummy") as venv:
        assert venv.seed(4) == [4, 5, 6]
        assert venv.get_env_attr("seed_used") == [4, 5, 6]
        samples = [venv.action_space("ant").sample() for _ in range(20)]
        assert venv.reset(options={"t": 3}, id=[1])[0]["ant"].tolist() == [[6, 3]]
        assert venv.reset(seed=[None, 9, 1])[0]["ant"][:, 0].tolist() == [5, 9, 1]
        venv.seed(4)
        assert samples == [venv.action_space("ant").sample() for _ in range(20)]


def test_with_wait_num_rows_come_as_envs_finish():
    with ParallelVectorEnv([Herd] * 4, "shmem", wait_num=2, num_workers=2) as venv:
        _, infos = venv.reset(seed=[0, 10, 20, 30])
        ids, counts = infos["env_id"], np.zeros(4, int)
        while counts.sum() < 20 or not counts.all():  # on a busy machine, a worker may wait long for the processor
            obs, _, _, _, infos = venv.step(all_do(venv, np.zeros(len(ids), int)), ids)
            ids = infos["env_id"]
            assert len(ids) >= 2
            assert all(obs["cow_2"][row, 0] % 10 >= 1 for row in range(len(ids)))
            counts[ids] += 1
        venv.send(all_do(venv, np.zeros(len(ids), int)), ids)
        with pytest.raises(RuntimeError, match="still stepping"):
            venv.send(all_do(venv, np.zeros(len(ids), int)), ids)
        assert len(venv.step(None)[4]["env_id"]) >= 2


def test_dead_agents_need_no_actions_and_what_is_given_is_ignored():
    with ParallelVectorEnv([Herd] * 2, "dummy") as venv:
        venv.reset(seed=0)
        for _ in range(2):
            venv.step(all_do(venv, [0, 0]))
        _, rewards, _, _, infos = venv.step({"cow_1": [2, 2], "cow_2": [1, 1]})
        assert not infos["active"]["cow_0"].any()
        assert (rewards["cow_0"].tolist(), rewards["cow_1"].tolist()) == ([0, 0], [3, 3])
        assert venv.step({"cow_0": [7, 7], "cow_2": [1, 1]})[4]["done"].all()
        assert venv.step({})[4]["alive"]["cow_0"].all()  # this step resets the envs


def test_agents_may_be_given_and_named_by_anything_hashable():
    class Numbered(Herd):
        possible_agents = [("cow", 1), 7]
        _obs = dict.fromkeys(possible_agents, Herd._obs["cow_0"])
        _act = dict.fromkeys(possible_agents, Herd._act["cow_0"])

        def step(self, actions):
            obs, *results, _ = super().step(actions)
            return obs, *results, {}

    with ParallelVectorEnv([Numbered], "dummy") as venv:
        venv.reset(seed=0)
        assert venv.step({7: [2], ("cow", 1): [1]})[1] == {("cow", 1): [2.0], 7: [3.0]}
    with ParallelVectorEnv([Nameless] * 2, "dummy", possible_agents=["cow_2", "cow_0", "cow_1"]) as venv:
        assert list(venv.reset(seed=0)[0]) == ["cow_2", "cow_0", "cow_1"]


# Failures.


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_failure_of_an_env_loses_no_result_of_the_others(mode):
    with ParallelVectorEnv([Zoo, lambda: Zoo(raises_at=2), Zoo], "dummy", autoreset_mode=mode) as venv:
        venv.reset(seed=0)
        venv.step(zoo_actions(3))
        with pytest.raises(ValueError, match="the zoo is closed") as caught:
            venv.step(zoo_actions(3))
        partial = caught.value.partial
        assert (venv.failed_id, partial.env_id.tolist()) == ([1], [0, 2])
        assert partial.obs["dog"].tolist() == [2, 4]
        assert partial.info["alive"]["dog"].tolist() == [True, True]
        with pytest.raises(ValueError, match="the zoo is closed") as caught:
            venv.step(zoo_actions(3))
        assert "env 1 failed in an earlier call" in caught.value.__notes__[-1]
        venv.reset(id=[1])
        assert venv.step(zoo_actions(3))[4]["active"]["dog"].tolist() == [True, False, True]


def test_with_restarts_a_failed_env_ends_its_episode_truncated():
    with ParallelVectorEnv([Zoo, lambda: Zoo(raises_at=2)], "dummy", on_error="restart") as venv:
        venv.reset(seed=0)
        venv.step(zoo_actions(2))
        _, rewards, terminations, truncations, infos = venv.step(zoo_actions(2))
        cut = {agent: batch[1] for agent, batch in truncations.items()}
        assert cut == {"cat": True, "ant": True, "bee": True, "dog": False}
        assert not any(batch[1] for part in (terminations, rewards, infos["alive"]) for batch in part.values())
        assert infos["done"].tolist() == [False, True]
        assert infos["info"][1]["restarted"]
        assert venv.step(zoo_actions(2))[4]["alive"]["ant"].tolist() == [False, True]  # a new episode began


def test_a_failing_reset_in_same_step_mode_does_not_lose_the_step():
    class NeverAgain(Herd):
        def reset(self, seed=None, options=None):
            if getattr(self, "t", 0):
                raise OSError("no second time")
            return super().reset(seed, options)

    with ParallelVectorEnv([Herd, NeverAgain], "dummy", autoreset_mode="SameStep") as venv:
        venv.reset(seed=0)
        for _ in range(3):
            venv.step(all_do(venv, [0, 0]))
        with pytest.raises(OSError, match="no second time") as caught:
            venv.step(all_do(venv, [0, 0]))
        partial = caught.value.partial
        assert partial.rew["cow_2"].tolist() == [1, 1]
        assert partial.info["done"].tolist() == [True, True]
        assert venv.failed_id == [1]
        obs, _, _, _, infos = venv.step(all_do(venv, [0]), [0])
        assert (obs["cow_0"].tolist(), infos["active"]["cow_0"].tolist()) == ([[3, 0]], [False])
        with pytest.raises(OSError, match="no second time"):
            venv.step(all_do(venv, [0, 0]))
        assert venv.reset(id=[0])[0]["cow_0"].tolist() == [[4, 0]]
