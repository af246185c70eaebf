"""Tiles that compute in floating point: random programs and mapped products on RTL, simulator and golden model."""

import re

import numpy as np
import pytest
from amaranth import Const

from siliconloom.arch import LoomError, NotSupported, load_chip, timing
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType, Packing
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.floats import SIGN, float_product, patterns_of, values_of, widened
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import padded, row_values
from siliconloom.arch.vector import BUILT_IN_FLOATS, FunctionSpec, VectorFunction, register_function, remove_function
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.rtl.bench.programs import run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.float_ways import (
    FLOAT_CIRCUITS,
    FLOAT_WAYS,
    FloatWay,
    assigns,
    float_ways,
    register_float_circuit,
    register_float_way,
)
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.vector.float_unit import FloatVectorUnit
from siliconloom.rtl.npu.ways import CIRCUITS, register_circuit
from siliconloom.sim.chip.engine import duration
from siliconloom.sim.golden import float_functions
from siliconloom.sim.golden.floating import FLOAT_GOLDEN, in_floats
from siliconloom.sim.golden.npu import GoldenMachine, LoadedProgram, float_parameter_planes, float_scalar_bytes
from siliconloom.verification import npu as verification
from siliconloom.verification.chain import Chain, Places
from siliconloom.verification.faults import fault_cases
from siliconloom.verification.filling import filled
from siliconloom.verification.float_directed import packed_programs
from siliconloom.verification.images import RESULTS, random_image
from siliconloom.verification.npu import check_programs
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from siliconloom.verification.writer import product_sizes
from siliconloom.workloads import load_workload
from tests.arch.test_functions import registered
from tests.in_turn import in_turn
from tests.mapper.chip.anew import with_tiles
from tests.rtl.test_mapped import HELD, PARTED, PRODUCTS, SETS, held_in_part

PROGRAMS = 6
TILES, CELLS = 8, 32
"""Tiles that take turns, and cells of their arrays at most: an adder in fp32 is a large circuit for Icarus."""
FORMATS = (DataType.BF16, DataType.FP16, DataType.FP8_E4M3, DataType.FP8_E5M2)
pytestmark = pytest.mark.rtl


def needs(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


def tile_of(number):
    """The ``number``-th small random tile; formats take turns."""
    made = (random_npu(seed, seed % 2 == 1, FORMATS[number % len(FORMATS)]) for seed in range(1000))
    small = (
        chip for chip in made if chip.tile.array.rows * chip.tile.array.cols <= CELLS and chip.tile.vector.lanes <= 8
    )
    return next(chip for place, chip in enumerate(small) if place == number)


def programs_of(chip, number):
    programs = [(f"program {n}", random_program(chip, 1000 * number + n)) for n in range(PROGRAMS)]
    for _, made in programs:
        check_program(made.program, chip)
    return programs


def checked(chip, number):
    stall = [0] * (PROGRAMS - 1) + [60]
    return check_programs(chip, programs_of(chip, number), simulator="icarus", stall=stall)


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("number", range(TILES))
def test_random_programs_agree_in_every_cycle_and_byte(number, seed):
    needs("icarus")
    chip = tile_of(number)
    for parity in checked(chip, seed):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DataType.FP8_E4M3, DataType.FP8_E5M2])
def test_an_array_in_fp8_between_elements_in_fp32_agrees_in_every_cycle_and_byte(dtype, seed):
    """Elements are rounded as they enter, weights lie in fp8: random programs, and weights of any pattern."""
    needs("verilator")
    made = (random_npu(number, number % 2 == 1, dtype, DataType.FP32) for number in range(1000))
    chip = next(
        chip
        for chip in made
        if chip.tile.rounds and chip.tile.array.rows * chip.tile.array.cols <= CELLS and chip.tile.vector.lanes <= 8
    )
    programs = [*programs_of(chip, seed), *packed_programs(chip)]
    assert any(i.packing == Packing(dtype, 0) for _, each in programs for i in each.program.instructions)
    for parity in check_programs(chip, programs, simulator="verilator"):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("stages", [1, 4])
