"""Connection to Ray, and functions that start actors and tasks. Only this file imports ray.

`actor_options` forbids restarts of actors, because a new env needs a reset first. It also forbids repeats of calls,
because a repeated call would step an env twice.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

NICENESS = "RAY_worker_niceness"
"""Environment variable with the niceness of actors. Ray reads the variable at its start."""
RECORDS = "vecenv"
NOTICED_WITHIN = 1.0

_lock = threading.Lock()
_users = 0
_address: str | None = None
"""Address of the cluster that `connect` started or joined, or `None`."""
_ended_at = -NOTICED_WITHIN
"""Time (`time.monotonic`) when an actor last ended."""
ANSWERS_WITHIN = 1.0
"""Seconds to wait for a connection to a node."""
LOOK_EVERY = 1.0
"""Seconds for which the result of `unreachable_nodes` is valid."""
_unreachable: set[str] = set()
_looked_at = -LOOK_EVERY


class RayCluster:
    """Connection to a Ray cluster."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._released = False

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """End this use of the cluster. Repeated calls have no effect.

        The last release ends or leaves the cluster that `connect` started or joined. If the program called `ray.init`,
        Ray stays connected.
        """
        global _users, _address
        with _lock:
            if self._released:
                return
            self._released = True
            _users -= 1
            if _users == 0 and _address is not None:
                ours, _address = _address, None
                # The program may have joined a different cluster meanwhile.
                if self.ray.is_initialized() and self.ray.get_runtime_context().gcs_address == ours:
                    self.ray.shutdown()


def connect(address: str | None = None) -> RayCluster:
    """Use the cluster of `ray.init`, else the cluster at `address`.

    address: as in `ray.init`. "auto" and `None` use `RAY_ADDRESS`. If `RAY_ADDRESS` is not set, `None` starts a local
        cluster, and "auto" joins a cluster on this machine, or else starts one.

    Raises ImportError without ray, and the errors of `ray.init`, such as ConnectionError.
    """
    global _users, _address
    ray = import_ray()
    with _lock:
        if not ray.is_initialized():
            # Without an address, Ray could join the cluster of another user on this machine.
            of_environment = bool(os.environ.get("RAY_ADDRESS"))
            if address is None and not of_environment:
                address = "local"
            try:
                _init(ray, address)
            except ConnectionError:
                if address != "auto" or of_environment:
                    raise
                _init(ray, "local")
            _address = ray.get_runtime_context().gcs_address
        _users += 1
    return RayCluster(ray)


def _init(ray: Any, address: str | None) -> None:
    starts = address == "local"
    # With Ray's default niceness 15, other processes would get CPUs first.
    sets = starts and NICENESS not in os.environ
    if sets:
        os.environ[NICENESS] = "0"
    try:
        ray.init(
            address=address,
            include_dashboard=False if starts else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    finally:
        if sets:
            del os.environ[NICENESS]


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('this needs Ray, which is not installed: pip install "vecenv[ray]"') from error
    return ray


def actor_options(
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    scheduling: Any = "SPREAD",
    placement_group: Any = None,
) -> dict[str, Any]:
    """Return arguments for `ray.remote(cls).options(...)`, without restarts and retries.

    `scheduling`: "SPREAD", "DEFAULT" or a strategy of Ray. A `placement_group` replaces it.
    """
    if placement_group is not None:
        import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        scheduling = PlacementGroupSchedulingStrategy(placement_group)
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": scheduling}
    options |= {"max_restarts": 0, "max_task_retries": 0}
    if resources:
        options["resources"] = dict(resources)
    if runtime_env:
        options["runtime_env"] = dict(runtime_env)
    return options


def put_bytes(data: bytes | memoryview) -> Any:
    """Put bytes into Ray's object store as an array, so that actors read them without a copy."""
    return import_ray().put(np.frombuffer(data, np.uint8))


def is_loss(error: BaseException) -> bool:
    """Return True if an exception of `ray.get` means that the actor, its node or the object is lost."""
    exceptions = import_ray().exceptions
    lost = exceptions.RayActorError, exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError
    return isinstance(error, (*lost, exceptions.OutOfMemoryError, exceptions.OutOfDiskError))


def cause_of(error: BaseException) -> BaseException:
    """Return the exception of the actor's code, or `error` if it is not a `RayTaskError`."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(error, import_ray().exceptions.RayTaskError) and cause is not None else error


def assigned_cpus() -> float | None:
    """Return the number of CPUs of this actor or task, or `None` in other processes. Does not import ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # this process is a driver
        return None
    cpus: float = context.get_assigned_resources().get("CPU", 0.0)
    return cpus


def unscheduled(count: int, of: int, options: Mapping[str, Any], seconds: float) -> str:
    """Return the error text for `count` of `of` actors that have not started in time."""
    ray = import_ray()
    nodes, free = sum(bool(node["Alive"]) for node in ray.nodes()), ray.available_resources()
    has = [
        f"{amount:g} {name} ({free.get(name, 0):g} free)"
        for name, amount in sorted(ray.cluster_resources().items())
        if not name.startswith(("node:", "accelerator_type:")) and not name.endswith("memory")
    ]
    asked = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options.get("resources", {})}
    each = ", ".join(f"{amount:g} {name}" for name, amount in asked.items() if amount)
    return (
        f"{count} of {of} actors have not started within {seconds:g} s. Each asks for {each or 'no resources'}; the "
        f"cluster has {nodes} node{'s' * (nodes != 1)} with {', '.join(has) or 'no CPU'}. Ask for fewer actors or less "
        "for each, or raise start_timeout if the cluster still grows"
    )


