"""What a step on a system took, as data and as tables, and the bound it cannot beat."""

from __future__ import annotations

from typing import Any

from siliconloom import __version__
from siliconloom.arch.pim import Command
from siliconloom.arch.result import SCHEMA, digest_of
from siliconloom.arch.technology import BANK_ENERGY, TECHNOLOGIES
from siliconloom.evaluate.asked import asked
from siliconloom.evaluate.chip import path_notes
from siliconloom.evaluate.windows import SystemSimulation, Window
from siliconloom.sim.chip.energy import COMPONENTS, EXCLUDED, pim_energy, standing_power
from siliconloom.workloads import Attention, Operator


def lower_bound(s: SystemSimulation) -> dict[str, Any]:
    """Cycles that work and data alone need in one step of one chip.

    ``compute``: multiply-accumulates over the arrays' peak. ``memory``: parameters and cache that cross the pins, over
    their bandwidth. ``banks``, ``activation``: parameters and cache that banks compute with, over what all of them read
    in a dot product's interval, and over the rows that tFAW lets them open.
    """
    chip, pim, runs = s.chip, s.chip.pim, s.passes * s.layers
    memory = next(iter(chip.memory.values()))
    cache = s.layers * (s.graph.kv_bytes_per_token // max(s.all_layers, 1)) * sum(s.contexts)
    inner = {o.name: o.weight_bytes for o in s.graph.operators() if o.name in s.products and o.repeat > 1}
    pins = runs * s.arrays.weights + (0 if s.offloaded else cache)
    found = {
        "compute_cycles": runs * s.arrays.macs // chip.peak_macs,
        "memory_cycles": pins * chip.clock // memory.bandwidth,
    }
    if s.offloaded and pim is not None:
        o, t = pim.dram.organization, pim.dram.timing
        moved = (runs * sum(inner.values()) + cache) / pim.channels
        found["bank_cycles"] = int(moved * pim.dot_interval / (pim.banks * o.request_bytes))
        found["activation_cycles"] = max(int(moved * t.tFAW / (4 * o.ranks * o.row_bytes)) - runs * t.tFAW, 0)
    name = max(found, key=lambda n: found[n])
    return {**found, "lower_bound_cycles": found[name], "name": name.removesuffix("_cycles")}


def system_result(s: SystemSimulation) -> dict[str, Any]:
    """The result under the schema of `loom sim`, with what is a system's own."""
    chip, pim, bound = s.chip, s.chip.pim, lower_bound(s)
    step = s.cycles
    layer_cycles = s.passes * s.layers
    macs = s.arrays.macs * layer_cycles
    joules = {"arrays, buffers, pins": _working(s)}
    chips = s.passes * s.tensor
    cache = s.layers * (s.graph.kv_bytes_per_token // max(s.all_layers, 1)) * sum(s.contexts)
    idle = (s.pipeline - s.passes) * s.stage_cycles // s.passes  # fewer sequences than stages
    waiting = [Window("waiting for other stages", 0, idle)] if idle else []
    units: dict[str, Any] = {
        "array": _unit(s.arrays.busy * layer_cycles, step) | {"mac_utilization": macs / (step * chip.peak_macs)},
        "vector": _unit(s.arrays.vector_busy * layer_cycles, step),
    }
    attention: dict[str, Any] = {"unit": "npu"}
    if s.offloaded and pim is not None and s.channels is not None:
        counts = s.channels.counts
        cached = next(o for o in s.graph.operators() if isinstance(o, Attention))
        useful = cached.macs // cached.kv_len * sum(s.contexts) // s.graph.batch * s.layers
        moved = {o.name: o for o in s.graph.operators() if o.name in s.products}
        each = {name: s.passes * (s.layers if o.repeat > 1 else 1) for name, o in moved.items()}
        useful += sum(o.macs // s.passes * each[name] for name, o in moved.items())
        busy = sum(s.channels.busy) / pim.channels * layer_cycles + sum(s.products[n].cycles * each[n] for n in moved)
        counts = counts * layer_cycles + pim.channels * sum(s.products[n].counts * each[n] for n in moved)
        units["pim"] = _unit(int(busy), step) | {
            "mac_utilization": useful / (step * pim.peak_macs),
            "commands": {c.name.lower(): int(counts[c]) for c in Command if counts[c]},
            "channel_imbalance": max(s.channels.busy) * pim.channels / max(sum(s.channels.busy), 1),
        }
        banks = pim_energy(pim, TECHNOLOGIES[chip.technology], s.graph.precision, counts)
        if banks is not None:
            joules |= {f"pim {part}": value * s.pipeline / s.passes for part, value in banks.items()}
        attention = {"unit": "pim", "values": s.system.policy.values, "balance": s.system.policy.balance}
    tokens = s.graph.batch
    energy = {name: value * chips for name, value in joules.items()}
    energy |= {name: watts * s.seconds * s.tensor * s.pipeline for name, watts in standing_power(chip).items()}
    return {
        "schema": SCHEMA,
        "kind": "system",
        "version": __version__,
        "chip": s.chip.name,
        "chip_digest": s.chip.digest,
        "system": {
            "name": s.system.name,
            "chips": s.tensor * s.pipeline,
            "tensor": s.tensor,
            "pipeline": s.pipeline,
            "passes": s.passes,
            "layers_per_stage": s.layers,
            "interleaved": s.interleaved,
            "attention": attention,
        },
        "workload": s.graph.name,
        "phase": s.graph.phase.value,
        "precision": s.graph.precision.value,
        "batch": s.graph.batch,
        "tokens": tokens,
        "asked": asked(
            s.graph,
            machine=s.system.name,
            digest=digest_of([s.system, chip]),
            plan={"tensor": s.tensor, "pipeline": s.pipeline},
        ),
        "cycles": step,
        "seconds": s.seconds,
        "clock_hz": chip.clock,
        "macs": s.graph.macs,
        "tokens_per_second": tokens / s.seconds,
        "energy_j": sum(energy.values()),
        "energy": energy,
        "energy_excludes": [*EXCLUDED, *_uncounted(s)],
        "power_w": sum(energy.values()) / s.seconds,
        "traffic_bytes": {
            next(iter(chip.memory)): s.arrays.traffic * layer_cycles,
            "banks": cache + layer_cycles * sum(o.weight_bytes for o in s.graph.operators() if o.name in s.products)
            if s.offloaded
            else 0,
        },
        "utilization": macs / (step * chip.peak_macs),
        "bound": {
            **bound,
            "lower_bound_s": bound["lower_bound_cycles"] / chip.clock,
            "achieved": bound["lower_bound_cycles"] / step,
        },
        "windows": [
            {
                "name": w.name,
                "repeat": w.repeat * s.passes,
                "cycles": w.cycles,
                "array_cycles": w.arrays,
                "memory_cycles": w.memory,
            }
            for w in (*s.windows, *waiting)
        ],
        "operators": _operators(s),
        "units": units,
        "memory": {"used_bytes": s.memory_bytes, "capacity_bytes": next(iter(chip.memory.values())).capacity},
        "simulator": {"wall_s": s.wall_s},
        "notes": [*s.graph.notes, *s.notes, *_notes(s)],
    }


def _working(s: SystemSimulation) -> float:
    """Joules of what one chip's arrays, buffers and pins do in a pass, without what time takes."""
    found = [simulation.result()["energy"] for simulation in s.chips]
    return float(sum(joules[name] for joules in found for name in COMPONENTS))


def _uncounted(s: SystemSimulation) -> list[str]:
    """Commands of banks whose energy nobody published."""
    pim = s.chip.pim
    return ["commands of the banks"] if s.offloaded and pim is not None and pim.dram.standard not in BANK_ENERGY else []


def _unit(busy: int, cycles: int) -> dict[str, Any]:
    return {"busy_cycles": busy, "utilization": busy / cycles if cycles else 0.0}


def _operators(s: SystemSimulation) -> list[dict[str, Any]]:
    """What every operator takes on one chip in one step, on the arrays or in memory; halves of a batch put together."""
    rows: dict[str, dict[str, Any]] = {}

    def add(operator: Operator, unit: str, cycles: int, macs: int) -> None:
        times = s.passes * (s.layers if operator.block == attention.block else 1)
        row = rows.setdefault(
            operator.name,
            {
                "name": operator.name,
                "kind": operator.kind,
                "unit": unit,
                "repeat": times,
                "seconds": 0.0,
                "cycles": 0,
                "macs": 0,
                "shape": operator.shape,
            },
        )
        row["cycles"] += cycles * times
        row["seconds"] = row["cycles"] / s.chip.clock
        row["macs"] += macs * times

    attention = next(o for o in s.graph.operators() if isinstance(o, Attention))
    for simulation in s.chips:
        for index, mapped in enumerate(simulation.plan.tasks):
            add(
                mapped.task.operator,
                "npu",
                int(simulation.run.exclusive[index]) // mapped.repeat,
                mapped.task.operator.macs,
            )
    for operator in s.graph.operators():
        if operator.name in s.products:
            add(operator, "pim", s.products[operator.name].cycles, operator.macs // s.passes)
    if s.offloaded and s.channels is not None:
        add(attention, "pim", s.channels.attention, attention.macs // s.passes)
    return list(rows.values())


def _notes(s: SystemSimulation) -> list[str]:
    notes = ["cycles, traffic and units are one chip's; energy is all chips'", *path_notes(s.chip)]
    pim = s.chip.pim
    if pim is not None and _uncounted(s):
        notes.append(f"energy of the banks' own commands is not counted: no source for {pim.dram.standard}")
    if s.passes > 1:
        notes.append(
            f"the batch goes through {s.pipeline} stages in {s.passes} parts; a step is all of them at one stage"
        )
    return notes
