"""Replicas that come and go, or whose requests move: everything in the order of time.

There are as many replicas as there is work for, and new ones in place of those that are lost.

The number of replicas follows the tokens that are due (prompts and answers of all that wait or run). Where each one has
more than ``serve.scale_at``, one more is started, and takes requests ``serve.start_s`` later. Where one fewer would
have at most half of that, the one with the least to do gets no more requests, and goes when it has done what it has.
The rule is looked at with every request that comes, and every `LOOK_S`.

A replica's life is exponential with a mean of ``serve.lost_every``, as of spot instances and failing machines. It ends
the step that it is in. Its requests go back to the router with the tokens that they have, and their keys and values are
made anew elsewhere. ``serve.restart_s`` later there is another replica in its place, with nothing cached.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
from msgspec import Struct

from siliconloom.arch.errors import LoomError
from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.live import LiveRequest
from siliconloom.sim.service.log import RequestLog
from siliconloom.sim.service.migration import Migration, Move
from siliconloom.sim.service.pipeline import PipelinedReplica
from siliconloom.sim.service.power import PowerLimit
from siliconloom.sim.service.replica import Replica

AnyReplica = Replica | PipelinedReplica
LOOK_S = 15.0
"""Seconds between two looks where no request comes: the default of Kubernetes' horizontal autoscaler."""
SLACK = 0.5
"""Share of ``serve.scale_at`` that the others may have due where a replica is let go, so that none comes right back."""
MOST_LOST = 1000
"""Times that one request is lost, after which it is taken to never end."""
TOLD_EVERY = 256
UP, GONE, LOST, MOVE, COME, LOOK, BALANCE, WATCH = range(8)
"""What may happen, in the order in which things of one time do."""


class PlaceState(StrEnum):
    """Of a place for a replica.

    It takes requests, only ends those that it has, is on its way, is not there, or was lost as it drained and is in its
    last step.
    """

    OPEN = "open"
    DRAINING = "draining"
    STARTING = "starting"
    AWAY = "away"
    LAST_STEP = "last_step"


class Period(Struct):
    """Seconds from ``begin`` to ``end`` (NaN: not yet) for which a replica was paid; it could work from ``up`` on."""

    place: int
    begin: float
    up: float
    end: float = float("nan")


class ReplicaPlace(Struct, eq=False):
    """One of the replicas that there may be: how many there have been here, and since when this one drains."""

    replica: AnyReplica
    state: PlaceState = PlaceState.AWAY
    lives: int = 0
    drains: float = 0.0
    period: Period | None = None

    @property
    def engine(self) -> Replica:
        """The replica's one scheduler."""
        assert isinstance(self.replica, Replica)
        return self.replica


class Dispatch(Protocol):
    """What the fleet says of requests, and of who gets one."""

    log: RequestLog
    apart_s: float
    handover: Callable[[int], float]

    def live(self, number: int) -> LiveRequest:
        """The request of a number, as it comes for the first time."""
        ...

    def chosen(self, replicas: Sequence[AnyReplica], number: int, at: float) -> int:
        """Which of some replicas gets it."""
        ...

    def turn_after(self, number: int, when: float) -> tuple[float, int] | None:
        """The turn of a conversation that waits for the end of a request, and when it comes."""
        ...


