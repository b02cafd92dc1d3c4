"""`info_keys`: entries of the envs' infos in batches."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from collector import StepBatch, SyncDataCollector
from tests.support.collector_envs import kinds, zeros
from tests.support.countdown import Countdown, Tells

KEYS = ("taken", "vector", "success")


@kinds
@pytest.mark.parametrize("frames", [2, 40])
def test_they_are_those_of_the_step_also_where_an_episode_ends(kind: type, frames: int) -> None:
    def told(step: StepBatch) -> dict[str, np.ndarray]:
        assert [info["env_id"] for info in step.info] == step.env_id.tolist()
        return {"id": step.env_id, "told": np.array([info["taken"] for info in step.info])}

    seen, fns = 0, [partial(Tells, 3), partial(Tells, 5)]
    with kind(fns, zeros, frames_per_batch=frames, info_keys=(*KEYS, "env_id"), backend="dummy") as it:
        for _ in range(40 // frames):
            flat = it.next().flatten()
            np.testing.assert_array_equal(flat.extras["taken"], flat.step_count + 1)
            np.testing.assert_array_equal(flat.extras["vector"], np.repeat(flat.step_count[:, None] + 1, 3, axis=1))
            np.testing.assert_array_equal(flat.extras["env_id"], flat.env_ids)
            assert (flat.extras["taken"].dtype, flat.extras["vector"].dtype) == (np.int64, np.float32)
            seen += flat.terminated.any()
            if seen:
                np.testing.assert_array_equal(flat.extras["success"], flat.terminated)
            if frames == 2:  # steps that are in flight when others are reset have theirs
                it.reset([0])
        whole, some = it.collect(n_episode=4, on_step=told).batch, it.collect(n_step=frames, on_step=told).batch
    for flat in (whole, some.flatten()):
        np.testing.assert_array_equal(flat.extras["taken"], flat.step_count + 1)
        np.testing.assert_array_equal(flat.extras["told"], flat.extras["taken"])
        np.testing.assert_array_equal(flat.extras["id"], flat.env_ids)
        np.testing.assert_array_equal(flat.extras["success"], flat.terminated)


@kinds
def test_the_first_value_that_does_not_fit_promotes_a_column(kind: type) -> None:
    values = iter([True, 2**53 + 1, np.int8(3), 4.5, True, None])

    class Scores(Countdown):
        def step(self, action: Any) -> Any:
            value = next(values, None)
            return *super().step(action)[:4], {} if value is None else {"score": value, "flag": True}

    with kind([partial(Scores, 99)], zeros, frames_per_batch=1, info_keys=("score", "flag"), backend="dummy") as it:
        scores = [it.next().flatten().extras["score"] for _ in range(2)]
        scores += [it.collect(n_step=count).batch.flatten().extras["score"] for count in (3, 1)]
    assert [score.dtype for score in scores] == [np.bool_, np.int64, np.float64, np.float64]
    assert [score.tolist() for score in scores] == [[True], [2**53 + 1], [3.0, 4.5, 1.0], [0.0]]


class TellsEpisode(Countdown):
    """Countdown with gymnasium's entry of `RecordEpisodeStatistics` at the end, and an entry with a dot in its name."""

    def step(self, action: Any) -> Any:
        *step, over, truncated, info = super().step(action)
        info = {"a.b": self.taken, "sim": {"physics": {"speed": 0.5 * self.taken}}}
        return *step, over, truncated, info | ({"episode": {"r": 1.5, "l": self.taken, "t": 0.1}} if over else {})


@kinds
def test_a_dotted_key_is_an_entry_of_a_dict(kind: type) -> None:
    keys = ("episode.r", "episode.l", "sim.physics.speed", "a.b")
    with kind([partial(TellsEpisode, 3)] * 2, zeros, frames_per_batch=12, info_keys=keys, backend="dummy") as it:
        flat = it.next().flatten()
    np.testing.assert_array_equal(flat.extras["episode.r"], 1.5 * flat.terminated)
    np.testing.assert_array_equal(flat.extras["episode.l"], 3 * flat.terminated)
    np.testing.assert_array_equal(flat.extras["sim.physics.speed"], 0.5 * (flat.step_count + 1))
    np.testing.assert_array_equal(flat.extras["a.b"], flat.step_count + 1)
    assert flat.extras["episode.l"].dtype == np.int64


@kinds
def test_a_warning_names_a_key_that_no_info_has_had_when_episodes_have_ended(kind: type) -> None:
    """An entry may come only at some ends of episodes, as "lap_finished" of gymnasium's CarRacing."""
    known = r"\['a.b', 'env_id', 'sim.physics.speed'\]"
    message = f"no info has had 'a.c', 'epsode.r', although an episode has ended; the latest infos have {known}"
    keys = ("a.c", "a.b", "epsode.r", "episode.r")
    with kind([partial(TellsEpisode, 5)] * 2, zeros, frames_per_batch=8, info_keys=keys, backend="dummy") as it:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert {*it.next().extras} == {"a.b"}, "no episode has ended"
        with pytest.warns(RuntimeWarning, match=message):
            assert {*it.next().extras} == {"a.b", "episode.r"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            it.next()


REFUSED: tuple[tuple[Any, type[Exception], str], ...] = (
    ("taken", TypeError, r"info_keys are the names of entries of the envs' infos, as in \('taken',\)"),
    (["reward"], ValueError, "info_keys has 'reward', which a batch has already"),
    (["told", "told"], ValueError, "twice"),
    (["object"], TypeError, r"env 0 has 'object'=\{1\}, which is not a number, a text or an"),
    (["episode"], TypeError, r"name its entries instead, as in \('episode.r', 'episode.l', 'episode.t'\)"),
    (["sim.physics"], TypeError, r"name its entries instead, as in \('sim.physics.speed',\)"),
    (["taken"], ValueError, "'taken', which a batch has already"),
)


def test_what_does_not_fit_is_refused() -> None:
    def policy(obs: Any) -> Any:
        return {"action": zeros(obs), "taken": zeros(obs)}

    for keys, error, text in REFUSED:
        env = TellsEpisode if "name its" in text else Tells
        options: Any = {"frames_per_batch": 4, "info_keys": keys, "backend": "dummy"}
        with pytest.raises(error, match=text), SyncDataCollector([partial(env, 3)], policy, **options) as it:
            it.next()
