"""`RoundServer`: serves rounds (steps, resets) and method calls in a worker, over shared memory or frames."""

from __future__ import annotations

import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.backends.host.env_host import EnvHost, Payload
from vecenv.backends.host.failure import Failure, capture, describe
from vecenv.backends.host.row_writer import IN_INFO_ROW, RESET_IN_ARENA, Extra
from vecenv.backends.ipc import messages, opcodes
from vecenv.backends.ipc.messages import Channel, Frame, WorkerChannel
from vecenv.backends.ipc.serialization import PICKLED, loads_by_value
from vecenv.backends.memory.infos import InfoWriter
from vecenv.backends.memory.shared_memory import A_CALL, A_ROUND, BUSY_NS, DOING, NOTHING, SENDING
from vecenv.backends.worker.worker_setup import WorkerArgs
from vecenv.layout import Layout

Answer = Callable[[Sequence[int], dict[int, Extra]], None]


def _waits() -> int:
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


def advice(n: int, workers: int) -> str:
    own = (
        f". Pass num_workers={min(n, workers)} to the vector env, or to the collector that makes it, so that each env "
        "has its own worker"
    )
    if n < 3:
        return f"{own}."
    return (
        f"{own}. If steps differ in length, wait_num={max(n // 4, 1)} is faster still (it also gives each env its "
        "own worker), in a loop that continues with the envs that are ready, as AsyncDataCollector does: "
        "docs/guides/waiting-envs.md"
    )


class BlockingMeter:
    """Meter that detects, in the first rounds, envs that mostly wait (sockets, sleep) and should not share a worker.

    Low CPU time can also mean a busy machine, so the meter also counts voluntary context switches, which only a
    waiting thread makes. The CPU time includes all threads of the process.
    """

    MIN_WALL = 0.25
    MIN_ROUNDS = 8  # a single long step proves nothing
    MAX_SHARE = 0.5

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._wall = self._cpu = 0.0
        self._rounds = self._waits = 0
        self.measuring = envs > 1

    def start(self) -> None:
        self._begin = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), _waits()

    def stop(self) -> str | None:
        """End the measurement of a round. Return a warning, at most once, if the envs mostly wait."""
        begin, before, waits = self._begin
        now = resource.getrusage(resource.RUSAGE_SELF)
        self._wall += time.perf_counter() - begin
        self._cpu += now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime
        self._waits += _waits() - waits
        self._rounds += 1
        if self._wall < self.MIN_WALL or self._rounds < self.MIN_ROUNDS:
            return None
        self.measuring = False
        if self._cpu > self.MAX_SHARE * self._wall or self._waits < self._rounds:
            return None
        return (
            f"a worker spent {self._wall:.2f} s stepping its {self._envs} envs but only {self._cpu:.2f} s of CPU: "
            "the envs wait more than they compute, and wait one after the other"
        )


class BlockRounds:
    """Runner of rounds on the `count` envs of `host`. Updates the worker's `line` (see `Control`).

    If `eager`, each env's answer is sent as soon as the env is done. If not, all answers are sent together.
    """

    def __init__(self, host: EnvHost, count: int, eager: bool, line: Any, warn: Callable[[str], None]) -> None:
        self.host, self.line, self._warn = host, line, warn
        self.count, self.everyone = count, range(count)
        self._one_by_one = eager and count > 1
        self._meter = BlockingMeter(count)

    def timed(self, round: Callable[..., None], *args: Any) -> None:
        begin = time.perf_counter_ns()
        round(*args)
        self.line[DOING] = NOTHING
        self.line[BUSY_NS] += time.perf_counter_ns() - begin

    def run_block(self, asked: bytes, action: Any, payload: Payload, answer: Answer) -> None:
        if not asked.translate(None, opcodes.BUSY):
            places: Sequence[int] = self.everyone
        else:
            places = [j for j, op in enumerate(asked) if opcodes.IDLE < op < opcodes.DONE]
        if not self._one_by_one:
            if places:
                answer(places, self._measured(self.host.run, asked, action, payload))
            return
        for j in places:
            extra = self._measured(self.host.run_one, j, asked[j], action, payload)
            answer([j], {} if extra is None else {j: extra})

    def _measured(self, run: Callable[..., Any], *args: Any) -> Any:
        self.line[DOING] = A_ROUND
        if not self._meter.measuring:
            return run(*args)
        self._meter.start()
        result = run(*args)
        if (warning := self._meter.stop()) is not None:
            self._warn(warning)
        return result