def own_node() -> tuple[str, str]:
    ray = import_ray()
    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def put_record(key: str, text: str | None = None) -> None:
    """Store a text in the cluster (default: the id of this node). Does nothing without Ray."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.experimental.internal_kv._internal_kv_put(key, text or own_node()[0], namespace=RECORDS)


def get_record(key: str) -> str:
    """Return the text of `put_record`, or ""."""
    ray = import_ray()
    found = ray.experimental.internal_kv._internal_kv_get(key, namespace=RECORDS) if ray.is_initialized() else None
    return (found or b"").decode()


def remove_record(key: str) -> None:
    """Remove the text of `put_record`."""
    ray = import_ray()
    if ray.is_initialized():
        ray.experimental.internal_kv._internal_kv_del(key, namespace=RECORDS)


def dead_nodes() -> set[str]:
    """Return the ids of nodes that Ray has declared dead. Ids are not reused."""
    return {node["NodeID"] for node in import_ray().nodes() if not node["Alive"]}


def _through_proxy() -> bool:
    return bool(import_ray().util.client.ray.is_connected())


def draining_nodes() -> set[str]:
    """Return the ids of nodes that will end soon, for example by preemption. Ray starts no actors there."""
    return set() if _through_proxy() else set(import_ray()._private.state.state.get_draining_nodes())


def ends_soon() -> bool:
    """Return True if Ray has announced the end of this node."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and own_node()[0] in draining_nodes()


def missing_package(error: BaseException) -> str:
    """Return advice if a node of the cluster lacks vecenv, or "" for any other error."""
    found = re.search(r"No module named '(vecenv|collector)\b", str(error))
    if found is None:
        return ""
    return (
        f"a node of the cluster has no module {found[1]!r}: install vecenv there, in the version of this program, or "
        'pass runtime_env={"pip": ["vecenv"]}'
    )


def unreachable_nodes() -> set[str]:
    """Return the ids of nodes that Ray lists as alive, but that accept no connection.

    Ray declares such nodes dead after about a minute, and places actors on them until then.
    """
    global _unreachable, _looked_at
    ray = import_ray()
    if _through_proxy():  # only the host of the `ray://` proxy may be able to reach the nodes
        return set()
    if time.monotonic() > _looked_at + LOOK_EVERY:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        with ThreadPoolExecutor(max_workers=min(64, len(nodes) or 1)) as threads:
            answers = threads.map(_answers, nodes)
            _unreachable = {node["NodeID"] for node, answers in zip(nodes, answers, strict=True) if not answers}
        _looked_at = time.monotonic()
    return _unreachable


def is_silent(address: str) -> bool:
    found = [node for node in import_ray().nodes() if node["NodeManagerAddress"] == address and node["Alive"]]
    return bool(found) and {node["NodeID"] for node in found} <= unreachable_nodes()


