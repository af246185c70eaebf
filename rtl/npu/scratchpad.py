"""Local memories: the banked scratchpad with its crossbar, and the accumulator."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bytes import PartSelect
from siliconloom.rtl.npu.circuits import readers, writers
from siliconloom.rtl.npu.geometry import LOCAL_BITS, Geometry, log2

GROUP = 4
"""Banks of a `Group`."""


class Bank(Circuit):
    """One bank: a memory, whichever port asks it, and the part of a line that each reader wants.

    Members
    -------
    <reader>, <reader>_address, <reader>_data
        Read, when the address is in this bank; data one cycle later, zero when it was not.
    <writer>, <writer>_address, <writer>_data
        Write, when the address is in this bank: an enable per byte.
    <port>_here : In(1)
        The address is in this bank.
    conflict : Out(1)
        Two users of one side.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        within = log2(geometry.bank_bytes)
        ports = {"conflict": Out(1)}
        for name, size in readers(geometry).items():
            ports |= {f"{name}_here": In(1), f"{name}_address": In(within), f"{name}_data": Out(8 * size)}
        for name, size in writers(geometry).items():
            ports |= {
                f"{name}_here": In(1),
                f"{name}_address": In(within),
                name: In(size),
                f"{name}_data": In(8 * size),
            }
        super().__init__(library, library.name("bank"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        line, lines = geometry.line, geometry.bank_bytes // geometry.line
        low = log2(line)
        sram = self.library.make(SramWrapper, 8 * line, lines, 8)
        read_line, here = Signal(range(max(lines, 2))), [getattr(self, f"{name}_here") for name in readers(geometry)]
        for name in reversed(readers(geometry)):
            with m.If(getattr(self, f"{name}_here")):
                m.d.comb += read_line.eq(getattr(self, f"{name}_address")[low:])
        write_line, enables, word = Signal(range(max(lines, 2))), Signal(line), Signal(8 * line)
        for name, size in reversed(writers(geometry).items()):
            address = getattr(self, f"{name}_address")
            wanted = getattr(self, name)
            if size < line:
                chosen = address[log2(size) : low]
                wanted = Cat(*(Mux(chosen == part, wanted, 0) for part in range(line // size)))
            with m.If(getattr(self, f"{name}_here")):
                m.d.comb += [
                    write_line.eq(address[low:]),
                    enables.eq(wanted),
                    word.eq(Cat(*[getattr(self, f"{name}_data")] * (line // size))),
                ]
        stored = self.place(
            m, sram, "memory", ren=Cat(*here).any(), raddr=read_line, wen=enables, waddr=write_line, wdata=word
        )["rdata"]
        for name, size in readers(geometry).items():
            was_here, part = Signal(name=f"{name}_was_here"), stored
            m.d.sync += was_here.eq(getattr(self, f"{name}_here"))
            if size < line:
                place = Signal(low - log2(size), name=f"{name}_part")
                m.d.sync += place.eq(getattr(self, f"{name}_address")[log2(size) : low])
                select = self.library.make(PartSelect, 8 * line, 8 * size)
                part = self.place(m, select, f"{name}_select", word=stored, part=place)["o"]
            m.d.comb += getattr(self, f"{name}_data").eq(Mux(was_here, part, 0))
        users = [here, [getattr(self, f"{name}_here") for name in writers(geometry)]]
        m.d.comb += self.conflict.eq(Cat(*(several(side) for side in users)).any())
        return m


class Group(Circuit):
    """Some banks: a scratchpad in small, so that wide words meet in a tree.

    Members
    -------
    <reader>, <reader>_address, <reader>_data; <writer>, <writer>_address, <writer>_data; conflict
        As for `Bank`.
    <port>_here : In
        A bit per bank: the address is in it.
    """

    def __init__(self, library: Library, geometry: Geometry, count: int) -> None:
        self.geometry, self.count = geometry, count
        ports = {
            name: member for name, member in library.make(Bank, geometry).signature.members.items() if name != "clk"
        }
        ports |= {name: In(count) for name in ports if name.endswith("_here")}
        super().__init__(library, library.name("banks"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        kind = self.library.make(Bank, self.geometry)
        inputs = [name for name, member in kind.signature.members.items() if member.flow == In and name != "clk"]
        banks = []
        for bank in range(self.count):
            wired = {
                name: getattr(self, name)[bank] if name.endswith("_here") else getattr(self, name) for name in inputs
            }
            banks.append(self.place(m, kind, f"bank_{bank}", **wired))
        for name in (*(f"{reader}_data" for reader in readers(self.geometry)), "conflict"):
            m.d.comb += getattr(self, name).eq(any_of([bank[name] for bank in banks]))
        return m


class ScratchpadCircuit(Circuit):
    """Banks of one read and one write port each; a bank is one contiguous range of addresses.

    Every access lies within one window of its own size. In a cycle in which two ports want the same side of a bank the
    one named first is served and ``conflict`` is raised: programs give each side of a bank one user at a time.

    Members
    -------
    <reader>, <reader>_address, <reader>_data
        Read; data one cycle later.
    <writer>, <writer>_address, <writer>_data
        Write: an enable per byte.
    conflict, outside : Out(1)
        Pulses: two users of one side of a bank; an address beyond the last bank.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        ports = {"conflict": Out(1), "outside": Out(1)}
        for name, size in readers(geometry).items():
            ports |= {name: In(1), f"{name}_address": In(LOCAL_BITS), f"{name}_data": Out(8 * size)}
        for name, size in writers(geometry).items():
            ports |= {name: In(size), f"{name}_address": In(LOCAL_BITS), f"{name}_data": In(8 * size)}
        super().__init__(library, library.name("scratchpad"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        high = log2(geometry.bank_bytes)
        names = [*readers(geometry), *writers(geometry)]
        asked = {name: Signal(name=f"{name}_asks") for name in names}
        m.d.comb += [asks.eq(getattr(self, name).any()) for name, asks in asked.items()]
        address = {name: getattr(self, f"{name}_address") for name in names}
        size = min(GROUP, geometry.banks)
        kind = self.library.make(Group, geometry, size)
        here = {
            name: Cat(*(asked[name] & (address[name][high:] == bank) for bank in range(geometry.banks)))
            for name in names
        }
        groups = []
        for first in range(0, geometry.banks, size):
            inputs = {f"{name}_here": here[name][first : first + size] for name in names}
            inputs |= {f"{name}_address": address[name][:high] for name in names}
            for name in writers(geometry):
                inputs |= {name: getattr(self, name), f"{name}_data": getattr(self, f"{name}_data")}
            groups.append(self.place(m, kind, f"banks_{first}", **inputs))
        for name in readers(geometry):
            m.d.comb += getattr(self, f"{name}_data").eq(any_of([group[f"{name}_data"] for group in groups]))
        m.d.comb += [
            self.conflict.eq(any_of([group["conflict"] for group in groups])),
            self.outside.eq(Cat(*(asked[n] & (address[n] >= geometry.banks << high) for n in names)).any()),
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
    """Lines of 32-bit sums: the array's results are added to or replace them, the vector unit reads them.

    Members
    -------
    valid, line, add, sums : In
        A line of results from the array: replaces line ``line``, or is added to it. Held two cycles later.
    read, read_line, read_data
        The vector unit's port; data one cycle later.
    outside : Out(1)
        Pulse: a line beyond the last one.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        bits = 8 * geometry.results
        ports = {
            "valid": In(1),
            "line": In(LOCAL_BITS),
            "add": In(1),
            "sums": In(bits),
            "read": In(1),
            "read_line": In(LOCAL_BITS),
            "read_data": Out(bits),
            "outside": Out(1),
        }
        super().__init__(library, library.name("accumulator"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("ACCUMULATOR_WRITE", sums_beside_what_is_there=SramWrapper.LATENCY)
        lines, bits = self.geometry.accumulator_lines, 8 * self.geometry.results
        sram = self.library.make(SramWrapper, bits, lines)
        depth = log2(lines)
        valid, line, add, forward = Signal(), Signal(depth), Signal(), Signal()
        total = Signal(bits)
        # Two copies, so that adding and reading each have a read port.
        own = self.place(
            m, sram, "sums_copy", ren=self.valid, raddr=self.line[:depth], wen=valid, waddr=line, wdata=total
        )
        other = self.place(
            m, sram, "read_copy", ren=self.read, raddr=self.read_line[:depth], wen=valid, waddr=line, wdata=total
        )
        lanes = [
            self.place(
                m,
                self.library.make(AdderLane),
                f"lane_{i}",
                add=add,
                forward=forward,
                sums=self.sums[32 * i : 32 * i + 32],
                memory=own["rdata"][32 * i : 32 * i + 32],
            )["total"]
            for i in range(bits // 32)
        ]
        m.d.comb += [
            total.eq(Cat(*lanes)),
            self.read_data.eq(other["rdata"]),
            self.outside.eq((self.valid & (self.line >= lines)) | (self.read & (self.read_line >= lines))),
        ]
        m.d.sync += [
            valid.eq(self.valid),
            line.eq(self.line),
            add.eq(self.add),
            # the line being written now is the one being read now: memory returns the old one
            forward.eq(valid & self.valid & (line == self.line[:depth])),
        ]
        return m
