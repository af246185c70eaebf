"""What goes with an NPU tile: its bench, its structure, unknown values, C packing and driver, FuseSoC."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip, memo, processes
from siliconloom.arch.isa import FUNCTIONS, Address, Instruction, Opcode, Unit, encode
from siliconloom.arch.vector import BUILT
from siliconloom.arch.word import COMPUTE, DTYPES, HEADER, LEVELS, TRANSFER
from siliconloom.cli import main
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.registers import COUNTERS, Cause, register_map, unit_names
from siliconloom.rtl.npu.testbench import ProgramVectors
from siliconloom.rtl.synthesis.structure import structure_checks
from siliconloom.rtl.synthesis.yosys import run_yosys
from siliconloom.verification import vectors
from siliconloom.verification.coverage import choose
from siliconloom.verification.emission import complete_rtl
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from siliconloom.verification.vectors import bench_vectors
from tests.arch.test_isa import instructions
from tests.rtl.npu import SMALL, npu, small_chip
from tests.tools import need_yosys

TOP = "npu_edge_int8"


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(command, folder, **environment):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture
def folder(tmp_path):
    """The small tile as ``loom rtl`` writes it, with a bench that stops after two of its programs, to be quick."""
    npu().write(tmp_path / "rtl")
    bench = tmp_path / "rtl" / "bench"
    whole = int(re.search(r"PROGRAMS = (\d+)", (bench / f"tb_{TOP}.v").read_text())[1])
    change(bench / f"tb_{TOP}.v", r"PROGRAMS = \d+", "PROGRAMS = 2")
    for name in ("writes", "reads"):
        lines = (bench / f"{TOP}_{name}.hex").read_text().splitlines(keepends=True)
        (bench / f"{TOP}_{name}.hex").write_text("".join(lines[: 2 * len(lines) // whole]))
    return tmp_path / "rtl"


def simulate(folder, *more, sources=None):
    """Build and run the bench with Icarus; exit status and output."""
    need("iverilog", "vvp")
    files = sources or ["-f", f"{TOP}.f"]
    built = run(["iverilog", "-g2012", "-s", f"tb_{TOP}", "-o", "tb.vvp", *more, *files, f"bench/tb_{TOP}.v"], folder)
    assert (built.returncode, built.stderr) == (0, "")
    done = run(["vvp", "-n", "tb.vvp"], folder)
    return done.returncode, done.stdout


def change(path, pattern, text):
    changed, places = re.subn(pattern, text, path.read_text(), count=1)
    assert places == 1, f"{path.name} has no {pattern}"
    path.write_text(changed)


# --- the bench


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_the_bench_passes(reset, tmp_path):
    npu(reset).write(tmp_path / "rtl")
    status, out = simulate(tmp_path / "rtl")
    assert (status, out[:5]) == (0, "PASS:"), out


@pytest.mark.slow
@pytest.mark.rtl
def test_the_bench_of_a_tile_in_bf16_passes(tmp_path):
    sets = [*SMALL.items(), ("tile.array.operands", "bf16"), ("tile.scratchpad.capacity", "32 KiB")]
    complete_rtl(load_chip("npu-edge-int8", sets)).write(tmp_path / "rtl")
    status, out = simulate(tmp_path / "rtl")
    assert (status, out[:5]) == (0, "PASS:"), out


@pytest.mark.rtl
@pytest.mark.slow
def test_the_bench_of_the_library_npu_passes_and_its_commands_are_in_the_readme(tmp_path):
    made = npu(whole=True)
    made.write(tmp_path / "rtl")
    block = re.search(r"^```\n(iverilog.*?)^```", made.files["README.md"], re.M | re.S)[1].splitlines()
    need("iverilog", "vvp")
    assert [line.split()[0] for line in block] == ["iverilog", "vvp", "verilator", f"obj_dir/Vtb_{TOP}"]
    for command in block[:2]:
        done = run(command.split(), tmp_path / "rtl")
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASS")


@pytest.mark.slow(seconds=38)
@pytest.mark.rtl
@pytest.mark.parametrize(("stall", "order"), [(100, 0), (50, 1), (50, 2)])
def test_a_memory_that_hesitates_changes_cycles_alone(stall, order, tmp_path):
    folder = tmp_path / "rtl"  # the whole bench: of two short programs the registers take most of the time
    npu().write(folder)
    status, out = simulate(folder, f"-Ptb_{TOP}.STALL={stall}", f"-Ptb_{TOP}.ORDER={order}")
    assert status == 0, out
    # the same bench, which holds every cycle against these, passes without stalls (`test_the_bench_passes`)
    alone = sum(each.cycles for each in bench_vectors(small_chip()))
    assert int(re.search(r"right, (\d+) cycles", out)[1]) > (1.2 if stall == 100 else 1.05) * alone


def other_digit(found):
    """The same number but for its last digit."""
    return found[1] + ("1" if found[2] == "0" else "0")


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("file", "pattern", "text", "words"),
    [
        ("expected_0", r"\n[0-9a-f]", "\nx", "FAIL: memory at"),
        ("memory_0", r"@0\n([0-9a-f]{32}\n){4000}", "@0\n" + ("5a" * 16 + "\n") * 4000, "FAIL: memory at"),
        ("reads", r"(80000020\w{7})(\w)", other_digit, "FAIL: register 0x020 reads"),
        ("writes", r"00000018\w{8}", "0000001800000000", "FAIL: register 0x00c reads 8, must be 0"),
    ],
    ids=["result", "operands", "cycles", "program without words"],
)
def test_a_changed_vector_fails(file, pattern, text, words, folder):
    change(folder / "bench" / f"{TOP}_{file}.hex", pattern, text)
    status, out = simulate(folder)
    assert status == 1
    assert words in out


@pytest.mark.slow(seconds=14)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("module", "output", "fault", "words"),
    [
        ("registers", "irq", r"1'b0 & (\1)", "has not ended"),
        ("store", "memory_beat_lanes", r"(\1) << 1", "FAIL: memory at"),
        ("registers", "irq", r"1'bx & (\1)", "an output is unknown in cycle"),
        ("load", "memory_burst_address", r"(\1) ^ 48'bx", "an output is unknown in cycle"),
    ],
    ids=["no interrupt", "wrong lanes", "unknown interrupt", "unknown address"],
)
def test_a_planted_fault_fails(module, output, fault, words, folder):
    change(folder / f"{TOP}_{module}.v", rf"(?<=assign {output} = )([^;]*);", f"{fault};")
    change(folder / "bench" / f"tb_{TOP}.v", r"LIMIT = \d+", "LIMIT = 3000")
    status, out = simulate(folder)
    assert status == 1
    assert words in out


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("signal", ["arsize", "awburst", "awlen"])
def test_a_broken_axi_protocol_fails_though_every_value_is_right(signal, folder):
    """The wire between tile and memory carries something else; the memory's values do not depend on it."""
    bench = folder / "bench" / f"tb_{TOP}.v"
    change(bench, rf"\.m_axi_{signal}\(m_axi_{signal}\)", f".m_axi_{signal}()")
    change(bench, rf"(wire \[\d:0\] m_axi_{signal});", r"\1 = 0;")
    status, out = simulate(folder)
    assert status == 1
    assert "ERROR: " in out
    assert "FAIL: the AXI4 protocol was broken" in out


