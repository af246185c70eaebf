"""PROGRAMS.md in the folder of a tile says what is so, with that tile's numbers."""

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.arch.faults import Cause
from siliconloom.arch.isa import Instruction, Opcode, encode
from siliconloom.arch.layout import packed, padded, row_values
from siliconloom.arch.opcodes import Format
from siliconloom.arch.vector import VectorFunction
from siliconloom.arch.word import LAYOUTS, word_layout
from siliconloom.rtl.bench.programs import bench_verilog
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.manual import FILE, bank_users, manual, word_tables
from siliconloom.rtl.npu.places import product_places, vector_places
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.random_tiles import random_npu
from tests.arch.test_isa import instructions
from tests.rtl.npu import npu, small_chip

TILES = {"seed": st.integers(0, 300), "any_sides": st.booleans()}
SIZES = {"m": st.integers(1, 12), "n": st.integers(1, 12), "k": st.integers(1, 20)}


def evaluated(formula, **names):
    """A formula's value; its division rounds down."""
    return eval(formula.replace("/", "//"), {"__builtins__": {}}, names)


def document(chip):
    return manual("top", chip, geometry_of(chip))[FILE]


@settings(max_examples=60, deadline=None)
@given(**TILES, **SIZES)
def test_operands_of_a_product_lie_where_the_formulas_say(seed, any_sides, m, n, k):
    tile = random_npu(seed, any_sides).tile
    array, bases = tile.array, {"a": 1024, "b": 2048, "c": 0}
    a = np.arange(1, m * k + 1).reshape(m, k)
    b = np.arange(1, n * k + 1).reshape(k, n)
    found = {place.value[0]: place.formula for place in product_places(tile)}

    def rows(values):
        wide = np.zeros((len(values), row_values(tile, k)), values.dtype)
        wide[:, :k] = values
        return wide.reshape(-1)

    def blocks(values, side):
        """Blocks of so many columns of a matrix, row by row."""
        wide = np.zeros((len(values), padded(values.shape[1], side)), values.dtype)
        wide[:, : values.shape[1]] = values
        return wide.reshape(len(values), -1, side).transpose(1, 0, 2).reshape(-1)

    held = {
        "weight_stationary": lambda: (rows(a), packed(array, b)),
        "input_stationary": lambda: (packed(array, np.ascontiguousarray(a.T)), rows(np.ascontiguousarray(b.T))),
        "output_stationary": lambda: (blocks(a.T, array.rows), blocks(b, array.cols)),
    }[array.dataflow]()
    sizes = {"m": m, "n": n, "k": k, **bases}
    for i, depth in np.ndindex(m, k):
        assert held[0][evaluated(found["A"], **sizes, i=i, l=depth) - bases["a"]] == a[i, depth]
    for depth, j in np.ndindex(k, n):
        assert held[1][evaluated(found["B"], **sizes, j=j, l=depth) - bases["b"]] == b[depth, j]