def test_every_fault_of_a_tile_in_floating_point_has_its_cause(stages, tmp_path):
    needs("verilator")
    sets = {"rows": 4, "cols": 4, "operands": "[bf16]", "load_rows": 1, "accumulate_stages": stages}
    chip = load_chip(
        "npu-edge-int8",
        [
            *((f"tile.array.{key}", str(value)) for key, value in sets.items()),
            ("tile.vector.lanes", "4"),
            ("tile.vector.latency", "30"),
            ("tile.vector.sum_stages", str(stages)),
            ("tile.dma.bytes_per_cycle", "8"),
            ("tile.scratchpad.capacity", "32KiB"),
        ],
    )
    bundle, faults = verification.bundle_of(chip), fault_cases(chip)
    cases = [fault.case for fault in faults]
    outcomes = run_programs(chip, bundle.write(tmp_path / "rtl"), bundle.top, cases, folder=tmp_path)
    for fault, outcome in zip(faults, outcomes, strict=True):
        assert (outcome.ended, outcome.cause) == (True, fault.cause), fault.name
        assert fault.number in (None, outcome.instruction), fault.name


@pytest.mark.slow(seconds=3)
def test_random_programs_use_every_function_and_make_numbers_of_every_kind():
    """A bench whose results are all zero, or no numbers, would show nothing."""
    used, kinds = set(), []
    for number in range(TILES):
        chip = tile_of(number)
        for n in range(6 * PROGRAMS):
            made = random_program(chip, n)
            used |= {i.function for i in made.program.instructions if i.opcode == Opcode.VECTOR}
            before, after = made.loaded(), made.loaded()
            GoldenMachine(chip, after).run(made.program)
            dtype = chip.tile.circuit_format
            written, zeros = (widened(x.view(f"<u{dtype.bits // 8}"), dtype) for x in (after, before))
            words = written[np.flatnonzero(written != zeros)]
            exponents = words >> 23 & 255
            if len(words):
                different = len(np.unique(words)) / len(words)
                kinds.append([np.mean(exponents == 0), np.mean(exponents == 255), different])
    assert used == BUILT_IN_FLOATS
    zeros, special, different = np.mean(kinds, axis=0)
    assert zeros < 0.6
    assert 0 < special < 0.5
    assert different > 0.2


@pytest.mark.parametrize(
    ("module", "old", "new"),
    in_turn(
        [
            ("lane", r"(first_kept = )[^?]+\?", r"\g<1>1'h0 ?"),
            ("adder", r"\badds? \? ", "1'h0 ? "),
            ("lane", r"plane\[0\] \? plane_data", "plane[1] ? plane_data"),
        ],
        0,
        seconds=10,
    ),
)
def test_a_planted_fault_is_found(module, old, new, monkeypatch):
    """In a lane's product, in the sums of the accumulator, in the parameters of a column: one program after the other.

    The bench is compiled once; what the first of them finds needs no others, which took six tenths of the time.
    """
    needs("icarus")
    chip = tile_of(0)
    bundle = verification.bundle_of(chip)
    name = next(each for each in sorted(bundle.files) if each.endswith(f"_{module}.v"))
    bundle.files[name], times = re.subn(old, new, bundle.files[name])
    assert times, name
    monkeypatch.setattr(verification, "bundle_of", lambda chip: bundle)
    found = (check_programs(chip, [each], simulator="icarus")[0] for each in programs_of(chip, 0))
    assert any(not parity.passed for parity in found)


