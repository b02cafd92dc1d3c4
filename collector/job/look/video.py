"""Videos of stored episodes, rendered by playing their seeds and actions again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from collector.job.head import job_of
from collector.job.job import Job, JobError
from collector.job.look.replay import repeat_actions
from collector.job.make_envs import make_env
from collector.store.dataset import Dataset
from collector.store.safe_folder import SafeFolder
from vecenv.venvs import ShmemVectorEnv

VIDEOS = "videos"
FPS = 30
HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
"""What pygame is to use in a worker, where the program has not set it."""


class Video(NamedTuple):
    """One video."""

    number: int
    """Of the episode."""
    path: str
    difference: str
    """What the episode that was played differs in from the one that is stored; "" where it does not."""


def make_videos(
    folder: str | os.PathLike[str],
    numbers: Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    num_workers: int = 2,
    allow_import: Iterable[str] = (),
) -> list[Video]:
    """Render episodes of a folder as MP4 files, in worker processes, and say where one is not as it was stored.

    numbers: of the episodes; None: the one with the highest return. out: a folder, by default `videos` in `folder`. The
    env is made with `render_mode="rgb_array"`. Raises `DatasetError` where no job wrote the folder; `JobError` where
    it has no such episode, the env renders no pictures, or the stored job names modules that are not in
    `allow_import`; `ImportError` without imageio.

    Example::

        [video] = make_videos("data/cartpole", [17])
        print(video.path, video.difference or "as it was")
    """
    _import_imageio()
    data, job = Dataset(folder), job_of(Path(folder), allow_import)
    places = {int(number): i for i, number in enumerate(data.numbers)}
    if numbers is None:
        numbers = [int(data.numbers[int(np.argmax(data.returns))])] if len(data) else []
    if missing := [number for number in numbers if number not in places]:
        raise JobError(f"{folder} has no episode {missing[0]}; it has {len(data)}")
    where = (str(data.folder), VIDEOS) if out is None else (os.path.abspath(out), "")
    _open(where).close()
    tasks = [(data[places[number]], f"episode-{number:06d}.mp4") for number in dict.fromkeys(numbers)]
    if not tasks:
        return []
    count = min(num_workers, len(tasks))
    blocks = [partial(Renderer, job, tasks[i::count], where) for i in range(count)]
    with ShmemVectorEnv(blocks, num_workers=count) as venv:
        return sorted(video for videos in venv.call("render_all") for video in videos)


class Renderer(gymnasium.Env[Any, Any]):
    """What a worker hosts: it renders its episodes when it is asked to, and never steps."""

    def __init__(self, job: Job, tasks: Sequence[tuple[Any, str]], where: tuple[str, str]) -> None:
        self._job, self._tasks, self._where = job, tasks, where

    def render_all(self) -> list[Video]:
        """Render them, one after another."""
        for name, value in HEADLESS.items():
            os.environ.setdefault(name, value)
        env = make_env(self._job, render_mode="rgb_array")
        try:
            fps = env.metadata.get("render_fps") or FPS
            with _open(self._where) as folder:
                return [
                    Video(
                        episode.number,
                        str(folder.path / name),
                        record_episode(self._job, env, episode, folder, name, fps),
                    )
                    for episode, name in self._tasks
                ]
        finally:
            env.close()


def _open(where: tuple[str, str]) -> SafeFolder:
    """The folder for videos: one that was named, or that inside a data set, where no link is followed."""
    with SafeFolder.make(where[0]) as root:
        return root.inside(where[1], make=True)


def record_episode(job: Job, env: Any, episode: Any, folder: SafeFolder, name: str, fps: float) -> str:
    """Play an episode in an env that renders, write the pictures into a file, and return what differs."""
    imageio = _import_imageio()

    def write_frame(env: Any) -> None:
        picture = env.render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise JobError(f"{job.env} renders no pictures: render() returned {type(picture).__name__}")
        writer.append_data(even(np.asarray(picture, np.uint8)))

    with tempfile.TemporaryDirectory() as scratch:  # ffmpeg, another process, opens it by its path
        path = Path(scratch, name)
        # Pictures keep their size; by default they would be scaled to a multiple of 16.
        options = {"macro_block_size": 1, "codec": "libx264", "pixelformat": "yuv420p"}
        with imageio.get_writer(path, fps=fps, **options) as writer:
            difference = repeat_actions(job, episode, env, write_frame)
        folder.write(name, path.read_bytes())
    return difference


def even(picture: np.ndarray) -> np.ndarray:
    """A picture (height, width, 3) with an even number of rows and columns, as video needs: the last one is repeated.

    >>> even(np.zeros((3, 5, 3), np.uint8)).shape
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
