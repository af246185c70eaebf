"""What a building block must keep, as monitors of its circuit, and ways to plant a bug in one."""

from operator import attrgetter

from amaranth import Array, Cat, Const, Mux, Signal, signed
from amaranth.lib.wiring import In, Out

from siliconloom.rtl.cells.arbiter import FirstComeArbiter
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.formal import Monitor
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.scratchpad import AdderLane


class Contract(Monitor):
    """A monitor of one circuit: the circuit's inputs are its inputs, properties are added by name."""

    def __init__(self, circuit, properties, **choices):
        self.circuit = circuit
        ports = {name: In(port.width) for name, port in self.free(circuit)} | choices
        ports |= dict.fromkeys(properties.split(), Out(1))
        super().__init__(circuit.library, f"{circuit.module_name}_contract", ports, reset=True)

    @staticmethod
    def free(circuit):
        return [(name, p) for name, p in circuit.ports().items() if p.is_input and name not in ("clk", "rst")]

    def elaborate(self, platform):
        m = self.module()
        self.watch(m, self.circuit, "circuit")
        for name, port in self.free(self.circuit):
            m.d.comb += port.value.eq(getattr(self, name))
        self.state(m, self.circuit)
        return m

    def earlier(self, m, value):
        """``value`` of the cycle before; zero after a reset."""
        before = Signal(len(value))
        m.d.sync += before.eq(value)
        return before


def implies(condition, consequence):
    return ~condition | consequence


class StreamContract(Contract):
    """A buffer of ``depth`` entries: any one entry that ``mark`` picks comes out in its turn, as it went in."""

    PROPERTIES = """assert_ready assert_valid assert_kept assert_order assert_stable_valid assert_stable_payload
    assert_inside cover_full cover_passed cover_stalled cover_both """

    def __init__(self, circuit, depth, invariants=""):
        self.depth = depth
        super().__init__(circuit, self.PROPERTIES + invariants, mark=In(1))

    def state(self, m, c):
        push, pop = c.i.valid & c.i.ready, c.o.valid & c.o.ready
        self.inside = inside = Signal(range(self.depth + 2))
        self.tracked, self.ahead = Signal(), Signal(range(self.depth + 1))
        self.value = Signal(c.width, reset_less=True)
        m.d.sync += inside.eq(inside + push - pop)
        with m.If(self.tracked):
            m.d.sync += [self.ahead.eq(self.ahead - pop), self.tracked.eq(~(pop & (self.ahead == 0)))]
        with m.Elif(push & self.mark):
            m.d.sync += [self.tracked.eq(1), self.ahead.eq(inside - pop), self.value.eq(c.i.payload)]
        stalled = self.earlier(m, c.o.valid & ~c.o.ready)
        offered = self.earlier(m, c.o.payload)
        due = self.tracked & (self.ahead == 0)
        m.d.comb += [
            self.assert_ready.eq(c.i.ready == (inside < self.depth)),
            self.assert_valid.eq(c.o.valid == (inside > 0)),
            self.assert_kept.eq(implies(due, c.o.valid)),
            self.assert_order.eq(implies(due, c.o.payload == self.value)),
            self.assert_stable_valid.eq(implies(stalled, c.o.valid)),
            self.assert_stable_payload.eq(implies(stalled, c.o.payload == offered)),
            self.assert_inside.eq((inside <= self.depth) & implies(self.tracked, self.ahead < inside)),
            self.cover_full.eq(inside == self.depth),
            self.cover_passed.eq(due & pop & (self.value == 1)),
            self.cover_stalled.eq(stalled & pop & self.earlier(m, self.tracked)),
            self.cover_both.eq(push & pop if self.depth > 1 else push & self.earlier(m, pop)),
        ]


class QueueContract(StreamContract):
    """Adds what `Queue` promises of its level, and the invariant: where the marked entry lies."""

    def __init__(self, circuit):
        super().__init__(circuit, circuit.depth, "assert_level invariant_slots invariant_lies")
        self.port = circuit.memory and circuit.memory.read_port(domain="comb")

    def state(self, m, c):
        super().state(m, c)
        marked = Signal(range(2 * c.depth))
        lies = Signal(c.width)
        last = Signal(range(2 * c.depth))
        m.d.comb += [
            marked.eq(wrapped(c.read_slot + self.ahead, c.depth)),
            last.eq(wrapped(c.read_slot + c.level, c.depth)),
        ]
        if self.port:
            m.d.comb += [self.port.addr.eq(marked), lies.eq(self.port.data)]
        else:
            m.d.comb += lies.eq(Array(c.registers)[marked])
        m.d.comb += [
            self.assert_level.eq(c.level == self.inside),
            self.invariant_slots.eq((c.read_slot < c.depth) & (c.write_slot == last)),
            self.invariant_lies.eq(implies(self.tracked, lies == self.value)),
        ]


def wrapped(slot, depth):
    return Mux(slot >= depth, slot - depth, slot)


