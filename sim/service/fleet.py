"""Replicas side by side: which of them gets a request, and the order in which things happen."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import NotSupported
from siliconloom.arch.requests import ServedRequests
from siliconloom.arch.serving import Order, Router, ServeSettings
from siliconloom.sim.service.costs import StagedCosts, StepCosts
from siliconloom.sim.service.elastic import AnyReplica, ElasticService
from siliconloom.sim.service.live import LiveRequest
from siliconloom.sim.service.log import RequestLog
from siliconloom.sim.service.offload import ExpertRouting, OffloadedExperts
from siliconloom.sim.service.pipeline import PipelinedReplica
from siliconloom.sim.service.power import PowerLimit
from siliconloom.sim.service.replica import Replica
from siliconloom.sim.service.resident import ResidentSlots
from siliconloom.sim.service.spill import SlowMemory, SpillTiers
from siliconloom.sim.service.stages import Stages
from siliconloom.sim.service.tuning import Tuner, Tuning

Float = NDArray[np.float64]
Int = NDArray[np.int64]
SPANS = 64
"""Spans of time in which replicas that do not look at each other are taken forward."""
TOLD_EVERY = 256
"""Requests between two reports to who follows the run."""


class ReplicaGroup(Struct, frozen=True):
    """Replicas that are alike.

    Parameters
    ----------
    blocks
        Of keys and values in each one's memory.
    swap_s
        Seconds to move a token's keys and values to the host, or back.
    adapters
        Slots for LoRA adapters of one, and seconds to load one and to read one in a step; no slots: there are none.
    models
        Models that lie on one at once where it has several, and seconds to bring another one; no slots: it has one.
    speed
        Of one, relative to the fastest: how soon it has done what is due.
    stages
        Of its chips' pipeline, with a scheduler for each, among which the blocks are dealt; 1 where there is none.
    lowered
        What steps take at lower clocks, where power is limited.
    standing_w
        Watts of one's chips, whatever they do.
    spill
        Slower memories for prefixes: blocks of each, seconds to bring a token's keys and values, and whether all
        replicas share it.
    tuning
        Training in what the steps of each leave over.
    experts
        Those that come from the host as they are used.
    """

    costs: StepCosts
    blocks: int
    count: int
    swap_s: float = 0.0
    adapters: tuple[int, float, float] = (0, 0.0, 0.0)
    models: tuple[int, float] = (0, 0.0)
    speed: float = 1.0
    stages: int = 1
    lowered: tuple[StepCosts, ...] = ()
    standing_w: float = 0.0
    spill: tuple[tuple[int, float, bool], ...] = ()
    tuning: Tuning | None = None
    experts: ExpertRouting | None = None


class Fleet:
    """Replicas that serve requests.

    Parameters
    ----------
    groups
        The replicas, or those that make answers where others do prompts.
    prompts
        Replicas that do prompts only.
    handover
        Seconds from a prompt's last token until so many tokens' keys and values are at another replica.
    apart_w
        Watts of chips that are in no replica.
    """

    def __init__(
        self,
        settings: ServeSettings,
        requests: ServedRequests,
        groups: Sequence[ReplicaGroup],
        prompts: Sequence[ReplicaGroup] = (),
        handover: Callable[[int], float] = lambda _: 0.0,
        apart_w: float = 0.0,
    ) -> None:
        self.settings, self.requests, self.handover, self._apart_w = settings, requests, handover, apart_w
        self.log = RequestLog(requests.arrival_s)
        self._stores: dict[int, SlowMemory] = {}
        """Slower memories that all replicas share, by their places among these."""
        self.first: list[AnyReplica] = []
        """Replicas that prompts come to."""
        self.second: list[AnyReplica] = []
        """Replicas that make the answers to them, where these are others."""
        if prompts:
            self.first = self._made(prompts, 0, hands_over=True)
        made = self._made(groups, len(self.first), answers=bool(prompts))
        if prompts:
            self.second = made
        else:
            self.first = made
        self._turn = 0
        self._handed = False
        self._behind: float | None = None
        """Of replicas that are taken forward in turns, the time that those have come to whose turn is yet to come."""
        self.apart_s = 0.0
        """Seconds that requests spent between replicas, or waited for one, all together."""
        self._later: dict[int, int] = {}
        """Turns of conversations, by the request whose end they wait for."""
        power = self._power(groups) if settings.power_limit is not None else None
        self.elastic = ElasticService(settings, self.first, self, power) if settings.by_events else None
        """Where replicas come and go, or requests move between them."""

    def _made(
        self, groups: Sequence[ReplicaGroup], index: int, *, hands_over: bool = False, answers: bool = False
    ) -> list[AnyReplica]:
        found: list[AnyReplica] = []
        for group in groups:
            for _ in range(group.count):
                engines = [
                    Replica(
                        self.settings,
                        group.costs,
                        group.blocks // group.stages,
                        self.log,
                        index + len(found),
                        swap_s=group.swap_s,
                        adapters=ResidentSlots(*group.adapters),
                        models=ResidentSlots(*group.models),
                        spill=SpillTiers(self._slow(group, answers=answers), self.settings.block),
                        experts=self._experts(group, index + len(found)),
                        tuner=None if group.tuning is None else Tuner(group.tuning, self.settings.token_budget),
                        speed=group.speed,
                        hands_over=hands_over,
                    )
                    for _ in range(group.stages)
                ]
                if group.stages == 1:
                    found += engines
                    continue
                assert isinstance(group.costs, StagedCosts)
                found.append(PipelinedReplica(engines, Stages(group.costs, group.stages)))
        return found

    def _slow(self, group: ReplicaGroup, *, answers: bool) -> list[SlowMemory]:
        """Slower memories of one scheduler, of which all replicas that have prompts share those that are shared."""
        block, found = self.settings.block, []
        for at, (blocks, token_s, shared) in enumerate(group.spill):
            if shared and answers:  # their time is simulated behind that of all prompts
                found.append(SlowMemory(0, block, token_s))
            elif shared:
                found.append(self._stores.setdefault(at, SlowMemory(blocks, block, token_s, shared=True)))
            else:
                found.append(SlowMemory(blocks // group.stages, block, token_s))
        return found

    def _experts(self, group: ReplicaGroup, index: int) -> OffloadedExperts | None:
        return None if group.experts is None else OffloadedExperts(group.experts, self.settings.seed, index)

    def _power(self, groups: Sequence[ReplicaGroup]) -> PowerLimit:
        """Who looks at what all replicas draw."""
        each = [group for group in groups for _ in range(group.count)]
        engines = [engine for replica in self.first for engine in replica.engines]
        for engine in engines:
            engine.account.watch_power()
        return PowerLimit(
            self.settings,
            engines,
            [group.lowered for group in each],
            [group.standing_w for group in each],
            self._apart_w,
        )

    @property
    def replicas(self) -> list[AnyReplica]:
        return [*self.first, *self.second]

    @property
    def engines(self) -> list[Replica]:
        """The schedulers of all replicas, of a pipeline's several."""
        return [engine for replica in self.replicas for engine in replica.engines]

    def run(self, told: Callable[[float], None] = lambda _: None) -> None:
        """Serve everything; ``told`` hears the share of the requests that have come."""
        arrivals = [(float(at), n) for n, at in enumerate(self.requests.arrival_s)]
        later = self._later
        session = self.requests.session.tolist()
        if session and self.second and any(name >= 0 for name in session):
            raise NotSupported("conversations where prompts and answers have replicas of their own")
        if session:
            last: dict[int, int] = {}
            for number, name in enumerate(session):
                if name >= 0 and name in last:
                    later[last[name]] = number
                if name >= 0:
                    last[name] = number
            waits = set(later.values())
            arrivals = [each for each in arrivals if each[1] not in waits]
        self.log.turns = bool(later)
        if self.elastic is not None:
            self.elastic.serve(arrivals, told)
        else:
            self._serve(self.first, arrivals, later, told)
        self._handed = True
        if self.second:
            handed = []
            for number in range(len(self.requests.prompt)):
                if self.requests.output[number] > 1:
                    moved = self.handover(int(self.requests.prompt[number]))
                    self.apart_s += moved
                    handed.append((float(self.log.finished[number]) + moved, number))
            handed.sort()
            self._turn = 0
            self._serve(self.second, handed, {}, lambda _: None, handed=True)
        for engine in self.engines:
            engine.train(float(self.log.finished.max()))
        for replica in self.replicas:
            replica.check()
        if not self.log.complete:
            raise AssertionError("a request was never finished: a bug")

    def stop(self) -> float:
        """Forget what is later than the time that every replica has come to, after an interruption; returns that time.

        Replicas are taken forward in turns, so that some have come further than others; what prompts' replicas handed
        over is not finished.
        """
        log, stage = self.log, self.second if self._handed else self.first
        clocks = [replica.clock for replica in stage if replica.busy]
        if self._behind is not None:
            clocks.append(self._behind)
        came = log.arrival[~np.isnan(log.scheduled)]
        now = min(clocks, default=float(np.nanmax(log.finished, initial=came.max(initial=0.0))))
        if self.second and not self._handed:
            log.finished[self.requests.output > 1] = np.nan
        elif self.second:
            of_second = log.replica >= len(self.first)
            log.finished[(self.requests.output > 1) & ~of_second] = np.nan
        for column in (log.scheduled, log.first, log.finished):
            column[column > now] = np.nan
        return now

    def _serve(
        self,
        replicas: list[AnyReplica],
        arrivals: list[tuple[float, int]],
        later: dict[int, int],
        told: Callable[[float], None],
        *,
        handed: bool = False,
    ) -> None:
        """Let requests come, and replicas take steps, in the order of time.

        Where nobody looks at replicas to choose one, nor one of them at what another has stored, each has requests of
        its own, and they need not wait for another.
        """
        alone = self.settings.router is Router.ROUND_ROBIN and not self._stores
        if not later and (len(replicas) == 1 or alone):
            self._each(replicas, arrivals, told, handed=handed)
            return
        heapq.heapify(arrivals)
        total = max(len(arrivals), 1)
        seen = 0
        clocks: list[tuple[float, int]] = []
        """Of replicas that have something to do, when they begin their next step."""
        queued = [False] * len(replicas)
        while arrivals or clocks:
            at, number = arrivals[0] if arrivals else (np.inf, -1)
            clock, which = clocks[0] if clocks else (np.inf, -1)
            if at <= clock:
                heapq.heappop(arrivals)
                chosen = self.chosen(replicas, number, at)
                replicas[chosen].submit(self.live(number, handed=handed), at)
                if not queued[chosen]:
                    queued[chosen] = True
                    heapq.heappush(clocks, (replicas[chosen].clock, chosen))
                elif len(replicas[chosen].engines) > 1:  # one that had nothing to do may begin before the others
                    clocks = [(replicas[chosen].clock if w == chosen else c, w) for c, w in clocks]
                    heapq.heapify(clocks)
                seen += 1
                if seen % TOLD_EVERY == 0:
                    told(min(seen / total, 1.0))
                continue
            replica = replicas[which]
            until = float(at)
            if later:  # an end of another one may be the beginning of a turn
                heapq.heappop(clocks)
                until = min(until, max(clocks[0][0] if clocks else np.inf, clock))
                heapq.heappush(clocks, (clock, which))
            replica.advance(until)
            heapq.heappop(clocks)
            if replica.busy:
                heapq.heappush(clocks, (replica.clock, which))
            else:
                queued[which] = False
            for ended, when in replica.ended:
                turn = self.turn_after(ended, when)
                if turn is not None:
                    heapq.heappush(arrivals, turn)
            replica.ended.clear()

    def _each(
        self,
        replicas: list[AnyReplica],
        arrivals: list[tuple[float, int]],
        told: Callable[[float], None],
        *,
        handed: bool,
    ) -> None:
        """Requests dealt in turns, each replica by itself; in spans of time, so that none is far ahead of another."""
        count = len(replicas)
        dealt = [arrivals[index::count] for index in range(count)]
        places = [0] * count
        last = arrivals[-1][0] if arrivals else 0.0
        spans = [*np.linspace(arrivals[0][0], last, SPANS)[1:].tolist(), np.inf] if len(arrivals) > SPANS else [np.inf]
        for number, upto in enumerate(spans):
            for index, replica in enumerate(replicas):
                begin = spans[number - 1] if number else arrivals[0][0] if arrivals else 0.0
                self._behind = begin if index < count - 1 else None
                mine, place = dealt[index], places[index]
                while True:
                    at = mine[place][0] if place < len(mine) else np.inf
                    if replica.busy and replica.clock < at:
                        if replica.clock >= upto:
                            break
                        replica.advance(min(at, upto))
                        replica.ended.clear()
                        continue
                    if at >= upto:
                        break
                    replica.submit(self.live(mine[place][1], handed=handed), at)
                    place += 1
                    if place % TOLD_EVERY == 0:
                        told(min(sum(places) / max(len(arrivals), 1), 1.0))
                places[index] = place
            told((number + 1) / len(spans))

    def turn_after(self, number: int, when: float) -> tuple[float, int] | None:
        """The turn of a conversation that waits for the end of a request, and when it comes."""
        turn = self._later.get(number)
        if turn is None:
            return None
        come = max(float(self.requests.arrival_s[turn]), when)
        self.log.arrival[turn] = come
        return come, turn

    def live(self, number: int, *, handed: bool = False) -> LiveRequest:
        """The request of a number, as it comes to a replica."""
        requests = self.requests
        prompt = int(requests.prompt[number])
        live = LiveRequest(
            number,
            number,
            prompt,
            int(requests.output[number]),
            requests.segments[number] if requests.segments else (),
            int(requests.answer[number]) if len(requests.answer) else -1,
            int(requests.adapter[number]) if len(requests.adapter) else -1,
            int(requests.client[number]) if len(requests.client) else -1,
            int(requests.model[number]) if len(requests.model) else -1,
            float(requests.priority[number])
            if len(requests.priority) and self.settings.order is Order.PRIORITY
            else 0.0,
        )
        if handed:
            live.handed, live.generated, live.target = True, 1, prompt
            live.told_s = float(self.log.first[number])
        return live

    def chosen(self, replicas: Sequence[AnyReplica], number: int, at: float) -> int:
        """The replica for a request that comes now, by the router's rule."""
        if len(replicas) == 1:
            return 0
        router = self.settings.router
        if router is Router.ROUND_ROBIN:  # of conversations, and where replicas come and go
            self._turn += 1
            return (self._turn - 1) % len(replicas)
        prefers = router is Router.PREFIX and bool(self.requests.segments)
        if router is Router.RESIDENT:
            return self._resident(replicas, number)
        path = self.requests.segments[number] if prefers else ()
        load = [(replica.load - replica.matched(path, at)) / replica.speed for replica in replicas]
        return min(range(len(replicas)), key=lambda i: (load[i], i))

    def _resident(self, replicas: Sequence[AnyReplica], number: int) -> int:
        """The replica that has a request's model and adapter, or the least loaded, with the fewest of them, first."""
        live = self.live(number)
        there = [at for at, each in enumerate(replicas) if all(engine.has_weights(live) for engine in each.engines)]

        def order(at: int) -> tuple[float, int, float, int]:
            replica = replicas[at]
            held = sum(engine.adapters.held + engine.models.held for engine in replica.engines)
            return replica.load / replica.speed, held, replica.clock, at

        return min(there or range(len(replicas)), key=order)


__all__ = ["AnyReplica", "Fleet", "ReplicaGroup"]
