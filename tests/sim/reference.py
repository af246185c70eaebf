"""A second simulator, written from the text of docs/timing.md: it steps every cycle and keeps real counters.

Each cycle: posts that are due arrive; the sequencer dispatches at most one step; then every unit may start the
instruction at the head of its queue, at most one. The array runs fold by fold, nothing is a closed form of a whole run.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction

from siliconloom.arch.isa import Instruction, Opcode, Program, Unit

# Durations in cycles, from docs/timing.md. Nothing here is taken from `siliconloom.sim`: what is checked may not check
# itself.
OPERANDS_ENTER = 4
"""A matmul's first stationary line enters the array this long after it left its queue."""
NEXT_MATMUL = 1
SUMS_WRITTEN = 2
"""From the cycle in which a result leaves the array: one to the accumulator, one until it is known to be there."""
QUEUE_PLACE = 2
BARRIER = 2
FIRST_ADDRESS = 1
LOADED, STORED = 2, 3
"""From a transfer's last address and the latency to its end, less the first address: load 3, store 4 in all."""
GATHERED = 5
"""The first address of a gather is so much later than that of a load."""
FETCHED = 2
WORD_BYTES = 256
VECTOR_FUNCTIONS = {
    # passes over all rows, reductions over whole rows, lines of parameters of each block of columns, bytes of each
    # group of parameters that is read once
    "softmax": (2, 1, 0, (8,)),
    "softmax_online": (2, 1, 0, (8,)),
    "requantize_rows": (1, 0, 8, ()),
    "softmax_merged": (4, 2, 0, ()),
    "layer_norm": (2, 1, 8, ()),
    "rms_norm": (2, 1, 8, ()),
    "top_k": (2, 1, 0, (8,)),
    "combine": (1, 0, 0, (8,)),
    "argmax": (1, 1, 0, ()),
    "gelu": (1, 0, 0, (256,)),
    "silu": (1, 0, 0, (256,)),
    "gated_gelu": (1, 0, 0, (8, 256)),
    "gated_silu": (1, 0, 0, (8, 256)),
    "add": (1, 0, 0, (8,)),
    "multiply": (1, 0, 0, (8,)),
    "rope": (2, 0, 0, ()),
    "optimizer": (8, 0, 0, ()),
    "requantize": (1, 0, 8, ()),
    "copy": (1, 0, 0, ()),
    "kv_append": (1, 0, 0, ()),
    "relu": (1, 0, 0, ()),
    "rescale": (1, 0, 0, ()),
    "gather": (1, 0, 0, ()),
}

PORT = (Unit.LOAD, Unit.STORE)
WORKERS = (Unit.LOAD, Unit.STORE, Unit.MATMUL, Unit.VECTOR)


class Deadlock(Exception):
    pass


@dataclass
class Entry:
    number: int
    instruction: Instruction
    first: bool
    last: bool
    held_from: int | None = None
    asks_from: int | None = None

    @property
    def waits(self) -> list[int]:
        mask = self.instruction.wait | (self.instruction.first_wait if self.first else 0)
        return [bit for bit in range(24) if mask >> bit & 1]

    @property
    def is_barrier(self) -> bool:
        return self.instruction.opcode == Opcode.BARRIER


@dataclass
class Worker:
    queue: deque = field(default_factory=deque)
    popped: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    free: int = 0
    consumed: int = 0
    done: int = 0


def steps(program: Program):
    """What the sequencer does, in order: its instruction, and an Entry for a dispatch or ``None`` for a loop's step."""
    stack, pc, code = [], 0, program.instructions
    while code[pc].opcode != Opcode.END:
        i = code[pc]
        if i.opcode == Opcode.LOOP:
            stack.append([pc, 0, i.m])
            yield pc, None
        elif i.opcode == Opcode.NEXT:
            yield pc, None
            stack[-1][1] += 1
            if stack[-1][1] < stack[-1][2]:
                pc = stack[-1][0]
            else:
                stack.pop()
        else:
            first = all(s[1] == 0 for level, s in enumerate(stack) if i.first >> level & 1)
            last = all(s[1] == s[2] - 1 for level, s in enumerate(stack) if i.last >> level & 1)
            yield pc, Entry(pc, i, first, last)
        pc += 1
    yield pc, "end"


