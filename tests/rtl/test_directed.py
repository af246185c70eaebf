"""Programs and faults that random ones do not reach, hosts with habits, memories that answer as badly as they may."""

import numpy as np
import pytest

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program, extent
from siliconloom.arch.datatype import DataType
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.faults import Cause
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import row_values
from siliconloom.arch.vector import BUILT, Parameters, VectorFunction
from siliconloom.arch.word import WORD_BYTES
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.npu import GoldenMachine, parameter_planes
from siliconloom.verification.chain import Chain, Places
from siliconloom.verification.directed import directed_programs
from siliconloom.verification.faults import fault_cases
from siliconloom.verification.images import MEMORY_BYTES, PROGRAM_WORDS, RESULTS, random_image
from siliconloom.verification.npu import check_programs, compare, surrounded
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.npu import SMALL, quick_chip


@pytest.fixture(scope="module")
def tile(tmp_path_factory):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip, folder = quick_chip(), tmp_path_factory.mktemp("directed")
    bundle = build_rtl(chip, remembered=True)
    sources = bundle.write(folder / "rtl")
    return chip, lambda cases: run_programs(
        chip, sources, bundle.top, cases, folder=folder / "bench", simulator="icarus"
    )


def last_stored(made):
    """The end of what a program stores."""
    counts, last = [], 0
    for i in made.program.instructions:
        if i.opcode == Opcode.LOOP:
            counts.append(i.m)
        elif i.opcode == Opcode.NEXT:
            counts.pop()
        elif i.opcode == Opcode.STORE:
            last = max(last, extent(i.memory, counts)[1] + (i.m - 1) * i.pitch + i.n)
    return last


@pytest.mark.parametrize("name", ["npu-edge", "npu-edge-mx", "npu-edge-w8a8", "npu-edge-w4a8", "npu-edge-int8"])
@pytest.mark.parametrize("sides", [(), (8, 4), (8, 8), (16, 24), (16, 32)])
def test_directed_programs_of_the_library_fit_the_memory_of_benches(name, sides):
    """On random tiles they do, which have few formats: those of a tile with five were too long once."""
    sets = [(f"tile.array.{side}", str(count)) for side, count in zip(("rows", "cols"), sides, strict=False)]
    made = directed_programs(load_chip(name, sets))
    assert len(made) >= 17
    assert max(len(program.program.instructions) for _, program in made) <= PROGRAM_WORDS


@pytest.mark.parametrize("any_sides", [False, True])
@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_directed_programs_are_legal_on_any_tile_and_their_results_depend_on_what_they_reach(seed, any_sides):
    are_legal(random_npu(seed, any_sides))


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3"])
@pytest.mark.parametrize("seed", range(0, 40, 13))
def test_directed_programs_are_legal_on_any_tile_in_floating_point(seed, dtype):
    are_legal(random_npu(seed, seed % 2 == 1, DataType(dtype)))


def test_narrow_operands_begin_behind_another_line_of_the_whole_one():
    """Of every function the first or second operand, the parameters or the result, and both operands of a product."""
    chip = load_chip("npu-edge-int8")
    lanes = chip.tile.vector.lanes
    made = dict(directed_programs(chip))["narrow lines"]
    computed = [i for i in made.program.instructions if i.opcode in (Opcode.VECTOR, Opcode.MATMUL)]
    assert all(i.narrow for i in computed)
    behind = {i.function if i.opcode == Opcode.VECTOR else i.opcode: set() for i in computed}
    for i in computed:
        lines = {"b": lanes * chip.tile.array.load_rows} if i.opcode == Opcode.MATMUL else {}
        places = {name: getattr(i, name).base % lines.get(name, lanes) for name in "abcd"}
        behind[i.function if i.opcode == Opcode.VECTOR else i.opcode] |= {n for n, place in places.items() if place}
    assert behind == {
        VectorFunction.COPY: {"a", "c"},
        VectorFunction.TRANSPOSE: {"c"},
        VectorFunction.ROPE: {"a", "b", "c"},
        VectorFunction.COMBINE: {"b"},
        VectorFunction.ARGMAX: {"c"},
        Opcode.MATMUL: {"a", "b"},
        VectorFunction.REQUANTIZE: {"c", "d"},
    }


