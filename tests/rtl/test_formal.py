"""Contracts of the building blocks, proved; and for each a planted bug that its proof must find."""

import importlib.util
import os
import subprocess
from collections import deque

import pytest
from amaranth import Array, Cat, Const, Signal
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.cells.arbiter import FirstComeArbiter
from siliconloom.rtl.cells.plumbing import RegisterSlice
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.scratchpad import AdderLane
from tests.rtl.contracts import broken, comb, implies, monitor, sync, wrapped

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


@pytest.mark.parametrize(
    ("kind", "parameters", "depth"),
    [
        *[(Queue, (4, depth), depth + 3) for depth in (1, 2, 3, 4, 8)],
        *[(SemaphoreCounter, (width,), 4) for width in (2, 3, 12)],
        *[(FirstComeArbiter, (users,), 6) for users in (2, 3, 4)],
    ],
)
def test_the_contract_holds_in_every_cycle(kind, parameters, depth):
    assert prove(monitor(kind, *parameters), depth=depth, induction=1).induction == 1


@pytest.mark.parametrize("width", [1, 2, 32])
def test_the_register_slice_keeps_its_contract_in_every_cycle(width):
    """Its registers are not to be seen, so the induction needs three cycles and no idle loops."""
    assert prove(monitor(RegisterSlice, width), depth=8, induction=3, distinct=True).induction == 3


@pytest.mark.slow
def test_older_sums_are_rescaled_exactly_in_every_cycle():
    """For all sums and shifts, against the rounding that the lanes of the vector unit are written with."""
    assert prove(monitor(AdderLane), depth=3, induction=2).induction == 2


def test_a_rescaling_that_rounds_wrongly_is_found():
    wrong = broken(AdderLane, comb("total", lambda c: (c.memory.as_signed() >> c.fall)[:32]))
    found = check(monitor(wrong), depth=2)
    assert found.counterexample is not None


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("depth", [3, 9, 16])
def test_a_queue_in_a_memory_keeps_its_contract_in_every_cycle(depth, monkeypatch):
    monkeypatch.setattr("siliconloom.rtl.cells.queue.REGISTER_BITS", 0)
    proof = monitor(Queue, 4, depth)
    assert proof.circuit.memory is not None
    assert prove(proof, depth=depth + 3, induction=1).induction == 1


@pytest.mark.parametrize(("kind", "parameters"), [(Queue, (4, 3)), (SemaphoreCounter, (3,))])
def test_an_asynchronous_reset_keeps_the_contract_too(kind, parameters):
    proof = monitor(kind, *parameters, reset="async_low")
    assert prove(proof, depth=6, induction=1).induction == 1


class QueueThatNeverWraps(Queue):
    def after(self, slot):
        return slot + 1


class QueueThatStoresWhatItDoesNotAccept(Queue):
    def store(self, m, writes):
        return super().store(m, self.i.valid)


