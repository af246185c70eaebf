"""The NPU tile as a design: what its ports mean, its registers, and the driver that starts it."""

from __future__ import annotations

from collections.abc import Sequence

from siliconloom.arch.description import Chip
from siliconloom.arch.timing import INPUT_SLICE
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.flows.waivers import waiver_file
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.example import example_files
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.manual import manual
from siliconloom.rtl.npu.ports import prefixes
from siliconloom.rtl.npu.proofs import npu_proofs
from siliconloom.rtl.npu.registers import register_map, unit_names
from siliconloom.rtl.npu.software import software_files
from siliconloom.rtl.npu.testbench import ProgramVectors, program_bench
from siliconloom.rtl.npu.tile import NpuTileCircuit
from siliconloom.rtl.pim.design import MEANINGS as CHANNEL_PINS

WAIVERS = {
    "WIDTHEXPAND": "operands of different widths: they are extended as their types say, which Verilog does too",
    "WIDTHTRUNC": "the upper bits of a result are dropped on purpose, modulo arithmetic of addresses and counters",
    "UNUSEDSIGNAL": "parts of shared words and of AXI4 responses that a module does not look at",
    "CASEOVERLAP": "a casez whose order is its priority",
}
"""Rules of ``verilator --lint-only -Wall`` that the tile's Verilog is not held to, and why."""

MEANINGS = {
    "clk": "clock of every register",
    "rst": "synchronous reset, active high",
    "rst_n": "asynchronous reset, active low; released away from the clock's rising edge",
    "irq": "a run has ended, see the status register",
    "trace_issue": "per unit (load, store, matmul, vector): an instruction leaves its queue",
    "trace_done": "per unit: an instruction is complete from the next cycle on",
    "trace_cycle": "cycles since the run began",
}
CHANNELS = {
    "s_axi": "AXI4-Lite slave, registers",
    "m_axi": "AXI4 master, data",
    "m_axi_program": "AXI4 master, instructions, reads only",
}


def npu_design(library: Library, chip: Chip, vectors: Sequence[ProgramVectors] = ()) -> Design:
    """The tile of ``chip`` with everything that goes with it; raises `NotSupported` for tiles without RTL."""
    geometry = geometry_of(chip)
    top = NpuTileCircuit(library, geometry)
    meanings = dict(MEANINGS)
    channels = dict(CHANNELS)
    for number, port in enumerate(prefixes(geometry)):
        where = f", byte {number * geometry.port_bytes} of every {geometry.bus}" if geometry.ports > 1 else ""
        channels[port] = CHANNELS["m_axi"] + where
    for port in top.ports():
        prefix, _, name = port.rpartition("_")
        if prefix in channels:
            meanings[port] = f"{channels[prefix]}: {name.upper()}"
        elif port.startswith("pim_"):
            meanings[port] = f"channel of memory that computes: {CHANNEL_PINS[port.removeprefix('pim_')]}"
    array = geometry.array
    parameters = {
        "rows": array.rows,
        "cols": array.cols,
        "dataflow": array.dataflow,
        "operand": geometry.dtype.value,
        "accumulator_bits": 32,
        "load_rows": array.load_rows,
        "vector_lanes": geometry.lanes,
        "row_unit": geometry.row_unit,
        "sums_pitch": geometry.sums_pitch,
        "bus_bytes": geometry.bus,
        "data_ports": geometry.ports,
        "id_bits": geometry.id_bits,
        "scratchpad_banks": geometry.banks,
        "bank_bytes": geometry.bank_bytes,
        "accumulator_lines": geometry.accumulator_lines,
        "program_words": geometry.program_words,
        "word_bytes": WORD_BYTES,
        "queue_depth": geometry.queue_depth,
        "outstanding": geometry.outstanding,
        "beat_interval": geometry.interval,
    }
    return Design(
        top=top,
        contains="the whole tile",
        parameters=parameters,
        timing={
            "multiply_stages": array.multiply_stages,
            "load_rows": array.load_rows,
            "output_latency": geometry.array.output_latency,
            "accumulate_stages": geometry.array.accumulate_stages,
            "unpack_stages": geometry.array.unpack_stages,
            "input_slice": INPUT_SLICE,
            "issue_cycles": geometry.issue_cycles,
            "loop_cycles": geometry.loop_cycles,
            "vector_latency": geometry.vector_latency,
            "sum_stages": geometry.sum_stages,
            "memory_latency": geometry.memory_cycles,
        },
        meanings=meanings,
        registers=register_map(geometry, library.prefix),
        bench=program_bench(top, geometry, vectors) if vectors else {},
        proofs=npu_proofs(top),
        files={
            f"{library.prefix}.vlt": waiver_file(library.prefix, WAIVERS),
            **software_files(library.prefix, chip.digest, parameters, unit_names(geometry)),
            **example_files(top, chip, geometry),
            **manual(library.prefix, chip, geometry),
        },
    )
