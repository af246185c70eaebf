"""Map a workload to a chip, run it, and put together everything that a report says about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from siliconloom import __version__
from siliconloom.arch import Chip, LoomError, load_chip
from siliconloom.arch.area import area_excluded, chip_area
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Program, Unit
from siliconloom.arch.layout import next_power
from siliconloom.arch.memory import Memory
from siliconloom.arch.opcodes import shown_units
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.quantity import format_si
from siliconloom.arch.schemas import RESULT_SCHEMA as SCHEMA
from siliconloom.arch.tile import NpuTile
from siliconloom.evaluate.asked import asked
from siliconloom.evaluate.decisions import remembered
from siliconloom.evaluate.hardware import PROVEN, SPECIFIED, hardware_of, hardware_summary
from siliconloom.evaluate.placement import placed_summary
from siliconloom.evaluate.timed import recall
from siliconloom.mapper.chip.banked import array_alone
from siliconloom.mapper.chip.bounds import Bound, graph_bound, placed_bound
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.program import MappedWorkload, lower
from siliconloom.mapper.chip.tasks import unlaid
from siliconloom.sim.chip.costs import CostService
from siliconloom.sim.chip.energy import COMPONENTS, energy, excluded, memory_energy, standing_power
from siliconloom.sim.chip.engine import Counter, Progress, Run, Stall, Stopwatch, run
from siliconloom.sim.chip.levels import READ, USEFUL_READ, USEFUL_WRITE, WRITE
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Attention, Graph, Operator, load_workload

if TYPE_CHECKING:
    from siliconloom.evaluate.objectives import Search


class Simulation(Struct, frozen=True):
    """A finished simulation: what was asked, how it was mapped, what happened."""

    chip: Chip
    graph: Graph
    plan: MappedWorkload
    run: Run
    map_s: float
    described: Chip
    """The chip as it was described; in `chip` what its DRAM delivers stands in place of the DRAM."""
    overrides: tuple[tuple[str, str], ...] = ()
    """What ``--set`` changed, key path and value."""
    mapping: Document | None = None
    """The mapping that was given, where the mapper did not decide."""
    joined: bool = False
    """The tiles worked side by side as one, as `Chip.tiles_join` allows."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What was worked out of the program since, by name: that of other chips, too, on which it is the same."""

    @property
    def seconds(self) -> float:
        return self.run.cycles / self.chip.clock

    def result(self, *, figures: bool = False) -> dict[str, Any]:
        """The result under its versioned schema, as ``--json`` prints it; ``figures``: without what is hardware."""
        return _result(self, figures=figures)


def simulate(
    chip: str | Chip,
    workload: str | Graph,
    overrides: list[tuple[str, str]] | None = None,
    *,
    exact: bool = False,
    trace_limit: int = 0,
    window: tuple[int, int] | None = None,
    progress: Progress | None = None,
    costs: CostService | None = None,
    search: Search = False,
    mapping: Document | None = None,
    objective: str = "time",
    placement: str | None = None,
) -> Simulation:
    """Map ``workload`` to ``chip`` and simulate it.

    Parameters
    ----------
    chip, workload
        File or library name, or what `arch.load_chip` and `workloads.load_workload` return.
    overrides
        (key path, value) pairs; paths that start with ``workload.`` go to the workload, the others to the chip.
    exact, trace_limit, window, progress
        See `sim.chip.engine.run`.
    costs
        Where to look a result up before simulating it, and to keep it; not used for traces and exact runs.
    search
        Let the mapper simulate every way to share out the buffers, and then changes of the best mapping, as many as a
        `mapper.chip.budget.Budget` says, or a fixed number.
    mapping
        A description of the mapping; by default the mapper decides.
    placement
        Who decides where things lie on a chip with several memory levels: one of `evaluate.placement.PLACEMENTS`, by
        default the heuristic, and both of them in a ``search``.

    Raises
    ------
    LoomError
        For bad input, or work that does not fit the chip.
    """
    chip_overrides, workload_overrides = split_overrides(overrides or [])
    if isinstance(chip, str):
        chip = load_chip(chip, chip_overrides)
    if isinstance(workload, str):
        workload = load_workload(workload, workload_overrides)
    if mapping is not None:
        from siliconloom.mapper.chip.described import is_joined, refuse_joined

        refuse_joined(mapping, chip)
    apart = chip.model_copy(update={"tiles_join": False}) if chip.tiles_join else chip
    ways = [(apart, False), *([(apart.joined(), True)] if chip.tiles_join else [])]
    if mapping is not None:
        ways = [way for way in ways if way[1] is is_joined(mapping)]
    found = []
    for number, (way, joined) in enumerate(ways):
        length = search if isinstance(search, bool) else search.part(number, len(ways))
        machine = effective(way)
        began = time.perf_counter()
        if not (search or exact or trace_limit or window or costs) and (mapping, objective, placement) == (
            None,
            "time",
            None,
        ):
            done = _timed(machine, workload, progress)
            changed = tuple(overrides or ())
            found.append(replace(done, described=chip, overrides=changed, joined=joined))
            if done.plan.searched is not None and done.plan.searched.interrupted:
                break
            continue
        # single tasks take less time to simulate than to look up
        if mapping is None and (search or objective != "time" or placement is not None):
            from siliconloom.evaluate.objectives import map_for

            plan = map_for(objective, machine, workload, search=length, placement=placement)
        else:
            plan = mapped_to(machine, workload, mapping)
        mapped = time.perf_counter() - began
        check_length(machine, plan.program)
        if (costs or search) and not exact and not trace_limit:
            outcome = (costs or CostService(None)).cost(plan.program, machine)
        else:
            outcome = run(plan.program, machine, exact=exact, trace_limit=trace_limit, window=window, progress=progress)
        changed = tuple(overrides or ())
        done = Simulation(machine, plan.graph, plan, outcome, mapped, chip, changed, mapping, joined)
        check_floors(done)
        found.append(done)
        if plan.searched is not None and plan.searched.interrupted:
            break
    return min(found, key=lambda done: _figure(done, objective))


