"""Programs for tiles in floating point: values at the ends of a format, ties, rows without a number, last bits.

A result in a short format shows eight bits of an fp32 number or fewer. The programs of last bits have biases that take
the leading bits of what the golden model computes away: what is left are the others, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch import Chip
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.datatype import INTEGER_CODES, MX_ELEMENTS, DataType, Packing
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.floats import SIGN, Words, float_product, patterns_of, widened
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import padded, product_values, row_unit, row_values, sums_pitch, window_of
from siliconloom.arch.packing import (
    NO_SCALE,
    SCALE_BIAS,
    has_groups,
    loads,
    may_be_narrow,
    set_scales,
    unpacked_weights,
    weight_bytes,
)
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LOCAL_BITS
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.npu import (
    GoldenMachine,
    LoadedProgram,
    float_parameter_planes,
    float_scalar_bytes,
    float_turn_planes,
)
from siliconloom.verification.chain import Chain, Fields, Image, Places
from siliconloom.verification.images import RESULTS, random_image
from siliconloom.verification.writer import product_sizes

EPSILONS = (0.0, 1e-5, 3.0, 1e20)
"""Added to mean squares: nothing, little, as much as these are, so much that nothing else counts."""
ENDS = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    *(s * x for x in (1.0, 0.004, 0.0225, 3.5, 17.0, 60.0, 220.0) for s in (1, -1)),
)
"""Elements at which activations are at either end, in between, and no numbers."""
LONGEST = 1024
"""Columns of the longest rows."""
LAST = 0xFF
"""Bits of an fp32 number that a bias leaves: as many as bf16 has."""


@dataclass
class FloatRows:
    """A program of vector functions: operands and parameters go into memory one after the other, and results.

    ``first``, ``second``, ``parameters``, ``out`` are banks, as are those of a product: ``weights``, ``moving``.
    """

    chip: Chip
    numbers: np.random.Generator
    memory: Image = field(init=False)
    chain: Chain = field(init=False)
    source: int = 0
    target: int = RESULTS

    def __post_init__(self) -> None:
        assert isinstance(self.chip.tile, NpuTile)
        self.tile, self.places = self.chip.tile, Places(self.chip.tile)
        self.dtype, self.size, self.lanes = self.tile.circuit_format, self.tile.element_bytes, self.tile.vector.lanes
        self.memory, self.chain = random_image(self.numbers, self.dtype, odd=0), self.places.chain()
        bank = self.places.bank
        self.weights, self.moving, self.first, self.parameters, self.out, self.second = (n * bank for n in range(6))

    def put(self, data: Image, place: int) -> None:
        """Have these bytes in local memory."""
        count = self.places.aligned(len(data))
        self.memory[self.source : self.source + len(data)] = data
        self.chain.add(Opcode.LOAD, m=1, n=count, memory=Address(base=self.source), a=Address(base=place))
        self.source += count
        if self.source > RESULTS:
            raise NotSupported(
                f"programs on {self.chip.name}: operands of an array so large take more than the {RESULTS} bytes that "
                f"programs of benches have for them; take a smaller one (--set tile.array.rows=64, and so on)"
            )

    def operand(self, values: NDArray[np.floating], place: int | None = None) -> Words:
        """Have rows of numbers nearest to these as an operand; returns what they are in fp32."""
        rows, cols = values.shape
        wide = np.zeros((rows, row_values(self.tile, cols)), f"<u{self.size}")
        wide[:, :cols] = patterns_of(values, self.dtype)
        self.put(wide.view(np.uint8).reshape(-1), self.first if place is None else place)
        return widened(wide[:, :cols], self.dtype)

    def scalars(self, first: float, second: float = 0.0) -> None:
        """Have these as parameters."""
        self.put(float_scalar_bytes(first, second, self.size), self.parameters)

    def columns(self, bias: Words, multiplier: Words) -> None:
        """Have these as parameters."""
        wide = np.zeros((2, padded(len(bias), self.lanes)), np.uint32)
        wide[:, : len(bias)] = bias, multiplier
        self.put(float_parameter_planes(wide[0], wide[1], self.lanes, self.size), self.parameters)

    def drawn(self, count: int, size: float = 1.0) -> Words:
        """So many fp32 numbers with all their bits, none of them far smaller than ``size``."""
        sign = self.numbers.choice([-1.0, 1.0], count)
        return (size * sign * self.numbers.uniform(0.7, 1.6, count)).astype(np.float32).view(np.uint32)

    def compute(self, function: VectorFunction, m: int, n: int, *, keep: bool = True, **fields: Any) -> None:
        """Compute, and store what has been written."""
        given: Fields = {"k": 1, "c": Address(base=self.out), "d": Address(base=self.parameters), **fields}
        if not function.spec.from_sums:
            given.setdefault("a", Address(base=self.first))
        if function.spec.reads_second:
            given.setdefault("b", Address(base=self.second))
        self.chain.add(Opcode.VECTOR, function=function, m=m, n=n, **given)
        rows, cols = (n, m) if function.spec.transposes else (m, function.spec.result_cols(n, self.dtype))
        if not keep:
            return
        step, written = self.size * row_values(self.tile, cols), self.size * padded(cols, self.lanes)
        bus = self.tile.dma.bytes_per_cycle
        if step == written:
            rows, step, written = 1, rows * step, rows * step
        each = min(self.size * self.lanes, bus) if rows > 1 and step % window_of(bus, written) else written
        for at in range(0, written, each):
            where: Fields = {"memory": Address(base=self.target + at), "a": Address(base=self.out + at)}
            self.chain.add(Opcode.STORE, m=rows, n=each, pitch=step, local_pitch=step, **where)
        self.target += self.places.aligned(rows * step)

    def product(
        self, rows: int, cols: int, k: int, *, moving: Address | None = None, holes: bool = False, **fields: Any
    ) -> None:
        """A product of these rows and columns, of operands that are anything, or of one that is there."""
        by_input = self.tile.array.dataflow == "input_stationary"
        m, n = (cols, rows) if by_input else (rows, cols)
        sizes = product_sizes(self.tile, m, n, k)
        while max(sizes[:2]) > min(self.places.bank, RESULTS // 4) and k > 1:
            k -= 1
            sizes = product_sizes(self.tile, m, n, k)
        stays, moves = (sizes[0], sizes[1]) if by_input else (sizes[1], sizes[0])
        self.anything(stays, self.weights, holes)
        if moving is None:
            self.anything(moves, self.moving, holes)
        ends = [Address(base=self.weights), moving or Address(base=self.moving)]
        a, b = ends if by_input else reversed(ends)
        self.chain.add(Opcode.MATMUL, m=m, n=n, k=k, a=a, b=b, **fields)

    def anything(self, count: int, place: int, holes: bool = False) -> None:
        """Have numbers of any kind but special ones; with ``holes`` every seventh is none."""
        values = random_image(self.numbers, self.dtype, count, odd=0)
        if holes:
            values.view(f"<u{self.size}")[::7] = patterns_of(np.array([np.nan]), self.dtype)
        self.put(values, place)

    def machine(self) -> GoldenMachine:
        """The golden model after all that the program does so far."""
        made = self.program()
        machine = GoldenMachine(self.chip, made.loaded())
        machine.run(made.program)
        return machine

    def sums(self, cols: int, line: int = 0) -> Words:
        """The sums of one row."""
        panels = self.machine().sums[line : line + -(-cols // self.tile.array.cols)]
        return (panels.reshape(-1)[:cols] & 0xFFFFFFFF).astype(np.uint32)

    def program(self) -> LoadedProgram:
        """The program so far, ended."""
        return self.chain.program(self.memory.copy())


def leading(words: Words) -> Words:
    """What takes all but the last bits of numbers away."""
    return ((words & ~np.uint32(LAST)) ^ SIGN).astype(np.uint32)


def last_bits_of_norms(chip: Chip) -> LoadedProgram:
    """Rows of a block and of several, with epsilons of any size: all bits of their scale, and of their offset."""
    rows = FloatRows(chip, np.random.default_rng(31))
    turns = [(3 * rows.lanes - 1, 0.0), (rows.lanes, 1e-5), (2 * rows.lanes + 1, 3.0), (rows.lanes + 1, 1e-5)]
    for number, (cols, epsilon) in enumerate(turns):
        for function in (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM):
            # squares so far apart have sums that round
            spread = 2.0 ** rows.numbers.integers(-8, 3, cols) if number < 3 else np.full(cols, 2.0**-6)
            x = rows.operand((rows.numbers.standard_normal(cols) * spread)[None, :])
            k = int(patterns_of(np.array([epsilon]), DataType.BF16)[0])
            # of few bits now and then, so that products are halves of a last place
            short = np.full(cols, 1.5 * 2.0**13, np.float32).view(np.uint32)
            multiplier = short if number % 2 else rows.drawn(cols, 2.0**13)
            centred = function == VectorFunction.LAYER_NORM
            words, added = (np.array([value], np.uint32) for value in (0, k << 16))
            found = float_functions.normalize(x, multiplier, words, added, rows.lanes, centred=centred)[0]
            rows.columns(leading(found), multiplier)
            rows.compute(function, 1, cols, k=k)
    return rows.program()


def last_bits_of_sums(chip: Chip) -> LoadedProgram:
    """Sums of many products as they are, and over the total of a row that comes in three tiles: all their bits."""
    rows = FloatRows(chip, np.random.default_rng(32))
    array = rows.tile.array
    keys, wide = 6 * rows.lanes + 1, 3 * rows.lanes + 1
    keeps = array.dataflow != "output_stationary"
    by_input = array.dataflow == "input_stationary"
    # of each of six operands, with parameters, each of which begins with a unit of transfers
    room = min(rows.places.bank, RESULTS // 8, (RESULTS - 16 * rows.places.unit) // 6)
    while max(product_sizes(rows.tile, *((wide, 1) if by_input else (1, wide)), keys)[:2]) > room:
        keys, wide = (keys - 1, wide) if keys > 1 else (keys, wide - 1)
    lines = -(-max(keys, wide) // array.cols)
    context, half = lines * sums_pitch(array), rows.places.bank // 2
    for turn in range(3):
        rows.product(1, keys, array.rows + 1, c=Address())
        slot: Fields = {"c": Address(base=rows.second, slot=half, odd=turn & 1)}
        rows.scalars((0.35, 0.6, 1.3)[turn])
        rows.compute(VectorFunction.SOFTMAX_ONLINE, 1, keys, keep=False, accumulate=int(turn > 0), **slot)
        if keeps:
            later: Fields = {"accumulate": int(turn > 0), "rescale": int(turn > 0)}
            rows.product(1, wide, keys, moving=slot["c"], c=Address(base=context), **later)
    cols, line, base = (wide, lines, context) if keeps else (keys, 0, 0)
    sums, carried = rows.sums(cols, line), rows.machine().rows.carried[0]
    assert carried is not None
    multiplier = rows.drawn(cols, 2.0**13)
    # accumulated sums need no multiplier of their own to show their bits, only a power of two
    power = np.full(cols, 2.0**12, np.float32).view(np.uint32)
    rows.columns(leading(float_product(sums, power)), power)
    rows.compute(VectorFunction.REQUANTIZE, 1, cols, a=Address(base=base))
    found = float_product(float_product(sums, float_functions.reciprocal(carried[1].astype(np.uint32))), multiplier)
    rows.columns(leading(found), multiplier)
    rows.compute(VectorFunction.REQUANTIZE_ROWS, 1, cols, a=Address(base=base), b=Address(slot=half))
    return rows.program()


def last_bits_of_totals(chip: Chip) -> LoadedProgram:
    """Totals of two blocks of powers, of the same sums by many scalars: a total has all the bits of its tree."""
    rows = FloatRows(chip, np.random.default_rng(40))
    cols, line = 2 * rows.lanes, rows.tile.parameter_line
    rows.product(1, cols, rows.tile.array.rows + 1, c=Address())
    sums, behind = rows.sums(cols), padded(8 * rows.size, line)
    half = rows.places.bank // 2
    for number in range(13):
        scale, multiplier = np.array([0.2 + 0.07 * number], np.float32), rows.drawn(cols, 2.0**13)
        t = float_product(sums, scale.view(np.uint32))[None, :]
        _, totals = float_functions.reduced(t, np.ones(t.shape, bool), rows.lanes)
        found = float_product(float_product(sums, float_functions.reciprocal(totals)), multiplier)
        held = np.zeros(behind, np.uint8)
        scalars = float_scalar_bytes(float(scale[0]), 0.0, rows.size)
        held[: scalars.size] = scalars
        planes = float_parameter_planes(leading(found), multiplier, rows.lanes, rows.size)
        rows.put(np.concatenate([held, planes]), rows.parameters)
        powers: Fields = {"c": Address(base=rows.second, slot=half)}
        rows.compute(VectorFunction.SOFTMAX_ONLINE, 1, cols, keep=False, **powers)
        closing: Fields = {"a": Address(), "b": Address(slot=half), "d": Address(base=rows.parameters + behind)}
        rows.compute(VectorFunction.REQUANTIZE_ROWS, 1, cols, **closing)
    return rows.program()


def odd_rows(chip: Chip) -> LoadedProgram:
    """Norms of rows that are constant, of zeros, far apart, with an infinity, with no number, and of one element."""
    rows = FloatRows(chip, np.random.default_rng(33))
    wide = (2 if rows.lanes < 64 else 1) * rows.lanes + 1  # results of longer rows would take more than there is
    for cols in (1, wide, rows.lanes):
        values = rows.numbers.standard_normal((7, cols))
        values[1], values[2] = 3.0, rows.numbers.choice([0.0, -0.0], cols)
        values[3, cols - 1] = 200.0
        values[4, cols // 2], values[5, cols - 1], values[6] = np.inf, np.nan, 0.01
        rows.operand(values)
        rows.columns(rows.drawn(cols), rows.drawn(cols))
        for epsilon in EPSILONS:
            k = int(patterns_of(np.array([epsilon]), DataType.BF16)[0])
            for function in (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM)[: 1 if epsilon == EPSILONS[1] else 2]:
                rows.compute(function, len(values), cols, k=k)
    return rows.program()


def long_rows(chip: Chip) -> LoadedProgram:
    """Norms of rows as long as fits, less a column: of equal elements, whose sums round, and of others."""
    rows = FloatRows(chip, np.random.default_rng(38))
    capacity = rows.tile.scratchpad.capacity
    rows.first, rows.parameters, rows.out = capacity // 2, 0, 3 * capacity // 4
    cols = min(capacity // 16 // rows.size, LONGEST) // rows.lanes * rows.lanes - 1
    rows.columns(rows.drawn(cols), rows.drawn(cols))
    for value in (239.0, 255.0, 1.5):
        values = np.full((1, cols), value)
        if value == 1.5:
            values = rows.numbers.standard_normal((1, cols))
        rows.operand(values)
        for function in (VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM):
            rows.compute(function, 1, cols, k=0)
    return rows.program()


def masked_rows(chip: Chip) -> LoadedProgram:
    """Softmax of rows that see nothing, one key, all but one, all; of near exponents, far ones, no numbers."""
    rows = FloatRows(chip, np.random.default_rng(34))
    count, cols = 5, row_values(rows.tile, 2 * rows.lanes + 1) - 1
    rows.product(count, cols, rows.tile.array.rows + 1, c=Address())
    for scale in (0.3, 40.0, -1e30):
        rows.scalars(scale)
        for last in (-3, 0, cols - 2, rows.lanes - 2):
            rows.compute(VectorFunction.SOFTMAX, count, cols, k=2, b=Address(base=last % (1 << LOCAL_BITS)))
        rows.compute(VectorFunction.SOFTMAX, count, cols)
    rows.product(count, cols, 1, holes=True, c=Address())
    rows.scalars(0.6)
    rows.compute(VectorFunction.SOFTMAX_ONLINE, count, cols)
    return rows.program()


def ties(chip: Chip) -> LoadedProgram:
    """The largest of rows with equal elements, zeros of both signs, infinities, and without a number; weighted rows."""
    rows = FloatRows(chip, np.random.default_rng(35))
    cols, count = 2 * rows.lanes + 1, 6
    values = rows.numbers.choice([-2.0, -0.0, 0.0, 1.5, 1.75], (count, cols))
    values[1] = -np.inf
    values[2] = rows.numbers.choice([-0.0, 0.0], cols)
    values[3], values[3, rows.lanes - 1 : rows.lanes + 1] = -1.5, -1.0  # one in each of two blocks
    values[4, cols - 1] = np.nan
    values[5, [0, rows.lanes]] = np.inf, 1.5
    rows.operand(values)
    for scale, chosen in ((0.8, 1), (0.8, 3), (-0.7, rows.lanes + 1), (1.3, cols), (1.3, cols + 1)):
        rows.scalars(scale)
        rows.compute(VectorFunction.TOP_K, count, cols, k=chosen)
    rows.compute(VectorFunction.ARGMAX, count, cols)
    inputs, wide = 5, rows.lanes + 1
    weights = rows.numbers.standard_normal((2, inputs))
    weights[1, 2] = 0.0
    table = rows.numbers.standard_normal((2 * inputs, wide))
    table[inputs + 2, :2] = np.inf, np.nan  # by a weight of zero: no numbers
    table[:, -1] = rows.numbers.choice([0.0, -0.0], 2 * inputs)
    rows.operand(table)
    rows.operand(weights, rows.second)
    rows.scalars(1.7)
    rows.compute(VectorFunction.COMBINE, 2, wide, k=inputs)
    rows.operand(weights[:, :1], rows.second)
    rows.compute(VectorFunction.COMBINE, 2, wide)
    return rows.program()


def both_ends(chip: Chip) -> LoadedProgram:
    """Elements at both ends of activations, and pairs of them, multiplied and added with every scalar."""
    rows = FloatRows(chip, np.random.default_rng(36))
    ends = np.array(ENDS)
    cols = 2 * rows.lanes
    count = max(-(-3 * len(ends) // cols), 1)
    room = rows.places.bank // (rows.size * row_values(rows.tile, cols))
    count = min(count, room)
    first, second = np.resize(ends, count * cols), rows.numbers.standard_normal(count * cols) * 3
    part = len(ends)
    first[part : 2 * part] = (rows.numbers.standard_normal(part) * 4)[: len(first[part : 2 * part])]
    for turn in (0, 2):  # equal ones, so that differences are nothing or no number, and neighbours
        there = second[turn * part : (turn + 1) * part]
        there[:] = np.roll(ends, turn)[: len(there)]
    rows.operand(first.reshape(count, cols))
    rows.operand(second.reshape(count, cols), rows.second)
    rows.scalars(1.3, -0.6)
    functions = ("SILU", "GELU", "TANH", "GATED_SILU", "GATED_GELU", "RELU", "ADD", "MULTIPLY")
    for name in functions:
        function = getattr(VectorFunction, name)
        rows.compute(function, count, cols, k=2 if function.spec.second else 1)
    rows.scalars(1.0, -1.0)
    rows.compute(VectorFunction.ADD, count, cols, k=2)
    return rows.program()


def turned_pairs(chip: Chip) -> LoadedProgram:
    """Neighbours turned by angles of their own, in blocks of several lines and a row that ends within one."""
    rows = FloatRows(chip, np.random.default_rng(39))
    count, cols = 3, 2 * rows.lanes - 1
    rows.operand(rows.numbers.standard_normal((count, cols)))
    angles = rows.numbers.uniform(-3, 3, (count, padded(cols, 2) // 2))
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(count, -1)[:, :cols]
    planes = float_turn_planes(turns, rows.lanes, rows.size).reshape(count, -1)
    wide = np.zeros((count, 2 * rows.size * row_values(rows.tile, cols)), np.uint8)  # rows as those of any operand
    wide[:, : planes.shape[1]] = planes
    rows.put(wide.reshape(-1), rows.second)
    rows.compute(VectorFunction.ROPE, count, cols, k=2)
    return rows.program()


def any_pattern(chip: Chip) -> LoadedProgram:
    """Copies and a transpose of patterns that are no numbers, or subnormal ones: every bit passes."""
    rows = FloatRows(chip, np.random.default_rng(37))
    count, cols = row_unit(rows.tile), 2 * rows.lanes
    rows.put(random_image(rows.numbers, size=count * rows.size * row_values(rows.tile, cols)), rows.first)
    for name in ("COPY", "TRANSPOSE", "KV_APPEND"):
        rows.compute(getattr(VectorFunction, name), count, cols)
    return rows.program()


def packed_programs(chip: Chip) -> list[tuple[str, LoadedProgram]]:
    """Programs by weights in every format of a tile: whole numbers and the operands' own, and MX blocks."""
    if not isinstance(chip.tile, NpuTile):
        return []
    own, array = chip.tile.weight_formats, chip.tile.array
    blocks = tuple(dtype for dtype in own if dtype in MX_ELEMENTS and has_groups(array, dtype))
    codes = tuple(dtype for dtype in own if dtype in INTEGER_CODES)
    kinds = {"packed weights": tuple(dtype for dtype in own if dtype not in blocks), "MX blocks": blocks}
    made = [(name, packed_weights(chip, formats)) for name, formats in kinds.items() if formats]
    waiting = [(f"{name} that wait", waiting_weights(chip, formats)) for name, formats in kinds.items() if formats]
    made += [(name, each) for name, each in waiting if len(each.program.instructions) > 1]
    made += [
        (f"narrow panels of {dtype.value}", packed_panels(chip, packing))
        for dtype in own
        if narrow_panels(array, packing := panel_packing(array, dtype))
    ]
    return made + (
        [("an MX block before codes", block_before_codes(chip, blocks[0], codes))] if blocks and codes else []
    )


