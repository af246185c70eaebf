"""What a step on a system took, as data and as tables, and the bound it cannot beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from siliconloom import __version__
from siliconloom.arch.pim import Command
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.simulate import SCHEMA
from siliconloom.tables import table
from siliconloom.workloads import Attention

if TYPE_CHECKING:
    from siliconloom.systems import SystemSimulation


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
    joules = sum(simulation.result()["energy_j"] for simulation in s.chips)
    chips = s.passes * s.tensor
    cache = s.layers * (s.graph.kv_bytes_per_token // max(s.all_layers, 1)) * sum(s.contexts)
    units: dict[str, Any] = {
        "array": _unit(s.arrays.busy * layer_cycles, step) | {"mac_utilization": macs / (step * chip.peak_macs)},
        "vector": _unit(s.arrays.vector_busy * layer_cycles, step),
    }
    attention: dict[str, Any] = {"unit": "npu"}
    if s.offloaded and pim is not None and s.channels is not None:
        counts = s.channels.counts
        dots = int(counts[Command.PIM_DOT]) * pim.burst_elements(s.graph.precision) * pim.banks
        if pim.commands == "per_bank":
            dots //= pim.banks
        busy = sum(s.channels.busy) / pim.channels * layer_cycles
        units["pim"] = _unit(int(busy), step) | {
            "mac_utilization": dots * layer_cycles / (step * pim.peak_macs),
            "commands": {c.name.lower(): int(counts[c]) * layer_cycles for c in Command if counts[c]},
            "channel_imbalance": max(s.channels.busy) * pim.channels / max(sum(s.channels.busy), 1),
        }
        attention = {"unit": "pim", "values": s.system.policy.values, "balance": s.system.policy.balance}
    tokens = s.graph.batch
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": s.chip.name,
        "chip_digest": s.chip.digest,
        "system": {
            "name": s.system.name, "chips": s.tensor * s.pipeline, "tensor": s.tensor, "pipeline": s.pipeline,
            "passes": s.passes, "layers_per_stage": s.layers, "interleaved": s.interleaved, "attention": attention,
        },
        "workload": s.graph.name,
        "phase": s.graph.phase.value,
        "precision": s.graph.precision.value,
        "batch": s.graph.batch,
        "tokens": tokens,
        "cycles": step,
        "seconds": s.seconds,
        "clock_hz": chip.clock,
        "macs": s.graph.macs,
        "tokens_per_second": tokens / s.seconds,
        "energy_j": joules * chips,
        "traffic_bytes": {
            next(iter(chip.memory)): s.arrays.traffic * layer_cycles,
            "banks": cache + layer_cycles * sum(o.weight_bytes for o in s.graph.operators() if o.name in s.products)
            if s.offloaded else 0,
        },
        "utilization": macs / (step * chip.peak_macs),
        "bound": {**bound, "achieved": bound["lower_bound_cycles"] / step},
        "windows": [
            {"name": w.name, "repeat": w.repeat * s.passes, "cycles": w.cycles, "array_cycles": w.arrays,
             "memory_cycles": w.memory}
            for w in s.windows
        ],
        "operators": _operators(s),
        "units": units,
        "memory": {
            "used_bytes": s.memory_bytes, "capacity_bytes": next(iter(chip.memory.values())).capacity,
        },
        "simulator": {"wall_s": s.wall_s},
        "notes": [*s.notes, *_notes(s)],
    }  # fmt: skip


def _unit(busy: int, cycles: int) -> dict[str, Any]:
    return {"busy_cycles": busy, "utilization": busy / cycles if cycles else 0.0}


def _operators(s: SystemSimulation) -> list[dict[str, Any]]:
    rows = []
    for simulation in s.chips:
        for index, mapped in enumerate(simulation.plan.tasks):
            operator = mapped.task.operator
            rows.append({
                "name": operator.name, "unit": "npu", "repeat": operator.repeat,
                "cycles": int(simulation.run.exclusive[index]), "macs": operator.macs * operator.repeat,
                "shape": operator.shape,
            })  # fmt: skip
    for operator in s.graph.operators():
        if operator.name in s.products:
            repeat = s.layers if operator.repeat > 1 else 1
            rows.append({
                "name": operator.name, "unit": "pim", "repeat": repeat,
                "cycles": s.products[operator.name] * repeat, "macs": operator.macs * repeat, "shape": operator.shape,
            })  # fmt: skip
    if s.offloaded and s.channels is not None:
        attention = next(o for o in s.graph.operators() if isinstance(o, Attention))
        rows.append({
            "name": attention.name,
            "unit": "pim",
            "repeat": s.layers,
            "cycles": s.channels.attention * s.layers,
            "macs": attention.macs * s.layers,
            "shape": attention.shape,
        })  # fmt: skip
    return rows


def _notes(s: SystemSimulation) -> list[str]:
    notes = ["cycles, traffic and units are one chip's; energy is all chips' arrays, buffers and pins"]
    if s.offloaded:
        notes.append("energy of the banks' own commands is not counted")
    if s.passes > 1:
        notes.append(f"the batch goes through {s.pipeline} stages in {s.passes} parts; a step is all of them at one stage")
    return notes


def system_tables(result: dict[str, Any], out: Console) -> None:
    """Print a step on a system."""
    system, bound, cycles = result["system"], result["bound"], result["cycles"]
    out.print(
        f"[bold]{result['workload']}[/bold] ({result['phase']}, batch {result['batch']}, {result['precision']}) on "
        f"[bold]{system['name']}[/bold]: {system['chips']} x {result['chip']}"
    )
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    where = system["attention"]["unit"]
    lines = [
        ("time", f"{format_si(result['seconds'], 's')}  ({cycles:,} cycles at {format_si(result['clock_hz'], 'Hz')})"),
        ("lower bound", f"{bound['lower_bound_cycles']:,} cycles, {bound['name']}; {bound['achieved']:.1%} of it reached"),
        ("throughput", f"{result['tokens_per_second']:,.4g} tokens/s"),
        ("laid out", f"tensor {system['tensor']}, pipeline {system['pipeline']}; attention on {where}"
                     + (", two half batches interleaved" if system["interleaved"] else "")),
        ("memory", f"{format_bytes(result['memory']['used_bytes'])} of {format_bytes(result['memory']['capacity_bytes'])} a chip"),
        ("simulated in", format_si(result["simulator"]["wall_s"], "s")),
    ]  # fmt: skip
    for label, text in lines:
        out.print(f"  {label:14s} {text}", soft_wrap=True)
    out.print()
    rows = [
        (w["name"], f"x{w['repeat']}", f"{w['array_cycles']:,}", f"{w['memory_cycles']:,}", f"{w['cycles']:,}",
         f"{w['cycles'] * w['repeat'] / cycles:.1%}")
        for w in result["windows"]
    ]  # fmt: skip
    columns = [("window", "left"), *((n, "right") for n in ("times", "arrays", "memory", "cycles", "share"))]
    out.print(table("what works side by side", columns, rows))
    out.print()
    units = [(n, f"{u['utilization']:.1%}", f"{u['mac_utilization']:.1%}" if "mac_utilization" in u else "-")
             for n, u in result["units"].items()]  # fmt: skip
    out.print(table("units", [("unit", "left"), ("busy", "right"), ("of peak", "right")], units))
