"""Layers of a decode step on a chip whose memory computes: what its arrays and its memory take, and who works while.

What the arrays do comes from the chip simulator, run on the chip's part without its attention, with the bandwidth that
the memory's channels deliver to streams (`channels.stream_bandwidth`). What memory does comes from the channels'
command sequencers (`sim.pim.channel`), one channel after the other, in full. Where both work at once, each channel gets
both: the macros of attention, and the arrays' reads as a stream of rows at the pace at which the arrays want them. What
they do to each other is then in the command timing, not in a factor.

The order is NeuPIMs' (Heo et al., ASPLOS 2024, section 6): without interleaving a layer's arrays and its attention take
turns; with it, two halves of the sequences swap places in every half layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from msgspec.structs import replace

from siliconloom.arch import Chip
from siliconloom.arch.pim import Command, MacroKind, check_macro
from siliconloom.arch.system import Policy
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.channels import channel_run, products, row_stream
from siliconloom.evaluate.chip import Simulation
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.windows import Arrays, Channels, PimRow, Window
from siliconloom.mapper.chip.bounds import used_weight_bytes
from siliconloom.mapper.pim.offload import Head, attention_macros, balance, can_compute, load_of, shape_of, shared
from siliconloom.mapper.system.contracts import Parts
from siliconloom.mapper.system.shard import without
from siliconloom.sim.chip.engine import Counter, Run, run
from siliconloom.sim.pim.channel import ChannelRun, Int, macro_table
from siliconloom.workloads import Attention, Collective, Gemm

PREFETCH_STEPS = 4
"""Amounts that are tried of what could be read ahead."""
FAST_MEMORY = 64
"""Times the bandwidth at which the arrays' own time is measured, to tell it from the memory's."""


class PimLayers:
    """A row of layers for some sequences, of which memory does the attention.

    Parameters
    ----------
    chip, arrays
        A chip whose memory computes, and the same as its arrays see it.
    policy
        What the memory computes, and how it is shared.
    parts
        One chip's part of the model.
    contexts
        Tokens that each sequence attends to, its own included.
    layers
        That follow one another before the sequences leave the chip.
    """

    def __init__(
        self, chip: Chip, arrays: ChipMachine, policy: Policy, parts: Parts, contexts: tuple[int, ...], layers: int
    ) -> None:
        assert chip.pim is not None
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.pim, self.machine, self.policy = chip, chip.tile, chip.pim, arrays, policy
        self.parts, self.contexts, self.layers = parts, contexts, layers
        self.rate = arrays.bandwidth / chip.clock
        """Bytes per cycle that all channels deliver to streams."""
        self.graph, _ = parts(len(contexts))
        self.attention = next(o for o in self.graph.operators() if isinstance(o, Attention))
        self._measured: dict[tuple[int, frozenset[str]], tuple[Arrays, Simulation]] = {}
        self._tables: dict[tuple[tuple[int, ...], Head], Int] = {}

    def best(self) -> PimRow:
        """The fastest order that the policy allows."""
        found = []
        divisible = len(self.contexts) > 1 and self.pim.dual_row_buffer and self.policy.weights != "pim"
        if self.policy.interleave != "always" or not divisible:  # one sequence takes turns, as with "never"
            found.append(self._turns())
        if self.policy.interleave != "never" and divisible:
            found.append(self._interleaved())
        return min(found, key=lambda row: row.cycles + row.end_cycles)

    # arrays

    def _measure(self, sequences: int, moved: frozenset[str] = frozenset()) -> tuple[Arrays, Simulation]:
        """The arrays' share of a layer for some sequences, without its attention and what memory computes (`moved`)."""
        key = sequences, moved
        if key not in self._measured:
            part, waits = self.parts(sequences)
            rest = without(part, lambda o: isinstance(o, Attention | Collective) or o.name in moved)
            simulation = self.machine.simulation(rest)
            order = [o.name for o in part.operators()]
            follow = frozenset(order[order.index(self.attention.name) :])
            made = self._arrays(simulation, follow)
            for operator in part.operators():
                if isinstance(operator, Collective) and operator.block == self.attention.block:
                    cycles = ceil(waits[operator.name] * self.chip.clock)
                    late = operator.name in follow
                    made = replace(
                        made,
                        before=made.before + cycles * (not late),
                        after=made.after + cycles * late,
                        unbound=made.unbound + cycles,
                    )
            self._measured[key] = made, simulation
        return self._measured[key]

    def _arrays(self, simulation: Simulation, follow: frozenset[str]) -> Arrays:
        unbound = _unbound(simulation, self.machine.exact)
        before = after = ends = own = weights = traffic = 0
        for index, mapped in enumerate(simulation.plan.tasks):
            operator, repeat = mapped.task.operator, mapped.repeat
            cycles = -(-int(simulation.run.exclusive[index]) // repeat)
            if operator.block != self.attention.block:
                ends += cycles
                continue
            counters = simulation.run.counters[index]
            own += int(unbound.exclusive[index]) // repeat
            weights += used_weight_bytes(operator)
            traffic += int(counters[Counter.READ_BYTES] + counters[Counter.WRITE_BYTES]) // repeat
            if mapped.task.owner in follow:
                after += cycles
            else:
                before += cycles
        return Arrays(before, after, own, weights, traffic, ends)

    # memory

    def _dealt(self, contexts: Sequence[int]) -> tuple[Head, list[tuple[int, ...]]]:
        """Heads of every share of a sequence, and the contexts of every channel's shares."""
        head, split = shared(self.pim, Head.of(self.attention, self.policy.values), len(contexts))
        shares = [c for c in contexts for _ in range(split)]
        loads = [load_of(self.pim, head, c) for c in shares]
        parts = balance(loads, self.pim.channels, self.policy.balance)
        return head, [tuple(shares[n] for n in part) for part in parts]

    def _attend(self, contexts: Sequence[int], read_bytes: int = 0, over: int = 0) -> Channels:
        """One layer's attention of some sequences in all channels, beside reads of so many bytes over some cycles."""
        pim, tile = self.pim, self.tile
        head, dealt = self._dealt(contexts)
        share = max(tile.vector.slot * self.chip.tile_count // pim.channels, 1)
        rows = -(-read_bytes // (pim.channels * pim.dram.organization.row_bytes))
        found = Channels(0, 0, np.zeros(len(Command), np.int64))
        for part in dealt:
            table = self._macros(part, head, share)
            if rows:
                table = np.concatenate([table, row_stream(pim, rows, over)])
            if not len(table):
                found.busy.append(0)
                continue
            outcome = channel_run(pim, table)
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
            passes, latency = self.tile.vector.cost_of(VectorFunction.SOFTMAX).passes, self.tile.vector.latency
            waits = [passes * -(-head.heads * c // lanes) + latency for c in contexts]
            macros = attention_macros(self.pim, head, contexts, waits)
            for macro in macros:
                check_macro(self.pim, macro)
            self._tables[contexts, head] = macro_table(macros)
        return self._tables[contexts, head]

    # orders

    def _in_memory(self) -> dict[str, ChannelRun]:
        """Products with weights that memory computes sooner than the arrays do, with a channel's run."""
        if self.policy.weights == "npu":
            return {}
        simulation = self._measure(len(self.contexts))[1]
        taken = zip(simulation.plan.tasks, simulation.run.exclusive.tolist(), strict=True)
        on_arrays = {mapped.task.operator.name: cycles // mapped.repeat for mapped, cycles in taken}
        found = {}
        for operator in self.graph.operators():
            if not (isinstance(operator, Gemm) and can_compute(operator)):
                continue
            rows = -(-operator.n // self.pim.channels)
            outcome = products(self.pim, rows, operator.k, operator.m, operator.precision)
            if self.policy.weights == "pim" or outcome.cycles < on_arrays[operator.name]:
                found[operator.name] = outcome
        return found

    def _turns(self) -> PimRow:
        """Arrays, then memory; with dual row buffers the next weights come in meanwhile."""
        contexts, layers = self.contexts, self.layers
        moved = self._in_memory()
        arrays, simulation = self._measure(len(contexts), frozenset(moved))
        channels = self._attend(contexts)
        work = arrays.layer
        best = work + channels.attention
        if self.pim.dual_row_buffer and self.policy.prefetch:
            spare = self.chip.tile_count * self.tile.scratchpad.capacity // 2
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
        ]
        ends = [
            Window("embedding and head", arrays.ends, 0),
            Window("head in memory", 0, sum(r.cycles for n, r in moved.items() if n not in inner)),
        ]
        return self._row(windows, ends, channels, (simulation,), moved)

    def _interleaved(self) -> PimRow:
        """Two halves of the sequences: one at the arrays while the other one's attention is in memory."""
        contexts = self.contexts
        order = sorted(range(len(contexts)), key=lambda n: -contexts[n])
        halves = [tuple(contexts[n] for n in order[part::2]) for part in (0, 1)]
        measured = [self._measure(len(half)) for half in halves]
        arrays = [made for made, _ in measured]
        windows = [Window("first half's queries", arrays[0].before, 0)]
        share = arrays[1].before / max(arrays[1].layer, 1)
        first = self._attend(halves[0], int(arrays[1].traffic * share), arrays[1].before)
        windows.append(Window("second half's queries", max(arrays[1].before, first.reads), first.attention))
        both = [self._attend(halves[1 - n], arrays[n].traffic, arrays[n].layer) for n in (0, 1)]
        for n, name in enumerate(("first", "second")):
            cycles = max(arrays[n].layer, both[n].reads)
            windows.append(Window(f"{name} half's arrays", cycles, both[n].attention, self.layers - 1))
        rest = arrays[0].traffic - int(arrays[0].traffic * arrays[0].before / max(arrays[0].layer, 1))
        last = self._attend(halves[1], rest, arrays[0].after)
        windows.append(Window("first half's end", max(arrays[0].after, last.reads), last.attention))
        windows.append(Window("second half's end", arrays[1].after, 0))
        together = Channels(
            both[0].attention + both[1].attention,
            both[0].reads + both[1].reads,
            both[0].counts + both[1].counts,
            [a + b for a, b in zip(both[0].busy, both[1].busy, strict=True)],
        )
        ends = [Window("embedding and head", arrays[0].ends + arrays[1].ends, 0)]
        return self._row(windows, ends, together, tuple(simulation for _, simulation in measured), {})

    def _row(
        self,
        windows: Sequence[Window],
        ends: Sequence[Window],
        channels: Channels,
        simulations: tuple[Simulation, ...],
        moved: dict[str, ChannelRun],
    ) -> PimRow:
        times: dict[str, float] = {}
        for simulation in simulations:
            for index, mapped in enumerate(simulation.plan.tasks):
                owner = mapped.task.owner
                taken = int(simulation.run.exclusive[index]) / mapped.repeat / self.chip.clock
                times[owner] = times.get(owner, 0.0) + taken
        times |= {name: outcome.cycles / self.chip.clock for name, outcome in moved.items()}
        times[self.attention.name] = channels.attention / self.chip.clock
        return PimRow(
            self.layers,
            self.chip.clock,
            self.pim,
            tuple(w for w in windows if w.cycles),
            tuple(w for w in ends if w.cycles),
            channels,
            simulations,
            moved,
            times,
            self._cache(),
            self.contexts,
        )

    def _cache(self) -> int:
        """Bytes of a layer's keys and values, in whole rows of the fullest channel's banks, on all channels."""
        row = self.pim.dram.organization.row_bytes * self.pim.banks
        head, dealt = self._dealt(self.contexts)
        fullest = max(sum(shape_of(self.pim, head, c).rows for c in part) for part in dealt)
        return fullest * row * self.pim.channels


def _unbound(simulation: Simulation, exact: bool) -> Run:
    """A program's run with a memory that is hardly ever waited for."""
    memory = simulation.chip.memory.items()
    fast = {n: m.model_copy(update={"bandwidth": m.bandwidth * FAST_MEMORY}) for n, m in memory}
    return run(simulation.plan.program, simulation.chip.model_copy(update={"memory": fast}), exact=exact)
