"""ParallelVectorEnv: batches of simultaneous PettingZoo envs, with agents that die, appear and differ."""

import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from tests.support.agent_envs import Herd, Nameless, Zoo
from tests.support.backends import FULL
from vecenv import ClosedError, ParallelVectorEnv, ShmemVectorEnv, nest

KNIGHTS = "butterfly/knights_archers_zombies-v11"
FATAL_SEED = 0
"""Seed of an episode in which knights die before the end."""

pytestmark = pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")


def knights():
    return pettingzoo.make("parallel", KNIGHTS, max_cycles=115)


def batches(env, n, steps, seed=0):
    """Return for each step a dict of action batches for all agents of `n` envs."""
    rng = np.random.default_rng(seed)

    def sample(space):
        if isinstance(space, spaces.Dict):
            return {key: sample(child) for key, child in space.spaces.items()}
        if isinstance(space, spaces.Box):
            return rng.uniform(space.low, space.high, (n, *space.shape)).astype(space.dtype)
        return rng.integers(getattr(space, "nvec", getattr(space, "n", None)), size=(n, *space.shape))

    return [{agent: sample(env.action_space(agent)) for agent in env.possible_agents} for _ in range(steps)]


def all_do(venv, actions):
    """Return the same batch of actions for every agent."""
    return dict.fromkeys(venv.agents, actions)


@pytest.mark.parametrize(
    ("make", "backend"), [(Zoo, "dummy"), (Zoo, "shmem"), (Herd, "dummy"), pytest.param(knights, "dummy", marks=FULL)]
)
def test_steps_are_those_of_pettingzoos_own_envs(make, backend):
    """Compare two envs over several episodes (NEXT_STEP) with PettingZoo's loop."""
    envs = [make(), make()]
    with ParallelVectorEnv([make] * 2, backend) as venv:
        infos = venv.reset(seed=FATAL_SEED)[1]
        assert not any(active.any() for active in infos["active"].values())
        for row, env in enumerate(envs):
            env.reset(seed=FATAL_SEED + row)
            assert set(env.agents) == {agent for agent in venv.agents if infos["alive"][agent][row]}
        episodes, deaths = 0, 0
        for actions in batches(venv, 2, 125 if make is knights else 20):
            results = venv.step(actions)
            for row, env in enumerate(envs):
                active = list(env.agents)
                acts = {agent: nest.take(actions[agent], row) for agent in active}
                want = env.step(acts)[:4] if active else (env.reset()[0], {}, {}, {})
                for agent in venv.agents:
                    assert_agent(agent, row, results, want, agent in active, agent in env.agents)
                assert results[4]["done"][row] == (not env.agents)
            episodes += results[4]["done"].sum()
            deaths += sum(ended.sum() for ended in results[2].values())
    assert episodes >= 2
    assert deaths > 0


def assert_agent(agent, row, results, want, acted, alive):
    """Check that row `row` of an agent's batch equals the values of PettingZoo's env, or is empty."""
    obs, rewards, terminations, truncations, infos = results
    assert (infos["active"][agent][row], infos["alive"][agent][row]) == (acted, alive)
    assert rewards[agent][row] == want[1].get(agent, 0)
    assert terminations[agent][row] == (acted and want[2][agent])
    assert truncations[agent][row] == (acted and want[3][agent])
    got = list(nest.leaves(nest.take(obs[agent], row)))
    if acted or alive:
        expected = want[0][agent]
        if isinstance(expected, dict) and "observation" in expected:  # with a mask
            expected = expected["observation"]
        assert all(np.array_equal(a, b) for a, b in zip(got, nest.leaves(expected), strict=True)), (agent, got)
    else:
        assert not any(np.any(leaf) for leaf in got)
        assert infos["action_mask"].get(agent, np.ones((9, 1)))[row].all()


