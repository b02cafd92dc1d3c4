"""64 envs that call a TCP server in each step. Compares steps/s in threads and in processes.

python examples/waiting_envs.py [--fast]
"""

import multiprocessing
import socket
import socketserver
import sys
import time

import gymnasium as gym

from vecenv import ShmemVectorEnv, ThreadVectorEnv

n, calls = (8, 20) if "--fast" in sys.argv else (64, 200)


class Tool(socketserver.StreamRequestHandler):
    def handle(self):
        for number, line in enumerate(self.rfile):
            time.sleep(0.005 + 0.001 * (number * 7 % 26))  # like a sandbox, a search or a language model
            self.wfile.write(b"result of " + line)


class ToolEnv(gym.Env):
    observation_space, action_space = gym.spaces.Text(100), gym.spaces.Text(50)

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.lines = self.socket.makefile()

    def reset(self, *, seed=None, options=None):
        return "ready", {}

    def step(self, action):
        self.socket.sendall(f"{action}\n".encode())
        return self.lines.readline().strip(), 1.0, False, False, {}  # waits for the tool

    def close(self):
        self.lines.close()
        self.socket.close()


def steps_per_second(kind, port):
    with kind([lambda: ToolEnv(port)] * n, wait_num=n // 4, timeout=1.0) as venv:
        info, begin = venv.reset()[1], time.perf_counter()
        for _ in range(calls):
            ids = [row["env_id"] for row in info]  # the envs that are ready
            info = venv.step([f"look up {i}" for i in ids], ids)[-1]
        return venv.stats()["steps"] / (time.perf_counter() - begin)


socketserver.ThreadingTCPServer.request_queue_size = 256
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tool) as server:
    multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    rates = {kind.__name__: steps_per_second(kind, port) for kind in (ThreadVectorEnv, ShmemVectorEnv)}
print(", ".join(f"{name} {rate:.0f} steps/s" for name, rate in rates.items()))