@pytest.mark.rtl
@pytest.mark.slow
def test_the_bench_passes_on_verilator(folder):
    need("g++", "make", "perl")
    path = simulator_path("verilator")
    if path is None:
        pytest.skip("verilator is not installed")
    flags = "CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20 CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_CXXFLAGS_PCH_I=-include"
    flags += " OPT_FAST=-O0"  # to optimize takes longer than the bench
    command = re.findall(r"^verilator --binary .*", npu().files["README.md"], re.M)[0]
    built = run([*command.split(), "-MAKEFLAGS", flags], folder, PATH=f"{path}{os.pathsep}{os.environ['PATH']}")
    assert built.returncode == 0, built.stderr
    assert "%Warning" not in built.stderr
    done = run([f"obj_dir/Vtb_{TOP}"], folder)
    assert (done.returncode, done.stdout[:5]) == (0, "PASS:"), done.stdout


OF_OTHER_TILES = {op for op in Opcode if op.name.startswith("PIM")} | {Opcode.SEND, Opcode.RECEIVE}
"""Instructions for a channel of memory that computes, and for links."""


@pytest.mark.slow
def test_the_bench_uses_every_opcode_function_and_flag():
    for chip in (small_chip(), load_chip("npu-edge-int8"), random_npu(4)):
        runs = bench_vectors(chip)
        assert len(runs) <= 9
        assert sum(each.cycles for each in runs) < 16_000
        code = [i for each in runs for i in each.program.instructions]
        assert {i.opcode for i in code} == set(Opcode) - OF_OTHER_TILES
        assert {i.function for i in code if i.opcode == Opcode.VECTOR} == BUILT
        assert all(any(getattr(i, flag) for i in code) for flag in ("first_wait", "last_post", "overwrite", "release"))
        assert any(i.k == 2 for i in code if i.function.spec.masks), "a mask"


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize(
    "name", ["npu-edge-int8", "gemmini-16", "npu-edge", "npu-balanced", "npu-datacenter", "tpu-v4"]
)
def test_every_library_tile_has_programs_for_its_bench(name):
    """Wide arrays and buses too: random operands and results keep to their halves of memory."""
    runs = bench_vectors(load_chip(name, [("tile_count", "1")]))
    assert 1 <= len(runs) <= 9
    assert {i.function for each in runs for i in each.program.instructions if i.opcode == Opcode.VECTOR} == BUILT


