"""Keys and values as whole numbers with scales: what is kept of results, and what the array makes of it."""

import numpy as np
import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.array import SystolicArray
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import CACHE_SCALED, DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.floats import narrowed
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, decode, encode
from siliconloom.arch.layout import line_values, row_values
from siliconloom.arch.scaled import numbers_of
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.array.weights import ScaledLane
from siliconloom.rtl.bench.programs import run_programs
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu import scaled as circuits
from siliconloom.rtl.npu.vector import scales
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification import npu as verification
from siliconloom.verification.cached_directed import cache_programs
from siliconloom.verification.faults import fault_cases
from siliconloom.verification.filling import filled
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.test_cached import needs, programs_of, small_chip
from tests.rtl.test_mapped import GPT2, LLAMA, graph, mapped

pytestmark = pytest.mark.rtl
PLACES = {DataType.INT8: 6, DataType.INT4: 2}
BOTH = {"tile.array.cache": "[int8, int4]"}
SHAPES = [
    {},
    {"tile.vector.lanes": 8, "tile.vector.transpose_rows": 4, "tile.vector.format": "null"},
    {"tile.array.rows": 2},  # a group is several folds, of which one waits
    {"tile.array.operands": "[fp16]", "tile.array.load_rows": 4, "tile.vector.lanes": 16, "tile.vector.format": "null"},
]


def reads_scales(program):
    """Instructions that keep results with scales, or read what is kept so."""
    return [i for i in program.instructions if i.packing and i.packing.dtype in CACHE_SCALED and not i.packing.group]


def programs_with_scales(chip, seed, count):
    """Random programs for a tile, of those that have something to do with scales."""
    made, number = [], 100_000 * seed
    while len(made) < count:
        number += 1
        program = random_program(chip, number)
        if reads_scales(program.program):
            check_program(program.program, chip)
            made.append((f"program {number}", program))
    return made


def agree(chip, made, **surroundings):
    for parity in check_programs(chip, made, simulator="icarus", **surroundings):
        assert parity.passed, "\n".join([chip.name, parity.name, *parity.errors])


@pytest.mark.slow(seconds=25)
def test_a_small_tile_with_every_cache_agrees():
    """What is kept with scales and what is kept without, on one tile: compiling it takes most of the time."""
    needs("icarus")
    chip = small_chip(**{"tile.array.cache": "[bf16, fp8_e4m3, fp8_e5m2, int8, int4]"})
    agree(chip, [*programs_of(chip, 1, 1), *programs_with_scales(chip, 1, 2)])


