"""A list of products on a bare PIM tile: every channel's share of each matrix, command by command."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import Chip, LoomError, NotSupported
from siliconloom.arch.pim import Command, PimTile
from siliconloom.arch.result import SCHEMA
from siliconloom.arch.technology import TECHNOLOGIES
from siliconloom.evaluate.asked import asked
from siliconloom.evaluate.channels import products
from siliconloom.mapper.chip.mapping import check_packing
from siliconloom.sim.chip.energy import EXCLUDED, pim_energy, standing_power
from siliconloom.workloads import Gemm, Graph


def simulate_pim(chip: Chip, graph: Graph) -> dict[str, Any]:
    """Time the products of ``graph`` one after the other, each spread by rows over all channels and banks.

    The second operand of each lies in memory, stored parameter or not; the rows of the first one are its vectors.

    Returns the result under the schema of ``loom sim``.

    Raises
    ------
    NotSupported
        For operators that are no products with stored weights: a bare tile has no vector unit.
    LoomError
        When a stated precision is not the tile's, or the matrices do not fit.
    """
    tile, began = chip.tile, time.perf_counter()
    assert isinstance(tile, PimTile)
    check_packing(chip, graph)
    if graph.precision not in tile.operands:
        if graph.explicit_precision:
            wanted = ", ".join(d.value for d in tile.operands)
            raise LoomError(
                f"{graph.name}: {graph.precision.value} operands are not among those of {chip.name} ({wanted})"
            )
        graph = graph.with_precision(tile.operands[0])
    capacity = tile.channels * tile.dram.organization.capacity
    if graph.weight_bytes > capacity:
        raise LoomError(f"{graph.name}: {graph.weight_bytes:,} bytes of weights, and {chip.name} holds {capacity:,}")
    rows: list[dict[str, Any]] = []
    commands = dict.fromkeys(Command, 0)
    for operator in graph.operators():
        if not isinstance(operator, Gemm):
            raise NotSupported(
                f"{operator.kind} operators on a bare pim tile (operator {operator.name}); it multiplies only"
            )
        run = products(tile, -(-operator.n // tile.channels), operator.k, operator.m, operator.precision)
        times = operator.repeat * operator.batch
        for command in Command:
            commands[command] += int(run.counts[command]) * times
        cycles, bound = run.cycles * times, _bound(tile, operator)
        if cycles < bound:
            raise AssertionError(f"{operator.name}: {cycles} cycles are below the lower bound of {bound}: a bug")
        rows.append(
            {
                "name": operator.name,
                "kind": operator.kind,
                "repeat": operator.repeat,
                "seconds": cycles / chip.clock,
                "cycles": cycles,
                "macs": operator.macs * operator.repeat,
                "bound_cycles": bound,
                "shape": operator.shape,
                "read_bytes": times * operator.m * operator.precision.size(operator.n * operator.k),
            }
        )
    joules = pim_energy(tile, TECHNOLOGIES[chip.technology], graph.precision, np.array(list(commands.values())))
    energy = {} if joules is None else {part: value * tile.channels for part, value in joules.items()}
    notes = [*graph.notes, "commands are those of all channels"]
    if joules is None:
        notes.append(f"energy of the banks' commands is not counted: no source for {tile.dram.standard}")
    total, lower = sum(r["cycles"] for r in rows), sum(r["bound_cycles"] for r in rows)
    energy["background"] = standing_power(chip)["background"] * total / chip.clock
    return {
        "schema": SCHEMA,
        "kind": "pim_tile",
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "workload": graph.name,
        "phase": graph.phase.value,
        "precision": graph.precision.value,
        "batch": graph.batch,
        "tokens": graph.tokens,
        "asked": asked(graph, machine=chip.name, digest=chip.digest),
        "cycles": total,
        "seconds": total / chip.clock,
        "clock_hz": chip.clock,
        "macs": graph.macs,
        "utilization": graph.macs / (total * tile.peak_macs) if total else 0.0,
        "bound": {
            "lower_bound_s": lower / chip.clock,
            "bank_cycles": lower,
            "lower_bound_cycles": lower,
            "name": "bank",
            "achieved": lower / max(total, 1),
        },
        "operators": rows,
        "units": {"pim": {"busy_cycles": total, "utilization": 1.0, "commands": _named(commands, tile)}},
        "traffic_bytes": {"banks": sum(r["read_bytes"] for r in rows)},
        "memory": {"used_bytes": graph.weight_bytes, "capacity_bytes": capacity},
        "simulator": {"wall_s": time.perf_counter() - began},
        "tokens_per_second": graph.tokens * chip.clock / total if total else 0.0,
        "power_w": sum(energy.values()) * chip.clock / total if total else 0.0,
        "energy_j": sum(energy.values()),
        "energy": energy,
        "energy_excludes": [*EXCLUDED, "static power of the lanes", *([] if joules else ["commands of the banks"])],
        "notes": notes,
    }


def _bound(tile: PimTile, gemm: Gemm) -> int:
    """Cycles in which all banks, reading a burst in each dot product's interval, read the matrix for every vector."""
    rate = tile.channels * tile.banks * tile.dram.organization.request_bytes
    return gemm.m * gemm.repeat * gemm.batch * gemm.precision.size(gemm.n * gemm.k) * tile.dot_interval // rate


def _named(commands: dict[Command, int], tile: PimTile) -> dict[str, int]:
    return {c.name.lower(): count * tile.channels for c, count in commands.items() if count}
