"""Files for other people's tools: LiteX, Vivado. What is written, what refuses, and a SoC that boots."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.api.hardware import read_hardware
from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.isa import SEMAPHORE_LIMIT
from siliconloom.arch.word import SEMAPHORES, WORD_BYTES
from siliconloom.cli import main
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.integration.flows import FLOWS, check_flows
from siliconloom.rtl.integration.vivado import ACCESS, SIDEBANDS
from siliconloom.rtl.npu.registers import COUNTERS, IDENTITY, Cause, register_map, unit_names
from siliconloom.sim.dram.memory import effective
from siliconloom.verification.emission import complete_rtl, example_cycles
from tests.in_turn import in_turn
from tests.rtl.npu import SMALL, npu, small_chip
from tests.tools import need_yosys

TOP = "npu_edge_int8"
SPIRIT = "{http://www.spiritconsortium.org/XMLSchema/SPIRIT/1685-2009}"


@cache
def tools(reset="sync"):
    """The small tile with everything for all tools, but no bench."""
    chip = effective(small_chip())
    return build_rtl(chip, reset=reset, flows=tuple(FLOWS), predicted_cycles=example_cycles(chip), remembered=True)


# --- the option


@pytest.mark.slow(seconds=12)
def test_without_flows_nothing_changes_and_with_them_only_their_folders_come_to_it():
    plain, more = npu(), complete_rtl(small_chip(), flows=tuple(FLOWS))
    told = {"README.md", "siliconloom.json"}
    assert {name for name in plain.files if plain.files[name] != more.files[name]} == told
    assert {name.partition("/")[0] for name in more.files.keys() - plain.files.keys()} == set(FLOWS)
    assert "flows" not in plain.sidecar
    assert more.sidecar["flows"] == list(FLOWS)
    assert more.sidecar["sha256"].keys() == more.files.keys() - {"siliconloom.json"}
    for name in FLOWS:
        assert f"`{name}/` holds" in more.files["README.md"]
        assert f"`{name}/`" not in plain.files["README.md"]


@pytest.mark.slow(seconds=12)
def test_a_folder_with_flows_is_exchanged_for_one_without(tmp_path):
    tools().write(tmp_path / "rtl")
    (tmp_path / "rtl" / "litex" / "build" / "gateware").mkdir(parents=True)  # as the simulation leaves it
    (tmp_path / "rtl" / "litex" / "build" / "gateware" / "sim.v").write_text("mine")
    npu().write(tmp_path / "rtl")
    kept = (path for path in (tmp_path / "rtl" / "litex").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path / "rtl")) for path in kept] == ["litex/build/gateware/sim.v"]
    assert not (tmp_path / "rtl" / "vivado").exists()


@given(st.lists(st.sampled_from(sorted(FLOWS)), min_size=1, max_size=5), st.data())
def test_names_come_one_by_one_or_joined_and_each_once(names, data):
    cuts = data.draw(st.lists(st.booleans(), min_size=len(names) - 1, max_size=len(names) - 1))
    words = [names[0]]
    for name, joined in zip(names[1:], cuts, strict=True):
        words = [*words[:-1], f"{words[-1]},{name}"] if joined else [*words, name]
    assert check_flows(words) == tuple(dict.fromkeys(names))


def test_an_unknown_name_is_refused_with_the_nearest(capsys, tmp_path):
    with pytest.raises(
        LoomError, match=r"--flow: must be one of litex, vivado, librelane.*got 'vivid'.*did you mean 'vivado'"
    ):
        check_flows(["litex,vivid"])
    assert main(["rtl", "systolic-ws-8", "-o", str(tmp_path / "out"), "--flow", "litx"]) == 2
    assert "did you mean 'litex'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "reason", "flow"),
    [
        ("systolic-ws-8", "no registers", "litex"),
        ("systolic-ws-8", "no registers", "vivado"),
        ("npu-x4-ring", "links", "litex"),
        ("npu-pim-edge", "pins of its channel", "litex"),
        ("npu-pim-edge", "pins of its channel", "vivado"),
        ("npu-pim-edge", "pins of its channel", "librelane"),
        pytest.param("npu-x4-ring", "links", "vivado", marks=pytest.mark.slow(seconds=10)),
    ],
)
def test_designs_that_no_cpu_starts_are_refused(name, reason, flow):
    with pytest.raises(NotSupported, match=f"--flow {flow} for .*{reason}"):
        complete_rtl(read_hardware(name, []), flows=(flow,))


@pytest.mark.slow(seconds=10)
def test_memory_over_several_ports_has_no_place_in_a_soc_of_litex():
    chip = load_chip("npu-edge-int8", list((SMALL | {"tile.dma.port_bytes": "8"}).items()))
    with pytest.raises(NotSupported, match="interleaved over 2 ports"):
        build_rtl(effective(chip), flows=("litex",), remembered=True)
    made = build_rtl(effective(chip), flows=("vivado",), remembered=True)
    assert "m_axi_1_arlock" in made.files[f"vivado/{TOP}_axi.v"]
    assert "prepare(" not in made.files[f"vivado/linux/{TOP}_uio.c"]


# --- LiteX


class Wire:
    """A signal of Migen's as far as the generated module looks at one."""

    def __init__(self, bits=None):
        self.bits = bits

    def __getitem__(self, part):
        return Wire(part.stop)

    def __invert__(self):
        return self

    def eq(self, other):
        return (self, other)


