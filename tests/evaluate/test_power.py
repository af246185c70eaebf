"""Energy of netlists: by hand, beside OpenSTA, of arrays whose netlist is run; and designs that run in cells."""

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import siliconloom as sl
from siliconloom.arch import CheckFailed, LoomError, load_chip
from siliconloom.cli import main
from siliconloom.rtl.synthesis import gates
from siliconloom.rtl.synthesis.liberty import read_library
from siliconloom.rtl.synthesis.power import Netlist, changes_of
from siliconloom.rtl.synthesis.timing import sta_command
from siliconloom.verification import power
from tests.in_turn import in_turn
from tests.tools import need_yosys

LIBERTY = Path(__file__).parent / "energy.lib"
OSU = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
SMALL = ["systolic-ws-8", "--set", "tile.array.rows=2", "--set", "tile.array.cols=2"]
PJ = 1e-12
CLOCK_PIN = (0.030 + 0.010) / 2 + 0.02 * 2.0**2 / 2
"""Picojoules of a transition of the clock at a register: inside, and to charge or discharge its pin at 2 V."""


def near(value, rel=1e-6):
    """Relative alone: pytest's own absolute tolerance is larger than the joules here."""
    return pytest.approx(value, rel=rel, abs=0)


@pytest.fixture
def tools():
    need_yosys()
    if shutil.which("iverilog") is None:
        pytest.skip("Icarus is not installed")


def netlist_of(cells, names, folder, liberty=LIBERTY):
    """A netlist of (type, pins) whose nets are numbers, with names of one bit or several."""
    connected = {str(n): {"type": kind, "connections": {p: [b] for p, b in pins.items()}} for n, (kind, pins) in cells}
    nets = {name: {"bits": bits} for name, bits in names.items()}
    path = folder / "netlist.json"
    path.write_text(json.dumps({"modules": {"top": {"cells": connected, "netnames": nets}}}))
    return Netlist(path, "top", read_library(liberty))


def test_the_energy_of_a_few_cells_is_that_by_hand(tmp_path):
    # clk (2) clocks a register from a (3) to q (4), which an inverter and a buffer read; the inverter drives y (5)
    cells = [("DFF", {"C": 2, "D": 3, "Q": 4}), ("INV", {"A": 4, "Y": 5}), ("BUF", {"A": 4, "Y": 6})]
    names = {"clk": [2], "a": [3], "q": [4], "y": [5], "z": [6]}
    found = netlist_of(enumerate(cells), names, tmp_path).energy({2: 20, 3: 6, 4: 5, 5: 5, 6: 0}, "clk")
    assert found.clock == near(20 * CLOCK_PIN * PJ)
    read = 0.012 + 0.01  # pF
    assert found.registers == near((6 * 0.003 + 5 * (0.05 + 2 * read)) * PJ)
    slew = 0.10 + 0.06 * (read - 0.01) / 0.02  # of q, between its table's loads of 0.01 and 0.03
    # the inverter's tables by load and slew; it drives nothing, below the first load
    steps = [(0.006 - 0.005) / 0.02, (0.010 - 0.009) / 0.02]
    rises = [(0.007 - 0.005) / 0.2, (0.011 - 0.009) / 0.2]
    twice = [((0.010 - 0.006) - (0.007 - 0.005)) / 0.004, ((0.014 - 0.010) - (0.011 - 0.009)) / 0.004]
    inside = [
        first + step * -0.01 + rise * (slew - 0.1) + both * -0.01 * (slew - 0.1)
        for first, step, rise, both in zip([0.005, 0.009], steps, rises, twice, strict=True)
    ]
    assert found.logic == near((5 * sum(inside) / 2 + 6 * 0.008 * 2) * PJ)
    assert found.leakage == near(14e-9)
    assert (found.cells, found.changes) == (3, 16)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.integers(1, 6), cycles=st.integers(1, 12), seen=st.integers(1, 12))