def packed_weights(chip: Chip, formats: Sequence[DataType]) -> LoadedProgram:
    """Products by weights in these formats: groups that end within folds and beyond them, and a last beat part full."""
    rows = FloatRows(chip, np.random.default_rng(41))
    array, beat = rows.tile.array, rows.tile.array.load_rows
    cols, depth = array.cols + 1, 2 * array.rows + max(array.rows // 2, 1) + 1
    for number, dtype in enumerate(formats):
        # the last one has more beats than any of the programs of layers
        groups = (beat, 4 * max(beat, 2), 64 * beat) if has_groups(array, dtype) else (0,)
        for group in groups:
            packing = Packing(dtype, group)
            k = depth - number + (group if group == groups[-1] else 0)
            while weight_bytes(array, packing, cols, k) > min(rows.places.bank, RESULTS // 12) and k > 1:
                k -= 1
            packed_product(rows, packing, cols, k)
    return rows.program()


def waiting_weights(chip: Chip, formats: Sequence[DataType]) -> LoadedProgram:
    """Products of several folds whose weights wait at the array's edge: a few more rows move than beats are loaded.

    A group is about a fold, so that headers wait, too. There are none where so many rows take more than their share of
    a bench's memory.
    """
    rows = FloatRows(chip, np.random.default_rng(43))
    array = rows.tile.array
    group = max(1 << array.rows.bit_length() - 1, array.load_rows)
    for dtype in formats:
        packing = Packing(dtype, group if has_groups(array, dtype) else 0)
        k = 5 * array.rows
        while weight_bytes(array, packing, array.cols, k) > min(rows.places.bank, RESULTS // 24) and k > 1:
            k -= 1
        first = loads(array, k, packing).first
        for m in (first + 1, first + 4):
            if rows.size * product_values(rows.tile, m, array.cols, k).a <= min(rows.places.bank, RESULTS // 24):
                packed_product(rows, packing, array.cols, k, m=m)
    return rows.program()


def panel_packing(array: SystolicArray, dtype: DataType) -> Packing:
    """Weights in a format as narrow panels have them: the array's own without groups, others in those of one beat."""
    return Packing(dtype, array.load_rows if has_groups(array, dtype) else 0)


def packed_panels(chip: Chip, packing: Packing) -> LoadedProgram:
    """Products by weights that end with narrow panels, one fold deep and a line more.

    Those of arrays so large that their operands take more than their share of a bench's memory are less deep.
    """
    rows = FloatRows(chip, np.random.default_rng(47))
    array = rows.tile.array
    for wide in narrow_panels(array, packing):
        k = array.rows + 1
        while weight_bytes(array, packing, wide, k, 1) > min(rows.places.bank, RESULTS // 12) and k > 1:
            k -= 1
        packed_product(rows, packing, wide, k, narrow=1)
    return rows.program()


def narrow_panels(array: SystolicArray, packing: Packing) -> list[int]:
    """Numbers of columns that end with each kind of narrow panel, alone or behind a whole one; none of some formats."""
    if not may_be_narrow(array, packing):
        return []
    ends = [1 << power for power in range((array.cols - 1).bit_length())]
    return [end + number % 2 * array.cols for number, end in enumerate(ends)] + [max(array.cols // 2 + 1, 1)]


def block_before_codes(chip: Chip, block: DataType, codes: Sequence[DataType]) -> LoadedProgram:
    """One header of an MX block, and then those of whole numbers, which may have two lines each."""
    rows = FloatRows(chip, np.random.default_rng(43))
    array, beat = rows.tile.array, rows.tile.array.load_rows
    for dtype in codes:
        packed_product(rows, Packing(block, beat), 1, 1)
        packed_product(rows, Packing(dtype, beat), array.cols, 2 * beat)
    return rows.program()


def packed_product(
    rows: FloatRows, packing: Packing, cols: int, k: int, held: Image | None = None, *, m: int = 2, narrow: int = 0
) -> None:
    """A product of ``m`` rows by such weights, and what is stored of it; ``held`` is how they lie, or random."""
    if held is None:
        held = _random_weights(rows, packing, cols, k, narrow)
    rows.put(held, rows.weights)
    rows.anything(rows.size * product_values(rows.tile, m, cols, k).a, rows.moving)
    ends = Address(base=rows.moving), Address(base=rows.weights)
    product: dict[str, Any] = {"m": m, "n": cols, "k": k, "narrow": narrow, "packing": packing}
    rows.chain.add(Opcode.MATMUL, **product, a=ends[0], b=ends[1], c=Address())
    rows.columns(rows.drawn(cols, 2.0**-4), rows.drawn(cols, 2.0**-4))
    rows.compute(VectorFunction.REQUANTIZE, m, cols, a=Address())


def _random_weights(rows: FloatRows, packing: Packing, cols: int, k: int, narrow: int) -> Image:
    """Weights as they lie: what fills a beat up, and headers, is anything.

    Scales are of any size, and of more than two columns one of them infinite, and one no number.
    """
    array, dtype = rows.tile.array, packing.dtype
    held = rows.numbers.integers(0, 256, weight_bytes(array, packing, cols, k, narrow)).astype(np.uint8)
    if not packing.group:
        return random_image(rows.numbers, dtype, len(held), odd=0)
    scales = unpacked_weights(array, packing, held, cols, k, narrow).scales
    drawn = rows.numbers.standard_normal(scales.shape) * 2.0 ** rows.numbers.integers(-9, 3, scales.shape)
    if scales.shape[1] > 2:  # of fewer columns none would be left that says anything
        drawn[0, :2] = np.inf, np.nan
    if dtype in INTEGER_CODES:
        set_scales(array, packing, held, drawn.astype(np.float16).view(np.uint16), k, cols, narrow)
    else:
        exponents = rows.numbers.integers(SCALE_BIAS - 9, SCALE_BIAS + 4, scales.shape)
        odd = rows.numbers.choice([0, 1, NO_SCALE - 1, NO_SCALE], scales.shape)
        few = rows.numbers.random(scales.shape) < 0.2
        set_scales(array, packing, held, np.where(few, odd, exponents).astype(np.uint16), k, cols, narrow)
    return held


FLOAT = {
    "last bits of norms": last_bits_of_norms,
    "last bits of sums": last_bits_of_sums,
    "last bits of totals": last_bits_of_totals,
    "odd rows": odd_rows,
    "long rows": long_rows,
    "masked rows": masked_rows,
    "ties": ties,
    "both ends": both_ends,
    "turned pairs": turned_pairs,
    "any pattern": any_pattern,
}
"""Programs for tiles that compute in floating point."""
__all__ = ["FLOAT", "FloatRows", "packed_product", "packed_programs"]