def test_every_function_with_a_table_has_one_of_its_own_and_every_element():
    chip = load_chip("npu-edge-int8")
    made = dict(directed_programs(chip))["every table"]
    functions = [i.function for i in made.program.instructions if i.opcode == Opcode.VECTOR]
    assert set(functions) == {f for f in BUILT if Parameters.TABLE in f.spec.parameters}
    after = made.loaded()
    GoldenMachine(chip, after).run(made.program)
    stores = [i for i in made.program.instructions if i.opcode == Opcode.STORE]
    results = [after[i.memory.base : i.memory.base + i.n] for i in stores]
    assert all(i.n >= 256 for i in stores)
    assert all(len(np.unique(result)) > 50 for result in results)
    assert len({result.tobytes() for result in results}) == len(functions)


def test_rows_in_floating_point_show_their_last_bits():
    """What biases leave are many different numbers, none of them infinite."""
    programs = dict(directed_programs(random_npu(8, dtype=DataType.BF16)))
    for name in ("last bits of norms", "last bits of sums"):
        made = programs[name]
        after = made.loaded()
        GoldenMachine(random_npu(8, dtype=DataType.BF16), after).run(made.program)
        written = after[RESULTS : last_stored(made)].view("<u2")
        assert len(np.unique(written)) > 15, name
        assert (written << 1 >> 8 < 255).all(), name


@pytest.mark.parametrize("name", ["npu-edge-int8", "gemmini-16", "tpu-v4"])
def test_directed_programs_are_legal_on_chips_of_the_library(name):
    """One has banks that are larger than the memory of these programs, and more lanes than a sum has rows."""
    are_legal(load_chip(name, [("tile.array.operands", "[int8]")]))


def are_legal(chip):
    """Every directed program is one of the tile's, which writes what it has computed and not over itself."""
    for name, made in directed_programs(chip):
        check_program(made.program, chip)
        assert len(made.program.instructions) <= chip.tile.sequencer.program_words, name
        assert last_stored(made) <= made.base, f"{name} writes over itself"
        after = made.loaded()
        GoldenMachine(chip, after).run(made.program)
        assert (after != made.loaded()).sum() > 1, name
        again = made.loaded()
        machine = GoldenMachine(chip, again)
        machine.scratchpad[:] = 0xFF  # what a memory holds when power comes is nobody's result
        machine.run(made.program)
        assert np.array_equal(after, again), f"{name} stores what was never written"


