"""One replica of a model: its scheduler, step after step, over the blocks of its memory.

The rules are those of vLLM's v1 engine: every running request gets its next token, what is left of the token budget
goes to prompts, first those that are under way, then waiting ones, in chunks; where blocks run out the request that was
admitted last goes back to the queue. Steps in which nothing changes but the lengths of the requests are taken
together, up to the next end of a request, the next arrival, or the last free block: their costs are one question, and
time goes with what happens, not with tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from siliconloom.arch.requests import Segment
from siliconloom.arch.serving import Batching, Order, Preemption, ServeSettings
from siliconloom.sim.service.account import ReplicaAccount
from siliconloom.sim.service.blocks import BlockPool, idle_blocks, path_blocks
from siliconloom.sim.service.costs import EQUAL, Chunk, Float, LayeredCosts, RequestLengths, StepCosts
from siliconloom.sim.service.decoding import DecodingRequests
from siliconloom.sim.service.guesses import Guesses
from siliconloom.sim.service.live import LiveRequest
from siliconloom.sim.service.log import RequestLog
from siliconloom.sim.service.offload import OffloadedExperts
from siliconloom.sim.service.passes import Answering, model_passes, sampled
from siliconloom.sim.service.resident import ResidentSlots
from siliconloom.sim.service.sharing import SharedPrefixes
from siliconloom.sim.service.spill import SpillTiers
from siliconloom.sim.service.stages import Stages
from siliconloom.sim.service.tuning import Tuner
from siliconloom.sim.service.waiting import ANSWER_WEIGHT, PROMPT_WEIGHT, RequestQueue

MOST_STEPS = 4096
"""Steps that are asked at once."""


class Replica:
    """One replica.

    Parameters
    ----------
    blocks
        Of its memory of keys and values.
    swap_s
        Seconds to move a token's keys and values to the host, or back.
    adapters
        LoRA adapters that lie beside its weights.
    models
        Models that lie beside each other where it serves several of one architecture.
    experts
        Those that come from the host as they are used.
    spill
        Slower memories for prefixes.
    tuner
        Training in what its steps leave over.
    speed
        How soon it does what is due, relative to others.
    hands_over
        It does prompts only: a request leaves it with its first token.
    """

    def __init__(
        self,
        settings: ServeSettings,
        costs: StepCosts,
        blocks: int,
        log: RequestLog,
        index: int,
        *,
        swap_s: float = 0.0,
        adapters: ResidentSlots | None = None,
        models: ResidentSlots | None = None,
        experts: OffloadedExperts | None = None,
        spill: SpillTiers | None = None,
        tuner: Tuner | None = None,
        speed: float = 1.0,
        hands_over: bool = False,
    ) -> None:
        self.settings, self.costs, self.log, self.index = settings, costs, log, index
        self.pool = BlockPool(blocks, settings.block)
        self.hands_over, self.speed = hands_over, speed
        self._static = settings.batching is Batching.STATIC
        self._caches = settings.prefix_cache and not self._static
        self.clock = 0.0
        self.busy_s = 0.0
        self.account = ReplicaAccount()
        self.ended: list[tuple[int, float]] = []
        """Requests that have left since somebody looked, and when."""
        self.left = self._left_before = 0
        """Requests that have left, and those that had before the last step."""
        self._swap_s = swap_s
        self.adapters = ResidentSlots(0, 0.0) if adapters is None else adapters
        self.models = ResidentSlots(0, 0.0) if models is None else models
        self.experts = experts
        self.spill = SpillTiers((), settings.block) if spill is None else spill
        self.tuner = tuner
        self.guesses = Guesses(settings, index)
        self._per_step = 1 + sum(settings.guesses)
        """Tokens of a request at its answer that a step passes through the model."""
        self.stages: Stages | None = None
        """Those of a pipeline, which other schedulers' steps pass, too."""
        self._fair = settings.order is Order.FAIR
        self._clients: dict[int, int] = {}
        """Requests of each client that are at their answers."""
        self._waiting: RequestQueue[LiveRequest] = RequestQueue(fair=self._fair)
        self._running: dict[int, LiveRequest] = {}
        self._prompts: dict[int, LiveRequest] = {}
        self._decoding = DecodingRequests(settings.block)
        self._arrived = 0
        self._sharing = SharedPrefixes(settings.block) if settings.shared_attention else None
        self._pace_s = 0.0
        self._load = 0
        self._padding = 0
        self._preempted = False
        self.lowered: StepCosts | None = None
        """What steps take as long as the clock is lowered."""
        self._coming: list[LiveRequest] = []
        """Requests that came from another replica with keys and values, and go before all that wait."""
        self._reserved = 0
        """Blocks that are held for them, and for others on their way."""
        self.give_back: Callable[[], bool] | None = None
        """Asked to free blocks that are held for a request on its way; false where there is none."""

    @property
    def engines(self) -> list[Replica]:
        """Its schedulers: itself."""
        return [self]

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._waiting or self._running or self._coming)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._coming)

    @property
    def running(self) -> int:
        return len(self._running)

    def present(self, at: float) -> int:
        """Requests that wait or run at a time, those that leave with the step that is under way then among them."""
        return self.waiting + len(self._running) + (self.left - self._left_before if at < self.clock else 0)

    @property
    def load(self) -> int:
        """Tokens that are due: prompts and answers of all that wait or run."""
        return self._load

    def submit(self, request: LiveRequest, at: float, *, first: bool = False) -> None:
        """A request comes; those that came before it are before it in the queue, unless it is to be the first."""
        request.order = self._arrived
        self._arrived += 1
        self._count_present(at)
        if not self.busy:
            self.train(at)
            self.clock = max(self.clock, at)
        order = self.settings.order
        if order is not Order.PRIORITY:
            request.rank = float(request.prompt) if order is Order.SHORTEST else 0.0
        if not request.handed:  # what a replica had answered that was lost is made anew, too
            request.target = request.prompt + request.generated
        if first:
            self._coming.append(request)
        else:
            self._waiting.push(request)
        self._load += request.output - request.generated + (0 if request.handed else request.target)

    def train(self, until: float) -> None:
        """Nobody is here until then: windows of training alone, of which the last may end later."""
        while self.tuner is not None and self.clock < until:
            number, seconds, drawn = self.tuner.alone(until - self.clock)
            if not number:
                break
            self.account.activity.add([self.clock, seconds, number, seconds, 0, 0, 0, float(self._used()), 0, drawn])
            self.account.joules += drawn
            self.busy_s += seconds
            self.clock += seconds

    @property
    def answering(self) -> int:
        """Requests that are at their answers."""
        return self._decoding.count

    @property
    def freeness(self) -> float:
        """Tokens more that each running request could get, beside what the first waiting one needs (Llumnix)."""
        block = self.settings.block
        free = self.pool.available - (-(-self._waiting.first().target // block) if self._waiting else 0)
        return free * block / max(len(self._running), 1)

    def lightest(self) -> LiveRequest | None:
        """Of the requests at their answers that matter least the shortest."""
        found = [each for each in self._running.values() if each.deciding]
        return min(found, key=lambda r: (-r.rank, self._decoding.length(r), r.order), default=None)

    def answers(self, request: LiveRequest) -> bool:
        """Whether a request is at its answer here."""
        return self._running.get(request.number) is request and request.deciding

    def length_of(self, request: LiveRequest) -> int:
        """Tokens in the cache of a request that is at its answer."""
        return self._decoding.length(request)

    def reserve(self, blocks: int) -> bool:
        """Hold blocks for a request on its way, or give them back, if negative; false where there are not as many."""
        if 0 < blocks > self.pool.available - self._needed():
            return False
        if blocks > 0:
            self.pool.take(blocks)
        else:
            self.pool.give(-blocks)
        self._reserved += blocks
        return True

    def _freed(self) -> bool:
        """Whether blocks that were held for a request on its way are free now."""
        return self._reserved > 0 and self.give_back is not None and self.give_back()

    def release(self, request: LiveRequest) -> None:
        """A request at its answer leaves for another replica, between two steps."""
        self._count_present(self.clock)
        self._put_off(request, swaps=True)
        request.swapped, request.handed = False, True
        self._load -= request.output - request.generated

    def take_over(self, request: LiveRequest, reserved: int, at: float) -> None:
        """One comes from there, with keys and values for which blocks are held, before all that wait."""
        request.reserved = reserved
        self.submit(request, at, first=True)

    def matched(self, path: Sequence[Segment], at: float) -> int:
        """Tokens of a prompt that begins so that lie in the cache, or can be brought there."""
        if not self._caches or not path:
            return 0
        known = self.pool.match(path)[1]
        return max(known, self.spill.beyond(path, 0, sum(length for _, length in path), at)[0])

    def advance(self, until: float, *, alone: bool = True) -> None:
        """Take the steps that are next: one, or several that begin before ``until`` where nobody is beside them."""
        settings = self.settings
        extra_s = 0.0
        self._preempted = False
        if self._static:
            extra_s += self._admit_static()
        else:
            while self._needed() > self.pool.available:
                if not self._freed():
                    extra_s += self._preempt()
            self._preempted = self._preempted and bool(self._running)  # what nobody is beside comes again at once
        chunks: list[tuple[LiveRequest, int]] = []
        prompts_only = False
        if settings.batching is Batching.CONTINUOUS:
            chunks, more_s = self._fill(settings.token_budget - self._decoding.count)
            extra_s += more_s
        elif settings.batching is Batching.PREFILL_FIRST:
            chunks, more_s = self._fill(settings.token_budget)
            extra_s += more_s
            prompts_only = bool(chunks)
        else:
            chunks = [(each, each.target) for each in self._prompts.values()]
            prompts_only = bool(chunks)
        if self._preempted or not alone:  # whoever went back to the queue may come again in the next step
            until = self.clock
        self._take(chunks, extra_s, until, prompts_only=prompts_only, alone=alone)

    def _needed(self) -> int:
        """Blocks that the next token of each request begins; with guesses, those that they take if all are right."""
        if self.guesses.places:
            more = self.guesses.places + 1
            return sum(self._decoding.needed(r, more) for r in self._running.values() if r.deciding)
        return self._decoding.begun()

    def _fill(self, budget: int) -> tuple[list[tuple[LiveRequest, int]], float]:
        """Prompts for what is left of the budget: those under way, then waiting ones."""
        settings, pool, block = self.settings, self.pool, self.settings.block
        whole = settings.batching is Batching.PREFILL_FIRST or not settings.chunked
        chunks: list[tuple[LiveRequest, int]] = []
        reserved, extra_s = self._needed(), 0.0
        for each in list(self._prompts.values()):
            if budget <= 0:
                break
            if each.number not in self._prompts:  # preempted for the one before it
                continue
            size = min(budget, each.target - each.done)
            blocks = -(-(each.done + size) // block) - each.shared - each.held
            while blocks > pool.available - reserved and each.number in self._prompts:
                if not self._freed():
                    extra_s += self._preempt()
                    reserved = self._needed()
            if each.number not in self._prompts:
                break
            pool.take(blocks)
            each.held += blocks
            chunks.append((each, size))
            budget -= size
        spare = int(settings.watermark * pool.blocks)
        self._preempted = self._preempted and bool(self._running)
        while self.waiting and not self._preempted and len(self._running) < settings.max_sequences:
            each = self._coming[0] if self._coming else self._waiting.first()
            if not (self.adapters.fits(each.adapter) and self.models.fits(each.model)):
                break
            if each.swapped or each.handed:
                if not self._return(each, reserved + spare):
                    if not (chunks or self._running) and self._freed():
                        continue
                    break
                extra_s += each.target * self._swap_s if each.swapped else 0.0
                extra_s += self._use_weights(each)
                each.swapped = each.handed = False
                reserved = self._needed()
                budget -= 1  # it has a next token at once
                continue
            node, known = (None, 0)
            if self._caches and each.path:
                node, known = pool.match(each.path)
            known = min(known, each.target - 1) // block * block  # complete blocks; the last token is always computed
            cached, bringing_s = known, 0.0
            if self._caches:
                cached, bringing_s = self.spill.beyond(each.path, known, each.target - 1, self.clock)
            left = each.target - cached
            if budget <= 0:
                break
            beside = self._decoding.count if settings.batching is Batching.CONTINUOUS else 0
            if whole and left > budget and (chunks or beside):  # what is made anew may be longer, and goes alone
                break
            size = left if whole else min(budget, left)
            idle = idle_blocks(node)
            blocks = -(-(cached + size) // block) - known // block
            if blocks > pool.available - idle - reserved - spare:
                if not (chunks or self._running) and self._freed():
                    continue
                break
            self._waiting.pop()
            extra_s += self._use_weights(each) + bringing_s
            pool.enter(node)
            pool.take(blocks)
            if cached > known:
                self.spill.bring(each.path, known, each.target - 1, self.clock)
            each.node, each.shared, each.held, each.done = node, known // block, blocks, cached
            self.log.cached[each.number] += cached
            self._load -= cached
            self._start(each)
            self._prompts[each.number] = each
            chunks.append((each, size))
            budget -= size
        return chunks, extra_s

    def has_weights(self, each: LiveRequest) -> bool:
        """Whether the model and the adapter of a request lie here."""
        return self.adapters.holds(each.adapter) and self.models.holds(each.model)

    def _use_weights(self, each: LiveRequest) -> float:
        """A request begins to run; returns the seconds until its model and its adapter are there."""
        return self.adapters.enter(each.adapter) + self.models.enter(each.model)

    def _start(self, each: LiveRequest) -> None:
        self._running[each.number] = each
        if np.isnan(self.log.scheduled[each.number]):
            self.log.scheduled[each.number] = self.clock

    def _return(self, each: LiveRequest, reserved: int) -> bool:
        """Give a request whose keys and values come from elsewhere its blocks; false where there is no room."""
        blocks = -(-each.target // self.settings.block)
        next_step = each.target + 1 + self.guesses.places
        more = -(-next_step // self.settings.block) - each.reserved
        if more > max(self.pool.available - reserved, 0):
            return False
        if self._coming:
            self._coming.pop(0)
        else:
            self._waiting.pop()
        self.pool.give(each.reserved)
        self._reserved -= each.reserved
        each.reserved = 0
        self.pool.take(blocks)
        each.shared = 0
        self._start(each)
        self._decide(each)
        self.account.joins(each.number, each.told_s)
        return True

    def _admit_static(self) -> float:
        """A batch, where the one before has ended: as many requests as have places, and blocks for whole answers."""
        loading_s = 0.0
        if self._running:
            return loading_s
        block = self.settings.block
        while self._waiting and len(self._running) < self.settings.max_sequences:
            each = self._waiting.first()
            blocks = -(-(each.target + each.output) // block)
            if blocks > self.pool.available or not self.adapters.fits(each.adapter):
                break
            self._waiting.pop()
            loading_s += self._use_weights(each)
            self.pool.take(blocks)
            each.held = blocks
            self._start(each)
            self._prompts[each.number] = each
        return loading_s

    def _take(
        self, chunks: list[tuple[LiveRequest, int]], extra_s: float, until: float, *, prompts_only: bool, alone: bool
    ) -> None:
        """Take steps, with ``chunks`` in the first, and with next tokens of all that answer unless ``prompts_only``."""
        self._left_before = self.left
        count = 0 if prompts_only else self._decoding.count
        ended = [each for each, size in chunks if each.done + size == each.target]
        asked: list[Chunk] = [(size, each.done) for each, size in chunks]
        guessing = [r for r in self._running.values() if r.deciding] if self.guesses.places and count else []
        # a prompt that waits as it is too long for a step may not be any more when another replica has stored of it
        looks = bool(self._waiting) and not self.settings.chunked and self.spill.shared
        single = chunks or not count or guessing or not alone or looks or self.tuner is not None
        number = 1 if single else self._run_length(until)
        assert chunks or count, "a replica has requests and nothing to do: a bug"
        first = self._decoding.mean + 1 if count else 0.0
        contexts = first + np.arange(number, dtype=np.float64) if number > 1 else np.array([first])
        parts = self._sharing.parts if self._sharing is not None and count else ()
        if not parts and self.account.samples_next():
            self.account.samples.append(sampled(chunks, self._answering(count)))
        draws = self.guesses.drawn(guessing)
        ahead = self.guesses.ahead(guessing, draws, self._decoding.made)
        lengths = RequestLengths(self._decoding.offsets, self._decoding.step, parts, ahead) if count else EQUAL
        if self.tuner is not None:
            beside_s = self.adapters.step_s
            step = self.tuner.step(asked, len(ended), count, contexts, lengths, beside_s=beside_s)
            seconds, joules = step.seconds, step.joules
        elif self.models.slots:
            seconds, joules = model_passes(self.lowered or self.costs, chunks, self._answering(count), number)
        else:
            seconds, joules = (self.lowered or self.costs).steps(
                asked, len(ended), count + self._padding, contexts, lengths
            )
        if self.adapters.used:
            seconds = seconds + self.adapters.step_s
        if self.experts is not None:
            tokens = sum(size for size, _ in asked) + (count + self._padding) * self._per_step
            layers = self._layer_seconds(asked, len(ended), count + self._padding, contexts, lengths)
            seconds = self.experts.steps(tokens, seconds, until - self.clock - extra_s, layers)
            number, joules = len(seconds), joules[: len(seconds)]
        ends = np.cumsum(seconds) if number > 1 else seconds
        if number > 1 and self.clock + extra_s + ends[-2] >= until:
            number = int(np.searchsorted(self.clock + extra_s + ends, until)) + 1
            seconds, joules, ends = seconds[:number], joules[:number], ends[:number]
        if self.stages is not None:
            begin, contexts = self.clock + extra_s, contexts[:number]
            seconds = self.stages.taken(begin, asked, len(ended), count + self._padding, contexts, lengths, seconds)
            ends = np.cumsum(seconds)
        start, total = self.clock, float(ends[-1]) + extra_s
        end = start + total
        self._pace_s = float(seconds[-1])
        self._count_present(end)
        self.clock = end
        self.busy_s += total
        drawn = float(joules.sum())
        waiting = self.waiting
        if count:
            self.account.tell(seconds, extra_s, count, start)
            self._grow(number)
        right = self._guess(guessing, self.guesses.right(draws))
        prompt_tokens = sum(size for _, size in chunks)
        made = count * number + len(ended) + right
        self.account.took(start, end, number, drawn, prompt_tokens, made)
        self._load -= count * number
        row = [start, total, number, total, count * number, prompt_tokens, made, self._used(), waiting, drawn]
        self.account.activity.add([float(value) for value in row])
        if self._fair and count:
            for client, many in self._clients.items():
                self._waiting.serve(client, ANSWER_WEIGHT * many * number)
        for each, size in chunks:
            each.done += size
            self._load -= size
            self._waiting.serve(each.client, PROMPT_WEIGHT * size)
        for each in ended:
            self._answered(each)
        for last in self._decoding.ended(self._running):
            self._finish(last)

    def _layer_seconds(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths
    ) -> Float | None:
        """Seconds of a layer in each step, where experts come beside them."""
        costs = self.lowered or self.costs
        if self.experts is None or not self.experts.routing.ahead:
            return None
        assert isinstance(costs, LayeredCosts)
        return costs.layer_seconds(chunks, ended, count, contexts, lengths)

    def _answering(self, count: int) -> list[Answering]:
        """Requests that get their next token, with the tokens of each in the cache; nobody where ``count`` is zero."""
        if not count:
            return []
        return [(each, self._decoding.length(each)) for each in self._running.values() if each.deciding]

    def _guess(self, requests: list[LiveRequest], rights: list[int]) -> int:
        """Give requests the guessed tokens that are right, behind the one that every step has; returns how many."""
        total = 0
        for each, many in zip(requests, rights, strict=True):
            made = self._decoding.made(each)
            if each.output - made >= self.guesses.places:
                self.account.guessed += sum(self.settings.guesses)
                self.account.accepted += many
            extra = min(many, each.output - made)
            if not extra:
                continue
            self.pool.take(self._decoding.needed(each, extra))
            self._decoding.lengthen(each, extra)
            self.account.intervals.add(0.0, extra)
            if self._fair:
                self._waiting.serve(each.client, ANSWER_WEIGHT * extra)
            total += extra
        self._load -= total
        return total

    def _used(self) -> int:
        return self.pool.blocks - self.pool.available

    def _run_length(self, until: float) -> int:
        """Steps until a request ends, the blocks are used up, or it is ``until``, as far as that can be told."""
        number = min(self._decoding.next_end, MOST_STEPS)
        if self._pace_s > 0 and until < np.inf:
            number = min(number, int((until - self.clock) / self._pace_s * 1.25) + 2)
        if not self._static:
            number = self._decoding.within(number, self.pool.available)
        return max(number, 1)

    def _grow(self, number: int) -> None:
        """All requests that are at their answers have ``number`` tokens more in the cache."""
        if not self._static:
            self.pool.take(self._decoding.taken(number))
        self._decoding.grow(number)

    def _answered(self, each: LiveRequest) -> None:
        """A prompt is done: its request has a token, and is at its answer from here on."""
        del self._prompts[each.number]
        now = self.clock
        if each.generated == 0:
            self.log.first[each.number] = now
        else:
            self.account.intervals.add(now - each.told_s, 1)
        each.told_s = now
        each.generated += 1
        self._load -= 1
        if self._caches and each.path:
            before = each.held
            each.node, each.held = self.pool.extend(each.node, each.path, each.held)
            each.shared += before - each.held
            self.spill.store(each.path, self.clock)
        if self._static and each.generated >= each.output:
            self._pad()
            return
        if self.hands_over or each.generated >= each.output:
            self._leave(each, each.target)
            return
        self._decide(each)
        self.account.joins(each.number, now)

    def _decide(self, each: LiveRequest) -> None:
        """The request is at its answer."""
        if self._fair:
            self._clients[each.client] = self._clients.get(each.client, 0) + 1
        self._decoding.enter(each)
        if self._sharing is not None:
            self._sharing.enter(each.number, each.node, each.shared)

    def _undecide(self, each: LiveRequest) -> int:
        """It no longer is; returns its tokens in the cache."""
        if self._fair:
            self._clients[each.client] -= 1
        if self._sharing is not None:
            self._sharing.leave(each.number)
        self.account.leaves(each.number)
        return self._decoding.leave(each)

    def _finish(self, each: LiveRequest) -> None:
        length = self._undecide(each)
        each.generated = each.output
        if self._static:
            self._pad()
            return
        self._leave(each, length)

    def _pad(self) -> None:
        """A request of a static batch has its answer, and stays until all others have theirs."""
        self._padding += 1
        if self._padding == len(self._running):
            for done in list(self._running.values()):
                self._leave(done, done.target)
            self._padding = 0

    def _leave(self, each: LiveRequest, length: int) -> None:
        """A request ends with so many tokens in the cache."""
        now = self.clock
        if self._static:
            held = each.held
        else:
            held = -(-length // self.settings.block) - each.shared
            if self._caches and each.answer >= 0 and length > each.prompt:
                path = (*each.path, (each.answer, length - each.prompt))
                each.node, held = self.pool.extend(each.node, path, held)
                self.spill.store(path, self.clock)
        self.pool.give(held)
        self.pool.leave(each.node)
        self.adapters.leave(each.adapter)
        self.models.leave(each.model)
        del self._running[each.number]
        self.log.finished[each.number] = now
        self.log.replica[each.number] = self.index
        self.ended.append((each.number, now))
        self.left += 1
        if self.hands_over:
            self._load -= each.output - each.generated

    def _preempt(self) -> float:
        """Send a running request back to the queue: the last by the queue's order; returns seconds that it takes."""
        each = max(self._running.values(), key=lambda r: (r.rank, r.order))
        if len(self._running) == 1 and not self._coming and path_blocks(each.node) == each.shared:
            raise AssertionError("the only request is preempted: a bug")
        self.log.preempted[each.number] += 1
        self._preempted = True
        seconds = self._put_off(each, swaps=self.settings.preemption is Preemption.SWAP)
        self._waiting.push(each)
        return seconds

    def lose(self, at: float) -> list[LiveRequest]:
        """All requests that wait or run, in the order in which they came; the memory is empty behind them.

        They keep the tokens that they have been given. Their keys and values are to be made anew.
        """
        self._count_present(at)
        for each in list(self._running.values()):
            self._put_off(each, swaps=False)
            self._waiting.push(each)
        found = [*self._coming, *(self._waiting.pop() for _ in range(len(self._waiting)))]
        self._coming.clear()
        for each in found:
            each.swapped, each.handed, each.reserved = False, False, 0
        self.pool.check(self._reserved)
        self._reserved = 0
        self.pool = BlockPool(self.pool.blocks, self.pool.block)
        self.adapters.clear()
        self.models.clear()
        if self.experts is not None:
            self.experts.clear()
        self.spill.clear()
        self._load = 0
        return sorted(found, key=lambda each: each.order)

    def _put_off(self, each: LiveRequest, *, swaps: bool) -> float:
        """Take a running request off the chips; returns seconds that it takes."""
        del self._running[each.number]
        seconds = 0.0
        if each.deciding:
            self._decoding.forget_end(each)
            each.generated = self._decoding.made(each)
            each.told_s = self.account.leaves(each.number)
            length = self._undecide(each)
            held = -(-length // self.settings.block) - each.shared
            if swaps:
                each.swapped, each.target = True, length
                seconds = length * self._swap_s
            else:
                each.target = each.prompt + each.generated
                self._load += each.target
        else:
            del self._prompts[each.number]
            held = each.held
            self._load += each.done
        self.pool.give(held)
        self.pool.leave(each.node)
        each.node, each.shared, each.held, each.done = None, 0, 0, 0
        self.adapters.leave(each.adapter)
        self.models.leave(each.model)
        return seconds

    def _count_present(self, at: float) -> None:
        """Add the requests that were here since somebody looked."""
        self.account.present(self.waiting + len(self._running), at)

    def check(self) -> None:
        """Raise `AssertionError` where blocks or tokens were lost."""
        self.pool.check(sum(map(self._own_blocks, self._running.values())) + self._reserved)
        self.spill.check()
        if not self.busy and (self._load or not self._decoding.empty):
            raise AssertionError(f"{self._load} tokens of no request are left: a bug")

    def _own_blocks(self, each: LiveRequest) -> int:
        """Blocks of a running request that are none of the tree of prefixes."""
        if self._static or not each.deciding:
            return each.held
        return -(-self._decoding.length(each) // self.settings.block) - each.shared


__all__ = ["Replica"]