class SemaphoreContract(Contract):
    """The count follows the arithmetic of its docstring, done in a number that is wide enough."""

    def __init__(self, circuit):
        properties = "assert_level assert_available assert_overflow assert_underflow cover_over cover_under cover_both"
        super().__init__(circuit, properties)

    def state(self, m, c):
        expected = Signal(16)
        over, under = Signal(), Signal()
        taken = c.take & (expected > 0)
        total = expected - taken + c.give
        too_many = total > 2**c.width - 1
        m.d.sync += [over.eq(~c.load & too_many), under.eq(~c.load & c.take & ~taken)]
        m.d.sync += expected.eq(Mux(c.load, c.initial, Mux(too_many, expected - taken, total)))
        m.d.comb += [
            self.assert_level.eq(c.level == expected),
            self.assert_available.eq(c.available == (expected > 0)),
            self.assert_overflow.eq(c.overflow == over),
            self.assert_underflow.eq(c.underflow == under),
            self.cover_over.eq(c.overflow & (c.level == 2**c.width - 2)),
            self.cover_under.eq(c.underflow & (c.level == 2)),
            self.cover_both.eq(c.overflow & self.earlier(m, c.take)),
        ]


class ArbiterContract(Contract):
    """First is the rival who has asked for most cycles, and of those the lowest; nobody is put off for `PATIENCE`."""

    PATIENCE = 15

    def __init__(self, circuit):
        properties = "assume_patience assert_first assert_one invariant_order cover_overtakes cover_waits cover_ties"
        super().__init__(circuit, properties)

    def state(self, m, c):
        ages = [Signal(range(self.PATIENCE + 1), name=f"age_{user}") for user in range(c.users)]
        for user, age in enumerate(ages):
            m.d.sync += age.eq(Mux(c.asks[user] & ~c.taken[user], age + 1, 0))
        users = range(c.users)
        wanted = [
            ~Cat(
                c.rivals[o] & ((ages[o] > ages[u]) | ((ages[o] == ages[u]) if o < u else 0)) for o in users if o != u
            ).any()
            for u in users
        ]
        leads = c.rivals & c.first
        m.d.comb += [
            self.assume_patience.eq(Cat(age != self.PATIENCE for age in ages).all()),
            self.assert_first.eq(c.first == Cat(wanted)),
            self.assert_one.eq(implies(c.rivals.any(), (leads != 0) & ((leads & (leads - 1)) == 0))),
            self.invariant_order.eq(
                Cat(older == (ages[high] > ages[low]) for (high, low), older in c.older.items()).all()
            ),
            self.cover_overtakes.eq(c.asks.all() & c.first[c.users - 1]),
            self.cover_waits.eq(c.asks.all() & c.first[0] & (ages[0] == 3)),
            self.cover_ties.eq(c.asks.all() & (ages[0] == 1) & (ages[c.users - 1] == 1)),
        ]


def half_even(value, places):
    """A signed value over a power of two, rounded to the nearest, halves to even: as defined, not as it is built."""
    floor = value >> places
    rest = (value + Const(0, signed(64)))[:64] & ((1 << places) - 1)[:64]
    half = ((1 << places) >> 1)[:64]
    return floor + ((places != 0) & ((rest > half) | ((rest == half) & floor[0])))


class AdderContract(Contract):
    """A sum and what was there before, which is divided by a power of two, rounded as everything in a tile is."""

    def __init__(self, circuit):
        properties = "assume_under assume_held assert_total invariant_held cover_halves cover_nothing_left cover_later"
        super().__init__(circuit, properties)

    def state(self, m, c):
        # its registers have no reset
        begun, sums = self.earlier(m, Const(1, 1)), self.earlier(m, c.sums)
        older, held, known = Signal(32), Signal(32), Signal()
        with m.If(c.hold):
            m.d.sync += [held.eq(c.total), known.eq(1)]
        m.d.comb += older.eq(Mux(c.forward, held, c.memory))
        added = Mux(c.add, half_even(older.as_signed(), c.fall), 0)
        wanted = Signal(32)
        m.d.comb += wanted.eq(sums + added)
        m.d.comb += [
            self.assume_under.eq((c.fall <= c.MOST) & (c.under == (((1 << c.fall) >> 1) - (c.fall != 0))[: c.MOST])),
            self.assume_held.eq(implies(c.forward, known)),
            self.assert_total.eq(implies(begun, c.total == wanted)),
            self.invariant_held.eq(implies(known, c.held == held)),
            self.cover_later.eq(c.add & c.forward & ~self.earlier(m, c.hold)),
            self.cover_halves.eq(c.add & c.forward & (c.fall == 3) & (older[:3] == 4) & older[31]),
            self.cover_nothing_left.eq(c.add & (c.fall == c.MOST) & older[31] & (c.total == sums)),
        ]


def monitor(kind, *parameters, reset="sync"):
    """The contract of a circuit made with these parameters."""
    circuit = Library("proof", reset).make(kind, *parameters)
    contracts = {Queue: QueueContract, SemaphoreCounter: SemaphoreContract, FirstComeArbiter: ArbiterContract}
    contracts[AdderLane] = AdderContract
    for base, contract in contracts.items():
        if isinstance(circuit, base):
            return contract(circuit)
    return StreamContract(circuit, 2)


def broken(kind, change):
    """A subclass of a circuit, with statements that override some of its own."""

    class Broken(kind):
        def elaborate(self, platform):
            m = super().elaborate(platform)
            change(m, self)
            return m

    return Broken


def sync(target, value, *, when=None):
    """A change of what a register takes over, in the cycles of ``when``."""

    def change(m, c):
        with m.If(when(c) if when else 1):
            m.d.sync += getattr(c, target).eq(value(c))

    return change


def comb(target, value):
    """A change of an output, or of a part of one: ``o.valid``."""

    def change(m, c):
        m.d.comb += attrgetter(target)(c).eq(value(c))

    return change
