"""`RecordEpisodes`: stores episodes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from collector.batch.step_extras import as_info_keys, has_columns
from collector.store.dataset_head import make_head
from collector.store.info_columns import info_objects, info_rows
from collector.store.manifest import Manifest
from collector.store.recorder import EpisodeRecorder, fit_rows
from collector.store.safe_folder import DatasetError
from collector.store.shard_layout import row_layout
from collector.store.texts import TEXT
from collector.store.writer import StoreWriter
from vecenv import BaseVectorEnv, RowWiseWrapper, nest
from vecenv.arguments import as_autoreset, as_ids, at_least_one, check_number, round_envs, spread_seeds
from vecenv.envs.native_class import ASYNC, NativeClass
from vecenv.errors import is_repeated
from vecenv.nest import as_array
from vecenv.wrappers import env_ids

ASYNC_METHODS = ("reset_async", "reset_wait", "step_async", "step_wait")
"""Methods of a gymnasium VectorEnv that the wrapper does not record, and therefore refuses."""


def RecordEpisodes(
    venv: Any,
    folder: str | os.PathLike[str],
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    resets_by_id: bool | None = None,
    shard_bytes: int = 2**26,
    shard_seconds: float = 30.0,
    memory: int = 2**33,
    info_keys: Sequence[str] = (),
    compress: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    **more: Any,
) -> Any:
    """Wrap a vector env. Each episode that the caller's loop finishes is stored in `folder`.

    Args:
        venv: a vector env of vecenv, or a `gymnasium.vector.VectorEnv` in any autoreset mode. The wrapper has the same
            methods and results, but refuses `step_async` and `reset_async`.
        autoreset_mode: mode of a VectorEnv. None uses `metadata["autoreset_mode"]`. Ignored for vector envs of vecenv.
        resets_by_id: True if a VectorEnv's `reset` takes `options["reset_mask"]` and a seed per env. Default: True for
            classes of gymnasium, ALE and vecenv that take both. Ignored for vector envs of vecenv.
        shard_bytes: finished episodes are committed (written to a shard) when they have this size together. A kill
            loses uncommitted episodes. Up to this size, 64 MB at most, steps are kept until they are sorted by episode.
        shard_seconds: finished episodes are also committed when the first has this age.
        memory: maximum bytes of unfinished episodes.
        info_keys: keys of infos to store, as in the collectors. `Episode.info[key]` has the entry after each step: a
            number, an array or a text. A missing entry is 0, False or "". The first episodes decide about the dtype.
        compress, overwrite: see `StoreWriter`.
        resume: continue the folder's data set, even if it is complete. Without a data set, begin one.
        more: additional JSON entries for the head of the data set.

    Episodes are numbered in the order of their ends. An episode is discarded if its env fails, or is closed or reset
    before the end. `Episode.seed` is the seed of the env's reset, or None. It is also None if the seed alone does not
    repeat the episode, as with a VectorEnv that has one generator for all envs.

    `close`, or the end of a `with` block, marks the data set as complete. Closing a wrapper or collector around this
    object does the same. If an exception (also Ctrl-C) leaves the block, or if `close` is never called, finished
    episodes are committed, but the data set stays incomplete. `resume=True` can continue it.

    Raises:

    - `DatasetError` if the folder cannot be used, if observations or actions are not arrays of numbers with one shape
      in all envs, if an episode's return is not finite, if the disk is full, or if unfinished episodes exceed `memory`.
    - ValueError for a missing or unknown autoreset mode, for Dict or Tuple observations with `stack_obs=False`, and in
      `reset` for a `reset_mask` without `resets_by_id`, because many classes ignore the mask and reset all envs.
    - ValueError for `from_gymnasium` with `has_final_obs=False`.
    - ValueError for ALE with `life_loss_info=True`. `EnvContractError` if this is noticed only at a lost life.
    - TypeError if `venv` is not a vector env.

    >>> import tempfile, gymnasium
    >>> from collector import Dataset
    >>> folder = tempfile.mkdtemp()
    >>> with RecordEpisodes(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), folder) as envs:
    ...     obs, infos = envs.reset(seed=0)
    ...     for _ in range(100):
    ...         obs, *rest = envs.step(envs.action_space.sample())
    >>> Dataset(folder)[0].seed in (0, 1)
    True
    """
    shard_bytes, memory = at_least_one("shard_bytes", shard_bytes), at_least_one("memory", memory)
    shard_seconds = check_number("shard_seconds", shard_seconds, least=0, infinite=True)
    wrap, n, spaces = _wrapper_of(venv, autoreset_mode, resets_by_id)
    layout, keys = row_layout(*spaces), as_info_keys(info_keys)
    head = make_head(spaces[0][0], spaces[1][0], made_by="RecordEpisodes", **more)
    check = partial(_check_stored_keys, folder, keys)
    writer = StoreWriter(
        folder, head, compress=compress, resume=resume, overwrite=overwrite, reopen=resume, check=check
    )
    recorder = EpisodeRecorder(n, writer, layout, shard_bytes, shard_seconds, memory, keys)
    recorded = wrap(venv, recorder)
    weakref.finalize(recorded, recorder.finish, complete=False)  # if `close` is never called
    return recorded


def _check_stored_keys(folder: Any, keys: tuple[str, ...], manifest: Manifest) -> None:
    stored = keys if manifest.layout is None else tuple(manifest.layout.names["info"])
    if {*stored} != {*keys}:
        raise DatasetError(f"{folder} has the info_keys {stored}, and not {keys}: resume it with these keys")


def _wrapper_of(
    venv: Any, autoreset_mode: AutoresetMode | str | None, resets_by_id: bool | None
) -> tuple[Any, int, tuple[Any, Any]]:
    if isinstance(venv, VectorEnv):
        mode = autoreset_mode or venv.metadata.get("autoreset_mode")
        if mode is None:
            raise ValueError(f"the metadata of {venv} have no autoreset_mode: pass autoreset_mode=")
        spaces = [venv.single_observation_space], [venv.single_action_space]
        native = NativeClass(venv, resets_by_id)
        return partial(RecordedVectorEnv, mode=AutoresetMode(mode), native=native), venv.num_envs, spaces
    if not hasattr(venv, "observation_space") or not hasattr(venv, "__len__"):
        raise TypeError(f"RecordEpisodes wraps vector envs of vecenv or gymnasium, got {venv!r}")
    if not getattr(venv, "has_final_obs", True):
        raise ValueError(
            f"RecordEpisodes stores the last observation of each episode, and {venv!r} loses it (has_final_obs=False): "
            "record a simulator that returns infos['final_obs']"
        )
    if getattr(venv, "splits_obs", False):
        raise ValueError("RecordEpisodes takes Dict and Tuple observations stacked: make the venv with stack_obs=True")
    return RecordedEngine, len(venv), (venv.observation_space, venv.action_space)


class RecordedVectorEnv(VectorWrapper):
    """Wrapper that `RecordEpisodes` returns for a gymnasium VectorEnv."""

    def __init__(self, env: Any, recorder: EpisodeRecorder, mode: AutoresetMode, native: NativeClass) -> None:
        super().__init__(env)
        self._recorder, self._mode, self._native, self._ids = recorder, mode, native, range(recorder.n)
        self._to_reset = np.zeros(0, np.int64)
        """Ids of envs that the next step resets (mode NEXT_STEP)."""
        has_memory = ASYNC not in native.names or getattr(self.unwrapped, "shared_memory", True)
        self._resets_again = mode is AutoresetMode.NEXT_STEP and not has_memory
        """True if the next step resets an env that is over even after a `reset` (gymnasium 1.4.0)."""

    def __getattr__(self, name: str) -> Any:
        if name in ASYNC_METHODS:
            raise AttributeError(f"RecordEpisodes has no {name}: it records `reset` and `step`")
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = None if options is None else options.get("reset_mask")
        if mask is not None and not self._native.resets_by_id:
            raise ValueError(
                f"{type(self.unwrapped).__name__} is not known to reset only the envs in options['reset_mask'], got "
                f"{mask}: reset all envs, or pass resets_by_id=True to RecordEpisodes if its reset takes the mask and "
                "a seed per env"
            )
        ids = np.flatnonzero(np.ones(self.num_envs) if mask is None else mask)
        seeds = [-1 if each is None else each for each in self._native.seeds(seed, ids.tolist())]
        try:
            obs, infos = self.env.reset(seed=seed, options=options)
            self._native.record_reset(infos)
            rows = fit_rows(obs, self._recorder.layout.obs)
            self._recorder.begin(ids, nest.take(rows, ids), seeds)
            if not self._resets_again:
                self._to_reset = np.setdiff1d(self._to_reset, ids)
        except BaseException:
            self._abandon()
            raise
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        recorder, same_step = self._recorder, self._mode is AutoresetMode.SAME_STEP
        if isinstance(actions, tuple) and isinstance(recorder.sent, tuple):  # a tuple of batches, for a Tuple space
            actions = list(iterate(self.env.action_space, actions))
        given, actions = actions, recorder.actions(actions, self._ids)
        try:
            result = obs, reward, terminated, truncated, infos = self.env.step(_to_type_of(given, actions))
            rows, flags = fit_rows(obs, recorder.layout.obs), (as_array(terminated), as_array(truncated))
            if "restarted" in infos or "restarted" in infos.get("final_info", ()):
                recorder.discard(_restarted(infos, self.num_envs))
            ended = recorder.step(None, actions, rows, as_array(reward), *flags, self._info(infos))
            begun = ended if same_step else self._to_reset  # envs whose rows have the first observation of an episode
            self._native.check_autoreset(begun, infos)
            if ended.size:
                recorder.end(ended, ended, self._final_obs(infos, ended) if same_step else nest.take(rows, ended))
            if begun.size:
                recorder.begin(begun, None)
            if self._mode is AutoresetMode.NEXT_STEP:
                self._to_reset = ended
        except BaseException:
            self._abandon()
            raise
        return result

    def _info(self, infos: dict[str, Any]) -> dict[str, np.ndarray]:
        if not (keys := self._recorder.info_keys):
            return {}
        rows = nest.split_infos(infos, self.num_envs)
        return info_objects([_last_info(row) for row in rows], keys)

    def _final_obs(self, infos: dict[str, Any], rows: np.ndarray) -> Any:
        """Return the last observations of the envs `rows` (`final_observation` in gymnasium 0.29)."""
        found = infos["final_obs"] if "final_obs" in infos else infos["final_observation"]
        if isinstance(found, np.ndarray) and found.dtype == object:
            return _stacked(self._recorder.layout.obs, found[rows])
        return nest.take(fit_rows(found, self._recorder.layout.obs), rows)

    def _abandon(self) -> None:
        """Abandon all unfinished episodes, because it is unknown which envs have stepped."""
        self._to_reset = np.zeros(0, np.int64)
        self._recorder.discard()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the envs. "step" and "reset" are not recorded, so they abandon all unfinished episodes."""
        if name in ("reset", "step"):
            self._abandon()
        return self.env.call(name, *args, **kwargs)  # type: ignore[attr-defined]

    def close(self, **kwargs: Any) -> None:
        try:
            self.env.close(**kwargs)
        finally:
            self._recorder.finish(complete=True)

    def __del__(self) -> None:
        """Do nothing. gymnasium before 1.3 calls `close` here, which would end the data set."""

    def note_exception(self, error: BaseException) -> None:
        self._recorder.finish_after(error)
        if (note := getattr(self.env, "note_exception", None)) is not None:
            note(error)

    __enter__: Any = BaseVectorEnv.__enter__
    __exit__: Any = BaseVectorEnv.__exit__