BUGS = {
    "arbiter prefers the lower": (
        broken(FirstComeArbiter, comb("first", lambda c: Cat(1, ~c.asks[0]))),
        (2,),
        "assert_first",
    ),
    "arbiter forgets who waits": (
        broken(FirstComeArbiter, lambda m, c: m.d.sync.__iadd__(c.older[2, 1].eq(0))),
        (3,),
        "assert_first",
    ),
    "arbiter lets two go first": (broken(FirstComeArbiter, comb("first", lambda c: Const(3, 2))), (2,), "assert_one"),
    "slice accepts without room": (broken(RegisterSlice, comb("i.ready", lambda c: 1)), (4,), "assert_ready"),
    "slice shows what is coming": (
        broken(RegisterSlice, comb("o.payload", lambda c: c.i.payload)),
        (4,),
        "assert_order",
    ),
    "slice takes its offer back": (
        broken(RegisterSlice, comb("o.valid", lambda c: ~c.i.ready | ~c.i.valid)),
        (4,),
        "assert_valid",
    ),
    "queue's slots never wrap": (QueueThatNeverWraps, (4, 3), "assert_order"),
    "queue overwrites when full": (QueueThatStoresWhatItDoesNotAccept, (4, 2), "assert_order"),
    "queue forgets on a collision": (
        broken(Queue, sync("level", lambda c: 1, when=lambda c: c.i.valid & c.o.ready)),
        (4, 3),
        "assert_level",
    ),
    "queue accepts while it is emptied": (
        broken(Queue, comb("i.ready", lambda c: (c.level != c.depth) | c.o.ready)),
        (4, 4),
        "assert_ready",
    ),
    "queue shows what comes in before what waits": (
        broken(Queue, sync("front", lambda c: c.i.payload, when=lambda c: c.o.ready & (c.level == 2))),
        (4, 3),
        "assert_order",
    ),
    "queue does not show what comes in when the last one leaves": (
        broken(Queue, sync("front", lambda c: c.front, when=lambda c: c.o.ready & (c.level == 1))),
        (128, 9),
        "assert_order",
    ),
    "queue in a memory takes its read slot for its write slot": (
        broken(Queue, sync("write_slot", lambda c: c.read_slot)),
        (128, 9),
        "assert_order",
    ),
    "semaphore wraps": (broken(SemaphoreCounter, comb("overflow", lambda c: 0)), (3,), "assert_level"),
    "semaphore loses a gift that meets a take": (
        broken(SemaphoreCounter, sync("given", lambda c: 0, when=lambda c: c.take & (c.level == 3))),
        (3,),
        "assert_level",
    ),
    "semaphore keeps its last one": (
        broken(SemaphoreCounter, comb("available", lambda c: c.level > 1)),
        (12,),
        "assert_available",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    kind, parameters, assertion = BUGS[bug]
    outcome = check(monitor(kind, *parameters), depth=12, only=assertion)
    assert not outcome.proved
    assert outcome.counterexample.reachable
    assert outcome.counterexample.broken == (assertion,)


class Pipeline(Monitor):
    """Load, matmul and store as a program runs them: queues in order, semaphores around two rings of slots.

    The program repeats for ever: ``burst`` loads, as many matmuls, as many stores. A load waits for a free slot of the
    first ring; a matmul for a full one there and a free one of the second; a store for a full one. Each unit takes
    between one and ``slowest`` cycles, as it likes. The sequencer stops at a queue that is full.
    """

    RING, WIDTH = 2, 2

    def __init__(self, burst, *, places=1, slowest=3, semaphore=SemaphoreCounter, queue=Queue):
        self.burst, self.places, self.slowest = burst, places, slowest
        self.semaphore, self.queue = semaphore, queue
        properties = (
            "assert_progress assert_flags cover_patient cover_loaded cover_blocked invariant_sane invariant_slots"
        )
        ports = {"done": In(3)} | dict.fromkeys([*properties.split(), "invariant_program"], Out(1))
        super().__init__(Library("pipeline"), "pipeline_contract", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        running = Signal()
        turn, step = Signal(range(3)), Signal(range(self.burst + 1))
        start, finish, busy = Signal(3), Signal(3), Signal(3)
        timers = [Signal(range(self.slowest), name=f"timer_{unit}") for unit in range(3)]
        m.d.sync += running.eq(1)

        def semaphore(name, initial, giver, taker):
            made = self.library.make(self.semaphore, self.WIDTH)
            return self.place(
                m,
                made,
                name,
                load=~running,
                initial=Const(initial, self.WIDTH),
                give=Cat(finish[giver], Const(0, 1)),
                take=start[taker],
            )

        first = {"full": semaphore("first_full", 0, 0, 1), "free": semaphore("first_free", self.RING, 1, 0)}
        second = {"full": semaphore("second_full", 0, 1, 2), "free": semaphore("second_free", self.RING, 2, 1)}
        waits = [[first["free"]], [first["full"], second["free"]], [second["full"]]]
        queue = self.library.make(self.queue, 1, self.places)
        queues = [self.place(m, queue, f"queue_{unit}") for unit in range(3)]
        for unit, each in enumerate(queues):
            m.d.comb += [
                each.i.valid.eq(running & (turn == unit)),
                each.i.payload.eq(Const(0, 1)),
                each.o.ready.eq(start[unit]),
            ]

        dispatch = running & Cat((turn == unit) & queue.i.ready for unit, queue in enumerate(queues)).any()
        with m.If(dispatch & (step == self.burst - 1)):
            m.d.sync += [step.eq(0), turn.eq(wrapped(turn + 1, 3))]
        with m.Elif(dispatch):
            m.d.sync += step.eq(step + 1)
        for unit, timer in enumerate(timers):
            ready = Cat(semaphore.available for semaphore in waits[unit]).all()
            m.d.comb += start[unit].eq(queues[unit].o.valid & ready & ~busy[unit])
            m.d.comb += finish[unit].eq(busy[unit] & (self.done[unit] | (timer == self.slowest - 1)))
            m.d.sync += [busy[unit].eq(start[unit] | (busy[unit] & ~finish[unit])), timer.eq(timer + 1)]
            with m.If(start[unit]):
                m.d.sync += timer.eq(0)

        idle = Signal(range(self.slowest + 2))
        with m.If(~running | dispatch | start.any() | finish.any()):
            m.d.sync += idle.eq(0)
        with m.Elif(idle <= self.slowest):
            m.d.sync += idle.eq(idle + 1)
        semaphores = [*first.values(), *second.values()]
        m.d.comb += [
            self.assert_progress.eq(idle < self.slowest),
            self.assert_flags.eq(~Cat([s.overflow for s in semaphores], [s.underflow for s in semaphores]).any()),
            self.cover_patient.eq(idle == 1),
            self.cover_loaded.eq(first["full"].level == self.RING),
            self.cover_blocked.eq(queues[1].o.valid & first["full"].available & ~second["free"].available),
        ]

        # A slot is free, full, being filled or being emptied. What was started is what was dispatched and is no
        # longer queued; a unit is ahead of the next by the full slots and the one it fills.
        slots = [
            ring["free"].level + ring["full"].level + busy[unit] + busy[unit + 1]
            for unit, ring in enumerate((first, second))
        ]
        level = [queue.level for queue in queues]
        ahead = [[step, self.burst - step, Const(0)], [Const(0), step, self.burst - step]]
        filled = [ring["full"].level + busy[unit] for unit, ring in enumerate((first, second))]
        m.d.comb += [
            self.invariant_sane.eq(
                (turn < 3)
                & (step < self.burst)
                & Cat(lead <= self.places for lead in level).all()
                & Cat(queue.i.ready == (queue.level != self.places) for queue in queues).all()
                & Cat(queue.o.valid == (queue.level != 0) for queue in queues).all()
                & Cat(semaphore.available == (semaphore.level != 0) for semaphore in semaphores).all()
                & Cat(implies(busy[unit], timer < self.slowest) for unit, timer in enumerate(timers)).all()
            ),
            self.invariant_slots.eq(Cat(total == running * self.RING for total in slots).all()),
            self.invariant_program.eq(
                Cat(Array(ahead[unit])[turn] + level[unit + 1] == level[unit] + filled[unit] for unit in range(2)).all()
            ),
        ]
        return m


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("burst", "places"), [(1, 2), (2, 2), (3, 1), (4, 2)])
def test_some_unit_always_makes_progress(burst, places):
    """Proved of every run, however long: between two events lie fewer cycles than the slowest unit takes."""
    assert prove(Pipeline(burst, places=places, slowest=4), depth=20, induction=4).induction == 4


DEADLOCKS = {
    "more loads than slots and places, which block the queue that matmuls must pass": {"burst": 4, "places": 1},
    "the same with longer queues": {"burst": 5, "places": 2},
    "a semaphore keeps its last one": {
        "burst": 1,
        "semaphore": broken(SemaphoreCounter, comb("available", lambda c: c.level > 1)),
    },
    "a queue keeps its last place": {
        "burst": 4,
        "places": 2,
        "queue": broken(Queue, comb("i.ready", lambda c: c.level < c.depth - 1)),
    },
}


@pytest.mark.parametrize("bug", DEADLOCKS)
def test_a_deadlock_is_found(bug):
    outcome = check(Pipeline(**DEADLOCKS[bug]), depth=20, only="assert_progress")
    assert outcome.counterexample is not None
    assert outcome.counterexample.broken == ("assert_progress",)


@pytest.mark.parametrize(("width", "depth"), [(8, 1), (3, 5), (70, 33)])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_simulated_queue_is_a_deque(width, depth, data):
    stimulus = st.tuples(st.booleans(), st.booleans(), st.integers(0, 2**width - 1))
    bias = data.draw(st.sampled_from([(0, 0), (0, 1), (1, 0)]))
    drive = data.draw(st.lists(stimulus, min_size=1, max_size=4 * depth + 20))
    dut = Queue(Library("sim"), width, depth)
    expected = deque()

    async def bench(ctx):
        for valid, ready, payload in drive:
            ctx.set(dut.i.valid, valid or bias[0])
            ctx.set(dut.o.ready, ready or bias[1])
            ctx.set(dut.i.payload, payload)
            assert ctx.get(dut.level) == len(expected)
            assert ctx.get(dut.i.ready) == (len(expected) < depth)
            assert ctx.get(dut.o.valid) == bool(expected)
            taken = bool(expected) and (ready or bias[1])
            if expected:
                assert ctx.get(dut.o.payload) == expected[0]
            if len(expected) < depth and (valid or bias[0]):
                expected.append(payload)
            if taken:
                expected.popleft()
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


BLOCKS = [
    *[(Queue, shape) for shape in [(1, 1), (8, 2), (8, 3), (1024, 2), (128, 16), (300, 5)]],
    *[(SemaphoreCounter, (width,)) for width in (2, 3, 12)],
    *[(FirstComeArbiter, (users,)) for users in (2, 3)],
]


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_verilator_has_nothing_to_complain_about(reset, tmp_path):
    folder = simulator_path("verilator")
    if folder is None:
        pytest.skip("verilator is not installed")
    library = Library("block", reset)
    blocks = [library.make(kind, *parameters) for kind, parameters in BLOCKS]
    texts = library.verilog(blocks[0])
    assert len(texts) == len(BLOCKS)
    for name, text in texts.items():
        (tmp_path / f"{name}.v").write_text(text)
        command = [os.path.join(folder, "verilator"), "--lint-only", "-Wall", f"{name}.v"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("kind", "parameters", "rule"),
    [
        (Queue, (0, 2), "the width of a queue is at least 1 (got 0)"),
        (Queue, (8, 0), "the depth of a queue is at least 1 (got 0)"),
        (FirstComeArbiter, (1,), "the users of an arbiter are at least 2 (got 1)"),
        (SemaphoreCounter, (1,), "the width of a semaphore is at least 2, that of what is given (got 1)"),
    ],
)
def test_a_bad_parameter_is_refused(kind, parameters, rule):
    with pytest.raises(LoomError) as refused:
        kind(Library("bad"), *parameters)
    assert str(refused.value) == rule
