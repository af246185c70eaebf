"""What a step of a serving engine takes on a replica's chips: the evaluator's answers to what the step consists of.

A step's operators are of three kinds. What every new token passes through once (products, norms, messages) depends on
how many new tokens there are; the head on how many of them have a next token; attention, with its appends to the
cache, on the lengths of each request. Of each the evaluator is asked by itself, for the numbers that a step has, and
what it said is kept. Requests that get their next token are one attention of their number and their mean length.

Predicted machines (GPUs) are asked for every number of tokens and requests that comes up. Simulated ones take a tenth
of a second for an answer, and are asked on a grid (`sim.service.costs.COUNTS`), with straight lines between; so are
lengths on every machine (`LENGTHS`). `ReplicaCosts.whole` asks for a true step in full, and a service says how far
steps were off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from siliconloom.arch import NotSupported
from siliconloom.arch.memo import key_of, shared_memo
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.asked import workload_digest
from siliconloom.evaluate.chip_machine import ChipMachine
from siliconloom.evaluate.chip_part import operator_rows
from siliconloom.evaluate.cluster import with_messages
from siliconloom.evaluate.predicted_attention import PredictedAttention, next_tokens
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.layers import Block, extent, message_seconds
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.chip.energy import standing_power
from siliconloom.sim.service.costs import COUNTS, EQUAL, Chunk, RequestLengths, StepPassage
from siliconloom.workloads import Attention, Collective, Graph, Operator, Vector
from siliconloom.workloads.roles import Role, Section
from siliconloom.workloads.subgraph import subgraph

Float = NDArray[np.float64]
Ask = Callable[[Sequence[tuple[str, str]]], Graph]
"""Makes the model's graph for keys of a workload (``phase``, ``batch``, ``context``, ``sequence``, ``requests``)."""

LENGTHS = tuple(sorted({1, *(round(2 ** (k / 2)) for k in range(8, 51))}))
"""Lengths of contexts that predicted machines are asked for, two to every doubling: kernels split them in steps."""
KNOWN_BY = (1, 7, 32, 1000)
"""Next tokens of steps that a model is known by: experts that are preferred are the same in a step of one token."""
ATTENTION_BACK = 2.5
"""Of an attention's time forward what it takes back."""
STRAIGHT = (1, *(4**k for k in range(3, 13)))
"""Those of simulated ones, whose attention takes a longer context in straight measure."""
CACHES = (Role.CACHE, Role.LATENT_CACHE)


class StepTerms(Struct, frozen=True):
    """A step's parts: seconds, joules above what its chips draw anyway, and kernels that are launched.

    Parameters
    ----------
    body, head, attention
        Seconds and joules of each.
    launched
        Kernels of the body and of attention.
    """

    body: tuple[float, float]
    head: tuple[float, float]
    attention: tuple[float, float]
    launched: float


FIELDS = 7


class StepParts(Struct, frozen=True):
    """The same of steps in a row, whose attention differs."""

    body: tuple[float, float]
    head: tuple[float, float]
    attention: tuple[Float, Float]
    launched: float | Float

    @property
    def seconds(self) -> Float:
        return self.attention[0] + (self.body[0] + self.head[0])

    @property
    def joules(self) -> Float:
        return self.attention[1] + (self.body[1] + self.head[1])


