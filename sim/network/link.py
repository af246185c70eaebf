"""The chip-to-chip link in time: when every flit is taken and delivered, to the cycle, wrong bits included.

Packets move as wholes: a head decided on in cycle s is at the other end in s + 1 + W, the tail L + 1 cycles later, for
L flits of payload and a wire of W cycles. What the receiver awaits and has freed in cycle v is at the sender in
v + 2 + W. Cycles in which nothing can change are skipped; `Agenda` says which are left.

In a cycle every part looks at the state that all parts were in when it began; handshakes depend on that state alone.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.arch.link import LinkProtocol

PATTERN = 1 << 14
"""Cycles after which a pattern of waits repeats."""


class Agenda:
    """Cycles that are to be looked at, earliest first."""

    def __init__(self) -> None:
        self.cycles: list[int] = []
        self.known: set[int] = set()
        self.now = -1

    def add(self, cycle: int) -> None:
        """Look at ``cycle``, which is to come."""
        if cycle <= self.now:
            raise AssertionError(f"cycle {cycle} is over in cycle {self.now}")
        if cycle not in self.known:
            self.known.add(cycle)
            heapq.heappush(self.cycles, cycle)

    def next(self) -> int | None:
        """The earliest cycle, taken off; none when nothing will ever happen again."""
        if not self.cycles:
            return None
        cycle = heapq.heappop(self.cycles)
        self.known.discard(cycle)
        self.now = cycle
        return cycle


class ErrorPattern:
    """A bit for every cycle, repeated: when a side of a handshake is willing."""

    def __init__(self, bits: NDArray[np.bool_] | None = None) -> None:
        self.size = 1 if bits is None else len(bits)
        self.ones = [0] if bits is None else np.flatnonzero(bits).tolist()
        if not self.ones:
            raise LoomError("a pattern of waits needs a cycle without one")

    def from_(self, cycle: int) -> int:
        """The first willing cycle that is not before ``cycle``."""
        turn, place = divmod(cycle, self.size)
        found = bisect_left(self.ones, place)
        return turn * self.size + self.ones[found] if found < len(self.ones) else (turn + 1) * self.size + self.ones[0]


class Faults(Struct, frozen=True):
    """Wrong bits on the wires, by the cycle in which they arrive.

    Parameters
    ----------
    symbols
        Cycles with one wrong bit in the symbol.
    flits
        Cycles with wrong bits in the flit; none that is in ``symbols``.
    controls
        Cycles with wrong bits in the control word.
    """

    symbols: Sequence[int] = ()
    flits: Sequence[int] = ()
    controls: Sequence[int] = ()


class _Packet(Struct):
    number: int
    lasts: list[bool]
    head: int = 0
    tail: int = 0
    spoilt: bool = False


class Counts(Struct):
    """The error counters of a link's two ends, and what it sent."""

    retries: int = 0
    timeouts: int = 0
    control_errors: int = 0
    errors: int = 0
    duplicates: int = 0
    packets: int = 0
    wire_flits: int = 0


