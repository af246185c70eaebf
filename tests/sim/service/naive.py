"""A scheduler written down a second time, token by token and request by request, for tests to hold the other to.

It knows no jumps, no counters of blocks and no heaps: every step goes through every request. It has the rules of
vLLM's v1 engine as `docs/serving.md` states them, and imports nothing that it checks.
"""

import math


class Asked:
    def __init__(self, number, arrival, prompt, output, priority=0, model=0):
        self.model = model
        self.number, self.arrival, self.prompt, self.output, self.priority = number, arrival, prompt, output, priority
        self.cached = 0
        self.made = 0
        self.target = prompt
        self.blocks = 0
        self.scheduled = self.first = self.finished = None
        self.preempted = 0
        self.tokens = []

    @property
    def answering(self):
        return self.made > 0 and self.cached >= self.target


def linear(base, per_prompt_token, per_request, per_context):
    """Seconds of a step as a sum; `naive` and a `StepCosts` of the same numbers agree."""

    def seconds(chunks, contexts):
        return (
            base
            + per_prompt_token * sum(n for n, _ in chunks)
            + per_request * len(contexts)
            + per_context * sum(contexts)
        )

    return seconds


class Engine:
    """One scheduler: what its next step does, and what becomes of it when it ends."""

    def __init__(self, *, blocks, block=16, most=256, budget=2048, mode="continuous", by_priority=False, models=None):
        self.slots, self.load_s = models or (1, 0.0)
        self.there, self.loads, self.loading_s = [], 0, 0.0
        self.blocks, self.block, self.most, self.budget, self.mode = blocks, block, most, budget, mode
        self.by_priority = by_priority
        self.waiting, self.running = [], []

    def key(self, r):
        return (r.priority if self.by_priority else 0, r.number)

    def free(self):
        return self.blocks - sum(r.blocks for r in self.running)

    def needs(self, r, tokens):
        return math.ceil((r.cached + tokens) / self.block) - r.blocks

    def preempt(self):
        victim = max(self.running, key=self.key)
        self.running.remove(victim)
        victim.preempted += 1
        victim.target = victim.prompt + victim.made
        victim.cached = victim.blocks = 0
        self.waiting.append(victim)

    def reserved(self):
        return sum(self.needs(r, 1) for r in self.running if r.answering)

    def step(self, now):
        """Choose what is done next; returns prompts' chunks and requests that get their next token."""
        running, waiting = self.running, self.waiting
        waiting.sort(key=self.key)
        preempted = False
        while self.reserved() > self.free():
            self.preempt()
            preempted = True
        plan, self.loading_s = {}, 0.0
        decoding = [r for r in running if r.answering]
        left = self.budget if self.mode == "prefill_first" else self.budget - len(decoding)
        reserved = self.reserved()
        for r in [r for r in running if not r.answering]:
            if left <= 0 or r not in running:
                continue
            size = min(left, r.target - r.cached)
            while self.needs(r, size) > self.free() - reserved and r in running:
                self.preempt()
                preempted = True
                reserved = self.reserved()
            if r not in running:
                break
            r.blocks += self.needs(r, size)
            plan[r] = size
            left -= size
        waiting.sort(key=self.key)
        while waiting and not preempted and len(running) < self.most and left > 0:
            r = waiting[0]
            whole = self.mode != "continuous"
            size = r.target if whole else min(left, r.target)
            beside = decoding if self.mode == "unchunked" else []
            if whole and r.target > left and (plan or beside):
                break
            if self.needs(r, size) > self.free() - reserved:
                break
            used = {other.model for other in running}
            if r.model not in self.there and len(used) >= self.slots:
                break
            waiting.pop(0)
            self.bring(r.model, used)
            running.append(r)
            r.blocks += self.needs(r, size)
            if r.scheduled is None:
                r.scheduled = now
            plan[r] = size
            left -= size
        alone = self.mode == "prefill_first" and plan
        decoding = [] if alone else [r for r in running if r.answering]
        self.doing = plan, decoding
        return [(size, r.cached) for r, size in plan.items()], [r.cached + 1 for r in decoding]

    def bring(self, model, used):
        """The model of a request that begins to run is there, and was used last."""
        if model in self.there:
            self.there.remove(model)
        else:
            self.loads += 1
            self.loading_s += self.load_s
            if len(self.there) == self.slots:
                self.there.remove(next(each for each in self.there if each not in used))
        self.there.append(model)

    def seconds(self, of):
        """What the step takes where each model has a pass of its own; ``of`` is one of `linear`."""
        plan, decoding = self.doing
        total = self.loading_s
        for model in {r.model for r in (*plan, *decoding)}:
            chunks = [(size, r.cached) for r, size in plan.items() if r.model == model]
            total += of(chunks, [r.cached + 1 for r in decoding if r.model == model])
        return total

    def end(self, now):
        """The step has ended."""
        plan, decoding = self.doing
        for r in decoding:
            r.blocks += self.needs(r, 1)
            r.cached += 1
            r.made += 1
            r.tokens.append(now)
        for r, size in plan.items():
            r.cached += size
            if r.cached == r.target:
                r.made += 1
                r.tokens.append(now)
                if r.first is None:
                    r.first = now
        for r in list(self.running):
            if r.made == r.output:
                r.finished = now
                self.running.remove(r)
        assert sum(r.blocks for r in self.running) <= self.blocks


