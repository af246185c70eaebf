"""Local memories: the banked scratchpad with its crossbar, and the accumulator."""

from __future__ import annotations

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.flows.memory import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.dma import log2
from siliconloom.rtl.npu.geometry import LOCAL_BITS, Geometry


def readers(geometry: Geometry) -> dict[str, int]:
    """Read ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    cols = geometry.array.cols
    return {
        "loaded": geometry.stationary, "moving": geometry.array.rows, "first": cols, "second": cols,
        "store": geometry.bus,
    }  # fmt: skip


def writers(geometry: Geometry) -> dict[str, int]:
    """Write ports of the scratchpad, highest priority first, and the bytes of their accesses."""
    return {"load": geometry.bus, "vector": geometry.array.cols}


class Scratchpad(Circuit):
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
        line, banks, lines = geometry.line, geometry.banks, geometry.bank_bytes // geometry.line
        low, high = log2(line), log2(geometry.bank_bytes)
        sram = self.library.make(SramWrapper, 8 * line, lines, 8)

        def bank_of(name: str) -> Signal:
            bank = Signal(range(max(banks, 2)), name=f"{name}_bank")
            m.d.comb += bank.eq(getattr(self, f"{name}_address")[high:])
            return bank

        def beyond(name: str) -> Signal:
            return getattr(self, f"{name}_address") >= banks * geometry.bank_bytes

        want_read = {name: bank_of(name) for name in readers(geometry)}
        want_write = {name: bank_of(name) for name in writers(geometry)}
        widest = max(writers(geometry).values())
        words, clashes = [], []
        for bank in range(banks):
            read, read_line, asked = Signal(), Signal(range(lines)), []
            for name, wanted in reversed(want_read.items()):
                hit = Signal(name=f"{name}_reads_{bank}")
                m.d.comb += hit.eq(getattr(self, name) & (wanted == bank))
                asked.append(hit)
                with m.If(hit):
                    m.d.comb += [read.eq(1), read_line.eq(getattr(self, f"{name}_address")[low:high])]
            clashes.append(several(asked))
            enables, write_line, word, asked = Signal(line), Signal(range(lines)), Signal(8 * widest), []
            for name, wanted in reversed(want_write.items()):
                size, address = writers(geometry)[name], getattr(self, f"{name}_address")
                hit = Signal(name=f"{name}_writes_{bank}")
                m.d.comb += hit.eq(getattr(self, name).any() & (wanted == bank))
                asked.append(hit)
                shift = address[log2(size) : low] if size < line else 0
                with m.If(hit):
                    m.d.comb += [
                        enables.eq(getattr(self, name) << (shift * size) if size < line else getattr(self, name)),
                        write_line.eq(address[low:high]),
                        word.eq(Cat(*[getattr(self, f"{name}_data")] * (widest // size))),
                    ]
            clashes.append(several(asked))
            words.append(
                self.place(
                    m, sram, f"bank_{bank}", ren=read, raddr=read_line, wen=enables, waddr=write_line,
                    wdata=Cat(*[word] * (line // widest)),
                )["rdata"]
            )  # fmt: skip
        for name, size in readers(geometry).items():
            chosen, part = Signal.like(want_read[name]), Signal(max(low - log2(size), 1), name=f"{name}_part")
            m.d.sync += chosen.eq(want_read[name])
            parts = words
            if size < line:
                m.d.sync += part.eq(getattr(self, f"{name}_address")[log2(size) : low])
                select = self.library.make(PartSelect, 8 * line, 8 * size)
                parts = [
                    self.place(m, select, f"{name}_part_{bank}", word=word, part=part)["o"]
                    for bank, word in enumerate(words)
                ]
            m.d.comb += getattr(self, f"{name}_data").eq(Array(parts)[chosen] if banks > 1 else parts[0])
        outside = [getattr(self, n) & beyond(n) for n in want_read]
        outside += [getattr(self, n).any() & beyond(n) for n in want_write]
        m.d.comb += [self.conflict.eq(Cat(*clashes).any()), self.outside.eq(Cat(*outside).any())]
        return m


class PartSelect(Circuit):
    """One of the equal parts of a word. A circuit of its own, because wide ones take long to generate.

    Members
    -------
    word, part : In
        The word, and which part.
    o : Out
        The part.
    """

    def __init__(self, library: Library, width: int, part: int) -> None:
        self.width, self.size = width, part
        ports = {"word": In(width), "part": In(range(width // part)), "o": Out(part)}
        super().__init__(library, library.name("part", f"{part}of{width}"), ports)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        unused_clock = Signal(name="unused")
        m.d.comb += [unused_clock.eq(self.clk), self.o.eq(self.word.word_select(self.part, self.size))]
        return m


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


class Accumulator(Circuit):
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
            "valid": In(1), "line": In(LOCAL_BITS), "add": In(1), "sums": In(bits),
            "read": In(1), "read_line": In(LOCAL_BITS), "read_data": Out(bits), "outside": Out(1),
        }  # fmt: skip
        super().__init__(library, library.name("accumulator"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        lines, bits = self.geometry.accumulator_lines, 8 * self.geometry.results
        sram = self.library.make(SramWrapper, bits, lines)
        depth = log2(lines)
        valid, line, add, forward = Signal(), Signal(depth), Signal(), Signal()
        total = Signal(bits)
        # Two copies, so that adding and reading each have a read port.
        own = self.place(
            m, sram, "sums_copy", ren=self.valid, raddr=self.line[:depth], wen=valid, waddr=line, wdata=total
        )  # fmt: skip
        other = self.place(
            m, sram, "read_copy", ren=self.read, raddr=self.read_line[:depth], wen=valid, waddr=line, wdata=total
        )  # fmt: skip
        lanes = [
            self.place(
                m, self.library.make(AdderLane), f"lane_{i}", add=add, forward=forward,
                sums=self.sums[32 * i : 32 * i + 32], memory=own["rdata"][32 * i : 32 * i + 32],
            )["total"]
            for i in range(bits // 32)
        ]  # fmt: skip
        m.d.comb += [
            total.eq(Cat(*lanes)),
            self.read_data.eq(other["rdata"]),
            self.outside.eq((self.valid & (self.line >= lines)) | (self.read & (self.read_line >= lines))),
        ]  # fmt: skip
        m.d.sync += [
            valid.eq(self.valid), line.eq(self.line), add.eq(self.add),
            # the line being written now is the one being read now: memory returns the old one
            forward.eq(valid & self.valid & (line == self.line[:depth])),
        ]  # fmt: skip
        return m