def test_programs_are_chosen_for_what_they_add():
    few, many, none = frozenset({("B",)}), frozenset({("A",), ("B",), ("B", 1)}), frozenset()
    found = {3: frozenset({("A", 1), ("A", 2)}), 5: few, 7: many, 9: none}
    same = dict.fromkeys(found, 100)
    assert choose(found, same, 8) == [7, 3]
    assert choose(found, same, 1) == [7]
    assert choose(found, same | {7: 10_000}, 8) == [7, 3]


@pytest.mark.slow(seconds=25)
def test_the_process_beside_chooses_what_would_be_chosen_here(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(memo.Shared, "compiled", memo.Memo(tmp_path / "beside"))
    with vectors.chosen_beside(small_chip()) as helped:
        assert helped
    found = memo.compiled_memo().known(vectors._key(small_chip()))
    assert found is not None
    monkeypatch.setattr(memo.Shared, "compiled", memo.Memo(None))
    with vectors.chosen_beside(small_chip()) as helped:
        assert not helped  # it could not be handed over
    chosen = vectors._chosen(small_chip(), vectors._image(small_chip().tile))
    assert list(found["seeds"]) == list(chosen)
    assert 1 < len(chosen) <= 9


def test_more_programs_than_the_bench_can_name_are_refused():
    runs = bench_vectors(small_chip())
    with pytest.raises(ValueError, match=r"1 to 9 programs \(got 1[68]\)"):
        build_rtl(small_chip(), vectors=[*runs, *runs])


def test_vectors_that_do_not_hold_the_program_are_refused():
    made = random_program(small_chip(), 0)
    after, shorter = made.memory.copy(), made.memory[:-16]
    counters = {unit: dict.fromkeys(COUNTERS, 0) for unit in unit_names()}
    for before, rule in (
        (made.memory, "must hold the program at 0x1c000"),
        (shorter, "equally many words of 16 bytes"),
    ):
        vectors = ProgramVectors(
            program=made.program, base=made.base, before=before, after=after, cycles=1, counters=counters
        )
        with pytest.raises(ValueError, match=rule):
            build_rtl(small_chip(), vectors=[vectors])


# --- structure and unknown values


@pytest.mark.slow(seconds=4)
def test_the_tile_has_no_latches_no_loops_and_no_conflicts(folder):
    need_yosys()
    sidecar = npu().sidecar
    names = sidecar["verilog"] + sidecar["fpga"]["verilog"]
    reading = [f"read_verilog {name}" for name in names]
    run_yosys([*reading, f"hierarchy -check -top {sidecar['fpga']['top']}", *structure_checks()], folder)


def propagating(folder):
    """The tile with every choice written as ``?:``, which makes an unknown choice an unknown result; its files."""
    need_yosys()
    sidecar = npu().sidecar
    memories = [memory["file"] for memory in sidecar["memories"]]
    reading = [f"read_verilog {'-lib ' * (name in memories)}{name}" for name in sidecar["verilog"]]
    passes = ["proc -noopt", "memory", "pmuxtree", "dffunmap", "opt_clean", "write_verilog -noattr propagating.v"]
    run_yosys([*reading, f"hierarchy -check -top {TOP}", *passes], folder)
    assert not re.search(r"\b(if|case[xz]?) \(", (folder / "propagating.v").read_text())
    return ["propagating.v", *memories]


@pytest.mark.slow(seconds=19)
@pytest.mark.rtl
def test_no_output_is_unknown_after_the_reset_where_unknown_values_propagate(folder):
    """All registers and memories begin unknown; a choice by an unknown value is unknown."""
    status, out = simulate(folder, sources=propagating(folder))
    assert (status, out[:5]) == (0, "PASS:"), out


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("module", "register"),
    [("_registers", "s_axi_bvalid"), ("_load", "active"), ("_store", "active"), ("", "draining")],
)
def test_a_register_without_reset_is_found(module, register, folder):
    path = folder / f"{TOP}{module}.v"
    source = re.search(rf"^    {register} <= (\S+) ?;$", path.read_text(), re.M)[1]
    change(path, rf"(assign {re.escape(source)} +=) rst \? \S+ : ", r"\1 ")
    status, out = simulate(folder, sources=propagating(folder))
    assert status == 1
    assert "an output is unknown in cycle" in out


