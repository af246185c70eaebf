"""Control of an array that keeps its sums: both operands move in step, and a block's sums leave at its end."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from msgspec import Struct

from siliconloom.arch.vector import SPLIT_BITS
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, log2
from siliconloom.rtl.npu.matmul.jobs import finish, job_of, release, told
from siliconloom.rtl.npu.matmul.reads import BUFFER, ReadStream, needs, read_line, read_panel
from siliconloom.rtl.npu.matmul.sums import panel_lines, place_sums
from siliconloom.rtl.npu.matmul.unit import MatmulUnitCircuit
from siliconloom.rtl.npu.narrow import line_mask, line_width


def output_stationary(m: Module, unit: MatmulUnitCircuit, tile: Circuit) -> None:
    """The array, with the reads of its operands and its writer."""
    entry = unit.instruction.payload
    a = ReadStream(unit, m, "a", 8 * unit.geometry.moving + 1)
    b = ReadStream(unit, m, "b", 8 * unit.geometry.stationary)
    pairs = read_pairs(m, unit, a, b)
    entering = Signal(range(BUFFER + 8))
    placed = unit.place(m, tile, "array", **told(unit))
    wiring.connect(m, a.beats, placed.a)
    wiring.connect(m, b.beats, placed.b)
    m.d.comb += [placed.output.ready.eq(1), unit.instruction.ready.eq(~pairs.active & (entering == 0))]
    m.d.sync += entering.eq(entering + (pairs.reads & pairs.fold_ends) - placed.fold_ends)
    begin_pairs(m, unit, entry, pairs)
    release(m, unit, pairs.reads & pairs.fold_ends, pairs.ends, placed.fold_ends)
    write_panels(m, unit, entry, placed.output)


class Pairs(Struct, frozen=True):
    """Reads of both operands in step.

    Parameters
    ----------
    active, left
        An instruction is read; beats left of a fold.
    narrow
        The last block and the last panel may be.
    a_base, a_here, b_base, b_here
        Addresses of a block of rows and of the panels of columns: where they begin, and of the next line.
    pitched, a_step
        Whether blocks of rows lie beside one another, and from line to line of one then.
    k, columns, columns_left, rows_left
        Sizes: beats of a fold, columns, columns left for this block, rows left.
    reads, fold_ends, ends
        A beat of both is read; it is the last of a fold, of the instruction.
    """

    active: Signal
    left: Signal
    narrow: Signal
    a_base: Signal
    a_here: Signal
    b_base: Signal
    b_here: Signal
    pitched: Signal
    a_step: Signal
    k: Signal
    columns: Signal
    columns_left: Signal
    rows_left: Signal
    reads: Signal
    fold_ends: Signal
    ends: Signal


def read_pairs(m: Module, unit: MatmulUnitCircuit, a: ReadStream, b: ReadStream) -> Pairs:
    """Reads of both operands in step: a column of a block of rows, and a row of a panel of columns."""
    array = unit.geometry.array
    tag = Signal()
    active, left, narrow = Signal(), Signal(SIZE_BITS), Signal(name="pairs_narrow")
    a_base, a_here, b_base, b_here = (Signal(LOCAL_BITS, name=n) for n in ("a_base", "a_here", "b_base", "b_here"))
    k, columns, columns_left, rows_left = (
        Signal(SIZE_BITS, name=n) for n in ("k", "columns", "columns_left", "rows_left")
    )
    pitched, a_step, a_next = Signal(), Signal(LOCAL_BITS), Signal(LOCAL_BITS)
    reads, fold_ends, ends = Signal(), Signal(), Signal()
    loaded, line = read_panel(m, unit, "b_panel", columns_left, narrow)
    block = line_width(line_mask(m, "a_block", rows_left, array.rows, narrow), array.rows) * unit.geometry.element
    m.d.comb += [
        # the next block of rows lies beside this one, or behind its last line
        a_next.eq(Mux(pitched, a_base, a_here) + unit.geometry.moving),
        reads.eq(active & a.room & b.room),
        unit.moving.enable.eq(reads),
        unit.loaded.enable.eq(reads),
        a.fire.eq(reads),
        b.fire.eq(reads),
        unit.moving.address.eq(a_here),
        unit.loaded.address.eq(b_here),
        *needs(unit.moving, block),
        *needs(unit.loaded, loaded),
        fold_ends.eq(left == 1),
        ends.eq(fold_ends & (columns_left <= array.cols) & (rows_left <= array.rows)),
        a.payload.eq(Cat(read_line(m, unit, unit.moving, unit.geometry.moving), tag)),
        b.payload.eq(line),
    ]
    m.d.sync += tag.eq(fold_ends)
    with m.If(reads):
        m.d.sync += [a_here.eq(a_here + Mux(pitched, a_step, block)), b_here.eq(b_here + loaded), left.eq(left - 1)]
        with m.If(fold_ends):
            m.d.sync += [left.eq(k), columns_left.eq(columns_left - array.cols), a_here.eq(a_base)]
            with m.If(columns_left <= array.cols):
                m.d.sync += [
                    columns_left.eq(columns),
                    rows_left.eq(rows_left - array.rows),
                    b_here.eq(b_base),
                    a_here.eq(a_next),
                    a_base.eq(a_next),
                ]
            with m.If(ends):
                m.d.sync += active.eq(0)
    addresses = (a_base, a_here, b_base, b_here, pitched, a_step)
    return Pairs(active, left, narrow, *addresses, k, columns, columns_left, rows_left, reads, fold_ends, ends)


def begin_pairs(m: Module, unit: MatmulUnitCircuit, entry: Any, pairs: Pairs) -> None:
    """The issue of an instruction."""
    with m.If(unit.taken):
        m.d.sync += pairs.active.eq(1)
    with m.If(unit.instruction.ready):  # whatever is offered: whether it is taken is known late
        m.d.sync += [
            pairs.narrow.eq(entry.narrow),
            pairs.left.eq(entry.k),
            pairs.k.eq(entry.k),
            pairs.a_base.eq(entry.a),
            pairs.a_here.eq(entry.a),
            pairs.pitched.eq(entry.d != 0),
            pairs.a_step.eq(entry.d),
            pairs.b_base.eq(entry.b),
            pairs.b_here.eq(entry.b),
            pairs.columns.eq(entry.n),
            pairs.columns_left.eq(entry.n),
            pairs.rows_left.eq(entry.m),
        ]


def write_panels(m: Module, unit: MatmulUnitCircuit, entry: Any, output: Any) -> None:
    """The writer: by blocks of rows, panel by panel within each, as many rows as there are."""
    array = unit.geometry.array
    layout = data.StructLayout(
        {"place": LOCAL_BITS, "split": SPLIT_BITS, "n": SIZE_BITS, "m": SIZE_BITS}
        | dict.fromkeys(("add", "rescale", "a_slot"), 1)
    )
    job = job_of(
        m,
        unit,
        "write",
        layout,
        array.output_latency // 6 + 4,
        {
            "place": entry.c >> log2(unit.geometry.part),
            "split": entry.split,
            "n": entry.n,
            "m": entry.m,
            "add": entry.add,
            "rescale": entry.rescale,
            "a_slot": entry.a_slot,
        },
    )
    inside, row = Signal(name="write_inside"), Signal(range(array.rows))
    left, block, base = Signal(SIZE_BITS, name="write_left"), Signal(SIZE_BITS), Signal(LOCAL_BITS)
    now = {
        "left": Mux(inside, left, job.view.n),
        "block": Mux(inside, block, 0),
        "base": Mux(inside, base, job.view.place),
    }
    # Rows beyond m leave the array too; they are dropped, also after the instruction has ended.
    needed, valid, last_needed, ends = Signal(), Signal(), Signal(), Signal()
    drop = Signal(name="write_drop")
    m.d.comb += [
        valid.eq(output.valid),
        needed.eq(valid & ~drop),
        unit.sums.enable.eq(needed),
        unit.sums.data.eq(output.payload.data),
        *place_sums(m, unit, now["base"], now["block"] + row, now["left"] <= array.cols, job.view.split),
        unit.sums.add.eq(job.view.add),
        unit.sums.rescale.eq(job.view.rescale),
        unit.sums.slot.eq(job.view.a_slot),
        unit.sums.row.eq((now["block"] + row)[: len(unit.sums.row)]),
        last_needed.eq(needed & ((now["block"] + row + 1 == job.view.m) | (row == array.rows - 1))),
        ends.eq(last_needed & (now["left"] <= array.cols) & (now["block"] + row + 1 == job.view.m)),
        job.take.eq(ends),
    ]
    finish(m, unit, ends)
    with m.If(valid):
        m.d.sync += row.eq(Mux(row == array.rows - 1, 0, row + 1))
        with m.If(row == array.rows - 1):
            m.d.sync += drop.eq(0)
        with m.Elif(last_needed):
            m.d.sync += drop.eq(1)
    with m.If(last_needed):
        m.d.sync += [
            inside.eq(~ends),
            block.eq(now["block"]),
            base.eq(now["base"] + panel_lines(unit, job.view.m)),
            left.eq(now["left"] - array.cols),
        ]
        with m.If(now["left"] <= array.cols):
            m.d.sync += [left.eq(job.view.n), block.eq(now["block"] + array.rows), base.eq(job.view.place)]


__all__ = ["output_stationary"]