def peripheral(text):
    """The Instance that the generated module makes, and the widths of its buses, with stand-ins for LiteX and Migen."""
    seen = {}

    class Bus:
        def __init__(self, **sizes):
            self.sizes = sizes
            channel = type("Channel", (), {"__getattr__": lambda _, name: Wire()})
            self.aw, self.w, self.b, self.ar, self.r = (channel() for _ in range(5))

    class Base:
        def __getattribute__(self, name):
            if name in ("comb", "specials"):
                return self.__dict__.setdefault(name, Collector())
            return object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            if name not in ("comb", "specials"):
                object.__setattr__(self, name, value)

    class Collector:
        def __iadd__(self, other):
            return self

    class Events:
        def __init__(self, **_):
            self.trigger = Wire()

        def finalize(self):
            pass

    parts = {
        "litex.gen": {"LiteXModule": Base},
        "litex.soc.integration.soc": {"SoCRegion": dict},
        "litex.soc.interconnect": {"axi": type("axi", (), {"AXIInterface": Bus, "AXILiteInterface": Bus})},
        "litex.soc.interconnect.csr_eventmanager": {"EventManager": Events, "EventSourceLevel": Events},
        "migen": {
            "ClockSignal": lambda _: Wire(1),
            "ResetSignal": lambda _: Wire(1),
            "Signal": Wire,
            "Instance": lambda name, **ports: seen.update(name=name, ports=ports),
        },
    }
    modules = {name: ModuleType(name) for name in [*parts, "litex", "litex.soc"]}
    for name, content in parts.items():
        modules[name].__dict__.update(content)
    kept = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        space = {"__file__": "/nowhere/litex/module.py", "__name__": "module"}
        body = text.replace(f'(FOLDER / "{TOP}.f").read_text()', f'"{TOP}.v"')
        exec(compile(body, "module.py", "exec"), space)
        made = space["Npu"](type("Platform", (), {"add_source": lambda self, name: None})())
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return seen, made


@pytest.mark.parametrize("reset", ["sync", pytest.param("async_low", marks=pytest.mark.slow(seconds=7))])
def test_the_peripheral_joins_every_port_of_the_top_but_the_trace(reset):
    made = tools(reset)
    seen, module = peripheral(made.files[f"litex/{TOP}_litex.py"])
    due = {
        f"{'i' if port['direction'] == 'input' else 'o'}_{port['name']}": port["width"]
        for port in made.sidecar["ports"]
        if not port["name"].startswith("trace_")
    }
    assert seen["name"] == made.top
    assert seen["ports"].keys() == due.keys()
    for name, width in due.items():
        bits = seen["ports"][name].bits
        assert bits in (None, width), name
    assert (module.data.sizes, module.program.sizes) == ({"data_width": 128, "address_width": 32, "id_width": 4},) * 2


