"""Opcodes: the values of an env's status byte, which say what the env must do or that it is done.

A status byte has one writer at a time: the parent writes an opcode over IDLE, the host writes DONE over the opcode.
"""

from __future__ import annotations

IDLE = 0
STEP = 1  # with the action in the arena
RESET = 2  # without arguments
STEP_OBJECT = 3  # with the action in the payloads of the round
RESET_KWARGS = 4  # with the keyword arguments in the payloads of the round
AUTORESET = 64  # added to a step: reset the env as well if the step ends its episode
STEP_RESET = STEP | AUTORESET
PLAIN = ~AUTORESET & 127  # masks what was added to an opcode
DONE = 128  # the row holds the whole answer
EXTRA = 1  # added to DONE: there is an `Extra` besides the row
FINAL = 2  # added to DONE: there is a last observation besides the row
INFO = 4  # added to DONE: there is an info in the info row
DONE_EXTRA, DONE_FINAL, DONE_EXTRA_FINAL = DONE | EXTRA, DONE | FINAL, DONE | EXTRA | FINAL
DONE_INFO = DONE | INFO
BUSY, NOT_DONE = bytes(range(IDLE + 1, DONE)), bytes(range(DONE))
"""All opcodes, and with IDLE: `status.translate(None, NOT_DONE)` leaves the answers."""
