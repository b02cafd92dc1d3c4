"""RecordEpisodes: a data set from any loop, by wrapping its vector env."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from collector.store.errors import DatasetError
from collector.store.head import make_head
from collector.store.record.recorder import EpisodeRecorder, space_rows
from collector.store.writer import StoreWriter
from vecenv import nest
from vecenv.engine.arguments.seeding import spread_seeds
from vecenv.wrappers import RowWiseWrapper

SHARD_BYTES = 2**26
SHARD_SECONDS = 30.0


def RecordEpisodes(
    venv: Any,
    folder: str | os.PathLike[str],
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    shard_bytes: int = SHARD_BYTES,
    shard_seconds: float = SHARD_SECONDS,
    compress: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    **more: Any,
) -> Any:
    """Wrap a vector env so that every episode that its caller's loop plays to its end is stored in `folder`.

    Args:
        venv: a vector env of vecenv, or any `gymnasium.vector.VectorEnv` in any autoreset mode. What the wrapper
            returns is what `venv` returns, and has the same methods.
        autoreset_mode: where the metadata of a VectorEnv do not have it.
        shard_bytes: episodes are committed when they have so many bytes,
        shard_seconds: or when the first of them is so old. What is not committed is lost when the process is killed.
        compress, resume, overwrite: as in `StoreWriter`.
        more: entries for the head of the data set, which must be JSON.

    Episodes are numbered in the order of their ends. Those that are in progress when the envs are closed, are reset
    before their end, or break off because an env failed, are not stored. `seed` of an episode is the one that its
    reset was given; it is None where the vector env resets by itself. `close` ends the data set; leaving a `with`
    block by an exception commits and leaves it to be resumed. Read it with `Dataset(folder)`.

    Raises `DatasetError` where the folder cannot be used, the spaces have no arrays, or the disk is full; ValueError
    for an unknown autoreset mode.

    >>> import tempfile, gymnasium
    >>> from collector import Dataset
    >>> folder = tempfile.mkdtemp()
    >>> with RecordEpisodes(gymnasium.make_vec("CartPole-v1", 2), folder) as envs:
    ...     obs, infos = envs.reset(seed=0)
    ...     for _ in range(100):
    ...         obs, *rest = envs.step(envs.action_space.sample())
    >>> Dataset(folder)[0].seed in (0, 1)
    True
    """
    options: dict[str, Any] = {"compress": compress, "resume": resume, "overwrite": overwrite}
    if isinstance(venv, VectorEnv):
        mode = autoreset_mode or venv.metadata.get("autoreset_mode")
        if mode is None:
            raise ValueError(f"the metadata of {venv} have no autoreset_mode: pass autoreset_mode=")
        mode = AutoresetMode(mode)
        spaces = venv.single_observation_space, venv.single_action_space
        writer = _writer(folder, spaces, more, options)
        return RecordedVectorEnv(venv, writer, mode, shard_bytes, shard_seconds)
    if not hasattr(venv, "observation_space") or not hasattr(venv, "__len__"):
        raise TypeError(f"RecordEpisodes wraps vector envs of vecenv or gymnasium, got {venv!r}")
    spaces = venv.observation_space[0], venv.action_space[0]
    return RecordedEngine(venv, _writer(folder, spaces, more, options), shard_bytes, shard_seconds)


def _writer(folder: Any, spaces: tuple[Any, Any], more: dict[str, Any], options: dict[str, Any]) -> StoreWriter:
    try:
        for space in spaces:
            space_rows(space, 0)
    except (TypeError, AttributeError) as error:
        raise DatasetError(f"only arrays of numbers can be stored: {error}") from None
    return StoreWriter(folder, make_head(*spaces, made_by="RecordEpisodes", **more), **options)


class _Recording:
    """The part that both wrappers have: the writer, and a recorder once the first observations are there."""

    def __init__(self, writer: StoreWriter, n: int, action_space: Any, shard_bytes: int, shard_seconds: float) -> None:
        self.writer = writer
        self.n = n
        self._actions = space_rows(action_space, n)
        self._limits = shard_bytes, shard_seconds
        self._recorder: EpisodeRecorder | None = None

    def recorder(self, obs: Any) -> EpisodeRecorder:
        """The recorder for rows like these."""
        if self._recorder is None:
            self._recorder = EpisodeRecorder(self.n, self.writer, obs, self._actions, *self._limits)
        return self._recorder

    def as_stored(self, actions: Any) -> Any:
        """A batch in the dtypes in which it is stored, for the envs too: else nothing could be played again.

        TypeError for numbers of another kind: 2.7 is no integer.
        """
        return nest.merge(
            lambda pair: nest.as_array(pair[1]).astype(pair[0].dtype, casting="same_kind", copy=False),
            [self._actions, actions],
        )

    def discard(self) -> None:
        """Give up what is in progress."""
        if self._recorder is not None:
            self._recorder.discard()

    def finish(self, complete: bool) -> None:
        """Commit what has ended, and give the folder back."""
        if self.writer.ended is not None or self.writer.closed:
            return
        try:
            if self._recorder is not None:
                self._recorder.cut()
            self.writer.commit()
            if complete:
                self.writer.end()
        finally:
            self.writer.close()


class RecordedVectorEnv(VectorWrapper):
    """What `RecordEpisodes` makes of a gymnasium VectorEnv."""

    def __init__(
        self, env: Any, writer: StoreWriter, mode: AutoresetMode, shard_bytes: int, shard_seconds: float
    ) -> None:
        super().__init__(env)
        self._mode = mode
        self._recording = _Recording(writer, env.num_envs, env.single_action_space, shard_bytes, shard_seconds)
        self._over = np.zeros(0, np.int64)
        """The envs that the next step resets (NEXT_STEP)."""
        self._sent: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As that of the VectorEnv."""
        mask = None if options is None else options.get("reset_mask")
        ids = None if mask is None else np.flatnonzero(mask)
        try:
            obs, infos = self.env.reset(seed=seed, options=options)
        except BaseException:
            self._recording.discard()
            raise
        seeds = spread_seeds(seed, range(self.num_envs))
        if ids is None:
            self._recording.recorder(obs).begin(None, obs, seeds)
            self._over = np.zeros(0, np.int64)
        else:
            self._recording.recorder(obs).begin(ids, nest.take(obs, ids), [seeds[i] for i in ids.tolist()])
            self._over = np.setdiff1d(self._over, ids)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As that of the VectorEnv, with the actions as they are stored."""
        actions = self._recording.as_stored(actions)
        try:
            result = self.env.step(actions)
        except BaseException:
            self._recording.discard()  # which envs have stepped is not known
            raise
        self._record(actions, result)
        return result

    def step_async(self, actions: Any) -> None:
        """As that of the VectorEnv, where it has one."""
        self._sent = nest.map(np.array, self._recording.as_stored(actions))
        self.env.step_async(self._sent)  # type: ignore[attr-defined]

    def step_wait(self, *args: Any, **kwargs: Any) -> Any:
        """As that of the VectorEnv, where it has one."""
        try:
            result = self.env.step_wait(*args, **kwargs)  # type: ignore[attr-defined]
        except BaseException:
            self._recording.discard()
            raise
        self._record(self._sent, result)
        return result

    def _record(self, actions: Any, result: Any) -> None:
        obs, reward, terminated, truncated, infos = result
        recorder = self._recording.recorder(obs)
        same_step = self._mode is AutoresetMode.SAME_STEP
        if "restarted" in infos or "restarted" in infos.get("final_info", ()):
            recorder.discard(_restarted(infos, self.num_envs))
        last_obs = (lambda row: _row_of(infos["final_obs"], row)) if same_step else None
        ended = recorder.step(None, actions, obs, reward, terminated, truncated, last_obs)
        if same_step:
            if ended.size:
                recorder.begin(ended, None)
        elif self._mode is AutoresetMode.NEXT_STEP:
            if self._over.size:  # the rows of this step are their resets, and were no steps
                recorder.begin(self._over, None)
            self._over = ended

    def close(self, **kwargs: Any) -> None:
        """Close the envs, and end the data set."""
        try:
            self.env.close(**kwargs)
        finally:
            self._recording.finish(complete=True)

    def __enter__(self) -> RecordedVectorEnv:
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception and exception[0] is not None:
            self._recording.finish(complete=False)
        self.close()


def _row_of(final_obs: Any, row: int) -> Any:
    """The last observation of an env, from an array of objects or the arrays of a batch."""
    if isinstance(final_obs, np.ndarray) and final_obs.dtype == object:
        return final_obs[row]
    return nest.take(final_obs, row)


def _restarted(infos: dict[str, Any], n: int) -> np.ndarray:
    """Which envs failed and were made again in this step."""
    found = np.zeros(n, np.bool_)
    for each in (infos, infos.get("final_info", {})):
        if "restarted" in each and "error" in each:
            found |= np.array(each["restarted"], np.bool_) & each.get("_restarted", True)
    return np.flatnonzero(found)


def _own_last_obs(obs: Any, info: dict[str, Any], row: int) -> Any:
    """The last observation of an episode; where its env was reset in that round, it is in the info."""
    begun = "final_obs" in info and "final_info" in info
    return info["final_obs"] if begun else nest.take(obs, row)


def _put_actions(column: np.ndarray, at: Any, rows: Any) -> None:
    """Write the actions of the envs `at`, in whatever form they were passed."""
    values = nest.as_array(rows)
    if values.dtype == object:
        values = np.stack(list(values))
    if values.dtype != column.dtype:
        values = values.astype(column.dtype, casting="same_kind")
    column[at] = values.reshape(-1, *column.shape[1:])


class RecordedEngine(RowWiseWrapper):
    """What `RecordEpisodes` makes of a vector env of vecenv."""

    def __init__(self, venv: Any, writer: StoreWriter, shard_bytes: int, shard_seconds: float) -> None:
        super().__init__(venv)
        self._recording = _Recording(writer, len(venv), venv.action_space[0], shard_bytes, shard_seconds)
        self._sent = space_rows(venv.action_space[0], len(venv))
        self._asked: tuple[Any, dict[str, Any]] = None, {}
        """The ids (None: all) and keywords of the last call."""
        self._steps_all = False
        """Whether it is a step of all envs, whose rows come in their order."""

    def reset(self, id: Any = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """As `venv.reset`."""
        self._note_call(id, kwargs)
        return super().reset(id, **kwargs)

    def step(self, action: Any, id: Any = None, **kwargs: Any) -> Any:
        """As `venv.step`."""
        self._note_call(id, kwargs)
        self._steps_all = self._asked[0] is None
        return super().step(action, id, **kwargs)

    def send(self, action: Any, id: Any = None, **kwargs: Any) -> None:
        """As `venv.send`."""
        self._note_call(id, kwargs)
        super().send(action, id, **kwargs)

    def _note_call(self, id: Any, kwargs: dict[str, Any]) -> None:
        self._asked = kwargs.get("env_id") if id is None else id, kwargs
        self._steps_all = False

    def map_action(self, action: Any) -> Any:
        """The actions as they are stored, which are noted until their steps are back."""
        ids, _ = self._asked
        rows = action
        if isinstance(self._sent, (dict, tuple)) and not isinstance(action, type(self._sent)):
            rows = nest.stack(list(action))
        at = slice(None) if ids is None else np.atleast_1d(nest.as_array(ids))
        if rows.__class__ is np.ndarray and rows.dtype != object and ids is None:  # the usual case, at once
            _put_actions(self._sent, at, rows)
            return action if rows.dtype == self._sent.dtype else self._sent
        nest.merge(lambda pair: _put_actions(pair[0], at, pair[1]), (self._sent, rows))
        sent = nest.take(self._sent, at)
        if not isinstance(sent, tuple):
            return sent
        return [nest.take(sent, row) for row in range(len(next(nest.leaves(sent))))]  # a tuple is one action an env

    def map_reset(self, obs: Any, info: np.ndarray) -> Any:
        """Begin the episodes of these rows."""
        ids = np.array([row["env_id"] for row in info], np.int64)
        _, keywords = self._asked
        seeds = spread_seeds(keywords["seed"], ids.tolist()) if keywords.get("seed") is not None else None
        self._recording.recorder(obs).begin(ids, obs, seeds)
        return obs, info

    def map_step(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Record these rows, whose observations are those of the steps."""
        self._record((obs, rew, terminated, truncated), info)
        return obs, rew, terminated, truncated, info

    def map_round(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        """Record a round; the usual ones as they are, since nothing in them is changed."""
        if self._resets:
            return super().map_round(obs, rew, terminated, truncated, info)
        ids, ended = self._record((obs, rew, terminated, truncated), info)
        begun = [row for row in ended.tolist() if "final_obs" in info[row] and "final_info" in info[row]]
        if begun:
            rows = ended if len(begun) == len(ended) else np.array(begun, np.int64)
            self._recording.recorder(obs).begin(rows if ids is None else ids[rows], None)
        return obs, rew, terminated, truncated, info

    def _record(self, columns: Any, info: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Record rows of steps; returns their env ids (None: all in order), and which rows ended an episode."""
        obs, reward, terminated, truncated = columns
        ids: np.ndarray | None = None
        if not self._steps_all or len(info) != self._recording.n:
            ids = np.array([row["env_id"] for row in info], np.int64)
        recorder = self._recording.recorder(obs)
        for row in np.asarray(truncated).nonzero()[0].tolist():
            if "restarted" in info[row] and "error" in info[row]:
                recorder.discard(info[row]["env_id"])

        def last_obs(row: int) -> Any:
            return _own_last_obs(obs, info[row], row)

        actions = self._sent if ids is None else nest.take(self._sent, ids)
        return ids, recorder.step(ids, actions, obs, reward, terminated, truncated, last_obs)

    def close(self) -> None:
        """Close the envs, and end the data set."""
        try:
            self.venv.close()
        finally:
            self._recording.finish(complete=True)

    def __exit__(self, *exception: Any) -> None:
        if exception and exception[0] is not None:
            self._recording.finish(complete=False)
        self.close()
