"""The sequencer: fetches a program, walks its loops, resolves addresses and dispatches to the units' queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Shape, Signal
from amaranth.hdl import Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.isa import Opcode, Unit
from siliconloom.arch.opcodes import GATHERS, TRANSFERS, UNIT_BITS, Format, built_units
from siliconloom.arch.opcodes import Unit as UnitCode
from siliconloom.arch.word import DTYPES, LEVELS, READ_BITS, WORD_BYTES, word_layout
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library, seen
from siliconloom.rtl.npu.entries import queues
from siliconloom.rtl.npu.geometry import LOCAL_BITS, MEMORY_BITS, PAGE, SIZE_BITS, Geometry
from siliconloom.rtl.npu.interfaces import read_channels

ADDRESSES = {"memory": MEMORY_BITS, "a": LOCAL_BITS, "b": LOCAL_BITS, "c": LOCAL_BITS, "d": LOCAL_BITS}
"""Addresses of an instruction, and their bits."""
TWO_FORMATS = "ab"
"""Those of them that transfers have, too, at another place of their words."""
SHOWN = {"memory": Opcode.LOAD, **dict.fromkeys("abcd", Opcode.MATMUL)}
"""An opcode whose word has each of the addresses."""
FETCH_BURST = 16
"""Beats of a burst that fetches instructions."""
LIMB, INDEX_LIMB = 18, 12
"""Bits of the factors of a product that is one multiplier of an FPGA, at most: a stride is several limbs, an index two.
"""


class Fetch(Circuit):
    """Reads the program over AXI4, word after word, into the program memory.

    Members
    -------
    start : In(1)
        Begin; ``base`` (bytes, a multiple of a word) and ``words`` are taken.
    memory : Out(read_channels)
        Reads of main memory; data is taken in every cycle.
    write, write_address, write_data
        A beat for the program memory.
    fetched : Out
        Words that stand in the program memory.
    failed : Out(1)
        One cycle high when a response was an error.
    idle : Out(1)
        Everything that was asked for has come.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        self.beats = WORD_BYTES // geometry.port_bytes
        count = geometry.program_words.bit_length()
        ports = {
            "start": In(1),
            "base": In(MEMORY_BITS),
            "words": In(count),
            "memory": Out(read_channels(geometry.port_bytes)),
            "write": Out(self.beats),
            "write_address": Out(count),
            "write_data": Out(8 * geometry.port_bytes),
            "fetched": Out(count),
            "failed": Out(1),
            "idle": Out(1),
        }
        super().__init__(library, library.name("fetch"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("FETCH_START", request=1, program_memory=SramWrapper.LATENCY)
        geometry, beats = self.geometry, self.beats
        ask, answer = self.memory.burst, self.memory.beat
        left, awaited = (Signal(range(geometry.program_words * beats + 1), name=n) for n in ("left", "awaited"))
        address = Signal(MEMORY_BITS)
        to_page = Signal(range(PAGE // geometry.port_bytes + 1))
        burst = Signal(range(FETCH_BURST + 1))
        m.d.comb += [
            to_page.eq((PAGE - address[: PAGE.bit_length() - 1]) // geometry.port_bytes),
            burst.eq(FETCH_BURST),
            ask.valid.eq(left != 0),
            ask.payload.address.eq(address),
            ask.payload.length.eq((burst - 1)[:8]),
            answer.ready.eq(1),
        ]
        with m.If((left < FETCH_BURST) & (left <= to_page)):
            m.d.comb += burst.eq(left)
        with m.Elif(to_page < FETCH_BURST):
            m.d.comb += burst.eq(to_page)
        with m.If(self.start):
            m.d.sync += [left.eq(self.words * beats), address.eq(self.base)]
        with m.Elif(ask.valid & ask.ready):
            m.d.sync += [left.eq(left - burst), address.eq(address + burst * geometry.port_bytes)]
        beat = Signal(range(max(beats, 2)))
        m.d.comb += [
            self.write.eq(answer.valid << beat),
            self.write_address.eq(self.fetched),
            self.write_data.eq(answer.payload.data),
            self.failed.eq(answer.valid & answer.payload.error),
        ]
        m.d.comb += self.idle.eq(awaited == 0)
        with m.If(self.start):
            m.d.sync += [self.fetched.eq(0), beat.eq(0), awaited.eq(self.words * beats)]
        with m.Elif(answer.valid):
            m.d.sync += awaited.eq(awaited - 1)
            with m.If(beat == beats - 1):
                m.d.sync += [beat.eq(0), self.fetched.eq(self.fetched + 1)]
            with m.Else():
                m.d.sync += beat.eq(beat + 1)
        return m


class SequencerCircuit(Circuit):
    """Executes loops and dispatches every other instruction, one after the other.

    A loop's start or back-edge takes ``loop_cycles``, a dispatch ``issue_cycles``, of which all but the last multiply
    for the addresses, some loop levels a cycle; in the last the entry enters its queue, as soon as that has room.

    Members
    -------
    start : In(1)
        Begin with word 0.
    fetched : In
        Words that stand in the program memory.
    read, read_address, word : Out(1), Out, In(READ_BITS)
        Program memory, one cycle from address to word; only what has been fetched is read.
    to_<unit> : Out(stream.Signature(entry_layout(unit)))
        To the queue of the unit.
    halt : In(1)
        Stop at once.
    running : Out(1)
        Between the start and the end of the program.
    ended : Out(1)
        The end of the program is being decoded.
    blocked : Out(1)
        Waits for room in a queue.
    illegal : Out(1)
        One cycle high when a word cannot be executed.
    number : Out
        Place of the present word in the program.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        count = geometry.program_words.bit_length()
        ports = {
            "start": In(1),
            "halt": In(1),
            "fetched": In(count),
            "read": Out(1),
            "read_address": Out(count),
            "word": In(READ_BITS),
            "running": Out(1),
            "ended": Out(1),
            "blocked": Out(1),
            "illegal": Out(1),
            "number": Out(count),
        }
        for unit, layout in queues(geometry).items():
            ports |= {f"to_{unit}": Out(stream.Signature(layout))}
        super().__init__(library, library.name("sequencer"), ports, reset=True)
        # Registers, which a proof may look at: the word in front is valid; the cycle of its execution; open loops, and
        # where each begins, its index, the rounds that are left of it with the present one; of every loop whether it is
        # in its first or its last round, or has but one; what a word is whose execution has begun (`kinds`); for every
        # place where an address is multiplied the cycle of it, a bit for each, by the formats that it may be in and by
        # the limbs of its strides, and the index; of every address what is summed up, products of the cycle before, by
        # the places of their factors, and their sum.
        self.valid = Signal()
        self.phase = Signal(range(max(geometry.issue_cycles, geometry.loop_cycles, 2)))
        self.level = Signal(range(LEVELS + 1))
        self.begin = [Signal(count, name=f"begin_{i}") for i in range(LEVELS)]
        self.index = [Signal(SIZE_BITS, name=f"index_{i}") for i in range(LEVELS)]
        self.left = [Signal(SIZE_BITS, name=f"left_{i}") for i in range(LEVELS)]
        self.is_first = Signal(LEVELS, init=(1 << LEVELS) - 1)
        self.is_last, self.single = Signal(LEVELS), Signal(LEVELS)
        self.began = {kind: Signal(name=f"began_{kind}") for kind in ("opens", "closes", "dispatches")}
        self.steps = {
            name: [
                [
                    [
                        seen(len(self.levels_of), name=f"{name}_step_{place}_{each}_{high}", init=1)
                        for high in limbs_of(name)
                    ]
                    for each in range(formats)
                ]
                for place in range(self.per_step)
            ]
            for name, formats in ((name, 2 if name in TWO_FORMATS else 1) for name in ADDRESSES)
        }
        self.factors = [Signal(SIZE_BITS, name=f"factor_{place}") for place in range(self.per_step)]
        self.sums = {name: Signal(width, name=f"{name}_sum", reset_less=True) for name, width in ADDRESSES.items()}
        self.terms = {name: Signal(width, name=f"{name}_terms") for name, width in ADDRESSES.items()}
        self.products = {name: [partial(name, place) for place in range(self.per_step)] for name in ADDRESSES}

    @property
    def per_step(self) -> int:
        """Levels whose terms are multiplied in one cycle of a dispatch."""
        return -(-LEVELS // (self.geometry.issue_cycles - 1))

    @property
    def levels_of(self) -> list[range]:
        """Those levels, by the cycle."""
        firsts = [step * self.per_step for step in range(self.geometry.issue_cycles - 1)]
        return [range(first, min(first + self.per_step, LEVELS)) for first in firsts]

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry = self.geometry
        transfer, compute, gather = (self._fields(each) for each in (Opcode.LOAD, Opcode.MATMUL, Opcode.GATHER))
        opcode, size = transfer["opcode"], transfer["m"]
        is_transfer, is_gather = Signal(), Signal()
        units = built_units(geometry)
        known = [each for each in Opcode if each.unit in units]
        m.d.comb += [
            is_gather.eq(reduce(or_, (opcode == each for each in known if each in GATHERS))),
            is_transfer.eq(reduce(or_, (opcode == each for each in known if each in TRANSFERS)) | is_gather),
        ]

        # Loops: the stack holds where each open loop begins, its index and its count.
        level, begin, index, left = self.level, Array(self.begin), self.index, self.left
        is_first, is_last = self.is_first, self.is_last
        top = Signal(range(LEVELS))
        m.d.comb += top.eq(level - 1)
        top_last = Signal()
        m.d.comb += top_last.eq(is_last.bit_select(top, 1))

        # The word in front is valid when it had been fetched before it was read.
        pc, valid, phase = self.number, self.valid, self.phase
        advance, target, there = Signal(), Signal(len(pc)), Signal()
        following = Signal(len(pc))
        # whether there is a word at each place that may be read next, known before it is known which
        m.d.comb += [
            following.eq(pc + 1),
            target.eq(following),
            there.eq(following < self.fetched),
            self.read_address.eq(Mux(advance, target, pc)),
            self.read.eq(self.running & Mux(advance, there, pc < self.fetched)),
        ]
        m.d.sync += [pc.eq(self.read_address), valid.eq(self.read)]
        with m.If(self.start):
            m.d.sync += [pc.eq(0), valid.eq(0), self.running.eq(1), phase.eq(0), level.eq(0)]
        with m.If(self.halt):
            m.d.sync += [self.running.eq(0), valid.eq(0)]

        # of every address the formats that it may be in, and whether the word is of that
        words = {
            "memory": [(Const(1), transfer)],
            "a": [(is_transfer, transfer), (~is_transfer, compute)],
            "b": [(is_gather, gather), (~is_gather, compute)],
            **{name: [(Const(1), compute)] for name in "cd"},
        }
        sums, odd = self._addresses(m, words)
        by_code = {int(Unit[name.upper()]): getattr(self, f"to_{name}").ready for name in queues(geometry)}
        ready = Array([by_code.get(code, 0) for code in range(1 << UNIT_BITS)])
        unit = transfer["unit"]
        dispatch, push, sized, built = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            built.eq(transfer["dtype"] == DTYPES.index(self.geometry.dtype)),
            sized.eq(reduce(and_, (has_size(name, known, opcode, compute[name]) for name in ("m", "n", "k")))),
            dispatch.eq(
                reduce(
                    or_, (goes_to_queue(each, opcode, unit, sized, built, units) for each in (Opcode.BARRIER, *known))
                )
            ),
        ]
        kinds = {
            "opens": (opcode == Opcode.LOOP) & (level < LEVELS) & (size != 0),
            "closes": (opcode == Opcode.NEXT) & (level != 0),
            "dispatches": dispatch,
        }
        live, last = self._last_cycles(m, kinds, opcode)
        m.d.comb += [
            push.eq(last["dispatches"]),
            self.blocked.eq(push & ~ready[unit]),
            advance.eq(last["opens"] | last["closes"] | (push & ready[unit])),
        ]
        with m.If(advance):
            m.d.sync += phase.eq(0)
        with m.Elif(live & ~push):
            m.d.sync += phase.eq(phase + 1)
        following_index = [Signal(SIZE_BITS, name=f"following_index_{i}") for i in range(LEVELS)]
        for own, own_following in zip(index, following_index, strict=True):
            m.d.comb += own_following.eq(own)
            m.d.sync += own.eq(own_following)
        self._step(m, self.start | advance, live & ~push, words, following_index)
        with m.If(last["opens"]):
            m.d.sync += [level.eq(level + 1), begin[level].eq(following)]
            for depth in range(LEVELS):
                with m.If(level == depth):
                    single = size == 1
                    m.d.comb += following_index[depth].eq(0)
                    m.d.sync += left[depth].eq(size)
                    m.d.sync += [is_first[depth].eq(1), is_last[depth].eq(single), self.single[depth].eq(single)]
        with m.If(last["closes"]):
            with m.If(top_last):
                m.d.sync += level.eq(level - 1)
            with m.Else():
                m.d.comb += [target.eq(begin[top]), there.eq(begin[top] < self.fetched)]
            for depth in range(LEVELS):
                with m.If(top == depth):
                    m.d.comb += following_index[depth].eq(Mux(top_last, 0, index[depth] + 1))
                    m.d.sync += [
                        left[depth].eq(left[depth] - 1),
                        is_first[depth].eq(top_last),
                        is_last[depth].eq(Mux(top_last, self.single[depth], left[depth] == 2)),
                    ]
        with m.If(self.ended | self.illegal):
            m.d.sync += [phase.eq(phase), self.running.eq(0), valid.eq(0)]

        fields = self._fields_offered(m, transfer, compute, is_gather, sums, odd)
        self._offer(m, fields, push, unit)
        return m

    def _fields_offered(
        self,
        m: Module,
        transfer: Mapping[str, Value],
        compute: Mapping[str, Value],
        is_gather: Value,
        sums: Mapping[str, Value],
        odd: Mapping[str, Value],
    ) -> dict[str, Value]:
        """What entries of the queues have of the word in front, by name: its fields, and what loops make of them."""
        opcode, is_first, is_last = transfer["opcode"], self.is_first, self.is_last

        # Conditions of the semaphores and of the accumulator.
        def holds(mask: Signal, states: Value) -> Signal:
            return (mask & ~states) == 0

        sync = {
            "barrier": opcode == Opcode.BARRIER,
            "wait": transfer["wait"] | Mux(holds(transfer["first"], is_first), transfer["first_wait"], 0),
            "release": transfer["release"],
            "post": transfer["post"] | Mux(holds(transfer["last"], is_last), transfer["last_post"], 0),
            "number": self.number,
        }
        return {
            **sync,
            "opcode": opcode,
            "m": transfer["m"],
            "n": transfer["n"],
            "k": transfer["k"],
            "function": transfer["function"],
            "pitch": transfer["pitch"],
            "local_pitch": transfer["local_pitch"],
            **sums,
            "local": sums["a"],
            "indexed": is_gather,
            "a_slot": odd["a"],
            "b_slot": odd["b"],
            "c_slot": odd["c"],
            "rescale": compute["rescale"],
            **{name: compute[name] for name in ("weights", "group", "narrow", "split")},
            "add": transfer["accumulate"] | ~holds(transfer["overwrite"], is_first),
        }

    def _last_cycles(self, m: Module, kinds: dict[str, Value], opcode: Value) -> tuple[Signal, dict[str, Signal]]:
        """Whether a word is executed, and of each kind of words whether this is the last cycle of one.

        A word of several cycles is what it was in the first one, in which it may also be the end, or none.
        """
        live, first = Signal(), Signal()
        m.d.comb += [live.eq(self.valid & self.running & ~self.halt), first.eq(self.phase == 0)]
        last = {kind: Signal(name=f"{kind}_last") for kind in kinds}
        for kind, value in kinds.items():
            cycles = self.geometry.issue_cycles if kind == "dispatches" else self.geometry.loop_cycles
            m.d.comb += last[kind].eq(live & (self.phase == cycles - 1) & (value if cycles == 1 else self.began[kind]))
            with m.If(first):
                m.d.sync += self.began[kind].eq(value)
        m.d.comb += [
            self.ended.eq(live & first & (opcode == Opcode.END)),
            self.illegal.eq(live & first & ~reduce(or_, kinds.values()) & (opcode != Opcode.END)),
        ]
        return live, last

    def _offer(self, m: Module, fields: dict[str, Any], push: Signal, unit: Value) -> None:
        """Offers to the queue of the word's unit what it holds of the fields, while ``push``."""
        for name, layout in queues(self.geometry).items():
            queue = getattr(self, f"to_{name}")
            m.d.comb += queue.valid.eq(push & (unit == Unit[name.upper()]))
            for field in layout.members:
                m.d.comb += queue.payload[field].eq(fields[field])

    def _fields(self, opcode: Opcode) -> dict[str, Signal]:
        """Slices of the word by field name, for the format of ``opcode``."""
        found, offset = {}, 0
        for field in word_layout(opcode):
            found[field.name] = self.word[offset : offset + field.width]
            offset += field.width
        return found

    def _step(
        self, m: Module, begins: Value, goes_on: Value, words: dict[str, Any], following_index: list[Signal]
    ) -> None:
        """What is multiplied in the next cycle: levels, and their indices, which stay the last ones from then on."""
        for name, places in self.steps.items():
            taken = ((format_, step) for place in places for format_, limbs in enumerate(place) for step in limbs)
            for format_, step in taken:
                # by bits of its own, and without a choice that would be an enable: equal ones are not to become one
                for number, bit in enumerate(step):
                    stays = bit if number == len(step) - 1 else bit & ~goes_on
                    comes = step[number - 1] & goes_on & (words[name][format_][0] if number == 1 else 1)
                    follows = comes | stays if number else stays
                    m.d.sync += bit.eq(follows & ~begins if number else follows | begins)
        [[step, *_]], *_ = self.steps["memory"]
        for place, factor in enumerate(self.factors):
            with m.If(begins):
                m.d.sync += factor.eq(following_index[place])
            with m.Elif(goes_on):
                for number, levels in enumerate(self.levels_of[1:]):
                    with m.If(step[number]):
                        m.d.sync += factor.eq(self.index[levels[place]] if place < len(levels) else 0)

    def _addresses(self, m: Module, words: dict[str, Any]) -> tuple[dict[str, Signal], dict[str, Value]]:
        """Affine addresses: a cycle of a dispatch, but the last, multiplies some levels' terms, the next one adds them.

        So the products are registers, in front of which nothing but a multiplier stands; one of long factors is
        several, each of two limbs. ``words`` has the formats that each address may be in: whether the word is in it,
        and its fields. Returns the addresses, which are whole in the last cycle, and whether each of the local ones is
        in its second slot.
        """
        phase, index, cycles = self.phase, self.index, len(self.levels_of)
        results: dict[str, Signal] = {}
        turned: dict[str, Value] = {}
        for name, width in ADDRESSES.items():
            if name == "memory":
                parts = ("base", *(f"stride{i}" for i in range(LEVELS)))
            else:
                parts = ("base", "slot", "parity", "odd", *(f"stride{i}" for i in range(LEVELS)))
            formats = [{part: own[f"{name}.{part}"] for part in parts} for _, own in words[name]]
            is_in = [which for which, _ in words[name]]
            pick = {part: chosen(is_in, [each[part] for each in formats]) for part in parts}
            strides = [Signal(stride_bits(name), name=f"{name}_stride_{place}") for place in range(self.per_step)]
            for place, stride in enumerate(strides):
                levels, pieces = [each[place] for each in self.levels_of if place < len(each)], list[Value]()
                for number, low in enumerate(limbs_of(name)):
                    now, these = [], []
                    for own, which, steps in zip(formats, is_in, self.steps[name][place], strict=True):
                        now += [steps[number][0] & which, *steps[number][1 : len(levels)]]
                        these += [own[f"stride{level}"][low : low + limb_bits(name)] for level in levels]
                    pieces.append(chosen(now, these))
                m.d.comb += stride.eq(Cat(*pieces))
            before, total = self.sums[name], Signal(width, name=f"{name}_address")
            begin: Value = pick["base"]
            if name != "memory":
                odd = (Cat(*(i[0] for i in index)) & pick["parity"]).xor() ^ pick["odd"]
                begin = pick["base"] + Mux(odd, pick["slot"], 0)
                turned[name] = odd
            terms: list[Value] = []
            with m.If(phase < cycles):
                m.d.sync += before.eq(Mux(phase == 0, begin, total))
            for factor, stride, products in zip(self.factors, strides, self.products[name], strict=True):
                for (low, high), product in products.items():
                    m.d.sync += product.eq(factor[low : low + INDEX_LIMB] * limb(stride, high, limb_bits(name)))
                terms += side_by_side({low + high: product for (low, high), product in products.items()})
            m.d.comb += [self.terms[name].eq(tree(terms)), total.eq(before + self.terms[name])]
            results[name] = total
        return results, turned


def stride_bits(name: str) -> int:
    """Bits of the strides of an address."""
    return next(field.width for field in word_layout(SHOWN[name]) if field.name == f"{name}.stride0")


def limb_bits(name: str) -> int:
    """Bits of the limbs of those strides: as even as they can be."""
    bits = stride_bits(name)
    return -(-bits // -(-bits // LIMB))


def limbs_of(name: str) -> range:
    """Where those limbs begin: each is chosen by bits of its own, which have few users."""
    return range(0, stride_bits(name), limb_bits(name))


def partial(name: str, place: int) -> dict[tuple[int, int], Signal]:
    """Registers for the products of the limbs of an index and a stride, by where the limbs begin, as far as they count.

    A stride is signed, and so is its last limb.
    """
    found, width, bits, limb_ = {}, ADDRESSES[name], stride_bits(name), limb_bits(name)
    for low in range(0, SIZE_BITS, INDEX_LIMB):
        for high in range(0, min(bits, width - low), limb_):
            whole = min(INDEX_LIMB, SIZE_BITS - low) + min(limb_, bits - high)
            last = high + limb_ >= bits
            shape = Shape(min(whole, width - low - high), signed=last)
            found[low, high] = Signal(shape, name=f"{name}_product_{place}_{low}_{high}", reset_less=True)
    return found


def limb(number: Value, low: int, bits: int) -> Value:
    """The limb of a signed number that begins at a bit; the last one is signed."""
    piece = number[low : low + bits]
    return piece.as_signed() if low + bits >= len(number) else piece


def side_by_side(pieces: dict[int, Signal]) -> list[Value]:
    """Numbers whose sum is that of some pieces, by the bits where they begin: as few as they fit into."""
    rows: list[list[tuple[int, Signal]]] = []
    for begin, piece in sorted(pieces.items()):
        for row in rows:
            last_begin, last = row[-1]
            if not last.shape().signed and last_begin + len(last) <= begin:
                row.append((begin, piece))
                break
        else:
            rows.append([(begin, piece)])
    found = []
    for row in rows:
        parts, end = [], 0
        for begin, piece in row:
            parts += [Const(0, begin - end), piece]
            end = begin + len(piece)
        whole = Cat(*parts)
        found.append(whole.as_signed() if row[-1][1].shape().signed else whole)
    return found


def chosen(which: Sequence[Value], values: Sequence[Value]) -> Value:
    """The one of some values that is told by a bit of its own; zero if there is none such."""
    return reduce(or_, (Mux(bit, value, 0) for bit, value in zip(which, values, strict=True)))


def tree(values: Iterable[Value]) -> Value:
    """The sum of some numbers, two by two."""
    found = list(values)
    while len(found) > 1:
        pairs = [a + b for a, b in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[2 * len(pairs) :]
    return found[0]


def has_size(name: str, known: list[Opcode], opcode: Value, value: Value) -> Value:
    """Whether m, n or k is at least one where the opcode needs that."""
    needing = [each for each in known if name in each.spec.sizes]
    if len(needing) == len(known):
        return value != 0
    if len(needing) == 1:
        return (opcode != needing[0]) | (value != 0)
    others = [opcode == each for each in known if each not in needing]
    return reduce(or_, others) | (value != 0)


def goes_to_queue(
    each: Opcode, opcode: Value, unit: Value, sized: Value, built: Value, units: Sequence[UnitCode]
) -> Value:
    """Whether the word in front is this opcode, and one that its unit's queue takes; a barrier goes to any unit's."""
    if each == Opcode.BARRIER:
        codes = [int(code) for code in units]
        last = next(code for code in codes if code + 1 not in codes)
        dense = (opcode == each) & (unit >= codes[0]) & (unit <= last)
        return reduce(or_, [dense, *((opcode == each) & (unit == code) for code in codes if code > last)])
    held = (opcode == each) & (unit == each.unit) & sized
    return held & built if each.spec.format is Format.COMPUTE else held
