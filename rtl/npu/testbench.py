"""A testbench in plain Verilog for an NPU tile: programs, memory before and after each, what the counters must read.

It needs nothing but a Verilog simulator, so that the evidence travels with the Verilog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.isa import Program
from siliconloom.arch.pim import Command
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.flows.channels import interface_of
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.flows.testbench import FOLDER, RESET_CYCLES
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.channel import channel_geometry
from siliconloom.rtl.npu.geometry import Geometry, log2
from siliconloom.rtl.npu.ports import prefixes
from siliconloom.rtl.npu.registers import COUNTERS, Cause, register_map, unit_names
from siliconloom.rtl.pim.geometry import CODE_BITS, PimGeometry

Bytes = NDArray[np.uint8]
DONE = 2
START = 3
BENCH_ROWS = 64
"""Rows of every bank of a channel that a bench has at least."""
LIMIT_FACTOR = 40
"""How many times longer than predicted a run may take: a memory that hesitates is slow."""


class ProgramVectors(Struct, frozen=True, kw_only=True):
    """A run of a program as the simulator predicts it.

    Parameters
    ----------
    program
        What runs.
    base
        Where its words stand in memory.
    before, after
        Main memory from address 0 on, a whole number of bus words, the program included.
    cycles
        From the start of the run to its end.
    counters
        By unit and counter; see `rtl.npu.registers`.
    """

    program: Program
    base: int
    before: Bytes
    after: Bytes
    cycles: int
    counters: Mapping[str, Mapping[str, int]]


PROGRAMS = 9
"""Programs of one bench at most: the testbench tells their files apart by one digit."""


def program_bench(top: Circuit, geometry: Geometry, runs: Sequence[ProgramVectors]) -> dict[str, str]:
    """The testbench of the tile ``top`` and the vectors of ``runs``, one after the other; text by file name.

    The tile is reset once, before the first. Between two runs the bench writes to memory what differs.

    Raises
    ------
    ValueError
        When the memories are not equally many whole bus words, a memory does not hold its program at ``base``, or
        there are more programs than the testbench can name.
    """
    if not 1 <= len(runs) <= PROGRAMS:
        raise ValueError(f"a bench has 1 to {PROGRAMS} programs (got {len(runs)})")
    for vectors in runs:
        _check(vectors, len(runs[0].before), geometry.bus)
    semaphores = max(len(vectors.program.semaphores) for vectors in runs)
    writes = [_writes(geometry, vectors, semaphores) for vectors in runs]
    reads = [_reads(geometry, vectors) for vectors in runs]
    name = top.module_name
    files = {
        f"{FOLDER}/tb_{name}.v": _testbench(top, geometry, runs, len(writes[0]), len(reads[0])),
        f"{FOLDER}/{name}_writes.hex": "".join(f"{line}\n" for lines in writes for line in lines),
        f"{FOLDER}/{name}_reads.hex": "".join(f"{line}\n" for lines in reads for line in lines),
    }
    memory = np.zeros_like(runs[0].before)
    for number, vectors in enumerate(runs):
        files[f"{FOLDER}/{name}_memory_{number}.hex"] = sparse_words(memory, vectors.before, geometry.bus)
        files[f"{FOLDER}/{name}_expected_{number}.hex"] = sparse_words(vectors.before, vectors.after, geometry.bus)
        memory = vectors.after
    return files


def _check(vectors: ProgramVectors, size: int, bus: int) -> None:
    """Refuse a run whose memory does not hold its program, or is not ``size`` bytes before and after."""
    code = np.frombuffer(vectors.program.encode(), np.uint8)
    if {len(vectors.before), len(vectors.after)} != {size} or size % bus:
        raise ValueError(
            f"memory before and after must be equally many words of {bus} bytes "
            f"(got {len(vectors.before)} and {len(vectors.after)} bytes)"
        )
    if vectors.base % WORD_BYTES or not np.array_equal(vectors.before[vectors.base :][: len(code)], code):
        raise ValueError(f"memory must hold the program at {vectors.base:#x}, a multiple of {WORD_BYTES}")


def _writes(geometry: Geometry, vectors: ProgramVectors, semaphores: int) -> list[str]:
    """What starts a run, with the first ``semaphores`` semaphores set: register and value."""
    offsets = {register.name: register.offset for register in register_map(geometry).registers}
    program = vectors.program
    initial = [each.initial for each in program.semaphores] + [0] * (semaphores - len(program.semaphores))
    writes = {"program_low": vectors.base & 0xFFFFFFFF, "program_high": vectors.base >> 32}
    writes |= {"program_words": len(program.instructions)}
    writes |= {f"semaphore_{number}": count for number, count in enumerate(initial)}
    writes["control"] = START
    return [f"{offsets[name]:08x}{value:08x}" for name, value in writes.items()]


def _reads(geometry: Geometry, vectors: ProgramVectors) -> list[str]:
    """What registers read after a run: register and value, those marked that depend on the memory's timing."""
    offsets = {register.name: register.offset for register in register_map(geometry).registers}
    exact = {"status": DONE, "error": Cause.NONE}
    exact |= _halves({f"{unit}_completed": vectors.counters[unit]["completed"] for unit in unit_names(geometry)})
    timed = {"cycles": vectors.cycles}
    others = [name for name in COUNTERS if name != "completed"]
    timed |= {f"{unit}_{name}": vectors.counters[unit][name] for unit in unit_names(geometry) for name in others}
    reads = [f"{offsets[name]:08x}{value:08x}" for name, value in exact.items()]
    return reads + [f"{1 << 31 | offsets[name]:08x}{value:08x}" for name, value in _halves(timed).items()]


