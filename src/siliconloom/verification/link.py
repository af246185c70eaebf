"""A ring of chips in RTL against its cycle models and NumPy: links, engines, and a block computed by whole chips."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom import __version__
from siliconloom.arch import Chip, System
from siliconloom.arch.chip_ring import ring_parts
from siliconloom.arch.isa import Unit
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import RingEngine
from siliconloom.arch.working import working_folder
from siliconloom.rtl.bench.link_cases import LinkCase, LinkOutcome, run_link_cases
from siliconloom.rtl.bench.ring_cases import ChipOutcome, RingCase, run_ring_cases
from siliconloom.rtl.bench.ring_tiles import SET_UP, TileCase, run_tile_cases
from siliconloom.rtl.bench.runner import require_simulator
from siliconloom.rtl.npu.registers import UNITS
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
from siliconloom.verification.ring_layers import ShardRun, mlp_shards

SCHEMA = "siliconloom.verification/4"
TRACE = 1_000_000
BEGINS = 1
"""Cycles from the register write that starts a tile to cycle 0 of its run."""
RATES = (0.0, 0.0, 0.002, 0.01)
"""Chances of a fault in a cycle, case after case."""
TOKENS, HIDDEN, INNER = 32, 32, 128
"""Shape of the block: tokens, columns of its result, hidden units of all chips."""


@dataclass
class LinkParity:
    """What comparing one case showed.

    Parameters
    ----------
    kind
        ``link``, ``ring`` (engines and links, producers that report as told) or ``mlp`` (whole chips).
    rtl_cycles, model_cycles
        Until the last flit was delivered, or the last chip was done.
    compared
        Cycles that were held against each other.
    faults, retries
        Cycles with wrong bits on a wire until then, and times that senders went back in the RTL.
    """

    name: str
    kind: str
    rtl_cycles: int
    model_cycles: int
    compared: int
    faults: int
    retries: int
    value_errors: list[str] = field(default_factory=list)
    cycle_errors: list[str] = field(default_factory=list)
    sequential_cycles: int | None = None
    tile_cycles: int | None = None

    def summary(self) -> dict[str, Any]:
        """Entry of the result."""
        found = {
            "name": self.name,
            "kind": self.kind,
            "rtl_cycles": self.rtl_cycles,
            "model_cycles": self.model_cycles,
            "difference": self.rtl_cycles - self.model_cycles,
            "compared": self.compared,
            "faults": self.faults,
            "retries": self.retries,
            "values_equal": not self.value_errors,
            "cycles_equal": not self.cycle_errors,
            "errors": [*self.value_errors, *self.cycle_errors][:5],
        }
        if self.kind == "mlp":
            found |= {"tile_cycles": self.tile_cycles, "sequential_cycles": self.sequential_cycles}
        return found


def verify_ring(system: System, *, seed: int, simulator: str, cases: int) -> dict[str, Any]:
    """Build links, engines and chips of a ring, run random work and an MLP block on them, and compare.

    Raises
    ------
    NotSupported, LoomError
        As `ring_parts`; when the simulator is missing or fails.
    """
    require_simulator(simulator)
    chip, engine, protocol, chips = ring_parts(system)
    chip = effective(chip)
    began = time.perf_counter()
    rates = [RATES[number % len(RATES)] for number in range(cases)]
    link_jobs = [random_link_case(protocol, 1000 * seed + n, rate) for n, rate in enumerate(rates)]
    ring_jobs = [random_ring_case(engine, protocol, chips, 1000 * seed + n, rate) for n, rate in enumerate(rates)]
    blocks = mlp_blocks(chip, engine, protocol, chips, seed)
    with working_folder("verify") as folder:
        options: dict[str, Any] = {"simulator": simulator}
        links = run_link_cases(protocol, link_jobs, folder=folder / "link", **options)
        rings = run_ring_cases(engine, protocol, chips, ring_jobs, folder=folder / "ring", **options)
        tiles = run_tile_cases(
            chip, engine, protocol, chips, [b.case for b in blocks], folder=folder / "tiles", **options
        )
    found = [compare_link(protocol, n, job, made) for n, (job, made) in enumerate(zip(link_jobs, links, strict=True))]
    found += [
        compare_ring(engine, protocol, n, job, made) for n, (job, made) in enumerate(zip(ring_jobs, rings, strict=True))
    ]
    found += [compare_block(chip, engine, protocol, b, made) for b, made in zip(blocks, tiles, strict=True)]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "system": system.name,
        "chips": chips,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "tile": "ring",
        "simulator": simulator,
        "seed": seed,
        "verified": "links, ring engines, and chips: tile, store tracker, engine and links, all in RTL",
        "behavioural": "memories, wires, the host; in the cases named ring also what is produced, and when",
        "block": {"tokens": TOKENS, "hidden": HIDDEN, "inner": INNER},
        "wall_s": time.perf_counter() - began,
        "passed": not any(p.value_errors or p.cycle_errors for p in found),
        "cases": [p.summary() for p in found],
    }


# Links and engines ---------------------------------------------------------------------------------------------------


def compare_link(protocol: LinkProtocol, number: int, case: LinkCase, outcome: LinkOutcome) -> LinkParity:
    """Every flit once, in order, bit by bit; taken and delivered in the model's cycles; the model's counters."""
    model = modelled_link(protocol, case)
    faults = sum(f.cycle <= model.delivered[-1] for f in case.faults)
    parity = LinkParity(
        f"link {number}",
        "link",
        outcome.delivered[-1] if outcome.delivered else -1,
        model.delivered[-1],
        len(model.taken) + len(model.delivered),
        faults,
        outcome.counters.get("retries", 0),
    )
    if not outcome.ended:
        parity.value_errors.append("the link did not deliver every flit")
    elif outcome.flits != list(case.flits):
        parity.value_errors.append("flits differ from what was sent")
    for what, rtl, said in (("taken", outcome.taken, model.taken), ("delivered", outcome.delivered, model.delivered)):
        _first_difference(parity, f"flits {what}", rtl, said)
    counts = model.counts
    expected = {
        "retries": counts.retries,
        "timeouts": counts.timeouts,
        "errors": counts.errors,
        "duplicates": counts.duplicates,
        "overflows": 0,
    }
    for name, value in expected.items():
        if outcome.counters.get(name) != value:
            parity.cycle_errors.append(f"the link counted {outcome.counters.get(name)} {name}, the model {value}")
    return parity


def compare_ring(
    engine: RingEngine, protocol: LinkProtocol, number: int, case: RingCase, outcomes: Sequence[ChipOutcome]
) -> LinkParity:
    """Memory as NumPy's; every chunk sent and arrived, and every chip done, in the model's cycles."""
    model = modelled_ring(engine, protocol, case)
    parity = _ring_parity(f"ring {number}", "ring", case, outcomes, model)
    compare_collective(parity, engine, outcomes, model, ring_memories(engine, protocol, case))
    return parity


def _ring_parity(
    name: str, kind: str, case: RingCase, outcomes: Sequence[ChipOutcome], model: Sequence[ChipRun], begin: int = 0
) -> LinkParity:
    end = max(m.done for m in model)
    faults = sum(f.cycle < end for found in case.faults for f in found)
    return LinkParity(
        name,
        kind,
        max(o.done for o in outcomes) - begin,
        end - begin,
        0,
        faults,
        sum(o.counters.get("retries", 0) for o in outcomes),
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
        sent = [engine.chunk_sent(rank, n, chips) for n in numbers]
        arrived = [engine.chunk_sent((rank - 1) % chips, n, chips) for n in numbers]
        for what, rtl, cycles, chunks in (
            ("sent", outcome.sent, said.sent, sent),
            ("arrived", outcome.arrived, said.arrived, arrived),
        ):
            _first_difference(parity, f"chip {rank}: chunks {what}", rtl, list(zip(cycles, chunks, strict=True)))
        _first_difference(parity, f"chip {rank}: done", [outcome.done], [said.done])
        parity.compared += 2 * len(numbers) + 1
        if not len(outcome.memory):
            parity.value_errors.append(f"chip {rank}: the ring did not come to its end")
            continue
        wrong = np.flatnonzero(outcome.memory[: len(memories[rank])] != memories[rank])
        if len(wrong):
            parity.value_errors.append(f"chip {rank}: {len(wrong)} bytes differ, the first at {wrong[0]:#x}")
        for name in ("overflows", "misframed"):
            if outcome.counters.get(name):
                parity.value_errors.append(f"chip {rank}: {outcome.counters[name]} {name}")


def _first_difference(parity: LinkParity, what: str, rtl: Sequence[Any], model: Sequence[Any]) -> None:
    for number in range(max(len(rtl), len(model))):
        pair = [side[number] if number < len(side) else "nothing" for side in (rtl, model)]
        if pair[0] != pair[1]:
            parity.cycle_errors.append(f"{what}, number {number}: RTL {pair[0]}, model {pair[1]}")
            return


# A block on whole chips ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A tensor-parallel MLP block: what every chip runs, and the case of the bench."""

    name: str
    shards: Sequence[ShardRun]
    case: TileCase