@pytest.mark.slow(seconds=1)
@settings(max_examples=40, deadline=None)
@given(**TILES, **SIZES)
def test_sums_and_operands_of_the_vector_unit_lie_where_the_formulas_say(seed, any_sides, m, n, k):
    chip = random_npu(seed, any_sides)
    machine = GoldenMachine(chip, np.zeros(1, np.uint8))
    chance = np.random.default_rng(seed)
    machine.scratchpad[:] = chance.integers(0, 256, machine.scratchpad.size)
    machine.sums[:] = np.arange(machine.sums.size).reshape(machine.sums.shape)
    pitch, local = chip.tile.array.cols, machine.scratchpad
    assume(-(-n // pitch) * m <= len(machine.sums))
    del k

    def seen(function):
        return machine.operands(Instruction(opcode=Opcode.VECTOR, function=function, m=m, n=n), [])

    place = {each.value: each.formula for each in vector_places(chip.tile)}
    requantize, rope, add = (seen(getattr(VectorFunction, name)) for name in ("REQUANTIZE", "ROPE", "ADD"))
    step = re.search(r"\* (\d+) \+ j % \d+ \* 4$", place["sum"])[1]
    for i, j in np.ndindex(m, n):
        names = {"i": i, "j": j, "m": m, "n": n, "a": 0, "b": 0, "c": 0, "d": 0}
        line, byte = divmod(evaluated(place["sum"], **names), int(step))
        assert requantize.first[i, j] == machine.sums[line, byte // 4]
        assert byte // 4 < pitch
        assert add.first[i, j] == local.view(np.int8)[evaluated(place["int8 operand, result"], **names)]
        low, high = (local[evaluated(place["operand of 2 B an element"], **names, t=t)] for t in (0, 1))
        assert rope.wide_second[i, j] == np.array([low, high], np.uint8).view("<i2")[0]
        bytes_ = [local[evaluated(place["columns"], **names, t=t)] for t in range(8)]
        columns = [values[j] for values in requantize.columns]
        assert columns[0] == np.array(bytes_[:4], np.uint8).view("<i4")[0]
        assert columns[1] == np.array(bytes_[4:6], np.uint8).view("<i2")[0]
        assert columns[2] == bytes_[6] & 63
    first = [local[evaluated(place["scalars"], t=t, d=0)] for t in range(5)]
    assert add.scalars[0] == np.array(first[:2], np.uint8).view("<i2")[0]
    assert add.scalars[2] == first[4] & 63
    silu, gated = seen(VectorFunction.SILU), seen(VectorFunction.GATED_SILU)
    assert silu.table[77] == local.view(np.int8)[evaluated(place["table"], t=77, d=0)]
    assert gated.table[77] == local.view(np.int8)[evaluated(place["table behind scalars"], t=77, d=0)]


@settings(deadline=None)
@given(instruction=instructions())
def test_words_are_read_by_the_tables_bits(instruction):
    word = int.from_bytes(encode(instruction), "little")
    tables = word_tables()
    rows = list(tables["header"])
    kind = instruction.opcode.spec.format
    rows += [] if kind is Format.HEADER else tables[kind.name.lower()]
    read = {}
    for bits, name, meaning in rows:
        high, _, low = bits.partition(":")
        low = int(low or high)
        value = word >> low & (1 << int(high) - low + 1) - 1
        if meaning.endswith("signed") and value >> int(high) - low:
            value -= 1 << int(high) - low + 1
        read[name] = value
    assert set(read) == {field.name for field in word_layout(instruction.opcode)}
    for name in ("m", "n", "k", "wait", "post", "overwrite"):
        assert read[name] == getattr(instruction, name)
    assert read["opcode"] == int(instruction.opcode)
    if kind is not Format.HEADER:
        assert read["a.base"] == instruction.a.base
        assert read["a.stride3"] == instruction.a.strides[3]


@pytest.mark.parametrize("seed", range(6))
def test_the_document_has_this_tiles_numbers(seed):
    chip = random_npu(seed, any_sides=seed % 2 == 1)
    text, geometry = document(chip), geometry_of(chip)
    assert f"{geometry.banks} banks of {geometry.bank_bytes} B" in text
    assert f"{geometry.accumulator_lines} lines of {geometry.array.cols} sums" in text
    assert f"{geometry.program_words} instructions; a longer program ends with cause 8" in text
    latency = re.search(r"LATENCY = (\d+)", bench_verilog(chip, "top", 16))[1]
    assert f"first beat valid in cycle t + {latency}." in text
    assert f"(BVALID) {latency} cycles after" in text
    for name, side, _, size in bank_users(geometry):
        assert f"| {name} | {side} |" in text
        assert size <= geometry.line
    for place in (*product_places(chip.tile), *vector_places(chip.tile)):
        assert f"`{place.formula}`" in text
    for kind in LAYOUTS.values():
        assert all(f"| {field.name} |" in text for field in kind)
    assert all(f"| {cause.value} {cause.text} |" in text for cause in Cause if cause)


@pytest.mark.slow(seconds=12.5)
def test_the_document_names_nothing_that_the_folder_lacks():
    made = npu()
    text = made.files[FILE]
    named = set(re.findall(r"`((?:software|example|bench)/[\w./]*)`", text))
    assert {"example/matmul.c", "software/npu_edge_int8_program.h"} <= named
    assert all(name in made.files or any(each.startswith(name) for each in made.files) for name in named)
    assert not re.search(r"\.py\b|arch/|docs/|sim/|siliconloom", text)
    assert "operands_full" in text
    assert "`PROGRAMS.md`" in made.files["README.md"]


def test_a_tile_without_room_for_the_example_says_why():
    chip = small_chip()
    scratchpad = chip.tile.scratchpad.model_copy(update={"banks": 2})
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"scratchpad": scratchpad})})
    assert "no `example/`: tile.scratchpad.banks is 2" in document(chip)
