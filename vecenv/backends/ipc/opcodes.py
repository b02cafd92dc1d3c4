"""The status byte of an env: one byte that says what is asked of it, or that it has answered.

It has one writer at a time: the parent writes an operation into an idle box, the host writes the answer.
"""

from __future__ import annotations

IDLE = 0
STEP = 1  # with the action in the arena
RESET = 2  # without arguments
STEP_OBJECT = 3  # with the action in the payload of the round
RESET_KWARGS = 4  # with the keyword arguments in the payload of the round
WIDE = 32  # added to a step with the action in the arena: it is float64, though the space has a smaller float type
AUTORESET = 64  # added to a step: reset the env as well if the step ends its episode
STEP_RESET = STEP | AUTORESET
PLAIN = ~(WIDE | AUTORESET) & 127  # what is left of an operation without what was added to it
DONE = 128  # the row holds all there is
EXTRA = 1  # added to DONE: there is an `Extra` besides the row
FINAL = 2  # added to DONE: there is a last observation besides the row
DONE_EXTRA, DONE_FINAL, DONE_EXTRA_FINAL = DONE | EXTRA, DONE | FINAL, DONE | EXTRA | FINAL
_ALL_OPS = bytes(range(IDLE + 1, DONE))
NOT_DONE = bytes(range(DONE))
"""What `status.translate(None, ...)` takes away to leave the answers."""


def all_ask(status: bytes) -> bool:
    """Whether every one of these status bytes asks for something."""
    return not status.translate(None, _ALL_OPS)
