"""Pools of envs that step by themselves, in threads of C++."""