def test_batches_masks_and_infos_of_agents():
    """Arrays have the agents' spaces. Masks come from the observation or the info, or are all True."""
    with ParallelVectorEnv([Zoo] * 2, "dummy") as venv:
        obs, infos = venv.reset(seed=7)
        assert venv.agents == venv.possible_agents == Zoo.possible_agents == list(obs)
        assert (obs["ant"].dtype, obs["ant"].tolist()) == (np.float32, [[7, 0], [8, 0]])
        assert (obs["bee"].dtype, obs["bee"].shape) == (np.int64, (2, 3))
        assert {key: (leaf.dtype, leaf.shape) for key, leaf in obs["cat"].items()} == {
            "eyes": (np.uint8, (2, 2, 2)),
            "mood": (np.int64, (2,)),
        }
        assert venv.observation_space("bee") == spaces.Box(-99, 99, (3,), np.int64)
        assert venv.action_space("dog") == spaces.MultiDiscrete([3, 2])
        assert {agent: mask[1].tolist() for agent, mask in infos["action_mask"].items()} == {
            "ant": [True, False, True],
            "bee": [False, True, True, False],
        }
        assert infos["action_mask"]["ant"].dtype == np.bool_
        assert infos["info"].tolist() == [{"env_id": 0, "cat": {"t": 0}}, {"env_id": 1, "cat": {"t": 0}}]
        assert infos["env_id"].tolist() == [0, 1]
        _, rewards, terminations, truncations, infos = venv.step(batches(venv, 2, 1)[0])
        kinds = {(batch.dtype.name, batch.shape) for part in (terminations, truncations) for batch in part.values()}
        assert {(batch.dtype.name, batch.shape) for batch in rewards.values()} == {("float64", (2,))}
        assert kinds == {("bool", (2,))}
        assert infos["action_mask"]["bee"][0].tolist() == [False, True, True, True]
    with ParallelVectorEnv([Herd], "dummy") as venv:
        assert venv.reset(seed=0)[1]["action_mask"]["cow_1"].tolist() == [[True, True, True]]


def test_same_step_mode_resets_at_once_and_hands_over_the_last_observation():
    with ParallelVectorEnv([Herd, Herd], "dummy", autoreset_mode=AutoresetMode.SAME_STEP) as venv:
        venv.reset(seed=[0, 10])
        venv.reset(id=[1], seed=[20])
        actions = all_do(venv, np.zeros(2, int))
        for t in range(3):
            infos = venv.step(actions)[4]
            assert "final_obs" not in infos, t
        venv.reset(id=0, seed=0)  # three steps behind env 1
        obs, rewards, _, truncations, infos = venv.step(actions)
        assert infos["done"].tolist() == infos["_final_obs"].tolist() == [False, True]
        assert infos["final_obs"]["cow_2"][1].tolist() == [21, 4]
        assert obs["cow_2"].tolist() == [[1, 1], [22, 0]]
        assert obs["cow_0"][1].tolist() == [22, 0]  # dead at the end, alive again
        assert (rewards["cow_2"].tolist(), truncations["cow_2"].tolist()) == ([1, 1], [False, True])
        assert (infos["active"]["cow_0"].tolist(), infos["alive"]["cow_0"].tolist()) == ([True, False], [True, True])
        assert infos["final_info"].tolist() == [None, {"env_id": 1}]
        assert venv.step(actions)[4]["active"]["cow_0"].tolist() == [True, True]


def test_disabled_mode_leaves_the_reset_to_the_caller():
    with ParallelVectorEnv([Herd] * 2, "dummy", autoreset_mode="Disabled") as venv:
        assert venv.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        venv.reset(seed=0)
        actions = all_do(venv, [0, 0])
        for _ in range(4):
            infos = venv.step(actions)[4]
        assert infos["done"].all()
        with pytest.raises(RuntimeError, match=r"env 0 .*episode is over.*reset\(0\)"):
            venv.step(actions)
        venv.reset(id=[0])
        with pytest.raises(RuntimeError, match="env 1"):
            venv.step(actions)
        assert venv.step(all_do(venv, [0]), [0])[0]["cow_2"].tolist() == [[2, 1]]