def _answers(node: Mapping[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWERS_WITHIN).close()
    except OSError:
        return False
    return True


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Let Ray avoid unreachable nodes, if Ray may choose the node."""
    if options.get("scheduling_strategy") not in ("SPREAD", "DEFAULT") or not (silent := unreachable_nodes()):
        return dict(options)
    from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

    return {**options, "scheduling_strategy": NodeLabelSchedulingStrategy({"ray.io/node-id": NotIn(*sorted(silent))})}


def make_actor(cls: type, options: Mapping[str, Any], *arguments: Any) -> Any:
    """Make an actor `cls(*arguments)`. Ray starts the actor when a node has room."""
    return _remote(cls).options(**_placed(options)).remote(*arguments)


def call_actor(method: Any, results: int, *arguments: Any) -> Future[Any]:
    """Call a method of an actor. Return a future of the result, or of a list if the method has several `results`.

    Callbacks of the future run in a thread of Ray.
    """
    if results == 1:
        future: Future[Any] = method.remote(*arguments).future()
        return future
    futures = [reference.future() for reference in method.options(num_returns=results).remote(*arguments)]
    found, lock, left = Future[Any](), threading.Lock(), {*range(results)}

    def finish(k: int, _: Any) -> None:
        with lock:
            left.discard(k)
            if left or found.done():
                return
        error = next(filter(None, (each.exception() for each in futures)), None)
        if error is None:
            found.set_result([each.result() for each in futures])
        else:
            found.set_exception(error)

    for k, each in enumerate(futures):
        each.add_done_callback(functools.partial(finish, k))
    return found


def start_task(function: Callable[..., Any], options: Mapping[str, Any], *arguments: Any) -> Any:
    """Start `function(*arguments)` as a task without retries. Return the reference to the result."""
    options = _placed({"scheduling_strategy": "SPREAD", **options})
    return _remote(function).options(**options, max_retries=0).remote(*arguments)


@functools.cache
def _remote(code: Callable[..., Any]) -> Any:
    """Return the remote class or function. Cached, so that Ray sends the code only once."""
    return import_ray().remote(code)


def end_actor(actor: Any) -> None:
    """End an actor by force. May be repeated, also after `ray.shutdown()`."""
    global _ended_at
    ray = import_ray()
    if ray.is_initialized():
        ray.kill(actor, no_restart=True)
        _ended_at = time.monotonic()


def free_places(options: Mapping[str, Any]) -> int:
    """Return how many actors with these options fit in the free part of the cluster or placement group.

    If an actor asks for no resources, return the number of CPUs.
    """
    asked = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options.get("memory", 0)}
    asked = {name: amount for name, amount in (asked | options.get("resources", {})).items() if amount}
    total = import_ray().cluster_resources().get("CPU", 0)
    if not asked:
        return int(total)
    group = getattr(options.get("scheduling_strategy"), "placement_group", None)
    # Ray frees the CPUs of an ended actor a moment later, without an event.
    while import_ray().available_resources().get("CPU", 0) < total and time.monotonic() < _ended_at + NOTICED_WITHIN:
        time.sleep(0.05)
    places = _free_of_nodes() if group is None else _free_of_bundles(group)
    return sum(int(min(free.get(name, 0) / amount for name, amount in asked.items()) + 1e-9) for free in places)


def _free_of_nodes() -> list[dict[str, float]]:
    found = import_ray()._private.state.available_resources_per_node()
    avoided = unreachable_nodes() | draining_nodes()
    return [resources for node, resources in found.items() if node not in avoided]


def _free_of_bundles(group: Any) -> list[dict[str, float]]:
    """Return the free resources per bundle. Ray names them "CPU_group_0_<id>"."""
    free = import_ray().available_resources()
    names = {name for bundle in group.bundle_specs for name in bundle}
    of_bundle = [{name: f"{name}_group_{k}_{group.id.hex()}" for name in names} for k in range(group.bundle_count)]
    return [{name: free.get(full, 0) for name, full in bundle.items()} for bundle in of_bundle]


def reason_of(error: BaseException) -> str:
    """Return Ray's error about the end of an actor, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:"))]
    text = " ".join(kept).partition(" Some common causes include")[0]
    return f"{type(error).__name__}: {text}"[:1000]
