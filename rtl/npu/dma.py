"""The DMA: strided rows between main memory (AXI4) and the scratchpad, at the pace of the tile's share of bandwidth.

A transfer leaves its queue in cycle I. Counting t = 0 in cycle I + 1, its c beats take D = ceil(c * interval) cycles of
the port; the next transfer may leave its queue in cycle I + D. A burst's address is sent so late that its last beat
falls into the last cycle that its share of D allows, so the time of the last beat does not depend on how rows are cut
into bursts. The counterpart is ``sim.timing.units``.

Rows are aligned: a row that is longer than the bus begins at a multiple of the bus in memory and in the scratchpad, a
shorter one lies within one such window of both.
"""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from msgspec import Struct

from siliconloom.arch import timing
from siliconloom.arch.description import INTERVAL_ONE
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library, Placed, seen
from siliconloom.rtl.npu.bursts import BurstAhead, Elsewhere, LastBeat, NextBurst, aligned
from siliconloom.rtl.npu.bytes import ByteMask, Rotator
from siliconloom.rtl.npu.entries import TRANSFER_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, LONGEST_BURST, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import BURST, local_read, local_write, read_channels, write_channels
from siliconloom.rtl.npu.pace import Pace, longest, slack_of


class LoadEngine(Circuit):
    """Main memory to scratchpad: one walk over the rows sends addresses, a second one places the data.

    Members
    -------
    instruction : In(stream.Signature(TRANSFER_ENTRY))
        Transfers; ready unless one has the port.
    held : Out(1)
        The transfer has the port.
    read : Out(1)
        Pulse in the last cycle in which the port is held.
    done : Out(1)
        Pulse in the cycle in which the last bytes are written.
    memory : Out(read_channels)
        Reads of main memory; data is taken in every cycle.
    write : Out(local_write)
        Scratchpad: the window of the bus that a beat belongs to.
    misaligned, failed : Out(1)
        Pulses: a row breaks the rule above; a response was an error.
    """

    def __init__(
        self, library: Library, geometry: Geometry, name: str = "plain_load", entry: Any = TRANSFER_ENTRY, **more: Any
    ) -> None:
        self.geometry = geometry
        bus = geometry.bus
        ports = {
            "instruction": In(stream.Signature(entry)),
            "held": Out(1),
            "read": Out(1),
            "done": Out(1),
            "memory": Out(read_channels(bus)),
            "write": Out(local_write(bus)),
            "misaligned": Out(1),
            "failed": Out(1),
            **more,
        }
        super().__init__(library, library.name(name), ports, reset=True)
        self.taken = Signal()
        # No transfer goes on after this cycle, other than one that is taken in it; it begins later than it was taken;
        # the address of the row in front is not known yet.
        self.free, self.begin, self.unknown = Signal(), Signal(), seen(name="unknown")

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("TRANSFER_START", address=1)
        timing.confirm("LOAD_WRITE", data=1, rotation=1)
        entry = self.instruction.payload
        m.d.comb += [
            self.taken.eq(self.instruction.valid & self.instruction.ready),
            self.misaligned.eq(self.taken & self.is_refused(entry)),
        ]
        self._addresses(m, entry)
        self._data(m, entry)
        return m

    def is_refused(self, entry: Any) -> Value:
        """Whether a transfer breaks the rule above."""
        return is_misaligned(entry, self.geometry.bus)

    def rows(self, m: Module, entry: Any, ends: Value, follows: Value) -> Elsewhere:
        """Where rows begin, other than one pitch after the other.

        ``ends``: what is asked for is the last of its row; in a cycle of ``follows`` another row is next.
        """
        return Elsewhere(Const(0), Const(0, MEMORY_BITS), Const(0))

    def _addresses(self, m: Module, entry: Any) -> None:
        """Bursts, row by row, each as late as the pace allows."""
        geometry = self.geometry
        offset, ask = log2(geometry.bus), self.memory.burst
        pace = Pace(m, longest(geometry), self.begin)
        row, pitch = seen(MEMORY_BITS, name="row"), seen(MEMORY_BITS, name="pitch")
        rows_left, last_row = seen(SIZE_BITS, name="rows_left"), seen(name="last_row")
        active, transfer_ends, sent, goes_on = seen(name="active"), Signal(), Signal(), Signal()
        burst = NextBurst(geometry)
        m.d.comb += [
            transfer_ends.eq(burst.ends & last_row),
            ask.valid.eq(active & ~self.unknown & pace.is_due(burst.slack)),
            ask.payload.address.eq(aligned(burst.address, offset)),
            ask.payload.length.eq(burst.more),
            sent.eq(ask.valid & ask.ready),
            goes_on.eq(sent | ~active),
            self.free.eq(~active | (sent & transfer_ends)),
            pace.time.eq(burst.time),
            pace.advance.eq(sent),
        ]
        elsewhere = self.rows(m, entry, burst.ends, sent & burst.ends & ~transfer_ends)
        # What comes next is chosen by what is known early; whether it comes in this cycle, by what is known late. So is
        # whether a transfer is taken: what is offered is kept whenever no other one goes on.
        first, below = Signal(), Signal(MEMORY_BITS)
        m.d.comb += [first.eq(~active | (transfer_ends & ~self.unknown)), below.eq(row + pitch)]
        burst.become(m, goes_on | elsewhere.comes, first, elsewhere, entry, below)
        with m.If(goes_on):
            with m.If(~active | transfer_ends):
                m.d.sync += [row.eq(entry.memory), pitch.eq(entry.pitch)]
                m.d.sync += [rows_left.eq(entry.m), last_row.eq(entry.m == 1)]
            with m.Elif(burst.ends):
                m.d.sync += [row.eq(below), rows_left.eq(rows_left - 1), last_row.eq(rows_left == 2)]
        with m.If(self.taken):
            m.d.sync += active.eq(1)
        with m.Elif(sent & transfer_ends):
            m.d.sync += active.eq(0)
        # what is over a cycle from now is over in its own time, too, so its address is sent if it is taken
        soon = active & ~self.unknown & ask.ready & transfer_ends & pace.is_due(burst.last_slack)
        held = pace.hold(m, active, sent & transfer_ends, soon)
        m.d.comb += [self.instruction.ready.eq(~held), self.held.eq(held | pace.released), self.read.eq(pace.released)]

    def _data(self, m: Module, entry: Any) -> None:
        """Data, in the order of the addresses."""
        geometry = self.geometry
        bus, offset, answer = geometry.bus, log2(geometry.bus), self.memory.beat
        layout = walk_layout(offset)
        job = Signal(layout)
        for name, value in walk_fields(entry, offset).items():
            m.d.comb += job[name].eq(value)
        queue = self.place(m, self.library.make(Queue, layout.size, geometry.outstanding), "jobs")
        m.d.comb += [queue.i.valid.eq(self.taken), queue.i.payload.eq(job)]
        walk = DmaWalk(self, m, geometry, data.View(layout, queue.o.payload), queue.o.ready)
        m.d.comb += [walk.step.eq(answer.valid), answer.ready.eq(1)]
        # One cycle to rotate the bytes, one to write them.
        turned, lanes, window = Signal(8 * bus), Signal(bus), Signal(LOCAL_BITS)
        raw, raw_lanes, raw_window, raw_turn = Signal(8 * bus), Signal(bus), Signal(LOCAL_BITS), Signal(max(offset, 1))
        ends = Signal(timing.LOAD_WRITE)
        rotated = self.place(m, self.library.make(Rotator, bus), "rotator", word=raw, left=raw_turn).o
        m.d.sync += [
            raw.eq(answer.payload.data),
            raw_lanes.eq(Mux(answer.valid, walk.lanes, 0)),
            raw_window.eq(walk.local),
            raw_turn.eq(walk.turn),
            turned.eq(rotated),
            lanes.eq(raw_lanes),
            window.eq(raw_window),
            ends.eq(Cat(answer.valid & walk.ends, ends[:-1])),
        ]
        m.d.comb += [
            self.write.enable.eq(lanes),
            self.write.address.eq(window),
            self.write.data.eq(turned),
            self.done.eq(ends[-1]),
            self.failed.eq(answer.valid & answer.payload.error),
        ]