def test_part_of_the_envs_can_be_stepped_and_reset():
    with ParallelVectorEnv([Herd] * 4, "dummy") as venv:
        venv.reset(seed=[0, 10, 20, 30])
        obs, rewards, _, _, infos = venv.step(all_do(venv, [2, 1]), [3, 1])
        assert obs["cow_0"].tolist() == [[31, 1], [11, 1]]
        assert (rewards["cow_1"].tolist(), infos["env_id"].tolist()) == ([3, 2], [3, 1])
        obs, infos = venv.reset(id=[2, 3], seed=[40, 45])
        assert obs["cow_2"].tolist() == [[41, 0], [46, 0]]
        assert venv.get_env_attr("t") == [0, 1, 0, 0]
        assert venv.call("_see", "cow_0", id=[1])[0].tolist() == [11, 1]
        venv.set_env_attr("t", 3, [0])
        assert venv.get_env_attr("t", [0]) == [3]
        before = venv.stats()["steps"]
        venv.send(all_do(venv, [0]), [1])
        assert (venv.ready_id, venv.waiting_id, venv.failed_id) == ([0, 2, 3], [1], [])
        venv.recv()
        assert (venv.alive(), venv.stats()["steps"]) == ([True] * 4, before + 1)


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
    with ParallelVectorEnv([Herd] * 4, "shmem", wait_num=2) as venv:
        obs, infos = venv.reset(seed=[0, 10, 20, 30])
        ids, counts = infos["env_id"], np.zeros(4, int)
        while counts.sum() < 60 or not counts.all():  # on a busy machine, a worker may wait long for the processor
            obs, _, _, _, infos = venv.step(all_do(venv, np.zeros(len(ids), int)), ids)
            ids = infos["env_id"]
            assert len(ids) >= 2
            assert all(obs["cow_2"][row, 0] % 10 >= 1 for row in range(len(ids)))
            counts[ids] += 1
        venv.send(all_do(venv, np.zeros(len(ids), int)), ids)
        with pytest.raises(RuntimeError, match="still stepping"):
            venv.send(all_do(venv, np.zeros(len(ids), int)), ids)
        assert len(venv.step(None)[4]["env_id"]) >= 2


def test_what_was_returned_does_not_change_later():
    with ParallelVectorEnv([Herd] * 2, "dummy") as venv:
        obs, infos = venv.reset(seed=0)
        kept = [*obs.values(), *infos["alive"].values(), *infos["action_mask"].values()]
        before = [array.copy() for array in kept]
        for _ in range(5):
            venv.step(all_do(venv, [1, 1]))
        assert all(np.array_equal(a, b) for a, b in zip(kept, before, strict=True))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_failure_of_an_env_loses_no_result_of_the_others(mode):
    with ParallelVectorEnv([Zoo, lambda: Zoo(raises_at=2), Zoo], "dummy", autoreset_mode=mode) as venv:
        venv.reset(seed=0)
        acts = batches(venv, 3, 3)
        venv.step(acts[0])
        with pytest.raises(ValueError, match="the zoo is closed") as caught:
            venv.step(acts[1])
        partial = caught.value.partial
        assert partial.env_id.tolist() == [0, 2]
        assert partial.obs["dog"].tolist() == [2, 4]
        assert partial.info["alive"]["dog"].tolist() == [True, True]
        assert venv.failed_id == [1]
        with pytest.raises(ValueError, match="the zoo is closed") as caught:
            venv.step(acts[2])
        assert "env 1 failed in an earlier call" in caught.value.__notes__[-1]
        venv.reset(id=[1])
        assert venv.step(acts[2])[4]["active"]["dog"].tolist() == [True, False, True]


