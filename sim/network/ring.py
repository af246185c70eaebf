"""Reduce-scatter and all-gather on a ring of chips in time: engines, links and what triggers them, to the cycle.

The RTL is `rtl.link.engine`; the order of chunks is `arch.ring`. The chip's own results come as events: so many flits
of a chunk are in memory from the cycle after on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from siliconloom.arch.errors import LoomError
from siliconloom.arch.link import LinkProtocol
from siliconloom.arch.ring import READ_AHEAD, RingEngine
from siliconloom.sim.network.link import Agenda, Counts, Faults, Link


class Produced(Struct, frozen=True):
    """In ``cycle`` the chip reports ``words`` flits of ``chunk``."""

    cycle: int
    chunk: int
    words: int


class ChipRun(Struct):
    """What one chip of the ring did.

    Parameters
    ----------
    sent
        Cycle in which each message's first flit was read from memory: it was triggered, and its turn had come.
    arrived
        Cycle in which the last flit of each message was taken from the link.
    done
        First cycle of being done.
    counts
        Of the link to the next chip.
    """

    sent: list[int] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    done: int = -1
    counts: Counts = field(default_factory=Counts)


class _Engine:
    def __init__(
        self,
        engine: RingEngine,
        rank: int,
        chips: int,
        words: int,
        start: int,
        produced: Sequence[Produced],
        agenda: Agenda,
    ) -> None:
        self.engine, self.rank, self.chips, self.words, self.start = engine, rank, chips, words, start
        self.agenda, self.run = agenda, ChipRun()
        self.messages = engine.messages(chips)
        self.tracked = [0] * engine.chunks(chips)
        self.events = deque(sorted(produced, key=lambda p: p.cycle))
        for event in self.events:
            if event.cycle <= start:
                raise LoomError(f"chip {rank} produced in cycle {event.cycle}, before it started in {start}")
            agenda.add(event.cycle)
        agenda.add(start)
        self.message = self.position = 0  # of what is sent
        self.ahead: deque[tuple[int, bool]] = deque()  # from cycle: tlast of flits that were read
        self.coming = self.place = 0  # of what is received
        self.landed = 0  # messages that are complete in memory, as the sender knows
        self.landing: deque[int] = deque()

    def running(self, cycle: int) -> bool:
        return cycle > self.start and self.run.done < 0

    def full(self, chunk: int) -> bool:
        return self.tracked[chunk] >= self.words

    def offers(self, cycle: int) -> bool:
        """A flit is offered to the link."""
        return bool(self.ahead) and self.ahead[0][0] <= cycle

    def takes(self, cycle: int) -> bool:
        """A flit would be taken from the link."""
        if not self.running(cycle) or self.coming == self.messages:
            return False
        chunk = self.engine.chunk_sent((self.rank - 1) % self.chips, self.coming, self.chips)
        return not self.engine.reduces(self.coming, self.chips) or self.full(chunk)

    def clock(self, cycle: int, sends: bool, receives: bool) -> None:
        """The edge at the end of ``cycle``: whether the link takes a flit, and gives one."""
        while self.landing and self.landing[0] <= cycle:
            self.landing.popleft()
            self.landed += 1
        changed = sends or receives
        used = len(self.ahead)
        issue = False
        if self.running(cycle) and self.message < self.messages and used < READ_AHEAD:
            issue = self.position > 0 or self._triggered()
        over = self.running(cycle) and self.message == self.messages and self.landed == self.messages and not used
        if sends:
            self.ahead.popleft()
        if issue:
            if self.position == 0:
                self.run.sent.append(cycle)
            self.position += 1
            last = self.position == self.words
            self.ahead.append((cycle + 2, last))
            self.agenda.add(cycle + 2)
            if last:
                self.position = 0
                self.message += 1
        if receives:
            self.place += 1
            if self.place == self.words:
                self.run.arrived.append(cycle)
                self.landing.append(cycle + 2)
                self.agenda.add(cycle + 2)
                self.place = 0
                self.coming += 1
        while self.events and self.events[0].cycle == cycle:
            event = self.events.popleft()
            self.tracked[event.chunk] += event.words
            changed = True
        if over:
            self.run.done = cycle + 1
        if changed or issue or over or cycle == self.start:
            self.agenda.add(cycle + 1)

    def _triggered(self) -> bool:
        if self.message < self.engine.pieces:
            return self.full(self.engine.chunk_sent(self.rank, self.message, self.chips))
        return self.landed + self.engine.pieces > self.message


def run_ring(
    engine: RingEngine,
    protocol: LinkProtocol,
    words: int,
    starts: Sequence[int],
    produced: Sequence[Sequence[Produced]],
    faults: Sequence[Faults] | None = None,
    limit: int = 100_000_000,
) -> list[ChipRun]:
    """Reduce-scatter and all-gather of a buffer over the chips of a ring.

    Parameters
    ----------
    engine, protocol
        Of every chip, and of the link from each to the next.
    words
        Flits of a chunk.
    starts
        For each chip the cycle in which its engine is started.
    produced
        For each chip what it reports of its own results, and when.
    faults
        For each chip those on the wires of the link to the next one.
    limit
        Cycles after which the ring counts as hanging.

    Raises
    ------
    LoomError
        When the chips are not done within ``limit`` cycles: a chip never produced a chunk that the others wait for.
    """
    chips = len(starts)
    agenda = Agenda()
    engines = [_Engine(engine, r, chips, words, starts[r], produced[r], agenda) for r in range(chips)]
    links = [Link(protocol, agenda, None if faults is None else faults[r]) for r in range(chips)]
    while any(e.run.done < 0 for e in engines):
        cycle = agenda.next()
        if cycle is None or cycle > limit:
            waiting = ", ".join(
                f"chip {e.rank}: {e.message} of {e.messages} chunks sent" for e in engines if e.run.done < 0
            )
            raise LoomError(f"the ring is not done in cycle {limit if cycle else 'any'}: {waiting}")
        sends = [e.offers(cycle) and link.ready() for e, link in zip(engines, links, strict=True)]
        receives = [links[r - 1].valid() and engines[r].takes(cycle) for r in range(chips)]
        for r, (e, link) in enumerate(zip(engines, links, strict=True)):
            link.clock(cycle, e.ahead[0][1] if sends[r] else None, receives[(r + 1) % chips])
        for r, e in enumerate(engines):
            e.clock(cycle, sends[r], receives[r])
    for e, link in zip(engines, links, strict=True):
        e.run.counts = link.counts
    return [e.run for e in engines]
