"""Policies of collectors: how a policy is called, random actions, keyed noise, and weights.

A policy is a callable. It gets observations `(k, ...)`, a row for each env that steps next, and returns one of:

- actions `(k, ...)`. For Dict and Tuple spaces, actions are a dict or tuple of such arrays under the key `action` of a
  dict, or a list with a dict or tuple per row.
- a distribution of actions, with `sample` and `log_prob` as in `torch.distributions`. The exploration type selects a
  sample, the mode or the mean.
- a dict with `action` (as above) and more outputs `(k, ...)` to store.
- a tuple: the action, then more outputs, stored as `output1`, `output2`, ...

A `torch.nn.Module` gets tensors, and so does any policy with a policy device. Other policies get numpy arrays. Every
policy may return tensors or arrays. Outputs are stored without gradients, and bfloat16 as float32.

Modules of tensordict get a `TensorDict`, and so does a policy with a single argument named `tensordict` or `td`, or
with a first argument annotated as `TensorDict` or `TensorDictBase`. Such policies get no infos.

Other policies get arguments by the names of their parameters:

- Keys of a dict observation: if all required parameters are keys, the policy gets these entries. Otherwise the first
  parameter is the whole observation.
- `env_id`: ids of the envs of the rows, int64 `(k,)`.
- `state`: the `state` that the policy returned for these envs in the previous step, in a dict or as second value of a
  pair. A state is a tree of `(k, ...)` arrays or tensors. When an episode begins, the state is a row of
  `policy.initial_state(k)`. Without this method the state is zeros, and the policy is called once with `state=None` to
  learn their shapes. Random generators are then restored.
- an entry of `info_keys`: this entry of the info that came with the observation, `(k, ...)`, in the dtype of `extras`.
  Rows without the entry are zero. The argument is `None` until an info has the entry.
- `info`: the infos of the observations, an object array of dicts `(k,)`, which the policy must not change.

If names collide, keys of the observation come first, then `state`, `env_id` and `info`, then `info_keys`.

The number of rows changes from call to call, because envs that are being reset have no row. So if a policy draws from
one random stream, its actions depend on which envs step together. `RandomPolicy` has a stream per env. With
`episode_seeds`, all envs have rows in every round, and random actions and samples depend on the episode and the step.
"""
