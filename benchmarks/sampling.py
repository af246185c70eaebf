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
from math import log2
from typing import Any

import yaml

from siliconloom.arch import Chip, LoomError
from siliconloom.arch.description import NpuTile
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Program
from siliconloom.arch.layout import padded, sums_pitch, sums_room
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT
from siliconloom.evaluate.chip import check_length
from siliconloom.mapper.chip.attention_cost import (
    AttentionLayout,
    attention_needs,
    carries,
    key_unit,
    may_stay,
    most_heads,
    query_parts,
)
from siliconloom.mapper.chip.choice import Part
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.layout import ACCUMULATED, Layout, banks_of, grain_of, slots_of
from siliconloom.mapper.chip.mapping import fit_precision
from siliconloom.mapper.chip.program import MappedWorkload, Mapping, blocks_of, lower
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS, Share, shares
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tiling import grains, is_part
from siliconloom.mapper.chip.vector_shape import VectorLayout, VectorShape, vector_shape
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Attention, Gemm, Graph, Vector

SHRUNK = 60
"""How often a tile that has no room is made smaller before it is given up."""
ALONE, BEST = 0.5, 0.75
"""Up to this part of the samples they are at random, then changes of the best sample, then of the best of all."""
SIZES = {"gemm": ("m", "n", "k"), "attention": ("queries", "keys", "heads")}

Sizes = dict[str, Any]
"""Of a tile, by the keys of a mapping's description, with what else is decided about the operator."""


@dataclass(frozen=True)
class Sample:
    """A mapping of one operator; ``apart`` says that values of attention have a ring of their own."""

    share: Share
    sizes: Sizes
    apart: bool = False


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