def _timed(machine: Chip, workload: Graph, progress: Progress | None) -> Simulation:
    """A workload as the mapper maps it for time, on a chip whose memories state what they deliver; found once."""
    began, mapped = time.perf_counter(), 0.0

    def find(chip: Chip) -> tuple[MappedWorkload, Run]:
        nonlocal mapped
        plan = mapped_to(chip, workload, None)
        mapped = time.perf_counter() - began
        check_length(chip, plan.program)
        return plan, run(plan.program, chip, progress=progress)

    found = recall(machine, workload, find)
    plan = replace(found.plan, chip=machine, bound=graph_bound(machine, found.plan.graph, found.plan.placement))
    done = Simulation(machine, plan.graph, plan, found.run, mapped, machine, kept=found.kept)
    check_floors(done)
    return done


def _figure(done: Simulation, objective: str) -> float:
    """What an objective, one of `mapper.chip.objective.OBJECTIVES`, counts of a simulation."""
    if objective == "time":
        return done.run.cycles
    if objective == "traffic":
        return int(done.run.traffic[:, :, [READ, WRITE]].sum())
    joules = float(done.result(figures=True)["energy_j"])
    return joules if objective == "energy" else joules * done.seconds


def mapped_to(chip: Chip, graph: Graph, mapping: Document | None) -> MappedWorkload:
    """The workload as a description maps it to a chip, or as the mapper does for time where there is none."""
    if mapping is None:
        return remembered(chip, graph, lambda: map_workload(chip, graph, Stopwatch(chip), search=False), "time", "")
    from siliconloom.mapper.chip.described import mapping_of

    graph, notes = fit_precision(chip, graph)
    notes = (*notes, *array_alone(chip, graph, "mapping files"))
    return lower(chip, graph, mapping_of(mapping, chip, graph), notes)


def check_length(chip: Chip, program: Program) -> None:
    """Refuse a program that is longer than a tile's program memory, which is filled once a run; raises `LoomError`."""
    reason = excess(chip, program)
    if reason:
        raise LoomError(reason)


def excess(chip: Chip, program: Program) -> str:
    """By what a program is too long for a tile; nothing when it is not."""
    words = len(program.instructions)
    if not isinstance(chip.tile, NpuTile) or words <= chip.tile.sequencer.program_words:
        return ""
    return (
        f"{chip.name}: tile.sequencer.program_words: the mapped program has {words} instructions, the program "
        f"memory holds {chip.tile.sequencer.program_words}; one of {next_power(words)} does "
        f"(--set tile.sequencer.program_words={next_power(words)})"
    )


