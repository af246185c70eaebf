"""What instructions touch in local memory, and how the assembler says that it must not be so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from siliconloom.arch.faults import Cause, IllegalProgram

if TYPE_CHECKING:
    from siliconloom.arch.isa import Address, Instruction

SUM_BYTES = 4


class Access(Struct, frozen=True):
    """What one execution of an instruction touches in local memory.

    Parameters
    ----------
    port
        Port of the scratchpad, or ``sums`` for the accumulator.
    writes
        Which side of it.
    address
        Where it begins.
    size
        Bytes from there on.
    """

    port: str
    writes: bool
    address: Address
    size: int


def where(i: Instruction, number: int) -> str:
    """An instruction, at the beginning of a message."""
    return f"instruction {number} ({i.opcode.name.lower()})"


def illegal(i: Instruction, number: int, text: str) -> IllegalProgram:
    """An instruction that its unit would not take."""
    cause = Cause.ILLEGAL_INSTRUCTION
    return IllegalProgram(cause, number, f"{where(i, number)}: {cause.text}: {text}")


__all__ = ["SUM_BYTES", "Access", "illegal", "where"]
