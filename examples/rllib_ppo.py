"""PPO of RLlib on CartPole. Two env runners use vector envs of vecenv. Needs `vecenv[rllib]`.

python examples/rllib_ppo.py [--fast]

RLlib makes vector envs with gymnasium. If the `vector_entry_point` of an id names vecenv, gymnasium calls
`vecenv.make_vec` with the `env_config`. The id names the module that registers it, so each env runner imports it.
"""

import argparse

import gymnasium as gym

gym.register(
    "Pole-v0",
    entry_point="gymnasium.envs.classic_control:CartPoleEnv",
    vector_entry_point="vecenv.facades.make_vec:Pole-v0",
    max_episode_steps=500,
)


def main(iterations: int) -> None:
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    config = (
        PPOConfig()
        .environment("rllib_ppo:Pole-v0", env_config={"backend": "shmem", "venv_kwargs": {"num_workers": 2}})
        .env_runners(num_env_runners=2, num_envs_per_env_runner=8, gym_env_vectorize_mode="vector_entry_point")
        .training(train_batch_size_per_learner=2048, minibatch_size=128, num_epochs=8, lr=1e-3)
    )
    algorithm = config.build_algo()
    kinds = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: type(runner.env.unwrapped), local_env_runner=False
    )
    for _ in range(iterations):
        found = algorithm.train()["env_runners"]
    algorithm.stop()
    ray.shutdown()
    names = " and ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds)
    steps, mean_return = found["num_env_steps_sampled_lifetime"], found["episode_return_mean"]
    print(f"{steps:.0f} steps by {names}, mean return {mean_return:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="two updates, to see that it works")
    main(2 if parser.parse_args().fast else 30)
