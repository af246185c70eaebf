"""Why a tile refuses a program: one list for the assembler, the simulator and the RTL's cause register."""

from __future__ import annotations

from enum import IntEnum

from siliconloom.arch.errors import LoomError


class Cause(IntEnum):
    """Why a run stopped early; the codes of the tile's error register."""

    NONE = 0
    ILLEGAL_INSTRUCTION = 1
    MISALIGNED_TRANSFER = 2
    LOCAL_ADDRESS = 3
    BANK_CONFLICT = 4
    SEMAPHORE_OVERFLOW = 5
    DEADLOCK = 6
    BUS_ERROR = 7
    PROGRAM_SIZE = 8
    MISALIGNED_OPERAND = 9

    @property
    def text(self) -> str:
        """The cause in words."""
        return self.name.lower().replace("_", " ")


MEANINGS = {
    Cause.ILLEGAL_INSTRUCTION: "unknown opcode, a loop too deep or never opened, a function or size the unit does not "
    "have",
    Cause.MISALIGNED_TRANSFER: "a row longer than the bus does not begin at its multiples, or a shorter one leaves its "
    "window",
    Cause.LOCAL_ADDRESS: "beyond the scratchpad or the accumulator",
    Cause.BANK_CONFLICT: "two users of one side of a bank, or of the accumulator's write side, in one cycle",
    Cause.SEMAPHORE_OVERFLOW: "a count above 4095",
    Cause.DEADLOCK: "nothing is under way, nothing can start, the program is not over",
    Cause.BUS_ERROR: "an AXI4 response was an error",
    Cause.PROGRAM_SIZE: "no words, more than the program memory holds, or no END among them",
    Cause.MISALIGNED_OPERAND: "an operand of the array or the vector unit does not begin with a line",
}
"""What each cause means, for documents."""


def cause_table() -> str:
    """The causes as a table of Markdown, which ``docs/npu.md`` shows."""
    rows = [f"| {cause.value} {cause.text} | {MEANINGS[cause]} |" for cause in Cause if cause is not Cause.NONE]
    return "\n".join(["| cause | meaning |", "|---|---|", *rows])


class IllegalProgram(LoomError):
    """A program that a tile would refuse, or stop at.

    Parameters
    ----------
    cause
        What the tile reports.
    instruction
        Place in the program of the instruction concerned; ``None`` when there is no single one.
    text
        The whole message; it begins with the instruction and the cause.
    """

    def __init__(self, cause: Cause, instruction: int | None, text: str) -> None:
        super().__init__(text)
        self.cause, self.instruction = cause, instruction
