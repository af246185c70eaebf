"""The DMA: strided rows between main memory (AXI4) and the scratchpad, at the pace of the tile's share of bandwidth.

A transfer leaves its queue in cycle I. Counting t = 0 in cycle I + 1, its c beats take D = ceil(c * interval) cycles of
the port; the next transfer may leave its queue in cycle I + D. A burst's address is sent so late that its last beat
falls into the last cycle that its share of D allows, so the time of the last beat does not depend on how rows are cut
into bursts. The counterpart is ``sim.timing.units``.

Rows are aligned: a row that is longer than the bus begins at a multiple of the bus in memory and in the scratchpad, a
shorter one lies within one such window of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from siliconloom.arch import timing
from siliconloom.arch.description import INTERVAL_ONE
from siliconloom.rtl.cells.queue import Queue
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.npu.bytes import ByteMask, Rotator
from siliconloom.rtl.npu.entries import TRANSFER_ENTRY
from siliconloom.rtl.npu.geometry import LOCAL_BITS, LONGEST_BURST, MEMORY_BITS, SIZE_BITS, Geometry, log2

FRACTION = INTERVAL_ONE.bit_length() - 1
TIME_BITS = 48


def ceil_cycles(amount: Value) -> Value:
    """Whole cycles that cover a fixed-point amount of them."""
    return (amount + (INTERVAL_ONE - 1))[FRACTION:]


class LoadEngine(Circuit):
    """Main memory to scratchpad: one walk over the rows sends addresses, a second one places the data.

    Members
    -------
    issue, entry : In
        Take a transfer; only while ``free``.
    free : Out(1)
        A transfer may be taken now.
    held : Out(1)
        The transfer has the port.
    read : Out(1)
        Pulse in the last cycle in which the port is held.
    done : Out(1)
        Pulse in the cycle in which the last bytes are written.
    ar_*, r_* :
        AXI4 read address and data; data is taken in every cycle.
    write, write_address, write_data
        Scratchpad: enables per byte of the bus, byte address of the window, data.
    misaligned, failed : Out(1)
        Pulses: a row breaks the rule above; a response was an error.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        bus = geometry.bus
        ports = {
            "issue": In(1),
            "entry": In(TRANSFER_ENTRY.size),
            "free": Out(1),
            "held": Out(1),
            "read": Out(1),
            "done": Out(1),
            "ar_valid": Out(1),
            "ar_ready": In(1),
            "ar_addr": Out(MEMORY_BITS),
            "ar_len": Out(8),
            "r_valid": In(1),
            "r_data": In(8 * bus),
            "r_error": In(1),
            "write": Out(bus),
            "write_address": Out(LOCAL_BITS),
            "write_data": Out(8 * bus),
            "misaligned": Out(1),
            "failed": Out(1),
        }
        super().__init__(library, library.name("load"), ports, reset=True)

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        timing.confirm("TRANSFER_START", address=1)
        timing.confirm("LOAD_WRITE", data=1, rotation=1)
        entry = data.View(TRANSFER_ENTRY, self.entry)
        self._addresses(m, entry)
        m.d.comb += self.misaligned.eq(self.issue & is_misaligned(entry, self.geometry.bus))
        self._data(m, entry)
        return m

    def _addresses(self, m: Module, entry: Any) -> None:
        """Bursts, row by row, each as late as the pace allows."""
        geometry = self.geometry
        bus, offset = geometry.bus, log2(geometry.bus)
        pace = Pace(m, geometry, self.issue)
        row, pitch, bytes_left = Signal(MEMORY_BITS), Signal(MEMORY_BITS), Signal(SIZE_BITS)
        width, rows_left, address = Signal(SIZE_BITS), Signal(SIZE_BITS), Signal(MEMORY_BITS)
        beats, active = Signal(SIZE_BITS), Signal()
        m.d.comb += beats.eq((bytes_left + (bus - 1)) >> offset)
        burst = next_burst(m, geometry, beats, address)
        row_ends, transfer_ends, sent = Signal(), Signal(), Signal()
        m.d.comb += [
            row_ends.eq(burst == beats),
            transfer_ends.eq(row_ends & (rows_left == 1)),
            pace.beats.eq(burst),
            self.ar_valid.eq(active & (pace.time + burst >= pace.due)),
            self.ar_addr.eq(aligned(address, offset)),
            self.ar_len.eq(burst - 1),
            sent.eq(self.ar_valid & self.ar_ready),
            pace.advance.eq(sent),
        ]
        with m.If(sent):
            m.d.sync += [address.eq(address + burst * bus), bytes_left.eq(bytes_left - burst * bus)]
            with m.If(row_ends):
                m.d.sync += [
                    rows_left.eq(rows_left - 1),
                    row.eq(row + pitch),
                    address.eq(row + pitch),
                    bytes_left.eq(width),
                ]
            with m.If(transfer_ends):
                m.d.sync += active.eq(0)
        held = pace.hold(m, active, sent & transfer_ends)
        m.d.comb += [self.free.eq(~held), self.held.eq(held | pace.released), self.read.eq(pace.released)]
        with m.If(self.issue):
            m.d.sync += [
                active.eq(1),
                row.eq(entry.memory),
                address.eq(entry.memory),
                pitch.eq(entry.pitch),
                bytes_left.eq(entry.n),
                width.eq(entry.n),
                rows_left.eq(entry.m),
            ]

    def _data(self, m: Module, entry: Any) -> None:
        """Data, in the order of the addresses."""
        geometry = self.geometry
        bus, offset = geometry.bus, log2(geometry.bus)
        layout = walk_layout(offset)
        job = Signal(layout)
        for name, value in walk_fields(entry, offset).items():
            m.d.comb += job[name].eq(value)
        queue = self.place(
            m,
            self.library.make(Queue, layout.size, geometry.outstanding),
            "jobs",
            i_valid=self.issue,
            i_payload=job.as_value(),
            o_ready=(take := Signal()),
        )
        walk = DmaWalk(self, m, geometry, data.View(layout, queue["o_payload"]), take)
        m.d.comb += walk.step.eq(self.r_valid)
        # One cycle to rotate the bytes, one to write them.
        turned, lanes, window = Signal(8 * bus), Signal(bus), Signal(LOCAL_BITS)
        raw, raw_lanes, raw_window, raw_turn = Signal(8 * bus), Signal(bus), Signal(LOCAL_BITS), Signal(max(offset, 1))
        ends = Signal(timing.LOAD_WRITE)
        rotated = self.place(m, self.library.make(Rotator, bus), "rotator", word=raw, left=raw_turn)["o"]
        m.d.sync += [
            raw.eq(self.r_data),
            raw_lanes.eq(Mux(self.r_valid, walk.lanes, 0)),
            raw_window.eq(walk.local),
            raw_turn.eq(walk.turn),
            turned.eq(rotated),
            lanes.eq(raw_lanes),
            window.eq(raw_window),
            ends.eq(Cat(self.r_valid & walk.ends, ends[:-1])),
        ]
        m.d.comb += [
            self.write.eq(lanes),
            self.write_address.eq(window),
            self.write_data.eq(turned),
            self.done.eq(ends[-1]),
            self.failed.eq(self.r_valid & self.r_error),
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


@dataclass(frozen=True)
class StoreQueues:
    """The queues of a store engine.

    Parameters
    ----------
    beat, pushes
        What goes into the queue of data; when it does: two bits, one per cycle on the way there.
    begin, final, head
        A burst begins; it is the last one of its transfer; its address and its length.
    data, responses, addresses
        Outputs of the queues.
    """

    beat: Any
    pushes: Signal
    begin: Signal
    final: Signal
    head: Any
    data: dict[str, Signal]
    responses: dict[str, Signal]
    addresses: dict[str, Signal]


class StoreEngine(Circuit):
    """Scratchpad to main memory.

    Members
    -------
    issue, entry, free, held, read, done
        As for `LoadEngine`; ``done`` in the cycle of the last write response.
    fetch, fetch_address, fetch_data
        Scratchpad read: enable, byte address of the window, data one cycle later.
    aw_*, w_*, b_* :
        AXI4 write address, data and response; responses are taken in every cycle.
    """

    def __init__(self, library: Library, geometry: Geometry) -> None:
        self.geometry = geometry
        bus = geometry.bus
        ports = {
            "issue": In(1),
            "entry": In(TRANSFER_ENTRY.size),
            "free": Out(1),
            "held": Out(1),
            "read": Out(1),
            "done": Out(1),
            "fetch": Out(1),
            "fetch_address": Out(LOCAL_BITS),
            "fetch_data": In(8 * bus),
            "aw_valid": Out(1),
            "aw_ready": In(1),
            "aw_addr": Out(MEMORY_BITS),
            "aw_len": Out(8),
            "w_valid": Out(1),
            "w_ready": In(1),
            "w_data": Out(8 * bus),
            "w_strb": Out(bus),
            "w_last": Out(1),
            "b_valid": In(1),
            "b_error": In(1),
            "misaligned": Out(1),
            "failed": Out(1),
        }
        super().__init__(library, library.name("store"), ports, reset=True)

    DEPTH = 8
    """Beats, and addresses of bursts, that wait for the bus."""

    def elaborate(self, platform: object) -> Module:
        m = self.module()
        geometry, offset = self.geometry, log2(self.geometry.bus)
        timing.confirm("TRANSFER_START", address=1)
        timing.confirm("STORE_WRITE", scratchpad=SramWrapper.LATENCY, rotation=1, queue=Queue.LATENCY)
        entry = data.View(TRANSFER_ENTRY, self.entry)
        pace = Pace(m, geometry, self.issue)
        layout = walk_layout(offset)
        job, fresh, active = Signal(layout), Signal(layout), Signal()
        for name, value in walk_fields(entry, offset).items():
            m.d.comb += fresh[name].eq(value)
        walk = DmaWalk(self, m, geometry, data.View(layout, job.as_value()), Signal(), in_memory=True)
        address, row, pitch = Signal(MEMORY_BITS), Signal(MEMORY_BITS), Signal(MEMORY_BITS)
        burst_left, in_burst = Signal(range(LONGEST_BURST + 1)), Signal()
        bursts = Bursts(address, row, pitch, burst_left, in_burst, next_burst(m, geometry, walk.beats, address))
        queues = self._queues(m)
        burst_last = self._reads(m, pace, walk, bursts, queues, active)
        with m.If(self.issue):
            m.d.sync += [
                job.eq(fresh),
                active.eq(1),
                in_burst.eq(0),
                row.eq(entry.memory),
                address.eq(entry.memory),
                pitch.eq(entry.pitch),
            ]
            walk.restart(m)
        self._data(m, walk, queues, burst_last)
        self._channels(m, entry, queues)
        return m

    def _queues(self, m: Module) -> StoreQueues:
        """What waits for the bus: data, the addresses of bursts, and for each its response."""
        beat_layout = data.StructLayout({"data": 8 * self.geometry.bus, "lanes": self.geometry.bus, "last": 1})
        beat = Signal(beat_layout)
        pushes = Signal(2)
        data_queue = self.place(
            m,
            self.library.make(Queue, beat_layout.size, self.DEPTH),
            "data",
            i_valid=pushes[1],
            i_payload=beat.as_value(),
            o_ready=self.w_ready,
        )
        response_queue = self.place(
            m,
            self.library.make(Queue, 1, self.geometry.memory_cycles + 16),
            "responses",
            i_valid=(begin := Signal()),
            i_payload=(final := Signal()),
            o_ready=self.b_valid,
        )
        address_layout = data.StructLayout({"address": MEMORY_BITS, "beats": 8})
        head = Signal(address_layout)
        address_queue = self.place(
            m,
            self.library.make(Queue, address_layout.size, self.DEPTH),
            "addresses",
            i_valid=begin,
            i_payload=head.as_value(),
            o_ready=self.aw_ready,
        )
        return StoreQueues(beat, pushes, begin, final, head, data_queue, response_queue, address_queue)

    def _reads(
        self, m: Module, pace: Pace, walk: DmaWalk, bursts: Bursts, queues: StoreQueues, active: Signal
    ) -> Signal:
        """Reads of the scratchpad, begun when their place in the queue is sure; returns what ends a burst."""
        geometry = self.geometry
        address, row, pitch, burst_left, in_burst, burst = bursts
        pushes, addresses, responses = queues.pushes, queues.addresses, queues.responses
        room = (queues.data["level"] + pushes[0] + pushes[1]) < self.DEPTH
        opens = ~in_burst
        possible = Signal()
        m.d.comb += [
            pace.beats.eq(1),
            possible.eq(active & room & (~opens | (addresses["i_ready"] & responses["i_ready"]))),
            self.fetch.eq(possible & (pace.time + 1 >= pace.due)),
            self.fetch_address.eq(walk.local),
            walk.step.eq(self.fetch),
            pace.advance.eq(self.fetch),
            queues.begin.eq(self.fetch & opens),
            queues.final.eq((burst == walk.beats) & (walk.rows_left == 1)),
            queues.head.address.eq(aligned(address, log2(geometry.bus))),
            queues.head.beats.eq(burst - 1),
        ]
        burst_last = Signal()
        m.d.comb += burst_last.eq(Mux(opens, burst == 1, burst_left == 1))
        with m.If(self.fetch):
            m.d.sync += [
                in_burst.eq(~burst_last),
                burst_left.eq(Mux(opens, burst - 1, burst_left - 1)),
                address.eq(address + geometry.bus),
            ]
            with m.If(walk.row_ends):
                m.d.sync += [row.eq(row + pitch), address.eq(row + pitch)]
            with m.If(walk.ends):
                m.d.sync += active.eq(0)
        held = pace.hold(m, active, self.fetch & walk.ends)
        m.d.comb += [self.free.eq(~held), self.held.eq(held | pace.released), self.read.eq(pace.released)]
        return burst_last

    def _data(self, m: Module, walk: DmaWalk, queues: StoreQueues, burst_last: Signal) -> None:
        """What has been read, on its way to the queue: one cycle to read, one to rotate."""
        bus, offset = self.geometry.bus, log2(self.geometry.bus)
        beat, pushes = queues.beat, queues.pushes
        lanes, turn, last = Signal(bus), Signal(max(offset, 1)), Signal()
        rotated = self.place(m, self.library.make(Rotator, bus), "rotator", word=self.fetch_data, left=turn)["o"]
        m.d.sync += [
            pushes.eq(Cat(self.fetch, pushes[0])),
            lanes.eq(walk.lanes),
            turn.eq(walk.back),
            last.eq(burst_last),
            beat.data.eq(rotated),
            beat.lanes.eq(lanes),
            beat.last.eq(last),
        ]

    def _channels(self, m: Module, entry: Any, queues: StoreQueues) -> None:
        """The AXI4 channels: the fronts of the queues, and what responses tell."""
        front = data.View(queues.beat.shape(), queues.data["o_payload"])
        address_front = data.View(queues.head.shape(), queues.addresses["o_payload"])
        m.d.comb += [
            self.w_valid.eq(queues.data["o_valid"]),
            self.w_data.eq(front.data),
            self.w_strb.eq(front.lanes),
            self.w_last.eq(front.last),
            self.aw_valid.eq(queues.addresses["o_valid"]),
            self.aw_addr.eq(address_front.address),
            self.aw_len.eq(address_front.beats),
            self.done.eq(self.b_valid & queues.responses["o_valid"] & queues.responses["o_payload"]),
            self.failed.eq(self.b_valid & self.b_error),
            self.misaligned.eq(self.issue & is_misaligned(entry, self.geometry.bus)),
        ]


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


class Pace:
    """The regulator: time since a transfer began, and the time by which its beats so far may have passed.

    ``due`` is the whole number of cycles that the beats up to and including the ``beats`` next ones take.
    """

    def __init__(self, m: Module, geometry: Geometry, start: Signal) -> None:
        self.beats = Signal(range(LONGEST_BURST + 1), name="pace_beats")
        self.advance = Signal(name="pace_advance")
        self.time = Signal(TIME_BITS, name="pace_time")
        self.due = Signal(TIME_BITS, name="pace_due")
        self.released = Signal(name="pace_released")
        passed, following = Signal(TIME_BITS + FRACTION), Signal(TIME_BITS + FRACTION)
        m.d.comb += [following.eq(passed + self.beats * geometry.interval), self.due.eq(ceil_cycles(following))]
        m.d.sync += self.time.eq(self.time + 1)
        with m.If(self.advance):
            m.d.sync += passed.eq(following)
        with m.If(start):
            m.d.sync += [self.time.eq(0), passed.eq(0)]
        self.start = start

    def hold(self, m: Module, active: Signal, final: Signal) -> Signal:
        """Whether the port is held in this cycle: until the cycle before the last one of all beats' time."""
        ending, end = Signal(name="pace_ending"), Signal(TIME_BITS, name="pace_end")
        over = Signal(name="pace_over")
        m.d.comb += [
            over.eq((final & (self.time + 1 >= self.due)) | (ending & (self.time + 1 >= end))),
            self.released.eq(over),
        ]
        with m.If(final & ~over):
            m.d.sync += [ending.eq(1), end.eq(self.due)]
        with m.Elif(over):
            m.d.sync += ending.eq(0)
        held = Signal(name="pace_held")
        m.d.comb += held.eq((active | ending) & ~over)
        return held


def is_misaligned(entry: Any, bus: int) -> Value:
    """A long row must begin at a window of the bus on both sides, a short one must not leave its window."""
    offset = log2(bus)
    if not offset:
        return Const(0, 1)
    many = entry.m > 1
    starts = entry.memory[:offset] | entry.local[:offset]
    steps = Mux(many, entry.pitch[:offset] | entry.local_pitch[:offset], 0)
    within = (entry.memory[:offset] + entry.n <= bus) & (entry.local[:offset] + entry.n <= bus)
    return (entry.n == 0) | (entry.m == 0) | Mux(entry.n > bus, (starts | steps).any(), ~within)


def walk_layout(offset: int) -> data.StructLayout:
    """What a walk over the local side of a transfer needs; ``place`` and ``pitch`` are memory addresses in a window."""
    return data.StructLayout(
        {
            "m": SIZE_BITS,
            "n": SIZE_BITS,
            "local": LOCAL_BITS,
            "local_pitch": LOCAL_BITS,
            "place": max(offset, 1),
            "pitch": max(offset, 1),
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
    }


class DmaWalk:
    """Beat by beat over a transfer's rows on the local side.

    Present beat: ``local`` byte address of its window, ``lanes`` its bytes in the window of the scratchpad, or
    (``in_memory``) in that of the bus, ``turn`` the rotation from bus to scratchpad, ``back`` the opposite one,
    ``beats`` left in the row, ``rows_left``, ``row_ends`` and ``ends``.
    """

    def __init__(
        self, owner: Circuit, m: Module, geometry: Geometry, job: Any, take: Signal, *, in_memory: bool = False
    ) -> None:
        bus, offset = geometry.bus, log2(geometry.bus)
        self.step = Signal(name="walk_step")
        self.inside = Signal(name="walk_inside")
        row, address, left = Signal(LOCAL_BITS), Signal(LOCAL_BITS), Signal(SIZE_BITS)
        rows, place = Signal(SIZE_BITS), Signal(max(offset, 1))
        now = {
            "row": Mux(self.inside, row, job.local),
            "address": Mux(self.inside, address, job.local),
            "left": Mux(self.inside, left, job.n),
            "rows": Mux(self.inside, rows, job.m),
            "place": Mux(self.inside, place, job.place),
        }
        self.rows_left = Signal(SIZE_BITS, name="walk_rows")
        self.beats = Signal(SIZE_BITS, name="walk_beats")
        self.row_ends, self.ends = Signal(name="walk_row_ends"), Signal(name="walk_ends")
        self.local = Signal(LOCAL_BITS, name="walk_local")
        lanes = owner.library.make(ByteMask, bus)
        self.turn, self.back = Signal(max(offset, 1), name="walk_turn"), Signal(max(offset, 1), name="walk_back")
        inner = Signal(max(offset, 1), name="walk_inner")
        count = Signal(range(bus + 1), name="walk_count")
        self.lanes = owner.place(m, lanes, "lanes", first=now["place"] if in_memory else inner, count=count)["o"]
        m.d.comb += [
            self.rows_left.eq(now["rows"]),
            self.beats.eq((now["left"] + (bus - 1)) >> offset),
            self.row_ends.eq(now["left"] <= bus),
            self.ends.eq(self.row_ends & (now["rows"] == 1)),
            inner.eq(now["address"][:offset] if offset else 0),
            count.eq(Mux(self.row_ends, now["left"], bus)),
            self.local.eq(aligned(now["address"], offset)),
            self.turn.eq(inner - now["place"]),
            self.back.eq(now["place"] - inner),
            take.eq(self.step & self.ends),
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

    def restart(self, m: Module) -> None:
        """Begin with the first row of a new job."""
        m.d.sync += self.inside.eq(0)
