"""The type of a policy (see `collector.policy`), and its output as a dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collector.policy.exploration import ExplorationType, choose

Policy = Callable[..., Any]


def read_output(
    output: Any, exploration: ExplorationType, pick: Callable[[Any, ExplorationType], Any] = choose
) -> dict[str, Any]:
    """A policy's output as a dict that holds `action`; `pick` takes it from a distribution.

    Raises `TypeError` where the output is a dict without `action`.
    """
    if isinstance(output, tuple):
        output = {("action" if i == 0 else f"output{i}"): value for i, value in enumerate(output)}
    if not isinstance(output, dict):
        return {"action": pick(output, exploration)}
    if "action" not in output:
        raise TypeError(
            f"the policy returned a dict without 'action'; its keys are {sorted(map(str, output))}. (The actions of a "
            "Dict space are a dict under that key.)"
        )
    return {**output, "action": pick(output["action"], exploration)}
