"""A testbench in plain Verilog for an NPU tile: one program, its memory before and after, what the counters must read.

It needs nothing but a Verilog simulator, so that the evidence travels with the Verilog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from siliconloom.arch.isa import WORD_BYTES, Program
from siliconloom.rtl.bench.programs import memory_parameters
from siliconloom.rtl.flows.channels import interface_of
from siliconloom.rtl.flows.testbench import FOLDER, RESET_CYCLES
from siliconloom.rtl.library import Circuit
from siliconloom.rtl.npu.geometry import Geometry
from siliconloom.rtl.npu.registers import COUNTERS, UNITS, Cause, register_map

Bytes = NDArray[np.uint8]
DONE = 2
START = 3
LIMIT_FACTOR = 40
"""How many times longer than predicted a run may take: a memory that hesitates is slow."""


@dataclass(frozen=True, kw_only=True)
class ProgramVectors:
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


def program_bench(top: Circuit, geometry: Geometry, vectors: ProgramVectors) -> dict[str, str]:
    """The testbench of the tile ``top`` and its vectors, text by file name.

    Raises
    ------
    ValueError
        When the memory is not a whole number of bus words, or does not hold the program at ``base``.
    """
    bus = geometry.bus
    code = np.frombuffer(vectors.program.encode(), np.uint8)
    if len(vectors.before) != len(vectors.after) or len(vectors.before) % bus:
        raise ValueError(
            f"memory before and after must be equally many words of {bus} bytes "
            f"(got {len(vectors.before)} and {len(vectors.after)} bytes)"
        )
    if vectors.base % WORD_BYTES or not np.array_equal(vectors.before[vectors.base :][: len(code)], code):
        raise ValueError(f"memory must hold the program at {vectors.base:#x}, a multiple of {WORD_BYTES}")
    offsets = {register.name: register.offset for register in register_map().registers}
    program = vectors.program
    writes = {"program_low": vectors.base & 0xFFFFFFFF, "program_high": vectors.base >> 32}
    writes |= {"program_words": len(program.instructions)}
    writes |= {f"semaphore_{number}": each.initial for number, each in enumerate(program.semaphores)}
    writes["control"] = START
    exact = {"status": DONE, "error": Cause.NONE}
    exact |= _halves({f"{unit}_completed": vectors.counters[unit]["completed"] for unit in UNITS})
    timed = {"cycles": vectors.cycles}
    timed |= {f"{unit}_{c}": vectors.counters[unit][c] for unit in UNITS for c in COUNTERS if c != "completed"}
    reads = [f"{offsets[name]:08x}{value:08x}" for name, value in exact.items()]
    reads += [f"{1 << 31 | offsets[name]:08x}{value:08x}" for name, value in _halves(timed).items()]
    name = top.module_name
    blank = np.zeros_like(vectors.before)
    return {
        f"{FOLDER}/tb_{name}.v": _testbench(top, geometry, vectors, len(writes), len(reads)),
        f"{FOLDER}/{name}_memory.hex": _sparse(blank, vectors.before, bus),
        f"{FOLDER}/{name}_expected.hex": _sparse(vectors.before, vectors.after, bus),
        f"{FOLDER}/{name}_writes.hex": "".join(f"{offsets[r]:08x}{value:08x}\n" for r, value in writes.items()),
        f"{FOLDER}/{name}_reads.hex": "".join(f"{line}\n" for line in reads),
    }


def _halves(values: Mapping[str, int]) -> dict[str, int]:
    """64-bit values as their two registers."""
    low = {f"{name}_low": value & 0xFFFFFFFF for name, value in values.items()}
    return low | {f"{name}_high": value >> 32 for name, value in values.items()}


def _sparse(before: Bytes, after: Bytes, bus: int) -> str:
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


def _testbench(top: Circuit, geometry: Geometry, vectors: ProgramVectors, writes: int, reads: int) -> str:
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
        loader=PackageLoader("siliconloom.rtl.bench", "."), undefined=StrictUndefined, keep_trailing_newline=True,
        trim_blocks=True,
    )  # fmt: skip
    return environment.get_template("testbench.v.j2").render(
        top=top.module_name, folder=FOLDER, **memory_parameters(geometry),
        words=len(vectors.before) // geometry.bus, reset=reset,
        reset_active=f"!{reset}" if asynchronous else reset, asynchronous=asynchronous, reset_cycles=RESET_CYCLES,
        flags=flags, flag_bits=flag_bits, payloads=payloads, writes=writes, reads=reads,
        limit=1000 + LIMIT_FACTOR * vectors.cycles, status=register_map().by_name["status"].offset,
    )  # fmt: skip


__all__ = ["ProgramVectors", "program_bench"]
