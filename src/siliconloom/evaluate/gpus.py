"""One step on a system of GPUs under a plan: its time, every kernel of one GPU, and the energy of all.

The step is `mapper.system`'s, the kernels' times are the GPU model's, and messages take what joins the GPUs says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from siliconloom.arch import NotSupported
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.result import digest_of
from siliconloom.arch.system import Policy
from siliconloom.arch.timeline import Timeline
from siliconloom.baselines.bars import packaged_bars, relative, run_bars, run_name
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.fabric import GpuFabric
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.model import ModelPrediction, chunk_notes, measured_note
from siliconloom.baselines.operations import Float
from siliconloom.baselines.roofline import peak_rates
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.cluster import with_messages
from siliconloom.evaluate.measured import measured_kernels
from siliconloom.evaluate.step_timeline import step_timeline
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.layers import extent
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.chip.energy import EXCLUDED_BY_BOARDS
from siliconloom.workloads import Graph, Phase

MESSAGES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kernels that are messages."""


def gpus_of(gpu: Gpu, count: int = 1, *, sustained: bool = False) -> Cluster:
    """A cluster of ``count`` GPUs whose links are those of the GPU's description.

    It is that of a system which says the same of its links. ``sustained`` GPUs are under the board's power limit.
    """
    fabric = GpuFabric(gpu, count, float(gpu.link.network), gpu.link.network_latency * 1e-12)
    kinds = ((GpuMachine(gpu, sustained), count),)
    return Cluster(gpu.name, kinds, (fabric,), count, tuple(range(count)), digest=digest_of([gpu]))


def gpu_system_result(
    cluster: Cluster,
    policy: Policy,
    graph: Graph,
    fixed: Mapping[str, Any] | None = None,
    *,
    stack: Stack = NO_STACK,
    timeline: list[Timeline] | None = None,
) -> dict[str, Any]:
    """One step of ``graph`` under a plan; times are predicted, not simulated.

    It is the step that `loom plan` has for the same plan, with every kernel of one GPU and the energy of all. A kernel
    that somebody measured at this very size has the measured time beside the predicted one; the step is predicted.

    Parameters
    ----------
    cluster, policy
        GPUs of one kind and what joins them, and the degrees of a plan that gives none.
    fixed
        Keys of the plan that were given.
    stack
        Serving software, which adds to the time of a step.
    timeline
        Where there is one, the step's is put there.

    Raises
    ------
    LoomError
        When the model does not fit, or cannot be shared evenly.
    NotSupported
        For serving software on several stages.
    """
    began = time.perf_counter()
    machine = cluster.machine
    if len(cluster.kinds) > 1 or not isinstance(machine, GpuMachine):
        raise NotSupported(f"one step on {cluster.name}, whose chips differ; loom plan has one")
    gpu, steps = machine.gpu, PlannedStep(with_messages(cluster, stack.messages), policy, graph, fixed or {})
    part, plan = steps.part, steps.plan
    if steps.optimizer:
        steps.add("optimizer", "optimizer", 1, steps.optimizer)
    groups = {name: extent(plan, name)[1] for name in ("tensor", "context", "expert", "expert_tensor")}
    found = machine.predicted(part, groups=groups, unfused=plan.attention == "unfused")
    predicted = zip(found.kernels, found.seconds.tolist(), strict=True)
    seconds = [steps.waits.get(kernel.operator, alone) for kernel, alone in predicted]  # messages take the fabric's
    times = [kernel.repeat * steps.executions(kernel.operator) for kernel in found.kernels]
    busy = sum(s * n for s, n in zip(seconds, times, strict=True))
    overhead = _stack_seconds(stack, steps, found, graph)
    steps.seconds += overhead
    if timeline is not None:
        timeline.append(step_timeline(steps, cluster, graph, overhead))
    work = found.flops
    shared = plan.data * plan.tensor * plan.context
    idle = steps.seconds * gpu.idle_power * plan.chips - busy * shared * gpu.idle_power
    energy = {"boards": float(np.dot(found.joules, times)) * shared + max(idle, 0.0)}
    energy |= steps.idle_joules(gpu.idle_power)
    joules = sum(energy.values())
    peak = _mean_peak(gpu, found, work * times) * plan.chips
    flops = steps.flops
    floor = max(flops / peak, _in_line(found, plan) * steps.microbatches / plan.pipeline)
    if steps.seconds < floor * (1 - 1e-9):
        raise AssertionError(f"a step of {steps.seconds} s is under its roofline's {floor} s: a bug")
    name = run_name(graph.phase is not Phase.DECODE, bool(stack != NO_STACK))
    bars = run_bars(packaged_bars(), name, found.kernel_bars)
    one_node = cluster.wiring is None and plan.chips <= gpu.link.per_node
    measured = measured_kernels(machine, graph, found, one_node=one_node)
    operators: list[dict[str, Any]] = []
    for i, (kernel, known) in enumerate(zip(found.kernels, measured, strict=True)):
        row = {
            "name": kernel.operator,
            "kind": kernel.row["op"],
            "repeat": times[i],
            "fused": kernel.fused,
            "seconds": seconds[i] * times[i],
            "macs": round(float(work[i]) / 2) * times[i],
            "bound": found.bound[i],
            "roofline_s": float(found.roofline[i]) * times[i],
            "energy_j": float(found.joules[i]) * times[i] * shared,
            "error": relative(float(found.error[i])),
            "error_90": relative(float(found.error_90[i])),
            "nearby": bool(found.nearby[i]),
            "shape": kernel.row,
        }
        if known is not None:
            row["measured_s"] = known.seconds * times[i]
            row |= {"measured_error": known.spread, "measured_in": list(known.sources)}
        operators.append(row)
    return {
        **steps.head("gpus", cluster, graph, gpu.clock),
        "error": relative(bars[0]),
        "error_90": relative(bars[1]),
        "measured_share": found.measured_share,
        "energy_j": joules,
        "energy": energy,
        "energy_excludes": list(EXCLUDED_BY_BOARDS),
        "power_w": joules / steps.seconds,
        "utilization": flops / steps.seconds / peak,
        "bound": {
            "lower_bound_s": floor,
            "lower_bound_cycles": round(floor * gpu.clock),
            "name": "roofline",
            "achieved": floor / steps.seconds,
        },
        "operators": [*operators, *steps.others],
        "memory": {"used_bytes": round(steps.memory_bytes), "capacity_bytes": gpu.memory.capacity},
        "simulator": {"wall_s": time.perf_counter() - began},
        "notes": [
            *graph.notes,
            *_notes(cluster, graph, gpu, found, plan, steps.microbatches),
            *steps.idle_notes(gpu.idle_power),
            *steps.notes,
        ],
        **({"overhead_s": overhead} if overhead else {}),
        **_with_measured(steps, operators),
    }


