"""BlockThread: a thread of this process that makes, uses and closes the envs of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter_ns
from typing import Any

from vecenv.backends.host.copies import plain_copy
from vecenv.backends.host.env_host import EnvHost, EnvReport
from vecenv.backends.host.failure import Failure
from vecenv.backends.host.row_writer import Extra
from vecenv.backends.ipc import opcodes
from vecenv.backends.ipc.control_block import A_CALL, A_ROUND, BUSY_NS, DOING, LINE, NOTHING
from vecenv.backends.memory.arena import Arena
from vecenv.backends.memory.layout import Layout
from vecenv.backends.worker.blocking_envs import BlockingMeter

Deliver = Callable[..., None]
"""`deliver(block, take_in, *args)`: the caller's thread is to call `take_in(*args)`, unless the block is abandoned."""
TakeRows = Callable[["list[int] | None", dict[int, Extra]], None]
"""Takes the answers of the envs at these places of the block (None: all), with their extras."""


class BlockThread:
    """The envs `ids`, in a thread of their own; `index` is the place of the block among all.

    What is put into `work` is called there, in turn; None ends it. Once it is abandoned it uses no other env: it closes
    them and ends as soon as the one that it is using returns. `eager` delivers each env as it finishes.
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
        """What the constructors led to, once it has been taken in."""
        self.problems: list[str] = []
        """What went wrong in closing the envs."""
        self.alive = True
        """Whether its answers count."""
        self.line = [NOTHING] * LINE
        """The numbers of the block that the watchdog reads (see `control_block`)."""
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
        """What it is, for a warning."""
        return f"thread {self.thread.name}"

    @property
    def ending(self) -> str:
        """What becomes of it if one of its envs hangs."""
        return (
            f"threads cannot be killed, so {self.thread.name} (envs {list(self.ids)}) was abandoned and goes on until "
            "that env returns"
        )

    def abandon(self) -> None:
        """Have it end; what it has not delivered is lost."""
        self.alive = False
        self.work.put(None)
        numbers, self.line = self.line, self.line.copy()
        numbers.clear()  # the host writes there before it uses an env: the IndexError comes before the next env is used

    def bind(self, layout: Layout, own: Arena, action: Any, take_rows: TakeRows, warn: Callable[[str], None]) -> None:
        """Write into `own` from now on; actions are read from `action`."""
        self._action, self._take_rows, self._warn = action, take_rows, warn
        self.work.put(partial(self._host.bind, layout, own))

    def _run(self) -> None:
        done = None
        try:
            self._deliver(setattr, self, "reports", self._host.construct())
            while (work := self.work.get()) is not None:
                if work is not done:  # put twice by a `send` that was interrupted
                    work()
                    done = work
        except BaseException as error:  # not one of an env, which would be an answer; of an abandoned block never seen
            self._deliver(self._on_death, self, error)
        finally:
            self.problems = self._host.close()

    def round(self, asked: bytes, payloads: Mapping[int, Any]) -> None:
        """Do what the status bytes ask for, with payloads by env id."""
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

    def call(self, op: str, args: Mapping[int, tuple[Any, ...]], take_in: Callable[[dict[int, Any]], None]) -> None:
        """Run one of `ENV_CALLS` on envs, with arguments by env id: the values, or Failures."""
        self.line[DOING] = A_CALL
        values = {i: plain_copy(self._host.call(i - self.start, op, args[i])) for i in args}
        self.line[DOING] = NOTHING
        self._deliver(take_in, values)
