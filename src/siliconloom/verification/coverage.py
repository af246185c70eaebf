"""Chooses few programs that together use what a tile has: every opcode and function, and the ways to use each.

A *feature* of a program is a tuple that names something it does: an opcode, a flag of an instruction in force, the
shape of a transfer, a value that a function clips. Those of one entry come first: opcodes, functions, functions whose
results differ enough to show mistakes, and roundings that few results show. Programs are chosen one after the other,
each for the features that it adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.isa import FUNCTIONS, Address, Instruction, Opcode, Program
from siliconloom.arch.layout import padded
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LEVELS
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.functions import Integers
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram

Feature = tuple[str | int | bool, ...]
Bytes = NDArray[np.uint8]
SHOWN = 8
"""Different results that a function must have stored for its arithmetic to show: all zeros hide mistakes."""
VARIETY = (16, 48)
"""Further numbers of different results that are told apart."""
FLAGS = ("wait", "release", "post", "first_wait", "last_post", "accumulate")
OTHER_ROUNDINGS = {"powers cut off": (0, 128), "reciprocals cut off": (1, 0)}
"""Roundings that softmax's powers and reciprocals do not have: few results tell them from the right ones."""
MOVES = (Opcode.LOAD, Opcode.GATHER, Opcode.STORE)
NAMES = frozenset([*((each.name,) for each in Opcode), *((each.value,) for each in VectorFunction)])
"""Features that no choice may leave out where it need not."""
START = 3_000
"""Cycles that a further program counts for beside its own, so that few long ones stand against many short ones."""


def features(chip: Chip, made: LoadedProgram) -> frozenset[Feature]:
    """All features of a program that starts from ``made.memory`` on ``chip``."""
    machine = _Watched(chip, made.memory.copy())
    machine.run(made.program)
    return frozenset([*machine.features(), *_static(made.program, chip)])


def choose(candidates: Mapping[int, frozenset[Feature]], cycles: Mapping[int, int], limit: int) -> list[int]:
    """The numbers of at most ``limit`` candidates; fewer where the rest would add nothing.

    Each time it is the one that adds most features of one entry, opcodes and functions before all others and the rare
    ones counting for more; among those, the one that adds most other features for the cycles that it takes. At the end
    one chosen candidate after the other gives way to another one as long as that adds features of one entry.
    """
    chosen: list[int] = []
    covered: frozenset[Feature] = frozenset()
    common = Counter(feature for each in candidates.values() for feature in each)
    whole = {number: frozenset(f for f in each if len(f) == 1) for number, each in candidates.items()}

    def worth(number: int) -> tuple[Fraction, Fraction, float, int]:
        added = candidates[number] - covered
        first = whole[number] - covered
        rare = sum((Fraction(1, common[feature]) for feature in first), Fraction(0))
        named = sum((Fraction(1, common[feature]) for feature in first & NAMES), Fraction(0))
        return named, rare, (len(added) - len(first)) / (START + cycles[number]), -number

    while len(chosen) < limit:
        best = max(candidates, key=worth)
        if not candidates[best] - covered:
            break
        chosen.append(best)
        covered |= candidates[best]
    best_count, found = _count(_joined(whole, chosen)), len(chosen) == limit
    while found:
        found = False
        for place in range(limit):
            rest = [number for number in chosen if number != chosen[place]]
            held = _joined(whole, rest)
            gains = {number: (_count(held | first), -cycles[number], -number) for number, first in whole.items()}
            other = max(gains, key=gains.__getitem__)
            if _count(held | whole[other]) > best_count:
                chosen[place], best_count, found = other, _count(held | whole[other]), True
    return chosen


def _count(features: frozenset[Feature]) -> tuple[int, int]:
    """How many opcodes and functions these are, and how many features in all."""
    return len(features & NAMES), len(features)


def _joined(features: Mapping[int, frozenset[Feature]], chosen: list[int]) -> frozenset[Feature]:
    """All features of the chosen candidates."""
    return frozenset().union(*(features[number] for number in chosen))


def _static(program: Program, chip: Chip) -> Iterator[Feature]:
    """Features that stand in the instructions."""
    counts: list[int] = []
    for i in program.instructions:
        name = i.opcode.name
        yield (name,)
        if i.opcode == Opcode.VECTOR:
            name = i.function.value
            yield (name,)
        elif i.opcode == Opcode.BARRIER:
            yield name, i.unit.name
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
            yield "loops", len(counts)
            continue
        if i.opcode == Opcode.NEXT:
            counts.pop()
            continue
        yield from ((name, flag) for flag in FLAGS if getattr(i, flag))
        for flag in ("first", "last", "overwrite"):
            levels = [level for level in range(LEVELS) if getattr(i, flag) >> level & 1]
            yield from ((name, flag, level) for level in levels if counts[level] > 1)
        for operand in ("memory", "a", "b", "c", "d"):
            yield from _address(name, operand, getattr(i, operand), counts)
        yield from _shape(name, i, chip)


