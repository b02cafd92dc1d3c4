"""Values of an env's status byte: IDLE, an opcode (requested operation), or an answer (DONE and above).

A status byte has one writer at a time. The parent replaces IDLE by an opcode. The worker writes the env's row of the
arena, and replaces the opcode by an answer. Then the parent reads the row, and writes IDLE.
"""

from __future__ import annotations

IDLE = 0
STEP = 1  # action in the arena
RESET = 2
STEP_OBJECT = 3  # action outside the arena
RESET_KWARGS = 4  # keyword arguments outside the arena
AUTORESET = 64  # added to a step: also reset the env if its episode ends
MOVE = 32  # added to a step, only inside of the engine: as AUTORESET, but a new worker resets the env
STEP_RESET = STEP | AUTORESET
PLAIN = ~AUTORESET & 127  # mask that removes AUTORESET
DONE = 128  # the row is the whole answer
EXTRA = 1  # added to DONE: an `Extra` follows
FINAL = 2  # added to DONE: the arena has the last observation of an episode
INFO = 4  # added to DONE: the info is in the arena
DONE_EXTRA, DONE_FINAL, DONE_EXTRA_FINAL = DONE | EXTRA, DONE | FINAL, DONE | EXTRA | FINAL
DONE_INFO = DONE | INFO
BUSY, NOT_DONE = bytes(range(IDLE + 1, DONE)), bytes(range(DONE))
"""BUSY: all opcodes. NOT_DONE: all opcodes, and IDLE. `status.translate(None, NOT_DONE)` keeps the answers."""