def narrowest(chip: Chip, name: str, memory: Memory) -> tuple[str, int]:
    """Key path and bytes per second of the pipe that limits what reaches a memory level."""
    if chip.path_bandwidth(memory) < memory.total_bandwidth:
        return "tile.dma.bytes_per_cycle", chip.dma_bandwidth
    return f"memory.{name}.bandwidth", memory.total_bandwidth


def path_notes(chip: Chip) -> list[str]:
    """Memory levels that the tiles' data buses cannot carry, and rows that lanes cannot hold, one note for each."""
    if not isinstance(chip.tile, NpuTile):
        return []
    notes, vector = [], chip.tile.vector
    if vector.together < vector.transpose_rows:
        rows = f"{vector.transpose_rows} rows are not transposed together on {vector.lanes} lanes"
        notes.append(f"tile.vector.transpose_rows: {rows}, {vector.together} are")
    for name, memory in chip.memory.items():
        key, rate = narrowest(chip, name, memory)
        if rate < memory.total_bandwidth:
            width, tiles = chip.tile.dma.bytes_per_cycle, f", {chip.tile_count} tiles" if chip.tile_count > 1 else ""
            wanted = format_si(memory.total_bandwidth, "B/s")
            notes.append(
                f"{key}: {width} B a cycle at {format_si(chip.clock, 'Hz')}{tiles} carry {format_si(rate, 'B/s')}, "
                f"{rate / memory.total_bandwidth:.1%} of the {wanted} of memory.{name}"
            )
    return notes


def binding_key(chip: Chip, bound: Bound) -> str:
    """Key path of what sets a bound: a unit of the tile, or the narrowest pipe to the level that binds."""
    keys = {"compute": "tile.array", "vector": "tile.vector.lanes", "decompression": "tile.dma.decompression"}
    if bound.name in keys:
        return keys[bound.name]
    level = max(bound.level_cycles, key=lambda name: bound.level_cycles[name])
    return narrowest(chip, level, chip.memory[level])[0]


def area_summary(chip: Chip) -> dict[str, Any]:
    """What a chip takes of silicon (`arch.result.AreaResult`)."""
    parts = chip_area(chip)
    excludes = area_excluded(chip)
    return {"mm2": sum(parts.values()), "parts": parts, "technology": chip.technology, "excludes": excludes}


def check_floors(simulation: Simulation) -> None:
    """A time below a physical floor is a bug of ours, never a result."""
    outcome, bound = simulation.run, simulation.plan.bound
    if outcome.cycles < bound.lower_bound_cycles:
        raise AssertionError(f"{outcome.cycles} cycles are below the lower bound of {bound.lower_bound_cycles}: a bug")
    chip = simulation.chip
    for mapped, own in zip(simulation.plan.tasks, outcome.own.tolist(), strict=True):
        least = placed_bound(chip, mapped.task.operator, simulation.plan.placement, mapped.task.fused)
        if own < least.lower_bound_cycles:
            raise AssertionError(
                f"{mapped.task.operator.name}: {own} cycles are below its bound of {least.lower_bound_cycles}: a bug"
            )
    for memory, traffic in zip(chip.memory.values(), outcome.traffic.sum(axis=0), strict=False):
        moved = int(traffic[READ] + traffic[WRITE])
        if moved * chip.clock > outcome.cycles * memory.total_bandwidth + memory.access_bytes:
            raise AssertionError("more bytes moved than a memory's bandwidth allows: a bug")


def _joined(simulation: Simulation) -> list[str]:
    if not simulation.described.tiles_join:
        return []
    how = "side by side as one" if simulation.joined else "apart"
    return [f"tiles_join: the tiles work {how}, the faster way"]


def _read_once(graph: Graph) -> list[str]:
    """A tile of a latent cache is multiplied with as it lies and transposed, which no circuit does yet."""
    if any(isinstance(o, Attention) and o.values_in_keys for o in graph.operators()):
        return ["latent cache: read once for keys and values, as specified, no circuit yet"]
    return []