@pytest.mark.slow(seconds=1)
def test_every_python_file_is_python_and_the_firmware_expects_what_the_simulator_says():
    files = {name: text for name, text in tools().files.items() if name.startswith("litex/")}
    for name, text in files.items():
        if name.endswith(".py"):
            ast.parse(text, name)
    predicted = re.search(r"PREDICTED_CYCLES (\d+)u", files["litex/firmware/main.c"])[1]
    assert int(predicted) == example_cycles(small_chip()) > 0


class Registers:
    """The bus of a tile as its register map says: a run ends at once, with what was asked for."""

    BASE = 0x8000_1000

    def __init__(self, values):
        self.offsets = {self.BASE + r.offset: r for r in register_map().registers}
        self.values = {r.name: r.reset for r in register_map().registers} | {"identity": IDENTITY} | values
        self.writes = {}

    def read(self, address):
        return self.values[self.offsets[address].name]

    def write(self, address, value):
        register = self.offsets[address]
        assert 0 <= value < 1 << register.width
        assert register.access != "ro"
        self.writes[register.name] = value
        if register.name == "control" and value & 1:
            self.values["status"] = 2
        if register.name == "status":
            self.values["status"] &= ~value


@cache
def driver():
    space = {}
    exec(tools().files[f"litex/{TOP}_driver.py"], space)
    return space


words_of_counters = [f"{unit}_{counter}" for unit in unit_names() for counter in COUNTERS] + ["cycles"]


