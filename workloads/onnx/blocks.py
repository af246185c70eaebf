"""Finds layers that a file has one after the other, and makes one block of them that is executed as often."""

from __future__ import annotations

from msgspec.structs import replace

from siliconloom.workloads.dataflow import Dataflow
from siliconloom.workloads.operators import Operator, Vector

MOST_OPERATORS = 160
"""Of a layer."""
SINGLE, REPEATED = "graph", "layer"
"""Names of blocks: of operators that stand once, and of layers."""


class EqualLayers:
    """Equal layers one after the other: ``times`` of ``length`` operators, from operator ``start`` on."""

    def __init__(self, start: int, length: int, times: int) -> None:
        self.start, self.length, self.times = start, length, times

    @property
    def end(self) -> int:
        """The operator behind them."""
        return self.start + self.length * self.times


def folded(flow: Dataflow) -> Dataflow:
    """The same operators in blocks: those of equal layers stand once, with the names of the first of them.

    Layers are equal where each of their operators is, and reads results of its own layer as the others do, of the
    operator that ends the layer before it, or of the same operator before all layers; nobody else reads a result of
    theirs but the last one's end.
    """
    operators = flow.operators()
    runs = _runs(flow, operators)
    made, alias = Dataflow(), dict[str, str]()
    counts = {SINGLE: 0, REPEATED: 0}
    at = 0
    for run in [*runs, EqualLayers(len(operators), 0, 0)]:
        for kind, part, times in (
            (SINGLE, operators[at : run.start], 1),
            (REPEATED, operators[run.start : run.start + run.length], run.times),
        ):
            counts[kind] += bool(part)
            block = kind if counts[kind] == 1 else f"{kind}_{counts[kind]}"
            for operator in part:
                made.add(replace(operator, block=block, repeat=times))
        for number in range(run.length * run.times):
            alias[operators[run.start + number].name] = operators[run.start + number % run.length].name
        at = run.end
    for source, target, elements in flow.edges():
        if alias.get(target, target) == target:  # of a layer's those of the first one
            made.connect(alias.get(source, source), target, elements)
    return made


def _runs(flow: Dataflow, operators: list[Operator]) -> list[EqualLayers]:
    names = {operator.name: index for index, operator in enumerate(operators)}
    kinds: dict[Operator, int] = {}
    signs = [kinds.setdefault(replace(operator, name=""), len(kinds)) for operator in operators]
    readers = [[names[name] for name in flow.successors(operator.name)] for operator in operators]
    operands = [[(names[name], count) for name, count in flow.inputs(operator.name)] for operator in operators]
    found, start = [], 0
    while start < len(operators):
        best = EqualLayers(start, 1, 1)
        for length in range(1, min(MOST_OPERATORS, (len(operators) - start) // 2) + 1):
            if _follows(operators[start]):
                break
            times = 1
            while _again(signs, start, length, times):
                times += 1
            while times > 1 and not _sound(EqualLayers(start, length, times), operators, operands, readers):
                times -= 1
            if times > 1 and times * length > best.length * best.times:
                best = EqualLayers(start, length, times)
        if best.times > 1:
            found.append(best)
        start = best.end
    return found


def _follows(operator: Operator) -> bool:
    """Whether an operator is done element by element on what the one before it makes, and belongs to its block."""
    return isinstance(operator, Vector) and not operator.function.spec.reductions


def _again(signs: list[int], start: int, length: int, times: int) -> bool:
    """Whether a layer comes once more."""
    first = start + times * length
    return signs[start] == (signs[first] if first < len(signs) else None) and (
        signs[start : start + length] == signs[first : first + length]
    )


def _sound(
    run: EqualLayers, operators: list[Operator], operands: list[list[tuple[int, int]]], readers: list[list[int]]
) -> bool:
    """Whether what each layer reads follows from what the first one does."""
    for number in range(run.length):
        first = run.start + number
        operator = operators[first]
        if isinstance(operator, Vector) and operator.tied is not None:
            return False
        for layer in range(run.times):
            index, begin = first + layer * run.length, run.start + layer * run.length
            if not _same(operands[first], operands[index], run, begin):
                return False
            limit = begin + run.length if number < run.length - 1 or layer == run.times - 1 else begin + 2 * run.length
            last = number == run.length - 1 and layer == run.times - 1
            if not last and any(reader >= limit for reader in readers[index]):
                return False
    return True


def _same(first: list[tuple[int, int]], own: list[tuple[int, int]], run: EqualLayers, begin: int) -> bool:
    """Whether an operator of the layer that begins there reads what that of the first layer does."""
    if len(first) != len(own):
        return False
    for (a, elements), (b, others) in zip(first, own, strict=True):
        inside = a >= run.start
        moved = b - begin == a - run.start if inside else b == a if b < run.start else b == begin - 1
        if elements != others or not moved:
            return False
    return True


__all__ = ["folded"]