def division(tile: NpuTile, needs: NamedValues[str, int]) -> dict[str, int]:
    """Slots of all rings that hold just these bytes, in whole banks; nothing where there is no room for them."""
    grain, line = grain_of(tile), sums_pitch(tile.array)
    slots = {ring: padded(int(need), line if ring in ACCUMULATED else grain) for ring, need in needs.items()}
    layout = Layout(**(dict.fromkeys(Layout.__struct_fields__, 0) | slots))
    sums = sum(slots_of(tile, ring, slots.get(ring, 0)) * slots.get(ring, 0) for ring in ACCUMULATED)
    fits = banks_of(tile, layout) <= tile.scratchpad.banks and sums <= sums_room(tile)
    return slots if fits else {}


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
        self.shares = [share for _, share in shares(chip, self.task.operator, self.task.fused)]
        assert isinstance(chip.tile, NpuTile)
        self.tile: NpuTile = chip.tile

    def drawn(self) -> Sample:
        """A mapping at random; the first ways to share the operator more often than the last ones."""
        place = int(len(self.shares) * self.random.random() ** 3)
        share = self.shares[place]
        apart = self.kind == "attention" and self.random.random() < 0.5
        return self._settled(Sample(share, {key: self._size(share, key) for key in SIZES[self.kind]}, apart))

    def changed(self, sample: Sample) -> Sample:
        """The same mapping with one thing or two changed."""
        r, share, sizes, apart = self.random, sample.share, dict(sample.sizes), sample.apart
        for _ in range(r.choice([1, 1, 2])):
            way = r.choice(["size", "size", "size", "loops", "share"])
            if way == "share" and len(self.shares) > 1:
                share = self.shares[min(int(r.expovariate(0.3)), len(self.shares) - 1)]
            elif way == "loops" and self.kind == "gemm":
                key, values = r.choice([("order", ("n_outer", "m_outer")), ("resident", (True, False))])
                sizes[key] = r.choice(values)
            elif way == "loops" and r.random() < 0.7:
                apart = not apart
            elif way == "loops":
                key = r.choice(("whole", "resident"))
                sizes[key] = not sizes[key]
            else:
                key = r.choice(SIZES[self.kind])
                sizes[key] = self._near(share, key, sizes[key]) if r.random() < 0.7 else self._size(share, key)
        return self._settled(Sample(share, sizes, apart), kept=True)

    def _limits(self, share: Share) -> dict[str, tuple[int, int]]:
        """For each size of a tile of a share: the whole dimension, and what sizes are multiples of."""
        part = share.operator
        if isinstance(part, Gemm):
            shape = gemm_shape(part, self.task)
            wholes = shape.m, shape.n, shape.k
            return dict(zip("mnk", zip(wholes, grains(self.tile, shape), strict=True), strict=True))
        assert isinstance(part, Attention)
        parts = query_parts(part)
        most = max(each.queries for each in parts), max(each.keys for each in parts), most_heads(part)
        units = 1, key_unit(self.tile, False), 1
        return dict(zip(SIZES["attention"], zip(most, units, strict=True), strict=True))

    def _size(self, share: Share, key: str) -> int:
        """A size at random: the whole, an even division, any multiple of the grain, or a part of a grain."""
        whole, grain = self._limits(share)[key]
        way, r = self.random.random(), self.random
        if way < 0.2:
            return whole
        if way < 0.5:
            return self._rounded(share, key, -(-whole // int(2 ** r.uniform(1, max(log2(whole), 1)))))
        if way < 0.9 or grain == 1:
            size = 2 ** r.uniform(0, log2(whole) if whole > 1 else 0)
            return self._rounded(share, key, 8 * round(size / 8) if r.random() < 0.5 and size > 8 else int(size))
        return self._rounded(share, key, max(grain >> r.choice([1, 2, 3]), 1))

    def _near(self, share: Share, key: str, size: int) -> int:
        """A size near another one."""
        whole, grain = self._limits(share)[key]
        parts = -(-whole // size)
        ways = [
            2 * size,
            size // 2,
            size + grain,
            size - grain,
            -(-whole // (parts + 1)),
            -(-whole // max(parts - 1, 1)),
        ]
        return self._rounded(share, key, self.random.choice([*ways, size + 8 * grain, size - 8 * grain]))

    def _rounded(self, share: Share, key: str, size: int) -> int:
        """A size that is legal by itself: the whole, a multiple of the grain, or a part of one that may be used."""
        whole, grain = self._limits(share)[key]
        size = max(size, 1)
        if size >= whole:
            return whole
        part = share.operator
        if size < grain and isinstance(part, Gemm) and is_part(self.tile, gemm_shape(part, self.task), key, size):
            return size
        return min(padded(size, grain), whole)

    def _settled(self, sample: Sample, *, kept: bool = False) -> Sample:
        """The same with what must agree with the sizes, of a tile that has room if any as small has."""
        share, sizes, part = sample.share, dict(sample.sizes), sample.share.operator
        sizes |= {key: self._rounded(share, key, sizes[key]) for key in SIZES[self.kind]}
        if isinstance(part, Gemm) and not kept:
            sizes |= {"order": self.random.choice(["n_outer", "m_outer"]), "resident": self.random.random() < 0.7}
        elif not kept:
            sizes |= {"whole": self.random.random() < 0.3, "resident": self.random.random() < 0.7}
        for _ in range(SHRUNK):
            made = self._agreed(Sample(share, sizes, sample.apart))
            if self.slots(made):
                return made
            key = self.random.choice(SIZES[self.kind])
            sizes[key] = self._smaller(share, key, sizes[key])
        return self._agreed(Sample(share, sizes, sample.apart))

    def _smaller(self, share: Share, key: str, size: int) -> int:
        """About half of a size, or of a grain what is half of it."""
        grain = self._limits(share)[key][1]
        half = size // 2
        return self._rounded(share, key, half // grain * grain if half > grain else half)

    def _agreed(self, sample: Sample) -> Sample:
        """The same without what sizes leave no choice about."""
        sizes, limits = dict(sample.sizes), self._limits(sample.share)
        part = sample.share.operator
        if isinstance(part, Gemm):
            sizes["resident"] = bool(sizes["resident"]) and sizes["k"] == limits["k"][0]
            return Sample(sample.share, sizes)
        assert isinstance(part, Attention)
        most = limits["keys"][0]
        whole = bool(sizes["whole"]) and carries(part) and sizes["keys"] < most <= COLUMN_LIMIT
        if whole:
            sizes["keys"] = padded(sizes["keys"], key_unit(self.tile, True))
            whole = sizes["keys"] < most
        sizes |= {"whole": whole, "keys": min(sizes["keys"], most)}
        sizes["queries"] = max(min(sizes["queries"], ROW_LIMIT // sizes["heads"]), 1)
        sizes["resident"] = bool(sizes["resident"]) and may_stay(
            AttentionLayout.of(self.chip, part), *(sizes[key] for key in SIZES["attention"])
        )
        return Sample(sample.share, sizes, sample.apart and not part.values_in_keys)

    def slots(self, sample: Sample) -> dict[str, int]:
        """The division of the buffers that a sample's tiles take; nothing where there is no room."""
        part, sizes = sample.share.operator, sample.sizes
        if isinstance(part, Gemm):
            taken = GemmLayout(self.tile, gemm_shape(part, self.task)).needs(sizes["m"], sizes["n"], sizes["k"])
            return division(self.tile, {ring: int(need) for ring, need in taken.items()})
        assert isinstance(part, Attention)
        queries, keys, heads, whole = (sizes[key] for key in ("queries", "keys", "heads", "whole"))
        most = self._limits(sample.share)["keys"][0]
        needs = dict(attention_needs(self.chip, part, queries, keys, heads, whole, most, apart=sample.apart))
        for task in self.before:
            taken = VectorLayout(self.tile, self._turned(task)).needs(*self._small(task))
            needs |= {ring: max(needs.get(ring, 0), int(need)) for ring, need in taken.items()}
        return division(self.tile, needs)

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
        task = {"operator": self.task.operator.name, self.kind: dict(sample.sizes)} | ({"cut": cut} if cut else {})
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
        keys = {"gemm": ("m", "n", "k", "order", "resident"), "attention": (*SIZES["attention"], "whole", "resident")}
        sizes = {key: getattr(chosen.tiling, key) for key in keys[self.kind]}
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


__all__ = ["Found", "Sample", "Space", "division", "search"]
