"""Policies: their forms, random actions, keyed noise, weights.

A policy is any callable that takes a batch of observations `(k, ...)`, one row for each env that is about to step, and
returns one of

- the actions, `(k, ...)`; those of Dict and Tuple spaces are a dict or tuple of such, under `action` of a dict (or one
  dict or tuple for each row, in a list or an array of objects);
- a distribution over them (anything with `sample` and `log_prob`, as in `torch.distributions`), from which the
  exploration type picks: a sample, the mode or the mean;
- a dict with `action` (either of the above) and more to be stored with it, `(k, ...)` each;
- a tuple: the action and then what else is to be stored, as `output1`, `output2`, ...

A `torch.nn.Module`, and any policy for which a policy device was named, gets tensors; every other one numpy arrays.
Either may return tensors or arrays. What is stored has no gradient; bfloat16, which numpy does not have, is stored (and
done) as float32, which holds every value of it.

Modules of tensordict get a `TensorDict`, and so does a policy whose only argument is called `tensordict` or `td`, or
whose first one is annotated as a `TensorDict` or `TensorDictBase`.

What a policy is called with depends on the names of its parameters:

- where observations are a dict and all its required parameters are keys of it, it gets those entries, else the whole;
- `env_id`: the envs that the rows belong to, int64 `(k,)`;
- `state`: what it returned as `state` (in a dict, or second in a tuple of two) for these envs in the step before. In
  the first step of an episode that is zeros, or a row of `policy.initial_state(k)` where it has that method; where it
  has none, it is called once with None before, and what it returns shows the shapes of zeros (nothing else of that call
  is used, and random generators go back). The state may be a tree of `(k, ...)` arrays or tensors: torch's recurrent
  layers have the rows second;
- an entry of infos that `info_keys` names: that entry of the info that came with the observation on which the policy
  acts, `(k, ...)`. After a reset that is the info of the reset. Dtypes are as in `extras`. Rows whose info lacks the
  entry are zero, and the argument is None until an info has had it;
- `info`: the whole infos that came with these observations, an object array of dicts `(k,)`, which must not be changed.

Entries of the observation take precedence over these names, and `state`, `env_id` and `info` over `info_keys`. The
first parameter is always the observation. Policies that get a `TensorDict` get no infos.

How many rows there are changes from call to call: envs that are being reset have none. So a policy that draws from one
random stream gives other data when other envs step together: in `AsyncDataCollector`, or where it is called for other
numbers of episodes. `RandomPolicy` does not: it has a stream for each env, which is what `env_id` is for. With
`episode_seeds` all envs have rows in each round, that stream is seeded where an episode begins, and distributions are
sampled with noise of the episode and the step.
"""