@pytest.mark.slow(seconds=73)
@pytest.mark.parametrize(
    ("dataflow", "dtype"),
    [("weight_stationary", "bf16"), ("input_stationary", "fp16"), ("output_stationary", "fp8_e4m3")],
)
def test_products_of_loom_sim_run_as_they_are_timed(dataflow, dtype, tmp_path):
    needs("verilator")
    """Of a list, with a depth that stays in part, and with sums that take most of the accumulator."""
    sets = SETS | {"tile.array.operands": dtype, "tile.array.dataflow": dataflow, "tile.scratchpad.capacity": "64 KiB"}
    sets |= {"tile.scratchpad.banks": 32, "tile.sequencer.program_words": 1024}
    if dataflow == "output_stationary":
        sets["tile.array.load_rows"] = 1
    else:
        sets["tile.array.add_stages"] = 1
    chip = load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])
    file = tmp_path / "list.yaml"
    file.write_text(PRODUCTS.replace("int8", dtype))
    made = map_workload(chip, load_workload(str(file)))
    programs = [("mapped", made)]
    if dataflow != "output_stationary":
        programs.append(("a part of the depth stays", held_in_part(chip, tmp_path, HELD.replace("int8", dtype))))
    file.write_text(PARTED.replace("int8", dtype))
    alone = map_workload(chip, load_workload(str(file)), lambda program: duration(program, chip))
    sums = with_tiles(alone, {"a": (24, 64, 16, "n_outer"), "c": (36, 48, 8, "m_outer")})
    programs.append(("sums of one slot", sums))
    for parity in check_programs(chip, [(name, filled(each, 1)) for name, each in programs]):
        assert parity.passed, "\n".join([parity.name, *parity.errors])
        assert parity.case().bytes_compared > 1000


def product(folder, dtype, sets, **sizes):
    """A mapped product on a small tile."""
    chip = load_chip(
        "npu-edge-int8", [(key, str(value)) for key, value in (SETS | sets | {"tile.array.operands": dtype}).items()]
    )
    file = folder / "product.yaml"
    gemm = ", ".join(f"{name}: {value}" for name, value in sizes.items())
    file.write_text(f"kind: gemms\nprecision: {dtype}\ngemms: [{{name: g, {gemm}}}]\n")
    return map_workload(chip, load_workload(str(file)))


@pytest.mark.slow(seconds=8)
def test_what_fills_up_the_last_line_of_a_fold_does_not_count(tmp_path):
    """Zero times infinity is no number: rows behind the end of a fold are cleared, whatever memory has there."""
    needs("icarus")
    work = product(tmp_path, "fp16", {"tile.array.load_rows": 4}, m=3, n=8, k=5)
    made = filled(work, 1)
    ((address, item),) = [(a, each) for a, each in work.memory.objects() if each.role == "parameters"]
    panels = made.memory[address : address + item.size].view("<u2").reshape(-1, 8, 4)
    panels[:, 5:] = 0x7C00
    assert np.isin(panels[:, 5:], 0x7C00).all()
    (parity,) = check_programs(work.chip, [("filled up", made)], simulator="icarus")
    assert parity.passed, parity.errors


@pytest.mark.parametrize("dtype", FORMATS)
def test_results_of_long_sums_are_numbers(dtype, tmp_path):
    """Of many that meet an infinity nothing could be said."""
    work = product(tmp_path, dtype.value, {"tile.scratchpad.capacity": "128 KiB"}, m=4, n=16, k=768)
    made = filled(work, 3)
    memory = made.loaded()
    GoldenMachine(work.chip, memory).run(made.program)
    ((address, item),) = [(a, each) for a, each in work.memory.objects() if each.role == "result"]
    values = values_of(memory[address : address + item.size].view(f"<u{dtype.bits // 8}"), dtype)
    assert np.isfinite(values).mean() > 0.7
    assert len(np.unique(values)) > 20


@pytest.mark.parametrize(
    ("operands", "why"),
    [("[fp32, bf16]", "fp32, bf16 operands"), ("fp32", "fp32 operands; the first may be int8, bf16")],
)
def test_other_formats_have_no_tile(operands, why):
    with pytest.raises(NotSupported, match=why):
        geometry_of(load_chip("npu-edge-int8", [("tile.array.operands", operands)]))


