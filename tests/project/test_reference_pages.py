"""The argument tables of the reference pages, held against the signatures."""

import inspect
import re
import sys

from tests.support.paths import ROOT

sys.path.append(str(ROOT / "docs"))

import api_pages


def test_a_table_lists_every_argument_and_each_row_describes_one():
    from vecenv import ShmemVectorEnv

    lines = "\n".join(api_pages.table("ShmemVectorEnv", ShmemVectorEnv, None, inspect.signature(ShmemVectorEnv)))
    names = re.findall(r"^\* - \*\*`(\w+)`", lines, re.M)
    assert names[:3] == ["env_fns", "wait_num", "timeout"]
    assert {"num_workers", "step_timeout", "on_error", "context", "check_actions"} < set(names)
    assert "backend" not in names
    assert "worker_fn" not in names