def test_with_restarts_a_failed_env_ends_its_episode_truncated():
    with ParallelVectorEnv([Zoo, lambda: Zoo(raises_at=2)], "dummy", on_error="restart") as venv:
        venv.reset(seed=0)
        acts = batches(venv, 2, 3)
        venv.step(acts[0])
        _, rewards, terminations, truncations, infos = venv.step(acts[1])
        assert {agent: batch[1] for agent, batch in truncations.items()} == {
            "cat": True,
            "ant": True,
            "bee": True,
            "dog": False,
        }
        assert not any(batch[1] for part in (terminations, rewards, infos["alive"]) for batch in part.values())
        assert infos["done"].tolist() == [False, True]
        assert infos["info"][1]["restarted"]
        assert venv.step(acts[2])[4]["alive"]["ant"].tolist() == [False, True]  # a new episode began


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
        assert venv.step(all_do(venv, [0]), [0])[0]["cow_0"].tolist() == [[3, 1]]
        with pytest.raises(OSError, match="no second time"):
            venv.step(all_do(venv, [0, 0]))
        assert venv.reset(id=[0])[0]["cow_0"].tolist() == [[4, 0]]


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


def test_tuples_of_batches_are_the_actions_of_a_tuple_space():
    class Pair(Herd):
        _act = {**Herd._act, "cow_1": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32)])}

        def step(self, actions):
            first, second = actions["cow_1"]
            assert (type(first), second.dtype) == (np.int64, np.float32)
            return super().step({**actions, "cow_1": first + second.sum()})

    with ParallelVectorEnv([Pair] * 2, "dummy") as venv:
        venv.reset(seed=0)
        rewards = venv.step({"cow_0": [0, 0], "cow_1": ([0, 2], [[0, 1], [1, 1]]), "cow_2": [0, 0]})[1]
        assert rewards["cow_1"].tolist() == [2, 5]
        with pytest.raises(ValueError, match=r"'cow_1'.*must be a tuple of batches \[0, 1\]"):
            venv.step({"cow_0": [0, 0], "cow_1": [(0, [0.0, 1.0]), (2, [1.0, 1.0])], "cow_2": [0, 0]})


def test_agents_may_be_given_and_named_by_anything_hashable():
    class Numbered(Herd):
        possible_agents = [("cow", 1), 7]
        _obs = dict.fromkeys(possible_agents, Herd._obs["cow_0"])
        _act = dict.fromkeys(possible_agents, Herd._act["cow_0"])

        def step(self, actions):
            self.t += 1
            flags = dict.fromkeys(self.agents, False)
            return {a: self._see(a) for a in self.agents}, {a: float(actions[a]) for a in self.agents}, flags, flags, {}

    with ParallelVectorEnv([Numbered], "dummy") as venv:
        venv.reset(seed=0)
        assert venv.step({7: [2], ("cow", 1): [1]})[1] == {("cow", 1): [1.0], 7: [2.0]}
    with ParallelVectorEnv([Nameless] * 2, "dummy", possible_agents=["cow_2", "cow_0", "cow_1"]) as venv:
        assert list(venv.reset(seed=0)[0]) == ["cow_2", "cow_0", "cow_1"]


def test_before_the_first_reset_and_after_close_nothing_can_be_stepped():
    venv = ParallelVectorEnv([Herd] * 2, "dummy")
    with pytest.raises(RuntimeError, match=r"env 0 has not been reset.*reset\(0\)"):
        venv.step(all_do(venv, [0, 0]))
    assert (len(venv), venv.is_closed) == (2, False)
    assert repr(venv).startswith("ParallelVectorEnv(3 agents")
    venv.close()
    venv.close()
    for call in (venv.reset, venv.recv, venv.seed, lambda: venv.step({})):
        with pytest.raises(ClosedError, match="cannot be called after close"):
            call()


def test_frames_come_from_every_env_of_a_vector_env_class():
    with ParallelVectorEnv([Zoo] * 2, ShmemVectorEnv, num_workers=1) as venv:
        assert type(venv.venv) is ShmemVectorEnv
        venv.reset(options={"t": 2})
        assert venv.render_mode == "rgb_array"
        assert [frame.max() for frame in venv.render()] == [2, 2]
