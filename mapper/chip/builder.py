"""Builds a Program: loops, double-buffer rings, semaphores, affine addresses.

A *ring* is a region of local memory with two slots, filled by one unit and drained by another. Each side has a cursor
that moves one slot per use; because every loop count is known, the slot of every use is a fixed parity of the loop
indices, which the builder writes into the instruction when the enclosing loops close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain

from msgspec.structs import replace

from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.isa import Address, Draft, Instruction, Opcode, Program, Semaphore, Stretch
from siliconloom.arch.opcodes import Unit
from siliconloom.arch.phases import fence
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LEVELS
from siliconloom.mapper.chip.rings import NOBODY, NOWHERE, SLOTS, LocalSlot, Loop, Region, Ring, RingSide, address
from siliconloom.mapper.chip.transfers import TransferPiece, pieces

LOCAL = ("a", "b", "c", "d")
"""Fields of an instruction that may be local addresses."""


FENCE = "fence"
"""The semaphore by which fences pass from what stores to what loads."""


@lru_cache(maxsize=256)
def _semaphore(name: str, initial: int, cause: str) -> Semaphore:
    return Semaphore(name, initial, cause)


def _frozen(draft: dict[str, object] | Instruction) -> Instruction:
    """An instruction of its fields, or as it was made before."""
    if isinstance(draft, Instruction):
        return draft
    if "a" in draft or "c" in draft:
        for name in LOCAL:
            value = draft.get(name)
            if type(value) is LocalSlot:
                draft[name] = value.freeze()
    return Instruction(**draft)  # type: ignore[arg-type]


class ProgramBuilder:
    """Collects instructions in program order."""

    def __init__(self, bus: int | None = None, *, exchanges: bool = False) -> None:
        """With a ``bus``, transfers keep to the rule of a DMA of so many bytes, see `transfers.pieces`.

        With ``exchanges`` the array is given the transposes of products, see `mapper.chip.orientation`.
        """
        self.bus, self.exchanges = bus, exchanges
        self.drafts: list[dict[str, object] | Instruction] = []
        """Fields of each instruction whose local addresses may still change, or the instruction."""
        self.working: list[int | None] = []
        self.added: list[tuple[int, Stretch]] = []
        """What was added of other programs as it stands, with the number of its first instruction."""
        self.semaphores: list[Semaphore] = []
        self.rings: list[Ring] = []
        self.sides: list[RingSide] = []
        self.depth = 0
        self.operator = 0
        self.narrow = 0
        """Operands of what is computed may be narrow, see `arch.layout`."""
        self.tiles: int | None = None
        """Tiles that execute what is added now; ``None`` throughout when all of them do."""

    def semaphore(self, name: str, initial: int, cause: str) -> int:
        """Declare a semaphore; returns its number."""
        self.semaphores.append(_semaphore(name, initial, cause))
        return len(self.semaphores) - 1

    def ring(self, name: str, base: int, slot_bytes: int, slots: int = SLOTS) -> Ring:
        """Declare a ring at ``base`` with two slots of ``slot_bytes`` each, or one."""
        full = self.semaphore(f"{name}_full", 0, "operands")
        free = self.semaphore(f"{name}_free", slots, "buffer")
        return self._declare(Ring(name, base, slot_bytes if slots > 1 else 0, full, free, slots=slots))

    def half_ring(self, name: str, base: int, slot_bytes: int) -> Ring:
        """Declare a ring whose slots are free by the time that they are filled: its producer waits for nothing."""
        full = self.semaphore(f"{name}_full", 0, "operands")
        return self._declare(Ring(name, base, slot_bytes, full, NOBODY))

    def slots(self, name: str, base: int, slot_bytes: int) -> Ring:
        """Declare two slots that a unit both fills and empties, one instruction after the other: nothing waits."""
        return self._declare(Ring(name, base, slot_bytes, NOBODY, NOBODY))

    @property
    def kinds_of_rings(self) -> tuple[tuple[int, ...], ...]:
        """Of each ring its semaphores and slots, and where these begin as far as transfers are cut by it."""
        within = (self.bus or 1) - 1
        return tuple(
            (each.full, each.free, each.slots, each.base & within, each.slot_bytes & within) for each in self.rings
        )

    def _declare(self, ring: Ring) -> Ring:
        self.rings.append(ring)
        self.sides += ring.producer, ring.consumer
        return ring

    @contextmanager
    def loop(self, count: int) -> Iterator[Loop]:
        """Repeat the body ``count`` times; a count of one adds no instruction."""
        if count == 1:
            yield Loop(None, 1)
            return
        level = self.depth
        if level >= LEVELS:
            raise AssertionError("a lowering nests deeper than the hardware loops")
        self._add(opcode=Opcode.LOOP, m=count)
        self.depth += 1
        opened = [(side, side.count, len(side.uses)) for side in self.sides]
        yield Loop(level, count)
        for side, before, uses in opened:
            per_iteration = side.count - before
            if per_iteration & 1:
                for local in side.uses[uses:]:
                    local.parity |= 1 << level
            side.count = before + per_iteration * count
        self.depth -= 1
        self._add(opcode=Opcode.NEXT)

    def barrier(
        self,
        unit: Unit,
        *,
        wait: int = 0,
        release: int = 0,
        post: int = 0,
        first_wait: int = 0,
        first: int = 0,
        launches: int = 0,
    ) -> None:
        """Make ``unit`` wait; or release and post once everything before it has read its operands, is complete.

        That of what loads may launch an operator's programs, so many of them (``tile.sequencer.launch_cycles``).
        """
        waits = {"wait": wait, "first_wait": first_wait, "first": first}
        self._add(opcode=Opcode.BARRIER, unit=unit, release=release, post=post, m=launches, **waits)

    def fence(self) -> None:
        """Make every unit wait until all of them have done what is before this (`arch.phases`)."""
        full = {ring.name: ring.full for ring in self.rings}
        names = [semaphore.name for semaphore in self.semaphores]
        for unit, wait, post in fence((full["partial"], full["results"], names.index(FENCE), full["weights"])):
            self.barrier(unit, wait=wait, post=post)

    def load(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        *,
        wait: int = 0,
        first_wait: int = 0,
        first: int = 0,
        opens: bool = True,
        closes: bool = True,
        offset: int = 0,
        within: Address = NOWHERE,
        local_pitch: int | None = None,
        joins: bool = True,
        fills: bool = False,
        compression: float | None = None,
        turns: Loop | None = None,
    ) -> None:
        """Load ``rows`` x ``row_bytes`` into the ring's slot; several loads fill one slot with opens/closes.

        Turns of the loop that it is in may do so, too: the first one opens, and the last one closes.

        It begins ``offset`` bytes into the slot, and where ``within`` says beyond that.

        Rows that adjoin on both sides become one long row, if it ``joins``, and where it ``fills`` also rows that what
        fills them up makes adjoin. What is compressed is one row, and begins
        anywhere in main memory: the decompressor finds its place.
        """
        if compression is None:
            places = _both(memory, within)
            made = self._pieces(ring, rows, row_bytes, pitch, local_pitch, places, offset, joins, fills=fills)
        else:
            made = pieces(None, rows, row_bytes, pitch, row_bytes if local_pitch is None else local_pitch, 0)
        self._transfer(
            Opcode.LOAD,
            ring.write_slot,
            made,
            memory,
            offset,
            *_ends(turns, wait | (ring.free_bit if opens else 0), ring.full_bit if closes else 0, first_wait, first),
            compression,
            within,
        )
        if closes and turns is None:
            ring.written()

    def gather(
        self,
        ring: Ring,
        indices: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        table: int,
        *,
        local_pitch: int,
        index: Address | None = None,
        wait: int = 0,
        release: int = 0,
        first_wait: int = 0,
        first: int = 0,
        last_post: int = 0,
        last: int = 0,
    ) -> None:
        """Gather ``rows`` of the ``table`` rows at ``memory`` into the ring's slot, by the indices in the other's.

        The indices begin ``index`` bytes into their slot. The caller moves the cursor of their ring.
        """
        found = indices.read_slot()
        if index is not None:
            found.base, found.strides = found.base + index.base, index.strides
        self._add(
            opcode=Opcode.GATHER,
            m=rows,
            n=row_bytes,
            k=table,
            pitch=pitch,
            local_pitch=local_pitch,
            memory=memory,
            a=ring.write_slot(),
            b=found,
            wait=wait | ring.free_bit,
            release=release,
            post=ring.full_bit,
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
        )
        ring.written()

    def store(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        *,
        last_post: int = 0,
        last: int = 0,
        opens: bool = True,
        closes: bool = True,
        offset: int = 0,
        local_pitch: int | None = None,
        fills: bool = False,
    ) -> None:
        """Store from the ring's slot and free it; several stores empty one slot with opens/closes.

        Where it ``fills``, also what fills rows up on both sides may be stored, so that they adjoin.
        """
        self._transfer(
            Opcode.STORE,
            ring.read_slot,
            self._pieces(ring, rows, row_bytes, pitch, local_pitch, memory, offset, True, fills=fills),
            memory,
            offset,
            {"wait": ring.full_bit if opens else 0},
            {"release": ring.free_bit if closes else 0, "last_post": last_post, "last": last},
        )
        if closes:
            ring.read()

    def matmul(
        self,
        m: int,
        n: int,
        k: int,
        dtype: DataType,
        a: Ring,
        b: Ring,
        c: Ring,
        *,
        wait: int = 0,
        release: int = 0,
        first_wait: int = 0,
        first: int = 0,
        last_post: int = 0,
        last: int = 0,
        accumulate: bool = False,
        b_offset: int = 0,
        a_offset: Address = NOWHERE,
        c_offset: Address = NOWHERE,
        overwrite: int | None = None,
        pitch: int = 0,
        rescale: bool = False,
        packing: Packing | None = None,
        split: int = 0,
        b_other: bool = False,
    ) -> None:
        """C[m,n] (+)= A[m,k] B[k,n]; operands begin so many bytes into their slots. The caller moves the cursors.

        ``overwrite`` are the levels in whose first iteration sums are replaced, those of ``first`` by default.
        ``pitch`` are bytes from row to row of the operand that moves, where its rows do not adjoin. ``rescale``: what
        sums were before, if they were anything, is in steps of the older peaks of their rows. ``packing``: of B, where
        its values are packed. ``split``: of lines of the last panel's sums. ``b_other``: B lies in the slot of its ring
        whose turn it is not.
        """
        moved, second, sums = a.read_slot(), b.last_slot() if b_other else b.read_slot(), c.write_slot()
        moved.move(a_offset)
        second.base += b_offset
        sums.move(c_offset)
        replaced = 0 if accumulate else first if overwrite is None else overwrite
        if self.exchanges:
            m, n, moved, second = n, m, second, moved
        self._add(
            opcode=Opcode.MATMUL,
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            a=moved,
            b=second,
            c=sums,
            d=address(pitch, NOWHERE.strides),
            wait=wait,
            release=release,
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
            accumulate=int(accumulate),
            overwrite=replaced,
            rescale=int(rescale and (accumulate or replaced > 0)),
            packing=packing,
            narrow=self.narrow,
            split=split,
        )

    def vector(
        self,
        function: VectorFunction,
        rows: int,
        cols: int,
        dtype: DataType,
        source: Ring | Region,
        target: Ring | Region,
        *,
        second: Ring | Region | None = None,
        parameters: Ring | None = None,
        inputs: int = 1,
        wait: int = 0,
        release: int = 0,
        post: int = 0,
        first_wait: int = 0,
        first: int = 0,
        last_post: int = 0,
        last: int = 0,
        mask: Address | None = None,
        powers: Ring | None = None,
        source_offset: int = 0,
        source_within: Address = NOWHERE,
        parameter_offset: int = 0,
        parameter_within: Address = NOWHERE,
        accumulate: bool = False,
        overwrite: int = 0,
        split: int = 0,
        packing: Packing | None = None,
    ) -> None:
        """Target = function(source, second). Cursors are moved by the caller.

        The source, and the parameters, begin so many bytes into their slots, and further on by what is ``within`` at
        each turn of the loops; a ``mask`` stands in the place of the second operand; so does the slot of ``powers``
        that was read last, whose rows' totals are meant. With ``accumulate`` what is carried of rows goes on; where
        levels of ``overwrite`` are named, in all but their first iteration. ``split``: of lines of sums, where the
        source are some. ``packing``: what results are kept in, where that has fewer bits than elements.
        """
        operand, held = source.read_slot(), parameters.read_slot() if parameters else None
        operand.move(source_within)
        operand.base += source_offset
        if held is not None:
            held.move(parameter_within)
            held.base += parameter_offset
        self._add(
            opcode=Opcode.VECTOR,
            function=function,
            m=rows,
            n=cols,
            k=inputs,
            dtype=dtype,
            a=operand,
            b=second.read_slot() if second else powers.last_slot() if powers else mask or NOWHERE,
            c=target.write_slot(),
            d=held or NOWHERE,
            wait=wait,
            release=release,
            post=post,
            first_wait=first_wait,
            first=first,
            last_post=last_post,
            last=last,
            accumulate=int(accumulate),
            overwrite=overwrite,
            narrow=self.narrow,
            split=split if function.spec.from_sums else 0,
            packing=packing,
        )

    def channel_vector(self, ring: Ring, bursts: int, dtype: DataType, burst: int, *, wait: int, release: int) -> None:
        """Bring so many bursts from the ring's slot to the channel's global buffer; the caller moves the cursor."""
        self._add(
            opcode=Opcode.PIM_VECTOR,
            m=bursts,
            dtype=dtype,
            a=ring.read_slot(),
            b=address(burst, NOWHERE.strides),
            wait=wait,
            release=release,
        )

    def channel_product(
        self,
        ring: Ring,
        rounds: int,
        segments: int,
        bursts: int,
        dtype: DataType,
        rows: Address,
        burst: int,
        *,
        wait: int,
        post: int,
    ) -> None:
        """Multiply rows of the channel's banks by bursts of its global buffer, into the ring's slot."""
        self._add(
            opcode=Opcode.PIM,
            m=rounds,
            n=segments,
            k=bursts,
            dtype=dtype,
            b=address(burst, NOWHERE.strides),
            c=ring.write_slot(),
            d=rows,
            wait=wait,
            post=post,
        )
        ring.written()

    def channel_write(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        memory: Address,
        *,
        local_pitch: int,
        wait: int,
        release: int,
        offset: int = 0,
    ) -> None:
        """Write rows of the channel, of so many bytes there, from the ring's slot; the caller moves the cursor."""
        local = ring.read_slot()
        local.base += offset
        self._add(
            opcode=Opcode.PIM_WRITE,
            m=rows,
            n=row_bytes,
            pitch=pitch,
            local_pitch=local_pitch,
            memory=memory,
            a=local,
            wait=wait,
            release=release,
        )

    def finish(self, operators: tuple[str, ...], *, draft: bool = False) -> Program:
        """Close the program and check it, unless it is a draft."""
        self._add(opcode=Opcode.END)
        working, semaphores = tuple([tiles for tiles in self.working if tiles is not None]), tuple(self.semaphores)
        if not draft:
            return Program(tuple(map(_frozen, self.drafts)), semaphores, operators, working)
        if not self.added:
            return Draft(tuple(map(_frozen, self.drafts)), semaphores, operators, working)
        found, end = list[Stretch](), 0
        for first, stretch in self.added:  # and what stands before, between and behind that
            if end < first:
                found.append(self._stretch(end, first))
            found.append(stretch)
            end = first + len(stretch.instructions)
        found.append(self._stretch(end, len(self.drafts)))
        instructions = tuple(chain.from_iterable(stretch.instructions for stretch in found))
        return Draft(instructions, semaphores, operators, working, stretches=tuple(found))

    def _stretch(self, first: int, end: int) -> Stretch:
        return Stretch(tuple(map(_frozen, self.drafts[first:end])), tuple(self.working[first:end]))

    def take(self, first: int) -> Stretch:
        """Remove what was added from instruction number ``first`` on, and return it."""
        taken = self._stretch(first, len(self.drafts))
        del self.drafts[first:], self.working[first:]
        return taken

    def add(self, stretch: Stretch) -> None:
        """Add what was taken from this program or from another."""
        self.added.append((len(self.drafts), stretch))
        self.drafts += stretch.instructions
        self.working += stretch.working

    def _transfer(
        self,
        opcode: Opcode,
        slot: Callable[[], LocalSlot],
        made: Sequence[TransferPiece],
        memory: Address,
        offset: int,
        begins: dict[str, int],
        ends: dict[str, int],
        compression: float | None = None,
        within: Address = NOWHERE,
    ) -> None:
        """One instruction a piece; the first has what ``begins`` the whole transfer, the last what ``ends`` it."""
        for piece in made:
            local = slot()
            local.move(within)
            local.base += offset + piece.local
            self._add(
                opcode=opcode,
                **piece.fields,
                memory=replace(memory, base=memory.base + piece.memory) if piece.memory else memory,
                a=local,
                **({} if compression is None else {"compression": compression}),
                **(begins if piece is made[0] else {}),
                **(ends if piece is made[-1] else {}),
            )

    def _pieces(
        self,
        ring: Ring,
        rows: int,
        row_bytes: int,
        pitch: int,
        local_pitch: int | None,
        memory: Address,
        offset: int,
        joins: bool,
        *,
        fills: bool = False,
    ) -> Sequence[TransferPiece]:
        """A transfer as the DMA takes it, its rows packed in local memory unless said otherwise."""
        local = row_bytes if local_pitch is None else local_pitch
        places = memory.base | ring.base + offset | ring.slot_bytes
        for stride in memory.strides:
            if stride:
                places |= abs(stride)
        return pieces(self.bus, rows, row_bytes, pitch, local, places, joins=joins, fills=fills)

    def _add(self, **fields: object) -> None:
        fields["operator"] = self.operator
        self.drafts.append(fields)
        self.working.append(self.tiles)


def _ends(
    turns: Loop | None, wait: int, post: int, first_wait: int, first: int
) -> tuple[dict[str, int], dict[str, int]]:
    """What begins and what ends a transfer: where it comes in turns, the first and the last of these."""
    if turns is None or turns.level is None:
        return {"wait": wait, "first_wait": first_wait, "first": first}, {"post": post}
    level = 1 << turns.level
    return {"first_wait": wait, "first": level if wait else 0}, {"last_post": post, "last": level if post else 0}


def _both(memory: Address, local: Address) -> Address:
    """What both sides of a transfer begin at multiples of."""
    if local is NOWHERE:
        return memory
    strides = tuple(abs(one) | abs(other) for one, other in zip(memory.strides, local.strides, strict=True))
    return Address(base=memory.base | local.base, strides=strides)