class RoundServer(BlockRounds, ABC):
    code = PICKLED._replace(unpack=loads_by_value)
    infos: InfoWriter

    def __init__(self, args: WorkerArgs, host: EnvHost, channel: WorkerChannel, line: Any) -> None:
        super().__init__(host, len(host.envs), args.eager, line, self._send_warning)
        self.channel = channel
        self.first_id = args.first_id
        self.payloads: dict[int, Any] = {}
        """Encoded actions and arguments that do not fit the arena, by index of the env."""

    @abstractmethod
    def bind(self, layout: Layout) -> None:
        """Map or build the arrays for the results of this worker's envs."""

    @abstractmethod
    def serve(self, channel: Channel) -> None:
        """Serve until a CLOSE frame has been handled."""

    def serve_round(self, asked: bytes, action: Any, answer: Answer) -> None:
        self.run_block(asked, action, self._payload, answer)
        if self.host.spares is not None:
            self.host.spares.prepare(asked, self.host.seeds)

    def _send_warning(self, text: str) -> None:
        self.channel.write(messages.WARNING, 0, self.code.dumps(text))

    def handle(self, frame: Frame) -> bool:
        """Handle a frame that is not a round. Return True if it was CLOSE."""
        if frame.kind == messages.CALL:
            self.line[DOING] = A_CALL
            reply = self._call(*self.code.loads(frame.payload))
            self.line[DOING] = NOTHING
            self.channel.write(messages.REPLY, frame.number, reply)
        elif frame.kind == messages.SYNC:
            self.infos.sent = 0  # resend all schemas, because the parent may have lost some
            self.channel.write(messages.SYNCED, frame.number)
        elif frame.kind == messages.CLOSE:
            self.channel.write(messages.CLOSED, 0, self.code.dumps(self.host.close()))
            return True
        return False

    def encoded_extras(self, extras: dict[int, Extra]) -> bytes:
        """Return an encoded list of (env index, packed `Extra`), or empty bytes.

        If an extra is only an info that fits an info row, write the info there instead. Send new schemas before the
        caller announces the rows. Pickle each extra separately, so that a pickling error fails one env only.
        """
        blobs, infos = [], self.infos
        for j, extra in extras.items():
            if extra is IN_INFO_ROW or extra is RESET_IN_ARENA:
                continue
            if (info := extra.only_info()) is not None and infos.write(j, info):
                extras[j] = IN_INFO_ROW
                continue
            self.line[DOING] = SENDING
            self.host.mark(j)
            try:
                blobs.append((j, self.code.pack(extra.to_tuples())))
            except BaseException as error:
                extras[j] = Extra(failure=self._not_sent(j, error))
                blobs.append((j, self.code.pack(extras[j].to_tuples())))
        while infos.sent < len(infos.schemas):
            schema = infos.schemas[infos.sent]
            self.channel.write(messages.INFO_SCHEMA, infos.sent, self.code.dumps((schema.keys, schema.kinds)))
            infos.sent += 1
        return self.code.dumps(blobs) if blobs else b""

    def _not_sent(self, j: int, error: BaseException) -> Failure:
        env_id = self.first_id + j
        reason = TypeError(f"the info or observation of env {env_id} cannot be sent: {describe(error)}")
        reason.__cause__ = error
        return capture(reason, env_id, "step", local=False)

    def _call(self, op: str, blobs: dict[int, Any]) -> bytes:
        results: dict[int, Any] = {}
        for j, blob in blobs.items():
            self.host.mark(j)
            try:
                results[j] = self.code.pack(self.host.call(j, op, self.code.unpack(blob)))
            except BaseException as error:
                env_id = self.first_id + j
                text = f"{op} on env {env_id}: an argument or the result cannot be sent: {describe(error)}"
                if op == "get_env_attr":
                    text += '; if this is a method, call it: call("name"), or env_method("name") of SB3'
                results[j] = self.code.pack(capture(TypeError(text), env_id, op, local=False))
        return self.code.dumps(results)

    def _payload(self, j: int, op: int) -> Any:
        try:
            return self.code.unpack(self.payloads.pop(j))
        except BaseException as error:
            env_id, name, what = self.first_id + j, "reset", "arguments"
            if op & opcodes.PLAIN == opcodes.STEP_OBJECT:
                name, what = "step", "action"
            reason = TypeError(f"the {what} for env {env_id} cannot be read in the worker: {describe(error)}")
            return capture(reason, env_id, name, local=False)


def answer_of(extra: Extra | None) -> int:
    if extra is None:
        return opcodes.DONE
    if extra is IN_INFO_ROW:
        return opcodes.DONE_INFO
    if extra is RESET_IN_ARENA:
        return opcodes.DONE_FINAL
    return opcodes.DONE_EXTRA if extra.final is None else opcodes.DONE_EXTRA_FINAL
