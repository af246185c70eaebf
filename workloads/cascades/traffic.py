"""Live footprints and least traffic of a cascade under a buffer of a given size.

The schedule is a loop over blocks of the outer ranks, in it passes along the stream rank, in them the points of the
block, ``grain`` of them at a time. What lies in the buffer follows:

- *held* through a pass, for every point of a block: what does not lie along the stream rank and is read or reduced in
  it (a query, a result so far), and the state of iterative ranks;
- *kept* between passes, whole fibers: what a later pass reads, unless it is spilled, that is written to memory and
  read again; of several generations of one rank (scores, exponentials, probabilities) only those that are alive
  between the same two passes lie side by side;
- *passing*: one coordinate of an operand that comes from memory, shared by all points of a block;
- *transient*: made and used up at a point; it lies in the arrays, not in the buffer, unless it is staged there.

Inputs that lie along the stream rank come again for every block of the outer ranks that they lack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.workloads.cascades.einsum import Cascade
from siliconloom.workloads.cascades.passes import PassPlan, plan_passes

LARGEST_PRIME = 1 << 20
"""Prime factors of extents that are looked for."""
MOST_CROSSING = 12
"""Tensors read in a later pass of which every choice of what is kept is looked at."""


class Footprint(Struct, frozen=True):
    """What a cascade has in the buffer, in elements.

    Parameters
    ----------
    block
        Points of each outer variable that are worked on in one block.
    held, passing, transient
        Elements of every tensor of that kind (see the module).
    fibers
        Elements that each tensor read in a later pass would take, kept or not.
    kept
        Those of them that are kept.
    between
        Elements of kept fibers side by side, in the fullest gap between two passes.
    """

    block: dict[str, int]
    held: dict[str, int]
    passing: dict[str, int]
    transient: dict[str, int]
    fibers: dict[str, int]
    kept: tuple[str, ...]
    between: int

    @property
    def elements(self) -> int:
        """Elements of buffer that the block takes."""
        return sum(self.held.values()) + sum(self.passing.values()) + self.between


class FusedTraffic(Struct, frozen=True):
    """Bytes from and to memory of a cascade that is fused into one schedule, all instances.

    Parameters
    ----------
    footprint
        What lies in the buffer.
    tensors
        Bytes of each tensor that goes through memory.
    spilled
        Tensors that are read in a later pass and are not kept.
    """

    footprint: Footprint
    tensors: dict[str, int]
    spilled: tuple[str, ...]

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(self.tensors.values())


def footprint(
    cascade: Cascade,
    plan: PassPlan,
    block: Mapping[str, int],
    keep: Sequence[str] | None = None,
    staged: Sequence[str] = (),
) -> Footprint:
    """What lies in the buffer for blocks of the outer variables.

    Parameters
    ----------
    cascade, plan
        The cascade, and its passes over the rank along which operands pass by.
    block
        Points of each outer variable in a block.
    keep
        Tensors read in a later pass that stay on chip; all without it.
    staged
        Transient tensors that lie in the buffer for a whole block all the same.
    """
    keep = tuple(plan.crossing if keep is None else keep)
    held, passing, transient, fibers = (dict[str, int]() for _ in range(4))
    for tensor in cascade.tensors:
        ranks = cascade.ranks_of(tensor)
        along = plan.rank in ranks
        if tensor in plan.crossing:
            fibers[tensor] = _elements(cascade, ranks, "", block)
        if tensor in plan.whole:
            held[tensor] = _elements(cascade, ranks, "", block)
        elif tensor in plan.state or tensor in staged or (not along and _in_pass(cascade, plan, tensor)):
            held[tensor] = _elements(cascade, ranks, plan.rank, block)
        elif along and tensor in cascade.inputs:
            passing[tensor] = _elements(cascade, ranks, plan.rank, cascade_grain(cascade))
        elif tensor not in plan.crossing and (along or tensor in cascade.intermediates):
            transient[tensor] = _elements(cascade, ranks, plan.rank, cascade_grain(cascade))
    gaps = [0]
    for gap in range(1, plan.count):
        alive = [t for t in keep if _born(cascade, plan, t) <= gap < max(plan.crossing[t])]
        gaps.append(sum(fibers[t] for t in alive))
    return Footprint(dict(block), held, passing, transient, fibers, keep, max(gaps))


def cascade_grain(cascade: Cascade) -> dict[str, int]:
    """Points of every outer variable that are worked on at once."""
    return {v: cascade.grain.get(cascade.ranks[v], 1) for v in cascade.outer}


def blocks(cascade: Cascade) -> Iterator[dict[str, int]]:
    """Every way to cut the outer ranks into equal blocks of whole grains."""
    choices = []
    for variable in cascade.outer:
        extent, grain = cascade.extent(variable), cascade_grain(cascade)[variable]
        if extent % grain:
            rank = cascade.ranks[variable]
            raise LoomError(f"{cascade.name}: the grain {grain} of {rank} does not divide its extent {extent}")
        choices.append([grain * n for n in divisors(extent // grain)])
    for sizes in itertools.product(*choices):
        yield dict(zip(cascade.outer, sizes, strict=True))


def divisors(number: int) -> list[int]:
    """Divisors in ascending order; raises `NotSupported` where two prime factors are larger than `LARGEST_PRIME`."""
    found, left, prime = [1], number, 2
    while prime * prime <= left and prime <= LARGEST_PRIME:
        power, powers = 1, [1]
        while left % prime == 0:
            left //= prime
            power *= prime
            powers.append(power)
        if power > 1:
            found = [n * p for n in found for p in powers]
        prime += 1 + (prime > 2)
    if prime * prime <= left:
        raise NotSupported(f"an extent with two prime factors above {LARGEST_PRIME} ({number})")
    return sorted(found if left == 1 else [n * p for n in found for p in (1, left)])


def fused_traffic(
    cascade: Cascade, buffer: float, *, stream: str | None = None, element_bytes: int = 2, staged: Sequence[str] = ()
) -> FusedTraffic:
    """Least traffic of the cascade as one fused schedule under ``buffer`` bytes (``math.inf`` for any).

    Every block size of the outer ranks and every choice of kept fibers is looked at. Raises `LoomError` where not
    even the smallest block finds room, and `NotSupported` where a reduction does not walk along the rank: it is a
    schedule of its own.
    """
    plan = plan_passes(cascade, stream or cascade.stream)
    for einsum, walks in zip(cascade.einsums, plan.walks, strict=True):
        if einsum.reduced and not walks:
            what = f"{cascade.name}: {einsum.name} is reduced and does not walk along {plan.rank}"
            raise NotSupported(f"{what}, so no pass along {plan.rank} fuses all")
    if len(plan.crossing) > MOST_CROSSING:
        raise NotSupported(f"{cascade.name}: more than {MOST_CROSSING} tensors are read in a later pass")
    best: FusedTraffic | None = None
    least = math.inf
    for block in blocks(cascade):
        for count in range(len(plan.crossing), -1, -1):
            for keep in itertools.combinations(plan.crossing, count):
                made = footprint(cascade, plan, block, keep, staged)
                least = min(least, made.elements * element_bytes)
                if made.elements * element_bytes > buffer:
                    continue
                tensors = _memory(cascade, plan, block, keep)
                found = FusedTraffic(
                    made,
                    {t: n * element_bytes * cascade.instances for t, n in tensors.items()},
                    tuple(t for t in plan.crossing if t not in keep),
                )
                if best is None or found.total < best.total:
                    best = found
    if best is None:
        raise LoomError(f"{cascade.name}: one block takes {least:.0f} bytes and finds no room in {buffer:.0f}")
    return best


def _memory(cascade: Cascade, plan: PassPlan, block: Mapping[str, int], keep: Sequence[str]) -> dict[str, int]:
    """Elements of each tensor that go from or to memory in one instance."""
    found = {t: cascade.size(t) for t in cascade.outputs}
    for tensor in cascade.inputs:
        ranks = cascade.ranks_of(tensor)
        again = 1
        if plan.rank in ranks and tensor not in plan.whole:
            lacks = [v for v in cascade.outer if cascade.ranks[v] not in ranks]
            again = math.prod(cascade.extent(v) // block[v] for v in lacks)
        visits = 1 + (len(plan.crossing.get(tensor, ())) if tensor not in keep else 0)
        found[tensor] = cascade.size(tensor) * again * visits
    for tensor in cascade.intermediates:
        if tensor in plan.crossing and tensor not in keep:
            found[tensor] = cascade.size(tensor) * (1 + len(plan.crossing[tensor]))
    return found


def group_traffic(cascade: Cascade, groups: Sequence[Sequence[str]] | None = None) -> dict[str, int]:
    """Times that each tensor goes whole from or to memory where groups of Einsums are kernels of their own.

    A group reads a tensor once however many of its Einsums do, and writes what it makes if another group reads it or
    nobody does. Without ``groups`` every Einsum is a kernel: the traffic of a cascade that is not fused at all.
    """
    names = list(dict.fromkeys(e.name for e in cascade.einsums))
    groups = [[name] for name in names] if groups is None else groups
    missing = sorted(set(names) ^ {name for group in groups for name in group})
    if missing:
        raise LoomError(f"{cascade.name}: {missing[0]} is in no group, or no tensor of it")
    found: dict[str, int] = {}
    for group in groups:
        inside = [e for e in cascade.einsums if e.name in group]
        for tensor in {a.tensor for e in inside for a in e.inputs} - set(group):
            found[tensor] = found.get(tensor, 0) + 1
    for tensor in names:
        if tensor in found or tensor in cascade.outputs:
            found[tensor] = found.get(tensor, 0) + 1
    return found


def unfused_traffic(
    cascade: Cascade, groups: Sequence[Sequence[str]] | None = None, *, element_bytes: int = 2
) -> dict[str, int]:
    """Bytes of each tensor where groups of Einsums are kernels with all the buffer they want, all instances."""
    times = group_traffic(cascade, groups)
    return {t: n * cascade.size(t) * element_bytes * cascade.instances for t, n in times.items()}


def compulsory_traffic(cascade: Cascade, *, element_bytes: int = 2) -> int:
    """Bytes of inputs and outputs, each once: no schedule moves less."""
    sizes = sum(cascade.size(t) for t in (*cascade.inputs, *cascade.outputs))
    return sizes * element_bytes * cascade.instances


def _elements(cascade: Cascade, ranks: Sequence[str], without: str, block: Mapping[str, int]) -> int:
    """Elements along ranks but one (of scores of a sequence with itself, once), the outer ones a block long."""
    sizes = {cascade.ranks[v]: size for v, size in block.items()}
    left = list(ranks)
    if without in left:
        left.remove(without)
    return math.prod(sizes.get(r, cascade.extents[r]) for r in left)


def _in_pass(cascade: Cascade, plan: PassPlan, tensor: str) -> bool:
    """Tell whether an Einsum that walks along the rank reads a tensor or reduces to it."""
    return any(
        walks and (e.name == tensor or any(a.tensor == tensor for a in e.inputs))
        for e, walks in zip(cascade.einsums, plan.walks, strict=True)
    )


def _born(cascade: Cascade, plan: PassPlan, tensor: str) -> int:
    """The pass that makes a tensor, or that reads an input first."""
    made = [at for e, at in zip(cascade.einsums, plan.at, strict=True) if e.name == tensor]
    if made:
        return max(made)
    walked = zip(cascade.einsums, plan.at, plan.walks, strict=True)
    return min(at for e, at, walks in walked if walks and any(a.tensor == tensor for a in e.inputs))


__all__ = [
    "Footprint",
    "FusedTraffic",
    "blocks",
    "cascade_grain",
    "compulsory_traffic",
    "divisors",
    "footprint",
    "fused_traffic",
    "group_traffic",
    "unfused_traffic",
]