def _halves(values: Mapping[str, int]) -> dict[str, int]:
    """64-bit values as their two registers."""
    low = {f"{name}_low": value & 0xFFFFFFFF for name, value in values.items()}
    return low | {f"{name}_high": value >> 32 for name, value in values.items()}


def sparse_words(before: Bytes, after: Bytes, bus: int) -> str:
    """The bus words that differ, for ``$readmemh``: highest byte first, ``@`` where a run of them begins."""
    old, new = before.reshape(-1, bus), after.reshape(-1, bus)
    changed = np.flatnonzero((old != new).any(axis=1)).tolist()
    lines: list[str] = []
    last = -2
    for place in changed:
        if place != last + 1:
            lines.append(f"@{place:x}")
        lines.append(new[place].tobytes()[::-1].hex())
        last = place
    return "".join(f"{line}\n" for line in lines)


def _testbench(top: Circuit, geometry: Geometry, runs: Sequence[ProgramVectors], writes: int, reads: int) -> str:
    flags, payloads = [], []
    interface = interface_of(top)
    for channel in interface.channels:
        if channel.is_input:
            flags.append(channel.ready)
        else:
            flags.append(channel.valid)
            ports = [port.name for port in channel.payload if not port.name.endswith("wdata")]
            payloads.append((channel.valid, ports))
    flag_bits = len(flags) + sum(port.width for port in interface.levels)
    flags += [port.name for port in interface.levels]
    reset = top.library.reset_port
    asynchronous = top.library.reset == "async_low"
    environment = Environment(
        loader=PackageLoader("siliconloom.rtl.npu", "."),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    rules = f"tb_{top.module_name}"
    text: str = environment.get_template("testbench.v.j2").render(
        top=top.module_name,
        rules=rules,
        folder=FOLDER,
        **memory_parameters(geometry),
        words=len(runs[0].before) // geometry.bus,
        reset=reset,
        reset_active=f"!{reset}" if asynchronous else reset,
        asynchronous=asynchronous,
        reset_cycles=RESET_CYCLES,
        flags=flags,
        flag_bits=flag_bits,
        payloads=payloads,
        programs=len(runs),
        writes=writes,
        reads=reads,
        limit=1000 + LIMIT_FACTOR * max(vectors.cycles for vectors in runs),
        status=register_map(geometry).by_name["status"].offset,
    )
    return text + protocol_rules(rules)


__all__ = ["ProgramVectors", "program_bench", "sparse_words"]


def memory_parameters(geometry: Geometry) -> dict[str, Any]:
    """What the template of the memory needs to know of a tile."""
    return {
        "bus": geometry.bus,
        "shift": log2(geometry.bus),
        "port_bytes": geometry.port_bytes,
        "id_bits": geometry.id_bits,
        "port_shift": log2(geometry.port_bytes),
        "prefixes": prefixes(geometry),
        "latency": geometry.memory_cycles,
        "units": len(unit_names(geometry)),
        "channel": None if geometry.pim is None else channel_parameters(channel_geometry(geometry)),
        "commands": {command.name: command.value for command in Command},
    }


def channel_parameters(g: PimGeometry) -> dict[str, int]:
    """What the template of a channel's DRAM array needs to know of it; ``rows`` are those of every bank at least."""
    return {
        "burst": g.burst_bytes,
        "columns": g.tile.row_columns,
        "banks": g.tile.banks,
        "ranks": g.ranks,
        "group": g.tile.activate_group,
        "latency": g.timing.CL,
        "rows": BENCH_ROWS,
        "code_bits": CODE_BITS,
        "place_bits": g.place_bits,
        "row_bits": g.row_bits,
        "column_bits": g.column_bits,
    }