def serve(requests, seconds, *, loads=None, **rules):
    """Serve (arrival, prompt, output, priority, model) rows on one replica; returns them with their times.

    ``loads`` is told after every step how many models were brought so far.
    """
    loads = [] if loads is None else loads
    asked = [Asked(n, *row) for n, row in enumerate(requests)]
    to_come = list(asked)
    engine = Engine(**rules)
    now, steps = 0.0, 0
    while to_come or engine.waiting or engine.running:
        while to_come and to_come[0].arrival <= now:
            engine.waiting.append(to_come.pop(0))
        if not engine.waiting and not engine.running:
            now = to_come[0].arrival
            continue
        engine.step(now)
        now += engine.seconds(seconds)
        steps += 1
        engine.end(now)
        loads.append(engine.loads)
    return asked, steps


def pipelined(requests, passage, stages, *, blocks, **rules):
    """The same on a pipeline, of whose stages each is one step's at a time.

    ``passage`` says of a step what the host takes, what each stage takes, and the way from one to the next. Time goes
    from one event to the next: who is in which stage is looked up, not computed.
    """
    asked = [Asked(n, *row) for n, row in enumerate(requests)]
    to_come = list(asked)
    engines = [Engine(blocks=blocks // stages, **rules) for _ in range(stages)]
    at_host, in_stage = [], [[] for _ in range(stages)]  # queues; the first of each is at work, since when it began
    steps = 0

    def start(now):
        for engine in engines:
            under_way = [e for queue in in_stage for e, *_ in queue] + [flight[2] for flight in flights]
            busy = engine in at_host or engine in under_way
            if not busy and (engine.waiting or engine.running):
                at_host.append(engine)

    host_ends, host_job = None, None
    flights = []  # (when it arrives, stage, engine, passage)
    ends = [None] * stages
    now = 0.0
    while True:
        start(now)
        # whoever is first at the host begins to be scheduled there and then
        moved = True
        while moved:
            moved = False
            if host_ends is None and at_host:
                engine = at_host[0]
                job = passage(*engine.step(now))
                steps += 1
                host_ends, host_job = now + job[0], (engine, job)
                moved = True
            for s in range(stages):
                if ends[s] is None and in_stage[s]:
                    ends[s] = now + in_stage[s][0][1][1][s]
                    moved = True
        times = [t for t in [host_ends, *ends, *(f[0] for f in flights)] if t is not None]
        if to_come:
            times.append(to_come[0].arrival)
        if not times:
            return asked, steps
        now = min(times)
        for s in reversed(range(stages)):
            if ends[s] == now:
                engine, job = in_stage[s].pop(0)
                ends[s] = None
                if s == stages - 1:
                    engine.end(now)
                else:
                    flights.append((now + job[2], s + 1, engine, job))
        if host_ends == now:
            in_stage[0].append(host_job)
            at_host.pop(0)
            host_ends = None
        for flight in [f for f in flights if f[0] == now]:
            flights.remove(flight)
            in_stage[flight[1]].append(flight[2:])
        while to_come and to_come[0].arrival == now:
            r = to_come.pop(0)
            min(engines, key=lambda e: len(e.waiting) + len(e.running)).waiting.append(r)