def test_changes_are_those_of_the_waveform(data, width, cycles, seen, tmp_path_factory):
    """Of scalars and vectors with unknown bits, under two names, until the clock has risen so often."""
    values = data.draw(st.lists(st.text("01x", min_size=width, max_size=width), min_size=cycles, max_size=cycles))
    kind = "b" if width > 1 else ""
    lines = ["$timescale 1ps $end", "$scope module top $end", "$var wire 1 ! clk $end"]
    lines += [f"$var wire {width} {short} {name} [{width - 1}:0] $end" for short, name in (('"', "v"), ("#", "w"))]
    lines += ["$upscope $end", "$enddefinitions $end", "#0", "$dumpvars", "0!", "$end"]
    for number, value in enumerate(values):
        gap = " " if width > 1 else ""
        least = value.lstrip("0") or "0"
        short = least if width > 1 and least[0] != "x" else value  # an x at the left end would be repeated
        lines += [f"#{10 * number}", *([f'{kind}{short}{gap}"', f"{kind}{short}{gap}#"]), f"#{10 * number + 5}", "1!"]
        lines += [f"#{10 * number + 9}", "0!"]
    path = tmp_path_factory.mktemp("waves") / "activity.vcd"
    path.write_text("\n".join([*lines, ""]))
    bits = list(range(10, 10 + width))
    found = changes_of(path, {"clk": [2], "v": bits, "w": bits}, "clk", seen)
    counted = values[: seen + 1]  # the change that comes with the last rise, before the next
    for place in range(width):
        column = [value[width - 1 - place] for value in counted]
        wanted = sum(a != b and "x" not in (a, b) for a, b in pairwise(column))
        assert found.get(10 + place, 0) == wanted, (values, place)
    assert found[2] == 2 * min(seen, cycles)


@settings(max_examples=3, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["INVX1", "INVX4", "BUFX2"]), min_size=1, max_size=12),
    fanout=st.integers(1, 3),
    activity=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_a_chain_takes_what_opensta_says(kinds, fanout, activity, tmp_path_factory):
    """OpenSTA takes an activity of inputs alone, which inverters and buffers hand on as it is."""
    sta = sta_command()
    if sta is None or not OSU.exists():
        pytest.skip("OpenSTA, or Debian's qflow-tech-osu018, is not installed")
    folder = tmp_path_factory.mktemp("sta")
    nets = ["a", *(f"n{number}" for number in range(len(kinds)))]
    cells = [("DFFPOSX1", {"CLK": "clk", "D": nets[-1], "Q": "q"})]
    for number, kind in enumerate(kinds):
        cells.append((kind, {"A": nets[number], "Y": nets[number + 1]}))
        cells += [("INVX1", {"A": nets[number + 1], "Y": f"d{number}_{n}"}) for n in range(1, fanout)]
    numbers = {"clk": 2} | {
        name: 3 + n for n, name in enumerate(sorted({p for _, c in cells for p in c.values()} - {"clk"}))
    }
    text = [
        f"module top (clk, a, q);\n  input clk, a; output q;\n  wire {', '.join(set(numbers) - {'clk', 'a', 'q'})};"
    ]
    for n, (kind, pins) in enumerate(cells):
        text.append(f"  {kind} u{n} ({', '.join(f'.{pin}({net})' for pin, net in pins.items())});")
    (folder / "top.v").write_text("\n".join([*text, "endmodule", ""]))
    script = f"""read_liberty {OSU}
read_verilog top.v
link_design top
create_clock -name clk -period 10 [get_ports clk]
set_input_delay 0 -clock clk [get_ports a]
set_power_activity -input -activity {activity} -duty 0.5
report_power -digits 6
exit
"""
    (folder / "power.tcl").write_text(script)
    done = subprocess.run([sta, "-no_splash", "-exit", "power.tcl"], cwd=folder, capture_output=True, text=True)
    assert "Combinational" in done.stdout, done.stdout + done.stderr + (folder / "top.v").read_text()
    total = [float(each) for each in re.search(r"^Combinational +(\S+) +(\S+) +(\S+)", done.stdout, re.M).groups()]
    own = netlist_of(
        enumerate([(kind, {pin: numbers[net] for pin, net in pins.items()}) for kind, pins in cells]),
        {name: [number] for name, number in numbers.items()},
        folder,
        OSU,
    )
    cycles = 1000
    toggles = {number: round(activity * cycles) for name, number in numbers.items() if name not in ("clk", "q")}
    found = own.energy(toggles | {2: 2 * cycles}, "clk")
    size = dict.fromkeys(numbers.values(), 0.0)
    for kind, pins in cells:
        for pin, farads in read_library(OSU).cells[kind].inputs.items():
            size[numbers[pins[pin]]] += farads
    charged = activity * cycles * 1.62 * PJ * sum(size[numbers[pins["Y"]]] for _, pins in cells if "Y" in pins)
    inside = found.logic - charged - activity * cycles * 1.62 * PJ * size[numbers["a"]]  # which the input charges
    seconds = cycles * 10e-9
    assert charged / seconds == near(total[1], rel=1e-3)
    ways = round(total[0] * seconds / inside)  # of rise and fall it takes the mean; in 2019 it took the sum
    assert ways in (1, 2)
    assert inside / seconds == near(total[0] / ways, rel=0.03)
    assert found.leakage - read_library(OSU).cells["DFFPOSX1"].leakage == near(total[2], rel=0.01)


