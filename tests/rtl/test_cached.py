"""Keys and values in formats of fewer bits than elements: what is kept of results, and what the array makes of it."""

import ml_dtypes
import numpy as np
import pytest
from amaranth.sim import Simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.array import SystolicArray
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import CACHE_CODES, DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.floats import narrowed, values_of, widened
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, decode, encode
from siliconloom.arch.layout import row_values
from siliconloom.arch.vector import VectorFunction
from siliconloom.rtl.array.weights import CacheLane
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.library import Library
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification import npu as verification
from siliconloom.verification.cached_directed import cache_programs
from siliconloom.verification.faults import fault_cases
from siliconloom.verification.filling import filled
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.test_mapped import GPT2, LLAMA, graph, mapped

pytestmark = pytest.mark.rtl
TILES, CELLS = 8, 32
NUMBERS = {
    DataType.BF16: ml_dtypes.bfloat16,
    DataType.FP8_E4M3: ml_dtypes.float8_e4m3fn,
    DataType.FP8_E5M2: ml_dtypes.float8_e5m2,
}


def needs(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


def small_chip(**sets):
    base = {
        "tile.array.rows": 4,
        "tile.array.cols": 4,
        "tile.array.load_rows": 2,
        "tile.array.cache": "[bf16, fp8_e4m3, fp8_e5m2]",
        "tile.vector.lanes": 4,
        "tile.scratchpad.capacity": "32 KiB",
        "tile.scratchpad.banks": 8,
        "tile.accumulator.capacity": "1 KiB",
        "tile.dma.bytes_per_cycle": 16,
    }
    return load_chip("npu-edge", [(key, str(value)) for key, value in {**base, **sets}.items()])


def tile_of(number):
    """The ``number``-th small random tile that keeps keys and values in a format of their own."""
    made = (random_npu(seed, seed % 2 == 1, (DataType.BF16, DataType.FP16)[number % 2]) for seed in range(4000))
    small = (
        chip
        for chip in made
        if chip.tile.array.cache
        and chip.tile.array.rows * chip.tile.array.cols <= CELLS
        and chip.tile.vector.lanes <= 8
    )
    return next(chip for place, chip in enumerate(small) if place == number)


def programs_of(chip, number, count=4):
    made = cache_programs(chip)
    made += [(f"program {n}", random_program(chip, 1000 * number + n)) for n in range(count)]
    for _, each in made:
        check_program(each.program, chip)
    return made


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("number", range(TILES))
def test_random_tiles_agree_in_every_cycle_and_byte(number, seed):
    needs("icarus")
    chip = tile_of(number)
    made = programs_of(chip, seed)
    for parity in check_programs(chip, made, simulator="icarus", stall=[0] * (len(made) - 1) + [60]):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.slow
def test_mapped_models_agree_in_every_cycle_and_byte(tmp_path):
    """A prompt, and tokens after others whose last block of keys is full in part: bf16, and eight bits of two kinds."""
    needs("icarus")
    chip = small_chip(**{"tile.sequencer.program_words": 1024, "tile.accumulator.capacity": "8 KiB"})
    works = [
        (LLAMA, ("phase", "decode"), ("context", "19"), ("cache_precision", "fp8_e4m3")),
        (LLAMA, ("sequence", "6"), ("cache_precision", "fp8_e5m2")),
        (GPT2, ("phase", "decode"), ("context", "9"), ("cache_precision", "bf16")),
    ]
    made = [
        (str(number), filled(mapped(chip, graph(tmp_path, {**model, "num_hidden_layers": 1}, *sets)), number))
        for number, (model, *sets) in enumerate(works)
    ]
    for _, each in made:
        kept = [i for i in each.program.instructions if i.packing is not None and i.opcode == Opcode.VECTOR]
        assert len(kept) >= 2
    for parity in check_programs(chip, made, simulator="icarus"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


def test_random_tiles_keep_every_format():
    tiles = [tile_of(number).tile for number in range(TILES)]
    assert {dtype for tile in tiles for dtype in tile.array.cache} >= {DataType.BF16, *CACHE_CODES}
    assert any(tile.array.weights is None for tile in tiles)
    assert any(tile.array.weights is not None for tile in tiles)
    assert any(not tile.rounds for tile in tiles)


@pytest.mark.slow(seconds=1)
def test_random_programs_keep_results_and_read_them():
    programs = [random_program(tile_of(number), seed).program for number in range(TILES) for seed in range(8)]
    kept = [i for program in programs for i in program.instructions if i.packing is not None and not i.packing.group]
    assert {i.function for i in kept if i.opcode == Opcode.VECTOR} == {
        VectorFunction.KV_APPEND,
        VectorFunction.TRANSPOSE,
    }
    assert any(i.opcode == Opcode.MATMUL and i.packing.dtype in CACHE_CODES for i in kept)


@pytest.mark.slow(seconds=33)
@pytest.mark.parametrize("sets", [{}, {"tile.vector.format": "null", "tile.array.cache": "fp8_e4m3"}])
def test_a_small_edge_tile_agrees(sets):
    needs("icarus")
    chip = small_chip(**sets)
    for parity in check_programs(chip, programs_of(chip, 1, 1), simulator="icarus"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.parametrize("operand", ["bf16", "fp16"])
@pytest.mark.parametrize("dtype", CACHE_CODES)
def test_every_code_becomes_its_number(dtype, operand):
    array = SystolicArray(rows=2, cols=2, dataflow="weight_stationary", operands=operand, cache=[dtype])
    lane = CacheLane(Library("lane"), array, dtype)
    found = []

    async def bench(context):
        for code in range(256):
            context.set(lane.code, code)
            found.append(context.get(lane.o))

    simulator = Simulator(lane.elaborate(None))
    simulator.add_testbench(bench)
    simulator.run()
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(NUMBERS[dtype]).astype(np.float32)
    np.testing.assert_array_equal(values_of(np.array(found, np.uint16), DataType(operand)), wanted)
    np.testing.assert_array_equal(found, narrowed(widened(codes, dtype), DataType(operand)))


@pytest.mark.slow(seconds=1)
@given(data=st.data(), rows=st.integers(1, 9), cols=st.integers(1, 13), narrow=st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_kept_results_are_those_of_ml_dtypes(data, rows, cols, narrow):
    """Any numbers but those that no format of floating point has as normal ones, rounded as ml_dtypes does."""
    dtype = data.draw(st.sampled_from(list(NUMBERS)))
    transposes = data.draw(st.booleans())
    chip = small_chip()
    machine = GoldenMachine(chip, np.zeros(1, np.uint8))
    pitch = row_values(chip.tile, cols, narrow)
    finite = st.floats(width=32, allow_subnormal=False) | st.integers(-600, 600).map(lambda n: n / 64)
    values = np.array(data.draw(st.lists(finite, min_size=rows * cols, max_size=rows * cols)), np.float32)
    values = values.reshape(rows, cols)
    held = machine.scratchpad[: 4 * rows * pitch].view(np.float32).reshape(rows, pitch)
    held[:, :cols] = values
    function = VectorFunction.TRANSPOSE if transposes else VectorFunction.KV_APPEND
    out = 1 << 14
    i = Instruction(
        opcode=Opcode.VECTOR,
        function=function,
        dtype=DataType.FP32,
        m=rows,
        n=cols,
        k=1,
        c=Address(base=out),
        packing=Packing(dtype, 0),
        narrow=narrow,
    )
    machine.execute(i, [])
    outer, inner = (cols, rows) if transposes else (rows, cols)
    size = dtype.bits // 8
    found = machine.scratchpad[out : out + size * outer * row_values(chip.tile, inner, narrow)]
    found = found.view(NUMBERS[dtype]).reshape(outer, -1)[:, :inner].astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (values.T if transposes else values).astype(NUMBERS[dtype]).astype(np.float32)
    tiny = np.abs(wanted) < 2.0**-126  # those of bf16 are zeros
    np.testing.assert_array_equal(found, np.where(tiny, 0, wanted))


def test_words_say_what_is_kept():
    fields = {"function": VectorFunction.KV_APPEND, "dtype": DataType.FP32, "m": 1, "n": 1}
    for packing in (*(Packing(dtype, 0) for dtype in (DataType.BF16, *CACHE_CODES)), None):
        made = Instruction(opcode=Opcode.VECTOR, **fields, packing=packing)
        assert decode(encode(made)) == made


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"packing": Packing(DataType.FP16, 0)}, "no circuit for keys and values in fp16; the tile has bf16, fp8_e4m3"),
        ({"packing": Packing(DataType.FP8_E4M3, 32)}, "have no groups"),
        ({"packing": Packing(DataType.BF16, 0), "function": VectorFunction.COPY}, "results of copy are elements"),
        ({"packing": Packing(DataType.BF16, 0), "c": Address(base=2)}, "must be multiples of 8"),
    ],
)
def test_what_has_no_circuit_is_refused(fields, message):
    append = {"opcode": Opcode.VECTOR, "function": VectorFunction.KV_APPEND, "dtype": DataType.FP32, "m": 1, "n": 4}
    program = Program((Instruction(**{**append, "k": 1, **fields}), Instruction(opcode=Opcode.END)))
    with pytest.raises(IllegalProgram, match=message):
        check_program(program, small_chip())


