"""Control of an array that keeps weights or inputs: what moves past them, and where the sums of each fold go."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from siliconloom.arch.vector import SPLIT_BITS
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.geometry import LOCAL_BITS, SIZE_BITS, log2
from siliconloom.rtl.npu.matmul.jobs import finish, job_of, release, told
from siliconloom.rtl.npu.matmul.loading import load_bits, load_folds, rounded
from siliconloom.rtl.npu.matmul.reads import ReadStream, needs, read_line
from siliconloom.rtl.npu.matmul.sums import panel_lines, place_sums
from siliconloom.rtl.npu.matmul.unit import MatmulOperands, MatmulUnitCircuit, operands_of
from siliconloom.rtl.npu.narrow import line_mask, row_pitch


def stationary(m: Module, unit: MatmulUnitCircuit, tile: Circuit) -> None:
    """The array, with its loader, mover and writer."""
    operands = operands_of(unit)
    load = ReadStream(unit, m, "stationary", load_bits(unit))
    move = ReadStream(unit, m, "moving", unit.geometry.edge.bits * unit.geometry.array.rows + 1)
    swaps = load_folds(m, unit, operands, load)
    fold_ends, ends = move_rows(m, unit, operands, move)
    placed = unit.place(m, tile, "array", **told(unit))
    wiring.connect(m, load.beats, placed.stationary)
    wiring.connect(m, move.beats, placed.moving)
    m.d.comb += [placed.output.ready.eq(1), swaps.eq(placed.fold_begins)]
    release(m, unit, unit.moving.enable & fold_ends, ends, placed.fold_ends)
    write_folds(m, unit, operands, placed.output)


def move_rows(m: Module, unit: MatmulUnitCircuit, operands: MatmulOperands, move: ReadStream) -> tuple[Signal, Signal]:
    """The mover: per fold, one line of every row; returns what ends a fold, and what ends an instruction."""
    array = unit.geometry.array
    sizes = dict.fromkeys(("outer", "beats", "k"), SIZE_BITS)
    layout = data.StructLayout({"address": LOCAL_BITS, "pitch": LOCAL_BITS, **sizes})
    entry, whole = operands.entry, unit.geometry.row_unit
    element = unit.geometry.element
    row = line_mask(m, "row", entry.k, whole, entry.narrow)
    adjoining = row_pitch(entry.k, row, whole) << log2(element)
    fields = {
        "address": operands.moves,
        "pitch": Mux(entry.d == 0, adjoining, entry.d),
        "outer": operands.outer,
        "beats": operands.beats,
        "k": entry.k,
    }
    job = job_of(m, unit, "move", layout, 2, fields)
    tags = Signal(name="move_tags")
    inside = Signal(name="move_inside")
    outer, beat, k_now = (Signal(SIZE_BITS, name=f"move_{n}") for n in ("outer", "beat", "k"))
    start, here = Signal(LOCAL_BITS, name="move_start"), Signal(LOCAL_BITS, name="move_here")
    now = {
        "outer": Mux(inside, outer, job.view.outer),
        "beat": Mux(inside, beat, job.view.beats),
        "k": Mux(inside, k_now, job.view.k),
        "start": Mux(inside, start, job.view.address),
        "here": Mux(inside, here, job.view.address),
    }
    fold_ends, panel_ends, ends = Signal(), Signal(), Signal()
    using, used = Signal(range(array.rows + 1), name="move_using"), Signal(range(array.rows + 1), name="move_used")
    m.d.comb += [
        unit.moving.enable.eq(job.valid & move.room),
        unit.moving.address.eq(now["here"]),
        using.eq(Mux(now["k"] > array.rows, array.rows, now["k"])),
        *needs(unit.moving, using << log2(element)),
        move.fire.eq(unit.moving.enable),
        fold_ends.eq(now["beat"] == 1),
        panel_ends.eq(fold_ends & (now["k"] <= array.rows)),
        ends.eq(panel_ends & (now["outer"] <= array.cols)),
        job.take.eq(unit.moving.enable & ends),
    ]
    m.d.sync += [used.eq(using), tags.eq(fold_ends)]
    width = unit.geometry.edge.bits
    line = Signal(8 * unit.geometry.moving, name="move_line")
    m.d.comb += line.eq(read_line(m, unit, unit.moving, unit.geometry.moving))
    operands_read = rounded(m, unit, "moving", line)
    lanes = (operands_read[width * row : width * (row + 1)] for row in range(array.rows))
    masked = Cat(*(Mux(row < used, lane, 0) for row, lane in enumerate(lanes)))
    m.d.comb += move.payload.eq(Cat(masked, tags))
    with m.If(unit.moving.enable):
        m.d.sync += [
            inside.eq(~ends),
            outer.eq(now["outer"]),
            k_now.eq(now["k"]),
            start.eq(now["start"]),
            beat.eq(now["beat"] - 1),
            here.eq(now["here"] + job.view.pitch),
        ]
        with m.If(fold_ends):
            m.d.sync += [
                beat.eq(job.view.beats),
                k_now.eq(now["k"] - array.rows),
                start.eq(now["start"] + unit.geometry.moving),
                here.eq(now["start"] + unit.geometry.moving),
            ]
        with m.If(panel_ends):
            m.d.sync += [
                k_now.eq(job.view.k),
                outer.eq(now["outer"] - array.cols),
                start.eq(job.view.address),
                here.eq(job.view.address),
            ]
    return fold_ends, ends


def write_folds(m: Module, unit: MatmulUnitCircuit, operands: MatmulOperands, output: Any) -> None:
    """The writer: panel by panel, every block of k adds to the same lines."""
    array, entry = unit.geometry.array, operands.entry
    layout = data.StructLayout(
        {"place": LOCAL_BITS, "split": SPLIT_BITS, "outer": SIZE_BITS, "beats": SIZE_BITS, "k": SIZE_BITS}
        | dict.fromkeys(("add", "rescale", "slot"), 1)
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
            "outer": operands.outer,
            "beats": operands.beats,
            "k": entry.k,
            "add": entry.add,
            "rescale": entry.rescale,
            "slot": operands.slot,
        },
    )
    inside = Signal(name="write_inside")
    outer, beat, after, k = (Signal(SIZE_BITS, name=f"write_{n}") for n in ("outer", "beat", "after", "k"))
    base = Signal(LOCAL_BITS, name="write_base")
    now = {
        "outer": Mux(inside, outer, job.view.outer),
        "beat": Mux(inside, beat, 0),
        "after": Mux(inside, after, 1),
        "k": Mux(inside, k, job.view.k),
        "base": Mux(inside, base, job.view.place),
    }
    fold_ends, panel_ends, ends = Signal(), Signal(), Signal()
    beats = job.view.beats
    # comparisons of either, since the choice between them comes late
    last_panel = Mux(inside, outer <= array.cols, job.view.outer <= array.cols)
    last_fold = Mux(inside, k <= array.rows, job.view.k <= array.rows)
    m.d.comb += [
        unit.sums.enable.eq(output.valid),
        unit.sums.data.eq(output.payload.data),
        *place_sums(m, unit, now["base"], now["beat"], last_panel, job.view.split),
        unit.sums.add.eq(job.view.add | (now["k"] != job.view.k)),
        # once: what the first fold has added is in steps of the new peaks
        unit.sums.rescale.eq(job.view.rescale & (now["k"] == job.view.k)),
        unit.sums.slot.eq(job.view.slot),
        unit.sums.row.eq(now["beat"][: len(unit.sums.row)]),
        fold_ends.eq(Mux(inside, after == beats, beats == 1)),
        panel_ends.eq(fold_ends & last_fold),
        ends.eq(panel_ends & last_panel),
        job.take.eq(unit.sums.enable & ends),
    ]
    finish(m, unit, job.take)
    with m.If(unit.sums.enable):
        m.d.sync += [
            inside.eq(~ends),
            outer.eq(now["outer"]),
            k.eq(now["k"]),
            base.eq(now["base"]),
            beat.eq(now["after"]),
            after.eq(now["after"] + 1),
        ]
        with m.If(fold_ends):
            m.d.sync += [beat.eq(0), after.eq(1), k.eq(now["k"] - array.rows)]
        with m.If(panel_ends):
            m.d.sync += [
                k.eq(job.view.k),
                outer.eq(now["outer"] - array.cols),
                base.eq(now["base"] + panel_lines(unit, job.view.beats)),
            ]


__all__ = ["stationary"]
