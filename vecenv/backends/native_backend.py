"""`NativeBackend`: base of the backends for envs that a library's object in this process steps together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.backends.backend import Answers, Backend, EnvCall, Taken, WorkerInfo
from vecenv.backends.host.env_host import ATTRIBUTES, EnvReport, make_report
from vecenv.backends.host.failure import capture
from vecenv.backends.memory.arena import Arena
from vecenv.layout import Layout


class NativeBackend(Backend):
    """Backend for envs that a library's object in this process steps together. `name`: the object's name in errors."""

    takes_objects, hosts_here, seeds_autoresets = False, True, False
    resets_with: tuple[str, ...] = ("seed", "options")

    def __init__(self, env_num: int, name: str, num_workers: int = 1) -> None:
        super().__init__()
        self.env_num, self.name, self.num_workers = env_num, name, num_workers
        self.busy_seconds = 0.0

    @property
    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(range(self.env_num), None, self.busy_seconds)]

    def reports(self, obs: Any, action: Any, metadata: Mapping[str, Any], spec: Any) -> list[EnvReport]:
        # Hide the library's autoreset mode, because `BaseVectorEnv` never resets an env by itself.
        metadata = {key: value for key, value in metadata.items() if key != "autoreset_mode"}
        parts = obs, action, metadata, spec, None
        known = zip(ATTRIBUTES, make_report(parts), strict=False)
        self.known = {name: value for name, value in known if value is not None}
        self.some_action = copy.deepcopy(action).sample()
        return [make_report(parts) for _ in range(self.env_num)]

    def bind(self, layout: Layout) -> Arena:
        self.arena = Arena.build(layout, self.env_num)
        self.answers = Answers(self.arena)
        return self.arena

    def encode(
        self, ids: Sequence[int], ops: int | np.ndarray, actions: Any, payloads: Mapping[int, Any]
    ) -> Mapping[int, Any]:
        for i, payload in payloads.items():
            if not isinstance(payload, Mapping):
                raise ValueError(
                    f"the action for env {i} is {payload!r}, which does not fit {self.known['action_space']}"
                )
            given = {name for name, value in payload.items() if name != "options" or value}
            if unknown := sorted(given.difference(self.resets_with)):
                raise TypeError(f"the reset of {self.name} takes only {' and '.join(self.resets_with)}, got {unknown}")
        return payloads

    def take(self, ids: Sequence[int] | None) -> Taken:
        return self.answers.take(ids)

    def resynchronise(self, deadline: float) -> None:
        self.take(None)

    def call(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> EnvCall:
        try:
            if op == "get_env_attr" and args[0][0] in self.known:
                return EnvCall(ids, op, [self.known[args[0][0]]] * len(ids))
            return EnvCall(ids, op, self.called(ids, op, args))
        except Exception as error:
            return EnvCall(ids, op, [capture(error, i, op, local=True) for i in ids])

    def called(self, ids: Sequence[int], op: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        if op == "wrapper_classes":
            return [[]] * len(ids)
        if op == "has_attr":
            try:
                return [args[0][0] in self.known or bool(self.called(ids, "get_env_attr", args))] * len(ids)
            except AttributeError:
                return [False] * len(ids)
        raise NotImplementedError(f"{self.name} has no {op} of single envs")


def library_makes_env() -> None:
    """Placeholder for env_fns, because the library has made the envs."""
