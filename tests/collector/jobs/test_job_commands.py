"""Jobs whose envs are made by a worker_command."""

import numpy as np
import pytest

from collector import Dataset, Job, JobError, resume_job, run_job
from tests.support.commands import COMMAND


def job(**settings):
    return Job(**{"env": "CartPole-v1", "episodes": 6, "num_envs": 2, "backend": "subproc", **settings})


def test_a_job_collects_the_same_episodes_through_a_command(tmp_path):
    run_job(job(worker_command=COMMAND, max_episode_steps=20), tmp_path / "command")
    run_job(job(max_episode_steps=20), tmp_path / "here")
    found, expected = Dataset(tmp_path / "command"), Dataset(tmp_path / "here")
    assert len(found) == len(expected) == 6
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.obs, b.obs)
        assert np.array_equal(a.action, b.action)


def test_a_folder_may_not_name_a_command(tmp_path):
    run_job(job(worker_command=COMMAND), tmp_path)
    with pytest.raises(JobError, match=r"stored in .* names the worker_command .*which runs a program"):
        resume_job(tmp_path)
    assert resume_job(tmp_path, job(worker_command=COMMAND)).episodes == 6
