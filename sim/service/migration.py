"""Requests that move between replicas while they run (Llumnix, Sun et al., OSDI 2024).

A replica's *freeness* is how many tokens more each of its requests could get before its memory is used up: the blocks
that are available, less those that the first waiting request needs, in tokens, over the requests that are at work. It
is looked at every ``serve.migrate_every`` seconds. Replicas below ``serve.migrate_below`` are paired with those above
``serve.migrate_above``, the least free one with the freest. Of each pair a request at its answer moves: of those that
matter least the shortest, one after the other as long as both are on their sides of the limits.

A move is live. Room is taken where it goes, and its keys and values are copied while it goes on getting tokens; what
it was given meanwhile is copied next, until that is at most a block, or no less than the time before. Then it leaves
its replica between two steps, and comes to the other one with what is left, before all that wait there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from siliconloom.arch.serving import ServeSettings
from siliconloom.sim.service.live import LiveRequest
from siliconloom.sim.service.log import RequestLog
from siliconloom.sim.service.replica import Replica


class ReplicaSite(Protocol):
    """Where a replica may be; ``lives`` counts those that were lost or let go."""

    lives: int

    @property
    def engine(self) -> Replica: ...


class Move(Struct, eq=False):
    """A request on its way.

    Parameters
    ----------
    lives
        Of both places when it began.
    copied
        Tokens whose keys and values are at the other replica, or on their way to it.
    rest
        Tokens of the last copy.
    reserved
        Blocks that are held for it there.
    preempted
        Times that it had gone back to the queue when the move began.
    left
        Whether it has left its replica.
    """

    live: LiveRequest
    source: int
    target: int
    lives: tuple[int, int]
    copied: int
    rest: int
    reserved: int
    preempted: int
    left: bool = False


class Migration:
    """Who moves, and when.

    Parameters
    ----------
    places
        Of all replicas.
    log
        Of the requests.
    copy_s
        Seconds until so many tokens' keys and values are at another replica.
    later
        Tells a move, and ``True`` where the request itself comes to its new replica, at a time.
    takes
        Whether the replica of a place gets requests.
    """

    def __init__(
        self,
        settings: ServeSettings,
        places: Sequence[ReplicaSite],
        log: RequestLog,
        copy_s: Callable[[int], float],
        later: Callable[[float, Move, bool], None],
        takes: Callable[[int], bool],
    ) -> None:
        assert settings.migrate_below is not None
        self._below, self._above = settings.migrate_below, settings.takes_above
        self._most, self._block, self._step = settings.max_sequences, settings.block, 1 + len(settings.chances)
        self._places, self._log, self._copy_s, self._later, self._takes = places, log, copy_s, later, takes
        self._moves: list[Move] = []
        self.moved = self.given_up = 0
        """Requests that have moved, and moves that were given up: the request ended, or there was no room."""
        self.copied = 0
        """Tokens whose keys and values were copied."""
        self.apart_s = 0.0
        """Seconds that requests spent between two replicas."""
        for number, place in enumerate(places):
            place.engine.give_back = partial(self._free, number)

    def look(self, at: float, there: Sequence[int], draining: Sequence[int]) -> None:
        """Pair replicas, and begin moves; those that drain are to be rid of what they have."""
        free = {place: self._places[place].engine.freeness for place in there}
        sources = [(float("-inf"), place) for place in draining if self._places[place].engine.answering]
        sources += [(value, place) for place, value in free.items() if value < self._below]
        targets = [(value, place) for place, value in free.items() if value > self._above]
        busy = {move.source for move in self._moves} | {move.target for move in self._moves}
        sources = sorted(each for each in sources if each[1] not in busy)
        targets = sorted((each for each in targets if each[1] not in busy), key=lambda each: (-each[0], each[1]))
        for (_, source), (_, target) in zip(sources, targets, strict=False):
            self._begin(at, source, target)

    def goes_on(self, move: Move, at: float) -> float:
        """A copy has ended: what is left is copied, or the request goes with it; returns its seconds on the way."""
        if move not in self._moves:  # given up for who needed its room
            return 0.0
        if not self._stands(move):
            self._give_up(move)
            return 0.0
        source = self._places[move.source].engine
        length = source.length_of(move.live)
        rest = length - move.copied
        if not self._room(move, length):
            self._give_up(move)
            return 0.0
        now, seconds = max(at, source.clock), self._copy_s(rest)
        self.copied += rest
        if rest > self._block and rest < move.rest:
            move.copied, move.rest = length, rest
            self._later(now + seconds, move, False)
            return 0.0
        source.release(move.live)
        move.left = True
        self.apart_s += seconds
        self._later(now + seconds, move, True)
        return seconds

    def comes(self, move: Move, at: float) -> bool:
        """The request comes to its new replica; false where that, or its room, is gone, and keys and values with it."""
        self._moves.remove(move)
        live = move.live
        if self._places[move.target].lives != move.lives[1] or not move.reserved:
            live.handed = False
            self.given_up += 1
            return False
        self.moved += 1
        self._log.moved[live.number] += 1
        target = self._places[move.target].engine
        target.take_over(live, move.reserved, at)
        return True

    def again(self, move: Move, at: float, *, draining: bool) -> None:
        """The next request of the same pair, where they are still on their sides."""
        source, target = self._places[move.source], self._places[move.target]
        same = (source.lives, target.lives) == move.lives and self._takes(move.target)
        if same and target.engine.freeness > self._above and (draining or source.engine.freeness < self._below):
            self._begin(at, move.source, move.target)

    def end(self) -> None:
        """Whoever is left of moves whose requests have ended gives back what is held for them."""
        for move in list(self._moves):
            self._give_up(move)

    def _begin(self, at: float, source: int, target: int) -> None:
        a, b = self._places[source], self._places[target]
        live = a.engine.lightest()
        if live is None or b.engine.running + b.engine.waiting >= self._most:
            return
        length = a.engine.length_of(live)
        preempted = int(self._log.preempted[live.number])
        move = Move(live, source, target, (a.lives, b.lives), length, length, 0, preempted)
        if not self._room(move, length):
            return
        self._moves.append(move)
        self.copied += length
        self._later(max(at, a.engine.clock) + self._copy_s(length), move, False)

    def _stands(self, move: Move) -> bool:
        """Whether the request is at its answer still where it was, and its new replica the one that it was."""
        source, target = self._places[move.source], self._places[move.target]
        same = (source.lives, target.lives) == move.lives and self._takes(move.target)
        return same and source.engine.answers(move.live) and self._log.preempted[move.live.number] == move.preempted

    def _room(self, move: Move, length: int) -> bool:
        """Hold blocks for so many tokens, and those of its next step, at the other replica, if there are as many."""
        wanted = -(-(length + self._step) // self._block) - move.reserved
        if not self._places[move.target].engine.reserve(wanted):
            return False
        move.reserved += wanted
        return True

    def _free(self, place: int) -> bool:
        """Free what is held at a place for the move that began last; one that has left its replica is the last to."""
        held = [m for m in self._moves if m.target == place and m.reserved and m.lives[1] == self._places[place].lives]
        if not held:
            return False
        move = next((each for each in reversed(held) if not each.left), held[-1])
        if move.left:
            self._places[place].engine.reserve(-move.reserved)
            move.reserved = 0
        else:
            self._give_up(move)
        return True

    def _give_up(self, move: Move) -> None:
        self._moves.remove(move)
        self.given_up += 1
        target = self._places[move.target]
        if target.lives == move.lives[1]:
            target.engine.reserve(-move.reserved)
        move.reserved = 0


__all__ = ["Migration", "Move"]