@pytest.mark.slow(seconds=11)
@pytest.mark.usefixtures("tools")
def test_an_array_takes_what_its_registers_and_its_changes_take(capsys):
    assert main(["synth", *SMALL[:-1], "tile.array.cols=1", "--liberty", str(LIBERTY), "--power", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    entry = found["power"]
    assert (entry["library"], entry["volts"], entry["operands"], entry["macs"]) == ("energy", 2.0, "int8", 512)
    runs = {(run["values"], run["glitches"]): run for run in entry["runs"]}
    assert len(runs) == 4
    for run in runs.values():
        each = run["joules_per_mac"]
        assert each["total"] == near(each["clock"] + each["registers"] + each["logic"])
        floor = found["flip_flops"] * 2 * run["cycles"] * CLOCK_PIN * PJ  # every register, every edge
        assert each["clock"] * entry["macs"] == near(floor, rel=1e-6)
        assert run["cycles"] >= 256
    for values in ("normal", "uniform"):
        assert runs[values, True]["changes_per_mac"] > 1.2 * runs[values, False]["changes_per_mac"], "glitches"
    first = runs["normal", True]
    dynamic = first["joules_per_mac"]["total"] * entry["macs"] / first["cycles"] * entry["clock_hz"]
    own = entry["description"]
    assert own["tile.array.energy.clock"] == near(found["flip_flops"] * 2 * CLOCK_PIN * PJ / 2)
    again = own["tile.array.energy.product"] * entry["macs"] + own["tile.array.energy.clock"] * 2 * first["cycles"]
    assert again == near(first["joules_per_mac"]["total"] * entry["macs"])
    assert entry["watts"] == near(dynamic + entry["leakage_w"])


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("chip", in_turn(["systolic-os-8", "systolic-is-8", "systolic-ws-8"], 0, seconds=7))
def test_a_netlist_does_what_the_array_does(chip, capsys):
    sets = [*SMALL[1:], "--set", "tile.array.load_rows=1"]
    words = ["verify", chip, *sets, "--liberty", str(LIBERTY), "--simulator", "icarus", "--cases", "3", "--json", "-"]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["passed"]
    assert record["asked"]["liberty"] == "energy.lib"
    assert "Yosys" in record["asked"]["tools"]["yosys"]
    assert record["totals"]["times_compared"] > 0


@pytest.mark.slow(seconds=6)
@pytest.mark.usefixtures("tools")
def test_a_planted_fault_in_the_netlist_is_found(monkeypatch):
    """A few gates with an input at the wrong net: no power is told of a netlist that is not the array."""

    def changed(*arguments, **options):
        made = gates.gate_level(*arguments, **options)
        found = list(re.finditer(r"NAND2 \S+ \(\s*\.A\(([^\n]*)\),\s*\.B\(([^\n]*)\),", made.files[gates.NETLIST]))
        text = made.files[gates.NETLIST]
        for each in found[1000:1600:100]:
            text = text.replace(each[0], each[0].replace(f".B({each[2]})", f".B({each[1]})"))
        return replace(made, files={**made.files, gates.NETLIST: text})

    monkeypatch.setattr(power, "gate_level", changed)
    chip = load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])
    with pytest.raises(CheckFailed, match="the netlist of systolic_ws_8 is not what the array is"):
        power.power_of(chip, LIBERTY)


@pytest.mark.slow(seconds=1)
def test_a_system_leaves_out_what_its_chips_do():
    sets = {"chip.tile.array.energy.product": "2 pJ", "chip.tile.array.energy.clock": "1 pJ"}
    own, table = (sl.simulate("npu-datacenter-x8", "gpt2", each).to_dict() for each in (sets, {}))
    assert "clock tree, wires and conversions of the array" in own["energy_excludes"]
    assert "registers, wires and conversions of the array" in table["energy_excludes"]


