"""Whether what was timed is hardware that can be had: what of a program the generated Verilog runs as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from siliconloom.arch import Chip
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.assembler import Violation, violations
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.faults import Cause
from siliconloom.arch.isa import Program
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.tile import NpuTile, SystolicTile
from siliconloom.rtl.npu.geometry import geometry_of, without_circuit

PROVEN, SPECIFIED = "proven", "specified"
"""The assembler takes the instructions, so that Verilog, simulator and golden model run them alike; they are timed by a
specification."""


def hardware_of(chip: Chip, program: Program, unlaid: Sequence[str | None]) -> list[str | None]:
    """Why each operator of a program is not proven; nothing where it is.

    Parameters
    ----------
    chip
        As it was simulated.
    program
        What was timed; its instructions have the numbers of operators.
    unlaid
        Of each operator, why its operands do not lie as the circuits read them (`mapper.chip.tasks.unlaid`).
    """
    operators = len(unlaid)
    if isinstance(chip.tile, SystolicTile):
        part = without_circuit(chip)
        why = _no_circuit(chip.tile.array, {i.dtype for i in program.instructions if i.opcode is Opcode.MATMUL})
        return [why or (part and f"no RTL of a chip with {part}")] * operators
    if not isinstance(chip.tile, NpuTile):
        return ["no programs on such a tile"] * operators
    found = list(unlaid)
    for violation in violations(program, chip):
        numbers = violation.instructions or range(len(program.instructions))
        for operator in {program.instructions[number].operator for number in numbers}:
            if operator < operators and (found[operator] is None or violation.error.cause is Cause.ILLEGAL_INSTRUCTION):
                found[operator] = _reason(violation)  # what has no circuit has nothing to lie in wrong places for
    try:
        geometry_of(chip)
    except NotSupported as error:
        found = [f"no {str(error).removeprefix('not supported: ')}"] * operators
    if (part := without_circuit(chip)) is not None:
        found = [why or f"no RTL of a chip with {part}" for why in found]
    if chip.tile_count > 1:
        found = [why or "the Verilog is of one tile (tile_count)" for why in found]
    return found


def _no_circuit(array: SystolicArray, formats: set[DataType]) -> str | None:
    """Why a bare array's circuit does not compute in all of these formats, or nothing."""
    built = array.circuit_format
    if built is None:
        return f"no circuit for {', '.join(array.operands)} operands"
    if array.element == "digit_serial":
        return "its operands decide of its cycles, which are expected here"
    other = [d for d in formats if d != built and not (d.is_integer and built.is_integer and d.bits <= built.bits)]
    return f"no circuit for {', '.join(other)}" if other else None


def hardware_summary(reasons: Sequence[str | None]) -> dict[str, Any]:
    """One word for all operators, how many are proven, and why the others are not, the most frequent reason first."""
    why = Counter(reason for reason in reasons if reason is not None)
    return {
        "word": SPECIFIED if why else PROVEN,
        "proven": len(reasons) - why.total(),
        "operators": len(reasons),
        "why": dict(why.most_common()),
    }


def _reason(violation: Violation) -> str:
    """A few words, alike for alike violations."""
    error = violation.error
    known = re.search(r"no circuit for [\w ]*?(\w+|(?<=function )\w+ in \w+)(?:;|$)", str(error))
    return f"no circuit for {known[1]}" if known and error.cause is Cause.ILLEGAL_INSTRUCTION else error.cause.text


__all__ = ["PROVEN", "SPECIFIED", "hardware_of", "hardware_summary"]
