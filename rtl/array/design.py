"""The systolic tile as a design: what its ports mean, and a GEMM with which its bench runs."""

from __future__ import annotations

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import DataType
from siliconloom.arch.timing import INPUT_SLICE
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.array.folds import ArrayProduct, FoldBeats, FoldCase, Matrix, folds_of, operands, pack
from siliconloom.rtl.array.tile import systolic_tile
from siliconloom.rtl.flows.channels import Channel, interface_of
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.flows.waivers import waiver_file
from siliconloom.rtl.library import Library

MEANINGS = {
    "clk": "clock of every register",
    "rst": "synchronous reset, active high",
    "rst_n": "asynchronous reset, active low; released away from the clock's rising edge",
    "valid": "the beat is there",
    "ready": "the beat is taken in this cycle when valid",
    "last": "last beat of a fold",
    "stationary_data": "operands that stay: load_rows rows of C lanes, row by row",
    "moving_data": "operands that move: R lanes, zero in those of rows that a fold does not use",
    "a_data": "a column of A: R lanes",
    "b_data": "a row of B: C lanes",
    "output_data": "results: C lanes of 32 bits (integers, or fp32)",
    "fold_begins": "pulse: a loaded tile becomes the active one",
    "fold_ends": "pulse: the last operands of a fold enter the array",
    "product_ends": "pulse: they are the last ones of a matmul",
}

WAIVERS = {
    "WIDTHEXPAND": "exponents of different widths: they are extended as their types say, which Verilog does too",
    "WIDTHTRUNC": "the upper bits of a shift or of an exponent are dropped on purpose: they cannot be set",
    "UNUSEDSIGNAL": "bits of a sum that rounding does not keep",
}
"""Rules of ``verilator --lint-only -Wall`` that an array of floating-point elements is not held to, and why."""

SUMS_WAIVERS = {
    "WIDTHEXPAND": "columns of a sum begin and end at different bits: what is not there is zero, as Verilog extends it",
    "UNUSEDSIGNAL": "bits that are zero whatever the operands, and carries out of the highest bit",
}
"""The same of an array whose elements have no adder."""

LARGE = 4096
"""Elements from which on the bench runs one fold: wide beats make large files."""


def systolic_design(library: Library, array: SystolicArray, contains: str) -> Design:
    """The tile of ``array`` with everything that goes with it; raises `NotSupported` for operands without RTL."""
    top = systolic_tile(library, array)
    arithmetic = arithmetic_of(array)
    operand = arithmetic.dtype
    folds = bench_folds(array, operand)
    channels = {channel.name: channel for channel in interface_of(top).channels}
    ordered = [beat for fold in folds for beat in _sends(fold, channels, operand.bits)]
    beats: dict[str, list[int]] = {name: [] for name in channels}
    for name, beat in ordered:
        beats[name].append(beat)
    beats["output"] = [beat for fold in folds for beat in _results(fold, channels["output"], arithmetic.sum_bits)]
    waivers = (SUMS_WAIVERS if array.resolve_stages else {}) if operand.is_integer else WAIVERS
    return Design(
        top=top,
        contains=contains,
        parameters={
            "rows": array.rows,
            "cols": array.cols,
            "dataflow": array.dataflow,
            "operand": operand.value,
            "accumulator_bits": arithmetic.sum_bits,
        },
        timing={
            "multiply_stages": array.multiply_stages,
            "add_stages": array.add_stages,
            "load_rows": array.load_rows,
            "output_latency": array.output_latency,
            "input_slice": INPUT_SLICE,
        },
        meanings=MEANINGS,
        beats=beats,
        ordered=ordered,
        files={f"{top.module_name}.vlt": waiver_file(top.module_name, waivers)} if waivers else {},
    )


def bench_folds(array: SystolicArray, dtype: DataType) -> list[FoldBeats]:
    """A GEMM of four folds, three of them at an edge of the array; of one fold for a large array."""
    if array.rows * array.cols >= LARGE:
        gemm = ArrayProduct(3, array.cols, array.rows)
        if array.dataflow == "input_stationary":
            gemm = ArrayProduct(array.cols, 3, array.rows)
    else:
        more_rows, more_cols = -(-array.rows // 2), -(-array.cols // 3)
        gemm = {
            "weight_stationary": ArrayProduct(5, array.cols + more_cols, array.rows + more_rows),
            "input_stationary": ArrayProduct(array.cols + more_cols, 5, array.rows + more_rows),
            "output_stationary": ArrayProduct(array.rows + more_rows, array.cols + more_cols, 5),
        }[array.dataflow]
    ((a, b),) = operands(FoldCase((gemm,), seed=0, dtype=dtype))
    return folds_of(array, a, b, dtype)


def _sends(fold: FoldBeats, channels: dict[str, Channel], bits: int) -> list[tuple[str, int]]:
    """Beats of a fold in an order that never waits for a beat behind it: a tile's loads before its moving beats."""
    streams = [
        [(name, _beat(channels[name], values, bits, last)) for values, last in beats]
        for name, beats in fold.streams.items()
    ]
    if "stationary" in fold.streams:
        return [beat for stream in streams for beat in stream]
    return [beat for pair in zip(*streams, strict=True) for beat in pair]


def _results(fold: FoldBeats, channel: Channel, bits: int) -> list[int]:
    final = len(fold.golden) - 1
    return [_beat(channel, row, bits, number == final) for number, row in enumerate(fold.golden)]


def _beat(channel: Channel, values: Matrix, bits: int, last: int) -> int:
    parts = {f"{channel.name}_data": int(pack(values, bits), 16), f"{channel.name}_last": int(last)}
    return channel.pack({port.name: parts[port.name] for port in channel.payload})