def _address(name: str, operand: str, address: Address, counts: list[int]) -> Iterator[Feature]:
    """How an address depends on the loops around it."""
    for level, count in enumerate(counts):
        if count > 1 and address.strides[level]:
            yield name, operand, "stride", level
        if count > 1 and address.parity >> level & 1:
            yield name, operand, "parity", level
    if address.odd:
        yield name, operand, "odd"


def _shape(name: str, i: Instruction, chip: Chip) -> Iterator[Feature]:
    """How the sizes of an instruction stand to those of the tile."""
    tile = chip.tile
    if i.opcode in MOVES:
        bus = tile.dma.bytes_per_cycle  # type: ignore[union-attr]
        yield name, "rows", i.m > 1, "wide", i.n >= bus, "whole", i.n % bus == 0
        if i.m > 1:
            yield name, "pitch", (i.pitch > i.n) - (i.pitch < i.n), "none", i.pitch == 0
            yield name, "local pitch", (i.local_pitch > i.n) - (i.local_pitch < i.n)
    elif i.opcode in (Opcode.MATMUL, Opcode.VECTOR):
        rows, cols = tile.array.rows, tile.array.cols  # type: ignore[union-attr]
        yield name, "blocks", i.n > cols, "whole", i.n % cols == 0
        yield name, "rows", (i.m > rows) - (i.m < rows), "one", i.m == 1
        if i.opcode == Opcode.MATMUL:
            yield name, "folds", i.k > rows, "whole", i.k % rows == 0
        elif i.function.spec.masks:
            yield name, "masked", i.k == 2


class _Watched(GoldenMachine):
    """The golden model, which notes what a run leaves in main memory: a mistake that is not stored is not noticed."""

    def __init__(self, chip: Chip, memory: Bytes) -> None:
        super().__init__(chip, memory)
        self.source = np.zeros(len(self.scratchpad), np.uint16)
        """Which of `FUNCTIONS` a byte of the scratchpad is a result of, counted from 1; 0 where it is of none.

        Zeros take no memory before they are written, and a datacentre tile has millions of bytes.
        """
        self.stored: dict[int, set[int]] = {}
        """Results of each function that were stored."""
        self.changed = {name: np.zeros(len(self.scratchpad), bool) for name in OTHER_ROUNDINGS}
        """Bytes of the scratchpad that would be others with another rounding."""
        self.noticed: set[str] = set()
        """Roundings that would change what is stored."""
        self._others: dict[str, Integers] = {}

    def features(self) -> Iterator[Feature]:
        """What the run has shown."""
        for number, results in self.stored.items():
            name = FUNCTIONS[number].value
            if len(results) >= SHOWN:
                yield (f"{name} shows",)
            yield from ((name, "different", count) for count in VARIETY if len(results) >= count)
            yield from ((name, "clipped", end) for end in (0x7F, 0x80) if end in results)
        for name in self.noticed:
            yield (name,)

    def execute(self, i: Instruction, indices: list[int]) -> None:
        self._others = {}
        super().execute(i, indices)
        if i.opcode == Opcode.VECTOR:
            transposed = i.function == VectorFunction.TRANSPOSE
            rows, cols = (i.n, i.m) if transposed else (i.m, i.n)
            size = self.tile.element_bytes
            pitch, width = size * padded(cols, self.lanes), size * cols
            for row in range(rows):
                first = i.c.at(indices) + row * pitch
                self.source[first : first + width] = 1 + FUNCTIONS.index(i.function)
                for name, marks in self.changed.items():  # of integers alone
                    marks[first : first + width] = self._others[name][row] if name in self._others else False
        elif i.opcode in MOVES:
            for row in range(i.m):
                first = i.a.at(indices) + row * i.local_pitch
                self._moved(slice(first, first + i.n), i.opcode != Opcode.STORE)

    def _moved(self, where: slice, loaded: bool) -> None:
        """A row of the scratchpad was loaded or stored."""
        if loaded:
            self.source[where] = 0
            for marks in self.changed.values():
                marks[where] = False
            return
        for number in set(self.source[where].tolist()) - {0}:
            results = self.scratchpad[where][self.source[where] == number]
            self.stored.setdefault(number - 1, set()).update(results.tolist())
        self.noticed |= {name for name, marks in self.changed.items() if marks[where].any()}

    def _softmax(self, sums: Integers, multiplier: int, shift: int, valid: Integers) -> Integers:
        result = super()._softmax(sums, multiplier, shift, valid)
        for name, rounding in OTHER_ROUNDINGS.items():
            other = functions.softmax(sums, multiplier, shift, valid, self.lanes, rounding=rounding)
            self._others[name] = other != result
        return result


__all__ = ["Feature", "choose", "features"]