def _result(simulation: Simulation, *, figures: bool) -> dict[str, Any]:
    chip, graph, plan, outcome = simulation.chip, simulation.graph, simulation.plan, simulation.run
    reasons = None if figures else _reasons(simulation)
    operators = _operators(simulation, reasons)
    joules = {name: sum(o["energy"][name] for o in operators) for name in COMPONENTS}
    joules |= {name: watts * simulation.seconds for name, watts in standing_power(chip).items()}
    total = outcome.counters.sum(axis=0)
    bound = plan.bound
    traffic: dict[str, int] = {}
    detail: dict[str, dict[str, int]] = {}
    levels = outcome.traffic.sum(axis=0)
    for name, moved in zip(chip.memory, levels.tolist(), strict=False):
        detail[name] = {
            "read": moved[READ],
            "write": moved[WRITE],
            "useful_read": moved[USEFUL_READ],
            "useful_write": moved[USEFUL_WRITE],
        }
    if chip.memory:
        detail["scratchpad"] = {
            "read": int(total[Counter.SCRATCHPAD_READ]),
            "write": int(total[Counter.SCRATCHPAD_WRITE]),
        }
        detail["accumulator"] = {
            "read": int(total[Counter.ACCUMULATOR_READ]),
            "write": int(total[Counter.ACCUMULATOR_WRITE]),
        }
        traffic = {level: counts["read"] + counts["write"] for level, counts in detail.items()}
    energy_j = sum(joules.values())
    multiplied = graph.macs - sum((o.macs - array_macs(o)) * o.repeat for o in plan.graph.operators())
    return {
        "schema": SCHEMA,
        "kind": "chip",
        "version": __version__,
        "chip": chip.name,
        "chip_digest": chip.digest,
        "workload": graph.name,
        "phase": graph.phase.value,
        "precision": graph.formats,
        "batch": graph.batch,
        "tokens": graph.tokens,
        "asked": asked(
            graph,
            simulation.overrides,
            machine=chip.name,
            digest=simulation.described.digest,
            mapping=_digest(simulation.mapping),
        ),
        "cycles": outcome.cycles,
        "seconds": simulation.seconds,
        "clock_hz": chip.clock,
        "peak_macs": chip.peak_macs,
        "macs": graph.macs,
        "macs_executed": int(total[Counter.MACS]),
        "utilization": multiplied / (outcome.cycles * chip.peak_macs) if outcome.cycles else 0.0,
        "tokens_per_second": graph.tokens / simulation.seconds if outcome.cycles else 0.0,
        **({"images_per_second": graph.images / simulation.seconds} if graph.images and outcome.cycles else {}),
        "energy_j": energy_j,
        "energy": joules,
        "energy_excludes": excluded(chip),
        "power_w": energy_j / simulation.seconds if outcome.cycles else 0.0,
        "area": area_summary(simulation.described),
        "bound": {
            **bound.as_dict(),
            "lower_bound_s": bound.lower_bound_cycles / chip.clock,
            "key": binding_key(chip, bound),
            "achieved": bound.lower_bound_cycles / outcome.cycles if outcome.cycles else 0.0,
        },
        **({} if reasons is None else {"hardware": hardware_summary(reasons)}),
        "operators": operators,
        "units": _units(simulation),
        "traffic_bytes": traffic,
        "traffic": detail,
        "memory": {
            "used_bytes": plan.memory_bytes,
            "capacity_bytes": sum(m.total_capacity for m in chip.memory.values()),
            "levels": _memory_levels(simulation),
            **({} if plan.placement is None else {"placed": placed_summary(plan)}),
        },
        "simulator": {
            "wall_s": outcome.wall_s,
            "map_s": simulation.map_s,
            "events": outcome.events,
            "events_skipped": outcome.events_skipped,
            "periods": outcome.periods,
            "lookups": outcome.lookups,
            "instructions": len(plan.program.instructions),
        },
        "notes": [*graph.notes, *plan.notes, *path_notes(chip), *_joined(simulation), *_read_once(graph)],
    }


def _digest(mapping: Document | None) -> str | None:
    """Hash of a mapping that was given."""
    if mapping is None:
        return None
    from siliconloom.mapper.chip.described import mapping_digest

    return mapping_digest(mapping)


