"""The decoder keeps the contract that the instruction set's text states, in every cycle; a planted bug is found."""

import importlib.util
import inspect
import re
import textwrap

import pytest
from amaranth import Cat, Const, Mux, Signal, signed
from amaranth.lib.wiring import Out
from msgspec import structs

from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.word import DTYPES, LEVELS, word_layout
from siliconloom.rtl.formal import _formulas, _System, check
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.entries import queues
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.sequencer import ADDRESSES, TWO_FORMATS, SequencerCircuit, limb_bits
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.contracts import Contract, implies

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyosys", "z3")), reason="pyosys or z3 is not installed"
)


UNIT_OPCODES = {"load": Opcode.LOAD, "store": Opcode.STORE, "matmul": Opcode.MATMUL, "vector": Opcode.VECTOR}


class SequencerContract(Contract):
    """The sequencer is the machine that ``arch.isa`` describes, written down a second time from its text.

    ``self.model`` is that machine: where it is in the program, which loops are open, and with which index. The
    circuit's registers equal it in every cycle (invariants), and what goes to the units is what it says.
    """

    PROPERTIES = """assert_one assert_halted assert_known assert_place assert_sync assert_sizes
    assert_choices assert_refused assert_ended assert_blocked assert_running
    invariant_registers invariant_kinds invariant_steps invariant_fetched
    cover_load cover_gather cover_matmul cover_vector cover_barrier cover_illegal cover_ended cover_second cover_deep
    cover_odd"""

    STACK = tuple(f"invariant_{name}_{level}" for name in ("begin", "index", "rounds") for level in range(LEVELS))

    EACH = tuple(
        f"{kind}_{name}"
        for kind in ("assert_address", "invariant_kept", "invariant_sum", "invariant_products")
        for name in ADDRESSES
    )
    TERMS = tuple(f"invariant_terms_{level}" for level in range(LEVELS + 1))

    def __init__(self, circuit):
        properties = " ".join((self.PROPERTIES, *self.STACK, *self.EACH, *self.TERMS))
        super().__init__(circuit, properties, assume_word=Out(1))

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
        gather = self.cut(Opcode.GATHER)
        opcode = head["opcode"]
        innermost = [level == i + 1 for i in range(LEVELS)]
        last_round = Cat(*(innermost[i] & (index[i] + 1 == count[i]) for i in range(LEVELS))).any()

        # which words can be executed, and how long each takes
        barrier = opcode == Opcode.BARRIER
        deep = (opcode == Opcode.MATMUL) | (opcode == Opcode.GATHER)
        sized = (head["m"] != 0) & (head["n"] != 0) & (~deep | (head["k"] != 0))
        int8 = head["dtype"] == DTYPES.index(DataType.INT8)
        goes_to = {}
        for unit, own in UNIT_OPCODES.items():
            format_built = int8 if unit in ("matmul", "vector") else 1
            mine = (opcode == own) | (opcode == Opcode.GATHER if unit == "load" else 0)
            goes_to[unit] = (barrier | (mine & sized & format_built)) & (head["unit"] == Unit[unit.upper()])
        dispatched = Cat(*goes_to.values()).any()
        opens = (opcode == Opcode.LOOP) & (level < LEVELS) & (head["m"] != 0)
        closes = (opcode == Opcode.NEXT) & (level != 0)
        ends = opcode == Opcode.END
        live = running & valid & ~c.halt
        ready = Cat(*(goes_to[unit] & getattr(c, f"to_{unit}").ready for unit in UNIT_OPCODES)).any()
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
        gather = model["gather"]
        words = transfer, gather, compute
        count, opcode, barrier = model["count"], model["opcode"], model["barrier"]
        valid = {unit: getattr(c, f"to_{unit}").valid for unit in UNIT_OPCODES}
        entries = {unit: getattr(c, f"to_{unit}").payload for unit in UNIT_OPCODES}
        first, last = (
            Cat(*(value(i) for i in range(LEVELS)))
            for value in (lambda i: index[i] == 0, lambda i: index[i] + 1 == count[i])
        )
        wait = head["wait"] | Mux((head["first"] & ~first) == 0, head["first_wait"], 0)
        post = head["post"] | Mux((head["last"] & ~last) == 0, head["last_post"], 0)
        add = head["accumulate"] | ((head["overwrite"] & ~first) != 0)
        parity = Cat(*(i[0] for i in index))
        sync, sizes, choices = [], [], []
        addresses, keeps, sums, products = {}, {}, {}, {}
        terms = {level: [] for level in range(LEVELS + 1)}  # by the one level whose index is one; the last for none
        for unit, entry in entries.items():
            sent = valid[unit]
            own = transfer if unit in ("load", "store") else compute
            same = [entry.barrier == barrier, entry.wait == wait, entry.release == head["release"], entry.post == post]
            sync.append(implies(sent, Cat(*same, entry.number == c.number).all()))
            members = queues(c.geometry)[unit].members
            for name in ("m", "n", "k", "function", "pitch", "local_pitch"):
                if name in members:  # a pitch is wider in the entry
                    wanted = Signal(len(entry[name]), name=f"{unit}_{name}_wanted")
                    m.d.comb += wanted.eq(own[name])
                    sizes.append(implies(sent, entry[name] == wanted))
            if "add" in members:
                choices.append(implies(sent, entry.add == add))
            for name in ("a", "b", "c"):
                if f"{name}_slot" in members:
                    second = (parity & compute[f"{name}.parity"]).xor() ^ compute[f"{name}.odd"]
                    choices.append(implies(sent, entry[f"{name}_slot"] == second))
            if "rescale" in members:
                choices.append(implies(sent, entry.rescale == compute["rescale"]))
            if "narrow" in members:
                choices.append(implies(sent, entry.narrow == compute["narrow"]))
            if "split" in members:
                choices.append(implies(sent, entry.split == compute["split"]))
            if "indexed" in members:
                choices.append(implies(sent, entry.indexed == (opcode == Opcode.GATHER)))
        steps, per_step = c.geometry.issue_cycles - 1, c.per_step
        for name, total in c.sums.items():
            fields = self.addressed(name, opcode, *words)
            slot = 0
            if f"{name}.slot" in fields:
                slot = Mux((parity & fields[f"{name}.parity"]).xor() ^ fields[f"{name}.odd"], fields[f"{name}.slot"], 0)
            # what the word says in the first cycle of its execution: where the address begins, the one term
            said = {"start": fields[f"{name}.base"] + slot, "term": self.term(name, fields, index)}
            kept = {each: Signal(len(total), name=f"{name}_{each}") for each in said}
            with m.If(phase == 0):
                m.d.sync += [kept[each].eq(value) for each, value in said.items()]
            address = Signal(len(total), name=f"{name}_wanted")
            m.d.comb += address.eq(kept["start"] + kept["term"])
            addresses[name] = []
            for unit, entry in entries.items():
                place = "local" if name == "a" and unit in ("load", "store") else name
                if place in queues(c.geometry)[unit].members:
                    used = valid[unit] & (entry.indexed if (unit, name) == ("load", "b") else 1)
                    addresses[name].append(implies(used, entry[place] == address))
            # in every cycle but the first: what was kept, what is summed up, what was multiplied in the cycle before
            term = Signal(len(total), name=f"{name}_term_now")
            m.d.comb += term.eq(said["term"])
            keeps[name] = [implies(phase != 0, kept["term"] == term)]
            sums[name], products[name] = [], []
            for done in range(1, steps + 1):
                earlier, last = (
                    Cat(index[i][0] for i in range(first * per_step, min(done * per_step, LEVELS))).any()
                    for first in (0, done - 1)
                )
                known = Mux(earlier & ~last, address, kept["start"])
                sums[name].append(implies(phase == done, total == known))
                for level, these in terms.items():
                    hot = level in range((done - 1) * per_step, done * per_step)
                    these.append(implies(phase == done, c.terms[name] == (kept["term"] if hot else 0)))
                for place, own in enumerate(c.products[name]):
                    level = (done - 1) * per_step + place
                    for (low, high), product in own.items():
                        wanted = Const(0)
                        if level < LEVELS and low == 0:
                            piece = fields[f"{name}.stride{level}"][high : high + limb_bits(name)]
                            piece = piece.as_signed() if product.shape().signed else piece
                            wanted = Mux(index[level][0], piece, 0)
                        products[name].append(implies(phase == done, product == wanted))
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
                for name in ("begin", "index")
                for level in range(LEVELS)
            ),
            *(
                getattr(self, f"invariant_rounds_{level}").eq(
                    implies(
                        level < model["level"],
                        (index[level] < count[level]) & (c.left[level] == (count[level] - index[level])[:24]),
                    )
                    & (c.is_first[level] == (index[level] == 0))
                    & (c.is_last[level] == (index[level] + 1 == count[level]))
                    & (c.single[level] == (count[level] == 1))
                )
                for level in range(LEVELS)
            ),
            self.invariant_steps.eq(
                implies(model["running"], self.in_step(c, phase, index, live & model["dispatched"], opcode))
            ),
            self.invariant_kinds.eq(
                implies(
                    model["running"] & model["valid"] & (phase != 0),
                    (c.began["opens"] == model["opens"])
                    & (c.began["closes"] == model["closes"])
                    & (c.began["dispatches"] == model["dispatched"])
                    & (phase <= Mux(model["dispatched"], c.geometry.issue_cycles - 1, c.geometry.loop_cycles - 1)),
                )
            ),
            *(
                getattr(self, f"{kind}_{name}").eq(implies(one_level & live & model["dispatched"], Cat(*these).all()))
                for kind, each in (
                    ("invariant_kept", keeps),
                    ("invariant_sum", sums),
                    ("invariant_products", products),
                    ("assert_address", addresses),
                )
                for name, these in each.items()
            ),
            *(
                getattr(self, f"invariant_terms_{level}").eq(
                    implies(
                        one_level
                        & live
                        & model["dispatched"]
                        & (index[level][0] if level < LEVELS else ~Cat(i[0] for i in index).any()),
                        Cat(*these).all(),
                    )
                )
                for level, these in terms.items()
            ),
            self.cover_load.eq(valid["load"] & ~barrier),
            self.cover_gather.eq(valid["load"] & (opcode == Opcode.GATHER) & (gather["b.base"] != 0)),
            self.cover_matmul.eq(valid["matmul"] & ~barrier),
            self.cover_vector.eq(valid["vector"] & ~barrier),
            self.cover_barrier.eq(valid["store"] & barrier),
            self.cover_illegal.eq(c.illegal),
            self.cover_ended.eq(c.ended),
            self.cover_second.eq(Cat(*valid.values()).any() & (index[0] == 1)),
            self.cover_deep.eq(Cat(*valid.values()).any() & (model["level"] == 2)),
            self.cover_odd.eq(valid["matmul"] & parity[0] & compute["a.parity"][0] & (compute["a.slot"] != 0)),
        ]

    @classmethod
    def in_step(cls, c, phase, index, dispatched, opcode):
        """Whether what is multiplied is what the cycle says, in the word's format from the second one on."""
        last = len(c.levels_of) - 1
        cycle = [(phase >= last) if number == last else (phase == number) for number in range(last + 1)]
        held = []
        for name, places in c.steps.items():
            is_first = cls.moves(name, opcode) if name in TWO_FORMATS else Const(1)
            for place in places:
                for limbs, this in zip(place, (is_first, ~is_first), strict=False):
                    for step in limbs:
                        held.append(step[0] == cycle[0])
                        held.append(implies(dispatched, step[1:] == Cat(now & this for now in cycle[1:])))
                        held.append(implies(~Cat(cycle[1:]).any(), step[1:] == 0))
        for place, factor in enumerate(c.factors):
            for now, levels in zip(cycle, c.levels_of, strict=True):
                held.append(implies(now, factor == (index[levels[place]] if place < len(levels) else 0)))
        return Cat(*held).all()

    @staticmethod
    def moves(name, opcode):
        """Whether the first, or the second, local address of a word is in the format of transfers."""
        gathers = opcode == Opcode.GATHER
        return gathers if name == "b" else gathers | (opcode == Opcode.LOAD) | (opcode == Opcode.STORE)

    @staticmethod
    def addressed(name, opcode, transfer, gather, compute):
        """Fields that an address is made of; the first two local ones stand in two formats, at different places."""
        if name not in "ab":
            return transfer if name == "memory" else compute
        moves = SequencerContract.moves(name, opcode)
        pick = {field: (value, compute[field]) for field, value in gather.items() if field.startswith(f"{name}.")}
        return {field: Mux(moves, one, other) for field, (one, other) in pick.items()}

    @staticmethod
    def term(name, fields, index):
        """Stride of the one level whose index is one; zero if there is none."""
        chosen = Const(0, signed(1))
        for i in range(LEVELS):
            chosen = chosen | Mux(index[i][0], fields[f"{name}.stride{i}"].as_signed(), 0)
        return chosen


