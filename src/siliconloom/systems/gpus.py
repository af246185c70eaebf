"""A model on a system of GPUs: the same descriptions and policies, with the GPU model's times.

Tensor parallelism shares every operator and sums by all-reduce; pipeline stages have whole layers, and the batch goes
through them in as many equal parts as there are stages, or sequences. A stage's result crosses one link to the next.
"""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.gpu import Gpu, load_gpu
from siliconloom.arch.quantity import format_bytes, format_si
from siliconloom.arch.system import System
from siliconloom.baselines.model import ModelPrediction, predict_model
from siliconloom.baselines.stacks import STACKS, Stack
from siliconloom.mapper.shard import reduced_elements, sequences_of, tensor_shard
from siliconloom.sim.energy import EXCLUDED_BY_BOARDS
from siliconloom.simulate import SCHEMA, asked
from siliconloom.tables import Row, asked_text, bold, excluded_rows, print_overrides, table
from siliconloom.workloads import Graph, Phase

__all__ = ["alone_gpu", "gpu_system_result", "gpu_system_tables", "joined"]


def alone_gpu(gpu: Gpu) -> System:
    """A system of one GPU."""
    link = {"bandwidth": f"{gpu.link.bandwidth} B/s", "latency": "1 us"}
    return System.model_validate({
        "kind": "system", "name": gpu.name, "chips": [{"chip": gpu.name, "count": 1}],
        "topology": {"kind": "fully_connected"}, "link": link,
    })  # fmt: skip


def joined(system: System, overrides: list[tuple[str, str]] | None = None) -> Gpu:
    """The system's GPU, with the system's links instead of its own."""
    if len(system.chips) != 1:
        raise NotSupported("systems of different chips")
    gpu = load_gpu(system.chips[0].chip, overrides)
    count = system.chips[0].count
    topology = system.topology
    changes: dict[str, Any] = {
        "bandwidth": system.link.count * system.link.bandwidth,
        "switched": topology.kind in ("switch", "fully_connected", "hierarchical"),
        "in_switch": gpu.link.in_switch and topology.kind in ("switch", "hierarchical"),
        "per_node": min(gpu.link.per_node, count),
    }
    if topology.kind == "hierarchical":
        changes["per_node"] = min(topology.chips_per_leaf or count, count)
        if (upper := topology.uplink) is not None:
            changes |= {"network": upper.count * upper.bandwidth, "network_latency": 2 * upper.latency}
    link = gpu.link.model_copy(update=changes)
    return gpu.model_copy(update={"link": link})


