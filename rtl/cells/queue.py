"""A queue of any depth: what stands between two parts that do not always agree on the moment."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from siliconloom.arch.errors import LoomError
from siliconloom.rtl.cells.arithmetic import one_less
from siliconloom.rtl.library import Circuit, Library

REGISTER_BITS = 1024
"""A queue of more than two entries and more bits than this keeps them in a memory with a combinational read port."""


class Queue(Circuit):
    """Stream buffer of ``depth`` entries, first in first out.

    An entry accepted in cycle t is offered from cycle t + 1 on; the place of one taken in cycle t is free in t + 1.
    ``i.ready`` and ``o.valid`` are registers, and a depth of two or more passes one entry per cycle
    (a depth of one passes every second cycle). Of more than two entries the one in front stands in registers of its
    own, too: what is decided by it need not wait until it has been chosen among all.

    Parameters
    ----------
    width
        Bits of the payload; at least 1.
    depth
        Entries; at least 1.

    Members
    -------
    i : In(stream.Signature(width))
        Incoming entries.
    o : Out(stream.Signature(width))
        Outgoing entries; one that is offered stays until it is taken.
    level : Out(range(depth + 1))
        Entries inside, a register.
    """

    LATENCY = 1
    """Cycles from an entry being accepted to its being offered, and from one being taken to its place being free."""

    def __init__(self, library: Library, width: int, depth: int) -> None:
        for name, value in (("width", width), ("depth", depth)):
            if value < 1:
                raise LoomError(f"the {name} of a queue is at least 1 (got {value})")
        self.width, self.depth = width, depth
        ports = {"i": In(stream.Signature(width)), "o": Out(stream.Signature(width)), "level": Out(range(depth + 1))}
        super().__init__(library, library.name("queue", f"{width}x{depth}"), ports, reset=True)
        # Members of the object rather than of `elaborate`: the proofs state their invariants over them.
        self.write_slot = Signal(range(depth))
        self.read_slot = Signal(range(depth))
        self.front = Signal(width, reset_less=True) if has_front(depth) else None
        self.memory: Memory | None = None
        self.registers: list[Signal] = []
        if in_memory(width, depth):
            self.memory = Memory(shape=width, depth=depth, init=[])
            self.writes, self.reads = self.memory.write_port(), self.memory.read_port(domain="comb")
            self.write_slot = self.writes.addr
            self.write_slot.name = "write_slot"
        else:
            self.registers = [Signal(width, name=f"entry_{i}", reset_less=True) for i in range(depth)]

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        push = Signal()
        pop = Signal()
        free, filled = Signal(init=1), Signal()
        m.d.comb += [
            self.i.ready.eq(free),
            self.o.valid.eq(filled),
            push.eq(self.i.valid & self.i.ready),
            pop.eq(self.o.valid & self.o.ready),
        ]
        with m.If(push & ~pop):
            m.d.sync += [self.level.eq(self.level + 1), free.eq(~is_value(self.level, self.depth - 1)), filled.eq(1)]
        with m.Elif(pop & ~push):
            m.d.sync += [self.level.eq(one_less(self.level)), free.eq(1), filled.eq(~is_value(self.level, 1))]
        if self.depth > 1:
            with m.If(push):
                m.d.sync += self.write_slot.eq(self.after(self.write_slot))
            with m.If(pop):
                m.d.sync += self.read_slot.eq(self.after(self.read_slot))
        shown = self.store(m, self.i.ready)
        if self.front is None:
            m.d.comb += self.o.payload.eq(shown)
            return m
        several = Signal()
        m.d.comb += [several.eq(self.level[1:].any()), self.o.payload.eq(self.front)]
        # pops come late, so they tell only when; what comes in next is there before it is pushed
        with m.If(pop | ~self.o.valid):
            m.d.sync += self.front.eq(Mux(several, shown, self.i.payload))
        return m

    def after(self, slot: Signal) -> Signal:
        """The slot that follows."""
        return Mux(slot == self.depth - 1, 0, slot + 1)

    def store(self, m: Module, writes: Value) -> Value:
        """In a cycle of ``writes`` keep what is offered in ``write_slot``: whether it is pushed is known too late.

        Returns what is in ``read_slot``, or in the slot behind it if that one is in front.
        """
        shown = self.read_slot
        if self.front is not None:
            shown = Signal.like(self.read_slot, name="next_slot")
            m.d.comb += shown.eq(self.after(self.read_slot))
        if self.memory is None:
            for slot, entry in enumerate(self.registers):
                with m.If(writes & is_value(self.write_slot, slot)):
                    m.d.sync += entry.eq(self.i.payload)
            return chosen(self.registers, shown)
        m.submodules.memory = self.memory
        m.d.comb += [self.writes.en.eq(writes), self.writes.data.eq(self.i.payload), self.reads.addr.eq(shown)]
        return self.reads.data


def is_value(signal: Signal, value: int) -> Value:
    """Whether a signal has a value, bit by bit: Yosys shortens a constant, which Verilator then complains of."""
    return Cat(bit if value >> i & 1 else ~bit for i, bit in enumerate(signal)).all()


def has_front(depth: int) -> bool:
    """Whether the entry in front of a queue stands in registers of its own."""
    return depth > 2


def in_memory(width: int, depth: int) -> bool:
    """Whether a queue keeps its entries in a memory, and not in registers."""
    return depth > 2 and width * depth > REGISTER_BITS


def chosen(entries: list[Signal], index: Value) -> Value:
    """The entry at ``index``, by a tree of two-way multiplexers: those of more ways are written as odd Verilog."""
    if len(entries) == 1:
        return entries[0]
    half = 1 << ((len(entries) - 1).bit_length() - 1)
    bit = half.bit_length() - 1
    return Mux(index[bit], chosen(entries[half:], index), chosen(entries[:half], index))