# --- C


@pytest.fixture(scope="module")
def packer(tmp_path_factory):
    """A program that reads instructions as numbers and writes the words that the generated C makes of them."""
    need("gcc")
    where = tmp_path_factory.mktemp("c")
    npu().write(where / "rtl")
    (where / "pack.c").write_text(
        f'#include <stdio.h>\n#include "{TOP}_program.h"\n'
        "int main(void) {\n"
        f"    struct {TOP}_instruction i; uint8_t word[{TOP.upper()}_WORD_BYTES]; const char *wrong;\n"
        "    while (fread(&i, sizeof i, 1, stdin) == 1) {\n"
        f'        if ({TOP}_pack(&i, word, &wrong) < 0) {{ printf("%s", wrong); return 3; }}\n'
        "        fwrite(word, sizeof word, 1, stdout);\n"
        "    }\n"
        "    return 0;\n}\n"
    )
    compile_c(where, "pack", "pack.c", f"rtl/software/{TOP}_program.c")
    return where / "pack"


def compile_c(where, output, *sources):
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c99", "-I", "rtl/software"]
    done = run(["gcc", *flags, "-o", output, *sources], where)
    assert done.returncode == 0, done.stderr


def as_c(instruction, **changes):
    """The bytes of the C structure that stands for an instruction."""
    codes = {"dtype": DTYPES.index(instruction.dtype), "function": FUNCTIONS.index(instruction.function)} | changes
    plain = dict.fromkeys(f.name for f in HEADER + TRANSFER + COMPUTE if "." not in f.name)
    values = [codes[name] if name in codes else int(getattr(instruction, name)) for name in plain]
    for name in ("memory", "a", "b", "c", "d"):
        address = getattr(instruction, name)
        values += [address.base, *address.strides, address.slot, address.parity, address.odd]
    return b"".join(value.to_bytes(8, sys.byteorder, signed=True) for value in values)


