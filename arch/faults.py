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
