"""One step on a system: how its chips share the model, and what its arrays and its memory take for each part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from siliconloom.arch import Chip, LoomError, NotSupported
from siliconloom.arch.description import NpuTile
from siliconloom.arch.isa import Unit
from siliconloom.arch.pim import Command, MacroKind, check_macro
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.system import System
from siliconloom.arch.vector import VectorFunction, vector_cost
from siliconloom.evaluate.channels import products, row_stream, stream_bandwidth
from siliconloom.evaluate.chip import Simulation, simulate
from siliconloom.evaluate.system_result import lower_bound
from siliconloom.evaluate.windows import Arrays, Channels, SystemSimulation, Window
from siliconloom.mapper.chip.bounds import used_weight_bytes
from siliconloom.mapper.pim.offload import Head, attention_macros, balance, can_compute, load_of, shape_of
from siliconloom.mapper.system.shard import reduced_elements, sequences_of, tensor_shard, with_context, without
from siliconloom.sim.chip.engine import Counter, Run, run
from siliconloom.sim.pim.channel import ChannelRun, Int, macro_table, run_channel
from siliconloom.workloads import Attention, Gemm, Graph

PREFETCH_STEPS = 4
"""Amounts that are tried of what could be read ahead."""
FAST_MEMORY = 64
"""Times the bandwidth at which the arrays' own time is measured, to tell it from the memory's."""


@dataclass(frozen=True)
class _Asked:
    """A chip and a graph, equal to others of the same content."""

    digest: str
    content: str
    exact: bool
    chip: Chip = field(compare=False)
    graph: Graph = field(compare=False)

    @classmethod
    def of(cls, chip: Chip, graph: Graph, exact: bool) -> _Asked:
        content = repr((graph.phase, graph.operators(), list(graph.dataflow.edges())))
        return cls(chip.digest, content, exact, chip, graph)


@lru_cache(maxsize=256)
def _simulated(asked: _Asked) -> tuple[Simulation, Run]:
    """A simulation, and its program with a memory that is hardly ever waited for."""
    simulation = simulate(asked.chip, asked.graph, exact=asked.exact)
    memory = simulation.chip.memory.items()
    fast = {n: m.model_copy(update={"bandwidth": m.bandwidth * FAST_MEMORY}) for n, m in memory}
    chip = simulation.chip.model_copy(update={"memory": fast})
    return simulation, run(simulation.plan.program, chip, exact=asked.exact)


class SystemStep:
    """One simulation in the making."""

    def __init__(self, system: System, chip: Chip, graph: Graph, contexts: tuple[int, ...], exact: bool) -> None:
        self.exact = exact
        self.system, self.policy, self.contexts = system, system.policy, contexts
        self.pim, self.described = chip.pim, chip
        self.graph = tensor_shard(graph, self.policy.tensor)
        self.layers = sum(
            repeat for _, repeat, ops in self.graph.blocks() if any(isinstance(o, Attention) for o in ops)
        )
        self.attention = next(o for o in self.graph.operators() if isinstance(o, Attention))
        self.rate = 0.0  # bytes per cycle that all channels deliver to streams
        self.chip = chip
        if self.pim is not None:
            name, memory = next(iter(chip.memory.items()))
            self.rate = stream_bandwidth(self.pim) * self.pim.channels
            rate = int(self.rate * chip.clock)
            self.chip = chip.model_copy(
                update={
                    "memory": chip.memory
                    | {name: memory.model_copy(update={"bandwidth": min(rate, memory.bandwidth)})},
                    "pim": None,
                }
            )
        self._measured: dict[tuple[int, int, frozenset[str]], tuple[Arrays, tuple[Simulation, ...]]] = {}
        self._channels: dict[bytes, ChannelRun] = {}
        self._tables: dict[tuple[tuple[int, ...], Head], Int] = {}

    def run(self, began: float) -> SystemSimulation:
        """Decide, simulate, keep the faster."""
        where = self.policy.attention
        if where == "pim" and self.pim is None:
            raise LoomError(f"policy.attention: {self.described.name} has no pim")
        if self.policy.interleave == "always" and not (self.pim and self.pim.dual_row_buffer):
            raise LoomError("policy.interleave: always needs a chip with pim.dual_row_buffer: true")
        if self.policy.interleave == "always" and self.policy.weights == "pim":
            raise LoomError("policy.interleave: always leaves products to the arrays; policy.weights must not be pim")
        places = [False] if self.pim is None or where == "npu" else [True] if where == "pim" else [False, True]
        choices, refused = list[SystemSimulation](), list[LoomError]()
        for offloaded in places:
            try:
                choices.append(self._step(offloaded, began))
            except LoomError as error:
                refused.append(error)
        if not choices:
            raise refused[0]
        best = min(choices, key=lambda s: s.cycles)
        left = [str(error) for error in refused]
        if self.policy.interleave == "always" and best.offloaded and not best.interleaved:
            left.append("policy.interleave: always needs at least two sequences in a stage")
        return replace(best, notes=(*best.notes, *(f"left out: {text}" for text in left)))

    def _step(self, offloaded: bool, began: float) -> SystemSimulation:
        pipeline, used = self._stages(offloaded)
        layers = -(-self.layers // pipeline)
        passes = min(pipeline, self.graph.batch)
        parts = [self.contexts[n::passes] for n in range(passes)]
        slowest = max(parts, key=lambda p: (len(p), sum(p)))
        if not offloaded:
            arrays, simulation = self._measure(len(slowest), attention=round(sum(slowest) / len(slowest)))
            windows = [Window("layers", arrays.layer, 0, layers), Window("embedding and head", arrays.ends, 0)]
            return self._made(pipeline, passes, False, False, windows, arrays, None, layers, used, simulation, began)
        plans = []
        halves = self.pim is not None and self.pim.dual_row_buffer and self.policy.weights != "pim"
        divisible = len(slowest) > 1 and halves
        if self.policy.interleave != "always" or not divisible:  # one sequence takes turns, as with "never"
            plans.append(self._turns(slowest, layers))
        if self.policy.interleave != "never" and divisible:
            plans.append(self._interleaved(slowest, layers))
        best = min(plans, key=lambda plan: sum(w.cycles * w.repeat for w in plan[0]))
        windows, arrays, simulation, channels, interleaved, moved = best
        return self._made(
            pipeline, passes, interleaved, True, windows, arrays, channels, layers, used, simulation, began, moved
        )

    def _made(
        self,
        pipeline: int,
        passes: int,
        interleaved: bool,
        offloaded: bool,
        windows: list[Window],
        arrays: Arrays,
        channels: Channels | None,
        layers: int,
        used: int,
        simulations: tuple[Simulation, ...],
        began: float,
        products: dict[str, ChannelRun] | None = None,
    ) -> SystemSimulation:
        made = SystemSimulation(
            self.system,
            self.described,
            self.graph,
            self.policy.tensor,
            pipeline,
            passes,
            interleaved,
            offloaded,
            tuple(windows),
            arrays,
            channels,
            layers,
            self.layers,
            used,
            self.contexts,
            simulations,
            time.perf_counter() - began,
            (),
            products or {},
        )
        floor = int(lower_bound(made)["lower_bound_cycles"])
        if made.cycles < floor:
            raise AssertionError(f"{made.cycles} cycles are below the lower bound of {floor}: a bug")
        return made

    # capacity

    def _stages(self, offloaded: bool) -> tuple[int, int]:
        """Pipeline stages, and bytes of memory that the fullest chip then uses."""
        chips = self.system.chips[0].count
        most = min(chips // self.policy.tensor, self.layers)
        tried = [self.policy.pipeline] if self.policy.pipeline else range(1, most + 1)
        capacity = next(iter(self.chip.memory.values())).capacity
        used = 0
        for stages in tried:
            layers = -(-self.layers // stages)
            used = self._weights(layers, stages) + self._cache(layers, offloaded)
            if used <= capacity:
                return stages, used
        name = next(iter(self.chip.memory))
        raise LoomError(
            f"{self.graph.name}: weights and key-value cache need {format_bytes(used)} of each chip's memory.{name}, "
            f"which has {format_bytes(capacity)}, over {self.policy.tensor} x {stages} of the {chips} chips of "
            f"{self.system.name} (policy.tensor, policy.pipeline, workload.batch, workload.context)"
        )

    def _weights(self, layers: int, stages: int) -> int:
        """Bytes of parameters of the fullest chip; with several stages no chip has both ends of the model."""
        inside, ends = 0, list[int]()
        for _, repeat, operators in self.graph.blocks():
            size = sum(o.weight_bytes for o in operators)
            if any(isinstance(o, Attention) for o in operators):
                inside += size * min(layers, repeat)
            else:
                ends.append(size)
        return inside + (sum(ends) if stages == 1 else max(ends, default=0))

    def _cache(self, layers: int, offloaded: bool) -> int:
        if offloaded and self.pim is not None:
            row = self.pim.dram.organization.row_bytes * self.pim.banks
            head, dealt = self._dealt(self.contexts)
            fullest = max(sum(shape_of(self.pim, head, c).rows for c in part) for part in dealt)
            return fullest * row * self.pim.channels * layers
        width = self.attention.head_dim + self.attention.v_head_dim
        per_token = self.attention.precision.size(self.attention.kv_heads * width)
        return per_token * sum(self.contexts) * layers

    # arrays

    def _measure(
        self, sequences: int, attention: int = 0, moved: frozenset[str] = frozenset()
    ) -> tuple[Arrays, tuple[Simulation, ...]]:
        """The arrays' share of one layer for some sequences.

        With attention over so many tokens, or without any; without the products that memory computes (``moved``).
        """
        key = sequences, attention, moved
        if key in self._measured:
            return self._measured[key]
        whole = sequences_of(self.graph, sequences)
        rest = without(whole, lambda o: isinstance(o, Attention) or o.name in moved)
        chips = [self.chip.model_copy(update={"tiles_join": False})]
        if self.chip.tiles_join:
            chips.append(self.chip.joined())
        parts = [min((self._layer(chip, rest) for chip in chips), key=lambda p: p[0].layer)]
        if attention:
            alone = without(with_context(whole, attention), lambda o: not isinstance(o, Attention))
            parts.append(min((self._layer(chip, alone) for chip in chips), key=lambda p: p[0].layer))
        names = ("before", "after", "unbound", "weights", "traffic", "ends", "busy", "macs", "vector_busy")
        made = Arrays(**{name: sum(getattr(part, name) for part, _ in parts) for name in names})
        reduced = self._all_reduces(whole)
        made = replace(made, after=made.after + reduced, unbound=made.unbound + reduced)
        self._measured[key] = made, tuple(simulation for _, simulation in parts)
        return self._measured[key]

    def _layer(self, chip: Chip, graph: Graph) -> tuple[Arrays, Simulation]:
        """What a chip's arrays take for one layer of ``graph``, and for what is outside its layers."""
        # placement over levels and capacity are the whole model's matter, see `_stages`
        roomy = {n: m.model_copy(update={"capacity": 2**60}) for n, m in chip.memory.items()}
        simulation, unbound = _simulated(_Asked.of(chip.model_copy(update={"memory": roomy}), graph, self.exact))
        order = [o.name for o in self.graph.operators()]
        follow = frozenset(order[order.index(self.attention.name) :])
        before = after = ends = own = weights = traffic = busy = macs = vector = 0
        for index, mapped in enumerate(simulation.plan.tasks):
            operator, repeat = mapped.task.operator, mapped.repeat
            cycles = int(simulation.run.exclusive[index])
            if operator.block != self.attention.block:
                ends += cycles
                continue
            counters = simulation.run.counters[index]
            own += int(unbound.exclusive[index]) // repeat
            weights += used_weight_bytes(operator)
            traffic += int(counters[Counter.READ_BYTES] + counters[Counter.WRITE_BYTES]) // repeat
            busy += int(simulation.run.operator_busy[index, Unit.MATMUL]) // repeat
            vector += int(simulation.run.operator_busy[index, Unit.VECTOR]) // repeat
            macs += operator.macs
            if mapped.task.owner in follow:
                after += -(-cycles // repeat)
            else:
                before += -(-cycles // repeat)
        return Arrays(before, after, own, weights, traffic, ends, busy, macs, vector), simulation

    def _all_reduces(self, graph: Graph) -> int:
        """Cycles of a layer's all-reduces: each chip sends 2 (t - 1) / t of the values; over a switch in two hops."""
        t = self.policy.tensor
        if t == 1 or not self.policy.communicate:
            return 0
        hops = {"switch": 2, "fully_connected": 2, "ring": 2 * (t - 1)}.get(self.system.topology.kind)
        if hops is None:
            raise NotSupported(f"all-reduce over a {self.system.topology.kind}")
        link, total = self.system.link, 0
        for elements in reduced_elements(graph).values():
            moved = 2 * (t - 1) * self.graph.precision.size(elements) / t
            total += -(-int(moved * self.chip.clock) // (link.bandwidth * link.count))
            total += hops * self.chip.cycles(link.latency)
        return total

    # memory

    def _dealt(self, contexts: Sequence[int]) -> tuple[Head, list[tuple[int, ...]]]:
        """Heads of every share of a sequence, and the contexts of every channel's shares.

        A sequence lies in one channel; when there are fewer of them than channels, its heads are spread over several.
        """
        assert self.pim is not None
        head = Head.of(self.attention, self.policy.values)
        split = max(min(head.kv_heads, self.pim.channels // len(contexts)), 1)
        together = -(-head.kv_heads // split)
        head = replace(head, kv_heads=together, heads=together * (head.heads // head.kv_heads))
        shares = [c for c in contexts for _ in range(split)]
        loads = [load_of(self.pim, head, c) for c in shares]
        parts = balance(loads, self.pim.channels, self.policy.balance)
        return head, [tuple(shares[n] for n in part) for part in parts]

    def _attend(self, contexts: Sequence[int], read_bytes: int = 0, over: int = 0) -> Channels:
        """One layer's attention of some sequences in all channels, beside reads of so many bytes over some cycles."""
        assert self.pim is not None
        assert isinstance(self.chip.tile, NpuTile)
        pim, tile = self.pim, self.chip.tile
        head, dealt = self._dealt(contexts)
        share = max(tile.vector.lanes * self.chip.tile_count // pim.channels, 1)
        rows = -(-read_bytes // (pim.channels * pim.dram.organization.row_bytes))
        found = Channels(0, 0, np.zeros(len(Command), np.int64))
        for part in dealt:
            table = self._macros(part, head, share)
            if rows:
                table = np.concatenate([table, row_stream(pim, rows, over)])
            if not len(table):
                found.busy.append(0)
                continue
            key = table.tobytes()
            if key not in self._channels:
                self._channels[key] = run_channel(pim, table)
            outcome = self._channels[key]
            compute = table[:, 0] <= MacroKind.GEMV
            ended = int(outcome.done[compute].max()) if compute.any() else 0
            found.busy.append(int((outcome.last - outcome.taken)[compute].sum()))
            found.attention = max(found.attention, ended)
            if rows:
                found.reads = max(found.reads, int(outcome.done[~compute].max()))
            found.counts = found.counts + outcome.counts
        return found

    def _macros(self, contexts: tuple[int, ...], head: Head, lanes: int) -> Int:
        """Macros of one channel, its softmax on ``lanes`` lanes of the vector unit."""
        if (contexts, head) not in self._tables:
            assert self.pim is not None
            assert isinstance(self.chip.tile, NpuTile)
            passes, latency = vector_cost(VectorFunction.SOFTMAX).passes, self.chip.tile.vector.latency
            waits = [passes * -(-head.heads * c // lanes) + latency for c in contexts]
            macros = attention_macros(self.pim, head, contexts, waits)
            for macro in macros:
                check_macro(self.pim, macro)
            self._tables[contexts, head] = macro_table(macros)
        return self._tables[contexts, head]

    # schedules

    def _in_memory(self, sequences: int) -> dict[str, ChannelRun]:
        """Products with weights that memory computes sooner than the arrays do, with a channel's run."""
        assert self.pim is not None
        if self.policy.weights == "npu":
            return {}
        simulation = self._measure(sequences)[1][0]
        on_arrays = {
            m.task.operator.name: int(simulation.run.exclusive[i]) // m.repeat
            for i, m in enumerate(simulation.plan.tasks)
        }
        found = {}
        for operator in sequences_of(self.graph, sequences).operators():
            if not (isinstance(operator, Gemm) and can_compute(operator)):
                continue
            rows = -(-operator.n // self.pim.channels)
            outcome = products(self.pim, rows, operator.k, operator.m, operator.precision)
            if self.policy.weights == "pim" or outcome.cycles < on_arrays[operator.name]:
                found[operator.name] = outcome
        return found

    def _turns(self, contexts: tuple[int, ...], layers: int) -> Any:
        """Arrays, then memory; with dual row buffers the next weights come in meanwhile."""
        assert self.pim is not None
        assert isinstance(self.chip.tile, NpuTile)
        moved = self._in_memory(len(contexts))
        arrays, simulation = self._measure(len(contexts), moved=frozenset(moved))
        channels = self._attend(contexts)
        work = arrays.layer
        best = work + channels.attention
        if self.pim.dual_row_buffer and self.policy.prefetch:
            spare = self.chip.tile_count * self.chip.tile.scratchpad.capacity // 2
            bound = min(arrays.layer - arrays.unbound, channels.attention)  # cycles that reading ahead could save
            most = min(arrays.weights, spare, int(bound * self.rate))
            for part in range(1, PREFETCH_STEPS + 1):
                ahead = most * part // PREFETCH_STEPS
                beside, saved = self._attend(contexts, ahead), int(ahead / self.rate)
                if arrays.layer - saved + max(beside.attention, beside.reads) < best:
                    work, channels = arrays.layer - saved, beside
                    best = work + max(beside.attention, beside.reads)
        inner = {o.name for o in self.graph.operators() if o.block == self.attention.block}
        windows = [
            Window("arrays", work, 0, layers),
            Window("weights in memory", 0, sum(r.cycles for n, r in moved.items() if n in inner), layers),
            Window("attention in memory", 0, max(channels.attention, channels.reads), layers),
            Window("embedding and head", arrays.ends, 0),
            Window("head in memory", 0, sum(r.cycles for n, r in moved.items() if n not in inner)),
        ]
        return [w for w in windows if w.cycles], arrays, simulation, channels, False, moved

    def _interleaved(self, contexts: tuple[int, ...], layers: int) -> Any:
        """Two halves of the batch: one at the arrays while the other one's attention is in memory."""
        order = sorted(range(len(contexts)), key=lambda n: -contexts[n])
        halves = [tuple(contexts[n] for n in order[part::2]) for part in (0, 1)]
        arrays = [self._measure(len(half))[0] for half in halves]
        simulations = tuple(s for half in halves for s in self._measure(len(half))[1])
        windows = [Window("first half's queries", arrays[0].before, 0)]
        share = arrays[1].before / max(arrays[1].layer, 1)
        first = self._attend(halves[0], int(arrays[1].traffic * share), arrays[1].before)
        windows.append(Window("second half's queries", max(arrays[1].before, first.reads), first.attention))
        both = [self._attend(halves[1 - n], arrays[n].traffic, arrays[n].layer) for n in (0, 1)]
        for n, name in enumerate(("first", "second")):
            windows.append(
                Window(f"{name} half's arrays", max(arrays[n].layer, both[n].reads), both[n].attention, layers - 1)
            )
        rest = arrays[0].traffic - int(arrays[0].traffic * arrays[0].before / max(arrays[0].layer, 1))
        last = self._attend(halves[1], rest, arrays[0].after)
        windows.append(Window("first half's end", max(arrays[0].after, last.reads), last.attention))
        windows.append(Window("second half's end", arrays[1].after, 0))
        windows.append(Window("embedding and head", arrays[0].ends + arrays[1].ends, 0))
        counts = both[0].counts + both[1].counts
        together = Channels(
            both[0].attention + both[1].attention,
            both[0].reads + both[1].reads,
            counts,
            [a + b for a, b in zip(both[0].busy, both[1].busy, strict=True)],
        )
        merged = replace(
            arrays[0],
            **{
                name: getattr(arrays[0], name) + getattr(arrays[1], name)
                for name in ("before", "after", "unbound", "traffic", "ends", "busy", "macs", "vector_busy")
            },
        )
        return windows, merged, simulations, together, True, {}