def test_a_tile_that_keeps_elements_refuses_others():
    chip = small_chip(**{"tile.array.cache": "[]"})
    append = Instruction(
        opcode=Opcode.VECTOR,
        function=VectorFunction.KV_APPEND,
        dtype=DataType.FP32,
        m=1,
        n=1,
        packing=Packing(DataType.BF16, 0),
    )
    with pytest.raises(IllegalProgram, match="no circuit for keys and values in bf16; the tile has none but elements"):
        check_program(Program((append, Instruction(opcode=Opcode.END))), chip)


def test_faults_of_what_is_kept_are_among_those_of_a_tile():
    names = [fault.name for fault in fault_cases(small_chip())]
    assert "results kept in fp8_e5m2 within a line" in names
    assert "results kept in fp16" in names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "old", "new"), [("cached_fp8_e4m3_bf16", "code[0]", "code[1]"), ("lane", "= kept[0] ?", "= kept[1] ?")]
)
def test_a_planted_fault_is_found(module, old, new, monkeypatch):
    needs("icarus")
    chip = small_chip()
    bundle = verification.bundle_of(chip)
    name = next(each for each in sorted(bundle.files) if each.endswith(f"_{module}.v"))
    assert old in bundle.files[name], bundle.files[name]
    bundle.files[name] = bundle.files[name].replace(old, new, 1)
    monkeypatch.setattr(verification, "bundle_of", lambda chip: bundle)
    assert not all(parity.passed for parity in check_programs(chip, cache_programs(chip), simulator="icarus"))
