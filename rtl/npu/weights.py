"""How the loader of an array walks through packed weights: their headers, and beats of codes (`arch.packing`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.datatype import DataType, Packing, scale_bits
from siliconloom.arch.layout import is_power
from siliconloom.arch.packing import (
    beat_bytes,
    begin_unit,
    granule,
    has_groups,
    header_bytes,
    header_lines,
    header_room,
    least_columns,
    may_be_narrow,
)
from siliconloom.arch.scaled import group_rows
from siliconloom.arch.word import BY_ROWS, CODE_BITS, CODES, GROUP_BITS, UNGROUPED
from siliconloom.rtl.array.weights import BeatKind, cache_kind, code_kind, header_kind, kind_bits, scaled_kinds
from siliconloom.rtl.npu.geometry import LOCAL_BITS, Geometry, log2
from siliconloom.rtl.npu.narrow import begins_within, line_width, spread, widened_mask


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
        self.weights = [*self.groups, *([geometry.operand] if geometry.rounds else [])]
        self.line, self.cached = geometry.stationary, geometry.array.cache_codes
        self.scaled = geometry.array.cache_scaled
        self.lines = {dtype: header_lines(geometry.array, dtype) for dtype in self.groups}
        self.powers = is_power(self.line)
        own = geometry.operand
        self.own = own if own in formats and may_be_narrow(self.array, Packing(own, 0)) else None
        """The operands' own format, whose last panel may lie in narrow lines; where the loader takes it."""
        self.slim = [dtype for dtype in self.groups if may_be_narrow(self.array, Packing(dtype, self.array.load_rows))]
        """Formats with groups whose last panel may be narrow."""

    def refuses(self, entry: Any) -> Value:
        """Whether the array has no circuit for an instruction's weights."""
        missing = [code for code in range(1, 1 << CODE_BITS) if code >= len(CODES) or CODES[code] not in self.formats]
        short = self._grouped(entry.weights) & ~self._kept(entry) & (entry.group < log2(self.array.load_rows))
        both = (*self.cached, *self.scaled)
        alone = [entry.weights == CODES.index(dtype) for dtype in both if dtype not in self.groups]
        refused = reduce(or_, (entry.weights == code for code in missing), short)
        return refused | (reduce(or_, alone) & ~self._kept(entry)) if alone else refused

    def _grouped(self, weights: Value) -> Value:
        """Whether weights of a code have groups, and so headers."""
        return reduce(or_, (weights == CODES.index(dtype) for dtype in self.groups), Const(0, 1))

    def _kept(self, entry: Any) -> Value:
        """Whether what stays is keys or values in a format that the array makes operands of."""
        both = (*self.cached, *self.scaled)
        codes = reduce(or_, (entry.weights == CODES.index(dtype) for dtype in both), Const(0, 1))
        found = codes & (entry.group == UNGROUPED)
        if self.scaled:
            scaled = reduce(or_, (entry.weights == CODES.index(dtype) for dtype in self.scaled))
            found = found | (scaled & (entry.group == BY_ROWS))
        return found

    def odd(self, entry: Any, address: Value, mask: Signal) -> list[Value]:
        """Bits of the address of packed weights that are none where they begin as they must.

        ``mask`` tells the lines that a narrow last panel lies in.
        """
        if not self.powers:
            return []
        # keys and values of a format begin where weights in groups of it do
        odd, kept = list[Value](), self._kept(entry)
        for dtype in self.formats:
            within = address[: log2(granule(self.array, dtype))]
            if dtype in self.slim:
                slim = begins_within(address, self._mask(dtype, mask), granule(self.array, dtype) // self.array.cols)
                within = Mux(kept, within.any(), slim)
            if dtype in self.scaled:
                scaled = address[: log2(begin_unit(self.array, Packing(dtype, 0)))]
                within = Mux(kept, scaled, within) if dtype in self.weights else scaled
            elif dtype is self.own:
                within = begins_within(address, mask, granule(self.array, dtype) // self.array.cols)
            odd.append(Mux(entry.weights == CODES.index(dtype), within, 0))
        return odd

    def begin(self, m: Module, free: Value, entry: Any) -> None:
        """What is kept of an instruction that is offered while the loader is ``free``: it begins with a header."""
        most = max([*self.lines.values(), *([1] if self.scaled else [])], default=0)
        self.kind, self.heads = Signal(CODE_BITS, name="load_kind"), Signal(range(most + 1), name="load_heads")
        self.group, self.left = (Signal(1 << GROUP_BITS, name=f"load_group_{name}") for name in ("beats", "left"))
        beats = Signal(1 << GROUP_BITS, name="load_group")
        self.kept: Value = Signal(name="load_kept") if self.cached or self.scaled else Const(0, 1)
        kept, lines = self._kept(entry), self._lines(entry.weights)
        if self.cached or self.scaled:
            lines = Mux(kept, self._scales(entry.weights), lines)
            with m.If(free):
                m.d.sync += self.kept.eq(kept)
        whole: Value = (1 << entry.group) >> log2(self.array.load_rows)
        if self.scaled:
            whole = Mux(kept, self.array.cols, whole)
            self.by_rows = Signal(name="load_by_rows")
            with m.If(free):
                m.d.sync += self.by_rows.eq(entry.group == BY_ROWS)
        m.d.comb += beats.eq(whole)
        with m.If(free):
            m.d.sync += [self.kind.eq(entry.weights), self.heads.eq(lines), self.group.eq(beats), self.left.eq(beats)]

    def _scales(self, kind: Value) -> Value:
        """Whether keys and values of a code have scales, and so a header of one line."""
        return reduce(or_, (kind == CODES.index(dtype) for dtype in self.scaled), Const(0, 1))

    def _lines(self, kind: Value) -> Value:
        """Reads that bring a header; none of weights without groups."""
        found: Value = Const(0, range(max(self.lines.values(), default=0) + 1))
        for lines in sorted(set(self.lines.values())):
            which = [kind == CODES.index(dtype) for dtype, its in self.lines.items() if its == lines]
            found = Mux(reduce(or_, which), lines, found)
        return found

    def _column(self, dtype: DataType) -> int:
        """Bytes of a beat that is as narrow as it may be."""
        return beat_bytes(self.array, dtype) * least_columns(self.array, dtype) // self.array.cols

    def _mask(self, dtype: DataType, mask: Value) -> Value:
        """The lines that a narrow panel of groups lies in."""
        return widened_mask(mask, least_columns(self.array, dtype))

    def reading(self, mask: Signal) -> LoadRead:
        """The next read; ``mask`` tells the lines that the panel lies in where it may be narrow."""
        cols = self.array.cols

        def parts(dtype: DataType, size: int) -> Value | int:
            """So many bytes of whole lines, of narrow ones."""
            if dtype not in self.slim:
                return size
            # keys and values of a format that weights in groups have, too, lie in whole lines
            width = Mux(self.kept, cols, line_width(self._mask(dtype, mask), cols))
            return width * size >> log2(cols)

        beats = {dtype: parts(dtype, beat_bytes(self.array, dtype)) for dtype in self.formats}
        if self.own is not None:
            beats[self.own] = line_width(mask, cols) * self._column(self.own)
        head = self.heads != 0
        room = {dtype: parts(dtype, header_room(self.array, dtype) // lines) for dtype, lines in self.lines.items()}
        size = {dtype: parts(dtype, header_bytes(self.array, dtype) // lines) for dtype, lines in self.lines.items()}
        codes = self._by_kind(beats, self.line)
        bytes_, step = self._by_kind(size, 0), self._by_kind(room, self.line)
        units = {dtype: parts(dtype, granule(self.array, dtype)) for dtype in self.formats}
        unit = self._by_kind(units, self.line)
        if self.scaled:  # headers of keys and values are all alike
            own, whole = group_rows(self.array), begin_unit(self.array, Packing(self.scaled[0], 0))
            bytes_, step, unit = (
                Mux(self.kept, its, other) for its, other in ((own, bytes_), (own, step), (whole, unit))
            )
        return LoadRead(head, self._kind(head), Mux(head, bytes_, codes), Mux(head, step, codes), unit)

    def _kind(self, head: Value) -> Value:
        """What a beat is: values of weights without groups are operands."""
        found: Value = Const(BeatKind.OPERANDS, kind_bits(self.array))
        for dtype in self.groups:
            its = Mux(head, header_kind(dtype), code_kind(dtype))
            found = Mux(self.kind == CODES.index(dtype), its, found)
        for dtype in self.cached:
            found = Mux(self.kept & (self.kind == CODES.index(dtype)), cache_kind(dtype), found)
        for dtype in self.scaled:
            keys, values = scaled_kinds(dtype)
            its = Mux(head, BeatKind.CACHE_SCALES, Mux(self.by_rows, values, keys))
            found = Mux(self.kept & (self.kind == CODES.index(dtype)), its, found)
        return found

    def advance(self, m: Module, reads: Value, reading: LoadRead, panel_ends: Value) -> Value:
        """Count a read; whether the group ends with it."""
        ends = Signal(name="load_group_ends")
        grouped = self._grouped(self.kind) & ~self.kept
        again = self._lines(self.kind)
        if self.scaled:
            scaled = self.kept & self._scales(self.kind)
            grouped, again = grouped | scaled, Mux(self.kept, self._scales(self.kind), again)
        m.d.comb += ends.eq(~reading.head & grouped & ((self.left == 1) | panel_ends))
        with m.If(reads & reading.head):
            m.d.sync += self.heads.eq(self.heads - 1)
        with m.Elif(reads):
            m.d.sync += self.left.eq(self.left - 1)
            with m.If(ends):
                m.d.sync += [self.heads.eq(again), self.left.eq(self.group)]
        return ends

    def next(self, m: Module, address: Value, reading: LoadRead, ends: Value) -> Value:
        """The address of the read behind this one."""
        behind = Signal(LOCAL_BITS, name="load_behind")
        m.d.comb += behind.eq(address + reading.step)
        if not self.powers:
            return behind
        up = Signal(LOCAL_BITS, name="load_next")
        within = Signal(LOCAL_BITS, name="load_within")
        m.d.comb += [within.eq(reading.unit - 1), up.eq((behind + within) & ~within)]
        return Mux(ends, up, behind)

    def part(self, m: Module, address: Value, line: Value, mask: Signal) -> Value:
        """The line that was read, with what was asked for in its low bits, and narrow lines as whole ones."""
        slim = (*self.slim, *([self.own] if self.own is not None else []))
        sizes = (self._column(dtype) if dtype in slim else beat_bytes(self.array, dtype) for dtype in self.formats)
        heads = (header_bytes(self.array, dtype) // self.array.cols for dtype in self.slim)
        unit = min(*sizes, *heads, self.line)
        part = line
        if self.powers:
            place = Signal(range(self.line // unit), name="load_place")
            m.d.sync += place.eq(address[log2(unit) : log2(self.line)])
            part = line >> (place * (8 * unit))
        return self._spread(m, part, mask) if slim else part

    def _spread(self, m: Module, part: Value, mask: Signal) -> Value:
        """What was read, narrow lines at the places of whole ones: rows of numbers, and scales before minima."""
        read, rows, cols = Signal.like(mask, name="load_mask_read"), self.array.load_rows, self.array.cols
        kind, head = Signal.like(self.kind, name="load_kind_read"), Signal(name="load_head_read")
        m.d.sync += [kind.eq(self.kind), head.eq(self.heads != 0), read.eq(mask | self.kept.replicate(len(mask)))]
        kinds: dict[tuple[int, int, int], list[Value]] = {}
        for dtype in self.slim:
            its, scale, least = kind == CODES.index(dtype), scale_bits(dtype), least_columns(self.array, dtype)
            each = 8 * header_bytes(self.array, dtype) // (self.lines[dtype] * scale * cols)
            kinds.setdefault((dtype.bits, rows, least), []).append(its & ~head)
            kinds.setdefault((scale, each, least), []).append(its & head)
        if self.own is not None:
            kinds.setdefault((self.own.bits, rows, 1), []).append(kind == CODES.index(self.own))
        found = part
        for (bits, lines, least), which in kinds.items():
            name = f"load_{bits}_by_{lines}_of_{least}"
            made = spread(m, name, part, widened_mask(read, least), lines, cols, bits)
            found = Mux(reduce(or_, which), Cat(made, part[len(made) :]), found)
        return found

    def _by_kind(self, values: Mapping[Any, Value | int], other: int) -> Value:
        """One of the values, by the format of the weights."""
        found: Value = Const(other, LOCAL_BITS)
        for dtype, value in values.items():
            found = Mux(self.kind == CODES.index(dtype), value, found)
        return found


def packed_reads(geometry: Geometry) -> PackedReads | None:
    """That of a tile whose weights, or keys and values, have formats of their own."""
    return PackedReads(geometry, geometry.stationary_formats) if geometry.stationary_formats else None


__all__ = ["PackedReads", "LoadRead", "packed_reads"]
