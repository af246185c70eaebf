"""Whole programs: RTL, simulator and golden model agree in every cycle and every byte, or say where they part."""

import json
import shutil
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from siliconloom.arch import CheckFailed, LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore, Unit
from siliconloom.arch.vector import BUILT, VectorFunction
from siliconloom.arch.verified import read_verified
from siliconloom.arch.word import WORD_BYTES
from siliconloom.cli import main
from siliconloom.rtl.bench.programs import EACH, ProgramCase, bench_verilog, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.geometry import PAGE, Geometry, geometry_of
from siliconloom.rtl.npu.ports import prefixes
from siliconloom.sim.chip.engine import run
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.directed import directed_programs
from siliconloom.verification.images import PROGRAM_BASE
from siliconloom.verification.npu import check_programs, compare
from siliconloom.verification.programs import random_program
from siliconloom.verification.races import races
from siliconloom.verification.random_tiles import random_npu
from siliconloom.verification.vectors import predict
from tests.rtl.npu import SMALL, quick_chip

TILES, CHOICE, PROGRAMS = 8, 20, 10
"""Tiles a day, of how many, and programs of each."""
CELLS = 64
"""Cells that the array of a day's tile has at most: Icarus takes five minutes for an array of 20 x 20."""
LAYER_PHASES = ("prompt 32", "token 33", "token 34", "token 35", "token 36")
END = Instruction(opcode=Opcode.END)
pytestmark = pytest.mark.rtl


