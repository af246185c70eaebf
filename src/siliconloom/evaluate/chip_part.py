"""What one of our own chips does in a step: its operators, on the arrays or in memory, their energy, traffic, bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from siliconloom.arch import Chip
from siliconloom.arch.pim import Command
from siliconloom.arch.system import Policy
from siliconloom.arch.technology import BANK_ENERGY, TECHNOLOGIES
from siliconloom.evaluate.chip import Simulation, binding_key
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.pim_machine import PimMachine
from siliconloom.evaluate.steps import PlannedStep
from siliconloom.evaluate.windows import PimRow, Window
from siliconloom.mapper.chip.bounds import graph_bound
from siliconloom.mapper.system.shard import without
from siliconloom.sim.chip.energy import COMPONENTS, pim_energy
from siliconloom.workloads import Attention, Graph, Operator, Phase
from siliconloom.workloads.subgraph import without_messages

ADDED = ("seconds", "cycles", "overlap_cycles", "macs", "bound_cycles", "read_bytes", "write_bytes", "energy_j")
"""What an operator's executions add up."""


class ChipPart(Struct, frozen=True):
    """A chip's part of all layers, in all passes of a step; the chips of a pipeline's stages share it.

    Parameters
    ----------
    chip
        As it was simulated.
    graph
        One chip's operators.
    rows
        Of a result's operators.
    row
        Layers that memory computes a part of.
    passes
        Parts of the batch that follow one another.
    memory_bytes, memory_macs
        Parameters, keys and values that memory computes with in a step, and its multiply-accumulates.
    counts
        Commands of all channels in a step.
    policy
        Of the memory, where it could compute a part.
    """

    chip: Chip
    graph: Graph
    rows: list[dict[str, Any]]
    row: PimRow | None = None
    passes: int = 1
    memory_bytes: int = 0
    memory_macs: int = 0
    counts: Any = None
    policy: Policy | None = None

    @classmethod
    def of(cls, machine: ChipMachine, steps: PlannedStep) -> ChipPart:
        """The part of a plan's step; its operators as the machine's programs execute them."""
        graph, times = steps.part, steps.microbatches
        repeats = {operator.name: operator.repeat * times for operator in graph.operators()}
        row = None
        if isinstance(machine, PimMachine) and steps.layers is not None:
            parts, layers = steps.layers.parts(steps.plan), steps.layers.in_a_row(steps.plan)
            row, _ = machine.simulated_row(parts, steps.plan.microbatch, layers)
        if row is None:
            done = machine.simulation(graph)
            policy = machine.policy if isinstance(machine, PimMachine) and graph.phase is Phase.DECODE else None
            return cls(done.chip, graph, operator_rows(done, steps.executions), passes=times, policy=policy)
        assert isinstance(machine, PimMachine)
        rows = _merged(
            [each | {"unit": "npu"} for done in row.simulations for each in operator_rows(done, steps.executions)]
        )
        pim = row.pim
        attention = next(o for o in graph.operators() if isinstance(o, Attention))
        moved = [o for o in graph.operators() if o.name in row.moved]
        attending = attention.macs * sum(row.contexts) // (attention.kv_len * attention.batch)
        cached = attention.precision.size(attention.kv_heads * (attention.head_dim + attention.v_head_dim))
        for operator, macs in [*((o, o.macs) for o in moved), (attention, attending)]:
            rows.append(_in_memory(operator, repeats[operator.name], row.times[operator.name], macs, row.clock))
        counts = row.channels.counts * repeats[attention.name]
        counts = counts + pim.channels * sum(row.moved[o.name].counts * repeats[o.name] for o in moved)
        return cls(
            machine.arrays.chip,
            graph,
            rows,
            row,
            times,
            repeats[attention.name] * cached * sum(row.contexts) + sum(o.weight_bytes * repeats[o.name] for o in moved),
            repeats[attention.name] * attending + sum(o.macs * repeats[o.name] for o in moved),
            counts,
            machine.policy,
        )

    @property
    def energy(self) -> dict[str, float]:
        """Joules of what was done, by what they are spent on, of all passes; without what time takes."""
        found = {name: float(sum(row["energy"][name] for row in self.rows if "energy" in row)) for name in COMPONENTS}
        banks = self._banks()
        return found | ({f"pim {name}": joules for name, joules in banks.items()} if banks else {})

    def _banks(self) -> dict[str, float] | None:
        if self.row is None:
            return None
        return pim_energy(self.row.pim, TECHNOLOGIES[self.chip.technology], self.graph.precision, self.counts)

    @property
    def uncounted(self) -> bool:
        """Whether nobody published the energy of the banks' own commands."""
        return self.row is not None and self.row.pim.dram.standard not in BANK_ENERGY

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes over the pins of the memory, and those that banks computed with."""
        moved = sum(row["read_bytes"] + row["write_bytes"] for row in self.rows if "read_bytes" in row)
        found = {next(iter(self.chip.memory)): moved} if self.chip.memory else {}
        return found if self.policy is None else found | {"banks": self.memory_bytes}

    @property
    def laid_out(self) -> dict[str, Any]:
        """What a system's result says of layers that memory computes a part of."""
        if self.policy is None:
            return {}
        row, policy = self.row, self.policy
        if row is None:
            return {"interleaved": False, "attention": {"unit": "npu"}}
        attention = {"unit": "pim", "values": policy.values, "balance": policy.balance}
        return {"interleaved": row.interleaved, "attention": attention, "layers_per_stage": row.layers}

    @property
    def notes(self) -> list[str]:
        """What a reader of such a result should know."""
        row, found = self.row, list[str]()
        if row is not None and self.uncounted:
            found.append(f"energy of the banks' own commands is not counted: no source for {row.pim.dram.standard}")
        if row is not None and self.policy and self.policy.interleave == "always" and not row.interleaved:
            found.append("left out: policy.interleave: always needs at least two sequences in a stage")
        return found

    @property
    def bound(self) -> PartBound:
        """Cycles that work and data alone need for the whole part, in all passes of a step.

        Of the arrays as `graph_bound` has it, for what they do. ``bank``, ``activation``: parameters and cache that
        banks compute with, over what all of them read in a dot product's interval, and over the rows that tFAW lets
        them open.
        """
        row, graph = self.row, without_messages(self.graph)
        if row is None:
            found = graph_bound(self.chip, graph)
            return PartBound(found.lower_bound_cycles * self.passes, found.name, binding_key(self.chip, found))
        found = graph_bound(self.chip, without(graph, lambda o: isinstance(o, Attention) or o.name in row.moved))
        o, t = row.pim.dram.organization, row.pim.dram.timing
        moved = self.memory_bytes / self.passes / row.pim.channels
        runs = sum(each.repeat for each in graph.operators() if isinstance(each, Attention))
        memory = {
            "bank": int(moved * row.pim.dot_interval / (row.pim.banks * o.request_bytes)),
            "activation": max(int(moved * t.tFAW / (4 * o.ranks * o.row_bytes)) - runs * t.tFAW, 0),
        }
        name = max(memory, key=lambda each: memory[each])
        if memory[name] > found.lower_bound_cycles:
            return PartBound(memory[name] * self.passes, name, "pim")
        return PartBound(found.lower_bound_cycles * self.passes, found.name, binding_key(self.chip, found))

    def units(self, cycles: int, stages: int) -> dict[str, dict[str, Any]]:
        """What arrays, vector units and memory did in a step of so many cycles, on a chip of one of the stages."""
        found: dict[str, dict[str, Any]] = {}
        for name in ("array", "vector"):
            busy = sum(row["busy_cycles"].get(name, 0) for row in self.rows if "busy_cycles" in row) // stages
            found[name] = _unit(busy, cycles)
        row = self.row
        if row is None:
            return found
        on_arrays = sum(each["macs"] for each in self.rows if each["unit"] == "npu") / stages
        found["array"]["mac_utilization"] = on_arrays / (cycles * self.chip.peak_macs) if cycles else 0.0
        repeats = {each["name"]: each["repeat"] for each in self.rows if each["unit"] == "pim"}
        attended = next(o for o in self.graph.operators() if isinstance(o, Attention))
        busy = sum(row.channels.busy) / row.pim.channels * repeats[attended.name]
        busy += sum(outcome.cycles * repeats[name] for name, outcome in row.moved.items())
        found["pim"] = _unit(int(busy / stages), cycles) | {
            "mac_utilization": self.memory_macs / stages / (cycles * row.pim.peak_macs) if cycles else 0.0,
            "commands": {c.name.lower(): int(self.counts[c]) // stages for c in Command if self.counts[c]},
            "channel_imbalance": max(row.channels.busy) * row.pim.channels / max(sum(row.channels.busy), 1),
        }
        return found

    def windows(self, cycles: int, stages: int) -> list[dict[str, Any]]:
        """What works side by side at the fullest stage, in all passes of a step of so many cycles."""
        row = self.row
        assert row is not None
        shown = [*row.windows, *(row.ends if stages == 1 else ())]
        left = cycles - self.passes * sum(w.cycles * w.repeat for w in shown)
        others = "messages" if stages == 1 else "other stages, embedding and head"
        waiting = [_window(Window(f"waiting for {others}", 0, left), 1)] if left > 0 else []
        return [_window(each, self.passes) for each in shown] + waiting


class PartBound(Struct, frozen=True):
    """Cycles that no mapping of a part can beat, what binds, and the key path of what does."""

    lower_bound_cycles: int
    name: str
    key: str


def operator_rows(done: Simulation, executions: Callable[[str], int]) -> list[dict[str, Any]]:
    """Rows of the chip's result as often as a step has them; ``executions`` are those of an operator by its name."""
    rows = []
    owners = {mapped.task.operator.name: mapped.task.owner for mapped in done.plan.tasks}
    for row in done.result()["operators"]:
        times = executions(owners[row["name"]])
        row |= {name: row[name] * times for name in ADDED}
        row |= {
            "repeat": row["repeat"] * times,
            "energy": {name: joules * times for name, joules in row["energy"].items()},
            "busy_cycles": {name: busy * times for name, busy in row["busy_cycles"].items()},
            "seconds": row["cycles"] / done.chip.clock,
        }
        rows.append({name: value for name, value in row.items() if name not in ("start_cycle", "end_cycle")})
    return rows


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Halves of a batch put together: rows of the same operator are one."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        first = found.setdefault(row["name"], row)
        if first is row:
            continue
        cycles = first["cycles"] + row["cycles"]
        used = first["utilization"] * first["cycles"] + row["utilization"] * row["cycles"]
        first |= {name: first[name] + row[name] for name in ADDED}
        first["utilization"] = used / cycles if cycles else 0.0
        for name in ("energy", "busy_cycles"):
            first[name] = {key: first[name].get(key, 0) + row[name].get(key, 0) for key in first[name] | row[name]}
    return list(found.values())


def _in_memory(operator: Operator, repeat: int, seconds: float, macs: int, clock: int) -> dict[str, Any]:
    """The row of an operator that memory computes."""
    return {
        "name": operator.name,
        "block": operator.block,
        "kind": operator.kind,
        "unit": "pim",
        "repeat": repeat,
        "seconds": seconds * repeat,
        "cycles": round(seconds * clock) * repeat,
        "macs": macs * repeat,
        "bound": "bank",
        "shape": operator.shape,
    }


def _unit(busy: int, cycles: int) -> dict[str, Any]:
    return {"busy_cycles": busy, "utilization": busy / cycles if cycles else 0.0}


def _window(window: Window, passes: int) -> dict[str, Any]:
    return {
        "name": window.name,
        "repeat": window.repeat * passes,
        "cycles": window.cycles,
        "array_cycles": window.arrays,
        "memory_cycles": window.memory,
    }


__all__ = ["ChipPart", "PartBound"]
