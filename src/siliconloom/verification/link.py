"""A ring of chips in RTL against its cycle models and NumPy: links, engines, and a block computed by whole chips."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch import Chip, System
from siliconloom.arch.chip_ring import ring_parts
from siliconloom.arch.isa import Program
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.listing import disassemble
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.verified import LinkCase, LinkWork, RingShape, Seen, VerifiedLink
from siliconloom.arch.working import working_folder
from siliconloom.rtl.bench.link_cases import LinkBenchCase, LinkOutcome, run_link_cases
from siliconloom.rtl.bench.ring_cases import ChipOutcome, RingCase, run_ring_cases
from siliconloom.rtl.bench.ring_tiles import SET_UP, TileCase, run_tile_cases
from siliconloom.rtl.bench.runner import Spent
from siliconloom.sim.chip.engine import run
from siliconloom.sim.dram.memory import effective
from siliconloom.sim.network.ring import ChipRun, Produced, run_ring
from siliconloom.verification.link_cases import (
    modelled_faults,
    modelled_link,
    modelled_ring,
    random_faults,
    random_link_case,
    random_ring_case,
    ring_memories,
)
from siliconloom.verification.npu import TRACE, execution_stream, executions
from siliconloom.verification.parity import Findings, Parity, ParityStream, instant
from siliconloom.verification.ring_layers import ShardRun, mlp_shards

BEGINS = 1
"""Cycles from the register write that starts a tile to cycle 0 of its run."""
RATES = (0.0, 0.0, 0.002, 0.01)
"""Chances of a fault in a cycle, case after case."""
TOKENS, HIDDEN, INNER = 32, 32, 128
"""Shape of the block: tokens, columns of its result, hidden units of all chips."""


class LinkParity(Parity, kw_only=True):
    """What comparing one case showed.

    Parameters
    ----------
    work
        Packets over a link, a collective (engines and links, producers that report as told) or a block (whole chips).
    messages
        Packets, or chunks that chips sent.
    faults, retries
        Cycles with wrong bits on a wire until the end, and times that senders went back in the RTL.
    instructions, tile_cycles, sequential_cycles
        Of a block: executed by all chips, the slowest tile's run, and the end if the collective waited for it.
    """

    work: Literal["packets", "collective", "block"]
    messages: int
    faults: int
    retries: int
    instructions: int | None = None
    tile_cycles: int | None = None
    sequential_cycles: int | None = None

    def case(self) -> LinkCase:
        """Entry of the record."""
        work = LinkWork(
            faults=self.faults,
            retries=self.retries,
            tile_cycles=self.tile_cycles,
            sequential_cycles=self.sequential_cycles,
        )
        return LinkCase(
            **self.common(), work=self.work, messages=self.messages, instructions=self.instructions, link=work
        )


def verify_ring(system: System, *, seed: int, simulator: str, cases: int, spent: Spent) -> Findings:
    """Build links, engines and chips of a ring, run random work and an MLP block on them, and compare.

    Raises
    ------
    NotSupported, LoomError
        As `ring_parts`; when the simulator is missing or fails.
    """
    chip, engine, protocol, chips = ring_parts(system)
    chip = effective(chip)
    rates = [RATES[number % len(RATES)] for number in range(cases)]
    link_jobs = [random_link_case(protocol, 1000 * seed + n, rate) for n, rate in enumerate(rates)]
    ring_jobs = [random_ring_case(engine, protocol, chips, 1000 * seed + n, rate) for n, rate in enumerate(rates)]
    blocks = mlp_blocks(chip, engine, protocol, chips, seed)
    with working_folder("verify") as folder:
        options: dict[str, Any] = {"simulator": simulator, "spent": spent}
        links = run_link_cases(protocol, link_jobs, folder=folder / "link", **options)
        rings = run_ring_cases(engine, protocol, chips, ring_jobs, folder=folder / "ring", **options)
        tiles = run_tile_cases(
            chip, engine, protocol, chips, [b.case for b in blocks], folder=folder / "tiles", **options
        )
    found = [
        *(compare_link(protocol, n, job, made) for n, (job, made) in enumerate(zip(link_jobs, links, strict=True))),
        *(compare_ring(engine, protocol, n, *both) for n, both in enumerate(zip(ring_jobs, rings, strict=True))),
        *(compare_block(chip, engine, protocol, *both) for both in zip(blocks, tiles, strict=True)),
    ]
    return Findings(
        VerifiedLink,
        "links, ring engines, and chips: tile, store tracker, engine and links, all in RTL",
        [parity.case() for parity in found],
        behavioural="memories, wires, the host; in the cases named ring also what is produced, and when",
        sections={"ring": RingShape(chips=chips, chip=chip.name, tokens=TOKENS, hidden=HIDDEN, inner=INNER)},
    )


# Links and engines ---------------------------------------------------------------------------------------------------


def compare_link(protocol: LinkProtocol, number: int, case: LinkBenchCase, outcome: LinkOutcome) -> LinkParity:
    """Every flit once, in order, bit by bit; taken and delivered in the model's cycles; the model's counters."""
    model = modelled_link(protocol, case)
    parity = LinkParity(
        name=f"link {number}",
        work="packets",
        messages=sum(last for _, last in case.flits),
        faults=sum(f.cycle <= model.delivered[-1] for f in case.faults),
        retries=outcome.counters.get("retries", 0),
    )
    parity.bytes_compared = min(len(outcome.flits), len(case.flits)) * protocol.flit_bits // 8
    if not outcome.ended:
        parity.value_errors.append("the link did not deliver every flit")
    elif outcome.flits != list(case.flits):
        parity.value_errors.append("flits differ from what was sent")
    parity.cycles(outcome.delivered[-1] if outcome.delivered else -1, model.delivered[-1])
    parity.hold(
        [
            ParityStream("taken flit", model.taken, outcome.taken, instant),
            ParityStream("delivered flit", model.delivered, outcome.delivered, instant),
        ]
    )
    counts = model.counts
    for name, value in (
        ("retries", counts.retries),
        ("timeouts", counts.timeouts),
        ("errors", counts.errors),
        ("duplicates", counts.duplicates),
        ("overflows", 0),
    ):
        parity.count(name, outcome.counters.get(name), value)
    return parity


def compare_ring(
    engine: RingEngine, protocol: LinkProtocol, number: int, case: RingCase, outcomes: Sequence[ChipOutcome]
) -> LinkParity:
    """Memory as NumPy's; every chunk sent and arrived, and every chip done, in the model's cycles."""
    model = modelled_ring(engine, protocol, case)
    parity = _ring_parity(f"ring {number}", "collective", engine, case, outcomes, model)
    parity.cycles(max(o.done for o in outcomes), max(m.done for m in model))
    compare_collective(parity, engine, outcomes, model, ring_memories(engine, protocol, case))
    return parity


def _ring_parity(
    name: str,
    work: Literal["collective", "block"],
    engine: RingEngine,
    case: RingCase,
    outcomes: Sequence[ChipOutcome],
    model: Sequence[ChipRun],
) -> LinkParity:
    end = max(m.done for m in model)
    return LinkParity(
        name=name,
        work=work,
        messages=len(outcomes) * engine.messages(len(outcomes)),
        faults=sum(f.cycle < end for found in case.faults for f in found),
        retries=sum(o.counters.get("retries", 0) for o in outcomes),
    )


def compare_collective(
    parity: LinkParity,
    engine: RingEngine,
    outcomes: Sequence[ChipOutcome],
    model: Sequence[ChipRun],
    memories: Sequence[NDArray[np.uint8]],
) -> None:
    """Add what differs, chip by chip."""
    chips = len(outcomes)
    numbers = range(engine.messages(chips))
    for rank, (outcome, said) in enumerate(zip(outcomes, model, strict=True)):
        streams: list[ParityStream[Any]] = [
            ParityStream(f"chip {rank}, {what} chunk", list(zip(cycles, chunks, strict=True)), rtl, _chunk)
            for what, rtl, cycles, chunks in (
                ("sent", outcome.sent, said.sent, [engine.chunk_sent(rank, n, chips) for n in numbers]),
                (
                    "arrived",
                    outcome.arrived,
                    said.arrived,
                    [engine.chunk_sent((rank - 1) % chips, n, chips) for n in numbers],
                ),
            )
        ]
        parity.hold(
            [*streams, ParityStream(f"chip {rank}, end of the collective", [said.done], [outcome.done], instant)]
        )
        if not len(outcome.memory):
            parity.value_errors.append(f"chip {rank}: the ring did not come to its end")
            continue
        parity.same_bytes(f"the memory of chip {rank}", outcome.memory, memories[rank])
        for name in ("overflows", "misframed"):
            if outcome.counters.get(name):
                parity.value_errors.append(f"chip {rank}: {outcome.counters[name]} {name}")


def _chunk(event: tuple[int, int]) -> Seen:
    return Seen(cycle=event[0], what=f"chunk {event[1]}")


# A block on whole chips ----------------------------------------------------------------------------------------------


class RingBlock(Struct, frozen=True):
    """A tensor-parallel MLP block: what every chip runs, and the case of the bench."""

    name: str
    shards: Sequence[ShardRun]
    case: TileCase


def mlp_blocks(chip: Chip, engine: RingEngine, protocol: LinkProtocol, chips: int, seed: int) -> list[RingBlock]:
    """The block with chips that start together, at random, and on wires with wrong bits."""
    chance = random.Random(seed)
    blocks = []
    for number, (name, late, rate) in enumerate((("together", 0, 0.0), ("apart", 4000, 0.0), ("errors", 500, 0.01))):
        shards = mlp_shards(chip, engine, chips, tokens=TOKENS, hidden=HIDDEN, inner=INNER, seed=1000 * seed + number)
        words = TOKENS * HIDDEN // engine.chunks(chips) // (protocol.flit_bits // 8)
        faults = [random_faults(protocol, chance, rate, 20_000) for _ in range(chips)]
        ring = RingCase(
            words,
            [s.memory for s in shards],
            [5 + rank for rank in range(chips)],
            [()] * chips,
            shards[0].buffer // (protocol.flit_bits // 8),
            faults,
        )
        starts = [SET_UP + chance.randint(0, late) for _ in range(chips)]
        blocks.append(
            RingBlock(
                f"MLP, {name}", shards, TileCase(ring, [s.program for s in shards], [s.base for s in shards], starts)
            )
        )
    return blocks


def compare_block(
    chip: Chip, engine: RingEngine, protocol: LinkProtocol, block: RingBlock, outcomes: Sequence[ChipOutcome]
) -> LinkParity:
    """Memory as NumPy's; every instruction, chunk and chip in the cycles of the simulator and of the ring's model.

    The model knows when the host starts each tile, the programs, and the wrong bits. The tracker reports a chunk's last
    store in the last cycle of that store.
    """
    case = block.case.ring
    runs = [run(s.program, chip, exact=True, trace_limit=TRACE) for s in block.shards]
    zeros = [start + BEGINS for start in block.case.tile_starts]
    faults = [modelled_faults(list(found)) for found in case.faults]
    executed_by_all, produced, after, streams = 0, [], [], []
    for rank, (shard, made, zero, outcome) in enumerate(zip(block.shards, runs, zeros, outcomes, strict=True)):
        executed = executions(shard.program, made, chip)
        executed_by_all += sum(len(each) for each in executed.values())
        streams += _tile_streams(rank, shard.program, executed, zero, outcome)
        ends = [end + zero for _, _, end in executed["store"]]
        produced.append([Produced(ends[n] - 1, chunk, words) for n, chunk, words in shard.stores])
        last = max(p.cycle for p in produced[-1])
        after.append([Produced(last, p.chunk, p.words) for p in produced[-1]])
    model = run_ring(engine, protocol, case.words, case.starts, produced, faults)
    waited = run_ring(engine, protocol, case.words, case.starts, after, faults)
    first = min(zeros)
    parity = _ring_parity(block.name, "block", engine, case, outcomes, model)
    parity.instructions = executed_by_all
    parity.tile_cycles = max(m.cycles for m in runs)
    parity.sequential_cycles = max(m.done for m in waited) - first
    parity.cycles(max(o.done for o in outcomes) - first, max(m.done for m in model) - first)
    parity.hold(streams)
    memories = ring_memories(engine, protocol, case, [s.after for s in block.shards])
    compare_collective(parity, engine, outcomes, model, memories)
    return parity


def _tile_streams(
    rank: int, program: Program, executed: dict[str, list[tuple[int, int, int]]], zero: int, outcome: ChipOutcome
) -> list[ParityStream[Any]]:
    """When a chip's tile began, and start and end of every execution of its units, beside the model's from ``zero``."""
    begun = [cycle - count for cycle, count, _, _ in outcome.units[:1]]
    streams: list[ParityStream[Any]] = [ParityStream(f"chip {rank}, start of the tile's run", [zero], begun, instant)]
    lines = disassemble(program).splitlines()
    for number, unit in enumerate(executed):
        issued = [cycle for cycle, _, starts, _ in outcome.units if starts >> number & 1]
        completed = [cycle + 1 for cycle, _, _, ends in outcome.units if ends >> number & 1]
        streams.append(execution_stream(f"chip {rank}, {unit}", lines, executed[unit], issued, completed, zero))
    return streams
