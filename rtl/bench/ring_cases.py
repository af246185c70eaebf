"""Runs collectives on rings of chips in RTL, with producers that report at given times or with whole npu tiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.link import CONTROL_BITS, LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.rtl.bench.images import hex_image, memory_image
from siliconloom.rtl.bench.link_cases import COUNTERS, Fault, run_bench, template, write_hex
from siliconloom.rtl.bench.runner import Spent, require_simulator
from siliconloom.rtl.library import Library
from siliconloom.rtl.link.node import RingNode

Bytes = NDArray[np.uint8]
SETTLE = 400
"""Cycles after the last chip is done for which the bench looks out for more."""
NEVER = 0xFFFFFFFF


class RingCase(Struct, frozen=True):
    """A buffer to be summed over a ring.

    Parameters
    ----------
    words
        Flits of a chunk.
    memories
        Of each chip, a whole number of flits.
    starts
        For each chip the cycle in which its engine is started.
    produced
        For each chip: cycle, chunk, flits.
    base
        First flit of the buffer in memory.
    faults
        For each chip those on the wires of the link to the next one.
    """

    words: int
    memories: Sequence[Bytes]
    starts: Sequence[int]
    produced: Sequence[Sequence[tuple[int, int, int]]]
    base: int = 0
    faults: Sequence[Sequence[Fault]] = ()


class ChipOutcome(Struct):
    """What one chip did.

    Parameters
    ----------
    sent, arrived
        Cycles in which each message's first flit was read, and its last one taken; with the chunk's number.
    done
        First cycle of being done.
    counters
        By name; of the sender to the next chip and the receiver from the previous one.
    memory
        Afterwards.
    units
        Of a tile: cycle, cycle of the run, units that issued, units that completed.
    started
        Of a tile: cycle in which the write that starts it was taken.
    """

    sent: list[tuple[int, int]] = field(default_factory=list)
    arrived: list[tuple[int, int]] = field(default_factory=list)
    done: int = -1
    counters: dict[str, int] = field(default_factory=dict)
    memory: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    units: list[tuple[int, int, int, int]] = field(default_factory=list)
    started: int = -1


def run_ring_cases(
    engine: RingEngine,
    protocol: LinkProtocol,
    chips: int,
    cases: Sequence[RingCase],
    *,
    folder: Path,
    simulator: str = "verilator",
    limit: int = 400_000,
    spent: Spent | None = None,
) -> list[list[ChipOutcome]]:
    """Build a ring of nodes with producers that report as told, and run ``cases`` on it; outcomes chip by chip.

    The time it took is added to ``spent``.

    Raises
    ------
    LoomError
        When the simulator is missing or stops before its end.
    """
    require_simulator(simulator)
    folder.mkdir(parents=True, exist_ok=True)
    library = Library("bench")
    node = library.make(RingNode, chips, engine, protocol)
    flit_bytes = protocol.flit_bits // 8
    depth = max(len(m) for case in cases for m in case.memories) // flit_bytes
    events = max(len(p) for case in cases for p in case.produced) + 1
    texts = library.verilog(node)
    texts["ring_bench"] = template("ring.v.j2").render(
        **wiring(protocol, chips, cases),
        tile=False,
        words=depth,
        events=events,
        node=node.module_name,
        chunk_bits=max(1, (engine.chunks(chips) - 1).bit_length()),
    )
    sources = []
    for name, text in texts.items():
        sources.append(folder / f"{name}.v")
        sources[-1].write_text(text, encoding="utf-8")
    for index, case in enumerate(cases):
        write_case(folder, index, case, protocol, depth)
        for rank in range(chips):
            records = [c << 32 | chunk << 16 | words for c, chunk, words in sorted(case.produced[rank])]
            write_hex(folder / f"events_{index}_{rank}.hex", records + [NEVER << 32] * (events - len(records)))
    ended = run_bench(folder, sources, "ring_bench", len(cases), simulator, limit, spent)
    return [
        [read_outcome(folder, index, rank, case.words, flit_bytes, end) for rank in range(chips)]
        for index, (case, end) in enumerate(zip(cases, ended, strict=True))
    ]


def wiring(protocol: LinkProtocol, chips: int, cases: Sequence[RingCase]) -> dict[str, Any]:
    """What the template needs to know of the ring."""
    faults = max([len(f) for case in cases for f in case.faults], default=0) + 2
    return {
        "chips": chips,
        "flit": protocol.flit_bits,
        "wire": protocol.wire_cycles,
        "faults": faults,
        "settle": SETTLE,
        "rank_bits": (chips - 1).bit_length(),
    }


def write_case(
    folder: Path, index: int, case: RingCase, protocol: LinkProtocol, depth: int, tile_starts: Sequence[int] = ()
) -> None:
    """Memories, settings and faults of a case."""
    flit_bytes, width = protocol.flit_bits // 8, protocol.flit_bits
    most = max([len(f) for f in case.faults], default=0) + 1
    write_hex(folder / f"words_{index}.hex", [case.words])
    for rank, memory in enumerate(case.memories):
        (folder / f"memory_{index}_{rank}.hex").write_text(hex_image(memory, flit_bytes, depth), encoding="ascii")
        tile_start = tile_starts[rank] if tile_starts else NEVER
        write_hex(folder / f"setting_{index}_{rank}.hex", [case.starts[rank], case.base, tile_start])
        records = [
            f.flit | f.control << width | f.symbol << width + CONTROL_BITS | f.cycle << width + CONTROL_BITS + 4
            for f in (case.faults[rank] if case.faults else ())
        ]
        records += [NEVER << width + CONTROL_BITS + 4] * (most + 1 - len(records))
        write_hex(folder / f"faults_{index}_{rank}.hex", records)


def read_outcome(folder: Path, index: int, rank: int, words: int, flit_bytes: int, ended: bool) -> ChipOutcome:
    """The log of a chip; an unfinished one has no memory."""
    outcome = ChipOutcome()
    for line in (folder / f"log_{index}_{rank}.txt").read_text(encoding="ascii").splitlines():
        kind, *texts = line.split()
        values = list(map(int, texts))
        if kind == "S" and values[1] % words == 0:
            outcome.sent.append((values[0], values[1] // words))
        elif kind == "R" and values[1] % words == words - 1:
            outcome.arrived.append((values[0], values[1] // words))
        elif kind == "E":
            outcome.done = values[0]
        elif kind == "G":
            outcome.started = values[0]
        elif kind == "U":
            outcome.units.append((values[0], values[1], values[2], values[3]))
        elif kind == "C":
            outcome.counters = dict(zip((*COUNTERS, "misframed"), values, strict=True))
    if ended:
        outcome.memory = memory_image(folder / f"result_{index}_{rank}.hex", flit_bytes)
    return outcome
