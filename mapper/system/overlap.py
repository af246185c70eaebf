"""What messages pass beside: schedules of a layer's operators on streams, as transforms of its operator graph.

A chip computes on one stream and its messages are on others, one for each dimension of the plan. A layer is cut at its
messages into segments; what differs between transforms is who waits for a message, and what else there is to compute
meanwhile:

``none``
    The next operator waits for it.
``tokens``
    Two halves of the tokens take turns: a half's messages pass while the other half computes (TokenWeave, 2025). The
    norm and residual sum that follow a sum are done within it, on a part of the tokens of each chip.
``nano``
    As ``tokens``, and decode's attention, which reads memory, runs beside the other half's products, on multiprocessors
    of its own (NanoFlow, 2024). All halves' bytes still go through one memory.
``tiles``
    A product sends its tiles as it makes them, or starts with the tiles whose rows have come (Flux, 2024): what is left
    of each message the machine says. Of tensor-parallel sums beside products; other messages are in line.
``ladder``
    Each half of a layer uses the residual stream without the sum of the half before it, which passes meanwhile
    (Ladder-residual, 2025). A change of the model.
``shortcut``
    A mixture's tokens travel and are computed beside the next layer's attention (shortcut-connected experts, 2024;
    LongCat-Flash, 2025). A change of the model.

Messages beside kernels need some multiprocessors of a GPU, which the kernels then lack, and all that overlaps shares
one memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import NotSupported
from siliconloom.mapper.system.contracts import Machine
from siliconloom.mapper.system.parallel import share
from siliconloom.mapper.system.plan import Plan
from siliconloom.mapper.system.shard import sequences_of, tokens_of
from siliconloom.sim.system.streams import Tasks, run_tasks
from siliconloom.workloads import Attention, Collective, Gemm, Graph, Operator, Phase
from siliconloom.workloads.roles import Pass, Role

SUM_MULTIPROCESSORS = 8
"""That a sum beside kernels runs on (TokenWeave, section 4: 2 to 8 of an H100's 132)."""
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the multiprocessors, that attention beside products is tried with."""
COMPUTE, MEMORY = 0, 1
STREAMS = {"tensor": 2, "expert": 3, "context": 4, "expert_tensor": 2}
SHORT, LONG = 4, 8
"""Layers in a row whose difference is a layer's time once the schedule is under way."""
PICO = 1e12

Seconds = Callable[[Graph, Machine], Mapping[str, float]]
"""Seconds of every operator of a part, messages among them."""


class OverlapSegment(Struct, frozen=True):
    """Work of a stream, then a message; what comes after it in the layer needs the message."""

    name: str
    stream: int
    seconds: float


class BlockPass(Struct, frozen=True):
    """A block's pass forward, or its pass backward; ``block`` names the block of the forward pass."""

    block: str
    backward: bool

    def operators(self, part: Graph) -> list[Operator]:
        """Operators of the pass; those that nobody in it waits for, gradients of weights, are left out."""
        steps = [o for o in part.operators() if o.forward_block == self.block and o.place.backward == self.backward]
        return [o for o in steps if o.place.step not in (Pass.WEIGHT_GRADIENT, Pass.OPTIMIZER)]


def layer_seconds(
    graph: Graph, part: Graph, of: BlockPass, plan: Plan, machine: Machine, seconds: Seconds, whole: Mapping[str, float]
) -> float:
    """Seconds of one execution of a block's pass, with messages passing as ``plan.overlap`` says.

    Parameters
    ----------
    graph, part, whole
        All chips' operators, one chip's, and the seconds of those.

    Raises
    ------
    NotSupported
        For halves of what cannot be halved, and for chips whose kernels cannot be given a part of it.
    """
    operators = of.operators(part)
    if plan.overlap in ("ladder", "shortcut"):
        late = {"ladder": ("tensor",), "shortcut": ("expert",)}[plan.overlap]
        beside = whole
        if machine.multiprocessors > 1:
            beside = seconds(part, machine.without(SUM_MULTIPROCESSORS))
        found = steady(lambda tasks, layers: _rewired(tasks, _segments(operators, beside), layers, late))
        return max(found, _memory(operators) / machine.bandwidth)
    if machine.multiprocessors > 1 and plan.overlap == "tiles":
        return _tiled(operators, whole, machine, plan.tensor)
    if machine.multiprocessors == 1:
        raise NotSupported(f"plan.overlap {plan.overlap} on {machine.name}: its kernels take the whole chip")
    halves = [share(half, plan.split) for half in _halves(graph)]
    fewer = machine.without(SUM_MULTIPROCESSORS)
    times = [seconds(half, fewer) for half in halves]
    own = list(zip([of.operators(half) for half in halves], times, strict=True))
    if plan.overlap == "nano":  # attention that is short is better left in its place
        in_line = _in_turns(halves, of, machine, [_segments(operators, t) for operators, t in own])
        return min(in_line, *(_nano(halves, of, machine, fewer, seconds, a) for a in SHARES))
    return _in_turns(halves, of, machine, [_fused(operators, t, plan.tensor) for operators, t in own])


def _in_turns(halves: list[Graph], of: BlockPass, machine: Machine, chains: list[list[OverlapSegment]]) -> float:
    """Seconds of a layer whose halves take turns, no less than their bytes take."""
    found = steady(lambda tasks, layers: turns(tasks, chains, layers))
    return max(found, sum(_memory(of.operators(half)) for half in halves) / machine.bandwidth)


def _halves(graph: Graph) -> list[Graph]:
    """Both halves of the sequences, or of a prompt's tokens; of requests of unequal lengths half of those of each."""
    odd = next((each for each in graph.requests if each.count % 2), None)
    if odd is not None:
        raise NotSupported(f"halves of {odd.count} requests of {odd.new} tokens behind {odd.context}")
    if graph.batch % 2 == 0:
        return [sequences_of(graph, graph.batch // 2)] * 2
    if graph.phase is Phase.PREFILL and graph.batch == 1:
        return [tokens_of(graph, half, 2) for half in range(2)]
    raise NotSupported(f"halves of {graph.batch} sequences")


def _segments(operators: list[Operator], seconds: Mapping[str, float]) -> list[OverlapSegment]:
    """Operators in order, neighbours on a stream put together."""
    found: list[OverlapSegment] = []
    for operator in operators:
        stream = STREAMS[operator.dimension] if isinstance(operator, Collective) else COMPUTE
        time = seconds.get(operator.name, 0.0)
        if found and found[-1].stream == stream:
            found[-1] = replace(found[-1], seconds=found[-1].seconds + time)
        else:
            found.append(OverlapSegment(operator.name, stream, time))
    return found


def _fused(operators: list[Operator], seconds: Mapping[str, float], tensor: int) -> list[OverlapSegment]:
    """Segments with the norms and residual sums of a layer in the sums before them, on a part of the tokens each."""
    taken = [o for o in operators if _residual(o)]
    rest = _segments([o for o in operators if not _residual(o)], seconds)
    sums = [at for at, s in enumerate(rest) if s.stream != COMPUTE]
    if not sums or not taken:
        return rest
    more = sum(seconds.get(o.name, 0.0) for o in taken) / tensor / len(sums)
    return [replace(s, seconds=s.seconds + more) if at in sums else s for at, s in enumerate(rest)]


def _residual(operator: Operator) -> bool:
    return operator.place.step is Pass.FORWARD and operator.role in (Role.NORM, Role.RESIDUAL)


def steady(build: Callable[[Tasks, int], None]) -> float:
    """Seconds of a layer among many."""
    ends = []
    for layers in (SHORT, LONG):
        tasks = Tasks()
        build(tasks, layers)
        ends.append(run_tasks(tasks).finish)
    return (ends[1] - ends[0]) / (LONG - SHORT) / PICO


def turns(tasks: Tasks, chains: list[list[OverlapSegment]], layers: int) -> None:
    """Halves take turns on every stream; each half's segments follow each other."""
    ready: list[int | None] = [None] * len(chains)
    for layer in range(layers):
        for place in range(max(len(c) for c in chains)):
            for half, chain in enumerate(chains):
                if place >= len(chain):
                    continue
                segment = chain[place]
                name = f"{segment.name} of layer {layer}, half {half}"
                task = tasks.add(name, segment.stream, round(segment.seconds * PICO))
                before = ready[half]
                if before is not None:
                    tasks.wait(task, before)
                ready[half] = task


def _rewired(tasks: Tasks, segments: list[OverlapSegment], layers: int, late: tuple[str, ...]) -> None:
    """Compute goes on beside messages of some dimensions: who needed one needs the one before it."""
    streams = {STREAMS[d] for d in late}
    compute: int | None = None
    waited: list[int] = []  # late messages on their way, the oldest first
    for layer in range(layers):
        for segment in segments:
            task = tasks.add(f"{segment.name} of layer {layer}", segment.stream, round(segment.seconds * PICO))
            if compute is not None:
                tasks.wait(task, compute)
            if segment.stream in streams:
                waited.append(task)
                continue
            if len(waited) > 1:  # the newest may still be on its way
                for message in waited[:-1]:
                    tasks.wait(task, message)
                waited = waited[-1:]
            compute = task


def _nano(halves: list[Graph], of: BlockPass, machine: Machine, fewer: Machine, seconds: Seconds, part: float) -> float:
    """Attention of one half on a part of the multiprocessors, beside the other half's products on the rest."""
    count = fewer.multiprocessors
    attending = machine.without(machine.multiprocessors - max(round(part * count), 1))
    products = machine.without(machine.multiprocessors - max(count - round(part * count), 1))
    chains: list[list[OverlapSegment]] = []
    for half in halves:
        slow, quick = seconds(half, attending), seconds(half, products)
        chain: list[OverlapSegment] = []
        for operator in of.operators(half):
            if isinstance(operator, Collective):
                chain.append(OverlapSegment(operator.name, STREAMS[operator.dimension], quick.get(operator.name, 0.0)))
            elif isinstance(operator, Attention):
                chain.append(OverlapSegment(operator.name, MEMORY, slow.get(operator.name, 0.0)))
            else:
                chain.append(OverlapSegment(operator.name, COMPUTE, quick.get(operator.name, 0.0)))
        chains.append(chain)
    return _in_turns(halves, of, machine, chains)


def _tiled(operators: list[Operator], seconds: Mapping[str, float], machine: Machine, tensor: int) -> float:
    """Operators in line, of messages only what a fused product does not hide."""
    total = 0.0
    for at, operator in enumerate(operators):
        time = seconds.get(operator.name, 0.0)
        if isinstance(operator, Collective) and operator.dimension == "tensor":
            around = operators[at + 1 :] if operator.operation == "all_gather" else operators[:at][::-1]
            product = next((o for o in around if isinstance(o, Gemm)), None)
            if product is not None and product.batch == 1:
                time = min(time, machine.fused_rest(operator.operation, product, tensor))
        total += time
    return total


def _memory(operators: list[Operator]) -> float:
    """Bytes that pass through memory whatever is kept nearer: parameters, keys and values, messages in and out.

    What overlaps shares one memory, so its streams together take at least these bytes' time.
    """
    found = 0.0
    for operator in operators:
        if isinstance(operator, Attention):
            found += operator.input_bytes
        elif isinstance(operator, Gemm):
            found += operator.precision.size(operator.batch * operator.k * operator.n * operator.weight)
        elif isinstance(operator, Collective):
            found += 2 * operator.input_bytes
    return found