def _memory_levels(simulation: Simulation) -> dict[str, Any]:
    """Per memory level: what lies there, what moved, the time that this takes at the level's full bandwidth."""
    chip, plan, outcome = simulation.chip, simulation.plan, simulation.run
    traffic = outcome.traffic.sum(axis=0)
    joules = memory_energy(chip, traffic) if chip.memory else {}
    levels: dict[str, Any] = {}
    for number, (name, memory) in enumerate(chip.memory.items()):
        moved = int(traffic[number, READ] + traffic[number, WRITE])
        busy = moved / memory.total_bandwidth
        levels[name] = {
            "used_bytes": plan.memory_bytes if plan.placement is None else plan.placement.used[name],
            "capacity_bytes": memory.total_capacity,
            "bandwidth": memory.total_bandwidth,
            "moved_bytes": moved,
            "bound_cycles": plan.bound.level_cycles[name],
            "utilization": busy / simulation.seconds if outcome.cycles else 0.0,
            "energy_j": joules[name],
        }
        if dram := simulation.described.memory[name].dram:
            levels[name] |= {
                "dram": dram.name,
                "pin_bandwidth": int(dram.peak_bandwidth * memory.channels),
                "latency_s": memory.latency / 1e12,
            }
    return levels


def _units(simulation: Simulation) -> dict[str, Any]:
    outcome = simulation.run
    bare = not simulation.chip.memory
    units: dict[str, Any] = {}
    for unit, name in shown_units(simulation.chip.tile).items():
        if bare and unit != Unit.MATMUL:
            continue
        stalls = {
            cause.name.lower(): int(outcome.stalls[unit, cause]) for cause in Stall if outcome.stalls[unit, cause]
        }
        units[name] = {
            "busy_cycles": int(outcome.busy[unit]),
            "utilization": float(outcome.busy[unit] / outcome.cycles) if outcome.cycles else 0.0,
            "stall_cycles": stalls,
        }
    return units


def _built(why: str | None) -> dict[str, str | None]:
    return {"hardware": PROVEN if why is None else SPECIFIED, "hardware_why": why}


def array_macs(operator: Operator) -> int:
    """Multiply-accumulates of one execution that are the array's: those of attention may be a channel's."""
    return 0 if isinstance(operator, Attention) and operator.banked else operator.macs


def _reasons(simulation: Simulation) -> list[str | None]:
    """Why each operator is not proven; nothing where it is."""
    chip, plan = simulation.chip, simulation.plan
    laid = [
        (unlaid(mapped.task) if isinstance(chip.tile, NpuTile) else None) or plan.apart.get(mapped.task.operator.name)
        for mapped in plan.tasks
    ]
    reasons = simulation.kept.get("hardware")
    if reasons is None:
        reasons = simulation.kept["hardware"] = hardware_of(chip, plan.program, laid)
    found: list[str | None] = reasons
    return found


def _operators(simulation: Simulation, reasons: list[str | None] | None) -> list[dict[str, Any]]:
    chip, outcome = simulation.chip, simulation.run
    rows: list[dict[str, Any]] = []
    standing = standing_power(chip)
    for index, mapped in enumerate(simulation.plan.tasks):
        operator = mapped.task.operator
        counters = outcome.counters[index]
        cycles = int(outcome.own[index])
        macs = operator.macs * operator.repeat
        joules = energy(chip, operator.precision, counters, outcome.traffic[index], outcome.commands[index])
        seconds = int(outcome.exclusive[index]) / chip.clock
        joules |= {name: watts * seconds for name, watts in standing.items()}
        bound = placed_bound(chip, operator, simulation.plan.placement, mapped.task.fused)
        busy = {
            name: int(outcome.operator_busy[index, unit])
            for unit, name in shown_units(chip.tile).items()
            if outcome.operator_busy[index, unit]
        }
        rows.append(
            {
                "name": operator.name,
                "block": operator.block,
                "kind": operator.kind,
                "repeat": operator.repeat,
                "tiles": mapped.tiles,
                **({} if reasons is None else _built(reasons[index])),
                "start_cycle": int(outcome.start[index]),
                "end_cycle": int(outcome.end[index]),
                "seconds": cycles / chip.clock,
                "cycles": cycles,
                "overlap_cycles": cycles - int(outcome.exclusive[index]),
                "macs": macs,
                "utilization": array_macs(operator) * operator.repeat / (cycles * chip.peak_macs) if cycles else 0.0,
                "bound_cycles": bound.lower_bound_cycles,
                "bound": bound.name,
                "read_bytes": int(counters[Counter.READ_BYTES]),
                "write_bytes": int(counters[Counter.WRITE_BYTES]),
                "energy_j": sum(joules.values()),
                "energy": joules,
                "busy_cycles": busy,
                "fused": [v.name for v in mapped.task.fused],
                "shape": operator.shape,
            }
        )
    return rows