@pytest.mark.slow(seconds=28)
@pytest.mark.parametrize("sets", SHAPES)
def test_small_tiles_agree(sets):
    needs("icarus")
    chip = small_chip(**BOTH, **sets)
    agree(chip, [*cache_programs(chip), *programs_with_scales(chip, 1, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("sets", SHAPES)
def test_random_programs_agree(sets, seed):
    needs("icarus")
    chip = small_chip(**BOTH, **sets)
    made = programs_with_scales(chip, seed, 8)
    agree(chip, made, stall=[0] * 7 + [60])


@pytest.mark.slow
def test_whole_layers_agree(tmp_path):
    needs("icarus")
    chip = small_chip(**BOTH, **{"tile.sequencer.program_words": 2048, "tile.accumulator.capacity": "8 KiB"})
    works = [
        (LLAMA, ("phase", "decode"), ("context", "19"), ("cache_precision", "int8")),
        (LLAMA, ("sequence", "6"), ("cache_precision", "int4")),
        (GPT2, ("phase", "decode"), ("context", "9"), ("cache_precision", "int4")),
        (GPT2, ("sequence", "11"), ("cache_precision", "int8")),
    ]
    made = [
        (str(number), filled(mapped(chip, graph(tmp_path, {**model, "num_hidden_layers": 1}, *sets)), number))
        for number, (model, *sets) in enumerate(works)
    ]
    for _, each in made:
        assert {i.opcode for i in reads_scales(each.program)} == {Opcode.VECTOR, Opcode.MATMUL}
    agree(chip, made)


def test_random_tiles_have_scales():
    tiles = [random_npu(seed, seed % 2 == 1, DataType.BF16).tile for seed in range(400)]
    kept = {tile.array.cache_scaled for tile in tiles if tile.array.cache_scaled}
    assert {dtype for each in kept for dtype in each} == set(CACHE_SCALED)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("operand", ["bf16", "fp16"])
@pytest.mark.parametrize("cache", [["int8", "int4"], ["int8"], ["int4"]])
def test_every_code_becomes_its_number(operand, cache):
    array = SystolicArray(rows=2, cols=2, load_rows=2, dataflow="weight_stationary", operands=operand, cache=cache)
    lane, found, wanted = ScaledLane(Library("lane"), array), [], []
    every = [0, 1, 2, 5, 6, 7, 8, 100, 120, 127, 133, 134, 140, 150, 250, 253, 254, 255]

    async def bench(context):
        for dtype in array.cache_scaled:
            half = 1 << dtype.bits - 1
            for scale in every:
                for code in range(-half, half):
                    context.set(lane.code, code & 255)
                    context.set(lane.scale, scale)
                    if len(cache) > 1:
                        context.set(lane.short, dtype is DataType.INT4)
                    found.append(context.get(lane.o))
                    words = numbers_of(np.array([code], np.int8), np.array([scale], np.uint8), dtype)
                    wanted.append(narrowed(words, DataType(operand))[0])

    simulator = Simulator(lane.elaborate(None))
    simulator.add_testbench(bench)
    simulator.run()
    np.testing.assert_array_equal(found, wanted)


@given(code=st.integers(-128, 127), scale=st.integers(0, 255), dtype=st.sampled_from(CACHE_SCALED))
def test_numbers_are_codes_times_powers_of_two(code, scale, dtype):
    found = numbers_of(np.array([code], np.int8), np.array([scale], np.uint8), dtype).view(np.float32)[0]
    if scale == 255:
        assert np.isnan(found)
        return
    exact = np.ldexp(float(code), scale - 127 - PLACES[dtype])
    if abs(exact) < 2.0**-126:
        assert found == 0
    elif abs(exact) >= 2.0**128:
        assert np.isinf(found)
    else:
        assert found == exact


@pytest.mark.slow(seconds=1)
@given(data=st.data(), rows=st.integers(1, 9), cols=st.integers(1, 13), narrow=st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_kept_results_are_the_nearest_with_the_exponent_of_the_largest(data, rows, cols, narrow):
    """Codes and scales as they stand in local memory, by plain arithmetic on real numbers."""
    dtype, transposes = data.draw(st.sampled_from(CACHE_SCALED)), data.draw(st.booleans())
    chip = small_chip(**BOTH, **{"tile.vector.lanes": 8})
    machine, tile, together, lanes = GoldenMachine(chip, np.zeros(1, np.uint8)), chip.tile, 4, 8
    cols += cols % 2 if dtype is DataType.INT4 else 0
    rows = min(rows, lanes) if transposes else rows
    pitch = row_values(tile, cols, narrow)
    finite = st.floats(width=32, allow_subnormal=False, allow_nan=False, allow_infinity=False)
    drawn = finite | st.integers(-600, 600).map(lambda n: n / 64)
    values = np.array(data.draw(st.lists(drawn, min_size=rows * cols, max_size=rows * cols)), np.float32)
    values = values.reshape(rows, cols)
    held = machine.scratchpad[: 4 * rows * pitch].view(np.float32).reshape(rows, pitch)
    held[:, :cols] = values
    out, by_rows = 1 << 14, not transposes
    function = VectorFunction.TRANSPOSE if transposes else VectorFunction.KV_APPEND
    fields = {"m": rows, "n": cols, "k": 1, "c": Address(base=out), "narrow": narrow, "dtype": DataType.FP32}
    packing = Packing(dtype, 0, by_rows=by_rows)
    machine.execute(Instruction(opcode=Opcode.VECTOR, function=function, packing=packing, **fields), [])
    places, codes, found_scales = PLACES[dtype], np.zeros((rows, cols), int), np.zeros((rows, cols), int)
    for row in range(rows):
        for start in range(0, cols, together):
            own = slice(start, min(start + together, cols))
            peak = np.abs(values[row, own].astype(float)).max()
            exponent = np.frexp(peak)[1] - 1 if peak >= 2.0**-126 else -127
            real = np.rint(np.ldexp(values[row, own].astype(float), places - exponent))
            codes[row, own] = np.clip(real, 1 - (2 << places), (2 << places) - 1) if exponent > -127 else 0
            found_scales[row, own] = exponent + 127
    bytes_ = codes & 255
    if dtype is DataType.INT4:
        bytes_, found_scales = (codes[:, 0::2] & 15) | (codes[:, 1::2] & 15) << 4, found_scales[:, 0::2]
    if transposes:
        bytes_, found_scales = bytes_.T, found_scales.T
    inner = rows if transposes else cols
    line, pitch = line_values(inner, lanes, narrow), row_values(tile, inner, narrow)
    if dtype is DataType.INT4 and not transposes:
        line, pitch = line // 2, pitch // 2
    for outer in range(bytes_.shape[0]):
        row = machine.scratchpad[out + outer * 2 * pitch : out + (outer + 1) * 2 * pitch]
        for place in range(bytes_.shape[1]):
            at = place // line * 2 * line + place % line
            assert (row[at], row[at + line]) == (bytes_[outer, place], found_scales[outer, place])


def test_words_say_whose_the_scales_are():
    fields = {"dtype": DataType.FP32, "m": 1, "n": 2, "k": 4}
    for dtype in CACHE_SCALED:
        for by_rows in (False, True):
            made = Instruction(opcode=Opcode.MATMUL, **fields, packing=Packing(dtype, 0, by_rows=by_rows))
            assert decode(encode(made)) == made
        plain = Instruction(opcode=Opcode.MATMUL, **fields, packing=Packing(dtype, 8192))
        assert decode(encode(plain)) == plain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"packing": Packing(DataType.INT8, 0)}, "results of kv_append that are kept in int8 have scales of rows"),
        (
            {"packing": Packing(DataType.INT4, 0, by_rows=True), "function": VectorFunction.TRANSPOSE},
            "results of transpose that are kept in int4 have scales of columns",
        ),
        ({"packing": Packing(DataType.INT4, 0, by_rows=True), "n": 3}, "are pairs of columns .got 3"),
        (
            {"packing": Packing(DataType.INT8, 0), "function": VectorFunction.TRANSPOSE, "m": 5},
            "transpose that keeps scales takes a line of 4 rows at most .got 5",
        ),
        ({"packing": Packing(DataType.INT8, 0, by_rows=True), "c": Address(base=4)}, "must be multiples of 8"),
        ({"packing": Packing(DataType.INT8, 32)}, "have no groups"),
    ],
)
def test_what_has_no_circuit_is_refused(fields, message):
    append = {"opcode": Opcode.VECTOR, "function": VectorFunction.KV_APPEND, "dtype": DataType.FP32, "m": 1, "n": 4}
    program = Program((Instruction(**{**append, "k": 1, **fields}), Instruction(opcode=Opcode.END)))
    with pytest.raises(IllegalProgram, match=message):
        check_program(program, small_chip(**BOTH))


