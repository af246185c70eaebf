"""A scheduler written down a second time, token by token and request by request, for tests to hold the other to.

It knows no jumps, no counters of blocks and no heaps: every step goes through every request. It has the rules of
vLLM's v1 engine as `docs/serving.md` states them, and imports nothing that it checks.
"""

import math


class Asked:
    def __init__(self, number, arrival, prompt, output, priority=0):
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


def serve(requests, seconds, *, blocks, block=16, most=256, budget=2048, mode="continuous", by_priority=False):
    """Serve (arrival, prompt, output, priority) rows on one replica; returns them with their times."""
    asked = [Asked(n, *row) for n, row in enumerate(requests)]
    to_come = list(asked)
    waiting, running = [], []
    now = 0.0
    steps = 0

    def key(r):
        return (r.priority if by_priority else 0, r.number)

    def free():
        return blocks - sum(r.blocks for r in running)

    def needs(r, tokens):
        return math.ceil((r.cached + tokens) / block) - r.blocks

    while to_come or waiting or running:
        while to_come and to_come[0].arrival <= now:
            waiting.append(to_come.pop(0))
        if not waiting and not running:
            now = to_come[0].arrival
            continue
        waiting.sort(key=key)
        preempted = False

        def preempt():
            victim = max(running, key=key)
            running.remove(victim)
            victim.preempted += 1
            victim.target = victim.prompt + victim.made
            victim.cached = victim.blocks = 0
            waiting.append(victim)
            return victim

        while sum(needs(r, 1) for r in running if r.answering) > free():
            preempt()
            preempted = True
        plan = {}
        decoding = [r for r in running if r.answering]
        left = budget if mode == "prefill_first" else budget - len(decoding)
        reserved = sum(needs(r, 1) for r in decoding)
        for r in [r for r in running if not r.answering]:
            if left <= 0 or r not in running:
                continue
            size = min(left, r.target - r.cached)
            while needs(r, size) > free() - reserved and r in running:
                preempt()
                preempted = True
                decoding = [d for d in running if d.answering]
                reserved = sum(needs(d, 1) for d in decoding)
            if r not in running:
                break
            r.blocks += needs(r, size)
            plan[r] = size
            left -= size
        waiting.sort(key=key)
        while waiting and not preempted and len(running) < most and left > 0:
            r = waiting[0]
            whole = mode != "continuous"
            size = r.target if whole else min(left, r.target)
            beside = decoding if mode == "unchunked" else []
            if whole and r.target > left and (plan or beside):
                break
            if needs(r, size) > free() - reserved:
                break
            waiting.pop(0)
            running.append(r)
            r.blocks += needs(r, size)
            if r.scheduled is None:
                r.scheduled = now
            plan[r] = size
            left -= size
        if mode == "prefill_first" and plan:
            decoding = []
        else:
            decoding = [r for r in running if r.answering]
        now += seconds([(size, r.cached) for r, size in plan.items()], [r.cached + 1 for r in decoding])
        steps += 1
        for r in decoding:
            r.blocks += needs(r, 1)
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
        for r in list(running):
            if r.made == r.output:
                r.finished = now
                running.remove(r)
        assert sum(r.blocks for r in running) <= blocks
    return asked, steps