@pytest.mark.slow(seconds=5)
@settings(max_examples=4, deadline=None)
@given(product=st.floats(0.01, 9), clock=st.floats(0, 9), rows=st.integers(1, 40))
def test_a_described_energy_is_counted_product_by_product_and_cycle_by_cycle(product, clock, rows):
    sets = [("tile.array.energy.product", f"{product:.4f} pJ"), ("tile.array.energy.clock", f"{clock:.4f} pJ")]
    described = {"kind": "gemms", "precision": "int8", "gemms": [{"name": "g", "m": rows, "n": 40, "k": 70}]}
    own, table = (sl.simulate("npu-edge-int8", described, each).to_dict() for each in (dict(sets), {}))
    assert own["energy"]["array"] == near(rows * 40 * 70 * round(product, 4) * PJ)
    assert own["energy"]["clock"] >= 256 * round(clock, 4) * PJ * own["cycles"] * 0.999
    vectors = own["energy"]["clock"] - 256 * round(clock, 4) * PJ * own["cycles"]
    assert 0 <= vectors < table["energy"]["clock"]
    assert {key: value for key, value in own["energy"].items() if key not in ("array", "clock")} == {
        key: value for key, value in table["energy"].items() if key not in ("array", "clock")
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["synth", *SMALL, "--power"], "--power: is of a library's cells; give one with --liberty FILE"),
        (["synth", "npu-edge-int8", "--liberty", str(LIBERTY), "--power"], "not supported: --power of a npu tile"),
        (["synth", "systolic-ws-32", "--liberty", str(LIBERTY), "--power"], "at most 256 (--set tile.array.rows=8"),
        (["synth", *SMALL, "--module", "row2", "--liberty", str(LIBERTY), "--power"], "--power: is of a whole array"),
        (["verify", *SMALL, "--liberty", "/nowhere.lib"], "/nowhere.lib: no such file"),
        (["verify", "pim-hbm", "--liberty", str(LIBERTY)], "netlists of arrays and npu tiles are run"),
        (["verify", "npu-x4-ring", "--liberty", str(LIBERTY)], "netlists of arrays and npu tiles are run"),
    ],
)
def test_what_is_not_supported_is_one_clear_line(words, line, capsys):
    need_yosys()
    assert main(words) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("library (a) { nom_voltage : 1; cell (x) {", "x.lib:1: no Liberty file: word was expected (got its end)"),
        ("library (a) {\n  cell (x) { pin }", "x.lib:2: no Liberty file: ( was expected (got })"),
        ("library (a) {\n}", "x.lib: a supply was expected (nom_voltage)"),
        ("cells (a) {\n}", "x.lib: no Liberty file: a group library was expected (got cells)"),
        ("", "x.lib:1: no Liberty file: word was expected (got its end)"),
        ("library (a) { nom_voltage : 1; capacitive_load_unit (1); }", "ff or pf were expected (got 1)"),
        (
            "library (a) { nom_voltage : 1; capacitive_load_unit (1,furlong); }",
            "ff or pf were expected (got 1, furlong)",
        ),
        ("library (a) { nom_voltage : 1; capacitive_load_unit (one,pf); }", "ff or pf were expected (got one, pf)"),
        ("library (a) { nom_voltage : 1; voltage_unit : 1mV; }", "voltage_unit: 1V was expected (got 1mV)"),
        ("\x1f\x8b", "x.lib: compressed; unpack it (gunzip)"),
    ],
)
def test_a_damaged_library_is_one_clear_line(text, line, tmp_path):
    path = tmp_path / "x.lib"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(LoomError, match=re.escape(line)):
        read_library(path)


def test_numbers_need_no_digit_before_their_point(tmp_path):
    text = LIBERTY.read_text()
    short = tmp_path / "short.lib"
    short.write_text(re.sub(r"\b0\.", ".", text))
    own, other = read_library(LIBERTY), read_library(short)
    assert own.cells.keys() == other.cells.keys()
    for name, cell in own.cells.items():
        assert other.cells[name].inputs == cell.inputs
        for pin, output in cell.outputs.items():
            found = other.cells[name].outputs[pin]
            assert found.delay == output.delay
            for one, two in zip((*output.energy, *output.slew), (*found.energy, *found.slew), strict=True):
                assert np.array_equal(one.values, two.values)


@pytest.mark.slow(seconds=2)
@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("pattern", "text", "line"),
    [
        (r"internal_power", "internal_energy", "no energies of its cells (internal_power)"),
        (r"  cell \(DFF\).*", "}", "no register in it that the design needs"),
    ],
)
def test_what_a_library_lacks_is_said(pattern, text, line, tmp_path, capsys):
    path = tmp_path / "own.lib"
    path.write_text(re.sub(pattern, text, LIBERTY.read_text(), flags=re.DOTALL))
    assert main(["synth", *SMALL, "--liberty", str(path), "--power"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


@pytest.mark.usefixtures("tools")
@pytest.mark.slow(seconds=6)
def test_cells_without_delays_have_no_glitches(tmp_path, capsys):
    path = tmp_path / "own.lib"
    path.write_text(LIBERTY.read_text().replace("timing ()", "timed ()"))
    assert main(["synth", *SMALL, "--liberty", str(path), "--power", "--json", "-"]) == 0
    entry = json.loads(capsys.readouterr().out)["power"]
    assert [run["glitches"] for run in entry["runs"]] == [False, False]
    assert "no glitches (cells without delays)" in entry["assumed"]
