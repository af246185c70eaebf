"""A second simulator, written from the text of docs/timing.md: it steps every cycle and keeps real counters.

Each cycle: posts that are due arrive; the sequencer dispatches at most one step; then every unit may start the
instruction at the head of its queue, at most one. The array runs fold by fold, nothing is a closed form of a whole run.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction

from siliconloom.arch.isa import Instruction, Opcode, Program, Unit
from siliconloom.sim.timing.systolic import ArrayTimeline, gemm_folds
from siliconloom.sim.timing.units import (
    ACCUMULATOR_WRITE,
    BARRIER,
    LOAD_WRITE,
    LOADER_GAP,
    OPERAND_LATENCY,
    QUEUE_REFILL,
    STORE_WRITE,
    TRANSFER_START,
    fetch_cycles,
    moved_bytes,
    transfer_cycles,
    vector_cycles,
)  # fmt: skip

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
        self.array = ArrayTimeline(chip.tile.array)
        self.port_free = self.cycles = self.now = 0
        self.log: list[tuple[int, int, int]] = []
        fetch_first, fetch_interval = fetch_cycles(chip)
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
        held = len(worker.queue) + sum(self.now < popped + QUEUE_REFILL for popped in worker.popped)
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
            consumed, done = now + BARRIER, now + BARRIER
        elif unit == Unit.MATMUL:
            times = [
                self.array.fold(fold, now + OPERAND_LATENCY) for fold in gemm_folds(self.tile.array, i.m, i.n, i.k)
            ]
            consumed, done = times[-1].last_fire + 1, times[-1].last_output + 1 + ACCUMULATOR_WRITE
            stationary = self.tile.array.dataflow != "output_stationary"
            worker.free = self.array.load_free + LOADER_GAP if stationary else consumed
        elif unit in PORT:
            memory = self.memory_at(i.memory.base)
            worker.free = self.port_free = now + self.port_cycles(memory, i)
            consumed = worker.free + TRANSFER_START
            pipeline = LOAD_WRITE if unit == Unit.LOAD else STORE_WRITE
            done = consumed + self.chip.cycles(memory.latency) + pipeline
        else:
            consumed = done = now + vector_cycles(self.tile.vector, i.function, i.m, i.n)
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

    def port_cycles(self, memory, i):
        """Rows one after the other, each dealt out to the ports piece by piece; the busiest port sets the pace."""
        ports, busiest = memory.ports * memory.devices, 0
        for _ in range(i.m):
            loads, left, port = [0] * ports, moved_bytes(memory, 1, i.n), 0
            while left:
                piece = min(left, memory.interleave or 256)
                loads[port] += piece
                left, port = left - piece, (port + 1) % ports
            busiest += max(loads)
        rate = Fraction(memory.bandwidth * memory.devices, ports * self.chip.clock)
        return max(transfer_cycles(self.chip, moved_bytes(memory, i.m, i.n), memory), math.ceil(busiest / rate))