class Link:
    """One direction of a link: sender, wires and receiver.

    Before every cycle of the agenda `ready` and `valid` tell of the state; `clock` is the edge at its end.
    """

    def __init__(self, protocol: LinkProtocol, agenda: Agenda, faults: Faults | None = None) -> None:
        faults = faults or Faults()
        self.protocol, self.agenda = protocol, agenda
        self.counts = Counts()
        # sender
        self.closed = self.acked = self.next = 0
        self.open: list[bool] = []
        self.kept: dict[int, tuple[list[bool], int]] = {}  # packet: lasts of its flits, flits up to its end
        self.total = self.freed = 0
        self.episode = self.handled = 0
        self.busy_until = 0
        self.timer_zero = 0
        # wires
        self.flying: deque[_Packet] = deque()
        self.said: deque[tuple[int, int, int, int]] = deque()  # from cycle: expected, freed, episode
        self.symbol_faults, self.flit_faults = deque(sorted(faults.symbols)), deque(sorted(faults.flits))
        self.control_faults = set(faults.controls)
        for cycle in (*self.symbol_faults, *self.flit_faults):
            agenda.add(cycle)
        # receiver
        self.expected = self.out = 0
        self.asked = False
        self.asks = 0
        self.buffer: deque[bool] = deque()

    def ready(self) -> bool:
        """The sender takes a flit."""
        return self.closed - self.acked < self.protocol.outstanding

    def valid(self) -> bool:
        """The receiver offers a flit."""
        return bool(self.buffer)

    def clock(self, cycle: int, offered: bool | None, taken: bool) -> None:
        """The edge at the end of ``cycle``.

        Parameters
        ----------
        cycle
            Later than that of the call before.
        offered
            ``tlast`` of the flit that the sender takes, if it takes one.
        taken
            The flit at the other end is taken.
        """
        if self._send(cycle, offered) | self._receive(cycle, taken):
            self.agenda.add(cycle + 1)

    def _send(self, cycle: int, offered: bool | None) -> bool:
        p = self.protocol
        # decisions, by the state at the beginning of the cycle
        idle = cycle >= self.busy_until
        waiting = self.next != self.acked
        late = waiting and cycle - self.timer_zero >= p.timeout
        back = idle and (late or self.episode != self.handled)
        start = False
        if idle and not back and self.next != self.closed:
            start = self.kept[self.next][1] - self.freed <= p.credits
        # a flit comes in
        changed = offered is not None
        if offered is not None:
            self.open.append(offered)
            if offered or len(self.open) == p.packet_flits:
                self.total += len(self.open)
                self.kept[self.closed] = (self.open, self.total)
                self.closed += 1
                self.open = []
        # a control word comes in
        acked = self.acked
        freed, handled = self.freed, self.handled
        if back:
            handled = self.episode
        if cycle not in self.control_faults:
            while self.said and self.said[0][0] + 1 + p.wire_cycles <= cycle:
                _, acked, freed, self.episode = self.said.popleft()
        elif self.said and self.said[0][0] + 1 + p.wire_cycles <= cycle:
            self.agenda.add(cycle + 1)
        # a packet goes out
        if start:
            lasts, _ = self.kept[self.next]
            head = cycle + 1 + p.wire_cycles
            packet = _Packet(self.next, lasts, head, head + len(lasts) + 1)
            self.flying.append(packet)
            self.agenda.add(packet.tail)
            self.busy_until = cycle + len(lasts) + 2
            self.agenda.add(self.busy_until)
            self.counts.packets += 1
            self.counts.wire_flits += len(lasts) + 2
        following = self.next + start
        if back:
            self.counts.retries += 1
            self.counts.timeouts += late
            following = acked
        following = max(following, acked)
        if back or acked != self.acked or not waiting:
            self.timer_zero = cycle + 1
        due = self.timer_zero + p.timeout
        if following != acked and due > cycle:  # once it is due, the end of the packet under way is on the agenda
            self.agenda.add(due)
        changed |= back or acked != self.acked or freed != self.freed
        for number in range(self.acked, acked):
            del self.kept[number]
        self.acked, self.freed, self.next, self.handled = acked, freed, following, handled
        return changed or self.episode != self.handled

    def _receive(self, cycle: int, taken: bool) -> bool:
        before = (self.expected, self.out, self.asks)
        if taken:
            self.buffer.popleft()
            self.out += 1
        wrong = False
        if self.symbol_faults and self.symbol_faults[0] == cycle:
            self.symbol_faults.popleft()
            wrong = True
            if self.flying and self.flying[0].head <= cycle:
                self.flying.popleft()
        elif self.flying and self.flying[0].head <= cycle:
            packet = self.flying[0]
            if self.flit_faults and self.flit_faults[0] == cycle:
                packet.spoilt = True
            if packet.tail == cycle:
                self.flying.popleft()
                if packet.spoilt or packet.number > self.expected:
                    wrong = True
                elif packet.number < self.expected:
                    self.counts.duplicates += 1
                else:
                    self.expected += 1
                    self.asked = False
                    self.buffer.extend(packet.lasts)
                    if len(self.buffer) > self.protocol.credits:
                        raise AssertionError("more flits arrived than there were credits for")
        if self.flit_faults and self.flit_faults[0] == cycle:
            self.flit_faults.popleft()
        if wrong:
            self.counts.errors += 1
            self.asks += not self.asked
            self.asked = True
        if (self.expected, self.out, self.asks) != before:
            self.said.append((cycle + 1, self.expected, self.out, self.asks))
            self.agenda.add(cycle + 2 + self.protocol.wire_cycles)
            return True
        return taken


class LinkRun(Struct):
    """When flits were taken from the source and by the sink, and what went wrong on the way."""

    taken: list[int] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def run_link(
    protocol: LinkProtocol,
    lasts: Sequence[bool],
    source: ErrorPattern,
    sink: ErrorPattern,
    faults: Faults | None = None,
    limit: int = 1_000_000,
    settle: int = 0,
) -> LinkRun:
    """Send flits over a link.

    Parameters
    ----------
    protocol
        Sizes and times.
    lasts
        ``tlast`` of each flit.
    source
        Each flit is offered from the first willing cycle after the one before it was taken.
    sink
        Cycles in which a flit is taken.
    faults
        Wrong bits on the wires.
    limit
        Cycles after which the link counts as hanging.
    settle
        Cycles after the last delivery for which counters go on.

    Raises
    ------
    LoomError
        When not every flit is delivered within ``limit`` cycles.
    """
    agenda, run = Agenda(), LinkRun()
    link = Link(protocol, agenda, faults)
    offer = source.from_(0)
    agenda.add(offer)
    while True:
        cycle = agenda.next()
        if len(run.delivered) == len(lasts) and (cycle is None or cycle > run.delivered[-1] + settle):
            break
        if cycle is None or cycle > limit:
            raise LoomError(f"the link delivered {len(run.delivered)} of {len(lasts)} flits within {limit:,} cycles")
        number = len(run.taken)
        moves = number < len(lasts) and offer <= cycle and link.ready()
        takes = link.valid() and sink.from_(cycle) == cycle
        if moves:
            run.taken.append(cycle)
            offer = source.from_(cycle + 1)
            agenda.add(offer)
        if takes:
            run.delivered.append(cycle)
        link.clock(cycle, lasts[number] if moves else None, takes)
        if link.valid():
            agenda.add(sink.from_(cycle + 1))
    run.counts = link.counts
    return run


__all__ = ["Agenda", "Counts", "Faults", "Link", "LinkRun", "ErrorPattern", "run_link"]
