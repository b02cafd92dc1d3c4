"""AtariVectorEnv: ALE's vector env with gymnasium's contract."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

from collector import Dataset, RecordEpisodes
from tests.support.backends import FULL
from vecenv import AtariVectorEnv, EnvContractError, GymnasiumVectorEnv, from_gymnasium

SHORT = {"max_num_frames_per_episode": 40, "noop_max": 1}
"""Episodes of ten steps."""
SECOND = {"reset_mask": np.array([False, True])}


@pytest.fixture
def make():
    """Return a function that makes envs, which are closed after the test."""
    made = []

    def one(*arguments, **options):
        made.append(AtariVectorEnv(*arguments, **options))
        return made[-1]

    yield one
    for envs in made:
        envs.close()


def test_every_game_of_gymnasium_is_found_by_the_name_of_its_rom_or_env():
    ids = [name for name in gym.registry if name.startswith("ALE/")]
    assert len(ids) > 100
    for name in ("ms_pacman", "MsPacman", *ids):
        with pytest.raises(TypeError, match="nonsense"):  # after the game has been found
            AtariVectorEnv(name, 1, nonsense=1)


def test_it_gives_what_ale_gives(make):
    envs, ale = make("pong", 2, **SHORT), AleVectorEnv("pong", 2, **SHORT)
    assert gym.vector.VectorEnv in type(envs).__bases__
    obs, infos = envs.reset(seed=4)
    assert envs.observation_space.contains(obs)
    assert infos["_lives"].tolist() == [True, True]
    np.testing.assert_array_equal(obs, ale.reset(seed=4)[0])
    for t in range(25):
        ours, theirs = envs.step([t % 6, 0]), ale.step(np.array([t % 6, 0]))
        assert [part.dtype for part in ours[:4]] == [np.uint8, np.float64, bool, bool]
        for mine, original in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(mine, original)
        assert "final_obs" not in ours[4]
        for key, column in theirs[4].items():
            np.testing.assert_array_equal(ours[4][key], column)
    ale.close()


@FULL
def test_same_step_mode_gives_the_last_observation_in_the_form_of_gymnasium(make):
    shared = dict(gym.vector.VectorEnv.metadata)
    envs, plain = (make("breakout", 2, autoreset_mode=mode, **SHORT) for mode in (AutoresetMode.SAME_STEP, "NextStep"))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert gym.vector.VectorEnv.metadata == shared  # ALE writes the mode into this dict
    for each in (envs, plain):
        each.reset(seed=0)
        for _ in range(5):  # so that one env ends before the other
            each.step([0, 0])
        each.reset(options={"reset_mask": np.array([True, False])})
    for _ in range(5):
        obs, _, _, truncations, infos = envs.step([0, 0])
        last = plain.step([0, 0])[0]
    assert truncations.tolist() == infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, True]
    assert (infos["final_obs"].dtype, infos["final_obs"].shape, infos["final_info"]) == (object, (2,), {})
    assert infos["final_obs"][0] is None
    np.testing.assert_array_equal(infos["final_obs"][1], last[1])
    assert not np.array_equal(obs[1], last[1])
    assert infos["episode_frame_number"][1] == 1
    assert "final_obs" not in envs.step([0, 0])[4]


@FULL
def test_seeds_of_every_form_give_the_same_start_to_all_or_some(make):
    envs = make("pong", 2, noop_max=30)
    start = envs.reset(seed=3)[0]
    for seed in (3, np.int64(3), [3, 4], (3, 4), np.array([3, 4]), [2**31 + 3, 2**40 + 4]):
        envs.step([2, 2])
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], start)
    start = envs.reset(seed=[3, 20])[0]
    envs.step([2, 2])
    for seed in ([3, 20], np.array([99, 20])):
        last = envs.step([2, 2])[0]
        again, _ = envs.reset(seed=seed, options=SECOND)
        np.testing.assert_array_equal(again[1], start[1])
        np.testing.assert_array_equal(again[0], last[0])  # outside of the mask


@FULL
def test_what_would_be_waited_for_without_an_end_is_an_error(make):
    envs = make("pong", 3, batch_size=2, noop_max=1)
    envs.reset()
    with pytest.raises(NoAsyncCallError, match=r"waits for 2 results, but 1 are on the way; call send\(\) first"):
        envs.recv()
    envs = make("pong", 2, noop_max=1)
    for call, error in ((lambda: envs.step([0, 0]), "reset"), (lambda: envs.reset(options=SECOND), "must reset all")):
        with pytest.raises(ResetNeeded, match=error):
            call()
    envs.reset()
    envs.send([0, 0])
    for use in (lambda: envs.send([0, 0]), envs.reset):
        with pytest.raises(AlreadyPendingCallError, match=r"waiting for its recv\(\)"):
            use()
    assert envs.recv()[4]["episode_frame_number"].tolist() == [5, 5]
    envs.send([0, 0])
    for _ in range(2):
        envs.close()
    for use in (lambda: envs.step([0, 0]), envs.reset, envs.recv):
        with pytest.raises(ClosedEnvironmentError):
            use()


@FULL
def test_batches_of_some_envs_name_them_and_those_after_a_reset_are_of_new_episodes(make):
    envs, seen = make("pong", 3, batch_size=2, noop_max=1), set()
    for _ in range(2):
        infos = envs.reset()[1]
        assert infos["episode_frame_number"].tolist() == [1, 1]
        while True:  # the first ready envs are returned, so a thread that the machine delays comes late
            seen |= set(infos["env_id"].tolist())
            _, rewards, _, _, infos = envs.step([0, 0])
            assert rewards.shape == (2,)
            assert len(set(infos["env_id"].tolist())) == 2
            if len(seen) == 3:
                break


@FULL
def test_actions_on_which_ale_would_wait_without_an_end_are_errors(make):
    envs = make("pong", 2, noop_max=1)
    envs.reset(seed=0)
    for actions, error, message in (
        ([0, 6], ValueError, r"Discrete\(6\)"),
        ([-1, 0], ValueError, r"Discrete\(6\)"),
        ([0], ValueError, r"shape \(1,\), expected \(2,\)"),
        ([0.0, 1.0], TypeError, "float64, expected integers"),
    ):
        with pytest.raises(error, match=message):
            envs.step(actions)
    assert envs.step([0, 0])[4]["episode_frame_number"].tolist() == [5, 5]
    envs = make("pong", 2, continuous=True)
    envs.reset(seed=0)
    assert envs.step(np.zeros((2, 3)))[1].shape == (2,)  # cast to the dtype of the space
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(2, 3\)"):
        envs.step(np.zeros(2))


MAKERS = {
    "ale": AleVectorEnv,
    "ours": AtariVectorEnv,
    "make_vec": lambda game, n, **options: gym.make_vec(f"ALE/{game.title()}-v5", n, **options),
}


def play(envs):
    """Play until several lives are lost."""
    with closing(envs):
        envs.reset(seed=0)
        for t in range(200):
            envs.step(np.full(2, t % 2 * 2))


@pytest.mark.parametrize(
    ("maker", "mode", "record"),
    [
        ("make_vec", "NextStep", False),
        ("ale", "NextStep", True),
        pytest.param("ours", "NextStep", True, marks=FULL),
        pytest.param("make_vec", "SameStep", True, marks=FULL),
    ],
)
def test_a_lost_life_that_resets_no_game_is_an_error_that_says_how_to_end_episodes(maker, mode, record, tmp_path):
    """With life_loss_info, ale-py 0.12.1 sets `terminated`, and the next row is a step of the same game."""
    message = "ALE .*not reset .* life_loss_info=True: make the VectorEnv with life_loss_info=False and read infos"
    envs = MAKERS[maker]("breakout", 2, autoreset_mode=AutoresetMode(mode), life_loss_info=True)
    with closing(envs), pytest.raises((ValueError, EnvContractError), match=message):
        play(RecordEpisodes(envs, tmp_path) if record else GymnasiumVectorEnv(from_gymnasium(envs)))


@FULL
def test_games_that_end_with_a_lost_life_are_recorded_whole(tmp_path):
    """`life_loss_info` has no effect here."""
    play(RecordEpisodes(MAKERS["make_vec"]("breakout", 2, episodic_life=True, life_loss_info=True), tmp_path))
    assert len(Dataset(tmp_path)) > 4


@pytest.mark.parametrize("maker", ["ale", pytest.param("ours", marks=FULL)])
def test_seeds_of_some_envs_reach_the_games_that_they_are_for(maker, tmp_path):
    def frames(info):
        return [row["episode_frame_number"] for row in info]

    seeds = [5, 60, 700]
    with from_gymnasium(MAKERS[maker]("breakout", 3)) as venv:
        first = frames(venv.reset(seed=seeds)[1])  # each seed starts with another number of random moves
        assert len(set(first)) > 1
        venv.step([0, 0, 0])
        assert frames(venv.reset([2, 0], seed=[700, 5])[1]) == [first[2], first[0]]
    with RecordEpisodes(MAKERS[maker]("breakout", 3, **SHORT), tmp_path) as envs:
        envs.reset()
        envs.reset(seed=7, options={"reset_mask": np.array([False, True, True])})
        for _ in range(10):
            envs.step(np.zeros(3, np.int64))
    found = {episode.env_id: episode.seed for episode in Dataset(tmp_path)}
    assert found == {0: None, 1: 7, 2: 8} if maker == "ale" else found == {0: None, 1: 8, 2: 9}
