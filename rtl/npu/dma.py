"""The DMA: strided rows between main memory (AXI4) and the scratchpad, at the pace of the tile's share of bandwidth.

A transfer leaves its queue in cycle I. Counting t = 0 in cycle I + 1, its c beats take D = ceil(c * interval) cycles of
the port; the next transfer may leave its queue in cycle I + D. A burst's address is sent so late that its last beat
falls into the last cycle that its share of D allows, so the time of the last beat does not depend on how rows are cut
into bursts. The counterpart is ``sim.timing.units``.

Rows are aligned: a row that is longer than the bus begins at a multiple of the bus in memory and in the scratchpad, a
shorter one lies within one such window of both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from siliconloom.rtl.npu.bytes import ByteMask, Rotator
from siliconloom.rtl.npu.entries import TRANSFER_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, LONGEST_BURST, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.interfaces import BURST, local_read, local_write, read_channels, write_channels
from siliconloom.rtl.npu.pace import Pace, counted, longest, slack_of


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

    def rows(self, m: Module, entry: Any, burst: NextBurst, follows: Value) -> None:
        """Decide when rows begin, and where, other than one pitch after the other.

        ``burst`` is what is asked for next; in a cycle of ``follows`` it becomes the first of another row.
        """

    def _addresses(self, m: Module, entry: Any) -> None:
        """Bursts, row by row, each as late as the pace allows."""
        geometry = self.geometry
        bus, offset, ask = geometry.bus, log2(geometry.bus), self.memory.burst
        pace = Pace(m, longest(geometry), self.begin)
        row, pitch = seen(MEMORY_BITS, name="row"), seen(MEMORY_BITS, name="pitch")
        rows_left = seen(SIZE_BITS, name="rows_left")
        active, transfer_ends, sent = seen(name="active"), Signal(), Signal()
        burst = NextBurst(geometry)
        whole = Signal(SIZE_BITS)
        m.d.comb += [
            whole.eq((entry.n + (bus - 1)) >> offset),
            transfer_ends.eq(burst.ends & (rows_left == 1)),
            ask.valid.eq(active & ~self.unknown & pace.is_due(burst.slack)),
            ask.payload.address.eq(aligned(burst.address, offset)),
            ask.payload.length.eq(burst.length - 1),
            sent.eq(ask.valid & ask.ready),
            self.free.eq(~active | (sent & transfer_ends)),
            pace.time.eq(burst.time),
            pace.advance.eq(sent),
        ]
        within = burst.after(m, burst.address + burst.length * bus, burst.left - burst.length, burst.width)
        below = burst.after(m, row + pitch, burst.width, burst.width)
        first = burst.after(m, entry.memory, whole, whole)
        # whether a transfer is taken is known last: what is offered is kept whenever no other one goes on
        with m.If(sent | ~active):
            with m.If(~active | transfer_ends):
                m.d.sync += [*first, row.eq(entry.memory), pitch.eq(entry.pitch), rows_left.eq(entry.m)]
            with m.Elif(burst.ends):
                m.d.sync += [*below, row.eq(row + pitch), rows_left.eq(rows_left - 1)]
            with m.Else():
                m.d.sync += within
        with m.If(self.taken):
            m.d.sync += active.eq(1)
        with m.Elif(sent & transfer_ends):
            m.d.sync += active.eq(0)
        held = pace.hold(m, active, sent & transfer_ends, pace.is_due(burst.last_slack))
        m.d.comb += [self.instruction.ready.eq(~held), self.held.eq(held | pace.released), self.read.eq(pace.released)]
        self.rows(m, entry, burst, sent & burst.ends & ~transfer_ends)

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


class Bursts(NamedTuple):
    """Where a store is in memory: address of the next beat, of the row, from row to row; beats left of a burst.

    ``inside``: a burst has begun; ``length``: beats of one that begins here.
    """

    address: Signal
    row: Signal
    pitch: Signal
    left: Signal
    inside: Signal
    length: Signal


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
        walk = DmaWalk(self, m, geometry, data.View(layout, job.as_value()), Signal(), in_memory=True)
        address, row, pitch = (seen(MEMORY_BITS, name=name) for name in ("address", "row", "pitch"))
        burst_left, in_burst = seen(range(LONGEST_BURST + 1), name="burst_left"), seen(name="in_burst")
        bursts = Bursts(address, row, pitch, burst_left, in_burst, next_burst(m, geometry, walk.beats, address))
        queues = self._queues(m)
        burst_last = self._reads(m, pace, walk, bursts, queues, active, last)
        # whether a transfer is taken is known last: what is offered is kept whenever no other one goes on
        with m.If(~active | (self.fetch.enable & walk.ends)):
            m.d.sync += [job.eq(fresh), row.eq(entry.memory), address.eq(entry.memory), pitch.eq(entry.pitch)]
            m.d.sync += last.become
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
        self, m: Module, pace: Pace, walk: DmaWalk, bursts: Bursts, queues: StoreQueues, active: Signal, last: LastBeat
    ) -> Signal:
        """Reads of the scratchpad, begun when their place in the queue is sure; returns what ends a burst."""
        geometry, fetch = self.geometry, self.fetch
        address, row, pitch, burst_left, in_burst, burst = bursts
        addresses, responses = queues.addresses, queues.responses
        # places of beats that wait, or that are read, and whether there is one more
        reserved, room = seen(range(self.DEPTH + 1), name="reserved"), seen(name="room", init=1)
        left = queues.data.o.valid & queues.data.o.ready
        with m.If(fetch.enable & ~left):
            m.d.sync += [reserved.eq(reserved + 1), room.eq(reserved < self.DEPTH - 1)]
        with m.Elif(left & ~fetch.enable):
            m.d.sync += [reserved.eq(reserved - 1), room.eq(1)]
        opens = ~in_burst
        possible, due = Signal(), self._due(m, pace, walk, last)
        m.d.comb += [
            possible.eq(active & room & (~opens | (addresses.i.ready & responses.i.ready))),
            fetch.enable.eq(possible & due),
            fetch.address.eq(walk.local),
            walk.step.eq(fetch.enable),
            pace.advance.eq(fetch.enable),
            queues.begin.eq(fetch.enable & opens),
            queues.final.eq((burst == walk.beats) & (walk.rows_left == 1)),
            queues.head.address.eq(aligned(address, log2(geometry.bus))),
            queues.head.length.eq(burst - 1),
        ]
        burst_last = Signal()
        m.d.comb += burst_last.eq(Mux(opens, burst == 1, burst_left == 1))
        with m.If(fetch.enable):
            m.d.sync += [
                in_burst.eq(~burst_last),
                burst_left.eq(Mux(opens, burst - 1, burst_left - 1)),
                address.eq(address + geometry.bus),
            ]
            with m.If(walk.row_ends):
                m.d.sync += [row.eq(row + pitch), address.eq(row + pitch)]
            with m.If(walk.ends):
                m.d.sync += active.eq(0)
        held = pace.hold(m, active, fetch.enable & walk.ends, due=Const(1))
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


class NextBurst:
    """The burst that a load asks for next, in registers: nothing has to be computed before its time is looked at.

    ``address`` of its first byte, ``length`` in beats, ``ends``: it is the last of its row; beats of a row (``width``),
    those from here to the row's end (``left``); the ``time`` of those that the memory counts, its ``slack`` within as
    many cycles as it has beats, and that within one (``last_slack``), see `slack_of`.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.address = seen(MEMORY_BITS, name="burst_address")
        self.length = seen(range(LONGEST_BURST + 1), name="burst_length")
        self.width, self.left = seen(SIZE_BITS, name="burst_width"), seen(SIZE_BITS, name="burst_left")
        self.ends = seen(name="burst_ends")
        self.time = Signal(range(longest(geometry) + 1), name="burst_time")
        self.slack = Signal.like(slack_of(self.length, self.time), name="burst_slack")
        self.last_slack = Signal.like(slack_of(1, self.time), name="burst_last_slack")

    def after(self, m: Module, address: Value, left: Value, width: Value) -> list[Any]:
        """What makes this the burst at an address, where so many beats are left of a row of ``width``."""
        beats, begin = Signal(SIZE_BITS, name="beats_left"), Signal(MEMORY_BITS, name="begin")
        ends, time = Signal(name="burst_ends"), Signal.like(self.time, name="time_after")
        m.d.comb += [beats.eq(left), begin.eq(address)]
        length = next_burst(m, self.geometry, beats, begin)
        m.d.comb += [
            ends.eq(length == beats),
            time.eq(counted(self.geometry, length, ends, width) * self.geometry.interval),
        ]
        return [
            self.address.eq(begin),
            self.length.eq(length),
            self.width.eq(width),
            self.left.eq(beats),
            self.ends.eq(ends),
            self.time.eq(time),
            self.slack.eq(slack_of(length, time)),
            self.last_slack.eq(slack_of(1, time)),
        ]

    def become(self, m: Module, when: Value, address: Value, left: Value, width: Value) -> None:
        """After a cycle of ``when``, which comes late, be the burst that `after` tells, whatever was told before."""
        following = self.after(m, address, left, width)
        with m.If(when):
            m.d.sync += following