def needs(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


def tile_of(seed, tile):
    """A tile of the day; every other one has an array of any sides."""
    return random_npu(1000 * seed + tile, any_sides=tile % 2 == 1)


def functions(seed, tile):
    """Vector functions of a tile's programs."""
    made = (random_program(tile_of(seed, tile), 1000 * seed + n) for n in range(PROGRAMS))
    return {i.function for each in made for i in each.program.instructions if i.opcode == Opcode.VECTOR}


@cache
def tiles_of(seed):
    """The day's tiles: of `CHOICE`, those whose programs use the most functions that the ones before do not."""
    arrays = {tile: tile_of(seed, tile).tile.array for tile in range(2 * CHOICE)}
    small = [tile for tile, array in arrays.items() if array.rows * array.cols <= CELLS][:CHOICE]
    used = {tile: functions(seed, tile) for tile in small}
    chosen, missing = [], set(BUILT)
    for _ in range(TILES):
        chosen.append(max(used.keys() - {*chosen}, key=lambda tile: (len(used[tile] & missing), -tile)))
        missing -= used[chosen[-1]]
    return chosen


@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("number", range(TILES))
def test_random_programs_on_random_tiles_agree_in_every_cycle_and_byte(number, seed):
    needs("icarus")
    chip = tile_of(seed, tiles_of(seed)[number])
    programs = [(f"program {n}", random_program(chip, 1000 * seed + n)) for n in range(PROGRAMS)]
    for _, made in programs:
        check_program(made.program, chip)
    stall = [0] * (PROGRAMS - 2) + [60, 160]
    for parity in check_programs(chip, programs, simulator="icarus", stall=stall):
        assert parity.passed, "\n".join([f"{chip.name}, {parity.name}", *parity.errors])


@pytest.mark.slow(seconds=110)
def test_the_edge_npu_is_verified_from_the_command_line(capsys):
    needs("verilator")
    status = main(["verify", "npu-edge-int8", "--seed", "3", "--programs", "4", "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["passed"]
    assert result["verified"] == "the whole tile, by programs"
    assert read_verified(result).totals.passed == 4 + len(directed_programs(load_chip("npu-edge-int8"))) + 10  # layers
    random, directed, layers = result["cases"][:4], result["cases"][4:-10], result["cases"][-10:]
    assert all(p["difference"] == 0 and p["values_equal"] for p in directed)
    assert [p["difference"] for p in random] == [0, 0, 0, None]
    assert sum(p["instructions"] for p in random) > 20
    names = [f"{layer}, {phase}" for layer in ("GPT-2", "Llama") for phase in LAYER_PHASES]
    assert [(p["name"], p["difference"], p["values_equal"]) for p in layers] == [(name, 0, True) for name in names]
    assert all(p["instructions"] > 100 for p in layers)


@pytest.mark.slow(seconds=1)
def test_random_programs_use_every_vector_function(seed):
    assert set().union(*(functions(seed, tile) for tile in tiles_of(seed))) == BUILT


@pytest.mark.slow(seconds=2.5)
def test_predictions_know_every_execution_of_a_loop():
    chip, jumped = load_chip("npu-edge-int8"), 0
    for seed in range(200):
        made = random_program(chip, seed)
        jumped += run(made.program, chip).jumps
        model = run(made.program, chip, exact=True)
        counters = predict(chip, made).counters
        for unit in ("load", "store", "matmul", "vector"):
            own = [i.unit == Unit[unit.upper()] and i.opcode != Opcode.BARRIER for i in made.program.instructions]
            assert counters[unit]["completed"] == model.executions[own].sum()
    assert jumped > 0, "some of these loops are jumped when nobody asks for every execution"


@pytest.mark.slow
def test_a_tile_that_differs_from_its_description_is_found_out(tmp_path):
    needs("icarus")
    described = random_npu(5)
    slower = described.tile.vector.model_copy(update={"latency": described.tile.vector.latency + 1})
    built = described.model_copy(update={"tile": described.tile.model_copy(update={"vector": slower})})
    bundle = build_rtl(built)
    made = next(m for m in (random_program(described, n) for n in range(50)) if len(m.program.instructions) > 8)
    sources = bundle.write(tmp_path / "rtl")
    case = ProgramCase(made.program, made.memory, made.base)
    (outcome,) = run_programs(built, sources, bundle.top, [case], folder=tmp_path / "bench", simulator="icarus")
    parity = compare("late", described, made, outcome)
    assert not parity.passed
    assert parity.value_errors == [], "late, but right"
    assert any("the RTL took" in e for e in parity.errors)
    assert (parity.divergence.stream, parity.divergence.number) == ("vector execution", 0)
    told = "\n".join(parity.errors)
    assert "first difference: vector execution 0, instruction" in told
    assert "<--" in told
    outcome.memory[100] ^= 1
    assert any("1 bytes of memory differ" in e for e in compare("wrong", described, made, outcome).errors)


@pytest.mark.slow
def test_a_mismatch_ends_the_command_with_status_one(monkeypatch, capsys, tmp_path):
    needs("icarus")

    def slower(chip):
        vector = chip.tile.vector.model_copy(update={"latency": chip.tile.vector.latency + 1})
        return build_rtl(chip.model_copy(update={"tile": chip.tile.model_copy(update={"vector": vector})}))

    monkeypatch.setattr("siliconloom.verification.npu.bundle_of", slower)
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    path = tmp_path / "v.json"
    command = ["verify", "npu-edge-int8", *sets, "--simulator", "icarus", "--programs", "3", "--seed", "1"]
    assert main([*command, "--json", str(path)]) == 1
    told = capsys.readouterr()
    record = read_verified(json.loads(path.read_text()))
    assert not record.passed
    assert record.kind == "npu"
    assert "vector" in next(c for c in record.cases if c.divergence).divergence.instruction
    assert "FAILED" in told.out
    assert "first difference: vector execution 0, instruction" in " ".join(told.out.split())
    assert told.err.strip().splitlines()[-1].startswith("loom: npu-edge-int8: RTL and model disagree, see the table")


LOAD = Instruction(opcode=Opcode.LOAD, m=1, n=8)
FILL = structs.replace(LOAD, n=512, post=6)
"""Weights that were never written would stay in the array, unknown."""
FAULTS = {
    "misaligned": (
        (LOAD, structs.replace(LOAD, memory=Address(base=5)), END),
        Cause.MISALIGNED_TRANSFER,
        1,
        r"instruction 1 \(load\): misaligned transfer",
    ),
    "outside": (
        (structs.replace(LOAD, a=Address(base=1 << 20)), END),
        Cause.LOCAL_ADDRESS,
        0,
        r"instruction 0 \(load\): local address: touches local bytes .* tile.scratchpad.capacity",
    ),
    "no such function": (
        (LOAD, Instruction(opcode=Opcode.VECTOR, function=VectorFunction.RESCALE, m=1, n=1), END),
        Cause.ILLEGAL_INSTRUCTION,
        1,
        r"instruction 1 \(vector\): illegal instruction: no circuit for .* rescale",
    ),
    "products in bf16": (
        (FILL, Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, dtype=DataType.BF16, wait=2), END),
        Cause.ILLEGAL_INSTRUCTION,
        1,
        r"instruction 1 \(matmul\): illegal .*: no circuit for the number format bf16",
    ),
    "a vector in int4": (
        (Instruction(opcode=Opcode.VECTOR, m=1, n=1, dtype=DataType.INT4), END),
        Cause.ILLEGAL_INSTRUCTION,
        0,
        r"instruction 0 \(vector\): illegal .*: no circuit for the number format int4",
    ),
    "too many rows": (
        (Instruction(opcode=Opcode.VECTOR, function=VectorFunction.RMS_NORM, m=257, n=1), END),
        Cause.ILLEGAL_INSTRUCTION,
        0,
        r"instruction 0 .*: illegal .*: rms_norm takes at most 256 rows \(got 257\)",
    ),
    "misaligned operand": (
        (Instruction(opcode=Opcode.VECTOR, m=1, n=1, c=Address(base=1)), END),
        Cause.MISALIGNED_OPERAND,
        0,
        r"instruction 0 \(vector\): misaligned operand: its addresses c must be multiples of",
    ),
    "misaligned sums": (
        (FILL, Instruction(opcode=Opcode.MATMUL, m=1, n=1, k=1, wait=2, c=Address(base=4)), END),
        Cause.MISALIGNED_OPERAND,
        1,
        r"instruction 1 \(matmul\): misaligned operand: its addresses c must be multiples of",
    ),
    "deadlock": (
        (LOAD, structs.replace(LOAD, wait=1), END),
        Cause.DEADLOCK,
        0,
        r"instruction 1 \(load\): deadlock: never is waited for 1 times and posted 0 times",
    ),
    "conflict": (
        (
            FILL,
            Instruction(opcode=Opcode.STORE, m=32, n=8, pitch=8, local_pitch=8, memory=Address(base=4096), wait=4),
            Instruction(opcode=Opcode.MATMUL, m=16, n=8, k=16, a=Address(base=0), b=Address(base=64), wait=2),
            END,
        ),
        Cause.BANK_CONFLICT,
        0,
        r"instruction 2 \(matmul\): bank conflict: scratchpad bank 0 is read through",
    ),
}


@cache
def fault_bundle():
    return build_rtl(quick_chip(), remembered=True)


def raw_program(words, semaphores=1):
    """Words that no assembler would emit."""
    return SimpleNamespace(
        encode=lambda: b"".join(words),
        instructions=tuple(words),
        semaphores=tuple(Semaphore("s") for _ in range(semaphores)),
    )


def transfers_over_pages():
    """A program that reads and writes over the edges of 4 KiB pages."""
    load = Instruction(opcode=Opcode.LOAD, m=2, n=512, pitch=4096, local_pitch=512, memory=Address(base=3840), post=1)
    store = structs.replace(load, opcode=Opcode.STORE, memory=Address(base=16384 - 256), post=0, wait=1)
    program = Program((load, store, END), (Semaphore("loaded"),))
    return ProgramCase(program, np.arange(1 << 17, dtype=np.uint8), PROGRAM_BASE)


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize(
    ("posts", "simulator", "memory"),
    [(0, "icarus", r"\S*memory"), (1, "icarus", ""), (0, "verilator", r"\w+_sram_\w+")],
)
def test_a_program_that_reads_a_line_while_it_is_written_fails_its_bench(posts, simulator, memory, tmp_path):
    """Copies of a line that a load writes again and again: they wait for it, or the two race."""
    needs(simulator)
    chip = quick_chip()
    bank = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    load = Instruction(opcode=Opcode.LOAD, m=100, n=16, pitch=16, post=posts)
    copy = Instruction(
        opcode=Opcode.VECTOR, function=VectorFunction.COPY, m=1, n=8, c=Address(base=bank), first_wait=posts, first=1
    )
    loop, close = Instruction(opcode=Opcode.LOOP, m=40), Instruction(opcode=Opcode.NEXT)
    program = Program((load, loop, copy, close, END), (Semaphore("loaded"),))
    check_program(program, chip)
    assert [each[:2] for each in races(program, chip)] == ([] if posts else [(2, 0)])
    case = ProgramCase(program, np.arange(1 << 17, dtype=np.uint8), PROGRAM_BASE, limit=20_000)
    if posts:
        bundle = fault_bundle()
        sources = bundle.write(tmp_path / "rtl")
        (outcome,) = run_programs(chip, sources, bundle.top, [case], folder=tmp_path / "bench", simulator="icarus")
        assert (outcome.ended, outcome.cause) == (True, Cause.NONE)
        return
    told = rf"ERROR: {memory}: word 0 is read while it is written.*racing: instruction 2 \(vector\) may read line 0"
    with pytest.raises(LoomError, match=told):
        check_programs(chip, [("racing", LoadedProgram(program, case.memory, case.base))], simulator=simulator)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    ("port", "width", "wrong", "error"),
    [
        ("arsize", 3, "planted - 1", "read burst is no full-width INCR burst"),
        ("awsize", 3, "planted + 1", "write burst is no full-width INCR burst"),
        ("arburst", 2, "0", "read burst is no full-width INCR burst"),
        ("awburst", 2, "2", "write burst is no full-width INCR burst"),
        ("awlen", 8, "planted + 1", "(write burst crosses 4 KiB|wlast out of place)"),
        ("wlast", 1, "0", "wlast out of place"),
        ("page", 0, "", "(read|write) burst crosses 4 KiB"),
        ("nothing", 0, "", None),
    ],
)
def test_a_tile_that_breaks_the_axi_protocol_fails_whatever_it_computes(
    port, width, wrong, error, tmp_path, monkeypatch
):
    """Benches saw these, printed ERROR, and passed."""
    needs("icarus")
    chip = quick_chip()
    if port == "page":
        monkeypatch.setattr(Geometry, "page", property(lambda geometry: 2 * PAGE * geometry.ports))
    bundle = build_rtl(chip) if port == "page" else fault_bundle()
    sources = bundle.write(tmp_path / "rtl")
    if width:
        name = f"{prefixes(geometry_of(chip))[0]}_{port}"
        planted = f"    wire [{width - 1}:0] planted;\n    assign {name} = {wrong};\n    {bundle.top} dut ("
        bench = bench_verilog(chip, bundle.top, (1 << 17) // geometry_of(chip).bus)
        assert bench.count(f".{name}({name})") == bench.count(f"    {bundle.top} dut (") == 1
        bench = bench.replace(f".{name}({name})", f".{name}(planted)").replace(f"    {bundle.top} dut (", planted)
        monkeypatch.setattr("siliconloom.rtl.bench.programs.bench_verilog", lambda *_, **__: bench)
    cases = [structs.replace(transfers_over_pages(), limit=3000)]
    refused = pytest.raises(CheckFailed, match=rf"the bench printed \d+ errors, the first: ERROR: .*{error}")
    with nullcontext() if error is None else refused:
        (outcome,) = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
        assert (outcome.ended, outcome.cause) == (True, Cause.NONE)


@pytest.mark.slow
def test_what_the_assembler_refuses_stops_the_tile_with_a_cause_and_the_tile_goes_on_afterwards(tmp_path):
    needs("icarus")
    chip = quick_chip()
    bundle = fault_bundle()
    sources = bundle.write(tmp_path / "rtl")
    memory = np.zeros(1 << 17, np.uint8)
    good = random_program(chip, 0)  # of twenty instructions, and not long: it runs after each of the others
    cases, wanted = [], []
    for name, (instructions, cause, number, refusal) in FAULTS.items():
        program = Program(instructions, (Semaphore("never"), Semaphore("one"), Semaphore("two")))
        if refusal is not None:
            with pytest.raises(IllegalProgram, match=refusal) as found:
                check_program(program, chip)
            assert found.value.cause == cause
        if cause == Cause.DEADLOCK:
            with pytest.raises(IllegalProgram, match="deadlock: load at instruction 1 waits for never") as found:
                run(program, chip)
            assert found.value.cause == cause
        cases.append(ProgramCase(program, memory, PROGRAM_BASE, limit=20_000))
        wanted.append((name, cause, number))
        cases.append(ProgramCase(good.program, good.memory, good.base))
        wanted.append(("good", Cause.NONE, 0))
    broken = {
        "opcode": (raw_program([b"\x1f" + bytes(WORD_BYTES - 1), END_WORD]), Cause.ILLEGAL_INSTRUCTION, 0),
        "endless": (raw_program([loop_word(2)]), Cause.PROGRAM_SIZE, 1),
        "unopened": (raw_program([loop_word(2), END_WORD, END_WORD][1:]), Cause.NONE, 0),
        "next": (raw_program([bytes([Opcode.NEXT]) + bytes(WORD_BYTES - 1), END_WORD]), Cause.ILLEGAL_INSTRUCTION, 0),
        "deep": (raw_program([loop_word(2)] * 7 + [END_WORD]), Cause.ILLEGAL_INSTRUCTION, 6),
        "empty": (raw_program([]), Cause.PROGRAM_SIZE, 0),
        **{
            f"no {name}": (raw_program([sized_word(opcode, **{name: 0}), END_WORD]), Cause.ILLEGAL_INSTRUCTION, 0)
            for opcode, name in ((Opcode.LOAD, "m"), (Opcode.STORE, "n"), (Opcode.MATMUL, "k"), (Opcode.VECTOR, "m"))
        },
    }
    for name, (program, cause, number) in broken.items():
        cases.append(ProgramCase(program, memory, PROGRAM_BASE, limit=20_000))
        wanted.append((name, cause, number))
    for kind, instruction in (("read", LOAD), ("write", structs.replace(LOAD, opcode=Opcode.STORE))):
        fail = {kind: EACH}
        cases.append(ProgramCase(Program((instruction, END)), memory, PROGRAM_BASE, fail=fail, limit=20_000))
        wanted.append((f"{kind} error", Cause.BUS_ERROR, 0))
    cases.append(ProgramCase(good.program, good.memory, good.base))
    wanted.append(("good", Cause.NONE, 0))
    outcomes = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
    for (name, cause, number), outcome in zip(wanted, outcomes, strict=True):
        assert outcome.ended, f"{name} hangs"
        assert outcome.cause == cause, name
        if cause not in (Cause.NONE, Cause.BUS_ERROR):
            assert outcome.instruction == number, name
        if name == "good":
            assert compare(name, chip, LoadedProgram(good.program, good.memory, PROGRAM_BASE), outcome).passed


END_WORD = bytes(WORD_BYTES)


def loop_word(count):
    from siliconloom.arch.isa import encode

    return encode(Instruction(opcode=Opcode.LOOP, m=count))


def sized_word(opcode, **sizes):
    from siliconloom.arch.isa import encode

    return encode(Instruction(opcode=opcode, **({"m": 1, "n": 1, "k": 1} | sizes)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verilator", "iverilog"])
def test_the_tile_is_accepted_by_other_tools(name, tmp_path):
    """Lint holds but for the rules that are waived with a reason in the file that goes with the Verilog."""
    import subprocess

    chip = random_npu(3)
    bundle = build_rtl(chip)
    sources = [str(p) for p in bundle.write(tmp_path / "rtl")]
    if name == "verilator":
        needs("verilator")
        tool = Path(simulator_path("verilator")) / "verilator"
        command = [
            str(tool),
            "--lint-only",
            "-Wall",
            "--top-module",
            bundle.top,
            str(tmp_path / "rtl" / f"{bundle.top}.vlt"),
        ]
    else:
        needs("icarus")
        command = [shutil.which("iverilog"), "-g2012", "-Wall", "-Wno-timescale", "-o", "/dev/null", "-s", bundle.top]
    done = subprocess.run([*command, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == "", done.stderr[:2000]
