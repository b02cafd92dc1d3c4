"""Replay stored episodes: compare them, or render videos."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np

from collector.basics.interruptor import Stopping
from collector.episodes.episode import Episode, columns_of
from collector.jobs.builders import device_of_policy, make_env, names_with_statistics
from collector.jobs.job import Job, JobError
from collector.jobs.job_files import load_stored_job
from collector.jobs.job_progress import JobProgress
from collector.jobs.plan import Plan
from collector.jobs.player import Player
from collector.store.dataset import Dataset
from collector.store.dataset_folder import check_extra, writing
from collector.store.safe_folder import SafeFolder
from vecenv import ShmemVectorEnv, nest
from vecenv.nest import cast_exactly

VIDEOS = "videos"
FPS = 30
OTHER_OUT = "pass another --out"
NO_DISPLAY = (
    "; without a display, envs of MuJoCo and dm_control need MUJOCO_GL=egl, or MUJOCO_GL=osmesa, in the environment"
)
HEADLESS = {"SDL_VIDEODRIVER": "offscreen,dummy", "SDL_AUDIODRIVER": "dummy"}
"""Default environment variables of a rendering worker, so that pygame needs no display.

SDL uses the first name that it knows. highway-env 1.12.1 reads "dummy" alone as "do not draw".
"""


def replay_episodes(folder: str | os.PathLike[str], count: int, allow_import: Iterable[str] = ()) -> dict[int, str]:
    """Replay `count` evenly spaced episodes, and compare them with the stored episodes.

    Returns the first difference or failure of each episode, by number; "" if equal. If the job is repeatable, the
    policy chooses the actions. If not, the stored actions are repeated. Raises `DatasetError` if no job wrote the
    folder, and `JobError` if the job needs modules that are not in `allow_import`, or has a wrapper or transform with
    running statistics.

    Example::

        assert not any(replay_episodes("data/cartpole", 10).values())
    """
    data, job = Dataset(folder), load_stored_job(Path(folder), allow_import)
    if not len(data):
        return {}
    if names := names_with_statistics(job):
        raise JobError(
            f"the episodes of {folder} cannot be replayed: {', '.join(names)} carried statistics from one episode "
            "to the next; collect with frozen statistics instead"
        )
    chosen = {int(i) for i in np.linspace(0, len(data) - 1, num=min(count, len(data))).round()}
    stored = {episode.number: episode for episode in (data[i] for i in sorted(chosen))}
    if not data.head.get("repeatable"):
        with closing(make_env(job)) as env:
            return {number: _repeat_and_compare(env, episode) for number, episode in stored.items()}
    played, progress = dict[int, Episode](), JobProgress()
    # The player then skips an episode whose env fails, instead of raising an error.
    job = msgspec.structs.replace(job, on_error="retry", retries=1, max_failed=len(stored))
    # Another kind of device may give different bits.
    device = "cpu" if data.head.get("device") == "cpu" else device_of_policy(job)
    with Stopping() as stop:
        for each in Player(job, Plan(job.seed, numbers=stored), stop, progress, device).play():
            played |= {episode.number: episode for episode in each.episodes or ()}
        if stop.is_stopped:
            raise KeyboardInterrupt
    return {
        number: difference(episode, columns_of(played[number]))
        if number in played
        else f"its env failed: {progress.skipped[number]}"
        for number, episode in stored.items()
    }


def _repeat_and_compare(env: Any, episode: Episode) -> str:
    try:
        return difference(episode, repeat_actions(env, episode))
    except JobError:
        raise
    except Exception as error:
        return f"its env failed: {type(error).__name__}: {error}"


def repeat_actions(env: Any, episode: Episode, on_frame: Any = lambda env: None) -> dict[str, list[Any]]:
    """Repeat an episode's actions in an env. Return lists of observations, rewards and flags.

    `on_frame` is called with the env after the reset and each step. Raises `JobError` if the episode has no seed.
    """
    if episode.seed is None:
        raise JobError(f"episode {episode.number} has no seed, so it cannot be played again")
    obs, _ = env.reset(seed=episode.seed)
    columns: dict[str, list[Any]] = {"obs": [deepcopy(obs)], "reward": [], "terminated": [], "truncated": []}
    on_frame(env)
    for step in range(len(episode)):
        returned = env.step(nest.take(episode.action, step))
        for column, value in zip(columns.values(), returned, strict=False):
            column.append(deepcopy(value))  # an env may write into its observation
        on_frame(env)
        if returned[2] or returned[3]:
            break
    return columns


def difference(stored: Episode, played: Mapping[str, Any]) -> str:
    for step in range(len(stored) + 1):
        for name, rows in played.items():
            if not equal_rows(_row_at(getattr(stored, name), step), _row_at(rows, step)):
                return f"{name} differs from step {step} on"
    return ""


def equal_rows(stored: Any, other: Any) -> bool:
    """Return whether rows have the same bits after a cast to the dtype of `stored`. A cast may only round floats.

    >>> equal_rows({"a": np.float32(0.1)}, {"a": 0.1}), equal_rows(np.zeros(2), np.ones(2))
    (True, False)
    """
    if stored is None or other is None:
        return stored is other
    if isinstance(stored, dict):
        return isinstance(other, dict) and all(key in other and equal_rows(stored[key], other[key]) for key in stored)
    if isinstance(stored, tuple):
        return len(stored) == len(other) and all(map(equal_rows, stored, other))
    if isinstance(stored, str):
        return bool(stored == other)
    own = np.asarray(stored)
    try:
        row = cast_exactly(np.asarray(other), own.dtype)
    except ValueError:  # the env has changed, and returns lists of different lengths
        return False
    return row is not None and own.tobytes() == row.tobytes()


def _row_at(rows: Any, step: int) -> Any:
    if isinstance(rows, list):
        return rows[step] if step < len(rows) else None
    return nest.take(rows, step) if step < len(next(iter(nest.leaves(rows)))) else None


class Video(NamedTuple):
    number: int
    path: str
    difference: str
    """First difference from the stored episode, or ""."""


def make_videos(
    folder: str | os.PathLike[str],
    numbers: Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    num_workers: int = 2,
    allow_import: Iterable[str] = (),
) -> list[Video]:
    """Render episodes as MP4 files in worker processes, and compare each with the stored episode.

    `numbers` defaults to the episode with the highest return, `out` to `videos` in `folder`. The env is created with
    `render_mode="rgb_array"`. Raises `DatasetError` if no job wrote the folder or `out` cannot be written,
    `ImportError` without imageio, and `JobError` if an episode is missing, the env renders no pictures, or the job
    needs modules that are not in `allow_import`.

    Example::

        [video] = make_videos("data/cartpole", [17])
        print(video.path, video.difference or "as it was")
    """
    _import_imageio()
    data, job = Dataset(folder), load_stored_job(Path(folder), allow_import)
    places = {int(number): i for i, number in enumerate(data.numbers)}
    if numbers is None:
        numbers = [int(data.numbers[int(np.argmax(data.total_rewards))])] if len(data) else []
    if missing := [number for number in numbers if number not in places]:
        raise JobError(f"{folder} has no episode {missing[0]}; it has {len(data)} episodes")
    where = (str(data.folder), VIDEOS) if out is None else (os.path.abspath(out), "")
    check_extra(Path(*where))
    _open_video_folder(where).close()
    episodes = [data[places[number]] for number in dict.fromkeys(numbers)]
    if not episodes:
        return []
    count = min(num_workers, len(episodes))
    renderers = [partial(Renderer, job, episodes[i::count], where) for i in range(count)]
    with ShmemVectorEnv(renderers, num_workers=count) as venv:
        return sorted(video for videos in venv.call("render_all") for video in videos)


class Renderer(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, job: Job, episodes: Sequence[Episode], where: tuple[str, str]) -> None:
        for name, value in HEADLESS.items():
            os.environ.setdefault(name, value)
        try:
            env = make_env(job, render_mode="rgb_array")
        except JobError:
            raise
        except Exception as error:
            text = f'{job.env} cannot be made with render_mode="rgb_array": {type(error).__name__}: {error}'
            raise JobError(text) from error
        super().__init__(env)
        self._job, self._episodes, self._where = job, episodes, where

    def render_all(self) -> list[Video]:
        with _open_video_folder(self._where) as folder:
            return [self._record(episode, folder) for episode in self._episodes]

    def _record(self, episode: Episode, folder: SafeFolder) -> Video:
        name = f"episode-{episode.number:06d}.mp4"

        def write_frame(env: Any) -> None:
            try:
                picture = env.render()
            except Exception as error:
                raise JobError(
                    f"{self._job.env} cannot be rendered: {type(error).__name__}: {error}{NO_DISPLAY}"
                ) from error
            if not isinstance(picture, np.ndarray) or picture.ndim != 3:
                raise JobError(f"{self._job.env} renders no pictures: render() returned {type(picture).__name__}")
            writer.append_data(pad_to_even(np.asarray(picture, np.uint8)))

        with tempfile.TemporaryDirectory() as scratch:  # ffmpeg needs a path
            path = Path(scratch, name)
            # By default, imageio scales the size of pictures to a multiple of 16.
            options = {"macro_block_size": 1, "codec": "libx264", "pixelformat": "yuv420p"}
            fps = self.env.metadata.get("render_fps") or FPS
            with _import_imageio().get_writer(path, fps=fps, **options) as writer:
                differs = difference(episode, repeat_actions(self.env, episode, write_frame))
            with writing(folder.path, OTHER_OUT):
                folder.write(name, path.read_bytes())
        return Video(int(episode.number), str(folder.path / name), differs)


def _open_video_folder(where: tuple[str, str]) -> SafeFolder:
    """Open the folder for videos, but follow no links inside an untrusted data set."""
    with writing(Path(*where), OTHER_OUT), SafeFolder.make(where[0]) as root:
        return root.inside(where[1], make=True)


def pad_to_even(picture: np.ndarray) -> np.ndarray:
    """Repeat the last row and column of a picture (height, width, 3) if needed, because video needs even sizes.

    >>> pad_to_even(np.zeros((3, 5, 3), np.uint8)).shape
    (4, 6, 3)
    """
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _import_imageio() -> Any:
    try:
        import imageio.v2
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise ImportError("videos need imageio with ffmpeg: pip install 'vecenv[job]'") from error
    return imageio.v2