def _last_info(info: Mapping[str, Any]) -> Any:
    """Return the info of the step. If the env was reset in the same round, the step's info is `final_info`."""
    last = info.get("final_info")
    return last if isinstance(last, Mapping) else info


def _to_type_of(given: Any, rows: Any) -> Any:
    if not hasattr(given, "detach"):
        return rows
    from collector.device.tensors import to_device

    return to_device(rows, given.device)


def _stacked(layout: Any, rows: Sequence[Any]) -> Any:
    def stack(parts: list[Any]) -> np.ndarray:
        leaf, *values = parts
        return nest.object_array(values) if leaf.dtype == TEXT else np.array([*map(as_array, values)])

    return nest.merge(stack, [layout, *rows])


def _restarted(infos: dict[str, Any], n: int) -> np.ndarray:
    found = np.zeros(n, np.bool_)
    for each in (infos, infos.get("final_info", {})):
        if "restarted" in each and "error" in each:
            found |= np.array(each["restarted"], np.bool_) & each.get("_restarted", True)
    return np.flatnonzero(found)


class RecordedEngine(RowWiseWrapper):
    """Wrapper that `RecordEpisodes` returns for a vector env of vecenv."""

    def __init__(self, venv: Any, recorder: EpisodeRecorder) -> None:
        super().__init__(venv)
        self._recorder, self._seeds = recorder, np.full(recorder.n, -1)
        """Seed of each env's latest reset (by the caller or by autoreset), or -1."""
        self._seeds_by_id = getattr(venv, "seeds_by_id", True)
        self._in_order = False
        """True if the last call steps all envs without resets, so that a whole batch is ordered by env."""
        self._sent_actions: Any = None
        """Actions of the last call, in the stored dtypes unless they are tensors for a vector env of tensors."""
        self._takes_tensors = getattr(venv, "returns_tensors", False)
        self._known_infos: dict[str, np.dtype] = {}

    def note_reset(self, id: Any, kwargs: dict[str, Any]) -> None:
        id = kwargs.get("env_id") if id is None else id
        every = range(self._recorder.n)
        self._record_sent(None, None, {"reset": every if id is None else id, "seed": kwargs.get("seed")})

    def note_round(self, action: Any, id: Any, kwargs: dict[str, Any]) -> None:
        super().note_round(action, id, kwargs)
        self._sent_actions = action
        self._record_sent(action, id, kwargs)

    def map_action(self, action: Any) -> Any:
        """Return the actions as stored, so that a replay gives the envs the same values. Tensors stay as they are."""
        return self._sent_actions

    def _record_sent(self, action: Any, id: Any, kwargs: dict[str, Any]) -> None:
        """Record actions and seeds, unless an env of the call is still stepping, because the call will then raise."""
        recorder = self._recorder
        ids, resets = round_envs(recorder.n, action, id, kwargs)
        waiting = () if self.venv.is_closed else self.venv.waiting_id
        if waiting and (ids is None or not set(waiting).isdisjoint(ids.tolist())):
            return
        self._in_order = ids is None and not resets
        if action is not None:
            rows = recorder.actions(action, range(recorder.n) if ids is None else ids.tolist())
            stepped = ... if ids is None else ids
            seeds = as_autoreset(kwargs.get("autoreset"), recorder.n if ids is None else len(ids))
            nest.put(recorder.sent, stepped, rows)
            self._seeds[stepped] = -1 if isinstance(seeds, bool) else seeds
            if not (self._takes_tensors and all(hasattr(leaf, "__dlpack__") for leaf in nest.leaves(action))):
                self._sent_actions = rows
        if resets and self._seeds_by_id:
            self._seeds[resets] = [-1 if seed is None else seed for seed in spread_seeds(kwargs.get("seed"), resets)]

    def map_reset(self, obs: Any, info: np.ndarray) -> Any:
        ids = env_ids(info)
        self._recorder.begin(ids, obs, self._seeds[ids])
        return obs, info

    def set_episode_state(self, ids: np.ndarray, state: dict[Any, Any]) -> None:
        """Abandon the episodes of these envs, because their current observations are unknown."""
        self._recorder.discard(ids)

    def map_round(self, obs: Any, rew: Any, terminated: Any, truncated: Any, info: np.ndarray) -> Any:
        try:
            columns = obs, rew, terminated, truncated
            resets = self.reset_rows(info)
            if resets is None:
                self._record(columns, info)
            else:
                stepped, begun = (~resets).nonzero()[0], resets.nonzero()[0]
                if stepped.size:
                    self._record(nest.take(columns, stepped), _select(info, stepped))
                self.map_reset(nest.take(obs, begun), _select(info, begun))
        except BaseException:
            self._recorder.discard()  # steps of this round may be missing
            raise
        return obs, rew, terminated, truncated, info

    def _record(self, columns: Any, info: np.ndarray) -> None:
        obs, (reward, terminated, truncated) = nest.map(as_array, columns[0]), map(as_array, columns[1:])
        recorder, ids = self._recorder, None
        if not self._in_order or len(info) != recorder.n:
            ids = env_ids(info)
        actions = recorder.sent if ids is None else nest.take(recorder.sent, ids)
        ended = recorder.step(ids, actions, obs, reward, terminated, truncated, self._entries(info))
        if ended.size:
            envs = ended if ids is None else ids[ended]
            last, begun = (_ends_in_columns if has_columns(info) else self._ends)(obs, info, ended, envs, truncated)
            recorder.end(ended, envs, last)
            if begun.size:
                recorder.begin(begun, None, self._seeds[begun])

    def _entries(self, info: Any) -> dict[str, np.ndarray]:
        if not (keys := self._recorder.info_keys):
            return {}
        if has_columns(info):
            return info_rows(info.of_steps(), keys, self._known_infos)
        return info_objects([_last_info(row) for row in info], keys)

    def _ends(self, obs: Any, info: np.ndarray, ended: np.ndarray, envs: np.ndarray, truncated: Any) -> Any:
        """Return the last observations of the ended envs, and the envs that the round has reset."""
        infos = info[ended].tolist()
        broken = [row for row in truncated[ended].nonzero()[0].tolist() if is_repeated(infos[row])]
        if broken:
            self._recorder.discard(envs[broken])
        begun = [row for row, each in enumerate(infos) if "final_obs" in each and "final_info" in each]
        if len(begun) == len(infos):  # autoreset has already reset all ended envs
            return _stacked(self._recorder.layout.obs, [each["final_obs"] for each in infos]), envs
        last = nest.take(obs, ended)
        for row in begun:
            nest.put(last, row, infos[row]["final_obs"])
        return last, envs[begun]

    def call(self, name: str, /, *args: Any, id: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of the envs. "step" and "reset" abandon the unfinished episodes."""
        if name in ("reset", "step"):
            self._recorder.discard(slice(None) if id is None else as_ids(id, self._recorder.n))
        return super().call(name, *args, id=id, **kwargs)

    def close(self) -> None:
        try:
            self.venv.close()
        finally:
            self._recorder.finish(complete=True)

    def note_exception(self, error: BaseException) -> None:
        """Commit finished episodes. A later `close` then leaves the data set incomplete."""
        self._recorder.finish_after(error)
        super().note_exception(error)


def _ends_in_columns(obs: Any, info: Any, ended: np.ndarray, envs: np.ndarray, truncated: Any) -> Any:
    """Return the same as `_ends`, for a simulator that steps and resets all its envs together."""
    if info.finals is None:
        return nest.take(obs, ended), envs[:0]
    return nest.map(as_array, nest.take(info.finals.obs, envs)), envs


def _select(info: Any, rows: np.ndarray) -> Any:
    return info.select(rows) if has_columns(info) else info[rows]
