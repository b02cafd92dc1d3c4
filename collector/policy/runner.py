"""`PolicyRunner`: call the policy on observations, and check the actions that it returns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from collector.batch.step_extras import InfoColumns, RowLayout, check_policy_names, without_last
from collector.policy.action_trees import action_layouts, flatten, unflatten
from collector.policy.keyed_noise import KeyedNoise, generators_kept
from collector.policy.policy_call import (
    ExplorationType,
    Policy,
    PolicyCall,
    RecurrentState,
    choose,
    exploring,
    signature_of,
)
from collector.policy.random_policy import RandomPolicy
from collector.timing import Clock
from vecenv import nest
from vecenv.extending import add_note, cast_exactly
from vecenv.nest import as_array

ACTION_MASK = "action_mask"
Outputs = dict[str, np.ndarray]
Layout = dict[str, RowLayout]
Options = bool | dict[str, Any]


KERNELS = (
    "the math library may choose other kernels for other rows of a batch: set MKL_CBWR=COMPATIBLE before Python starts"
)


class PolicyRunner:
    """Calls the policy of a collector for some envs, and checks its outputs against the action space.

    policy: None for random actions. device: the collector's `policy_device`. clock: counts the seconds of the policy,
    and those of transfers and checks. job_seed: that of episodes with seeds of their own. threads, compile, cudagraph,
    info_keys: the collector's `policy_threads`, `compile_policy`, `cudagraph_policy` and `info_keys`.
    """

    def __init__(
        self,
        policy: Policy | None,
        env: Any,
        exploration: ExplorationType,
        device: Any = None,
        *,
        clock: Clock | None = None,
        threads: int | None = None,
        job_seed: int | None = None,
        compile: Options = False,
        cudagraph: Options = False,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.module: Any = None
        """The network that is called (a copy where the policy is on another device), or None."""
        self.layout: Layout = {}
        """Shape of a row and dtype of each output, once the policy was called; no actions that are trees of arrays."""
        self.noise = None if job_seed is None else KeyedNoise(job_seed, env.env_num)
        """The source of random actions and samples, where episodes have seeds of their own."""
        self._env, self._threads, self._clock = env, threads, clock or Clock()
        self._env_num: int = env.env_num
        self._infos = np.full(env.env_num, None)
        """The latest info of each env."""
        self._info_keys = info_keys
        self._info_columns: InfoColumns | None = None
        """Makes arrays of the entries of infos that the policy takes; None if it takes none."""
        self._takes_info = False
        self._row_ids = np.arange(env.env_num)
        """The ids of the rows with which the policy is called where there is noise: first the envs."""
        self._last: Any = None
        """Number of rows, and shapes and dtypes of the outputs, of the last call."""
        self._returned: Layout = {}
        self._to_cast: list[str] = []
        self._is_watched = False
        """True once the first call of this batch has shown if the policy draws from generators of torch."""
        self._space: Any = env.action_space[0]
        self._is_tree = isinstance(self._space, (spaces.Dict, spaces.Tuple))
        self._expected = action_layouts(env.action_space)
        """Shape of a row and dtype of each leaf of the actions, where all envs have the same."""
        self._transfer: Any = None
        """The transfer of a policy on tensors."""
        self._inputs_device: Any = None  # once there were some
        self._on_device: Any = None
        """Returns the tensors of observations that are on the policy's device already."""
        self._is_random = policy is None or isinstance(policy, RandomPolicy)
        self._random: Any = self._random_policy(policy) if self._is_random else None
        self._policy: Any = None
        """The policy that is called, on its device; None for random actions."""
        self._call: PolicyCall | None = None
        if policy is not None and not self._is_random:
            faster = {"compile": _keywords(compile), "cudagraph": _keywords(cudagraph)}
            self._call = self._prepare(policy, exploration, device, faster)

    def _random_policy(self, policy: Any) -> Any:
        """Return the policy that draws random actions: `policy`, or one for the action spaces."""
        policy = RandomPolicy(self._env.action_space) if policy is None else policy
        if self.noise is not None:
            self.noise.seed_random(policy, self._env.action_space)
        return policy

    def _prepare(self, policy: Policy, exploration: ExplorationType, device: Any, faster: dict[str, Any]) -> PolicyCall:
        """The policy, with its signature read; one on tensors is moved to its device."""
        if not callable(policy):
            raise TypeError(f"a policy is a function of a batch of observations, or a module; got {policy!r}")
        signature = signature_of(policy, self._env.observation_space[0], self._info_keys)
        self._takes_info = signature.info
        if signature.info_keys:
            self._info_columns = InfoColumns(signature.info_keys)
        torch = sys.modules.get("torch")
        if device is not None or (torch is not None and isinstance(policy, torch.nn.Module)):
            policy = self._on_tensors(policy, device, keeps_rows=signature.env_id)
            if faster["cudagraph"] is not None and self._transfer.device.type != "cuda":
                raise ValueError(
                    f"cudagraph_policy needs the policy on a CUDA device, and it is on {self._transfer.device}: "
                    "pass policy_device='cuda', or do not pass cudagraph_policy"
                )
        elif any(each is not None for each in faster.values()):
            raise ValueError(
                "compile_policy and cudagraph_policy are for policies on tensors; this one gets arrays: "
                "pass a torch module, or name a policy_device"
            )
        self._policy = policy
        pick = choose if self.noise is None else self.noise.choose
        return PolicyCall(policy, signature, len(self._row_ids), exploration, pick, **faster)

    def _on_tensors(self, policy: Policy, device: Any, keeps_rows: bool) -> Policy:
        """The policy on its device, and the transfer to it."""
        from collector.device.math_libraries import full_rows, rows_are_exact
        from collector.device.tensors import Transfer, is_lazy, moved, resolve_device, tensors_of, torch

        home = next((tensor.device for tensor in tensors_of(policy)), torch.device("cpu"))
        target = home if device is None else resolve_device(device)
        policy = moved(policy, target)
        self.module = policy if isinstance(policy, torch.nn.Module) else None
        if self.noise is not None:
            if not keeps_rows:  # a policy may know the envs by their ids
                self._row_ids = np.arange(full_rows(self._env_num))
            self.noise.resize(len(self._row_ids))
            if not rows_are_exact(len(self._row_ids), target):
                self.noise.not_keyed(KERNELS)
        self._transfer = Transfer(target, len(self._row_ids))
        if getattr(self._env, "device", None) == target:
            self._on_device = getattr(self._env, "on_device", None)
        self._inference = torch.inference_mode()  # one for all calls: making it costs as much as entering it
        # Lazy modules make their parameters in the first call: made in inference mode, they could not be trained.
        self._guard: Any = torch.no_grad() if is_lazy(policy) else self._inference
        return policy

    def __call__(self, obs: Any, env_ids: np.ndarray, random: bool = False) -> Outputs:
        """The outputs of the policy for these envs: arrays `(k, ...)`, `action` among them. With `random` a random
        action, and zeros for the other outputs. Where there is noise, `obs` has a row for each env, not only for these:
        in each call the policy gets as many.

        They are valid until the envs step: they may be views of `obs`. Raises `ValueError` or `TypeError` where they do
        not fit.
        """
        if random or self._call is None:
            return self._random_outputs(obs, env_ids)
        if self.noise is None:
            return self._outputs(obs, env_ids)
        rows, some = self._row_ids, len(env_ids) < self._env_num
        if len(rows) > self._env_num:  # those behind are that of the last env
            obs, some = nest.take(obs, np.minimum(rows, self._env_num - 1)), True
        # An env that does not step keeps its state.
        call = partial(self._outputs, obs, rows, env_ids if len(env_ids) < self._env_num else None)
        outputs = call() if self._is_watched else self.noise.watch(call)
        self._is_watched = True
        return nest.take(outputs, env_ids) if some else outputs

    def _random_outputs(self, obs: Any, env_ids: np.ndarray) -> Outputs:
        """Random actions for these envs, and zeros for the other outputs of a policy whose place they take."""
        if self._call is not None:
            self._learn_layout(obs, env_ids)
        if self.noise is not None and len(env_ids) < self._env_num:
            obs = nest.take(obs, env_ids)
        outputs = {"action": self._random(obs, env_ids, self.masks_of(env_ids))}
        for name, (shape, dtype) in self.layout.items():
            if name != "action":
                outputs[name] = np.zeros((len(env_ids), *shape), dtype)
        self._clock.lap("policy")
        return outputs

    def masks_of(self, env_ids: np.ndarray) -> list[Any] | None:
        """Return the action masks in the latest infos of these envs; None if no info has one."""
        masks = [None if info is None else info.get(ACTION_MASK) for info in self._infos[env_ids]]
        return None if all(mask is None for mask in masks) else masks

    def _infos_of(self, env_ids: np.ndarray) -> np.ndarray:
        """Return the infos of the observations of these rows; an env without an episode has another env's."""
        infos = self._infos[np.minimum(env_ids, self._env_num - 1)]
        if any(info is None for info in infos):
            known = next(info for info in self._infos if info is not None)
            infos = nest.object_array([known if info is None else info for info in infos])
        return infos

    def _outputs(self, obs: Any, env_ids: np.ndarray, stepping: np.ndarray | None = None) -> Outputs:
        """Return the checked outputs of the policy for rows of these envs, of which `stepping` step (None: all)."""
        call: PolicyCall = self._call  # type: ignore[assignment]
        if call.state is not None and not call.state.is_known:
            self._learn_state(call.state, obs, env_ids)
        if self._on_device is not None and (tensors := self._on_device(obs)) is not None:
            obs = tensors
        call.infos = self._infos_of(env_ids) if self._takes_info else None
        # Rows and entries of infos are transferred like the observations, to the device of the policy.
        of_infos = {} if self._info_columns is None else self._info_columns(self._infos_of(env_ids), env_ids)
        inputs = (obs, call.rows_of(env_ids, stepping), of_infos) if call.wants_rows else obs
        if self._transfer is None:
            self._clock.lap("transfer")
            found = self._called(inputs)
            outputs = {name: each if each.__class__ is np.ndarray else as_array(each) for name, each in found.items()}
        else:
            outputs = self._transferred(inputs)
        form = len(env_ids), {name: (values.shape, values.dtype) for name, values in outputs.items()}
        if form != self._last:
            self._check(outputs, len(env_ids))
            self._last = form
        for name in self._to_cast:
            outputs[name] = self._as_in_space(name, outputs[name])
        if "action" not in outputs:
            action = unflatten(outputs, self._space)
            outputs = {"action": action, **{name: outputs[name] for name in outputs if name not in self._expected}}
        self._clock.lap("transfer")
        return outputs

    def _transferred(self, inputs: Any) -> Outputs:
        """The outputs of a policy on tensors, as arrays; valid until the next call."""
        with self._guard:
            tensors = self._transfer.to_device(inputs)
            self._clock.lap("transfer")
            outputs = self._called(tensors)
            if self._inputs_device is None:
                self._inputs_device = next(nest.leaves(tensors)).device
            for name, value in outputs.items():
                if isinstance(value, sys.modules["torch"].Tensor) and value.device != self._inputs_device:
                    raise ValueError(
                        f"the policy returned {name!r} on {value.device}; it must be on {self._inputs_device}, where "
                        "its observations were (see policy_device)"
                    )
            arrays: Outputs = self._transfer.to_numpy(outputs)
        self._guard = self._inference
        return arrays

    def _called(self, inputs: Any) -> dict[str, Any]:
        """The policy's outputs by name, for inputs that are where the policy is."""
        outputs = self._call(inputs)  # type: ignore[misc]
        if self._is_tree:
            outputs = self._by_leaf(outputs)
        self._clock.lap("policy")
        return outputs

    def _by_leaf(self, outputs: dict[Any, Any]) -> dict[str, Any]:
        """Outputs with an entry for each leaf of the actions of a Dict or Tuple space, or one array of objects."""
        action = outputs.pop("action")
        if not isinstance(action, (dict, tuple)):
            return {"action": nest.object_array(action) if isinstance(action, list) else action, **outputs}
        if not self._expected:
            raise TypeError(
                f"the policy returned 'action' as a {type(action).__name__}; the action space {self._space} holds what "
                "has no array, or envs differ in it: return one action for each env, a list or an object array"
            )
        return {**flatten(action, self._space), **outputs}

    @contextmanager
    def in_batch(self, wanted: ExplorationType) -> Iterator[None]:
        """The context of a batch: this is taken of the distributions that the policy returns, and torch's CPU
        operations of this thread run on as many threads as the policy is to use.

        The threads are the caller's where the policy is on another device or random, or the program does not use torch.
        """
        threads: AbstractContextManager[None] = nullcontext()
        on_cpu = self._transfer is None or self._transfer.device.type == "cpu"
        if self._threads is not None and not self._is_random and on_cpu and sys.modules.get("torch") is not None:
            from collector.device.math_libraries import policy_threads

            threads = policy_threads(self._threads)
        if self._call is not None:
            self._call.exploration = wanted
        self._is_watched = False
        is_unchanged = nullcontext() if self.noise is None else self.noise.watch_state(self._policy)
        with exploring(wanted), threads, is_unchanged:
            yield

    def begin(self, env_ids: Any, infos: np.ndarray | None = None) -> None:
        """Record that episodes begin in these envs, with these infos: a recurrent policy restarts from its initial
        state, and noise is that of the episode.
        """
        if self._call is not None and self._call.state is not None:
            self._call.state.begin(env_ids)
        if infos is not None:
            if self._takes_info or self._info_columns is not None:
                # A step whose worker reset the env adds the last observation and info of the episode before.
                infos = nest.object_array([without_last(info) for info in infos])
            self.take_infos(env_ids, infos)
            if self.noise is not None:
                self.noise.begin(env_ids)

    def take_infos(self, env_ids: np.ndarray, infos: np.ndarray) -> None:
        """Keep the infos of the latest observations of these envs, for policies, and random actions and their masks."""
        self._infos[env_ids] = infos

    def replaces(self, random: bool) -> bool:
        """Return whether random actions, where they are wanted, take the place of a policy that returns others.

        Raises `TypeError` where they cannot be drawn from the action spaces.
        """
        if random and self._random is None:
            self._random = self._random_policy(None)
        return random and not self._is_random

    def _learn_layout(self, obs: Any, env_ids: np.ndarray) -> None:
        """Call a policy that was never called for these envs, and drop what it returns; random generators are not
        advanced.
        """
        if not self._returned:
            self._is_watched = True  # this call counts for nothing
            reason = "" if self.noise is None else self.noise.reason
            with generators_kept():
                self(nest.map(np.copy, obs), env_ids)  # a policy may write into what it gets
            if self.noise is not None:
                self.noise.reason = reason
            self.begin(slice(None))
            check_policy_names(self.layout)

    def _learn_state(self, state: RecurrentState, obs: Any, env_ids: np.ndarray) -> None:
        """Call the policy with `state=None` and drop what it returns: the state is zeros from the next call on."""
        state.is_known = True  # else this would not end
        try:
            with generators_kept():
                self._outputs(nest.map(np.copy, obs), env_ids)
        except Exception as error:
            state.is_known = False
            add_note(
                error,
                "this was the first call of a recurrent policy, with state=None, which shows what its state is: "
                "make zeros where state is None, or give the policy a method (or attribute) initial_state(k) that "
                "returns the state of k rows",
            )
            raise
        self.begin(slice(None))

    def reseed_random_actions(self) -> None:
        """Draw random actions from the action spaces as these are seeded now."""
        if self._random is not None:
            self._random.draw_like(self._env.action_space)

    def close(self) -> None:
        """Release the pinned memory and the graphs of a policy on a device; it is not called again."""
        self._transfer = self._call = self._policy = None

    def _check(self, outputs: Outputs, rows: int) -> None:
        """Raise where outputs do not fit each other, those before, or the action space."""
        for name, values in outputs.items():
            if values.shape[:1] != (rows,):
                should = f"{(rows, *self._expected[name][0])}" if name in self._expected else f"({rows}, ...)"
                raise ValueError(
                    f"the policy returned {name!r} of shape {values.shape} for {rows} observations; it must be {should}"
                )
        layout = {name: (values.shape[1:], values.dtype) for name, values in outputs.items()}
        if self._returned and layout != self._returned:
            raise TypeError(f"the policy returned {layout} (shape of a row, dtype) after {self._returned} before")
        in_space = {name: each for name, each in self._expected.items() if name in layout}
        for name, (expected, _) in in_space.items():
            shape = layout[name][0]
            if shape != expected and shape + expected != (1,):
                raise ValueError(
                    f"the policy returned {name!r} of shape {(rows, *shape)}; for the action space it must be "
                    f"{(rows, *expected)}"
                )
        self._to_cast = [name for name, each in in_space.items() if layout[name] != each]
        self._returned = layout
        self.layout = {
            name: in_space.get(name, each) for name, each in layout.items() if name == "action" or name not in in_space
        }

    def _as_in_space(self, name: str, action: np.ndarray) -> np.ndarray:
        """The action (a leaf of it) as the envs get it, so that the stored action is the one that was executed."""
        shape, dtype = self._expected[name]
        cast = action if action.dtype == dtype else cast_exactly(action, dtype)
        if cast is None or (action.dtype.kind == "f" and dtype.kind != "f"):
            raise TypeError(
                f"the policy returned {name!r} of dtype {action.dtype}; for the action space it must be {dtype}, or "
                f"fit it: {action!r}"
            )
        return cast.reshape(len(action), *shape)


def _keywords(option: Options) -> dict[str, Any] | None:
    """The keyword arguments of `compile_policy` or `cudagraph_policy`; None where it is off."""
    return None if option is None or option is False else {} if option is True else dict(option)