class ElasticService:
    """Serves requests by replicas of which some may be away.

    Parameters
    ----------
    replicas
        As many as there may be.
    power
        Who looks at what they draw, if anybody.
    """

    def __init__(
        self, settings: ServeSettings, replicas: Sequence[AnyReplica], fleet: Dispatch, power: PowerLimit | None = None
    ) -> None:
        self._settings, self._fleet, self.power = settings, fleet, power
        self.places = [ReplicaPlace(replica) for replica in replicas]
        self.periods: list[Period] = []
        self.started = self.lost = 0
        """Replicas that were started for more work, and that were lost."""
        self._scales = settings.replicas_least is not None
        self._least = settings.replicas_least or len(replicas)
        self._most = settings.replicas_most or len(replicas)
        self._random = [np.random.default_rng((settings.seed, 1, place)) for place in range(len(replicas))]
        self._events: list[tuple[float, int, int, int, LiveRequest | Move | None]] = []
        self._order = self._to_come = 0
        self._waiting: list[tuple[LiveRequest, float]] = []
        """Requests for which there is no replica, and since when."""
        self.migration: Migration | None = None
        if settings.migrate_below is not None:
            self.migration = Migration(settings, self.places, fleet.log, fleet.handover, self._later, self._takes)

    def serve(self, arrivals: Sequence[tuple[float, int]], told: Callable[[float], None]) -> None:
        """Let requests come, and replicas come, go, and take steps, in the order of time."""
        for at, number in arrivals:
            self._push(at, COME, number)
        begin = arrivals[0][0]
        for place in range(self._least):
            self._begin(place, begin, begin)
            self._open(place, begin)
        if self._scales:
            self._push(begin + LOOK_S, LOOK)
        if self.migration is not None:
            self._push(begin + self._settings.migrate_every, BALANCE)
        if self.power is not None:
            self.power.looked = begin
            self._push(begin + self._settings.power_every, WATCH)
        seen = 0
        while True:
            busy = sorted((each.replica.clock, at) for at, each in enumerate(self.places) if each.replica.busy)
            now = self._events[0][0] if self._events else np.inf
            ends = max(each.replica.clock for each in self.places)
            if not busy and not self._to_come and not self._waiting and now >= ends:
                self._settle(np.inf)
                if self.migration is not None:
                    self.migration.end()
                if self.power is not None and ends > self.power.looked:
                    self.power.look(ends, self.paid(self.power.looked, ends))
                return
            if not busy or now <= busy[0][0]:
                kind = self._happens()
                seen += kind == COME
                if kind == COME and seen % TOLD_EVERY == 0:
                    told(min(seen / len(arrivals), 1.0))
                continue
            self._advance(busy, now)

    def paid(self, begin: float, end: float) -> list[float]:
        """Seconds that every replica was paid for between two times."""
        return self._spent(lambda period: period.begin, begin, end)

    def able(self, begin: float, end: float) -> list[float]:
        """Seconds in which every replica could work between two times."""
        return self._spent(lambda period: period.up, begin, end)

    def _spent(self, since: Callable[[Period], float], begin: float, end: float) -> list[float]:
        found = [0.0] * len(self.places)
        for period in self.periods:
            until = end if np.isnan(period.end) else min(period.end, end)
            found[period.place] += max(until - max(since(period), begin), 0.0)
        return found

    def _takes(self, place: int) -> bool:
        """Whether a replica gets requests."""
        return self.places[place].state is PlaceState.OPEN

    def _later(self, at: float, move: Move, comes: bool) -> None:
        self._push(at, MOVE, int(comes), move)

    def _push(self, at: float, kind: int, number: int = 0, live: LiveRequest | Move | None = None) -> None:
        self._order += 1
        self._to_come += kind == COME or (kind == MOVE and number == 1)
        heapq.heappush(self._events, (at, kind, self._order, number, live))

    def _happens(self) -> int:
        """The next thing happens; returns its kind."""
        at, kind, _, number, live = heapq.heappop(self._events)
        self._settle(at)
        if isinstance(live, Move):
            self._move(live, at, comes=number == 1)
        elif kind == COME:
            self._to_come -= 1
            self._give(self._fleet.live(number) if live is None else live, at)
            self._look(at)
        elif kind == UP:
            self._open(number, at)
        elif kind == GONE:
            self.places[number].state = PlaceState.AWAY
        elif kind == LOST:
            place, life = divmod(number, 1 << 32)
            self._lose(place, life, at)
        elif kind == LOOK:
            self._look(at)
            self._push(at + LOOK_S, LOOK)
        elif kind == WATCH and self.power is not None:
            self.power.look(at, self.paid(self.power.looked, at))
            self._push(self._next_look(at, self._settings.power_every, rests=not self.power.level), WATCH)
        elif self.migration is not None:
            self.migration.look(at, self._in(PlaceState.OPEN), self._in(PlaceState.DRAINING))
            self._push(self._next_look(at, self._settings.migrate_every, rests=True), BALANCE)
        return kind

    def _next_look(self, at: float, every: float, *, rests: bool) -> float:
        """When somebody looks next: where nobody has anything to do, and looks change nothing, as something happens."""
        if rests and not any(place.replica.busy or place.replica.clock > at for place in self.places):
            then = min((event[0] for event in self._events if event[1] not in (BALANCE, WATCH)), default=at)
            return at + every * max(1, math.floor((then - at) / every))
        return at + every

    def _move(self, move: Move, at: float, *, comes: bool) -> None:
        """A copy has ended, or a request comes to its new replica."""
        migration = self.migration
        assert migration is not None
        if not comes:
            self._fleet.apart_s += migration.goes_on(move, at)
            return
        self._to_come -= 1
        if not migration.comes(move, at):
            self._give(move.live, at)
        migration.again(move, at, draining=self.places[move.source].state is PlaceState.DRAINING)

    def _advance(self, busy: Sequence[tuple[float, int]], until: float) -> None:
        """The replica that is furthest behind takes its next steps."""
        clock, at = busy[0]
        if self._fleet.log.turns:  # an end of another one may be the beginning of a turn
            until = min(until, max(busy[1][0] if len(busy) > 1 else np.inf, clock))
        place = self.places[at]
        place.replica.advance(until)
        for ended, when in place.replica.ended:
            turn = self._fleet.turn_after(ended, when)
            if turn is not None:
                self._push(turn[0], COME, turn[1])
        place.replica.ended.clear()

    def _give(self, live: LiveRequest, at: float) -> None:
        """A request goes to a replica, or waits for one."""
        there = [each.replica for each in self.places if each.state is PlaceState.OPEN]
        if not there:
            self._waiting.append((live, at))
            return
        there[self._fleet.chosen(there, live.number, at)].submit(live, at)

    def _begin(self, place: int, at: float, up: float) -> None:
        """A replica is paid for from here on."""
        period = Period(place, at, up)
        self.periods.append(period)
        self.places[place].period = period
        self.places[place].state = PlaceState.STARTING

    def _open(self, place: int, at: float) -> None:
        """A replica can work, and takes what waits for one."""
        here = self.places[place]
        if here.period is None:  # in place of one that was lost
            self._begin(place, at, at)
        here.state = PlaceState.OPEN
        if self._settings.lost_every is not None:
            life = float(self._random[place].exponential(self._settings.lost_every))
            self._push(at + life, LOST, (place << 32) + here.lives)
        waiting, self._waiting = self._waiting, []
        for live, since in waiting:
            self._fleet.apart_s += at - since
            self._give(live, at)

    def _close(self, here: ReplicaPlace, at: float) -> list[tuple[float, LiveRequest]]:
        """A replica is gone when its steps have ended, with all that its memory had; returns its requests, and when."""
        assert here.period is not None
        ends = [max(at, engine.clock) for engine in here.replica.engines]
        here.period.end, here.period = max(ends), None
        here.lives += 1
        here.state = PlaceState.AWAY
        return [(end, live) for end, each in zip(ends, here.replica.engines, strict=True) for live in each.lose(end)]

    def _lose(self, place: int, life: int, at: float) -> None:
        """A replica is lost, if it is still the one of that life."""
        here = self.places[place]
        if here.lives != life:
            return
        returns, period = here.state is PlaceState.OPEN, here.period
        log = self._fleet.log
        for back, live in self._close(here, at):
            log.lost[live.number] += 1
            if log.lost[live.number] > MOST_LOST:
                raise LoomError(
                    f"serve.lost_every {self._settings.lost_every:g}: request {live.number + 1} was lost "
                    f"{MOST_LOST:,} times, and takes longer than replicas live"
                )
            self._push(back, COME, live.number, live)
        self.lost += 1
        assert period is not None
        if not returns:
            here.state = PlaceState.LAST_STEP
            self._push(period.end, GONE, place)
        else:
            assert self._settings.restart_s is not None
            here.state = PlaceState.STARTING
            self._push(period.end + self._settings.restart_s, UP, place)

    def _settle(self, at: float) -> None:
        """Replicas that get no more requests are gone when they have none, those of up to a time."""
        for here in self.places:
            ends = max(here.drains, here.replica.clock)
            if here.state is PlaceState.DRAINING and not here.replica.busy and ends <= at:
                self._close(here, ends)

    def _in(self, *states: PlaceState) -> list[int]:
        return [at for at, each in enumerate(self.places) if each.state in states]

    def _look(self, at: float) -> None:
        """Start replicas, or let them go, by what is due."""
        if not self._scales:
            return
        settings, places = self._settings, self.places
        assert settings.scale_at is not None
        assert settings.start_s is not None
        due = sum(places[each].replica.load for each in self._in(PlaceState.OPEN))
        due += sum(live.output - live.generated + live.prompt for live, _ in self._waiting)
        number = len(self._in(PlaceState.OPEN, PlaceState.STARTING))
        while due > settings.scale_at * number and number < self._most:
            number += 1
            draining = self._in(PlaceState.DRAINING)
            if draining:
                places[draining[0]].state = PlaceState.OPEN
                due += places[draining[0]].replica.load
                continue
            place = next(iter(self._in(PlaceState.AWAY)), None)
            if place is None:
                break
            self._begin(place, at, at + settings.start_s)
            self._push(at + settings.start_s, UP, place)
            self.started += 1
        if self._in(PlaceState.STARTING):
            return
        while number > self._least and due <= SLACK * settings.scale_at * (number - 1):
            here = min(
                (places[each] for each in reversed(self._in(PlaceState.OPEN))), key=lambda each: each.replica.load
            )
            due -= here.replica.load
            number -= 1
            here.state, here.drains = PlaceState.DRAINING, at
        self._settle(at)


__all__ = ["ElasticService", "Period"]