def gpu_system_result(
    system: System, gpu: Gpu, graph: Graph, *, stack: Stack = STACKS["none"], sustained: bool = False
) -> dict[str, Any]:
    """One step of ``graph`` under the schema of `loom sim`; times are predicted, not simulated.

    Raises
    ------
    LoomError
        When the model does not fit, or cannot be shared evenly.
    NotSupported
        For training.
    """
    began = time.perf_counter()
    if graph.phase is Phase.TRAINING:
        raise NotSupported("training on a system of GPUs")
    tensor = system.policy.tensor
    count = sum(group.count for group in system.chips)
    stored = graph.weight_bytes + graph.kv_bytes
    pipeline = system.policy.pipeline or _fewest_stages(stored, tensor, gpu.memory.capacity)
    per_gpu = stored / (tensor * pipeline)
    if per_gpu > gpu.memory.capacity or tensor * pipeline > count:
        held = min(pipeline, max(count // tensor, 1)) * tensor
        raise LoomError(
            f"{graph.name} does not fit: weights and cache are {format_bytes(stored)}, {held} x {gpu.name} hold "
            f"{format_bytes(held * gpu.memory.capacity)}; it takes {_fewest_stages(stored, 1, gpu.memory.capacity)}"
        )
    parts = min(pipeline, graph.batch)
    part = sequences_of(graph, math.ceil(graph.batch / parts)) if parts > 1 else graph
    found = predict_model(
        gpu, tensor_shard(part, tensor), gpus=tensor, reduced=reduced_elements(part), sustained=sustained
    )
    longest, sent = _stage(found, part, gpu, pipeline)
    kernels = sum(_share(k.repeat, pipeline) for k in found.kernels if not k.fused)
    stage = stack.seconds(longest, kernels) + sent
    rounds = pipeline if graph.phase is Phase.DECODE else parts + pipeline - 1
    seconds = rounds * stage
    joules = found.total_joules * tensor * parts
    idle = seconds * gpu.idle_power * tensor * pipeline - _busy(found) * parts * gpu.idle_power * tensor
    joules += max(idle, 0.0)
    peak = gpu.peak_flops(found.operations.dtypes()[0]) * tensor * pipeline
    floor = max(graph.flops / peak, float((found.roofline * found.repeats).sum()) * parts / pipeline)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "chip": gpu.name,
        "system": {
            "name": system.name, "chips": tensor * pipeline, "tensor": tensor, "pipeline": pipeline, "passes": parts,
            "stack": stack.name,
        },
        "workload": graph.name,
        "phase": graph.phase.value,
        "precision": graph.precision.value,
        "batch": graph.batch,
        "tokens": graph.tokens,
        "asked": asked(graph, ()),
        "seconds": seconds,
        "error": found.total_error,
        "clock_hz": gpu.clock,
        "cycles": round(seconds * gpu.clock),
        "macs": graph.macs,
        "tokens_per_second": graph.tokens / seconds,
        "energy_j": joules,
        "energy_excludes": list(EXCLUDED_BY_BOARDS),
        "power_w": joules / seconds,
        "utilization": graph.flops / seconds / peak,
        "bound": {
            "lower_bound_s": floor, "lower_bound_cycles": round(floor * gpu.clock), "name": "roofline",
            "achieved": floor / seconds,
        },
        "operators": [
            {
                "name": kernel.operator, "op": kernel.row["op"], "repeat": kernel.repeat, "fused": kernel.fused,
                "seconds": float(found.seconds[i]) * kernel.repeat, "bound": found.bound[i],
                "error": float(found.error[i]), "shape": kernel.row,
            }
            for i, kernel in enumerate(found.kernels)
        ],
        "memory": {"used_bytes": round(per_gpu), "capacity_bytes": gpu.memory.capacity},
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": _notes(gpu, parts, pipeline),
    }  # fmt: skip


def gpu_system_tables(result: dict[str, Any], out: Console) -> None:
    """Print a step on GPUs."""
    system, used = result["system"], result["memory"]
    out.print(
        f"{bold(result['workload'])} ({asked_text(result)}) on "
        f"{bold(system['name'])}: {system['chips']} x {result['chip']}"
    )
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    lines = [
        ("time", f"{format_si(result['seconds'], 's')} ±{result['error']:.0%}, predicted"),
        ("roofline", f"{format_si(result['bound']['lower_bound_s'], 's')}; {result['bound']['achieved']:.1%} reached"),
        ("throughput", f"{result['tokens_per_second']:,.4g} tokens/s"),
        ("laid out", f"tensor {system['tensor']}, pipeline {system['pipeline']}; serving stack: {system['stack']}"),
        ("memory", f"{format_bytes(used['used_bytes'])} of {format_bytes(used['capacity_bytes'])} a GPU"),
        ("energy", f"{format_si(result['energy_j'], 'J')}, {format_si(result['power_w'], 'W')}, all GPUs' boards"),
        *excluded_rows(result["energy_excludes"], out, 14),
    ]  # fmt: skip
    for label, text in lines:
        out.print(f"  {label:14s} {text}", soft_wrap=True)
    out.print()
    busy = sum(o["seconds"] for o in result["operators"])
    rows: list[Row] = [
        (o["name"], o["op"], f"x{o['repeat']}", format_si(o["seconds"], "s"), f"{o['seconds'] / busy:.1%}", o["bound"])
        for o in result["operators"]
    ]
    columns = [
        ("kernel", "left"),
        ("op", "left"),
        *((n, "right") for n in ("times", "time", "share")),
        ("bound", "left"),
    ]
    out.print(table("kernels of one GPU's part, all layers", columns, rows))


def _fewest_stages(stored: float, tensor: int, capacity: int) -> int:
    return max(math.ceil(stored / (tensor * capacity)), 1)


def _share(repeat: int, pipeline: int) -> int:
    """Executions of a block at the stage that has most of them; what comes once is at one end."""
    return math.ceil(repeat / pipeline)


def _stage(found: ModelPrediction, part: Graph, gpu: Gpu, pipeline: int) -> tuple[float, float]:
    """Kernels' seconds at the longest stage, and seconds until its result is at the next."""
    if pipeline == 1:
        return found.total_seconds, 0.0
    layers = max(k.repeat for k in found.kernels)
    if layers < pipeline:
        raise LoomError(f"{part.name}: {layers} layers cannot be cut into {pipeline} stages")
    inner = sum(
        s * _share(k.repeat, pipeline) for s, k in zip(found.seconds, found.kernels, strict=True) if k.repeat > 1
    )
    ends = sum(s for s, k in zip(found.seconds, found.kernels, strict=True) if k.repeat == 1)
    hidden = next(o for o in part.operators() if o.repeat == layers).input_bytes
    rate = gpu.link.bandwidth if gpu.link.per_node >= pipeline else min(gpu.link.bandwidth, gpu.link.network)
    return float(inner + ends), hidden / rate + gpu.link.network_latency * 1e-12


def _busy(found: ModelPrediction) -> float:
    return float((found.seconds * found.repeats).sum())


def _notes(gpu: Gpu, parts: int, pipeline: int) -> list[str]:
    from siliconloom.baselines.efficiency import load_efficiency

    notes = ["times are predicted by the GPU model, kernels one after the other"]
    if not load_efficiency(gpu.architecture).measured:
        notes.append(f"{gpu.name}: {load_efficiency(gpu.architecture).basis}")
    if pipeline > 1:
        notes.append(f"the batch goes through {pipeline} stages in {parts} parts")
    return notes
