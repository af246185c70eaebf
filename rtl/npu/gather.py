"""The load engine of a tile: loads, and gathers, whose rows lie where indices in the scratchpad say.

An index is read as soon as its row's address has a place in a queue, one a cycle; two products and a sum later the
address stands there. The first one is known `GATHER_START` cycles later than that of a load, and from then on there is
another one every cycle, as fast as any transfer uses them, or the queue is full. So only the first address is waited
for, and a gather takes so many cycles more than the load of as many rows.
Every row begins at a multiple of the bus, whatever its index.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import Out

from siliconloom.arch import timing
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Library, seen
from siliconloom.rtl.npu.bursts import Elsewhere
from siliconloom.rtl.npu.dma import LoadEngine
from siliconloom.rtl.npu.entries import LOAD_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read

HALF = 4 * INDEX_BYTES
"""Bits of half an index: a product has one as its factor."""


class GatherEngine(LoadEngine):
    """A load engine that finds the rows of a table by their indices, too.

    Members
    -------
    instruction, held, read, done, memory, write, misaligned, failed
        As for `LoadEngine`; an instruction that is ``indexed`` is a gather.
    indices : Out(local_read)
        Scratchpad: the index of a row.
    """

    DEPTH = 8
    """Addresses of rows that wait, those on their way among them."""

    def __init__(self, library: Library, geometry: Geometry) -> None:
        super().__init__(library, geometry, "load", LOAD_ENTRY, indices=Out(local_read(INDEX_BYTES)))

    def is_refused(self, entry: Any) -> Value:
        offset, inside = log2(self.geometry.bus), log2(INDEX_BYTES)
        apart = Cat(entry.memory[:offset], entry.pitch[:offset], entry.b[:inside]).any()
        return super().is_refused(entry) | (entry.indexed & apart)

    def rows(self, m: Module, entry: Any, ends: Value, follows: Value) -> Elsewhere:
        timing.confirm(
            "GATHER_START", scratchpad=SramWrapper.LATENCY, index=1, product=1, queue=Queue.LATENCY, address=1
        )
        queue = self.place(m, self.library.make(Queue, MEMORY_BITS, self.DEPTH), "rows")
        self._find(m, entry, queue)
        gathers, starts, known = seen(name="gathers"), Signal(), Signal()
        m.d.comb += [
            known.eq(queue.o.valid & (self.unknown | (follows & gathers))),
            queue.o.ready.eq(known),
            self.begin.eq(known & starts),
        ]
        with m.If(known):
            m.d.sync += [self.unknown.eq(0), starts.eq(0)]
        with m.If(self.taken):
            m.d.sync += [gathers.eq(entry.indexed), starts.eq(entry.indexed), self.unknown.eq(entry.indexed)]
        return Elsewhere(self.unknown | (gathers & ends), queue.o.payload, known)

    def _find(self, m: Module, entry: Any, queue: Any) -> None:
        """Indices to addresses: read, register, products, sum."""
        table, pitch = Signal(MEMORY_BITS), Signal(MEMORY_BITS)
        place, left = Signal(LOCAL_BITS), Signal(SIZE_BITS)
        index, low, high = Signal(2 * HALF), Signal(MEMORY_BITS), Signal(MEMORY_BITS - HALF)
        stages, finds = Signal(3), Signal(name="finds")
        under_way = stages[0] + stages[1] + stages[2]
        m.d.comb += [
            self.indices.enable.eq(finds & (queue.level + under_way < self.DEPTH)),
            self.indices.address.eq(place),
            queue.i.valid.eq(stages[2]),
            queue.i.payload.eq(table + low + (high << HALF)),
        ]
        m.d.sync += [
            stages.eq(Cat(self.indices.enable, stages[:2])),
            index.eq(self.indices.data),
            low.eq(index[:HALF] * pitch),
            high.eq(index[HALF:] * pitch),
        ]
        with m.If(self.indices.enable):
            m.d.sync += [place.eq(place + INDEX_BYTES), left.eq(left - 1), finds.eq(left != 1)]
        with m.If(self.free):  # all rows that there were are found
            m.d.sync += [table.eq(entry.memory), pitch.eq(entry.pitch), place.eq(entry.b), left.eq(entry.m)]
        with m.If(self.taken & entry.indexed):
            m.d.sync += finds.eq(entry.m != 0)
