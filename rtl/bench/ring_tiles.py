"""Runs programs on a ring of whole npu chips in RTL: tiles, trackers, engines and links in one bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.isa import Program
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.rtl.bench.link_cases import run_bench, template, write_hex
from siliconloom.rtl.bench.ring_cases import ChipOutcome, RingCase, read_outcome, wiring, write_case
from siliconloom.rtl.bench.runner import Spent, require_simulator
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.design import ring_chip
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.registers import register_map
from siliconloom.rtl.npu.testbench import memory_parameters

SET_UP = 400
"""Cycles in which the bench's host has written a tile's registers, ten cycles each, before it starts the tile."""


class TileCase(Struct, frozen=True):
    """A ring case whose chips compute what they sum: the tiles' programs, addresses and earliest starts."""

    ring: RingCase
    programs: Sequence[Program]
    bases: Sequence[int]
    tile_starts: Sequence[int]


def run_tile_cases(
    chip: Chip,
    engine: RingEngine,
    protocol: LinkProtocol,
    chips: int,
    cases: Sequence[TileCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    limit: int = 2_000_000,
    spent: Spent | None = None,
) -> list[list[ChipOutcome]]:
    """Build a ring of ``chips`` chips with tiles and run ``cases`` on it; outcomes chip by chip.

    The time it took is added to ``spent``.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before its end.
    NotSupported
        For chips that have no RTL, or whose words of memory are no flits.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    library = Library("ring")
    top = ring_chip(library, chip, engine, protocol, chips)
    geometry = geometry_of(chip)
    depth = max(len(m) for case in cases for m in case.ring.memories) // geometry.bus
    registers = {register.name: register.offset for register in register_map().registers}
    texts = library.verilog(top)
    lists = [[_writes(registers, p, b) for p, b in zip(c.programs, c.bases, strict=True)] for c in cases]
    texts["ring_bench"] = template("ring.v.j2").render(
        **wiring(protocol, chips, [case.ring for case in cases]),
        tile=True,
        writes=len(lists[0][0]),
        top=top.module_name,
        rules="ring_bench",
        words=depth,
        **memory_parameters(geometry),
        reset="rst",
        reset_active="rst",
        extra=_connections(protocol.flit_bits, (chips - 1).bit_length()),
    ) + protocol_rules("ring_bench")
    sources = []
    for name, text in texts.items():
        sources.append(folder / f"{name}.v")
        sources[-1].write_text(text, encoding="utf-8")
    for index, case in enumerate(cases):
        write_case(folder, index, case.ring, protocol, depth, case.tile_starts)
        for rank in range(chips):
            write_hex(folder / f"writes_{index}_{rank}.hex", lists[index][rank])
    ended = run_bench(folder, sources, "ring_bench", len(cases), simulator, limit, spent)
    return [
        [read_outcome(folder, index, rank, case.ring.words, geometry.bus, end) for rank in range(chips)]
        for index, (case, end) in enumerate(zip(cases, ended, strict=True))
    ]


def _writes(registers: dict[str, int], program: Program, base: int) -> list[int]:
    """Address and value of the register writes before a run; the last one starts it."""
    values = {"program_low": base, "program_high": 0, "program_words": len(program.instructions)}
    values |= {f"semaphore_{i}": s.initial for i, s in enumerate(program.semaphores)}
    values["control"] = 3
    return [registers[name] << 32 | value for name, value in values.items()]


def _connections(width: int, rank_bits: int) -> str:
    """Ports of a chip beside those of its tile, as the template names what they are connected to."""
    wires = {
        "start": "start",
        "rank": f"rank[{rank_bits - 1}:0]",
        "base": "setting[1]",
        "words": "words",
        "write": "put",
        "next_symbol": f"next[{width} +: 3]",
        "next_flit": f"next[{width - 1}:0]",
        "previous_symbol": f"previous[{width} +: 3]",
        "previous_flit": f"previous[{width - 1}:0]",
    }
    same = (
        "send_read",
        "send_address",
        "send_data",
        "sum_read",
        "sum_address",
        "sum_data",
        "write_address",
        "write_data",
        "busy",
        "done",
        "misframed",
        "next_control",
        "previous_control",
        "retries",
        "timeouts",
        "control_errors",
        "errors",
        "duplicates",
        "overflows",
    )
    wires |= {name: name for name in same}
    return "".join(f".ring_{port}({wire}), " for port, wire in wires.items())