def sequencer(kind=SequencerCircuit, issue_cycles=2):
    return kind(Library("proof"), structs.replace(geometry_of(random_npu(3)), issue_cycles=issue_cycles))


@pytest.mark.slow(seconds=170)
def test_the_decoder_keeps_its_contract_in_every_cycle():
    outcome = check(SequencerContract(sequencer(issue_cycles=4)), depth=1, induction=1)
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
    "loops of several rounds run once more": ("left[depth] == 2", "left[depth] == 1", "place|known|ended|running"),
    "loops of one round run once more": ("single = size == 1", "single = size == 0", "place|known|ended|running"),
    "a loop goes on behind its body": ("target.eq(begin[top])", "target.eq(following)", "place"),
    "strides of levels 4 and 5 are dropped": (
        "limb_bits(name)] for level in levels",
        "limb_bits(name)] if level < 4 else 0 for level in levels",
        "address_.*",
    ),
    "the second slot is never used": ('Mux(odd, pick["slot"], 0)', "0", "address_.*"),
    "odd is ignored": (' ^ pick["odd"]', "", "address_.*"),
    "limbs of a stride are taken from one place": ("limb(stride, high, ", "limb(stride, 0, ", "address_.*"),
    "accumulate is ignored": ('transfer["accumulate"] | ~holds', "~holds", "choices"),
    "overwrite is ignored": ('| ~holds(transfer["overwrite"], is_first)', "", "choices"),
    "the slot of powers is that of sums": ('"a_slot": odd["a"],', '"a_slot": odd["c"],', "choices"),
    "the slot of totals is that of results": ('"b_slot": odd["b"],', '"b_slot": odd["c"],', "choices"),
    "what adds is rescaled": ('"rescale": compute["rescale"],', '"rescale": transfer["accumulate"],', "choices"),
    "a pitch is signed": ('"pitch": transfer["pitch"],', '"pitch": transfer["pitch"].as_signed(),', "sizes"),
    "unknown words are not flagged": ("self.illegal.eq(live & ", "self.illegal.eq(0 & ", "refused"),
    "any number format is taken": ("unit, sized, built, units)", "unit, sized, sized, units)", "known|refused"),
    "gathers' indices lie where products' second operands do": (
        '"b": [(is_gather, gather), (~is_gather, compute)]',
        '"b": [(0, gather), (1, compute)]',
        "address_.*",
    ),
    "loads are gathers": ('"indexed": is_gather,', '"indexed": is_transfer,', "choices"),
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
    contract = SequencerContract(sequencer(names[SequencerCircuit.__name__], 2 if broken.startswith("address") else 4))
    system = _System(contract.module_name, _formulas(contract), contract.library.reset_port)
    system.goals = system.names("assert", "invariant")
    hopeful = [name for name in system.goals if re.fullmatch(f"assert_({broken})", name)]
    found = system.step(1, distinct=False, goals=hopeful)
    assert found is not None
    assert set(found.broken) & set(hopeful)
