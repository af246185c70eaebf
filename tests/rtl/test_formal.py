"""Contracts of the building blocks, proved; and for each a planted bug that its proof must find."""

import dataclasses
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections import deque

import pytest
from amaranth import Array, Cat, Const, DomainRenamer, Mux, Signal, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import CheckFailed, LoomError, NotSupported
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import DTYPES, LEVELS, Opcode, Unit, word_layout
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.cells.plumbing import RegisterSlice
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.semaphore import SemaphoreCounter
from siliconloom.rtl.formal import Monitor, _System, check, prove
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.sequencer import QUEUES, SequencerCircuit
from siliconloom.verification.programs import random_npu

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


class Contract(Monitor):
    """A monitor of one circuit: the circuit's inputs are its inputs, properties are added by name."""

    def __init__(self, circuit, properties, **choices):
        self.circuit = circuit
        ports = {name: In(member.shape) for name, member in self.free(circuit)} | choices
        ports |= dict.fromkeys(properties.split(), Out(1))
        super().__init__(circuit.library, f"{circuit.module_name}_contract", ports, reset=True)

    @staticmethod
    def free(circuit):
        members = circuit.signature.members.items()
        return [(name, m) for name, m in members if m.flow == In and name not in ("clk", "rst")]

    def elaborate(self, platform):
        m = self.module()
        self.watch(m, self.circuit, "circuit")
        for name, _ in self.free(self.circuit):
            m.d.comb += getattr(self.circuit, name).eq(getattr(self, name))
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
        push, pop = c.i_valid & c.i_ready, c.o_valid & c.o_ready
        self.inside = inside = Signal(range(self.depth + 2))
        self.tracked, self.ahead = Signal(), Signal(range(self.depth + 1))
        self.value = Signal(c.width, reset_less=True)
        m.d.sync += inside.eq(inside + push - pop)
        with m.If(self.tracked):
            m.d.sync += [self.ahead.eq(self.ahead - pop), self.tracked.eq(~(pop & (self.ahead == 0)))]
        with m.Elif(push & self.mark):
            m.d.sync += [self.tracked.eq(1), self.ahead.eq(inside - pop), self.value.eq(c.i_payload)]
        stalled = self.earlier(m, c.o_valid & ~c.o_ready)
        offered = self.earlier(m, c.o_payload)
        due = self.tracked & (self.ahead == 0)
        m.d.comb += [
            self.assert_ready.eq(c.i_ready == (inside < self.depth)),
            self.assert_valid.eq(c.o_valid == (inside > 0)),
            self.assert_kept.eq(implies(due, c.o_valid)),
            self.assert_order.eq(implies(due, c.o_payload == self.value)),
            self.assert_stable_valid.eq(implies(stalled, c.o_valid)),
            self.assert_stable_payload.eq(implies(stalled, c.o_payload == offered)),
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


def monitor(kind, *parameters, reset="sync"):
    """The contract of a circuit made with these parameters."""
    circuit = Library("proof", reset).make(kind, *parameters)
    contracts = {Queue: QueueContract, SemaphoreCounter: SemaphoreContract}
    for base, contract in contracts.items():
        if isinstance(circuit, base):
            return contract(circuit)
    return StreamContract(circuit, 2)


# --- decoder


UNIT_OPCODES = {"load": Opcode.LOAD, "store": Opcode.STORE, "matmul": Opcode.MATMUL, "vector": Opcode.VECTOR}


class SequencerContract(Contract):
    """The sequencer is the machine that ``arch.isa`` describes, written down a second time from its text.

    ``self.model`` is that machine: where it is in the program, which loops are open, and with which index. The
    circuit's registers equal it in every cycle (invariants), and what goes to the units is what it says.
    """

    PROPERTIES = """assert_one assert_halted assert_known assert_place assert_sync assert_sizes assert_addresses
    assert_choices assert_refused assert_ended assert_blocked assert_running
    invariant_registers invariant_sums invariant_fetched
    cover_load cover_matmul cover_vector cover_barrier cover_illegal cover_ended cover_second cover_deep cover_odd"""

    STACK = tuple(f"invariant_{name}_{level}" for name in ("begin", "index", "count") for level in range(LEVELS))

    def __init__(self, circuit):
        super().__init__(circuit, " ".join((self.PROPERTIES, *self.STACK)), assume_word=Out(1))

    def cut(self, opcode):
        """Fields of the word in front, cut out by their widths."""
        found, offset = {}, 0
        for part in word_layout(opcode):
            field = self.circuit.word[offset : offset + part.width]
            found[part.name] = field.as_signed() if part.signed else field
            offset += part.width
        return found

    def state(self, m, c):
        geometry = c.geometry
        width = len(c.number)
        place, running, valid, level = Signal(width), Signal(), Signal(), Signal(range(LEVELS + 1))
        phase = Signal(len(c.phase))
        begin, index, count = (
            [Signal(w, name=f"{n}{i}") for i in range(LEVELS)]
            for n, w in (("begin", width), ("index", 24), ("count", 24))
        )
        head, transfer, compute = self.cut(Opcode.BARRIER), self.cut(Opcode.LOAD), self.cut(Opcode.MATMUL)
        opcode = head["opcode"]
        innermost = [level == i + 1 for i in range(LEVELS)]
        last_round = Cat(*(innermost[i] & (index[i] + 1 == count[i]) for i in range(LEVELS))).any()

        # which words can be executed, and how long each takes
        barrier = opcode == Opcode.BARRIER
        sized = (head["m"] != 0) & (head["n"] != 0) & ((opcode != Opcode.MATMUL) | (head["k"] != 0))
        int8 = head["dtype"] == DTYPES.index(DataType.INT8)
        goes_to = {}
        for unit, own in UNIT_OPCODES.items():
            format_built = int8 if unit in ("matmul", "vector") else 1
            goes_to[unit] = (barrier | ((opcode == own) & sized & format_built)) & (head["unit"] == Unit[unit.upper()])
        dispatched = Cat(*goes_to.values()).any()
        opens = (opcode == Opcode.LOOP) & (level < LEVELS) & (head["m"] != 0)
        closes = (opcode == Opcode.NEXT) & (level != 0)
        ends = opcode == Opcode.END
        live = running & valid & ~c.halt
        ready = Cat(*(goes_to[unit] & getattr(c, f"{unit}_ready") for unit in UNIT_OPCODES)).any()
        final = phase == Mux(dispatched, geometry.issue_cycles - 1, geometry.loop_cycles - 1)
        moves = live & final & (opens | closes | (dispatched & ready))
        follows = Signal(width)
        m.d.comb += follows.eq(place + 1)
        for i in range(LEVELS):
            with m.If(closes & innermost[i] & ~last_round):
                m.d.comb += follows.eq(begin[i])
        following = Mux(moves, follows, place)

        # the machine
        m.d.sync += [place.eq(following), valid.eq(running & (following < c.fetched))]
        with m.If(c.start):
            m.d.sync += [place.eq(0), valid.eq(0), running.eq(1), phase.eq(0), level.eq(0)]
        with m.If(c.halt):
            m.d.sync += [running.eq(0), valid.eq(0)]
        with m.If(live):
            with m.If(moves):
                m.d.sync += phase.eq(0)
            with m.Elif((opens | closes | dispatched) & ~final):
                m.d.sync += phase.eq(phase + 1)
            with m.Elif(ends | ~(opens | closes | dispatched)):
                m.d.sync += [running.eq(0), valid.eq(0)]
            with m.If(moves & opens):
                m.d.sync += level.eq(level + 1)
            with m.If(moves & closes & last_round):
                m.d.sync += level.eq(level - 1)
            for i in range(LEVELS):
                with m.If(moves & opens & (level == i)):
                    m.d.sync += [begin[i].eq(place + 1), index[i].eq(0), count[i].eq(head["m"])]
                with m.If(moves & closes & innermost[i]):
                    m.d.sync += index[i].eq(Mux(last_round, 0, index[i] + 1))

        # the program memory gives the word that was asked for, and gives it again as long as it is asked for; what has
        # been fetched stays there until the next start, which the registers do not let through during a run
        asked, word, fetched = (self.earlier(m, each) for each in (c.read_address, c.word, c.fetched))
        again = (asked == self.earlier(m, asked)) & self.earlier(m, valid)
        started = self.earlier(m, c.start)
        kept = implies(~started, c.fetched >= fetched)
        m.d.comb += [
            self.assume_word.eq(implies(again, c.word == word) & kept & ~(c.start & running)),
            self.invariant_fetched.eq(
                implies(running & (phase != 0), valid)
                & implies(running & valid, (place == asked) & (asked < fetched))
                & implies(started, ~valid & (phase == 0))
            ),
        ]

        self.properties(m, c, live, dispatched & live & final, goes_to, ready, locals())

    def properties(self, m, c, live, pushed, goes_to, ready, model):
        head, transfer, compute, index, phase = (model[n] for n in ("head", "transfer", "compute", "index", "phase"))
        count, opcode, barrier = model["count"], model["opcode"], model["barrier"]
        valid = {unit: getattr(c, f"{unit}_valid") for unit in UNIT_OPCODES}
        entries = {unit: data.View(QUEUES[unit], getattr(c, f"{unit}_entry")) for unit in UNIT_OPCODES}
        first, last = (
            Cat(*(value(i) for i in range(LEVELS)))
            for value in (lambda i: index[i] == 0, lambda i: index[i] + 1 == count[i])
        )
        wait = head["wait"] | Mux((head["first"] & ~first) == 0, head["first_wait"], 0)
        post = head["post"] | Mux((head["last"] & ~last) == 0, head["last_post"], 0)
        add = head["accumulate"] | ((head["overwrite"] & ~first) != 0)
        parity = Cat(*(i[0] for i in index))
        sync, sizes, addresses, choices = [], [], [], []
        for unit, entry in entries.items():
            sent = valid[unit]
            own = transfer if unit in ("load", "store") else compute
            same = [entry.barrier == barrier, entry.wait == wait, entry.release == head["release"], entry.post == post]
            sync.append(implies(sent, Cat(*same, entry.number == c.number).all()))
            members = QUEUES[unit].members
            for name in ("m", "n", "k", "function", "pitch", "local_pitch"):
                if name in members:  # a pitch is wider in the entry
                    wanted = Signal(len(entry[name]), name=f"{unit}_{name}_wanted")
                    m.d.comb += wanted.eq(own[name])
                    sizes.append(implies(sent, entry[name] == wanted))
            if "add" in members:
                choices.append(implies(sent, entry.add == add))
        for name, total in c.sums.items():
            fields = self.addressed(name, opcode, transfer, compute)
            result, slot = Signal(len(total), name=f"{name}_wanted"), 0
            if f"{name}.slot" in fields:
                slot = Mux((parity & fields[f"{name}.parity"]).xor() ^ fields[f"{name}.odd"], fields[f"{name}.slot"], 0)
            m.d.comb += result.eq(fields[f"{name}.base"] + self.terms(m, total, name, fields, index, LEVELS) + slot)
            for unit, entry in entries.items():
                place = "local" if name == "a" and unit in ("load", "store") else name
                if place in QUEUES[unit].members:
                    addresses.append(implies(valid[unit], entry[place] == result))
        steps = c.geometry.issue_cycles - 1
        summed = [
            implies(
                phase == done,
                total
                == self.terms(
                    m,
                    total,
                    name,
                    self.addressed(name, opcode, transfer, compute),
                    index,
                    min(done * -(-LEVELS // steps), LEVELS),
                ),
            )
            for name, total in c.sums.items()
            for done in range(1, steps + 1)
        ]
        one_level = Cat(*(i <= 1 for i in index)).all() & (sum(i[0] for i in index) <= 1)
        known = model["dispatched"] | model["opens"] | model["closes"] | model["ends"]
        stopped = self.earlier(m, (c.illegal | c.ended | c.halt) & ~c.start)
        m.d.comb += [
            self.assert_one.eq(sum(valid.values()) <= 1),
            self.assert_halted.eq(implies(c.halt, ~Cat(*valid.values()).any())),
            self.assert_known.eq(Cat(*(valid[u] == (pushed & goes_to[u]) for u in valid)).all()),
            self.assert_place.eq((c.number == model["place"]) & (c.read_address == model["following"])),
            self.assert_sync.eq(Cat(*sync).all()),
            self.assert_sizes.eq(Cat(*sizes).all()),
            self.assert_addresses.eq(implies(one_level, Cat(*addresses).all())),
            self.assert_choices.eq(Cat(*choices).all()),
            self.assert_refused.eq(c.illegal == (live & ~known)),
            self.assert_ended.eq(c.ended == (live & model["ends"])),
            self.assert_blocked.eq(c.blocked == (pushed & ~ready)),
            self.assert_running.eq((c.running == model["running"]) & implies(stopped, ~c.running)),
            self.invariant_registers.eq(
                (c.valid == model["valid"]) & (c.phase == phase) & (c.level == model["level"]) & (c.level <= LEVELS)
            ),
            *(
                getattr(self, f"invariant_{name}_{level}").eq(model[name][level] == getattr(c, name)[level])
                for name in ("begin", "index", "count")
                for level in range(LEVELS)
            ),
            self.invariant_sums.eq(implies(one_level & live & model["dispatched"], Cat(*summed).all())),
            self.cover_load.eq(valid["load"] & ~barrier),
            self.cover_matmul.eq(valid["matmul"] & ~barrier),
            self.cover_vector.eq(valid["vector"] & ~barrier),
            self.cover_barrier.eq(valid["store"] & barrier),
            self.cover_illegal.eq(c.illegal),
            self.cover_ended.eq(c.ended),
            self.cover_second.eq(Cat(*valid.values()).any() & (index[0] == 1)),
            self.cover_deep.eq(Cat(*valid.values()).any() & (model["level"] == 2)),
            self.cover_odd.eq(valid["matmul"] & parity[0] & compute["a.parity"][0] & (compute["a.slot"] != 0)),
        ]

    @staticmethod
    def addressed(name, opcode, transfer, compute):
        """Fields that an address is made of; the first local one stands in both formats, at different places."""
        if name != "a":
            return transfer if name == "memory" else compute
        moves = (opcode == Opcode.LOAD) | (opcode == Opcode.STORE)
        pick = {field: (value, compute[field]) for field, value in transfer.items() if field.startswith("a.")}
        return {field: Mux(moves, one, other) for field, (one, other) in pick.items()}

    @staticmethod
    def terms(m, total, name, fields, index, levels):
        """Stride of the one level among the first ``levels`` whose index is one; zero if there is none."""
        chosen = Const(0, signed(1))
        for i in range(levels):
            chosen = chosen | Mux(index[i][0], fields[f"{name}.stride{i}"].as_signed(), 0)
        wide = Signal(len(total), name=f"{name}_terms_{levels}")
        m.d.comb += wide.eq(chosen)
        return wide


def sequencer(kind=SequencerCircuit, issue_cycles=2):
    return kind(Library("proof"), dataclasses.replace(geometry_of(random_npu(3)), issue_cycles=issue_cycles))


@pytest.mark.slow
def test_the_decoder_keeps_its_contract_in_every_cycle(seed):
    outcome = check(SequencerContract(sequencer(issue_cycles=2 + seed % 4)), depth=1, induction=1)
    assert (outcome.counterexample, outcome.induction) == (None, 1)


@pytest.mark.slow
def test_every_case_of_the_decoder_comes():
    outcome = check(SequencerContract(sequencer()), depth=8, only="assert_one")
    assert outcome.counterexample is None
    assert all(outcome.covered.values()), outcome.covered


DECODER_BUGS = {
    "an entry's n is the word's k": ('"n": transfer["n"],', '"n": transfer["k"],', "sizes"),
    "post for release": ('"release": transfer["release"],', '"release": transfer["post"],', "sync"),
    "first_wait is never applied": (
        ' | Mux(holds(transfer["first"], is_first), transfer["first_wait"], 0)',
        "",
        "sync",
    ),
    "last_post is applied in the first round": (
        'holds(transfer["last"], is_last)',
        'holds(transfer["last"], is_first)',
        "sync",
    ),
    "every loop runs once more": ("i + 1 == c for", "i == c for", "place|known|ended|running"),
    "a loop goes on behind its body": ("Mux(top_last, pc + 1, begin[top])", "Mux(top_last, pc + 1, pc + 1)", "place"),
    "strides of levels 4 and 5 are dropped": ("for i in levels", "for i in levels if i < 4", "addresses"),
    "the second slot is never used": ('Mux(odd, pick["slot"], 0)', "0", "addresses"),
    "odd is ignored": (' ^ pick["odd"]', "", "addresses"),
    "accumulate is ignored": ('transfer["accumulate"] | ~holds', "~holds", "choices"),
    "overwrite is ignored": ('| ~holds(transfer["overwrite"], is_first)', "", "choices"),
    "a pitch is signed": ('"pitch": transfer["pitch"],', '"pitch": transfer["pitch"].as_signed(),', "sizes"),
    "unknown words are not flagged": ("m.d.comb += self.illegal.eq(1)", "pass", "refused"),
    "any number format is taken": ("unit, sized, built)", "unit, sized, sized)", "known|refused"),
    "products of nothing are taken": ('for name in ("m", "n", "k")', 'for name in ("m", "n")', "known|refused"),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_bug_in_the_decoder_is_found(number, seed):
    """In the induction step: from any state in which the contract held, the bug breaks the named property.

    Three of the bugs a day, by the seed; each takes about ten seconds.
    """
    right, wrong, broken = list(DECODER_BUGS.values())[(3 * seed + number) % len(DECODER_BUGS)]
    source = textwrap.dedent(inspect.getsource(SequencerCircuit))
    assert right in source
    names = dict(vars(inspect.getmodule(SequencerCircuit)))
    code = source.replace(right, wrong).replace("super().__init__(", "Circuit.__init__(self, ")
    exec("from __future__ import annotations\n" + code, names)
    contract = SequencerContract(sequencer(names["Sequencer"]))
    system = _System(contract)
    system.goals = system.names("assert", "invariant")
    hopeful = [name for name in system.goals if re.fullmatch(f"assert_({broken})", name)]
    found = system.step(1, distinct=False, goals=hopeful)
    assert found is not None
    assert set(found.broken) & set(hopeful)


@pytest.mark.parametrize(
    ("kind", "parameters", "depth"),
    [
        *[(Queue, (4, depth), depth + 3) for depth in (1, 2, 3, 4, 8)],
        *[(SemaphoreCounter, (width,), 4) for width in (2, 3, 12)],
    ],
)
def test_the_contract_holds_in_every_cycle(kind, parameters, depth):
    assert prove(monitor(kind, *parameters), depth=depth, induction=1).induction == 1


@pytest.mark.parametrize("width", [1, 2, 32])
def test_the_register_slice_keeps_its_contract_in_every_cycle(width):
    """Its registers are not to be seen, so the induction needs three cycles and no idle loops."""
    assert prove(monitor(RegisterSlice, width), depth=8, induction=3, distinct=True).induction == 3


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
    """A change of an output."""

    def change(m, c):
        m.d.comb += getattr(c, target).eq(value(c))

    return change


class QueueThatNeverWraps(Queue):
    def after(self, slot):
        return slot + 1


class QueueThatStoresWhatItDoesNotAccept(Queue):
    def store(self, m, push):
        super().store(m, self.i_valid)


BUGS = {
    "slice accepts without room": (broken(RegisterSlice, comb("i_ready", lambda c: 1)), (4,), "assert_ready"),
    "slice shows what is coming": (
        broken(RegisterSlice, comb("o_payload", lambda c: c.i_payload)),
        (4,),
        "assert_order",
    ),
    "slice takes its offer back": (
        broken(RegisterSlice, comb("o_valid", lambda c: ~c.i_ready | ~c.i_valid)),
        (4,),
        "assert_valid",
    ),
    "queue's slots never wrap": (QueueThatNeverWraps, (4, 3), "assert_order"),
    "queue overwrites when full": (QueueThatStoresWhatItDoesNotAccept, (4, 2), "assert_order"),
    "queue forgets on a collision": (
        broken(Queue, sync("level", lambda c: 1, when=lambda c: c.i_valid & c.o_ready)),
        (4, 3),
        "assert_level",
    ),
    "queue accepts while it is emptied": (
        broken(Queue, comb("i_ready", lambda c: (c.level != c.depth) | c.o_ready)),
        (4, 4),
        "assert_ready",
    ),
    "queue in a memory takes its read slot for its write slot": (
        broken(Queue, lambda m, c: m.d.comb.__iadd__(c.writes.addr.eq(c.read_slot))),
        (128, 9),
        "assert_order",
    ),
    "semaphore wraps": (
        broken(SemaphoreCounter, sync("level", lambda c: c.level + c.give, when=lambda c: ~c.load & ~c.take)),
        (3,),
        "assert_level",
    ),
    "semaphore loses a gift that meets a take": (
        broken(SemaphoreCounter, sync("level", lambda c: c.level - 1, when=lambda c: c.take & (c.level == 3))),
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
        queues = [
            self.place(
                m, queue, f"queue_{unit}", i_valid=running & (turn == unit), i_payload=Const(0, 1), o_ready=start[unit]
            )
            for unit in range(3)
        ]

        dispatch = running & Cat((turn == unit) & queue["i_ready"] for unit, queue in enumerate(queues)).any()
        with m.If(dispatch & (step == self.burst - 1)):
            m.d.sync += [step.eq(0), turn.eq(wrapped(turn + 1, 3))]
        with m.Elif(dispatch):
            m.d.sync += step.eq(step + 1)
        for unit, timer in enumerate(timers):
            ready = Cat(semaphore["available"] for semaphore in waits[unit]).all()
            m.d.comb += start[unit].eq(queues[unit]["o_valid"] & ready & ~busy[unit])
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
            self.assert_flags.eq(~Cat([s["overflow"] for s in semaphores], [s["underflow"] for s in semaphores]).any()),
            self.cover_patient.eq(idle == 1),
            self.cover_loaded.eq(first["full"]["level"] == self.RING),
            self.cover_blocked.eq(queues[1]["o_valid"] & first["full"]["available"] & ~second["free"]["available"]),
        ]

        # A slot is free, full, being filled or being emptied. What was started is what was dispatched and is no
        # longer queued; a unit is ahead of the next by the full slots and the one it fills.
        slots = [
            ring["free"]["level"] + ring["full"]["level"] + busy[unit] + busy[unit + 1]
            for unit, ring in enumerate((first, second))
        ]
        level = [queue["level"] for queue in queues]
        ahead = [[step, self.burst - step, Const(0)], [Const(0), step, self.burst - step]]
        filled = [ring["full"]["level"] + busy[unit] for unit, ring in enumerate((first, second))]
        m.d.comb += [
            self.invariant_sane.eq(
                (turn < 3)
                & (step < self.burst)
                & Cat(lead <= self.places for lead in level).all()
                & Cat(implies(busy[unit], timer < self.slowest) for unit, timer in enumerate(timers)).all()
            ),
            self.invariant_slots.eq(Cat(total == running * self.RING for total in slots).all()),
            self.invariant_program.eq(
                Cat(Array(ahead[unit])[turn] + level[unit + 1] == level[unit] + filled[unit] for unit in range(2)).all()
            ),
        ]
        return m


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
        "queue": broken(Queue, comb("i_ready", lambda c: c.level < c.depth - 1)),
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
            ctx.set(dut.i_valid, valid or bias[0])
            ctx.set(dut.o_ready, ready or bias[1])
            ctx.set(dut.i_payload, payload)
            assert ctx.get(dut.level) == len(expected)
            assert ctx.get(dut.i_ready) == (len(expected) < depth)
            assert ctx.get(dut.o_valid) == bool(expected)
            taken = bool(expected) and (ready or bias[1])
            if expected:
                assert ctx.get(dut.o_payload) == expected[0]
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
]


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
        (SemaphoreCounter, (1,), "the width of a semaphore is at least 2, that of what is given (got 1)"),
    ],
)
def test_a_bad_parameter_is_refused(kind, parameters, rule):
    with pytest.raises(LoomError) as refused:
        kind(Library("bad"), *parameters)
    assert str(refused.value) == rule


class Toggle(Monitor):
    """What the engine itself is tried on; ``describe`` adds the properties."""

    def __init__(self, properties, describe, *, reset=True):
        self.describe = describe
        super().__init__(
            Library("toggle"), "toggle", {"go": In(1), **dict.fromkeys(properties.split(), Out(1))}, reset=reset
        )

    def elaborate(self, platform):
        m = self.module()
        self.describe(m, self)
        return m


def counter(m, monitor):
    """Counts to five."""
    count = Signal(3)
    m.d.sync += count.eq(Mux(count == 5, 0, count + monitor.go))
    return count


def small(m, t):
    m.d.comb += [t.assert_small.eq(counter(m, t) < 6), t.cover_five.eq(counter(m, t) == 5)]


def test_an_outcome_says_what_is_known():
    monitor = Toggle("assert_small cover_five", small)
    outcome = prove(monitor, depth=8, induction=1)
    assert outcome.covered == {"cover_five": 6}
    assert "1 assertions hold in every cycle (k = 1)" in str(outcome)
    assert "in the first 8 cycles" in str(prove(monitor, depth=8))


def test_a_cover_that_is_not_reached_is_no_proof():
    outcome = check(Toggle("assert_small cover_five", small), depth=5)
    assert not outcome.proved
    assert str(outcome) == "toggle: cover_five not reached within 5 cycles"
    with pytest.raises(CheckFailed, match="cover_five not reached"):
        prove(Toggle("assert_small cover_five", small), depth=5)


def test_a_counterexample_is_a_table_of_ports_and_registers():
    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assert_below.eq(count < 2), t.cover_one.eq(count == 1)]

    with pytest.raises(CheckFailed) as found:
        prove(Toggle("assert_below cover_one", describe), depth=9)
    lines = found.value.__notes__[0].splitlines()
    assert lines[0] == str(found.value)
    assert lines[0] == "toggle: assert_below broken from reset; values are hexadecimal:"
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["cycle"] == ["0", "1", "2", "3"]
    assert rows["rst"][:3] == ["1", "0", "0"]
    assert rows["go"][1:3] == ["1", "1"]
    assert rows["count"][1:] == ["0", "1", "2"]
    assert rows["assert_below"][1:] == ["1", "1", "0"]


def test_an_induction_that_does_not_close_is_no_bug():
    """Seven is never reached, but is not excluded: after it comes eight, which is zero."""

    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assert_not_seven.eq(count != 7), t.cover_one.eq(count == 1)]

    monitor = Toggle("assert_not_seven cover_one", describe)
    outcome = check(monitor, depth=9, induction=2)
    assert not outcome.proved
    assert not outcome.counterexample.reachable
    assert "may never be reached" in str(outcome)
    assert prove(monitor, depth=9, induction=2, distinct=True).induction == 2


