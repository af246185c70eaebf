"""What each opcode does to a tile's memories: a row each, registered by the modules of this folder.

A row is called with the machine, the instruction and the indices of the loops around it, outermost first. What is
registered elsewhere is found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from siliconloom.arch.isa import Instruction
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.registry import Registry, discover

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine

Execution = Callable[["GoldenMachine", Instruction, list[int]], None]
EXECUTIONS: Registry[Opcode, Execution] = Registry("what is computed by opcode")


def executes(opcode: Opcode) -> Callable[[Execution], Execution]:
    """Register the decorated function as what ``opcode`` does."""

    def register(found: Execution) -> Execution:
        EXECUTIONS.add(opcode, found)
        return found

    return register


discover("siliconloom.sim.golden.opcodes")

__all__ = ["EXECUTIONS", "Execution", "executes"]