class ReplicaCosts:
    """Costs of one replica: the chips that a plan puts one copy of a model on.

    Parameters
    ----------
    cluster
        The replica's chips.
    ask
        See `Ask`.
    plan
        Degrees within the replica.
    stack
        Software of the host.
    longest
        Tokens of the longest request that there will be.
    guesses
        Tokens that a step checks for each request beside its next one.
    """

    def __init__(
        self,
        cluster: Cluster,
        ask: Ask,
        plan: Plan,
        *,
        stack: Stack = NO_STACK,
        longest: int = LENGTHS[-1],
        guesses: int = 0,
    ) -> None:
        self._guesses = guesses
        cluster = with_messages(cluster, stack.messages)
        machine = cluster.machine
        if len(cluster.kinds) > 1:
            raise NotSupported(f"serving on {cluster.name}, whose chips differ")
        if plan.context > 1 or plan.attention_chips or plan.overlap != "none":
            raise NotSupported(
                f"serving under {plan.text(training=False)}: replicas share a model by plan.tensor, plan.pipeline and "
                "plan.expert"
            )
        self.cluster, self.ask, self.plan, self.stack = cluster, ask, plan, stack
        self._exact = isinstance(machine, GpuMachine)
        self._lengths = [*(n for n in (LENGTHS if self._exact else STRAIGHT) if n < longest), longest]
        self._found: dict[tuple[str, int, int], StepTerms] = {}
        self._answers: dict[tuple[Any, ...], tuple[float, float]] = {}
        self._predicted: PredictedAttention | None = None
        self._curves: dict[int, tuple[Float, Float, Float]] = {}
        self._asked = 0
        self._sharing = cluster.chips // plan.pipeline
        """Chips that do every layer together."""
        if isinstance(machine, GpuMachine):
            self._predicted = PredictedAttention(
                machine, lambda sets: self._part(ask(sets)), self._lengths, guesses, self._sharing
            )
        steps = [workload_digest(ask([("phase", "decode"), ("batch", str(n)), ("context", "1")])) for n in KNOWN_BY]
        digest = *steps, cluster.digest, repr(plan), str(machine), str(self._lengths[-1]), str(guesses)
        self._key = key_of("serving costs", *digest)
        stored = shared_memo().known(self._key)
        if stored is not None:
            kinds = stored["kinds"].tolist()
            for kind, (a, b), values in zip(kinds, stored["numbers"].tolist(), stored["terms"].tolist(), strict=True):
                v = values
                self._found[kind, a, b] = StepTerms((v[0], v[1]), (v[2], v[3]), (v[4], v[5]), v[6])

    @property
    def standing_w(self) -> float:
        """Watts of the replica's chips, whether they work or not."""
        machine = self.cluster.machine
        if isinstance(machine, GpuMachine):
            each = float(machine.gpu.idle_power)
        else:
            assert isinstance(machine, ChipMachine)
            each = sum(standing_power(machine.chip).values())
        return each * self.cluster.chips

    @property
    def predicted(self) -> bool:
        """Whether the machine's times are predictions, and asked for every number of tokens."""
        return self._exact

    @property
    def asked(self) -> int:
        """How often the evaluator was asked."""
        return self._asked + (0 if self._predicted is None else self._predicted.asked)

    def keep(self) -> None:
        """Keep what the evaluator said for other processes."""
        if not self._asked:
            return
        kinds = np.array([kind for kind, _, _ in self._found], str)
        numbers = np.array([(a, b) for _, a, b in self._found], np.int64).reshape(-1, 2)
        terms = np.array([(*t.body, *t.head, *t.attention, t.launched) for t in self._found.values()])
        shared_memo().keep(self._key, {"kinds": kinds, "numbers": numbers, "terms": terms.reshape(-1, FIELDS)})

    def steps(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float]:
        """See `siliconloom.sim.service.costs.StepCosts`."""
        parts = self._step_parts(chunks, ended, count, contexts, lengths)
        seconds, joules, sequences = parts.seconds, parts.joules, count + len(chunks)
        if self.plan.pipeline == 1:
            return self.stack.step_seconds(seconds, parts.launched, sequences, self.plan.tensor), joules
        of_stages, hop = self._stage_seconds(parts, self._tokens(chunks, count))
        through = np.sum(of_stages, axis=0) + hop * (self.plan.pipeline - 1)
        return through + self.stack.host(sequences, self.plan.tensor), joules

    def passage(
        self, chunks: Sequence[Chunk], ended: int, count: int, context: float, lengths: RequestLengths = EQUAL
    ) -> StepPassage:
        """See `siliconloom.sim.service.costs.StagedCosts`."""
        parts = self._step_parts(chunks, ended, count, np.array([context]), lengths)
        of_stages, hop = self._stage_seconds(parts, self._tokens(chunks, count))
        host = self.stack.host(count + len(chunks), self.plan.tensor)
        return StepPassage(host, tuple(float(seconds[0]) for seconds in of_stages), hop)

    def layer_seconds(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> Float:
        """See `siliconloom.sim.service.costs.LayeredCosts`: kernels, or their launches where these take longer."""
        parts = self._step_parts(chunks, ended, count, contexts, lengths)
        seconds = np.maximum(parts.attention[0] + parts.body[0], parts.launched * self.stack.kernel)
        return np.asarray(seconds / self._depth, np.float64)

    def kernels(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths = EQUAL
    ) -> tuple[Float, Float, float | Float]:
        """Seconds and joules of the steps' kernels, and how many of them one launches."""
        parts = self._step_parts(chunks, ended, count, contexts, lengths)
        return parts.seconds, parts.joules, parts.launched

    def backward(self, new: int, known: int) -> tuple[float, float]:
        """See `siliconloom.sim.service.tuning.TrainedCosts`.

        Frozen products take as long back as forward. Attention has five products in place of two (FlashAttention-2,
        Dao, 2023, section 3.1).
        """
        seconds, joules = self._chunk_attention(new, known)
        return seconds * (ATTENTION_BACK - 1), joules * (ATTENTION_BACK - 1)

    def _tokens(self, chunks: Sequence[Chunk], count: int) -> int:
        return count * (self._guesses + 1) + sum(new for new, _ in chunks)

    def _stage_seconds(self, parts: StepParts, tokens: int) -> tuple[list[Float], float]:
        """Of steps in a row, seconds of each stage's chips, and seconds from one to the next."""
        layers = sum(self.dealt)
        whole = parts.body[0] + parts.attention[0]
        found: list[Float] = []
        for stage, mine in enumerate(self.dealt):
            seconds = whole * (mine / layers) + (parts.head[0] if stage == len(self.dealt) - 1 else 0.0)
            found.append(np.maximum(seconds, parts.launched * mine / layers * self.stack.kernel))
        return found, self._stepping.hop(self.plan, tokens)

    @cached_property
    def _stepping(self) -> Server:
        """Steps of one token of one request, for what stages hand on."""
        return Server(self.cluster, self.ask(next_tokens(1, self._lengths[0], self._guesses)))

    @cached_property
    def _depth(self) -> int:
        """Layers, each of which has an attention."""
        graph = self.ask(next_tokens(1, self._lengths[0], self._guesses))
        return sum(o.repeat for o in graph.operators() if isinstance(o, Attention))

    @cached_property
    def dealt(self) -> tuple[int, ...]:
        """Layers of every stage of the pipeline."""
        return stage_layers(self.cluster, self.ask, self.plan)

    def _step_parts(
        self, chunks: Sequence[Chunk], ended: int, count: int, contexts: Float, lengths: RequestLengths
    ) -> StepParts:
        """Parts of the steps' kernels."""
        seconds, joules = np.zeros(len(contexts)), np.zeros(len(contexts))
        body, head, launched = (0.0, 0.0), (0.0, 0.0), 0.0
        more: float | Float = 0.0
        if chunks:
            tokens, rows = self._tokens(chunks, count), count + -(-ended // (self._guesses + 1))
            body = self._blend(tokens, lambda n: self._body(n).body)
            head = self._blend(rows, lambda n: self._decode(n, self._lengths[0]).head) if rows else head
            launched = self._decode(1, self._lengths[0]).launched
            if self._exact:  # one kernel for all requests, whatever their lengths: what each takes anyway counts once
                seconds -= (len(set(chunks)) - 1) * self._chunk(1, 0).attention[0]
                seconds -= self._decode(1, 1).attention[0] * (count > 0)
            for (new, known), many in Counter(chunks).items():
                chunk_s, chunk_j = self._chunk_attention(new, known, many)
                seconds, joules = seconds + chunk_s, joules + chunk_j
        if count:
            token_s, token_j, more = self._token_attention(count, contexts, lengths)
            seconds, joules = seconds + token_s, joules + token_j
            if not chunks:
                first = self._lengths[0]
                body = self._blend(count, lambda n: self._decode(n, first).body)
                head = self._blend(count, lambda n: self._decode(n, first).head)
                launched = self._decode(1, first).launched
        return StepParts(body, head, (seconds, joules), launched + more)

    def _token_attention(
        self, count: int, contexts: Float, lengths: RequestLengths
    ) -> tuple[Float, Float, float | Float]:
        """Attention of next tokens in steps in a row, and kernels more than one for each layer.

        A program of ours has one for every length that requests have: as many as there are lengths, of equal shares of
        the requests. A GPU has one kernel for all.
        """
        if self._predicted is not None:
            return self._predicted.tokens(count, contexts, lengths)
        seconds, joules = np.zeros(len(contexts)), np.zeros(len(contexts))
        each, more = divmod(count, lengths.distinct)
        for size, times in ((each, lengths.distinct - more), (each + 1, more)):
            if size and times:
                at, curve_s, curve_j = self._curve(size, float(contexts[-1]))
                seconds += np.interp(contexts, at, curve_s) * times
                joules += np.interp(contexts, at, curve_j) * times
        return seconds, joules, 0.0

    def whole(self, chunks: Sequence[Chunk], contexts: Sequence[int]) -> float:
        """Seconds of the kernels of a true step, asked in full: every request with its own length."""
        entries = [f"{{new: {new}, context: {known}}}" for new, known in chunks]
        alike: dict[int, int] = {}
        for each in contexts:
            alike[each] = alike.get(each, 0) + 1
        new = self._guesses + 1
        entries += [f"{{new: {new}, context: {each - 1}, count: {n}}}" for each, n in alike.items()]
        terms = self._terms(self.ask([("requests", f"[{', '.join(entries)}]")]))
        return terms.body[0] + terms.head[0] + terms.attention[0]

    def _blend(self, number: int, of: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
        """What ``of`` says for a number, or a straight line between the two that are asked for around it."""
        if self._exact or number in COUNTS:
            return of(number)
        at = bisect_left(COUNTS, number)
        if at == len(COUNTS):
            return of(number)
        low, high = COUNTS[at - 1], COUNTS[at]
        a, b, share = of(low), of(high), (number - low) / (high - low)
        return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share

    def _curve(self, count: int, longest: float) -> tuple[Float, Float, Float]:
        """Attention of ``count`` next tokens on a simulated machine by their mean length, up to ``longest``."""
        known = self._curves.get(count)
        if known is not None and known[0][-1] >= longest:
            return known
        lengths = self._upto(longest)
        found = [self._blend(count, lambda n, c=c: self._decode(n, c).attention) for c in lengths]  # type: ignore[misc]
        made = (np.array(lengths, np.float64), np.array([s for s, _ in found]), np.array([j for _, j in found]))
        self._curves[count] = made
        return made

    def _upto(self, longest: float) -> list[int]:
        """Lengths that are asked for up to one."""
        return self._lengths[: min(bisect_left(self._lengths, longest) + 1, len(self._lengths))]

    def _chunk_attention(self, new: int, known: int, many: int = 1) -> tuple[float, float]:
        """Attention of new tokens behind those that lie in the cache, of so many requests that are alike."""
        key = "chunk", new, known, many
        if key in self._answers:
            return self._answers[key]
        if self._predicted is not None and (known or many > 1) and new > 1:
            self._answers[key] = self._predicted.chunks(new, known, many)
            return self._answers[key]
        if many > 1:
            s, j = self._chunk_attention(new, known)
            return s * many, j * many

        def at(length: int) -> tuple[float, float]:
            place = bisect_left(COUNTS, new)
            beyond = place == len(COUNTS) or COUNTS[place] + length > self._lengths[-1]  # longer than any request
            if self._exact or new in COUNTS or beyond:
                return self._chunk(new, length).attention
            # per token, attention is straight between two numbers of them
            low, high = COUNTS[place - 1], COUNTS[min(place, len(COUNTS) - 1)]
            a, b = (self._chunk(n, length).attention for n in (low, high))
            share = (new - low) / (high - low)
            s, j = ((x / low + (y / high - x / low) * share) * new for x, y in zip(a, b, strict=True))
            return s, j

        place = bisect_left(self._lengths, known)
        low = self._lengths[place - 1] if place else 0
        high = min(self._lengths[min(place, len(self._lengths) - 1)], self._lengths[-1] - new)
        if known == 0 or high <= known:  # asked for itself, or no request is longer
            low, high = known, known + 1
        share = (known - low) / (high - low)
        a = at(low)
        b = at(high) if share else a
        found = a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share
        self._answers[key] = found
        return found

    def _decode(self, count: int, length: int) -> StepTerms:
        return self._term("decode", count, length, next_tokens(count, length, self._guesses))

    def _body(self, tokens: int) -> StepTerms:
        """Terms of so many new tokens, in prompts that are no longer than requests are: of these the body is meant."""
        longest = self._lengths[-1]
        whole, rest = divmod(tokens, longest)
        if not whole or tokens == longest:
            return self._chunk(tokens, 0)
        entries = [
            f"{{new: {longest}, context: 0, count: {whole}}}",
            *([f"{{new: {rest}, context: 0}}"] if rest else []),
        ]
        return self._term("body", tokens, longest, [("requests", f"[{', '.join(entries)}]")])

    def _chunk(self, new: int, known: int) -> StepTerms:
        if not known:
            return self._term("chunk", new, 0, [("phase", "prefill"), ("batch", "1"), ("sequence", str(new))])
        return self._term("chunk", new, known, [("requests", f"[{{new: {new}, context: {known}}}]")])

    def _term(self, kind: str, a: int, b: int, sets: Sequence[tuple[str, str]]) -> StepTerms:
        found = self._found.get((kind, a, b))
        if found is None:
            apart = not self._exact and b > {"decode": self._lengths[0], "chunk": 0}.get(kind, b)
            found = self._found[kind, a, b] = self._terms(self.ask(sets), apart=apart)
            self._asked += 1
        return found

    def _part(self, graph: Graph) -> Graph:
        """One chip's operators."""
        server = Server(self.cluster, graph)
        return server.layers.part(self.plan, server.batch)

    def _terms(self, graph: Graph, *, apart: bool = False) -> StepTerms:
        """Parts of a step of one chip, and of all chips its energy; ``apart``, of attention and its appends alone.

        The others are known from a step of as many tokens, and simulating them again for every length takes long.
        """
        part = self._part(graph)
        if apart:
            part = subgraph(part, [o for o in part.operators() if _kind_of(o) == "attention"])
        machine, chips = self.cluster.machine, self._sharing
        seconds, joules, launched = _asked_of(machine, part, self.plan)
        sums = {"body": [0.0, 0.0], "head": [0.0, 0.0], "attention": [0.0, 0.0]}
        for operator in part.operators():
            here = sums[_kind_of(operator)]
            if isinstance(operator, Collective):
                here[0] += message_seconds(operator, self.plan, self.cluster.fabrics[0]) * operator.repeat
                continue
            here[0] += seconds.get(operator.name, 0.0) * operator.repeat
            here[1] += joules.get(operator.name, 0.0) * operator.repeat * chips
        body, head, attention = ((s, j) for s, j in sums.values())
        return StepTerms(body, head, attention, launched)


def _kind_of(operator: Operator) -> str:
    if isinstance(operator, Attention) or (isinstance(operator, Vector) and operator.role in CACHES):
        return "attention"
    return "head" if operator.place.section is Section.HEAD else "body"


def _asked_of(machine: Any, part: Graph, plan: Plan) -> tuple[Mapping[str, float], Mapping[str, float], float]:
    """Seconds of one execution of each operator of a chip's part, joules above standing, and kernels in all."""
    if isinstance(machine, GpuMachine):
        groups = {name: extent(plan, name)[1] for name in ("tensor", "context", "expert", "expert_tensor")}
        found = machine.predicted(part, groups=groups)
        joules: dict[str, float] = {}
        above = np.maximum(found.joules - found.seconds * machine.gpu.idle_power, 0.0)
        for kernel, value in zip(found.kernels, above.tolist(), strict=True):
            joules[kernel.operator] = joules.get(kernel.operator, 0.0) + value
        return found.by_operator, joules, float(sum(k.repeat for k in found.kernels if not k.fused))
    assert isinstance(machine, ChipMachine)
    drawn: dict[str, float] = {}
    done = machine.simulation(part)
    owners = {mapped.task.operator.name: mapped.task.owner for mapped in done.plan.tasks}
    for row in operator_rows(done, lambda _: 1):
        owner = owners[row["name"]]
        drawn[owner] = drawn.get(owner, 0.0) + row["energy_j"] / row["repeat"]
    return machine.seconds(part), drawn, 0.0


DEALT_FOR = 32
"""Requests in the step of next tokens in which the stages of a pipeline take as long as each other."""


def stage_layers(cluster: Cluster, ask: Ask, plan: Plan) -> tuple[int, ...]:
    """Layers of every stage of one replica's pipeline, of steps of next tokens (`mapper.system.stages.deal`)."""
    server, plan = _dealing(cluster, ask, plan)
    return tuple(server.dealt(plan, DEALT_FOR))


def stage_blocks(cluster: Cluster, ask: Ask, plan: Plan) -> list[list[Block]]:
    """Blocks of a chip of every stage of such a step."""
    server, plan = _dealing(cluster, ask, plan)
    return [kinds[0] for kinds in server.stage_blocks(plan, DEALT_FOR, server.dealt(plan, DEALT_FOR))]


def _dealing(cluster: Cluster, ask: Ask, plan: Plan) -> tuple[Server, Plan]:
    server = Server(cluster, ask([("phase", "decode"), ("batch", str(DEALT_FOR)), ("context", "1")]))
    plan = replace(plan, data=1, microbatch=DEALT_FOR)
    server.check(plan)
    return server, plan


__all__ = ["Ask", "ReplicaCosts", "StepTerms", "stage_blocks", "stage_layers"]