def test_a_register_without_reset_starts_with_any_value():
    def describe(m, t):
        flag = Signal(reset_less=True)
        m.d.comb += [t.assert_zero.eq(~flag), t.cover_go.eq(t.go)]
        m.d.sync += flag.eq(flag)

    assert check(Toggle("assert_zero cover_go", describe), depth=1).counterexample.broken == ("assert_zero",)


def test_assumptions_restrict_and_may_not_contradict():
    def describe(m, t):
        count = counter(m, t)
        m.d.comb += [t.assume_still.eq(~t.go), t.assert_zero.eq(count == 0), t.cover_zero.eq(count == 0)]

    assert prove(Toggle("assume_still assert_zero cover_zero", describe), depth=3, induction=1)

    def contradict(m, t):
        describe(m, t)
        m.d.comb += t.assume_go.eq(t.go)

    with pytest.raises(LoomError, match="the assumptions leave no run of 3 cycles"):
        check(Toggle("assume_still assume_go assert_zero cover_zero", contradict), depth=3)


def test_a_clock_that_is_no_port_is_refused():
    def describe(m, t):
        inner = SemaphoreCounter(Library("inner"), 3)
        m.submodules.inner = DomainRenamer("other")(inner)
        m.d.comb += [t.assert_full.eq(inner.level == 0), t.cover_go.eq(t.go), inner.give.eq(t.go)]

    with pytest.raises(LoomError, match="is not clocked by the rising edge of clk"):
        check(Toggle("assert_full cover_go", describe), depth=5)


