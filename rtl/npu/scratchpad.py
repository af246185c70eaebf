"""Local memories: the banked scratchpad with its crossbar, and the accumulator."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib.wiring import In, Out, Signature

from siliconloom.arch import timing
from siliconloom.arch.layout import is_power
from siliconloom.arch.vector import RISE_LIMIT, ROW_LIMIT
from siliconloom.rtl.cells.float_functions import lowered
from siliconloom.rtl.cells.floating import SUM_CUTS, float_sum
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bytes import PartSelect, WindowSelect, Written
from siliconloom.rtl.npu.circuits import readers, rises_writers, sums_readers, sums_writers, unit_circuits, writers
from siliconloom.rtl.npu.depth import cut_at, delayed
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SLOTS, Geometry, log2
from siliconloom.rtl.npu.interfaces import local_read, local_write, rises_write, sums_read, sums_write
from siliconloom.rtl.npu.narrow import repeated

GROUP = 4
"""Banks of the smallest `Group`, and groups of each larger one."""


def bank_read(size: int, address: int, banks: int = 1) -> Signature:
    """A read port of some banks, as its user has it: a bit per bank, whether the ``address`` is in it.

    Where accesses begin anywhere, ``after`` has a bit per bank, too: whether it has the line after that of the
    ``address``, and bytes of that one are needed.
    """
    after = {} if is_power(size) else {"after": Out(banks)}
    return Signature({"here": Out(banks), **after, "address": Out(address), "data": In(8 * size)})


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
        widest = max(writers(geometry).values())
        write_line, enables, word = Signal(range(max(lines, 2))), Signal(line), Signal(8 * widest)
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
                    word.eq(Cat(*[port.data] * (widest // size))),
                ]
        everywhere = Cat(*[word] * (line // widest))
        stored = self.place(
            m, sram, "memory", ren=Cat(*here).any(), raddr=read_line, wen=enables, waddr=write_line, wdata=everywhere
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
        users = users_before(m, here, [getattr(self, name).here for name in writers(geometry)])
        m.d.comb += self.conflict.eq(Cat(*(several(side) for side in users)).any())
        return m


class HalvedBank(Bank):
    """One bank of which two adjoining lines are read in a cycle: even lines lie in one memory, odd ones in another."""

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        line, lines, low = geometry.line, geometry.bank_bytes // geometry.line, log2(geometry.line)
        sram = self.library.make(SramWrapper, 8 * line, lines // 2, 8)
        reads = {name: getattr(self, name) for name in readers(geometry)}
        after = {name: port.after if "after" in port.signature.members else 0 for name, port in reads.items()}
        stored, widest = [], max(writers(geometry).values())
        for half, name in enumerate(("even", "odd")):
            read_line, write_line = (
                Signal(range(max(lines // 2, 2)), name=f"{name}_{use}") for use in ("read", "write")
            )
            enables, word, asks = Signal(line, name=f"{name}_enables"), Signal(8 * widest, name=f"{name}_word"), []
            for reader, port in reversed(reads.items()):
                is_odd = port.address[low]
                wants = Signal(name=f"{name}_{reader}")
                m.d.comb += wants.eq(Mux(is_odd == half, port.here, after[reader]))
                asks.append(wants)
                with m.If(wants):  # the line after an odd one is the next even one
                    m.d.comb += read_line.eq(port.address[low + 1 :] + (0 if half else is_odd))
            for writer, size in reversed(writers(geometry).items()):
                port = getattr(self, writer)
                chosen = port.address[log2(size) : low]
                parts = (
                    port.enable if size == line else Mux(chosen == part, port.enable, 0) for part in range(line // size)
                )
                with m.If(port.here & (port.address[low] == half)):
                    m.d.comb += [
                        write_line.eq(port.address[low + 1 :]),
                        enables.eq(Cat(*parts)),
                        word.eq(Cat(*[port.data] * (widest // size))),
                    ]
            wen, wdata = enables, Cat(*[word] * (line // widest))
            found = self.place(
                m, sram, name, ren=Cat(*asks).any(), raddr=read_line, wen=wen, waddr=write_line, wdata=wdata
            )
            stored.append(found.rdata)
        for name, size in readers(geometry).items():
            port = reads[name]
            at, was_here, was_after = (
                Signal(low + 1, name=f"{name}_at"),
                Signal(name=f"{name}_here"),
                Signal(name=f"{name}_after"),
            )
            m.d.sync += [at.eq(port.address), was_here.eq(port.here), was_after.eq(after[name])]
            both = [Mux(was_here, Mux(at[low], stored[1], stored[0]), 0)]
            if is_power(size):
                select = self.library.make(WindowSelect, 8 * line, 8 * size, 8 * size)
                first = at[log2(size) : low] if size < line else 0
            else:
                both.append(Mux(was_after, Mux(at[low], stored[0], stored[1]), 0))
                select, first = self.library.make(WindowSelect, 16 * line, 8 * size, 8), at[:low]
            word = Signal(8 * line * len(both), name=f"{name}_lines")
            m.d.comb += word.eq(Cat(*both))
            m.d.comb += port.data.eq(self.place(m, select, f"{name}_select", word=word, first=first).o)
        reading = [port.here | after[name] for name, port in reads.items()]
        sides = users_before(m, reading, [getattr(self, name).here for name in writers(geometry)])
        m.d.comb += self.conflict.eq(Cat(*(several(side) for side in sides)).any())
        return m


def bank_kind(geometry: Geometry) -> type[Circuit]:
    """The circuit of a bank: in halves where an access may begin anywhere, and so touch two lines."""
    return Bank if all(is_power(size) for size in readers(geometry).values()) else HalvedBank


class Group(Written):
    """Some banks: a scratchpad in small, so that wide words meet in a tree.

    It is written in Verilog: whoever elaborates a circuit looks at each bit of every word that leaves a part of it.
    Of more than `GROUP` banks it is `GROUP` smaller ones.

    Members
    -------
    <reader>, <writer>, conflict
        As for `Bank`, with a bit of ``here`` per bank.
    """

    def __init__(self, library: Library, geometry: Geometry, count: int) -> None:
        self.geometry, self.count = geometry, count
        name = library.name("banks", count) if count > GROUP else library.name("banks")
        super().__init__(library, name, {"conflict": Out(1), **bank_ports(geometry, count)})
        self.body = self._body()

    def _body(self) -> str:
        """The banks, or groups of them, each with its bits of what has one per bank, and all that they read joined."""
        size, what = (1, "bank") if self.count <= GROUP else (self.count // GROUP, "banks")
        make, geometry = self.library.make, self.geometry
        kind = make(bank_kind(geometry), geometry) if size == 1 else make(Group, geometry, size)
        firsts, lines = range(0, self.count, size), list[str]()
        per_bank = {f"{name}_{each}" for name in (*readers(geometry), *writers(geometry)) for each in ("here", "after")}
        outputs = {name: port.width for name, port in kind.ports().items() if not port.is_input}
        for first in firsts:
            joined = []
            for name, port in kind.ports().items():
                to = name
                if name in outputs:
                    to = f"{what}_{first}_{name}"
                    lines.append(f"  wire {f'[{port.width - 1}:0] ' if port.width > 1 else ''}{to};")
                elif name in per_bank and self.count > 1:
                    to = f"{name}[{first + size - 1}:{first}]" if size > 1 else f"{name}[{first}]"
                joined.append(f".{name}({to})")
            lines += [f"  {kind.module_name} {what}_{first} (", ",\n".join(f"    {each}" for each in joined), "  );"]
        for name in outputs:
            lines.append(f"  assign {name} = {' | '.join(f'{what}_{first}_{name}' for first in firsts)};")
        return "\n".join(lines)


def group_size(banks: int) -> int:
    """Banks of each group that a scratchpad of so many banks is made of: several groups, and none of them in part."""
    size = min(GROUP, banks)
    while size * GROUP < banks and banks % (size * GROUP) == 0:
        size *= GROUP
    return size


class ScratchpadCircuit(Circuit):
    """Banks of one read and one write port each; a bank is one contiguous range of addresses.

    An access of a power of two lies within one window of its own size, any other anywhere, in two lines at most. In a
    cycle in which two ports want the same side of a bank the one named first is served and ``conflict`` is raised:
    programs give each side of a bank one user at a time.

    Members
    -------
    <reader> : In(local_read)
        A read port of a unit, by the name in the unit's row.
    <writer> : In(local_write)
        A write port of a unit.
    conflict, outside : Out(1)
        Pulses: two users of one side of a bank in the cycle before; an address beyond the last bank.
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
        size = group_size(geometry.banks)
        kind = self.library.make(Group, geometry, size)
        here = {
            name: Cat(*(asked[name] & (port.address[high:] == bank) for bank in range(geometry.banks)))
            for name, port in ports.items()
        }
        # of an access that begins anywhere: whether bytes of the next line are needed, and the bank that has it
        after: dict[str, Value] = {}
        beyond: list[Value] = []
        low = log2(geometry.line)
        for name, bytes_ in readers(geometry).items():
            if is_power(bytes_):
                continue
            port = ports[name]
            needed, next_line = Signal(name=f"{name}_needs_more"), Signal(LOCAL_BITS + 1 - low, name=f"{name}_next")
            m.d.comb += [
                needed.eq(asked[name] & ((port.address[:low] + port.bytes) > geometry.line)),
                next_line.eq(port.address[low:] + 1),
            ]
            bank = next_line[high - low :]
            after[name] = Cat(*(needed & (bank == number) for number in range(geometry.banks)))
            beyond.append(needed & (bank >= geometry.banks))
        groups = []
        for first in range(0, geometry.banks, size):
            group = self.place(m, kind, f"banks_{first}")
            for name, port in ports.items():
                its = getattr(group, name)
                m.d.comb += [its.here.eq(here[name][first : first + size]), its.address.eq(port.address[:high])]
                if name in after:
                    m.d.comb += its.after.eq(after[name][first : first + size])
                if name in writers(geometry):
                    m.d.comb += [its.enable.eq(port.enable), its.data.eq(port.data)]
            groups.append(group)
        for name in readers(geometry):
            m.d.comb += ports[name].data.eq(any_of([getattr(group, name).data for group in groups]))
        beyond += [asked[name] & (port.address >= geometry.banks << high) for name, port in ports.items()]
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
    add, forward, hold : In(1)
        Add what is there; what is there is the last total that was held, which the memory does not return yet; hold
        this one.
    sums, memory : In(32)
        From the array, one cycle before its line is in ``memory``; from the memory.
    fall, under : In
        Where sums are rescaled: what is there is first divided by 2^``fall``, halves to even; its bits below the half.
    total : Out(32)
        To the memory.
    """

    MOST = 33
    """A power of two that leaves nothing of any sum."""

    def __init__(self, library: Library) -> None:
        ports = {"add": In(1), "forward": In(1), "hold": In(1), "sums": In(32), "memory": In(32), "total": Out(32)}
        ports |= {"fall": In(range(self.MOST + 1)), "under": In(self.MOST)}
        super().__init__(library, library.name("adder"), ports)
        self.held = Signal(32)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        sums, up = Signal(32), Signal()
        before = Signal(signed(32))
        older, below, floor, half = Signal(signed(self.MOST)), Signal(), Signal(32), Signal()
        m.d.comb += [
            before.eq(Mux(self.forward, self.held, self.memory)),
            older.eq(before),
            # the half is the last bit that is shifted out
            Cat(half, floor).eq(Cat(Const(0, 1), older).as_signed() >> self.fall),
            below.eq((self.under & older).any()),
            up.eq(self.add & half & (below | floor[0])),
            # rounding up is the carry of the addition that is there anyway
            self.total.eq((Cat(Const(1, 1), sums) + Cat(up, Mux(self.add, floor, 0)))[1:33]),
        ]
        m.d.sync += sums.eq(self.sums)
        with m.If(self.hold):
            m.d.sync += self.held.eq(self.total)
        return m


class FloatAdderLane(Circuit):
    """One sum of the accumulator in fp32; members as of `AdderLane`, without ``under``.

    A sum that replaces what is there stays as it came. What falls below the smallest normal number is a zero. An
    addition of several ``stages`` gives its total as many cycles less one later, when ``hold`` is meant.
    """

    def __init__(self, library: Library, stages: int = 1) -> None:
        self.stages = stages
        ports = {"add": In(1), "forward": In(1), "hold": In(1), "sums": In(32), "memory": In(32), "total": Out(32)}
        ports |= {"fall": In(range(RISE_LIMIT + 1))}
        super().__init__(library, library.name("adder"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        sums, held, before = Signal(32), Signal(32), Signal(32)
        m.d.comb += before.eq(lowered(Mux(self.forward, held, self.memory), self.fall))
        added = float_sum(m, "sum", before, sums, cut_at(m, "sum", SUM_CUTS[self.stages]))
        adds, alone = (
            delayed(m, name, value, self.stages - 1) for name, value in (("adds", self.add), ("alone", sums))
        )
        m.d.comb += self.total.eq(Mux(adds, added, alone))
        m.d.sync += sums.eq(self.sums)
        with m.If(self.hold):
            m.d.sync += held.eq(self.total)
        return m


def users_before(m: Module, *sides: list[Value]) -> list[list[Signal]]:
    """Which ports wanted each side of a bank in the cycle before: that comes late, behind addresses."""
    found = []
    for side, users in enumerate(sides):
        found.append([Signal(name=f"user_{side}_{number}") for number in range(len(users))])
        m.d.sync += [before.eq(user) for before, user in zip(found[-1], users, strict=True)]
    return found


def several(bits: list[Signal]) -> Signal:
    """Whether more than one of ``bits`` is set."""
    seen, twice = bits[0], 0
    for bit in bits[1:]:
        twice, seen = twice | (seen & bit), seen | bit
    return twice


class AccumulatorCircuit(Circuit):
    """Lines of 32-bit sums, which some units add to or replace and others read.

    A line may be written in parts (`Geometry.part`), all of whose sums are the first of what a writer brings. Every
    reader has a copy of the memory to itself, for every line that it reads at once. Sums that are added to are read in
    the cycle in which theirs are brought, and written when the addition has taken its cycles (`accumulate_stages`);
    where it takes several each part of a line is a memory of its own. Writers share
    one side: in a cycle in which two write, the one named first is served and ``conflict`` is raised. Programs give
    that side one user.

    Members
    -------
    <unit>_writes : In(sums_write)
        Of every unit whose row says that it writes sums, in the order of the units' codes.
    <unit>_reads : In(sums_read)
        Of every unit whose row says that it reads them, as many lines at once as it says.
    <unit>_rises : In(rises_write)
        Of every unit whose row says that it writes what older sums of a row are divided by.
    outside : Out(1)
        Pulse: a line beyond the last one.
    conflict : Out(1)
        Pulse: two units write; only where more than one can.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        self.writers, self.readers, self.risers = (
            each(geometry) for each in (sums_writers, sums_readers, rises_writers)
        )
        ports: dict[str, Any] = {f"{unit}_writes": In(sums_write(geometry)) for unit in self.writers}
        ports |= {f"{unit}_rises": In(rises_write()) for unit in self.risers}
        self.copies = {unit: unit_circuits(geometry)[unit].sums_lines(geometry) for unit in self.readers}
        ports |= {f"{unit}_reads": In(sums_read(geometry, self.copies[unit])) for unit in self.readers}
        ports |= {"outside": Out(1)} | ({"conflict": Out(1)} if len(self.writers) > 1 else {})
        super().__init__(library, library.name("accumulator"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("ACCUMULATOR_WRITE", sums_beside_what_is_there=SramWrapper.LATENCY)
        lines, bits = self.geometry.accumulator_lines, 8 * self.geometry.results
        parts = 1 << self.geometry.part_bits
        sram = self.library.make(SramWrapper, bits, lines, bits // parts)
        depth = max((lines - 1).bit_length(), 1)
        writes, reads = (
            [getattr(self, f"{unit}_{side}") for unit in units]
            for side, units in (("writes", self.writers), ("reads", self.readers))
        )
        wanted = self._wanted(m, writes)
        valid, line, add, forward = Signal(parts), Signal(depth), Signal(), Signal(parts)
        total = Signal(bits)
        enables, brought = self._parts(m, wanted, parts)
        # One copy for adding, and one for every reader.
        there = self._there(m, wanted, enables, forward, valid=valid, line=line, total=total)
        outside = [port.enable & (port.line >= lines) for port in writes]
        for unit, port in zip(self.readers, reads, strict=True):
            found = []
            for number in range(self.copies[unit]):
                name = f"{unit}_copy_{number}" if number else f"{unit}_copy"
                at = port.line.word_select(number, LOCAL_BITS)
                copy = self.place(
                    m, sram, name, ren=port.enable[number], raddr=at[:depth], wen=valid, waddr=line, wdata=total
                )
                found.append(copy.rdata)
                outside.append(port.enable[number] & (at >= lines))
            m.d.comb += port.data.eq(Cat(*found))
        stages = self.geometry.array.accumulate_stages
        integer = self.geometry.dtype.is_integer
        adder = self.library.make(AdderLane) if integer else self.library.make(FloatAdderLane, stages)
        shifts = self._shifts(m, wanted)
        lanes = [
            self.place(
                m,
                adder,
                f"lane_{i}",
                add=add,
                forward=forward[32 * i * parts // bits],
                hold=valid[32 * i * parts // bits],
                sums=brought[32 * i : 32 * i + 32],
                memory=there[32 * i : 32 * i + 32],
                **shifts,
            ).total
            for i in range(bits // 32)
        ]
        m.d.comb += [total.eq(Cat(*lanes)), self.outside.eq(Cat(*outside).any())]
        m.d.comb += [
            valid.eq(delayed(m, "sums_valid", enables, stages)),
            line.eq(delayed(m, "sums_line", wanted.line[:depth], stages)),
        ]
        m.d.sync += add.eq(wanted.add)
        return m

    def _there(self, m: Module, wanted: Any, enables: Value, forward: Signal, **written: Signal) -> Value:
        """What the memory gives of the line that is wanted; ``forward``: of which parts the lanes hold the newest sums.

        Those are parts that are wanted while they are written. Where an addition takes a cycle such a line is not
        read again: the memory still gives it as it was, and the lanes hold the parts that were written since. Where it
        takes several other lines were read meanwhile; parts are memories by themselves, so that another one of the line
        is not read while it is written.
        """
        valid, line, total = (written[name] for name in ("valid", "line", "total"))
        lines, parts, bits = self.geometry.accumulator_lines, len(valid), len(total)
        at, again = wanted.line[: len(line)], Signal(parts, name="again")
        same = line == at
        if self.geometry.array.accumulate_stages == 1:
            m.d.comb += again.eq((wanted.enable & valid.any() & same).replicate(parts))
            m.d.sync += forward.eq(Mux(again[0], forward | valid, 0))
            kind = self.library.make(SramWrapper, bits, lines, bits // parts)
            enable = wanted.enable & ~again[0]
            whole: Value = self.place(
                m, kind, "sums_copy", ren=enable, raddr=at, wen=valid, waddr=line, wdata=total
            ).rdata
            return whole
        m.d.comb += again.eq(enables & valid & same.replicate(parts))
        m.d.sync += forward.eq(again)
        size = bits // parts
        kind = self.library.make(SramWrapper, size, lines, size)
        found = []
        for part in range(parts):
            name = f"sums_copy_{part}" if part else "sums_copy"
            sums = total[size * part : size * (part + 1)]
            enable = (enables & ~again)[part]
            found.append(self.place(m, kind, name, ren=enable, raddr=at, wen=valid[part], waddr=line, wdata=sums).rdata)
        return Cat(*found)

    def _parts(self, m: Module, wanted: Any, parts: int) -> tuple[Value, Value]:
        """Which parts of its line are written, and sums for all of them: of a line that is split again and again."""
        if parts == 1:
            return wanted.enable, wanted.data
        inner = ~wanted.apart
        held = (~((Const(part, len(inner)) ^ wanted.part) & wanted.apart).any() for part in range(parts))
        size = len(wanted.data) // parts
        # a signal, so that the choices are made once, and not again for every lane's part of them
        brought = Signal(len(wanted.data), name="brought")
        sources = [wanted.data[at : at + size] for at in range(0, len(wanted.data), size)]
        m.d.comb += brought.eq(Cat(*repeated(sources, inner)))
        return Cat(wanted.enable & each for each in held), brought

    def _shifts(self, m: Module, wanted: Any) -> dict[str, Value]:
        """What the sums of the line that is read are divided by, for all lanes."""
        risen = rises_write().create(path=("risen",))
        for unit in reversed(self.risers):
            port = getattr(self, f"{unit}_rises")
            with m.If(port.enable):
                m.d.comb += [getattr(risen, name).eq(getattr(port, name)) for name in risen.signature.members]
        put = Signal.like(risen.data, name="rise_put")
        rise = self.place(
            m,
            self.library.make(SramWrapper, len(risen.data), SLOTS * ROW_LIMIT),
            "rises",
            ren=wanted.enable & wanted.rescale,
            raddr=Cat(wanted.row, wanted.slot),
            wen=risen.enable,
            waddr=Cat(risen.row, risen.slot),
            wdata=put,
        ).rdata
        rescale, fall, under = Signal(), Signal(range(AdderLane.MOST + 1)), Signal(AdderLane.MOST)
        m.d.sync += rescale.eq(wanted.rescale)
        if not self.geometry.dtype.is_integer:
            m.d.comb += put.eq(risen.data)
            return {"fall": Mux(rescale, rise, 0)}
        m.d.comb += [
            # bounded where it is written: what is read is shifted by at once
            put.eq(Mux(risen.data > AdderLane.MOST, AdderLane.MOST, risen.data)),
            fall.eq(Mux(rescale, rise, 0)),
            under.eq(Cat(fall > place + 1 for place in range(AdderLane.MOST))),
        ]
        return {"fall": fall, "under": under}

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