def _stack_seconds(stack: Stack, steps: PlannedStep, found: ModelPrediction, graph: Graph) -> float:
    """Seconds that serving software adds to the kernels of a step."""
    if stack == NO_STACK:
        return 0.0
    if steps.plan.pipeline > 1:
        raise NotSupported(f"{stack.name} on {steps.plan.pipeline} stages")
    launched = sum(k.repeat for k in found.kernels if not k.fused) * steps.microbatches
    requests = sum(group.count for group in graph.requests) or graph.batch
    return stack.seconds(steps.seconds, launched, requests, steps.plan.tensor) - steps.seconds


def _with_measured(steps: PlannedStep, operators: list[dict[str, Any]]) -> dict[str, float]:
    """The step if measured kernels take what was measured, where kernels run one after the other."""
    plan = steps.plan
    known = [o for o in operators if "measured_s" in o]
    if not known or plan.pipeline > 1 or plan.overlap != "none" or plan.attention_chips:
        return {}
    seconds = steps.seconds + sum(o["measured_s"] - o["seconds"] for o in known)
    spread = sum(o.get("measured_s", o["seconds"]) * o.get("measured_error", o["error"]) for o in operators)
    return {"measured_s": seconds, "measured_error": spread / seconds}


def _mean_peak(gpu: Gpu, found: ModelPrediction, work: Float) -> float:
    """FLOP/s at which all kernels together could do their ``work``, each at the peak of its own format."""
    rates = peak_rates(found.operations, gpu)
    used = (work > 0) & (rates > 0)
    if not used.any():
        return gpu.peak_flops(found.operations.dtypes()[0])
    known = np.unique(rates[used])
    return float(known[0] if len(known) == 1 else work[used].sum() / (work[used] / rates[used]).sum())


def _in_line(found: ModelPrediction, plan: Plan) -> float:
    """Seconds of one part's kernels at their rooflines, as far as the plan has them one after the other.

    Messages that pass beside kernels bind by themselves; of kernels beside kernels only the arithmetic is a bound.
    """
    message = np.array([kernel.row["op"] in MESSAGES for kernel in found.kernels], bool)
    floors = found.roofline * found.repeats
    kernels, links = float(floors[~message].sum()), float(floors[message].sum())
    if plan.overlap == "none" and not plan.attention_chips:
        return kernels + links
    return links if plan.overlap == "nano" or plan.attention_chips else max(kernels, links)


def _notes(cluster: Cluster, graph: Graph, gpu: Gpu, found: ModelPrediction, plan: Plan, parts: int) -> list[str]:
    notes = ["times are predicted by the GPU model, kernels one after the other"]
    if not load_efficiency(gpu.architecture).measured:
        notes.append(f"{gpu.name}: {load_efficiency(gpu.architecture).basis}")
    notes += [measured_note(gpu, found.measured_share, found.unmeasured), *chunk_notes(graph)]
    if cluster.wiring is not None and plan.chips > 1:
        kind = cluster.wiring.topology.kind
        notes.append(f"topology.kind {kind}: messages are simulated link by link, without what NCCL takes to start")
    if plan.context > 1 or graph.phase is Phase.TRAINING:
        notes.append("energy: shared attention, gradients left over and the optimizer count as idle boards")
    if plan.pipeline > 1:
        notes.append(f"the batch goes through {plan.pipeline} stages in {parts} parts")
    return notes