class LastBeat:
    """The last beat of a store's rows, for which the memory may have to fill an access: its time and its slack.

    ``new``: the slack of a transfer that is offered.
    """

    def __init__(self, m: Module, geometry: Geometry, entry: Any) -> None:
        self.time = Signal(range((1 + geometry.access // geometry.bus) * geometry.interval), name="last_time")
        self.slack = seen(slack_of(1, self.time).shape(), name="last_slack")
        time, self.new = Signal.like(self.time, name="new_time"), Signal.like(self.slack, name="new_slack")
        filled = counted(geometry, Const(1), Const(1), (entry.n + (geometry.bus - 1)) >> log2(geometry.bus))
        m.d.comb += [time.eq(filled * geometry.interval), self.new.eq(slack_of(1, time))]
        self.become = [self.time.eq(time), self.slack.eq(self.new)]


def next_burst(m: Module, geometry: Geometry, beats: Value, address: Value) -> Signal:
    """Beats of the burst at ``address``: what is left of the row, or of the page, or the longest there is."""
    bus, offset = geometry.bus, log2(geometry.bus)
    limit = min(LONGEST_BURST, geometry.page // bus)
    to_page, burst = Signal(range(geometry.page // bus + 1)), Signal(range(LONGEST_BURST + 1))
    m.d.comb += [to_page.eq((geometry.page >> offset) - address[offset : log2(geometry.page)]), burst.eq(limit)]
    with m.If((beats <= to_page) & (beats < limit)):
        m.d.comb += burst.eq(beats)
    with m.Elif(to_page < limit):
        m.d.comb += burst.eq(to_page)
    return burst


def aligned(address: Value, offset: int) -> Value:
    """The address of the window of 2^``offset`` bytes that ``address`` lies in."""
    return Cat(Const(0, offset), address[offset:]) if offset else address


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

    Present beat: ``local`` byte address of its window, ``lanes`` its bytes in the window of the scratchpad, or
    (``in_memory``) in that of the bus, ``turn`` the rotation from bus to scratchpad, ``back`` the opposite one,
    ``beats`` left in the row, ``rows_left``, ``row_ends`` and ``ends``, of which registers tell; ``next_row_ends`` of
    the beat that follows.
    """

    def __init__(
        self, owner: Circuit, m: Module, geometry: Geometry, job: Any, take: Signal, *, in_memory: bool = False
    ) -> None:
        bus, offset = geometry.bus, log2(geometry.bus)
        self.step = Signal(name="walk_step")
        self.inside = seen(name="walk_inside")
        row, address, left = Signal(LOCAL_BITS), Signal(LOCAL_BITS), seen(SIZE_BITS, name="walk_left")
        rows, place = seen(SIZE_BITS, name="walk_rows_after"), Signal(max(offset, 1))
        now = {
            "row": Mux(self.inside, row, job.local),
            "address": Mux(self.inside, address, job.local),
            "left": Mux(self.inside, left, job.n),
            "rows": Mux(self.inside, rows, job.m),
            "place": Mux(self.inside, place, job.place),
        }
        self.width = job.n
        self.rows_left = Signal(SIZE_BITS, name="walk_rows")
        self.beats = Signal(SIZE_BITS, name="walk_beats")
        self.row_ends, self.ends = Signal(name="walk_row_ends"), Signal(name="walk_ends")
        self.next_row_ends = Signal(name="walk_next_row_ends")
        self.local = Signal(LOCAL_BITS, name="walk_local")
        row_over, last_row = seen(name="walk_row_over"), seen(name="walk_last_row")
        lanes = owner.library.make(ByteMask, bus)
        self.turn, self.back = Signal(max(offset, 1), name="walk_turn"), Signal(max(offset, 1), name="walk_back")
        inner = Signal(max(offset, 1), name="walk_inner")
        count = Signal(range(bus + 1), name="walk_count")
        self.lanes = owner.place(m, lanes, "lanes", first=now["place"] if in_memory else inner, count=count).o
        m.d.comb += [
            self.rows_left.eq(now["rows"]),
            self.beats.eq((now["left"] + (bus - 1)) >> offset),
            self.row_ends.eq(Mux(self.inside, row_over, job.short)),
            self.ends.eq(self.row_ends & Mux(self.inside, last_row, job.once)),
            inner.eq(now["address"][:offset] if offset else 0),
            count.eq(Mux(self.row_ends, now["left"], bus)),
            self.local.eq(aligned(now["address"], offset)),
            self.turn.eq(inner - now["place"]),
            self.back.eq(now["place"] - inner),
            take.eq(self.step & self.ends),
            self.next_row_ends.eq(Mux(self.row_ends, job.short, now["left"] <= 2 * bus)),
        ]
        with m.If(self.step):
            m.d.sync += [
                self.inside.eq(~self.ends),
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