@pytest.mark.parametrize(
    ("properties", "reset", "rule"),
    [
        ("assert_small", True, "at least one output cover_"),
        ("cover_five", True, "at least one output assert_"),
        ("assert_small cover_five", False, "a monitor has a reset"),
    ],
)
def test_a_monitor_that_cannot_prove_anything_is_refused(properties, reset, rule):
    def describe(m, t):
        for name in properties.split():
            m.d.comb += getattr(t, name).eq(counter(m, t) == 1)

    with pytest.raises(LoomError, match=rule):
        check(Toggle(properties, describe, reset=reset), depth=5)


def test_a_depth_below_the_induction_is_refused():
    with pytest.raises(LoomError, match="at least 1, and its induction"):
        check(Toggle("assert_small cover_five", small), depth=2, induction=3)


def test_an_assertion_that_is_not_there_is_refused():
    with pytest.raises(LoomError, match="toggle has no assertion assert_smal, only assert_small"):
        check(Toggle("assert_small cover_five", small), depth=2, only="assert_smal")


def test_a_circuit_that_is_written_in_verilog_takes_part():
    class Inverter(Circuit):
        def __init__(self, library):
            super().__init__(library, library.name("inverter"), {"i": In(1), "o": Out(1)})

        def written(self):
            name = self.module_name
            return f"module {name}(input clk, input i, output reg o); always @(posedge clk) o <= ~i; endmodule"

    def describe(m, t):
        inverted = t.place(m, t.library.make(Inverter), "inverter", i=t.go)["o"]
        before = Signal(reset_less=True)
        m.d.sync += before.eq(t.go)
        m.d.comb += [t.assert_inverted.eq(inverted == ~before), t.assert_equal.eq(inverted == before)]
        m.d.comb += t.cover_go.eq(before)

    properties = "assert_inverted assert_equal cover_go"
    assert prove(Toggle(properties, describe), depth=3, induction=1, only="assert_inverted")
    assert not check(Toggle(properties, describe), depth=3, only="assert_equal").proved


@pytest.mark.parametrize(("package", "name"), [("pyosys", "pyosys"), ("z3", "z3-solver")])
def test_a_missing_package_is_named(package, name, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotSupported, match=f"not supported: .*install {name}"):
        check(Toggle("assert_small cover_five", small), depth=2)