class Reference:
    """Runs ``program`` on one tile of ``chip``; `cycles` and `log` (number, operands read, done) are the outcome."""

    def __init__(self, program, chip, patience=3000):
        self.chip, self.tile = chip, chip.tile
        self.counts = [s.initial for s in program.semaphores] + [0] * 24
        self.posts: dict[int, list[int]] = {}
        self.workers = {unit: Worker() for unit in WORKERS}
        self.array = Array(chip.tile.array)
        self.port_free = self.cycles = self.now = 0
        self.log: list[tuple[int, int, int]] = []
        dma, nearest = chip.tile.dma, next(iter(chip.memory.values()))
        self.launch, self.trip = chip.tile.sequencer.launch_cycles, self.clocks(nearest.latency)
        fetch_first = FETCHED + (0 if self.launch else self.trip)
        fetch_interval = math.ceil(Fraction(WORD_BYTES, min(dma.bytes_per_cycle, dma.port_bytes)))
        todo = steps(program)

        def following(now):
            pc, step = next(todo)
            begin = max(now, fetch_first + fetch_interval * (pc + 1))
            self.cycles = max(self.cycles, begin)
            return step, begin + self.cost(step)

        step, due = following(0)
        quiet = 0
        while step != "end" or any(w.queue for w in self.workers.values()):
            for semaphore in self.posts.pop(self.now, []):
                self.counts[semaphore] += 1
            progress = False
            if step != "end" and self.now >= due and self.dispatch(step):
                self.cycles = max(self.cycles, self.now)
                step, due = following(self.now)
                progress = True
            started = [unit for unit in WORKERS if self.can_start(unit)]
            if Unit.LOAD in started and Unit.STORE in started:
                loser = self.loser()
                started = [unit for unit in started if unit != loser]
            for unit in started:
                self.start(unit)
            quiet = 0 if progress or started or self.posts or self.now < due else quiet + 1
            if quiet > patience:
                raise Deadlock
            self.now += 1

    def cost(self, step):
        if step == "end":
            return 0
        return self.tile.sequencer.loop_cycles if step is None else self.tile.sequencer.issue_cycles

    def dispatch(self, step):
        if step is None:
            return True
        worker = self.workers[step.instruction.unit]
        held = len(worker.queue) + sum(self.now < popped + QUEUE_PLACE for popped in worker.popped)
        if held >= self.tile.sequencer.queue_depth:
            return False
        worker.queue.append(step)
        return True

    def can_start(self, unit):
        worker = self.workers[unit]
        if not worker.queue:
            return False
        entry = worker.queue[0]
        if entry.held_from is None:
            if any(self.counts[bit] == 0 for bit in entry.waits):
                return False
            entry.held_from = self.now
            for bit in entry.waits:
                self.counts[bit] -= 1
        if self.now < worker.free and not (unit == Unit.MATMUL and not entry.is_barrier):
            return False
        if unit == Unit.MATMUL and not entry.is_barrier:
            return self.now >= worker.free
        if unit in PORT and sum(end > self.now for end in worker.ends) >= self.tile.dma.outstanding:
            return False
        if unit in PORT and not entry.is_barrier:
            if entry.asks_from is None:
                entry.asks_from = self.now
            return self.now >= self.port_free
        return True

    def loser(self):
        load, store = self.workers[Unit.LOAD].queue[0], self.workers[Unit.STORE].queue[0]
        if load.is_barrier or store.is_barrier:
            return None
        return Unit.STORE if load.asks_from <= store.asks_from else Unit.LOAD

    def start(self, unit):
        worker = self.workers[unit]
        entry = worker.queue.popleft()
        i, now = entry.instruction, self.now
        if entry.is_barrier:
            # program after program: each is launched, and between two of them a result goes to memory and back
            between = 2 * self.trip * (i.m - 1)
            launch = i.m * self.launch + between if self.launch and unit == Unit.LOAD and i.m else 0
            consumed = done = now + max(BARRIER, launch)
            worker.free = max(worker.free, now + launch)
        elif unit == Unit.MATMUL:
            consumed, left, loader_free = self.array.multiply(
                i.m, i.n, i.k, now + OPERANDS_ENTER + self.chip.tile.array.unpack_stages
            )
            done = left + SUMS_WRITTEN + self.chip.tile.array.accumulate_stages - 1
            stationary = self.tile.array.dataflow != "output_stationary"
            worker.free = loader_free + NEXT_MATMUL if stationary else consumed
        elif unit in PORT:
            memory = self.memory_at(i.memory.base)
            worker.free = self.port_free = now + self.port_cycles(memory, i)
            if i.opcode == Opcode.GATHER:
                worker.free = self.port_free = worker.free + GATHERED
            consumed = worker.free + FIRST_ADDRESS
            pipeline = LOADED if unit == Unit.LOAD else STORED
            done = consumed + self.clocks(memory.latency) + pipeline
        else:
            consumed = done = now + self.vector_cycles(i)
            worker.free = consumed
        # completions leave in order, one a cycle
        consumed, done = max(consumed, worker.consumed + 1), max(done, worker.done + 1)
        worker.popped.append(now)
        worker.ends.append(done)
        if not entry.is_barrier:
            self.log.append((entry.number, consumed, done))
        worker.done, worker.consumed = done, consumed
        self.cycles = max(self.cycles, consumed, done)
        for mask, when in ((i.release, consumed), (i.post | (i.last_post if entry.last else 0), done)):
            for bit in range(24):
                if mask >> bit & 1:
                    self.posts.setdefault(when, []).append(bit)

    def memory_at(self, address):
        """The level that holds an address: the levels lie one behind the other."""
        for memory in self.chip.memory.values():
            if address < memory.capacity * memory.devices:
                return memory
            address -= memory.capacity * memory.devices
        raise AssertionError("an address beyond the last level")

    def clocks(self, picoseconds):
        """Cycles that cover a time."""
        return math.ceil(Fraction(picoseconds * self.chip.clock, 10**12))

    def vector_cycles(self, i):
        """One to begin, parameters read once, then block by block of columns; a wait for each reduction and the end.

        Rows come in groups of ``sublanes``; functions take what a description says of them, where it does.
        """
        lanes, latency = self.tile.vector.lanes, self.tile.vector.latency
        blocks = math.ceil(i.n / lanes)
        if i.function == "transpose":  # one element a cycle
            return 1 + blocks * i.m * lanes + latency
        passes, reductions, lines, once = VECTOR_FUNCTIONS[i.function]
        stated, groups = self.tile.vector.costs.get(i.function), math.ceil(i.m / self.tile.vector.sublanes)
        if stated is not None and stated.passes is not None:
            passes = stated.passes
        if i.function == "top_k" and i.k < i.n:  # a pass for each that is found
            passes, reductions = passes + i.k, reductions + i.k
        if i.function == "combine":  # a row of each operand
            passes = i.k * self.tile.vector.sum_stages
        index = math.ceil(4 / lanes) * i.m if i.function == "argmax" else 0
        cycles = 1 + sum(math.ceil(size / lanes) for size in once) + (reductions + 1) * latency + index
        for _ in range(blocks):
            cycles += lines + passes * groups
        return cycles + (stated.row_cycles * groups if stated is not None else 0)

    def port_cycles(self, memory, i):
        """Rows one after the other, in whole accesses; time follows bytes, at the tile's share of the memory.

        With several ports each row is dealt out to them piece by piece, and the busiest sets the pace.
        """
        row = math.ceil(i.n / memory.access_bytes) * memory.access_bytes
        ports, busiest = memory.ports * memory.devices, 0
        for _ in range(i.m):
            loads, left, port = [0] * ports, row, 0
            while left:
                piece = min(left, memory.interleave or 256)
                loads[port] += piece
                left, port = left - piece, (port + 1) % ports
            busiest += max(loads)
        bus, rate = self.tile.dma.bytes_per_cycle, memory.bandwidth * memory.devices
        interval = max(math.ceil(Fraction(bus * self.chip.clock * self.chip.tile_count * 65536, rate)), 65536)
        full, rest = divmod(i.m * row, bus)
        parts = full * interval + math.ceil(Fraction(rest * interval, bus))  # of 1/65536 cycle
        cycles = max(math.ceil(Fraction(parts, 65536)), 1)
        if ports == 1:
            return cycles
        one = Fraction(rate, ports * self.chip.clock * self.chip.tile_count)
        return max(cycles, math.ceil(busiest / one))