def pack(packer, data):
    return subprocess.run([packer], input=data, capture_output=True)


@pytest.mark.slow(seconds=1.5)
@given(st.lists(instructions(), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_c_packs_every_instruction_as_python_does(packer, made):
    done = pack(packer, b"".join(as_c(i) for i in made))
    assert done.returncode == 0
    assert done.stdout == b"".join(encode(i) for i in made)


@pytest.mark.parametrize("seed", range(5))
def test_c_packs_programs_as_python_does(packer, seed):
    program = random_program(small_chip(), seed).program
    done = pack(packer, b"".join(as_c(i) for i in program.instructions))
    assert (done.returncode, done.stdout) == (0, program.encode())


@pytest.mark.parametrize("field", [f.name for f in HEADER if "." not in f.name])
def test_c_refuses_what_does_not_fit(packer, field):
    width = next(f.width for f in HEADER if f.name == field)
    barrier = Instruction(opcode=Opcode.BARRIER, unit=Unit.LOAD)
    for value in (1 << width, -1):
        done = pack(packer, as_c(barrier, **{field: value}))
        assert (done.returncode, done.stdout.decode()) == (3, field)


def test_c_refuses_strides_that_do_not_fit(packer):
    for stride in (1 << 39, -(1 << 39) - 1):
        wrong = Instruction(opcode=Opcode.LOAD, m=1, n=1, memory=Address(strides=(0, 0, stride, 0, 0, 0)))
        done = pack(packer, as_c(wrong))
        assert (done.returncode, done.stdout.decode()) == (3, "memory.stride[2]")


def test_the_driver_starts_waits_and_reads(tmp_path):
    """Against memory in place of the registers: what is written where, what is read from where."""
    need("gcc")
    npu().write(tmp_path / "rtl")
    plan = register_map().by_name
    upper = TOP.upper()
    checks = [
        f"{TOP}_start(base, 0x300, 2, counts, 2, 1) == {upper}_ABSENT",
        f"(memory[{plan['identity'].offset // 4}] = {plan['identity'].reset}u, 1)",
        f"{TOP}_start(base, 0x380, 2, counts, 2, 1) == {upper}_BAD_ARGUMENT",
        f"{TOP}_start(base, 1ull << 48, 2, counts, 2, 1) == {upper}_BAD_ARGUMENT",
        f"{TOP}_start(base, 0x300, 0, counts, 2, 1) == {upper}_BAD_ARGUMENT",
        f"{TOP}_start(base, 0x300, 65, counts, 2, 1) == {upper}_BAD_ARGUMENT",
        f"{TOP}_start(base, 0x300, 2, counts, 3, 1) == {upper}_BAD_ARGUMENT",
        f"memory[{plan['control'].offset // 4}] == 0",
        f"(memory[{plan['semaphore_2'].offset // 4}] = 9, 1)",
        f"{TOP}_start(base, 0xa00000000300, 2, counts, 2, 1) == {upper}_OK",
        f"memory[{plan['program_low'].offset // 4}] == 0x300",
        f"memory[{plan['program_high'].offset // 4}] == 0xa000",
        f"memory[{plan['program_words'].offset // 4}] == 2",
        f"memory[{plan['semaphore_1'].offset // 4}] == 4095",
        f"memory[{plan['semaphore_2'].offset // 4}] == 0",
        f"memory[{plan['control'].offset // 4}] == 3",
        f"{TOP}_finish(base, &result) == {upper}_BUSY",
        f"{TOP}_wait(base, 3) == {upper}_TIMEOUT",
        f"(memory[{plan['status'].offset // 4}] = 1, 1)",
        f"{TOP}_start(base, 0x300, 2, counts, 2, 1) == {upper}_BUSY",
        f"(memory[{plan['status'].offset // 4}] = 2, 1)",
        f"{TOP}_wait(base, 3) == {upper}_OK",
        f"(memory[{plan['cycles_low'].offset // 4}] = 7, memory[{plan['cycles_high'].offset // 4}] = 1, 1)",
        f"(memory[{plan['vector_waiting_low'].offset // 4}] = 12345, 1)",
        f"{TOP}_finish(base, &result) == {upper}_OK",
        "result.cycles == 0x100000007ull",
        f"result.units[{upper}_COUNTED_VECTOR].waiting == 12345",
        f"result.units[{upper}_COUNTED_LOAD].waiting == 0",
        f"(memory[{plan['error'].offset // 4}] = 0x1200 | {upper}_CAUSE_LOCAL_ADDRESS, 1)",
        f"{TOP}_finish(base, &result) == {upper}_STOPPED",
        f"result.cause == {Cause.LOCAL_ADDRESS.value} && result.instruction == 0x12",
        f"memory[{plan['status'].offset // 4}] == 2",
    ]
    (tmp_path / "use.c").write_text(
        f'#include <stdio.h>\n#include "{TOP}_driver.h"\nstatic uint32_t memory[1024];\n'
        "int main(void) {\n    const uintptr_t base = (uintptr_t)memory;\n"
        f"    const uint16_t counts[3] = {{1, 4095, 4096}};\n    struct {TOP}_result result;\n"
        + "".join(f'    if (!({check})) {{ printf("check {n}"); return 1; }}\n' for n, check in enumerate(checks))
        + "    return 0;\n}\n"
    )
    compile_c(tmp_path, "use", "use.c", *(f"rtl/software/{TOP}_{name}.c" for name in ("driver", "program")))
    done = run(["./use"], tmp_path)
    assert done.returncode == 0, checks[int(done.stdout.split()[1])]


def test_the_levels_of_an_address_are_those_of_the_instruction_set():
    assert f"_LEVELS {LEVELS} " in npu().files[f"software/{TOP}_program.h"]


# --- FuseSoC


def fusesoc(folder, target):
    """Run a target of ``folder / "out"`` by the command that a user types."""
    program = Path(sys.executable).parent / "fusesoc"
    path = simulator_path("verilator")
    if not program.exists() or path is None:
        pytest.skip("fusesoc or verilator is not installed")
    need("make", "iverilog", "vvp")
    command = [program, "--cores-root", "out", "run", f"--target={target}", f"siliconloom:generated:{TOP}"]
    done = run(command, folder, PATH=f"{path}{os.pathsep}{os.environ['PATH']}", PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "%Warning" not in done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.rtl
def test_fusesoc_lints_and_simulates(tmp_path):
    npu().write(tmp_path / "out")
    fusesoc(tmp_path, "lint")
    assert "PASS" in fusesoc(tmp_path, "sim")


@pytest.mark.rtl
@pytest.mark.slow
def test_fusesoc_lints_the_library_npu(tmp_path):
    assert main(["rtl", "npu-edge-int8", "-o", str(tmp_path / "out")]) == 0
    fusesoc(tmp_path, "lint")


@pytest.mark.slow(seconds=1.5)
def test_a_tile_without_rtl_has_the_bench_of_its_array():
    made = complete_rtl(load_chip("npu-edge-int8", [("tile.scratchpad.capacity", "192 KiB")]))
    assert "the systolic array of the tile alone" in made.sidecar["contains"]
    assert made.sidecar["bench"][0].endswith("_array.v")
    assert not any(name.endswith(".c") for name in made.files)