class StoreQueues(Struct, frozen=True):
    """The queues of a store engine.

    Parameters
    ----------
    beat, pushes
        What goes into the queue of data; when it does: two bits, one per cycle on the way there.
    begin, final, head
        A burst begins; it is the last one of its transfer; its address and its length.
    data, responses, addresses
        The queues.
    """

    beat: Any
    pushes: Signal
    begin: Signal
    final: Signal
    head: Any
    data: Placed
    responses: Placed
    addresses: Placed


class StoreEngine(Circuit):
    """Scratchpad to main memory.

    Members
    -------
    instruction, held, read, done, misaligned, failed
        As for `LoadEngine`; ``done`` in the cycle of the last write response.
    fetch : Out(local_read)
        Scratchpad: the window of the bus that a beat belongs to.
    memory : Out(write_channels)
        Writes of main memory; answers are taken in every cycle.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        bus = geometry.bus
        ports = {
            "instruction": In(stream.Signature(TRANSFER_ENTRY)),
            "held": Out(1),
            "read": Out(1),
            "done": Out(1),
            "fetch": Out(local_read(bus)),
            "memory": Out(write_channels(bus)),
            "misaligned": Out(1),
            "failed": Out(1),
        }
        super().__init__(library, library.name("store"), ports, reset=True)
        self.taken = Signal()

    DEPTH = 8
    """Beats, and addresses of bursts, that wait for the bus."""

    @property
    def responses(self) -> int:
        """Bursts that wait for their answers."""
        return self.geometry.memory_cycles + 16

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry, offset = self.geometry, log2(self.geometry.bus)
        timing.confirm("TRANSFER_START", address=1)
        timing.confirm("STORE_WRITE", scratchpad=SramWrapper.LATENCY, rotation=1, queue=Queue.LATENCY)
        entry = self.instruction.payload
        m.d.comb += self.taken.eq(self.instruction.valid & self.instruction.ready)
        pace, last = Pace(m, longest(geometry)), LastBeat(m, geometry, entry)
        layout = walk_layout(offset)
        job, fresh, active = seen(layout, name="job"), Signal(layout), seen(name="active")
        for name, value in walk_fields(entry, offset).items():
            m.d.comb += fresh[name].eq(value)
        # whether a transfer is taken is known last: what is offered is kept whenever no other one goes on
        keeps = Signal()
        walk = DmaWalk(self, m, geometry, data.View(layout, job.as_value()), Signal(), fresh=(keeps, fresh))
        queues = self._queues(m)
        burst_last = self._reads(m, pace, walk, entry, queues, active, last)
        m.d.comb += keeps.eq(~active | (self.fetch.enable & walk.ends))
        with m.If(keeps):
            m.d.sync += [job.eq(fresh), *last.become]
        with m.If(self.taken):
            m.d.sync += active.eq(1)
        self._data(m, walk, queues, burst_last)
        self._answers(m, entry, queues)
        return m

    def _queues(self, m: Module) -> StoreQueues:
        """What waits for the bus: data, the addresses of bursts, and for each its response."""
        beat, pushes = seen(self.memory.beat.payload.shape(), name="beat"), seen(2, name="pushes")
        begin, final, head = seen(name="begin"), Signal(), seen(BURST, name="head")
        beats = self.place(m, self.library.make(Queue, beat.shape().size, self.DEPTH), "data")
        responses = self.place(m, self.library.make(Queue, 1, self.responses), "responses")
        addresses = self.place(m, self.library.make(Queue, BURST.size, self.DEPTH), "addresses")
        m.d.comb += [
            beats.i.valid.eq(pushes[1]),
            beats.i.payload.eq(beat),
            responses.i.valid.eq(begin),
            responses.i.payload.eq(final),
            responses.o.ready.eq(self.memory.answer.valid),
            addresses.i.valid.eq(begin),
            addresses.i.payload.eq(head),
        ]
        wiring.connect(m, beats.o, wiring.flipped(self.memory.beat))
        wiring.connect(m, addresses.o, wiring.flipped(self.memory.burst))
        return StoreQueues(beat, pushes, begin, final, head, beats, responses, addresses)

    def _reads(
        self, m: Module, pace: Pace, walk: DmaWalk, entry: Any, queues: StoreQueues, active: Signal, last: LastBeat
    ) -> Signal:
        """Reads of the scratchpad, begun when their place in the queue is sure; returns what ends a burst."""
        geometry, fetch = self.geometry, self.fetch
        addresses, responses = queues.addresses, queues.responses
        # places of beats that wait, or that are read, and whether there is one more
        reserved, room = seen(range(self.DEPTH + 1), name="reserved"), seen(name="room", init=1)
        left = queues.data.o.valid & queues.data.o.ready
        with m.If(fetch.enable & ~left):
            m.d.sync += [reserved.eq(reserved + 1), room.eq(reserved < self.DEPTH - 1)]
        with m.Elif(left & ~fetch.enable):
            m.d.sync += [reserved.eq(reserved - 1), room.eq(1)]
        # a burst has begun: beats of it that are left, and whether there is but one
        in_burst, burst_left = seen(name="in_burst"), seen(range(LONGEST_BURST), name="burst_left")
        one_left, opens = seen(name="one_left"), ~in_burst
        possible, due, burst_last = Signal(), self._due(m, pace, walk, last), Signal()
        ahead = BurstAhead(
            m, geometry, entry, active=active, step=fetch.enable, row_ends=walk.row_ends, transfer_ends=walk.ends
        )
        m.d.comb += [
            possible.eq(active & room & (~opens | (addresses.i.ready & responses.i.ready))),
            fetch.enable.eq(possible & due),
            fetch.address.eq(walk.local),
            walk.step.eq(fetch.enable),
            pace.advance.eq(fetch.enable),
            queues.begin.eq(fetch.enable & opens),
            queues.final.eq(ahead.ends & walk.last_row),
            queues.head.address.eq(aligned(ahead.address, log2(geometry.bus))),
            queues.head.length.eq(ahead.more),
            burst_last.eq(Mux(opens, ahead.alone, one_left)),
        ]
        with m.If(fetch.enable):
            m.d.sync += [
                in_burst.eq(~burst_last),
                burst_left.eq(Mux(opens, ahead.more, burst_left - 1)),
                one_left.eq(Mux(opens, ahead.more == 1, burst_left == 2)),
            ]
            with m.If(walk.ends):
                m.d.sync += active.eq(0)
        held = pace.hold(m, active, fetch.enable & walk.ends, fetch.enable & walk.ends)
        m.d.comb += [self.instruction.ready.eq(~held), self.held.eq(held | pace.released), self.read.eq(pace.released)]
        return burst_last

    def _due(self, m: Module, pace: Pace, walk: DmaWalk, last: LastBeat) -> Signal:
        """Whether the present beat is over a cycle from now: a register, found in the cycle before for what may follow.

        A beat that goes out is followed by one within its row or by the last one of a row, of which each has its slack.
        """
        due, one = seen(name="due"), Const(INTERVAL_ONE)
        inner, time = slack_of(1, Const(self.geometry.interval)), pace.time
        m.d.comb += time.eq(Mux(walk.row_ends, last.time, self.geometry.interval))
        is_short = self.instruction.payload.n <= self.geometry.bus
        first = Mux(is_short, last.new, inner) + one - 1 < 0
        stays = Mux(walk.row_ends, pace.is_due(last.slack - one), pace.is_due(inner - one))
        follows = [pace.is_due(time + slack - one) for slack in (inner, last.slack)]
        with m.If(pace.rests):
            m.d.sync += due.eq(first)
        with m.Elif(pace.advance):
            m.d.sync += due.eq(Mux(walk.next_row_ends, follows[1], follows[0]))
        with m.Else():
            m.d.sync += due.eq(stays)
        return due

    def _data(self, m: Module, walk: DmaWalk, queues: StoreQueues, burst_last: Signal) -> None:
        """What has been read, on its way to the queue: one cycle to read, one to rotate."""
        bus, offset = self.geometry.bus, log2(self.geometry.bus)
        beat, pushes = queues.beat, queues.pushes
        lanes, turn, last = Signal(bus), Signal(max(offset, 1)), seen(name="last")
        rotated = self.place(m, self.library.make(Rotator, bus), "rotator", word=self.fetch.data, left=turn).o
        m.d.sync += [
            pushes.eq(Cat(self.fetch.enable, pushes[0])),
            lanes.eq(walk.lanes),
            turn.eq(walk.back),
            last.eq(burst_last),
            beat.data.eq(rotated),
            beat.lanes.eq(lanes),
            beat.last.eq(last),
        ]

    def _answers(self, m: Module, entry: Any, queues: StoreQueues) -> None:
        """What the answers tell."""
        answer, awaited = self.memory.answer, queues.responses.o
        m.d.comb += [
            answer.ready.eq(1),
            self.done.eq(answer.valid & awaited.valid & awaited.payload),
            self.failed.eq(answer.valid & answer.payload.error),
            self.misaligned.eq(self.taken & is_misaligned(entry, self.geometry.bus)),
        ]


def is_misaligned(entry: Any, bus: int) -> Value:
    """A long row must begin at a window of the bus on both sides, a short one must not leave its window."""
    offset = log2(bus)
    if not offset:
        return (entry.n == 0) | (entry.m == 0)
    many = entry.m > 1
    starts = entry.memory[:offset] | entry.local[:offset]
    steps = Mux(many, entry.pitch[:offset] | entry.local_pitch[:offset], 0)
    within = (entry.memory[:offset] + entry.n <= bus) & (entry.local[:offset] + entry.n <= bus)
    return (entry.n == 0) | (entry.m == 0) | Mux(entry.n > bus, (starts | steps).any(), ~within)


def walk_layout(offset: int) -> data.StructLayout:
    """What a walk over the local side of a transfer needs.

    ``place`` and ``pitch`` are memory addresses in a window; ``short``: a row is one beat; ``once``: there is one row.
    """
    return data.StructLayout(
        {
            "m": SIZE_BITS,
            "n": SIZE_BITS,
            "local": LOCAL_BITS,
            "local_pitch": LOCAL_BITS,
            "place": max(offset, 1),
            "pitch": max(offset, 1),
            "short": 1,
            "once": 1,
        }
    )


def walk_fields(entry: Any, offset: int) -> dict[str, Value]:
    """Fields of `walk_layout` for a transfer."""
    return {
        "m": entry.m,
        "n": entry.n,
        "local": entry.local,
        "local_pitch": entry.local_pitch,
        "place": entry.memory[:offset] if offset else 0,
        "pitch": entry.pitch[:offset] if offset else 0,
        "short": entry.n <= 1 << offset,
        "once": entry.m == 1,
    }


class DmaWalk:
    """Beat by beat over a transfer's rows on the local side.

    Present beat: ``local`` byte address of its window, ``lanes`` its bytes in the window of the scratchpad, or, of a
    store, in that of the bus, ``turn`` the rotation from bus to scratchpad, ``back`` the opposite one, ``row_ends``,
    ``last_row`` and ``ends``, of which registers tell; ``next_row_ends`` of the beat that follows. A job that is
    ``fresh``, of a store, is there a cycle before it is in front, when the first of its two says so.
    """

    def __init__(
        self,
        owner: Circuit,
        m: Module,
        geometry: Geometry,
        job: Any,
        take: Signal,
        *,
        fresh: tuple[Signal, Any] | None = None,
    ) -> None:
        bus, offset = geometry.bus, log2(geometry.bus)
        self.step = Signal(name="walk_step")
        row, address, left = Signal(LOCAL_BITS), Signal(LOCAL_BITS), seen(SIZE_BITS, name="walk_left")
        rows, place = seen(SIZE_BITS, name="walk_rows_after"), Signal(max(offset, 1))
        row_over, last_row = seen(name="walk_row_over"), seen(name="walk_last_row")
        states = {"row": row, "address": address, "left": left, "rows": rows, "place": place}
        states |= {"row_over": row_over, "last_row": last_row}

        def begin(of: Any) -> dict[str, Value]:
            local = dict.fromkeys(("row", "address"), of.local)
            return local | {"left": of.n, "rows": of.m, "place": of.place, "row_over": of.short, "last_row": of.once}

        now: dict[str, Any] = states
        if fresh is None:
            inside = seen(name="walk_inside")
            now = {name: Mux(inside, states[name], first) for name, first in begin(job).items()}
        self.row_ends, self.ends = Signal(name="walk_row_ends"), Signal(name="walk_ends")
        self.last_row, self.next_row_ends = now["last_row"], Signal(name="walk_next_row_ends")
        self.local = Signal(LOCAL_BITS, name="walk_local")
        lanes = owner.library.make(ByteMask, bus)
        self.turn, self.back = Signal(max(offset, 1), name="walk_turn"), Signal(max(offset, 1), name="walk_back")
        inner = Signal(max(offset, 1), name="walk_inner")
        count = Signal(range(bus + 1), name="walk_count")
        first = inner if fresh is None else now["place"]
        self.lanes = owner.place(m, lanes, "lanes", first=first, count=count).o
        m.d.comb += [
            self.row_ends.eq(now["row_over"]),
            self.ends.eq(self.row_ends & now["last_row"]),
            inner.eq(now["address"][:offset] if offset else 0),
            count.eq(Mux(self.row_ends, now["left"], bus)),
            self.local.eq(aligned(now["address"], offset)),
            self.turn.eq(inner - now["place"]),
            self.back.eq(now["place"] - inner),
            take.eq(self.step & self.ends),
            self.next_row_ends.eq(Mux(self.row_ends, job.short, now["left"] <= 2 * bus)),
        ]
        with m.If(self.step):
            if fresh is None:
                m.d.sync += inside.eq(~self.ends)
            m.d.sync += [
                row.eq(now["row"]),
                rows.eq(now["rows"]),
                place.eq(now["place"]),
                address.eq(now["address"] + bus),
                left.eq(now["left"] - bus),
            ]
            with m.If(self.row_ends):
                m.d.sync += [
                    row.eq(now["row"] + job.local_pitch),
                    address.eq(now["row"] + job.local_pitch),
                    left.eq(job.n),
                    rows.eq(now["rows"] - 1),
                    place.eq(now["place"] + job.pitch),
                ]
            m.d.sync += [row_over.eq(self.next_row_ends), last_row.eq(now["rows"] == Mux(self.row_ends, 2, 1))]
        if fresh is not None:
            keeps, offered = fresh
            with m.If(keeps):
                m.d.sync += [states[name].eq(first) for name, first in begin(offered).items()]
