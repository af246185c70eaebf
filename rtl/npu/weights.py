"""How the loader of an array walks through packed weights: their headers, and beats of codes (`arch.packing`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import CODE_BITS, CODES, GROUP_BITS, UNGROUPED
from siliconloom.arch.layout import is_power
from siliconloom.arch.packing import beat_bytes, granule, has_groups, header_bytes, header_lines, header_room
from siliconloom.rtl.array.weights import BeatKind, cache_kind, code_kind, header_kind, kind_bits
from siliconloom.rtl.npu.geometry import LOCAL_BITS, Geometry, log2


class LoadRead(NamedTuple):
    """What the loader's next read is.

    ``head`` says that it is a line of a header, ``kind`` what the beat is; ``bytes`` are those that it needs, ``step``
    those to the next read, which begins at a multiple of ``unit`` behind the last beat of a group.
    """

    head: Value
    kind: Value
    bytes: Value
    step: Value
    unit: Value


class PackedReads:
    """The part of the loader that knows packed weights.

    Parameters
    ----------
    geometry
        Of the tile.
    formats
        Those of its weights: codes, and the operands' own where elements are wider; and those of keys and values.
    """

    def __init__(self, geometry: Geometry, formats: tuple[DataType, ...]) -> None:
        self.geometry, self.array, self.formats = geometry, geometry.array, formats
        self.groups = [dtype for dtype in formats if has_groups(geometry.array, dtype)]
        self.line, self.cached = geometry.stationary, geometry.array.cache_codes
        self.lines = {dtype: header_lines(geometry.array, dtype) for dtype in self.groups}
        self.powers = is_power(self.line)

    def refuses(self, entry: Any) -> Value:
        """Whether the array has no circuit for an instruction's weights."""
        missing = [code for code in range(1, 1 << CODE_BITS) if code >= len(CODES) or CODES[code] not in self.formats]
        short = self._grouped(entry.weights) & ~self._kept(entry) & (entry.group < log2(self.array.load_rows))
        alone = [entry.weights == CODES.index(dtype) for dtype in self.cached if dtype not in self.groups]
        refused = reduce(or_, (entry.weights == code for code in missing), short)
        return refused | (reduce(or_, alone) & (entry.group != UNGROUPED)) if alone else refused

    def _grouped(self, weights: Value) -> Value:
        """Whether weights of a code have groups, and so headers."""
        return reduce(or_, (weights == CODES.index(dtype) for dtype in self.groups), Const(0, 1))

    def _kept(self, entry: Any) -> Value:
        """Whether what stays is keys or values in a format that the array makes operands of: it has no groups."""
        codes = (entry.weights == CODES.index(dtype) for dtype in self.cached)
        return reduce(or_, codes, Const(0, 1)) & (entry.group == UNGROUPED)

    def odd(self, entry: Any, address: Value) -> list[Value]:
        """Bits of the address of packed weights that are none where they begin as they must."""
        if not self.powers:
            return []
        # keys and values of a format begin where weights in groups of it do
        units = {CODES.index(dtype): granule(self.array, dtype) for dtype in self.formats}
        return [Mux(entry.weights == code, address[: log2(unit)], 0) for code, unit in units.items()]

    def begin(self, m: Module, taken: Value, entry: Any) -> None:
        """The issue of an instruction: it begins with a header."""
        most = max(self.lines.values(), default=0)
        self.kind, self.heads = Signal(CODE_BITS, name="load_kind"), Signal(range(most + 1), name="load_heads")
        self.group, self.left = (Signal(1 << GROUP_BITS, name=f"load_group_{name}") for name in ("beats", "left"))
        beats = Signal(1 << GROUP_BITS, name="load_group")
        m.d.comb += beats.eq((1 << entry.group) >> log2(self.array.load_rows))
        self.kept: Value = Signal(name="load_kept") if self.cached else Const(0, 1)
        kept, lines = self._kept(entry), self._lines(entry.weights)
        if self.cached:
            lines = Mux(kept, 0, lines)
            with m.If(taken):
                m.d.sync += self.kept.eq(kept)
        with m.If(taken):
            m.d.sync += [self.kind.eq(entry.weights), self.heads.eq(lines), self.group.eq(beats), self.left.eq(beats)]

    def _lines(self, kind: Value) -> Value:
        """Reads that bring a header; none of weights without groups."""
        found: Value = Const(0, range(max(self.lines.values(), default=0) + 1))
        for lines in sorted(set(self.lines.values())):
            which = [kind == CODES.index(dtype) for dtype, its in self.lines.items() if its == lines]
            found = Mux(reduce(or_, which), lines, found)
        return found

    def reading(self) -> LoadRead:
        """The next read."""
        beats = {dtype: beat_bytes(self.array, dtype) for dtype in self.formats}
        head = self.heads != 0
        room = {dtype: header_room(self.array, dtype) // lines for dtype, lines in self.lines.items()}
        size = {dtype: header_bytes(self.array, dtype) // lines for dtype, lines in self.lines.items()}
        codes = self._by_kind(beats, self.line)
        return LoadRead(
            head,
            self._kind(head),
            Mux(head, self._by_kind(size, 0), codes),
            Mux(head, self._by_kind(room, self.line), codes),
            self._by_kind({dtype: granule(self.array, dtype) for dtype in self.formats}, self.line),
        )

    def _kind(self, head: Value) -> Value:
        """What a beat is: values of weights without groups are operands."""
        found: Value = Const(BeatKind.OPERANDS, kind_bits(self.array))
        for dtype in self.groups:
            its = Mux(head, header_kind(dtype), code_kind(dtype))
            found = Mux(self.kind == CODES.index(dtype), its, found)
        for dtype in self.cached:
            found = Mux(self.kept & (self.kind == CODES.index(dtype)), cache_kind(dtype), found)
        return found

    def advance(self, m: Module, reads: Value, reading: LoadRead, panel_ends: Value) -> Value:
        """Count a read; whether the group ends with it."""
        ends = Signal(name="load_group_ends")
        m.d.comb += ends.eq(~reading.head & self._grouped(self.kind) & ~self.kept & ((self.left == 1) | panel_ends))
        with m.If(reads & reading.head):
            m.d.sync += self.heads.eq(self.heads - 1)
        with m.Elif(reads):
            m.d.sync += self.left.eq(self.left - 1)
            with m.If(ends):
                m.d.sync += [self.heads.eq(self._lines(self.kind)), self.left.eq(self.group)]
        return ends

    def next(self, m: Module, address: Value, reading: LoadRead, ends: Value) -> Value:
        """The address of the read behind this one."""
        behind = Signal(LOCAL_BITS, name="load_behind")
        m.d.comb += behind.eq(address + reading.step)
        if not self.powers:
            return behind
        up = Signal(LOCAL_BITS, name="load_next")
        m.d.comb += up.eq((behind + reading.unit - 1) & ~(reading.unit - 1))
        return Mux(ends, up, behind)

    def part(self, m: Module, address: Value, line: Value) -> Value:
        """The line that was read, with what was asked for in its low bits."""
        unit = min(beat_bytes(self.array, dtype) for dtype in self.formats)
        if not self.powers:
            return line
        place = Signal(range(self.line // unit), name="load_place")
        m.d.sync += place.eq(address[log2(unit) : log2(self.line)])
        return line >> (place * (8 * unit))

    def _by_kind(self, values: Mapping[Any, int], other: int) -> Value:
        """One of the values, by the format of the weights."""
        found: Value = Const(other, LOCAL_BITS)
        for dtype, value in values.items():
            found = Mux(self.kind == CODES.index(dtype), value, found)
        return found


def packed_reads(geometry: Geometry) -> PackedReads | None:
    """That of a tile whose weights, or keys and values, have formats of their own."""
    return PackedReads(geometry, geometry.stationary_formats) if geometry.stationary_formats else None


__all__ = ["PackedReads", "LoadRead", "packed_reads"]
