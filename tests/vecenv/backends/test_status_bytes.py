"""Status bytes in shared memory are written once per round, and read only after the worker's announcement."""

import pickle
from types import SimpleNamespace

import pytest

from tests.support.cases import counting
from vecenv import ShmemVectorEnv
from vecenv.backends.host import env_host as hosts
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.memory.shared_memory import FRAMES, LINE
from vecenv.backends.shmem import ShmemServer
from vecenv.backends.subproc import SubprocServer
from vecenv.layout import common_layout
from vecenv.testing import CountingEnv


class NotedStatus:
    """Status bytes that record each write. A slice would be one copy, which the C library may make of overlapping
    stores.
    """

    def __init__(self):
        self.seen = []

    def __setitem__(self, where, value):
        assert isinstance(where, int), "several status bytes written at once"
        self.seen.append((where, value))


def test_a_worker_writes_every_answer_once():
    server = object.__new__(ShmemServer)
    server._status = NotedStatus()
    server._parent_wakeup = SimpleNamespace(wake=lambda: None)
    server._answer(range(4), {})
    assert server._status.seen == [(j, opcodes.DONE) for j in range(4)]


def test_a_message_is_no_reason_to_look_at_status_bytes():
    """The parent may be writing the status bytes of the next round at this moment."""
    with ShmemVectorEnv([CountingEnv] * 2, num_workers=1) as venv:
        venv.reset()
        venv.engine.arena.status[0] = opcodes.STEP
        for _ in range(2):  # the worker answers the second message after all work for the first message
            venv.get_env_attr("calls", id=[1])
        assert venv.engine.arena.status[0] == opcodes.STEP
        venv.engine.arena.status[0] = opcodes.IDLE
        assert venv.get_env_attr("calls") == [1, 1]


@pytest.mark.parametrize("op", [opcodes.STEP, opcodes.STEP_RESET, opcodes.STEP_OBJECT, opcodes.RESET])
def test_an_env_that_is_answered_for_alone_is_run_alone(op, monkeypatch):
    """The answer of an env takes only the time of that env, however many envs share the worker."""
    n, copied, real = 16, [], hosts.copy_actions
    monkeypatch.setattr(hosts, "copy_actions", lambda rows, k: copied.append(k) or real(rows, k))
    host = hosts.EnvHost(counting(n), 0, local=False)
    reports = host.construct()
    args = SimpleNamespace(first_id=0, eager=True)
    server = SubprocServer(args, host, None, [0] * 8)
    server.bind(common_layout([r.observation_space for r in reports], [r.action_space for r in reports]))
    answers = []
    asked = bytes([op] * (n - 1) + [opcodes.IDLE])
    server._block.action[...] = range(n)
    server.run_block(asked, server._block.action, lambda j, op: j, lambda done, extras: answers.append((done, extras)))
    assert [done for done, _ in answers] == [[j] for j in range(n - 1)]
    assert all(extras[j].failure is None for (j,), extras in answers)
    assert [env.calls for env in host.envs] == [1] * (n - 1) + [0]
    if op != opcodes.RESET:
        assert [env.action for env in host.envs[:-1]] == list(range(n - 1))
    assert sum(copied) < n


def test_a_round_is_done_with_the_payloads_that_were_sent_for_it():
    """The parent sends the round between two looks of the worker, which still has a payload of an interrupted call."""

    class Line(list):
        def __getitem__(self, where):
            number = super().__getitem__(where)
            if where == FRAMES and number == server._handled == 1:
                self.post(messages.PAYLOADS, {0: b"new"})
                server._status[0] = opcodes.STEP_OBJECT
                server._rounds[0] += 1
            return number

        def post(self, kind, payload=None):
            frames.append(messages.Frame(kind, 0, pickle.dumps(payload)))
            self[FRAMES] = super().__getitem__(FRAMES) + 1

    def one_round(round, *args):
        done.append(dict(server.payloads))
        server.line.post(messages.CLOSE)

    frames, done = [], []
    server = object.__new__(ShmemServer)
    server.line, server._rounds, server._status = Line([0] * LINE), [0], memoryview(bytearray(1))
    server._handled, server.payloads = 0, {}
    server._full, server._shared = [0], SimpleNamespace(rounds_before=0)
    server.handle = lambda frame: frame.kind == messages.CLOSE
    server.timed = one_round
    server.line.post(messages.PAYLOADS, {0: b"old"})
    server.serve(SimpleNamespace(read=lambda: frames.pop(0)))
    assert done == [{0: b"new"}]