@settings(max_examples=50)
@given(
    program=st.integers(0, (1 << 48) // WORD_BYTES - 1),
    words=st.integers(1, 64),
    semaphores=st.lists(st.integers(0, SEMAPHORE_LIMIT), max_size=SEMAPHORES),
    counters=st.lists(st.integers(0, 2**64 - 1), min_size=len(words_of_counters), max_size=len(words_of_counters)),
)
def test_the_python_driver_writes_what_a_run_needs_and_reads_it_back(program, words, semaphores, counters):
    due = dict(zip(words_of_counters, counters, strict=True))
    halves = {f"{n}_low": v & 0xFFFFFFFF for n, v in due.items()} | {f"{n}_high": v >> 32 for n, v in due.items()}
    bus = Registers(halves)
    found = driver()["Npu"](bus, bus.BASE).run(program * WORD_BYTES, words, semaphores)
    filled = semaphores + [0] * (SEMAPHORES - len(semaphores))
    assert bus.writes == {
        "program_low": program * WORD_BYTES & 0xFFFFFFFF,
        "program_high": program * WORD_BYTES >> 32,
        "program_words": words,
        **{f"semaphore_{number}": count for number, count in enumerate(filled)},
        "control": 1,
        "status": 2,
    }
    assert found.pop("cycles") == due["cycles"]
    assert found == {unit: {counter: due[f"{unit}_{counter}"] for counter in COUNTERS} for unit in unit_names()}


def test_the_python_driver_says_why_a_run_cannot_be():
    npu_of, error = driver()["Npu"], driver()["NpuError"]
    bus = Registers({"error": max(Cause) | 3 << 8})
    with pytest.raises(error, match="at instruction 3"):
        npu_of(bus, bus.BASE).run(0, 1)
    for values, words in (({"identity": 1}, "no tile"), ({"status": 1}, "under way")):
        bus = Registers(values)
        with pytest.raises(error, match=words):
            npu_of(bus, bus.BASE).start(0, 1)
        assert not bus.writes
    bus = Registers({})
    for arguments in ((WORD_BYTES // 2, 1), (0, 0), (0, 65), (0, 1, [SEMAPHORE_LIMIT + 1]), (0, 1, [0] * 33)):
        with pytest.raises(ValueError, match="got"):
            npu_of(bus, bus.BASE).start(*arguments)
    assert not bus.writes


@given(st.binary(max_size=40), st.integers(0, 100))
def test_the_python_driver_moves_bytes_by_words(content, word):
    memory = {}
    bus = type("Bus", (), {"read": lambda _, a: memory[a], "write": lambda _, a, v: memory.update({a: v})})()
    tile = driver()["Npu"](bus, 0)
    tile.load(4 * word, content)
    assert tile.dump(4 * word, len(content)) == content


SIMULATION = """
import litedram
import litex
import migen
import pythondata_cpu_vexriscv
"""
BOARDS = """
import liteeth
import litex_boards
import pythondata_software_compiler_rt
import pythondata_software_picolibc
"""


@cache
def litex_python():
    """A Python with LiteX, or why there is none."""
    python = os.environ.get("LITEX_PYTHON", sys.executable)
    found = subprocess.run(
        [python, "-c", "import litex, litedram, migen, pythondata_cpu_vexriscv"], capture_output=True
    )
    return python if found.returncode == 0 else None


def in_soc(folder, *words):
    """Run a generated script with LiteX's Python; skipped where something is missing."""
    if litex_python() is None:
        pytest.skip("LiteX is not installed (LITEX_PYTHON may name the Python that has it)")
    verilator = simulator_path("verilator")
    path = os.pathsep.join(filter(None, [verilator, os.environ["PATH"]]))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [litex_python(), *words], cwd=folder, capture_output=True, text=True, env=plain | {"PATH": path}
    )


@pytest.mark.parametrize("memory", in_turn(["described", "bus", "dram"], 3, seconds=15))
def test_the_soc_elaborates(memory, tmp_path):
    tools().write(tmp_path / "rtl")
    words = [f"litex/{TOP}_sim.py", "--memory", memory, "--output-dir", "build", "--elaborate"]
    done = in_soc(tmp_path / "rtl", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "rtl" / "build" / "gateware" / "sim.v").read_text()
    assert re.search(rf"^{TOP} \w+\(", text, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("board", ["radiona_ulx3s", "digilent_arty"])
def test_the_targets_of_boards_elaborate(board, tmp_path):
    tools().write(tmp_path / "rtl")
    if in_soc(tmp_path / "rtl", "-c", BOARDS).returncode:
        pytest.skip("litex-boards, liteeth, or what they need is not installed")
    done = in_soc(tmp_path / "rtl", f"litex/{TOP}_board.py", "--board", board)
    assert done.returncode == 0, done.stderr[-2000:]
    assert TOP in (tmp_path / "rtl" / "build" / "gateware" / f"{board}.v").read_text()


@pytest.mark.slow(seconds=55)
@pytest.mark.rtl
@pytest.mark.parametrize("memory", ["described", "bus", "dram"])
def test_a_cpu_boots_starts_the_tile_and_finds_every_byte_right(memory, tmp_path):
    """With the description's memory cycles are the simulator's; a wrong prediction or result fails the run."""
    if shutil.which("riscv64-unknown-elf-gcc") is None:
        pytest.skip("riscv64-unknown-elf-gcc is not installed")
    if simulator_path("verilator") is None:
        pytest.skip("Verilator is not installed")
    tools().write(tmp_path / "rtl")
    words = [f"litex/{TOP}_sim.py", "--memory", memory, "--output-dir", "build"]
    done = in_soc(tmp_path / "rtl", *words)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "PASS: all bytes are right" in done.stdout
    cycles = example_cycles(small_chip())
    found = int(re.search(r"^cycles (\d+), predicted", done.stdout, re.M)[1])
    assert found == cycles if memory == "described" else found > cycles
    if memory == "described":
        firmware = tmp_path / "rtl" / "litex" / "firmware" / "main.c"
        text = firmware.read_text()
        for old, new, reason in (
            (f"PREDICTED_CYCLES {cycles}u", f"PREDICTED_CYCLES {cycles + 1}u", "other cycles"),
            ("requantized(sum, bias, multiplier, shift)", "requantized(sum, bias, 1, shift)", "wrong bytes"),
        ):
            planted = text.replace(old, new)
            assert planted != text
            firmware.write_text(planted)
            done = in_soc(tmp_path / "rtl", *words)
            assert done.returncode == 1, done.stdout
            assert re.search(rf"^FAIL: .*{reason}", done.stdout, re.M), done.stdout


# --- Vivado


def elements(tree, path):
    return tree.iterfind("/".join(SPIRIT + part for part in path.split("/")))


def value(element, path):
    return element.findtext("/".join(SPIRIT + part for part in path.split("/")))


@cache
def component(reset="sync"):
    return ElementTree.fromstring(tools(reset).files["vivado/component.xml"])


def read_back(folder, top):
    """Ports of a module as Yosys reads them: direction and bits by name."""
    need_yosys()
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    script = [f"read_verilog {folder}/vivado/{top}.v", "proc", f"write_json {folder}/ports.json"]
    subprocess.run([sys.executable, "-c", code, *script], check=True, capture_output=True)
    ports = json.loads((folder / "ports.json").read_text())["modules"][top]["ports"]
    return {name: (port["direction"].removesuffix("put"), len(port["bits"])) for name, port in ports.items()}


@pytest.mark.parametrize("reset", ["sync", pytest.param("async_low", marks=pytest.mark.slow(seconds=7))])
def test_the_component_has_the_ports_of_the_wrapper(reset, tmp_path):
    tools(reset).write(tmp_path / "rtl")
    told = {}
    for port in elements(component(reset), "model/ports/port"):
        left = value(port, "wire/vector/left")
        told[value(port, "name")] = (value(port, "wire/direction"), 1 if left is None else int(left) + 1)
    assert told == read_back(tmp_path / "rtl", f"{TOP}_axi")
    inside = "rst(!aresetn)" if reset == "sync" else "rst_n(aresetn)"
    assert f".{inside}" in tools(reset).files[f"vivado/{TOP}_axi.v"]


@pytest.mark.slow(seconds=6)
def test_the_wrapper_has_no_warnings(tmp_path):
    verilator = simulator_path("verilator")
    if verilator is None:
        pytest.skip("Verilator is not installed")
    tools().write(tmp_path / "rtl")
    line = next(
        line for line in tools().files["README.md"].splitlines() if line.startswith("verilator") and "_axi" in line
    )
    done = subprocess.run(
        [f"{verilator}/verilator", *line.split()[1:]], cwd=tmp_path / "rtl", capture_output=True, text=True
    )
    assert (done.returncode, "%Warning" in done.stderr) == (0, False), done.stderr


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("reset", ["sync", "async_low"])
def test_the_example_runs_on_the_wrapper(reset, tmp_path):
    if shutil.which("iverilog") is None:
        pytest.skip("iverilog is not installed")
    tools(reset).write(tmp_path / "rtl")
    bench = tmp_path / "rtl" / "example" / "example_tb.v"
    port = "rst" if reset == "sync" else "rst_n"
    joined = "!rst" if reset == "sync" else "rst_n"
    text, places = re.subn(
        rf"{TOP} dut \(\s*\.clk\(clk\), \.{port}\({port}\)",
        f"{TOP}_axi dut (.aclk(clk), .aresetn({joined})",
        bench.read_text(),
    )
    assert places == 1
    bench.write_text(text)
    words = ["iverilog", "-g2012", "-s", "example_tb", "-o", "example.vvp", "-f", f"{TOP}.f", f"vivado/{TOP}_axi.v"]
    subprocess.run([*words, "example/example_tb.v"], cwd=tmp_path / "rtl", check=True)
    done = subprocess.run(["vvp", "-n", "example.vvp"], cwd=tmp_path / "rtl", capture_output=True, text=True)
    assert re.match(rf"PASS: .* after {example_cycles(small_chip())} cycles", done.stdout), done.stdout[-2000:]


def test_the_component_has_the_shape_that_the_schema_wants():
    tree = component()
    order = "vendor library name version busInterfaces addressSpaces memoryMaps model fileSets description parameters"
    assert [child.tag for child in tree] == [SPIRIT + name for name in [*order.split(), "vendorExtensions"]]
    files = {value(file, "name") for file in elements(tree, "fileSets/fileSet/file")}
    assert {os.path.normpath(f"vivado/{name}") for name in files} <= tools().files.keys()
    assert {f"../{name}" for name in tools().sidecar["verilog"]} <= files
    sets = {value(each, "name") for each in elements(tree, "fileSets/fileSet")}
    assert {value(view, "fileSetRef/localName") for view in elements(tree, "model/views/view")} == sets
    ports = {value(port, "name") for port in elements(tree, "model/ports/port")}
    mapped = [
        value(each, "physicalPort/name") for each in elements(tree, "busInterfaces/busInterface/portMaps/portMap")
    ]
    assert len(mapped) == len(set(mapped))
    assert ports - set(mapped) == {"trace_issue", "trace_done", "trace_cycle"}


def test_bus_interfaces_say_what_a_block_design_asks():
    tree, facts, logical = component(), {}, {}
    for bus in elements(tree, "busInterfaces/busInterface"):
        name = value(bus, "name")
        logical[name] = {value(each, "logicalPort/name") for each in elements(bus, "portMaps/portMap")}
        for parameter in elements(bus, "parameters/parameter"):
            facts[name, value(parameter, "name")] = value(parameter, "value")
    read = ["VALID", "READY", "ID", "ADDR", "LEN", "SIZE", "BURST", "LOCK", "CACHE", "PROT", "QOS"]
    beats = {"RVALID", "RREADY", "RID", "RDATA", "RRESP", "RLAST"}
    assert logical["m_axi_program"] == {f"AR{end}" for end in read} | beats
    written = {"WVALID", "WREADY", "WDATA", "WSTRB", "WLAST", "BVALID", "BREADY", "BID", "BRESP"}
    assert logical["m_axi"] == {f"A{way}{end}" for way in "RW" for end in read} | beats | written
    assert {end.lower() for end in read} >= SIDEBANDS.keys()
    assert facts["aclk", "ASSOCIATED_BUSIF"] == "s_axi:m_axi:m_axi_program"
    assert facts["aclk", "ASSOCIATED_RESET"] == "aresetn"
    assert facts["aresetn", "POLARITY"] == "ACTIVE_LOW"
    assert facts["irq", "SENSITIVITY"] == "LEVEL_HIGH"
    assert (facts["m_axi", "DATA_WIDTH"], facts["m_axi_program", "READ_WRITE_MODE"]) == ("128", "READ_ONLY")
    assert facts["s_axi", "PROTOCOL"] == "AXI4LITE"


def test_the_memory_map_is_the_register_map():
    block = next(elements(component(), "memoryMaps/memoryMap/addressBlock"))
    assert value(block, "range") == str(1 << register_map().address_bits)
    found = [
        (
            value(each, "name"),
            int(value(each, "addressOffset"), 16),
            int(value(each, "reset/value"), 16),
            [
                (value(f, "name"), int(value(f, "bitOffset")), int(value(f, "bitWidth")), value(f, "access"))
                for f in elements(each, "field")
            ],
        )
        for each in elements(block, "register")
    ]
    assert found == [
        (
            r.name,
            r.offset,
            r.reset,
            [(f.name, f.low, f.width, ACCESS[f.access]) for f in sorted(r.fields, key=lambda f: f.low)],
        )
        for r in register_map().registers
    ]


@pytest.mark.parametrize("chip", in_turn(["small", "npu-edge"], 2, seconds=31))
def test_the_program_for_linux_compiles_without_warnings(chip, tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    if chip == "small":
        made = tools()
    else:
        wide = effective(load_chip(chip, list(SMALL.items())))
        made = build_rtl(wide, flows=tuple(FLOWS), remembered=True)
    made.write(tmp_path / "rtl")
    name = next(each for each in made.files if each.endswith("_uio.c"))
    assert ("prepare(" in made.files[name]) == (chip == "small")
    assert (f"litex/{made.top}_sim.py" in made.files) == (chip == "small")
    sources = [each for each in made.files if re.search(r"_(driver|program)\.c$", each)]
    words = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I", "software", "-o", "run", name, *sources]
    done = subprocess.run(words, cwd=tmp_path / "rtl", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run([str(tmp_path / "rtl" / "run")], capture_output=True).returncode == 2


def test_templates_leave_no_trace():
    for name, text in tools().files.items():
        if name.partition("/")[0] in FLOWS:
            assert "{{" not in text, name
            assert "{%" not in text, name
            assert str(Path.home()) not in text, name