@pytest.mark.parametrize(
    "side", [16, pytest.param(32, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
def test_programs_fit_their_memory_where_the_bus_is_as_wide_as_that_of_a_datacentre(side):
    """With 2,048 bytes a cycle three of them ended behind it, or with an index behind its table."""
    sets = ("tile.array.rows", "tile.array.cols", "tile.vector.lanes")
    are_legal(load_chip("npu-datacenter", [(key, str(side)) for key in sets]))


def test_operands_that_fit_no_memory_of_a_bench_are_refused_by_name():
    with pytest.raises(NotSupported, match="operands of an array so large take more than the 65536 bytes"):
        directed_programs(load_chip("npu-datacenter"))


def test_directed_programs_reach_every_level_either_sign_and_accumulate():
    programs = dict(directed_programs(quick_chip()))
    strides = np.array(
        [
            getattr(i, name).strides
            for i in programs["six loop levels"].program.instructions
            if i.opcode in (Opcode.LOAD, Opcode.STORE, Opcode.VECTOR)
            for name in ("memory", "a", "c")
        ]
    )
    assert (strides > 0).any(axis=0).all()
    assert (strides < 0).any(axis=0).all()
    assert any(i.accumulate for i in programs["accumulated sums"].program.instructions)


def test_rows_are_as_long_as_those_of_large_models_where_a_tile_has_room():
    """Widths of 8,192 and contexts of 4,096 on npu-edge-int8; probabilities of so many keys that are not all zero."""
    chip = load_chip("npu-edge-int8")
    programs = dict(directed_programs(chip))
    longest = {
        name: max(i.n for i in programs[name].program.instructions if i.opcode == Opcode.VECTOR)
        for name in ("long rows", "long softmax")
    }
    assert longest == {"long rows": 8191, "long softmax": 4095}
    for name, made in programs.items():
        check_program(made.program, chip)
        assert last_stored(made) <= made.base, f"{name} writes over itself"
        after = made.loaded()
        GoldenMachine(chip, after).run(made.program)
        if name == "long softmax":
            assert len(np.unique(after[RESULTS : RESULTS + 4000])) > 4


@pytest.mark.rtl
@pytest.mark.slow
def test_rows_as_long_as_those_of_large_models_agree_in_every_cycle_and_byte():
    if simulator_path("verilator") is None:
        pytest.skip("verilator is not installed")
    chip = load_chip("npu-edge-int8")
    for parity in check_programs(chip, directed_programs(chip)):
        assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.rtl
@pytest.mark.slow
def test_a_tile_does_what_it_must_in_every_surrounding(tile, seed):
    chip, run = tile
    programs = directed_programs(chip)
    programs = [*programs, ("extreme", random_program(chip, 7, extreme=True))]
    made, cases = [], []
    for number, (name, program) in enumerate(programs):
        # the day's seed turns the surroundings on by one
        for step in (number + seed, number + seed + 4):
            placed, options = surrounded(program, step, seed=seed)
            made.append((f"{name} in surrounding {step}", placed))
            cases.append(ProgramCase(placed.program, placed.memory, placed.base, **options))
    assert {bool(case.origin) for case in cases} == {bool(case.stall) for case in cases} == {False, True}
    for (name, program), case, outcome in zip(made, cases, run(cases), strict=True):
        parity = compare(name, chip, program, outcome, stalled=case.stall > 0)
        assert parity.passed, "\n".join([name, *parity.errors])


@pytest.mark.slow(seconds=45)
@pytest.mark.rtl
def test_every_fault_has_its_cause_and_the_next_run_is_right(tile):
    chip, run = tile
    faults = fault_cases(chip)
    good = min((random_program(chip, n) for n in range(20)), key=lambda each: len(each.program.instructions))
    cases = []
    for number, fault in enumerate(faults):
        cases.append(fault.case)
        if fault.cause == Cause.BUS_ERROR or number == len(faults) - 1:
            cases.append(ProgramCase(good.program, good.memory, good.base, host=number))
    outcomes = iter(run(cases))
    for number, fault in enumerate(faults):
        outcome = next(outcomes)
        assert outcome.ended, f"{fault.name}: hangs"
        assert outcome.cause == fault.cause, fault.name
        if fault.number is not None:
            assert outcome.instruction == fault.number, fault.name
        if fault.cause == Cause.BUS_ERROR or number == len(faults) - 1:
            parity = compare(f"after {fault.name}", chip, good, next(outcomes))
            assert parity.passed, "\n".join([parity.name, *parity.errors])


@pytest.mark.slow(seconds=30)
@pytest.mark.rtl
def test_a_reset_in_the_middle_of_a_run_leaves_nothing_behind(tile):
    """Of a tile with two ports; one with one port is reset each day in tests/rtl/test_mapped.py."""
    chip, run = tile
    made = random_program(chip, 4)
    cycles = [20, 45, 110, 230]
    cases = [ProgramCase(made.program, made.memory, made.base, reset_at=cycle) for cycle in cycles]
    for cycle, outcome in zip(cycles, run(cases), strict=True):
        assert compare(f"reset at {cycle}", chip, made, outcome).passed, cycle


@pytest.mark.slow(seconds=15)
@pytest.mark.rtl
@pytest.mark.parametrize("dataflow", ["weight_stationary", "input_stationary"])
def test_what_fills_up_a_fold_may_be_unknown(dataflow):
    """One row of two that are loaded at a time, beside memory that nobody wrote: nothing times unknown is unknown."""
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    narrow = {"tile.dma.bytes_per_cycle": "4", "tile.dma.port_bytes": "4", "memory.dram.access_bytes": "4"}
    sets = SMALL | narrow | {"tile.vector.lanes": "2", "tile.array.dataflow": dataflow}
    chip = load_chip("npu-edge-int8", list(sets.items()))
    tile, places = chip.tile, Places(chip.tile)
    assert tile.array.load_rows == 2
    assert places.unit == tile.array.cols
    memory = random_image(np.random.default_rng(3))
    planes = parameter_planes(*(np.full(4, each) for each in (0, 64, 12)), tile.vector.lanes).reshape(-1)
    memory[16 : 16 + len(planes)] = planes
    first, second, parameters, results = (number * places.bank for number in (0, 1, 3, 4))
    chain = places.chain()
    for source, count, target in ((0, 4, first), (4, 4, second), (16, len(planes), parameters)):
        chain.add(Opcode.LOAD, m=1, n=count, memory=Address(base=source), a=Address(base=target))
    chain.add(Opcode.MATMUL, m=4, n=4, k=1, a=Address(base=first), b=Address(base=second), narrow=1)
    made = {"a": Address(), "c": Address(base=results), "d": Address(base=parameters)}
    chain.add(Opcode.VECTOR, function=VectorFunction.REQUANTIZE, m=4, n=4, k=1, **made)
    chain.add(Opcode.STORE, m=1, n=16, memory=Address(base=RESULTS), a=Address(base=results))
    (parity,) = check_programs(chip, [("one row", chain.program(memory))], simulator="icarus")
    assert parity.passed, parity.errors
    assert len(np.unique(memory[:8])) == 8


@pytest.mark.slow
@pytest.mark.rtl
def test_bits_that_no_tile_reads_change_nothing(tile):
    """Reserved bits and fields of other instructions: the assembler refuses flags among them, circuits have no use."""
    chip, run = tile
    programs = [random_program(chip, seed) for seed in (4, 5)] + [made for _, made in directed_programs(chip)[:8]]
    cases = [ProgramCase(p.program, p.memory, p.base, scribbled=seed) for seed, p in enumerate(programs, 1)]
    for number, (case, made, outcome) in enumerate(zip(cases, programs, run(cases), strict=True)):
        assert case.placed()[0] != made.program.encode()
        assert compare(f"program {number}", chip, made, outcome).passed, number


@pytest.mark.rtl
@pytest.mark.slow
def test_the_largest_of_a_vocabulary_is_found_beyond_the_columns_of_other_rows(tmp_path):
    """Two rows of 33,003 logits: the largest stands once near the end, and twice, of which the first counts."""
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = quick_chip()
    scratchpad = chip.tile.scratchpad.model_copy(update={"capacity": 1 << 20})
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"scratchpad": scratchpad})})
    columns, bank, unit = 33_003, scratchpad.capacity // scratchpad.banks, Places(chip.tile).unit
    pitch = row_values(chip.tile, columns)
    memory = np.zeros(MEMORY_BYTES, np.uint8)
    values = np.random.default_rng(0).integers(-128, 126, (2, pitch)).astype(np.int8)
    values[0, 32_999], values[1, [32_770, 33_000]] = 126, 127
    memory[: values.size] = values.reshape(-1).view(np.uint8)
    chain, results = Chain(), MEMORY_BYTES - 2 * PROGRAM_WORDS * WORD_BYTES
    assert 2 * pitch <= min(bank, results)
    chain.add(Opcode.LOAD, m=1, n=-(-values.size // unit) * unit, a=Address(base=2 * bank))
    places = {"a": Address(base=2 * bank), "c": Address(base=4 * bank)}
    chain.add(Opcode.VECTOR, function=VectorFunction.ARGMAX, m=2, n=columns, k=1, **places)
    chain.add(
        Opcode.STORE,
        m=2,
        n=4,
        pitch=4,
        local_pitch=row_values(chip.tile, 4),
        memory=Address(base=results),
        a=Address(base=4 * bank),
    )
    made = chain.program(memory)
    check_program(made.program, chip)
    bundle = build_rtl(chip, remembered=True)
    (outcome,) = run_programs(
        chip,
        bundle.write(tmp_path / "rtl"),
        bundle.top,
        [ProgramCase(made.program, made.memory, made.base)],
        folder=tmp_path / "bench",
        simulator="icarus",
    )
    parity = compare("a vocabulary", chip, made, outcome)
    assert parity.passed, "\n".join(parity.errors)
    assert outcome.memory[results : results + 8].view("<u4").tolist() == [32_999, 32_770]
