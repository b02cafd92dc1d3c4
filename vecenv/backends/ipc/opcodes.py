"""Opcodes: values of an env's status byte, which name the requested operation or say that the env has answered.

A status byte has one writer at a time. The parent replaces IDLE by an opcode, and the host replaces the opcode by DONE.
"""

from __future__ import annotations

IDLE = 0
STEP = 1  # action in the arena
RESET = 2
STEP_OBJECT = 3  # action in the payloads of the round
RESET_KWARGS = 4  # keyword arguments in the payloads of the round
AUTORESET = 64  # added to a step: also reset the env if its episode ends
STEP_RESET = STEP | AUTORESET
PLAIN = ~AUTORESET & 127  # mask that removes AUTORESET
DONE = 128  # the row is the whole answer
EXTRA = 1  # added to DONE, as the two below: an `Extra` follows
FINAL = 2  # there is a last observation
INFO = 4  # there is an info in the info row
DONE_EXTRA, DONE_FINAL, DONE_EXTRA_FINAL = DONE | EXTRA, DONE | FINAL, DONE | EXTRA | FINAL
DONE_INFO = DONE | INFO
BUSY, NOT_DONE = bytes(range(IDLE + 1, DONE)), bytes(range(DONE))
"""All opcodes, without and with IDLE. `status.translate(`None`, NOT_DONE)` leaves the answers."""
