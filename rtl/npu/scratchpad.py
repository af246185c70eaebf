"""Local memories: the banked scratchpad with its crossbar, and the accumulator."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out, Signature

from siliconloom.arch import timing
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bytes import PartSelect
from siliconloom.rtl.npu.circuits import readers, sums_readers, sums_writers, writers
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write, sums_read, sums_write

GROUP = 4
"""Banks of a `Group`."""


def bank_read(size: int, address: int, banks: int = 1) -> Signature:
    """A read port of some banks, as its user has it: a bit per bank, whether the ``address`` is in it."""
    return Signature({"here": Out(banks), "address": Out(address), "data": In(8 * size)})


def bank_write(size: int, address: int, banks: int = 1) -> Signature:
    """A write port of some banks, as its user has it, with an enable per byte."""
    return Signature({"here": Out(banks), "address": Out(address), "enable": Out(size), "data": Out(8 * size)})


def bank_ports(geometry: Geometry, banks: int = 1) -> dict[str, Any]:
    """The ports of some banks by name."""
    within = log2(geometry.bank_bytes)
    ports = {name: In(bank_read(size, within, banks)) for name, size in readers(geometry).items()}
    return ports | {name: In(bank_write(size, within, banks)) for name, size in writers(geometry).items()}


class Bank(Circuit):
    """One bank: a memory, whichever port asks it, and the part of a line that each reader wants.

    Members
    -------
    <reader> : In(bank_read)
        Data come one cycle later, zero when the address was not in this bank.
    <writer> : In(bank_write)
        Writes when the address is in this bank.
    conflict : Out(1)
        Two users of one side.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__(library, library.name("bank"), {"conflict": Out(1), **bank_ports(geometry)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        line, lines = geometry.line, geometry.bank_bytes // geometry.line
        low = log2(line)
        sram = self.library.make(SramWrapper, 8 * line, lines, 8)
        reads = {name: getattr(self, name) for name in readers(geometry)}
        read_line, here = Signal(range(max(lines, 2))), [port.here for port in reads.values()]
        for port in reversed(reads.values()):
            with m.If(port.here):
                m.d.comb += read_line.eq(port.address[low:])
        write_line, enables, word = Signal(range(max(lines, 2))), Signal(line), Signal(8 * line)
        for name, size in reversed(writers(geometry).items()):
            port = getattr(self, name)
            wanted = port.enable
            if size < line:
                chosen = port.address[log2(size) : low]
                wanted = Cat(*(Mux(chosen == part, wanted, 0) for part in range(line // size)))
            with m.If(port.here):
                m.d.comb += [
                    write_line.eq(port.address[low:]),
                    enables.eq(wanted),
                    word.eq(Cat(*[port.data] * (line // size))),
                ]
        stored = self.place(
            m, sram, "memory", ren=Cat(*here).any(), raddr=read_line, wen=enables, waddr=write_line, wdata=word
        ).rdata
        for name, size in readers(geometry).items():
            was_here, part = Signal(name=f"{name}_was_here"), stored
            m.d.sync += was_here.eq(reads[name].here)
            if size < line:
                place = Signal(low - log2(size), name=f"{name}_part")
                m.d.sync += place.eq(reads[name].address[log2(size) : low])
                select = self.library.make(PartSelect, 8 * line, 8 * size)
                part = self.place(m, select, f"{name}_select", word=stored, part=place).o
            m.d.comb += reads[name].data.eq(Mux(was_here, part, 0))
        users = [here, [getattr(self, name).here for name in writers(geometry)]]
        m.d.comb += self.conflict.eq(Cat(*(several(side) for side in users)).any())
        return m


class Group(Circuit):
    """Some banks: a scratchpad in small, so that wide words meet in a tree.

    Members
    -------
    <reader>, <writer>, conflict
        As for `Bank`, with a bit of ``here`` per bank.
    """

    def __init__(self, library: Library, geometry: Geometry, count: int) -> None:
        self.geometry, self.count = geometry, count
        super().__init__(library, library.name("banks"), {"conflict": Out(1), **bank_ports(geometry, count)})

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        kind = self.library.make(Bank, self.geometry)
        banks = [self.place(m, kind, f"bank_{bank}") for bank in range(self.count)]
        for number, bank in enumerate(banks):
            for name in (*readers(self.geometry), *writers(self.geometry)):
                ours, its = getattr(self, name), getattr(bank, name)
                m.d.comb += [its.here.eq(ours.here[number]), its.address.eq(ours.address)]
                if name in writers(self.geometry):
                    m.d.comb += [its.enable.eq(ours.enable), its.data.eq(ours.data)]
        for name in readers(self.geometry):
            m.d.comb += getattr(self, name).data.eq(any_of([getattr(bank, name).data for bank in banks]))
        m.d.comb += self.conflict.eq(any_of([bank.conflict for bank in banks]))
        return m


class ScratchpadCircuit(Circuit):
    """Banks of one read and one write port each; a bank is one contiguous range of addresses.

    Every access lies within one window of its own size. In a cycle in which two ports want the same side of a bank the
    one named first is served and ``conflict`` is raised: programs give each side of a bank one user at a time.

    Members
    -------
    <reader> : In(local_read)
        A read port of a unit, by the name in the unit's row.
    <writer> : In(local_write)
        A write port of a unit.
    conflict, outside : Out(1)
        Pulses: two users of one side of a bank; an address beyond the last bank.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports: dict[str, Any] = {"conflict": Out(1), "outside": Out(1)}
        ports |= {name: In(local_read(size)) for name, size in readers(geometry).items()}
        ports |= {name: In(local_write(size)) for name, size in writers(geometry).items()}
        super().__init__(library, library.name("scratchpad"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        high = log2(geometry.bank_bytes)
        ports = {name: getattr(self, name) for name in (*readers(geometry), *writers(geometry))}
        asked = {name: Signal(name=f"{name}_asks") for name in ports}
        m.d.comb += [asks.eq(ports[name].enable.any()) for name, asks in asked.items()]
        size = min(GROUP, geometry.banks)
        kind = self.library.make(Group, geometry, size)
        here = {
            name: Cat(*(asked[name] & (port.address[high:] == bank) for bank in range(geometry.banks)))
            for name, port in ports.items()
        }
        groups = []
        for first in range(0, geometry.banks, size):
            group = self.place(m, kind, f"banks_{first}")
            for name, port in ports.items():
                its = getattr(group, name)
                m.d.comb += [its.here.eq(here[name][first : first + size]), its.address.eq(port.address[:high])]
                if name in writers(geometry):
                    m.d.comb += [its.enable.eq(port.enable), its.data.eq(port.data)]
            groups.append(group)
        for name in readers(geometry):
            m.d.comb += ports[name].data.eq(any_of([getattr(group, name).data for group in groups]))
        beyond = (asked[name] & (port.address >= geometry.banks << high) for name, port in ports.items())
        m.d.comb += [
            self.conflict.eq(any_of([group.conflict for group in groups])),
            self.outside.eq(Cat(*beyond).any()),
        ]
        return m


def any_of(words: list[Signal]) -> Value:
    """All words, one bit over the other, as a tree."""
    values: list[Value] = list(words)
    while len(values) > 1:
        pairs = [a | b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0]


class AdderLane(Circuit):
    """One sum of the accumulator: what the array brings, with or without what is there, and the last total again.

    Members
    -------
    add, forward : In(1)
        Add what is there; what is there is the last total, which the memory does not return yet.
    sums, memory : In(32)
        From the array, one cycle before its line is in ``memory``; from the memory.
    total : Out(32)
        To the memory.
    """

    def __init__(self, library: Library) -> None:
        ports = {"add": In(1), "forward": In(1), "sums": In(32), "memory": In(32), "total": Out(32)}
        super().__init__(library, library.name("adder"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        sums, held = Signal(32), Signal(32)
        before = Mux(self.forward, held, self.memory)
        m.d.comb += self.total.eq((sums + Mux(self.add, before, 0))[:32])
        m.d.sync += [sums.eq(self.sums), held.eq(self.total)]
        return m


def several(bits: list[Signal]) -> Signal:
    """Whether more than one of ``bits`` is set."""
    seen, twice = bits[0], 0
    for bit in bits[1:]:
        twice, seen = twice | (seen & bit), seen | bit
    return twice


class AccumulatorCircuit(Circuit):
    """Lines of 32-bit sums, which some units add to or replace and others read.

    Every reader has a copy of the memory to itself. Writers share one side: in a cycle in which two write, the one
    named first is served and ``conflict`` is raised. Programs give that side one user.

    Members
    -------
    <unit>_writes : In(sums_write)
        Of every unit whose row says that it writes sums, in the order of the units' codes.
    <unit>_reads : In(sums_read)
        Of every unit whose row says that it reads them.
    outside : Out(1)
        Pulse: a line beyond the last one.
    conflict : Out(1)
        Pulse: two units write; only where more than one can.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        self.writers, self.readers = sums_writers(), sums_readers()
        ports: dict[str, Any] = {f"{unit}_writes": In(sums_write(geometry)) for unit in self.writers}
        ports |= {f"{unit}_reads": In(sums_read(geometry)) for unit in self.readers}
        ports |= {"outside": Out(1)} | ({"conflict": Out(1)} if len(self.writers) > 1 else {})
        super().__init__(library, library.name("accumulator"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("ACCUMULATOR_WRITE", sums_beside_what_is_there=SramWrapper.LATENCY)
        lines, bits = self.geometry.accumulator_lines, 8 * self.geometry.results
        sram = self.library.make(SramWrapper, bits, lines)
        depth = log2(lines)
        writes, reads = (
            [getattr(self, f"{unit}_{side}") for unit in units]
            for side, units in (("writes", self.writers), ("reads", self.readers))
        )
        wanted = self._wanted(m, writes)
        valid, line, add, forward = Signal(), Signal(depth), Signal(), Signal()
        total = Signal(bits)
        # One copy for adding, and one for every reader.
        own = self.place(
            m, sram, "sums_copy", ren=wanted.enable, raddr=wanted.line[:depth], wen=valid, waddr=line, wdata=total
        )
        for unit, port in zip(self.readers, reads, strict=True):
            copy = self.place(
                m, sram, f"{unit}_copy", ren=port.enable, raddr=port.line[:depth], wen=valid, waddr=line, wdata=total
            )
            m.d.comb += port.data.eq(copy.rdata)
        lanes = [
            self.place(
                m,
                self.library.make(AdderLane),
                f"lane_{i}",
                add=add,
                forward=forward,
                sums=wanted.data[32 * i : 32 * i + 32],
                memory=own.rdata[32 * i : 32 * i + 32],
            ).total
            for i in range(bits // 32)
        ]
        m.d.comb += [
            total.eq(Cat(*lanes)),
            self.outside.eq(Cat(*(port.enable & (port.line >= lines) for port in (*writes, *reads))).any()),
        ]
        m.d.sync += [
            valid.eq(wanted.enable),
            line.eq(wanted.line),
            add.eq(wanted.add),
            # the line being written now is the one being read now: memory returns the old one
            forward.eq(valid & wanted.enable & (line == wanted.line[:depth])),
        ]
        return m

    def _wanted(self, m: Module, writes: list[Any]) -> Any:
        """What is written in this cycle, by whomever."""
        if len(writes) == 1:
            return writes[0]
        wanted = sums_write(self.geometry).create(path=("wanted",))
        for port in reversed(writes):
            with m.If(port.enable):
                m.d.comb += [getattr(wanted, name).eq(getattr(port, name)) for name in wanted.signature.members]
        m.d.comb += self.conflict.eq(several([port.enable for port in writes]))
        return wanted
