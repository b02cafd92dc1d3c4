"""64 environments whose step is a call of a tool behind a TCP server: in threads, and in processes beside them.

python examples/waiting_envs.py [--fast]
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np

from vecenv import ShmemVectorEnv, ThreadVectorEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fast", action="store_true", help="few environments and calls, to see that it works")
parser.add_argument("--serve", action="store_true", help="be the server")
options = parser.parse_args()
n, calls = (8, 20) if options.fast else (64, 200)


async def tool(reader, writer):
    """Answers each line after a while."""
    rng = np.random.default_rng()
    while line := await reader.readline():
        await asyncio.sleep(rng.uniform(0.005, 0.03))  # seconds: a sandbox, a search, a language model
        writer.write(b"result of " + line)
    writer.close()


async def serve():
    server = await asyncio.start_server(tool, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the program that started it has ended


class ToolEnv(gym.Env):
    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(50)

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rw")

    def reset(self, *, seed=None, options=None):
        return "ready", {}

    def step(self, action):
        self.file.write(f"{action}\n")
        self.file.flush()
        return self.file.readline().strip(), 1.0, False, False, {}  # waits

    def close(self):
        self.file.close()
        self.socket.close()


def run(venv_class, port):
    """Steps a second."""
    with venv_class([lambda: ToolEnv(port)] * n, wait_num=n // 4, timeout=1.0) as venv:
        obs, info = venv.reset()
        steps, begin = 0, time.perf_counter()
        for _ in range(calls):
            ids = [row["env_id"] for row in info]  # the ones that are ready
            obs, rew, terminated, truncated, info = venv.step([f"look up {i}" for i in ids], ids)
            assert all(text == f"result of look up {row['env_id']}" for text, row in zip(obs, info, strict=True))
            steps += len(info)
        return steps / (time.perf_counter() - begin)


if options.serve:
    asyncio.run(serve())
    sys.exit()

command = [sys.executable, __file__, "--serve"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
    port = int(server.stdout.readline())
    rates = {venv_class.__name__: run(venv_class, port) for venv_class in (ThreadVectorEnv, ShmemVectorEnv)}
    server.stdin.close()
print(", ".join(f"{name} {rate:.0f} steps/s" for name, rate in rates.items()))
