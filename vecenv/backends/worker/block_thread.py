"""BlockThread: a thread of this process that makes, uses and closes the envs of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter_ns
from typing import Any

from vecenv.backends.host.env_access import plain_copy
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.ipc.control_block import A_CALL, A_ROUND, BUSY_NS, DOING, LINE, NOTHING
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.worker.blocking_envs import BlockingMeter

Deliver = Callable[..., None]
"""`deliver(block, callback, *args)`: the caller's thread calls `callback(*args)`, unless the block is abandoned."""
TakeRows = Callable[["list[int] | None", dict[int, Extra]], None]
"""Called with the places in the block of the envs that have answered (None: all), and their extras."""


class BlockThread:
    """The envs `ids`, in a thread of their own; `index` is the place of the block among all.

    The thread calls what is put into `work`, one after the other; None ends it. An abandoned thread uses no
    further env: when the env that it is using returns, it closes all of them and ends. With `eager` the result of each
    env is delivered as soon as it is there, else those of the block together.
    """

    def __init__(
        self,
        index: int,
        ids: range,
        env_fns: Sequence[Callable[[], Any]],
        eager: bool,
        deliver: Deliver,
        on_death: Callable[[BlockThread, BaseException], None],
    ) -> None:
        self.index, self.ids, self.start = index, ids, ids.start
        self.reports: list[EnvReport] | Failure | None = None
        """The reports of the envs or the failure of a constructor; None until the caller's thread has them."""
        self.problems: list[str] = []
        """Problems in closing the envs."""
        self.alive = True
        """True if its answers are used: it was not abandoned."""
        self.line = [NOTHING] * LINE
        """The numbers that the watchdog reads (see `control_block`). Each use of an env writes one first."""
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._deliver, self._on_death = partial(deliver, self), on_death
        self._one_by_one = eager and len(ids) > 1
        self._meter = BlockingMeter(len(ids))
        self._host = EnvHost(env_fns[ids.start : ids.stop], ids.start, local=True)
        self._host.progress = self.line
        self.thread = Thread(target=self._run, name=f"vecenv-block-{index}", daemon=True)

    @property
    def envs(self) -> list[Any]:
        """The envs themselves."""
        return self._host.envs

    @property
    def title(self) -> str:
        """The thread's name in warnings."""
        return f"thread {self.thread.name}"

    @property
    def ending(self) -> str:
        """The measure taken because an env hung, as part of an error text."""
        return (
            f"threads cannot be killed, so {self.thread.name} (envs {list(self.ids)}) was abandoned and goes on until "
            "that env returns"
        )

    def abandon(self) -> None:
        """Have the thread end; answers that the caller's thread has not received are discarded."""
        self.alive = False
        self.work.put(None)
        numbers, self.line = self.line, self.line.copy()
        numbers.clear()  # the host writes there before it uses an env: an IndexError comes before the next env is used

    def bind(self, layout: Layout, own: Arena, action: Any, take_rows: TakeRows, warn: Callable[[str], None]) -> None:
        """Have the host write into `own`, and read actions from `action`."""
        self._action, self._take_rows, self._warn = action, take_rows, warn
        self.work.put(partial(self._host.bind, layout, own))

    def _run(self) -> None:
        last = None
        try:
            self._deliver(setattr, self, "reports", self._host.construct())
            while (work := self.work.get()) is not None:
                if work is not last:  # put twice by a `send` that was interrupted
                    work()
                    last = work
        except BaseException as error:  # no error of an env, which would be an answer; discarded once abandoned
            self._deliver(self._on_death, self, error)
        finally:
            self.problems = self._host.close()

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> None:
        """Run the operations `asked`, an opcode for each env of the block, with payloads by env id."""
        places = None if opcodes.all_busy(asked) else [j for j, op in enumerate(asked) if op]

        def payload(j: int, op: int) -> Any:
            return payloads[self.start + j]

        if not self._one_by_one:
            self._deliver(self._take_rows, places, self._measured(self._host.run, asked, self._action, payload))
            return
        for j in range(len(asked)) if places is None else places:
            extra = self._measured(self._host.run_one, j, asked[j], self._action, payload)
            self._deliver(self._take_rows, [j], {} if extra is None else {j: extra})

    def _measured(self, run: Callable[..., Any], *args: Any) -> Any:
        begin, line = perf_counter_ns(), self.line
        line[DOING] = A_ROUND
        if self._meter.measuring:
            self._meter.start()
            result = run(*args)
            if (warning := self._meter.stop()) is not None:
                self._deliver(self._warn, warning)
        else:
            result = run(*args)
        line[DOING] = NOTHING
        line[BUSY_NS] += perf_counter_ns() - begin
        return result

    def call(self, op: str, args: Mapping[int, tuple[Any, ...]], callback: Callable[[dict[int, Any]], None]) -> None:
        """Run one of `ENV_CALLS`, with arguments by env id; `callback` receives the values, or Failures, by env id."""
        self.line[DOING] = A_CALL
        values = {i: plain_copy(self._host.call(i - self.start, op, args[i])) for i in args}
        self.line[DOING] = NOTHING
        self._deliver(callback, values)
