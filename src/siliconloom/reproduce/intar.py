"""InTAR: a pipeline where an intermediate result is too large, otherwise one task after the other on all cores.

The schedules of the three kinds of kernels and their multipliers are those of the authors' sources
(https://github.com/OswaldHe/InTAR, ``benchmark``), which were not copied; cycles come from
`siliconloom.mapper.fusion.schedule`. Measured cycles on an Alveo U280 stand in that repository's ``README.md`` files,
means over five kernels in the paper's abstract.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from siliconloom.mapper.fusion.schedule import CoreMachine, ExecutionPlan, best_schedule, group_compute
from siliconloom.mapper.fusion.tasks import TaskGraph, task_graph
from siliconloom.reproduce.card import Card, CardRow
from siliconloom.workloads.cascades.described import load_cascade

CORES, LANES = 2, 16
"""Cores of an InTAR kernel, and 16-bit multiply-adds of each in a cycle; a port brings 16 weights a cycle to each."""
PORT = 32
"""Bytes of one 256-bit memory port in a cycle."""
SIZES: dict[str, tuple[tuple[str, str], ...]] = {
    "mlp": (),
    "self-attention": (),
    "gated-mlp": (("T", "32"), ("D", "4096"), ("H", "11008")),
}
"""Cascades of the library, and the ranks that are not the library's."""
BUFFERS = {
    "mlp": 2 * (256 + 1024 + 256),
    "self-attention": 2 * (256 * 1024 + 256 * 1024 + 256 * 512),
    "gated-mlp": 2 * (32 * 4096 + 32 * 4096 + 32 * 11008),
}
"""Bytes that the sources declare beside tiles of weights: one copy of the input, and the scratchpads of both cores; of
the gating network the sums of its result and the memory between its cores."""
PUBLISHED = {
    "mlp": (("F1",), ("F2", "F3")),
    "self-attention": (("Q",), ("K", "QK"), ("V",), ("AV",)),
    "gated-mlp": (("U",), ("G", "Y")),
}
"""Groups of the sources' stages: tasks in brackets of their own have both cores."""

Groups = Sequence[tuple[Sequence[str], Sequence[int]]]
"""A schedule: tasks that run together, with the cores of each."""
DATAFLOW_MLP: Groups = ((("F1",), (1,)), (("F2",), (1,)), (("F3",), (1,)))
"""Two units of 16, one for the first and the last layer; each takes its whole input before it begins."""
DATAFLOW_ATTENTION: Groups = ((("Q", "K", "QK"), (1, 1, 1)), (("V", "AV"), (1, 1)))
"""Five units of 8; values wait for the scores, since nothing but a FIFO lies between their unit and the last."""

TWO_OF_FIVE = (
    "the mean of two kernels (MLP 1.29, self-attention 1.88), the paper's is of five: two are convolutions, and the "
    "gating network's sources multiply 768 at a time in one kind and 96 in the other"
)
BLOCKING = (
    "ours reads at a port's rate, 32 bytes a cycle; the published kernel asks for two reads and waits for them before "
    "the next two, and took 7.6 cycles a read. Without that tasks one by one on as many multipliers are the fastest "
    "here, since what they spill takes less time than a pipeline's unequal stages lose"
)


def graph_of(name: str) -> TaskGraph:
    """The tasks of one of the cascades that InTAR was shown with."""
    return task_graph(load_cascade(name, SIZES[name]))


def intar_plan(name: str) -> ExecutionPlan:
    """The schedule by InTAR's rule: the fewest bytes from and to memory, then the fewest cycles."""
    machine = CoreMachine(CORES, LANES, BUFFERS[name], CORES * PORT)
    return best_schedule(graph_of(name), machine, objective="traffic")


def group_names(name: str) -> tuple[tuple[str, ...], ...]:
    """Tasks of each group of that schedule."""
    tasks = graph_of(name).tasks
    return tuple(tuple(task.name for task in tasks[g.first : g.last]) for g in intar_plan(name).groups)


def same_groups(name: str) -> int:
    """How many of the published groups are groups of that schedule."""
    return len(set(group_names(name)) & set(PUBLISHED[name]))


def schedule_cycles(graph: TaskGraph, groups: Groups, lanes: int) -> float:
    """Cycles of a stated schedule: every group a pipeline or a task alone, one group after the other."""
    names = [task.name for task in graph.tasks]
    cycles, place = 0.0, 0
    for tasks, cores in groups:
        assert list(tasks) == names[place : place + len(tasks)]
        found = graph.pipeline(place, place + len(tasks))
        assert found is not None
        macs = [task.macs for task in graph.tasks[place : place + len(tasks)]]
        cycles += group_compute(macs, cores, lanes, found[1])
        place += len(tasks)
    assert place == len(names)
    return cycles


def mean_speed_over_dataflow() -> float:
    """Geometric mean of dataflow's cycles over InTAR's, MLP and self-attention."""
    stated = (("mlp", DATAFLOW_MLP, LANES), ("self-attention", DATAFLOW_ATTENTION, LANES // 2))
    return geometric_mean(
        [schedule_cycles(graph_of(name), groups, lanes) / intar_plan(name).cycles for name, groups, lanes in stated]
    )


def task_by_task(name: str, ports: int) -> float:
    """Cycles of one task after the other on all multipliers, behind so many memory ports."""
    machine = CoreMachine(CORES, LANES, BUFFERS[name], ports * PORT)
    return best_schedule(graph_of(name), machine, modes=("sequential",)).cycles


def mean_speed_over_sequential() -> float:
    """Geometric mean of the cycles task by task over InTAR's, both with the multipliers and ports of InTAR's kernel."""
    return geometric_mean([task_by_task(name, CORES) / intar_plan(name).cycles for name in SIZES])


def card() -> Card:
    """Derive the groups of three kernels, cycles of the MLP's, and the means over kernels as far as ours go."""
    dataflow = schedule_cycles(graph_of("mlp"), DATAFLOW_MLP, LANES)
    return Card(
        "intar",
        "InTAR: MLP, self-attention and gating network in 16 bits on an Alveo U280",
        "He et al., InTAR: Inter-Task Auto-Reconfigurable Accelerator Design, FCCM 2025, and its repository",
        (
            *(
                CardRow(f"published groups that the rule gives [{name}]", same_groups(name), len(groups), 0.0)
                for name, groups in PUBLISHED.items()
            ),
            CardRow("MLP as dataflow, cycles [C simulation]", dataflow, 180_228, 1e-3),
            CardRow("MLP as dataflow, cycles [hardware emulation]", dataflow, 181_626, 0.01),
            CardRow("MLP as dataflow, cycles [hardware]", dataflow, 181_996, 0.01),
            CardRow("MLP task by task, cycles [hardware]", task_by_task("mlp", 1), 1_374_935, 0.05, BLOCKING),
            CardRow("mean speed over dataflow", mean_speed_over_dataflow(), 1.8, 0.05, TWO_OF_FIVE),
            CardRow("mean speed over task by task", mean_speed_over_sequential(), 7.1, 0.05, BLOCKING),
        ),
    )