def test_a_tile_without_scales_refuses_them():
    product = Instruction(
        opcode=Opcode.MATMUL, dtype=DataType.FP32, m=1, n=4, k=4, packing=Packing(DataType.INT8, 0, by_rows=True)
    )
    with pytest.raises(IllegalProgram, match="scales of rows are of values that the array keeps so"):
        check_program(Program((product, Instruction(opcode=Opcode.END))), small_chip())


def test_faults_of_scales_are_among_those_of_a_tile():
    names = [fault.name for fault in fault_cases(small_chip(**BOTH))]
    assert "more rows than lanes transposed in int8" in names
    assert "odd columns kept in int4" in names
    assert "results kept in int8 within a line" in names


@pytest.mark.slow(seconds=45)
def test_faults_of_scales_have_their_causes(tmp_path):
    needs("icarus")
    chip = small_chip(**BOTH)
    faults = [fault for fault in fault_cases(chip) if "int8" in fault.name or "int4" in fault.name]
    assert len(faults) > 8
    bundle = build_rtl(chip)
    sources, cases = bundle.write(tmp_path / "rtl"), [fault.case for fault in faults]
    outcomes = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
    found = [(fault.name, outcome.ended, outcome.cause) for fault, outcome in zip(faults, outcomes, strict=True)]
    assert found == [(fault.name, True, fault.cause) for fault in faults]


def smaller(m, level, values):
    """A bug: of neighbours the first one, so that a line's exponent is that of a part of it."""
    return list(values[::2])


def unrounded(m, dtype, word, scale):
    """A bug: a code has no sign."""
    made = RIGHT_CODE(m, dtype, word & 0x7FFFFFFF, scale)
    return made


RIGHT_CODE = circuits.scaled_code


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["peak", "sign"])
def test_a_planted_fault_is_found(bug, monkeypatch):
    """Of 28 bugs planted by hand these programs found 26; one is of what is refused, one of numbers below 2^-126."""
    needs("icarus")
    chip = small_chip(**BOTH)
    if bug == "peak":
        monkeypatch.setattr(scales, "_larger", smaller)
    else:
        monkeypatch.setattr("siliconloom.rtl.npu.float_lane.scaled_code", unrounded)
    monkeypatch.setattr(verification, "bundle_of", build_rtl)
    assert not all(parity.passed for parity in check_programs(chip, cache_programs(chip), simulator="icarus"))
