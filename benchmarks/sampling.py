"""Mappings of single operators that nobody chose: at random, and by small changes of the best of these.

A sample is a mapping as data, as ``loom map -o`` writes it: how the tiles share the operator, the sizes of a tile, order
and what stays, and the division of the buffers. The last of these is free, and not one of those that the mapper tries:
every ring has slots of just what the tile takes, rounded up to what slots are multiples of, in whole banks. Larger
slots change no cycle of an operator that stands alone, and a tile that has no room so has none in any division.

`mapping_of` reads a sample and `lower` makes the program, which the engine runs; what one of them refuses is illegal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Mapping as NamedValues
from dataclasses import dataclass, field
from typing import Any

import yaml

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Program
from siliconloom.arch.tile import NpuTile
from siliconloom.evaluate.chip import check_length
from siliconloom.mapper.chip.chosen import Part
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.gemm_cost import KEPT, ORDERS
from siliconloom.mapper.chip.mapping import fit_precision
from siliconloom.mapper.chip.moves import LOOPS, SIZES, Moves, Needs, Sample, exact_fit
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, blocks_of, lower
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.vector_shape import VectorLayout, VectorShape, vector_shape
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Graph, Vector

ALONE, BEST = 0.5, 0.75
"""Up to this part of the samples they are at random, then changes of the best sample, then of the best of all."""


@dataclass
class Found:
    """What samples of an operator came to.

    Parameters
    ----------
    cycles, document
        Of the fastest sample; nothing where none was legal.
    errors, illegal
        Of every sample that was run, by which part of the cycles its estimate is off; samples that were refused, or
        had no room.
    moved
        Cycles and bytes of every sample that was run, and which one it is.
    """

    cycles: int | None = None
    document: dict[str, Any] | None = None
    errors: list[float] = field(default_factory=list)
    moved: list[tuple[int, int, Sample]] = field(default_factory=list, repr=False)
    illegal: int = 0
    best: Sample | None = field(default=None, repr=False)


class Space:
    """All mappings of a workload of one operator to a chip.

    What brings the operands of attention into order before it (`NAME.transpose`) is a task of its own: in a sample its
    tiles are small, and what is timed is the operator without it.
    """

    def __init__(self, chip: Chip, graph: Graph, seed: object) -> None:
        self.chip, self.random = chip, random.Random(str(seed))
        self.graph, _ = fit_precision(chip, graph)
        (self.part,) = blocks_of(chip, self.graph, None)
        *self.before, self.task = self.part.tasks
        self.kind = self.task.operator.kind
        assert isinstance(chip.tile, NpuTile)
        self.tile: NpuTile = chip.tile
        orders = (*ORDERS, *KEPT)
        self.moves = Moves(chip, self.task, self.random, lambda needs: bool(self._division(needs)), orders)

    def drawn(self) -> Sample:
        """A mapping at random; the first ways to share the operator more often than the last ones."""
        return self.moves.drawn(apart=self.kind == "attention" and self.random.random() < 0.5)

    def changed(self, sample: Sample) -> Sample:
        """The same mapping with one thing or two changed."""
        return self.moves.changed(sample, rings=True)

    def slots(self, sample: Sample) -> dict[str, int]:
        """The division of the buffers that a sample's tiles take; nothing where there is no room."""
        return self._division(self.moves.needs(sample))

    def _division(self, taken: Needs) -> dict[str, int]:
        needs = dict(taken)
        for task in self.before:
            others = VectorLayout(self.tile, self._turned(task)).needs(*self._small(task))
            needs |= {ring: max(needs.get(ring, 0), int(need)) for ring, need in others.items()}
        return exact_fit(self.tile, needs)

    def _turned(self, task: Task) -> VectorShape:
        assert isinstance(task.operator, Vector)
        return vector_shape(self.tile, task.operator, task)

    def _small(self, task: Task) -> tuple[int, int]:
        """Rows and columns of a small tile of what transposes operands."""
        shape = self._turned(task)
        rows = min(shape.tokens, VectorLayout(self.tile, shape).block)
        width = shape.cols if shape.cached is None else shape.cached.width
        return rows, min(self.tile.vector.lanes, width, shape.cols)

    def document(self, sample: Sample) -> dict[str, Any]:
        """A sample as the description of a mapping."""
        cut = {n: p for n, p in zip(CUT_DIMENSIONS[self.kind], sample.share.cut, strict=True) if n and p > 1}
        sizes = {key: size for key, size in sample.sizes.items() if size or key != "held"}
        task = {"operator": self.task.operator.name, self.kind: sizes} | ({"cut": cut} if cut else {})
        layout = {ring: f"{size} B" for ring, size in self.slots(sample).items() if size}
        others = []
        for each in self.before:
            rows, cols = self._small(each)
            others.append({"operator": each.operator.name, "vector": {"rows": rows, "cols": cols}})
        return {"kind": "mapping", "layout": layout, "tasks": [*others, task]}

    def read(self, document: NamedValues[str, Any]) -> Mapping:
        """The mapping of a description; raises `LoomError` where it breaks a rule."""
        return mapping_of(Document.parse(yaml.dump(dict(document), Dumper=DUMPER)), self.chip, self.graph)

    def alone(self, mapping: Mapping) -> MappedWorkload:
        """The program of the operator without what comes before it, as a mapping has it."""
        name, (layout, (chosen,)) = self.task.operator.name, mapping.choice
        part = Part(0, 1, (self.task,), {name: self.part.levels[name]})
        return self.lowered(Mapping((part,), (layout, [{name: chosen[name]}])))

    def lowered(self, mapping: Mapping) -> MappedWorkload:
        """The program of a mapping; raises `LoomError` where the memory, or the program's, is too small for it."""
        made = lower(self.chip, self.graph, mapping)
        check_length(self.chip, made.program)
        return made

    def moved(self, mapping: Mapping) -> int:
        """Bytes that all tiles move between them and the main memory for the operator."""
        chosen = mapping.choice[1][0][self.task.operator.name]
        return chosen.share.tiles * (chosen.tiling.read_bytes + chosen.tiling.write_bytes)

    def estimate(self, mapping: Mapping) -> int:
        """What the formulas say of the operator's tiling, whatever was simulated."""
        return mapping.choice[1][0][self.task.operator.name].tiling.cycles

    def sample_of(self, mapped: MappedWorkload) -> Sample:
        """What the mapper decided, as a sample, with buffers for just its tiles."""
        assert mapped.mapping is not None
        chosen = mapped.mapping.choice[1][0][self.task.operator.name]
        sizes = {key: getattr(chosen.tiling, key) for key in (*SIZES[self.kind], *LOOPS[self.kind])}
        apart = self.kind == "attention" and mapped.mapping.choice[0].values > 0
        return Sample(chosen.share, sizes, apart)


DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def search(space: Space, samples: int, own: MappedWorkload | None = None) -> Found:
    """The fastest of so many mappings: half of them at random, then changes of the best of these.

    With ``own``, what the mapper found, the last quarter are changes of that, as long as none is faster.
    """
    found, cycles = Found(), Stopwatch(space.chip)
    theirs = None
    if own is not None:
        assert own.mapping is not None
        theirs = cycles(space.alone(own.mapping).program), space.sample_of(own)
    for number in range(samples):
        start = found.best if number >= ALONE * samples else None
        if number >= BEST * samples and theirs is not None and (found.cycles is None or theirs[0] <= found.cycles):
            start = theirs[1]
        _try(space, cycles, space.drawn() if start is None else space.changed(start), found)
    return found


def _try(space: Space, cycles: Callable[[Program], int], sample: Sample, found: Found) -> None:
    """Run a sample, and keep it where it is the fastest."""
    if not space.slots(sample):
        found.illegal += 1
        return
    document = space.document(sample)
    try:
        mapping = space.read(document)
        taken = cycles(space.alone(mapping).program)
    except LoomError:
        found.illegal += 1
        return
    found.errors.append(abs(space.estimate(mapping) / taken - 1))
    found.moved.append((taken, space.moved(mapping), sample))
    if found.cycles is None or taken < found.cycles:
        found.cycles, found.document, found.best = taken, document, sample


__all__ = ["Found", "Sample", "Space", "search"]