class Array:
    """The array, beat by beat: loads fill a shadow, a swap makes it active, moving beats pass, results leave behind."""

    def __init__(self, array):
        self.kind, self.rows, self.cols = array.dataflow, array.rows, array.cols
        self.load_rows, self.through = (
            array.load_rows,
            array.rows * (1 + array.add_stages) + array.cols - 1 + array.multiply_stages,
        )
        self.shared = array.load_port == "shared"
        self.apart, self.swapped = array.accumulate_stages, -(2**62)
        """Cycles from fold to fold at least, and that of the latest fold's swap."""
        self.loader_free = 0
        """First cycle in which the shadow takes a beat."""
        self.moved = -1
        """Cycle of the latest moving beat."""
        self.drained = -(2**62)
        """Output stationary: cycle of the latest fold's last beat, R cycles before which no other may end."""

    def multiply(self, m, n, k, ready):
        """Cycle after the last operand entered, that of the last result, and when the loader is free again."""
        if self.kind == "output_stationary":
            return self.keep_sums(m, n, k, ready)
        outer, beats = (n, m) if self.kind == "weight_stationary" else (m, n)
        entered, rest = 0, self.apart - 1
        for _ in range(0, outer, self.cols):
            left = k
            while left > 0:
                cycle, waiting = max(ready, self.loader_free), min(left, self.rows)
                while waiting > 0:
                    waiting -= self.load_rows
                    cycle += 1
                if cycle < self.swapped + self.apart:
                    cycle = self.swapped + self.apart
                swap = self.swapped = max(cycle, self.moved + rest)
                rest = 0
                entered = self.moved = swap + beats
                self.loader_free = entered + 1 if self.shared else swap
                left -= self.rows
        return entered + 1, entered + self.through, self.loader_free

    def keep_sums(self, m, n, k, ready):
        last, left, rest = 0, 0, self.apart - 1
        for first_row in range(0, m, self.rows):
            for _ in range(0, n, self.cols):
                begin = max(ready, self.moved + 1)
                last = max(begin + k - 1, self.drained + self.rows + rest)
                rest = 0
                self.moved = self.drained = last
                left = last + self.through + min(self.rows, m - first_row) - 1
        return last + 1, left, None
