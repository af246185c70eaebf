"""Random legal programs: what the simulator and the RTL are compared on."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.floats import Words
from siliconloom.arch.layout import INDEX_BYTES
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import SCALAR_BYTES
from siliconloom.sim.golden.npu import LoadedProgram, float_parameter_planes, parameter_planes, scalar_bytes
from siliconloom.verification.images import PROGRAM_BASE, Bytes, random_image
from siliconloom.verification.segments import Carried
from siliconloom.verification.writer import Writer


def random_program(
    chip: Chip, seed: int, segments: int = 3, *, image: Bytes | None = None, extreme: bool = False
) -> LoadedProgram:
    """A legal program of a few segments for ``chip``.

    It starts from random memory, or from a copy of ``image`` with nothing but its parameters changed. Those that are
    ``extreme`` come from all that there are, with most results saturated or zero.
    """
    chance = random.Random(f"{chip.name} {seed}")
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    writer = Writer(chip, tile, chance, segments, splits=random.Random(f"{chip.name} {seed} splits"))
    writer.keeps = random.Random(f"{chip.name} {seed} keeps")
    kinds: list[Callable[[], None]] = [writer.gemm, writer.gemm, writer.elementwise, writer.elementwise]
    kinds += [writer.gather, writer.barrier]
    count = chance.randint(1, segments)
    # who has one of these draws other numbers from there on, and nobody else does
    place = random.Random(f"{chip.name} {seed} carried").randrange(2 * segments)
    carried = Carried(writer) if place < count else None
    narrow = random.Random(f"{chip.name} {seed} lines")
    for number in range(count):
        writer.builder.narrow = narrow.randint(0, 1)
        if carried is not None and number == place:
            with writer.builder.loop(chance.choice([1, 1, 2])):
                carried.write()
        elif chance.random() < 0.25:
            with writer.builder.loop(2):
                chance.choice(kinds[:5])()
        else:
            chance.choice(kinds)()
    program = writer.builder.finish(("program",))
    numbers = np.random.default_rng(seed)
    memory = random_image(numbers, writer.dtype) if image is None else image.copy()
    if not writer.dtype.is_integer:
        _float_parameters(writer, memory, numbers)
        writer.parameters, writer.scalars = [], []
    bias, shifts, shift = (2**31, (0, 64), (0, 64)) if extreme else (2**12, (8, 26), (6, 26))
    for base, blocks, line in writer.parameters:
        count = blocks * line
        planes = parameter_planes(
            numbers.integers(-bias, bias, count),
            numbers.integers(-(2**15), 2**15, count),
            numbers.integers(*shifts, count),
            line,
        )
        memory[base : base + planes.size] = planes.reshape(-1)
    for base in writer.scalars:
        first, second = (int(x) for x in numbers.integers(-(2**15), 2**15, 2))
        memory[base : base + SCALAR_BYTES] = scalar_bytes(first, second, int(numbers.integers(*shift)))
    for base, count, table in writer.indices:
        found = numbers.integers(0, table, count)
        found[numbers.random(count) < 0.2] = table - 1
        memory[base : base + INDEX_BYTES * count] = found.astype("<u4").view(np.uint8)
    return LoadedProgram(program, memory, PROGRAM_BASE)


def _float_parameters(writer: Writer, memory: Bytes, numbers: np.random.Generator) -> None:
    """Biases, multipliers and scalars in fp32: of moderate size, and one in ten any pattern."""

    def drawn(count: int) -> Words:
        found = numbers.standard_normal(count).astype(np.float32).view(np.uint32)
        return np.where(numbers.random(count) < 0.1, numbers.integers(0, 1 << 32, count, np.uint32), found)

    for base, blocks, line in writer.parameters:
        planes = float_parameter_planes(drawn(blocks * line), drawn(blocks * line), line, writer.tile.element_bytes)
        memory[base : base + planes.size] = planes
    for base in writer.scalars:
        memory[base : base + 8] = drawn(2).view(np.uint8)


__all__ = ["random_program"]
