"""The channel of memory that computes: its rows and its global buffer, in bf16, and sums in fp32 (`sim.golden.pim`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.floats import narrowed
from siliconloom.arch.isa import Instruction
from siliconloom.arch.opcodes import Opcode
from siliconloom.arch.pim import MacroKind
from siliconloom.arch.units.pim import burst_of, macros_of
from siliconloom.sim.golden.opcodes import executes
from siliconloom.sim.golden.pim import GoldenPim
from siliconloom.sim.golden.vector import Bytes, window

if TYPE_CHECKING:
    from siliconloom.sim.golden.npu import GoldenMachine


def _channel(machine: GoldenMachine) -> GoldenPim:
    if machine.channel is None:
        raise NotSupported("values of a channel that computes on a tile without one (tile.pim)")
    return machine.channel


def to_channel(machine: GoldenMachine, elements: Bytes) -> Bytes:
    """Elements of the scratchpad as they stand in the channel."""
    if machine.dtype is DataType.BF16:
        return elements.copy()
    return narrowed(elements.copy().view("<u4"), DataType.BF16).astype("<u2").view(np.uint8)


def of_elements(machine: GoldenMachine, data: Bytes) -> Bytes:
    """What stands in the channel as elements of the scratchpad."""
    if machine.dtype is DataType.BF16:
        return data
    return (np.ascontiguousarray(data).view("<u2").astype("<u4") << 16).astype("<u4").view(np.uint8)


def of_sums(machine: GoldenMachine, sums: NDArray[np.uint32]) -> Bytes:
    """Sums as elements of the scratchpad."""
    words = np.ascontiguousarray(sums, "<u4").reshape(-1)
    if machine.dtype is DataType.BF16:
        return narrowed(words, DataType.BF16).astype("<u2").view(np.uint8)
    return words.view(np.uint8)


def _drive(machine: GoldenMachine, i: Instruction, indices: list[int]) -> None:
    channel, local, port = _channel(machine), i.a.at(indices), burst_of(machine.tile)
    for number, macro in enumerate(macros_of(channel.tile, i, indices)):
        place, size = local + number * i.local_pitch, macro.columns * port
        if macro.kind == MacroKind.WRITE:
            channel.run([macro], written=[to_channel(machine, window(machine.scratchpad, place, size))])
        elif macro.kind == MacroKind.GWRITE:
            channel.run([macro], vectors=[to_channel(machine, window(machine.scratchpad, place, size))])
        elif macro.kind == MacroKind.READ:
            channel.run([macro])
            window(machine.scratchpad, place, size)[:] = of_elements(machine, channel.reads.pop().reshape(-1))
        else:
            channel.run([macro])
            made = of_sums(machine, channel.results.pop())
            window(machine.scratchpad, i.c.at(indices), made.size)[:] = made


for _opcode in (Opcode.PIM, Opcode.PIM_WRITE, Opcode.PIM_READ, Opcode.PIM_VECTOR):
    executes(_opcode)(_drive)