def mlp_blocks(chip: Chip, engine: RingEngine, protocol: LinkProtocol, chips: int, seed: int) -> list[Block]:
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
            Block(f"MLP, {name}", shards, TileCase(ring, [s.program for s in shards], [s.base for s in shards], starts))
        )
    return blocks


def compare_block(
    chip: Chip, engine: RingEngine, protocol: LinkProtocol, block: Block, outcomes: Sequence[ChipOutcome]
) -> LinkParity:
    """Memory as NumPy's; every instruction, chunk and chip in the cycles of the simulator and of the ring's model.

    The model knows when the host starts each tile, the programs, and the wrong bits. The tracker reports a chunk's last
    store in the last cycle of that store.
    """
    case = block.case.ring
    runs = [run(s.program, chip, exact=True, trace_limit=TRACE) for s in block.shards]
    zeros = [start + BEGINS for start in block.case.tile_starts]
    faults = [modelled_faults(list(found)) for found in case.faults]
    produced, after, timelines = [], [], []
    for shard, made, zero in zip(block.shards, runs, zeros, strict=True):
        rows = made.trace.tolist()
        units = [
            [(r[4] + zero, r[3] + zero) for r in rows if shard.program.instructions[r[0]].unit == Unit[unit.upper()]]
            for unit in UNITS
        ]
        timelines.append(units)
        ends = [end for _, end in units[UNITS.index("store")]]
        produced.append([Produced(ends[n] - 1, chunk, words) for n, chunk, words in shard.stores])
        last = max(p.cycle for p in produced[-1])
        after.append([Produced(last, p.chunk, p.words) for p in produced[-1]])
    model = run_ring(engine, protocol, case.words, case.starts, produced, faults)
    parity = _ring_parity(block.name, "mlp", case, outcomes, model, min(zeros))
    parity.tile_cycles = max(m.cycles for m in runs)
    waited = run_ring(engine, protocol, case.words, case.starts, after, faults)
    parity.sequential_cycles = max(m.done for m in waited) - min(zeros)
    for rank, (outcome, units) in enumerate(zip(outcomes, timelines, strict=True)):
        _first_difference(
            parity, f"chip {rank}: the tile's run", [c - n for c, n, _, _ in outcome.units[:1]], [zeros[rank]]
        )
        for number, unit in enumerate(UNITS):
            issued = [c for c, _, i, _ in outcome.units if i >> number & 1]
            completed = [c + 1 for c, _, _, d in outcome.units if d >> number & 1]
            _first_difference(parity, f"chip {rank}: {unit} issued", issued, [i for i, _ in units[number]])
            _first_difference(parity, f"chip {rank}: {unit} complete", completed, [e for _, e in units[number]])
            parity.compared += 2 * len(units[number])
    memories = ring_memories(engine, protocol, case, [s.after for s in block.shards])
    compare_collective(parity, engine, outcomes, model, memories)
    return parity


# Output --------------------------------------------------------------------------------------------------------------
