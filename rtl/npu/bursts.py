"""Bursts of the DMA, told ahead in registers: where the next one begins, how long it is, and when it is due.

A burst ends where its row, its page of 4 KiB for each port, or the longest burst of AXI4 does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from siliconloom.arch.description import INTERVAL_ONE
from siliconloom.rtl.library import seen
from siliconloom.rtl.npu.geometry import LONGEST_BURST, MEMORY_BITS, SIZE_BITS, Geometry, log2
from siliconloom.rtl.npu.pace import fill, longest, slack_of


class Elsewhere(NamedTuple):
    """A row that begins elsewhere than a pitch after the one before.

    ``is_next``: the next one is such a row; its ``address``; ``comes``: it is in front from the next cycle on.
    """

    is_next: Value
    address: Value
    comes: Value


class NextBurst:
    """The burst that a load asks for next, in registers: nothing has to be computed before its time is looked at.

    ``address`` of its first byte; beats behind the first one: of the burst (``more``), of its row from there on
    (``row_more``), of a whole row (``width_more``), of the page (``room``); ``ends``: it is the last of its row. The
    ``time`` of those beats that the memory counts, its ``slack`` within as many cycles as it has beats, and that within
    one (``last_slack``), see `slack_of`.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.address = seen(MEMORY_BITS, name="burst_address")
        self.more = seen(range(LONGEST_BURST), name="burst_more")
        self.width_more, self.row_more = seen(SIZE_BITS, name="width_more"), seen(SIZE_BITS, name="row_more")
        self.room = seen(range(geometry.page // geometry.bus), name="burst_room")
        self.ends = seen(name="burst_ends")
        self.time = Signal(range(longest(geometry) + 1), name="burst_time")
        self.slack = seen(slack_of(self.more + 1, self.time).shape(), name="burst_slack")
        self.last_slack = seen(slack_of(1, self.time).shape(), name="burst_last_slack")

    def become(self, m: Module, when: Value, first: Value, elsewhere: Elsewhere, entry: Any, below: Value) -> None:
        """In a cycle of ``when``, which is known late, become the burst that follows.

        That is the ``first`` one of the transfer that is offered, that of a row that begins ``elsewhere``, or ``below``
        the one before, or the next one within its row.
        """
        bus, offset = self.geometry.bus, log2(self.geometry.bus)
        address, row_more, width_more = (
            Signal.like(each, name=f"{each.name}_after") for each in (self.address, self.row_more, self.width_more)
        )
        room = Signal.like(self.room, name="room_after")
        offered = more_beats(m, self.geometry, entry)
        in_page = slice(offset, offset + len(room))
        with m.If(first):
            m.d.comb += [address.eq(entry.memory), row_more.eq(offered), width_more.eq(offered)]
            m.d.comb += room.eq(~entry.memory[in_page])
        with m.Else():
            m.d.comb += width_more.eq(self.width_more)
            with m.If(elsewhere.is_next):
                m.d.comb += [address.eq(elsewhere.address), row_more.eq(self.width_more)]
                m.d.comb += room.eq(~elsewhere.address[in_page])
            with m.Elif(self.ends):
                m.d.comb += [address.eq(below), row_more.eq(self.width_more), room.eq(~below[in_page])]
            with m.Else():
                m.d.comb += [
                    address.eq(self.address + (self.more + 1) * bus),
                    row_more.eq(self.row_more + ~Cat(self.more, Const(0, SIZE_BITS - len(self.more)))),
                    room.eq(self.room + ~Cat(self.more, Const(0, SIZE_BITS - len(self.more)))),
                ]
        ends, most = cut(m, self.geometry, row_more, room)
        filled = fill(self.geometry, width_more)
        within = self._times(most, Const(0, 1))
        last = self._times(row_more[: len(self.more)], filled)
        with m.If(when):
            m.d.sync += [
                self.address.eq(address),
                self.more.eq(Mux(ends, row_more, most)),
                self.width_more.eq(width_more),
                self.row_more.eq(row_more),
                self.room.eq(room),
                self.ends.eq(ends),
                *(own.eq(Mux(ends, one, other)) for own, one, other in zip(self._timed, last, within, strict=True)),
            ]

    @property
    def _timed(self) -> tuple[Signal, Signal, Signal]:
        """What `_times` tells."""
        return self.time, self.slack, self.last_slack

    def _times(self, more: Value, filled: Value) -> tuple[Value, Value, Value]:
        """The time of so many beats more than one, and the slacks; of each by itself, not of one by the other."""
        interval, one = self.geometry.interval, INTERVAL_ONE
        of_fill = filled * interval
        time = more * interval + (of_fill + interval)
        slack = more * (interval - one) + (of_fill + (interval - 2 * one))
        return time, slack, more * interval + (of_fill + (interval - 2 * one))


class BurstAhead:
    """The burst that a store begins with its present beat, if it begins one, in registers.

    ``address`` of the beat; the burst's beats behind the first one (``more``), of which there is none (``alone``);
    ``ends``: it is the last of its row.

    ``step``: the beat is read; it is the last of its row (``row_ends``), of the transfer (``transfer_ends``); where no
    transfer is ``active``, what is offered (``entry``) comes next.
    """

    def __init__(
        self,
        m: Module,
        geometry: Geometry,
        entry: Any,
        *,
        active: Value,
        step: Value,
        row_ends: Value,
        transfer_ends: Value,
    ) -> None:
        self.address = address = seen(MEMORY_BITS, name="address")
        self.more = seen(range(LONGEST_BURST), name="burst_more")
        self.ends, self.alone = seen(name="burst_ends"), seen(name="burst_alone")
        row, pitch = seen(MEMORY_BITS, name="row"), seen(MEMORY_BITS, name="pitch")
        width_more, row_more = seen(SIZE_BITS, name="width_more"), seen(SIZE_BITS, name="row_more")
        room = seen(range(geometry.page // geometry.bus), name="burst_room")
        row_more_after, room_after = Signal.like(row_more, name="row_more_after"), Signal.like(room, name="room_after")
        offered, below, first = more_beats(m, geometry, entry), Signal(MEMORY_BITS, name="below"), Signal(name="first")
        offset = log2(geometry.bus)
        in_page = slice(offset, offset + len(room))
        m.d.comb += [first.eq(~active | transfer_ends), below.eq(row + pitch)]
        with m.If(first):
            m.d.comb += [row_more_after.eq(offered), room_after.eq(~entry.memory[in_page])]
        with m.Elif(row_ends):
            m.d.comb += [row_more_after.eq(width_more), room_after.eq(~below[in_page])]
        with m.Else():
            m.d.comb += [row_more_after.eq(row_more - 1), room_after.eq(room - 1)]
        ends, most = cut(m, geometry, row_more_after, room_after)
        with m.If(step | ~active):
            with m.If(first):
                m.d.sync += [address.eq(entry.memory), row.eq(entry.memory), pitch.eq(entry.pitch)]
                m.d.sync += width_more.eq(offered)
            with m.Elif(row_ends):
                m.d.sync += [address.eq(below), row.eq(below)]
            with m.Else():
                m.d.sync += address.eq(address + geometry.bus)
            m.d.sync += [
                row_more.eq(row_more_after),
                room.eq(room_after),
                self.ends.eq(ends),
                self.more.eq(Mux(ends, row_more_after, most)),
                self.alone.eq((row_more_after == 0) | (most == 0)),
            ]


class LastBeat:
    """The last beat of a store's rows, for which the memory may have to fill an access: its time and its slack.

    ``new``: the slack of a transfer that is offered.
    """

    def __init__(self, m: Module, geometry: Geometry, entry: Any) -> None:
        self.time = Signal(range((1 + geometry.access // geometry.bus) * geometry.interval), name="last_time")
        self.slack = seen(slack_of(1, self.time).shape(), name="last_slack")
        time, self.new = Signal.like(self.time, name="new_time"), Signal.like(self.slack, name="new_slack")
        filled = 1 + fill(geometry, (entry.n - 1) >> log2(geometry.bus))
        m.d.comb += [time.eq(filled * geometry.interval), self.new.eq(slack_of(1, time))]
        self.become = [self.time.eq(time), self.slack.eq(self.new)]


def more_beats(m: Module, geometry: Geometry, entry: Any) -> Signal:
    """Beats of a row of a transfer behind the first one: none of a row without bytes, which is refused."""
    more = Signal(SIZE_BITS, name="offered_more")
    m.d.comb += more.eq(Mux(entry.n.any(), (entry.n - 1) >> log2(geometry.bus), 0))
    return more


def cut(m: Module, geometry: Geometry, more: Value, room: Value) -> tuple[Signal, Signal]:
    """Whether a row ends with the burst that begins where ``more`` beats follow in it, and ``room`` ones in the page.

    And the beats behind the first one that it has if not: as many as the page, or the longest burst there is.
    """
    limit = min(LONGEST_BURST, geometry.page // geometry.bus)
    ends, most = Signal(name="row_ends"), Signal(range(limit), name="most")
    m.d.comb += [ends.eq((more <= room) & (more < limit)), most.eq(limit - 1)]
    with m.If(room < limit - 1):
        m.d.comb += most.eq(room)
    return ends, most


def aligned(address: Value, offset: int) -> Value:
    """The address of the window of 2^``offset`` bytes that ``address`` lies in."""
    return Cat(Const(0, offset), address[offset:]) if offset else address


__all__ = ["BurstAhead", "Elsewhere", "LastBeat", "NextBurst", "aligned"]