def test_a_function_without_a_circuit_in_floating_point_is_not_passed_on_as_a_copy():
    """One that is registered elsewhere and says what it computes in floating point needs a way of the lane, too."""
    function = register_function(FunctionSpec(name="doubled", code=63, result="2 a", floats="2 a"))
    register_circuit(function)  # in integers
    try:
        with pytest.raises(LoomError, match="no circuit in floating point is there for the vector function doubled"):
            FloatVectorUnit(Library("tile"), geometry_of(tile_of(1)))
    finally:
        CIRCUITS.remove(function)
        remove_function(function)


class Bits:
    """Programs of one row each, whose biases take away all that the golden model computes: what is left is an error.

    A result in a short format shows eight bits of a row's state; beside its negative it would show the last one.
    """

    X, PARAMETERS, COLUMNS = 0x1000, 0x8000, 29

    def __init__(self, chip, function, seed):
        self.chip, self.tile, self.function = chip, chip.tile, function
        self.lanes, self.size, self.dtype = self.tile.vector.lanes, self.tile.element_bytes, self.tile.circuit_format
        self.memory = random_image(np.random.default_rng(seed), self.dtype, odd=0)
        self.places = Places(self.tile)
        self.bank = self.places.bank
        numbers = np.random.default_rng(seed + 100)
        # squares of elements so far apart have sums that round; powers have so many bits that theirs do, too
        spread = 0.3 if function.spec.from_sums else 2.0 ** numbers.integers(-12, 3, 64)
        x = patterns_of(numbers.standard_normal(64) * spread, self.dtype)
        self.memory[self.X : self.X + 64 * self.size] = x.view(np.uint8)

    def load(self, chain, size, source, target):
        count = self.places.aligned(size)
        chain.add(Opcode.LOAD, m=1, n=count, memory=Address(base=source), a=Address(base=target))

    def compute(self, chain, function, d, **fields):
        chain.add(Opcode.VECTOR, function=function, m=1, n=self.COLUMNS, dtype=self.dtype, d=Address(base=d), **fields)

    def program(self, bias):
        """One row whose results are less by so much."""
        chain, n, bank = Chain(), self.COLUMNS, self.bank
        wide, line = padded(n, self.lanes), self.tile.parameter_line
        biases = np.zeros(wide, np.uint32)
        biases[:n] = bias ^ SIGN
        planes = float_parameter_planes(biases, np.full(wide, 0x3F800000, np.uint32), self.lanes, self.size)
        scalars = padded(8 * self.size, line)
        self.memory[self.PARAMETERS : self.PARAMETERS + 8] = float_scalar_bytes(0.7, 0, 1).view(np.uint8)[:8]
        self.memory[self.PARAMETERS + scalars : self.PARAMETERS + scalars + planes.size] = planes
        self.load(chain, scalars + planes.size, self.PARAMETERS, 3 * bank)
        out = Address(base=4 * bank)
        if self.function.spec.from_sums:
            sizes = product_sizes(self.tile, 1, n, 5)
            self.load(chain, sizes[1], 0, 0)
            self.load(chain, sizes[0], self.X, bank)
            a, b = (Address(base=place) for place in (bank, 0))
            chain.add(Opcode.MATMUL, m=1, n=n, k=5, dtype=self.dtype, a=a, b=b)
            self.compute(chain, VectorFunction.SOFTMAX_ONLINE, 3 * bank, k=1, c=out)
        else:
            self.load(chain, self.size * row_values(self.tile, n), self.X, 2 * bank)
        a, k = (Address(), 1) if self.function.spec.from_sums else (Address(base=2 * bank), 0x3C00)
        self.compute(chain, self.function, 3 * bank + scalars, k=k, a=a, c=out)
        count = self.size * wide
        chain.add(Opcode.STORE, m=1, n=count, memory=Address(base=RESULTS), a=out)
        return chain.program(self.memory)

    def exact(self):
        """What the function makes of the row with no bias, in fp32."""
        machine = GoldenMachine(self.chip, self.program(np.zeros(self.COLUMNS, np.uint32)).loaded())
        machine.run(self.program(np.zeros(self.COLUMNS, np.uint32)).program)
        n = self.COLUMNS
        if self.function.spec.from_sums:
            panels = machine.sums[: -(-n // self.tile.array.cols)].astype(np.uint32).reshape(-1)[:n]
            return float_product(panels, float_functions.reciprocal(machine.rows.carried[0][1].astype(np.uint32)))
        x = widened(self.memory[self.X : self.X + self.size * n].view(f"<u{self.size}"), self.dtype)[None, :]
        epsilon, one = np.array([0x3C000000], np.uint32), np.full((1, n), 0x3F800000, np.uint32)
        centred = self.function == VectorFunction.LAYER_NORM
        stages = self.tile.vector.sum_stages
        return float_functions.normalize(x, one, 0 * one, epsilon, self.lanes, centred=centred, stages=stages)[0]


def summing_in(chip, stages):
    """The chip with a vector unit of two lanes whose additions take so many cycles: rows are of many blocks."""
    latency = timing.vector_stages(stages) + 1
    vector = chip.tile.vector.model_copy(
        update={"sum_stages": stages, "latency": latency, "lanes": 2, "transpose_rows": 1}
    )
    return chip.model_copy(update={"tile": chip.tile.model_copy(update={"vector": vector})})


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", [VectorFunction.LAYER_NORM, VectorFunction.RMS_NORM, VectorFunction.REQUANTIZE_ROWS]
)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_bit_of_a_rows_state_is_that_of_the_golden_model(stages, function):
    """The order of its sums, say, of which eight bits of a result show nothing."""
    needs("icarus")
    chip, programs = summing_in(tile_of(4), stages), []
    for seed in range(16):
        bits = Bits(chip, function, seed)
        made = bits.program(bits.exact())
        check_program(made.program, bits.chip)
        memory = made.loaded()
        GoldenMachine(bits.chip, memory).run(made.program)
        assert not memory[RESULTS : RESULTS + bits.size * bits.COLUMNS].any()
        programs.append((f"row {seed}", LoadedProgram(made.program, made.memory.copy(), made.base)))
    for parity in check_programs(chip, programs, simulator="icarus"):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


HALVED = FunctionSpec(name="halved", code=63, result="a / 2", floats="a / 2")


@pytest.mark.slow
def test_a_function_from_elsewhere_runs():
    """By three registrations: what it is, what it computes, and the way of a lane that makes it."""
    needs("icarus")
    half = np.array([0x3F000000], np.uint32)
    with registered(HALVED) as function:
        in_floats(function)(lambda o: float_product(o.first, half))
        register_float_way(FloatWay(name="halved", order=99, late=assigns(factor=lambda stage: Const(0x3F000000, 32))))
        register_float_circuit(function, "halved")
        try:
            chip = tile_of(0)
            programs = [(f"{n}", random_program(chip, n)) for n in range(60)]
            using = [each for each in programs if any(i.function == function for i in each[1].program.instructions)]
            for parity in check_programs(chip, using[:3], simulator="icarus"):
                assert parity.passed, parity.errors
            assert len(using) > 1
        finally:
            FLOAT_CIRCUITS.remove(function)
            FLOAT_WAYS.remove("halved")
            FLOAT_GOLDEN.remove(function)


def test_ways_in_floating_point_that_do_not_fit_are_refused():
    with pytest.raises(LoomError, match="the way in floating point again: its order 40 is that of add"):
        register_float_way(FloatWay(name="again", order=40))
    with registered(HALVED) as function:
        register_float_circuit(function, "nowhere")
        try:
            with pytest.raises(LoomError, match="halved needs nowhere, no way in floating point"):
                float_ways()
        finally:
            FLOAT_CIRCUITS.remove(function)


def test_a_program_in_another_format_is_refused():
    chip = load_chip("npu-edge-int8", [("tile.array.operands", "bf16")])
    made = next(
        each
        for each in (random_program(load_chip("npu-edge-int8"), n) for n in range(100))
        if any(i.opcode == Opcode.MATMUL for i in each.program.instructions)
    )
    with pytest.raises(IllegalProgram, match="no circuit for the number format int8; the tile has bf16"):
        check_program(made.program, chip)
