"""``loom synth``: cells, area and frequency under a versioned schema, and one clear line for what cannot be done."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from siliconloom.arch import LoomError, load_chip
from siliconloom.cli import main
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.synthesis.area import fpga_netlist
from siliconloom.rtl.synthesis.devices import PARTS, Device, excess
from siliconloom.rtl.synthesis.module import module_of, module_ports
from siliconloom.rtl.synthesis.place import nextpnr_command, placements, seed_of
from siliconloom.rtl.synthesis.timing import NETLIST, StaticTiming, sta_command, static_timing
from tests.in_turn import in_turn
from tests.rtl.npu import SMALL as NPU_SMALL
from tests.rtl.npu import npu
from tests.tools import need_yosys

LIBERTY = Path(__file__).parent / "tiny.lib"
REGISTER_ALONE = (
    "library(x) { cell(D) { area: 6; ff(I, J) { clocked_on: C; next_state: D; } pin(C) { direction: input; } "
    ' pin(D) { direction: input; } pin(Q) { direction: output; function: "I"; } } }\n'
)
SMALL = ["systolic-ws-8", "--set", "tile.array.rows=2", "--set", "tile.array.cols=2"]


@pytest.fixture
def yosys():
    need_yosys()


def synth(capsys, *arguments):
    status = main(["synth", *arguments, "--json", "-"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


@pytest.mark.slow(seconds=2.5)
@pytest.mark.usefixtures("yosys")
def test_cells_of_an_fpga(capsys):
    found = synth(capsys, *SMALL, "--seeds", "0")
    assert (found["schema"], found["target"], found["top"]) == ("siliconloom.synthesis/2", "ecp5", "systolic_ws_8")
    assert found["dsps"] == found["cells"]["MULT18X18D"] == 4
    assert found["flip_flops"] == found["cells"]["TRELLIS_FF"]
    assert found["luts"] >= found["cells"]["LUT4"]
    assert found["block_rams"] == 0
    assert (found["fmax"], found["fmax_mhz"], found["area"]) == (None, [], None)
    floors = {bound["name"]: bound for bound in found["bounds"]}
    assert floors["operand flip-flops"]["floor"] == 2 * 8 * 4
    assert all(bound["holds"] for bound in found["bounds"])


@pytest.mark.slow(seconds=4)
@pytest.mark.usefixtures("yosys")
def test_a_part_is_synthesized_alone(capsys):
    whole, part = (synth(capsys, *SMALL, "--seeds", "0", *extra) for extra in ([], ["--module", "row2_chained"]))
    assert (part["top"], part["synthesized"]) == ("systolic_ws_8_row2_chained", "the module row2_chained alone")
    assert (part["dsps"], part["bounds"]) == (2, [])
    assert 0 < part["flip_flops"] < whole["flip_flops"]


@pytest.mark.slow(seconds=2.5)
@pytest.mark.usefixtures("yosys")
def test_a_memory_alone_is_left_to_a_macro(capsys):
    found = synth(capsys, "pim-hbm", "--module", "pim_hbm_sram_256x64", "--target", "generic", "--seeds", "0")
    assert (found["logic_cells"], found["modules"]) == (0, [])
    assert "1 memories (16,384 bits and more where placed twice) are left to macros" in found["notes"]


@pytest.mark.slow(seconds=1)
def test_a_part_has_the_memories_that_it_contains():
    bundle = npu()
    kept = {
        name: len(module_of(bundle, name).sidecar["memories"]) for name in ("array", "accumulator", "bank", "banks")
    }
    everything = len(bundle.sidecar["memories"])
    assert kept["array"] == 0
    assert 0 < kept["accumulator"] < everything
    assert 0 < kept["bank"] <= kept["banks"] < everything


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        pytest.param("npu-edge-w4a8", list(NPU_SMALL.items()), marks=pytest.mark.slow),
        ("pim-hbm", []),
        ("systolic-os-8", []),
    ],
)
def test_every_part_has_its_ports(name, overrides):
    bundle = build_rtl(load_chip(name, overrides), remembered=True)
    for file in bundle.sidecar["verilog"]:
        header = re.search(r"^module \S+ ?\(([^;]*)\);$", bundle.files[file], re.MULTILINE)
        ports = module_ports(bundle.files[file])
        assert {port.name for port in ports} == {each.strip() for each in header[1].split(",")}, file
        assert {port.is_input for port in ports if port.name != "clk"} == {True, False}, file


@pytest.mark.usefixtures("yosys")
@pytest.mark.parametrize("part", in_turn(["semaphore_12", "delay_32x1"], 2))
def test_ports_with_any_name_and_of_any_author_are_joined(part, tmp_path):
    bundle = module_of(npu(), part)
    cells = fpga_netlist(bundle, tmp_path)
    ports = [port for port in module_ports(bundle.files[f"{bundle.top}.v"]) if port.name != "clk"]
    assert cells["TRELLIS_FF"] >= sum(port.width for port in ports)


@pytest.mark.slow(seconds=1.5)
@pytest.mark.usefixtures("yosys")
def test_a_part_has_a_netlist_between_registers(tmp_path):
    bundle = module_of(
        build_rtl(load_chip("systolic-ws-8", [("tile.array.rows", "2"), ("tile.array.cols", "2")])), "row2_chained"
    )
    ports = module_ports(bundle.files[f"{bundle.top}.v"])
    cells = fpga_netlist(bundle, tmp_path)
    assert cells["MULT18X18D"] == 2
    fed = sum(port.width for port in ports if port.is_input and port.name != "clk")
    assert cells["TRELLIS_FF"] >= fed + sum(port.width for port in ports if not port.is_input), "nothing was left out"


@pytest.mark.slow(seconds=2.5)
@pytest.mark.usefixtures("yosys")
def test_the_area_is_that_of_the_liberty_files_cells(capsys):
    found = synth(capsys, *SMALL, "--liberty", str(LIBERTY))
    areas = {"BUF": 1.5, "INV": 1, "NAND2": 2, "DFF": 6}
    assert found["target"] == "generic"
    assert set(found["cells"]) <= set(areas)
    area = sum(areas[cell] * number for cell, number in found["cells"].items())
    assert found["area"] == {"liberty": "tiny.lib", "cells": area, "mapped_for": "area"}
    assert found["flip_flops"] == found["cells"]["DFF"]


@pytest.mark.slow
@pytest.mark.usefixtures("yosys")
def test_a_pim_tile_has_a_multiplier_in_every_lane(capsys):
    small = [
        word
        for change in ("dram.organization.bank_groups=1", "dram.organization.banks=2", "lanes=2", "activate_group=2")
        for word in ("--set", f"tile.{change}")
    ]
    found = synth(capsys, "pim-hbm", *small, "--target", "generic")
    assert found["synthesized"] == "the whole tile without its DRAM array"
    floors = {bound["name"]: bound for bound in found["bounds"]}
    assert floors["multipliers"]["floor"] == 4
    assert floors["accumulator, operand and product flip-flops"]["floor"] == 2 * 4 * 32 + 4 * 64
    assert all(bound["holds"] for bound in found["bounds"])


@pytest.mark.slow(seconds=2)
@pytest.mark.usefixtures("yosys")
def test_a_table_for_people_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("siliconloom.evaluate.synth.nextpnr_command", lambda: None)
    assert main(["synth", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "MULT18X18D" in out
    assert "no Fmax: nextpnr is not installed; pip install 'siliconloom[eda]' brings it" in out


@pytest.mark.slow
@pytest.mark.usefixtures("yosys")
def test_the_frequency_over_seeds(capsys):
    if nextpnr_command() is None:
        pytest.skip("nextpnr is not installed")
    found = synth(capsys, *SMALL, "--seeds", "2")
    assert found["place_and_route"]["seeds"] == [1, 2]
    assert len(found["fmax_mhz"]) == 2
    assert 20 < found["fmax"]["min"] <= found["fmax"]["median"] <= found["fmax"]["max"] < 1000
    assert found["place_and_route"]["top"] == "systolic_ws_8_fpga"


@pytest.mark.slow
@pytest.mark.usefixtures("yosys")
def test_every_element_of_the_library_array_has_its_multiplier(capsys):
    assert synth(capsys, "systolic-ws-8", "--seeds", "0")["dsps"] == 64


def test_what_does_not_fit_the_device_is_named():
    device = PARTS["ecp5-85"]
    assert excess(device.available, device) == []
    assert excess(device.available | {"MULT18X18D": 157}, device) == ["157 MULT18X18D of 156"]
    assert excess(device.available | {"LUT": 83641}, device) == ["83,641 LUT of 83,640"]


@pytest.mark.slow(seconds=2)
@pytest.mark.usefixtures("yosys")
def test_a_design_larger_than_the_device_has_no_frequency(capsys, monkeypatch):
    monkeypatch.setattr("siliconloom.evaluate.synth.nextpnr_command", lambda: ["nextpnr"])
    monkeypatch.setitem(PARTS, "ecp5-12", Device("LFE5U-12F", 12_144, 3, 32, ()))
    found = synth(capsys, *SMALL, "--part", "ecp5-12")
    assert found["fmax"] is None
    assert found["notes"] == ["no Fmax: systolic_ws_8_fpga does not fit the LFE5U-12F: 4 MULT18X18D of 3"]
    part = found["part"]
    assert (part["fits"], part["advice"], part["changes"]) == (False, None, []), "advice is for npu tiles"
    over = {row["name"]: row["over"] for row in part["resources"]}
    assert over == {"LUT": 0, "FF": 0, "MULT18X18D": 1, "DP16KD": 0}


def test_the_slowest_path_is_told_by_the_names_of_the_verilog():
    def step(kind, before, after, delay, net=None):
        ends = {"from": {"cell": before}, "to": {"cell": after}, "type": kind, "delay": delay}
        return ends if net is None else ends | {"net": net}

    path = [
        step("clk-to-q", "a.held_TRELLIS_FF_Q_3", "a.held_TRELLIS_FF_Q_3", 0.5),
        step("routing", "a.held_TRELLIS_FF_Q_3", "x", 1.5, "a.held[3]"),
        step("routing", "x", "y", 2, "a.$12_LUT4_Z"),
        step("routing", "y", "a.sum_TRELLIS_FF_Q", 1, "a.total_CCU2C_S0_COUT"),
        step("setup", "a.sum_TRELLIS_FF_Q", "a.sum_TRELLIS_FF_Q", 0),
    ]
    report = {
        "fmax": {"clk": {"achieved": 200.0}, "other": {"achieved": 300.0}},
        "critical_paths": [
            {"from": "<async>", "to": "posedge clk", "path": path[:1]},
            {"from": "posedge other", "to": "posedge other", "path": path[:1]},
            {"from": "posedge clk", "to": "posedge clk", "path": path},
        ],
    }
    found = seed_of(7, report)
    assert (found.seed, found.mhz, found.path) == (7, 200.0, ("a.held", "a.total", "a.sum"))
    assert found.delay_ns == 5


def test_nextpnr_that_stops_is_quoted(tmp_path):
    (tmp_path / "fpga.json").write_text("{}")
    command = [sys.executable, "-c", "print('ERROR: no such thing'); raise SystemExit(1)"]
    with pytest.raises(LoomError, match="nextpnr stopped: ERROR: no such thing"):
        placements(command, tmp_path / "fpga.json", PARTS["ecp5-12"], [1])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([*SMALL, "--target", "ecp"], "--target: must be one of ecp5, generic (got 'ecp'); did you mean 'ecp5'?"),
        ([*SMALL, "--target", "ecp5", "--liberty", str(LIBERTY)], "--liberty: is for --target generic (got"),
        ([*SMALL, "--liberty", "/nowhere.lib"], "/nowhere.lib: no such file"),
        ([*SMALL, "--liberty", "{folder}"], "{folder}: is a folder, a liberty file was expected"),
        ([*SMALL, "--seeds", "-1"], "Invalid value for '--seeds'"),
        ([*SMALL, "--set", "tile.array.operands=fp32"], "not supported: RTL for fp32 operands"),
        (
            [*SMALL, "--module", "row2_chaned"],
            "--module: systolic_ws_8 has no module 'row2_chaned'; did you mean 'row2_chained'?",
        ),
        ([*SMALL, "--part", "ecp5-58"], "--part: must be one of ecp5-12, ecp5-25, ecp5-45, ecp5-85 (got 'ecp5-58')"),
        ([*SMALL, "--part", "ECP5_85"], "(got 'ECP5_85'); did you mean 'ecp5-85'?"),
        ([*SMALL, "--part", "array"], "(got 'array'); a module of the design is --module array"),
        ([*SMALL, "--part", "ecp5-85", "--target", "generic"], "--part: ecp5-85 is an FPGA, for --target ecp5 and no"),
        (["no-such-chip"], "no-such-chip: no such file"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, line, tmp_path, capsys):
    if "Invalid" not in line:
        need_yosys()
    assert main(["synth", *(a.format(folder=tmp_path) for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert line.format(folder=tmp_path) in err
    assert err.count("\n") == 1


@pytest.mark.slow(seconds=1.5)
@pytest.mark.usefixtures("yosys")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nonsense\n", "No entries found"),
        ("library(x) { }\n", "no register in it that the design needs"),
        (REGISTER_ALONE, "no gates in it that logic can be mapped to"),
    ],
)
def test_a_useless_liberty_file_is_one_clear_line(text, line, tmp_path, capsys):
    path = tmp_path / "bad.lib"
    path.write_text(text)
    assert main(["synth", *SMALL, "--liberty", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"loom: {path}: ")
    assert line in err
    assert err.count("\n") == 1


def test_without_yosys_the_command_says_what_to_install(monkeypatch, capsys):
    missing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr("siliconloom.rtl.synthesis.yosys.importlib", missing)
    assert main(["synth", *SMALL]) == 2
    assert capsys.readouterr().err == "loom: synthesis needs Yosys: pip install 'siliconloom[eda]'\n"


CELLS_018 = Path("/usr/share/qflow/tech/osu018/osu018_stdcells.lib")
"""The open 180 nm cells of Oklahoma State University, as Debian's qflow-tech-osu018 installs them."""


@pytest.mark.parametrize("period", [1.0, 20.0, 1e9])
def test_a_netlist_has_the_clock_that_static_timing_finds(period, tmp_path):
    """A register, inverters and a register: each pair of inverters takes as much more, whatever clock is asked for."""
    if sta_command() is None or not CELLS_018.exists():
        pytest.skip("OpenSTA (sta) and Debian's qflow-tech-osu018 are not both installed")
    delays = []
    for inverters in (2, 4, 6, 8):
        cells = "".join(f"  INVX1 i{n} (.A(w{n}), .Y(w{n + 1}));\n" for n in range(inverters))
        (tmp_path / NETLIST).write_text(
            f"module top(clk, a, z); input clk; input a; output z; wire w0; wire w{inverters};\n"
            f"  DFFPOSX1 first (.CLK(clk), .D(a), .Q(w0));\n{cells}"
            f"  DFFPOSX1 second (.CLK(clk), .D(w{inverters}), .Q(z));\nendmodule\n"
        )
        found = static_timing(sta_command(), CELLS_018, "top", period, tmp_path)
        assert (found.begins, found.ends, found.cells) == ("w0", "z", inverters + 1)
        delays.append(1000 / found.mhz)
    steps = [after - before for before, after in pairwise(delays)]
    assert steps[0] > 0
    assert steps[1] == pytest.approx(steps[2], rel=0.05), "a pair more is as slow as the pair before"


def test_registers_of_inner_modules_are_told_by_their_signals(tmp_path):
    """Instances as Yosys writes them, one of which has a name that Verilog escapes."""
    if sta_command() is None or not CELLS_018.exists():
        pytest.skip("OpenSTA (sta) and Debian's qflow-tech-osu018 are not both installed")
    inner = "module inner(clk, d, q);\n  input clk, d;\n  output q;\n  wire d, q;\n"
    inner += "  DFFPOSX1 _1_ (\n    .CLK(clk),\n    .D(d),\n    .Q(\\count[3] )\n  );\n  wire \\count[3] ;\n"
    inner += "  BUFX2 _2_ (\n    .A(\\count[3] ),\n    .Y(q)\n  );\nendmodule\n"
    outer = "module top(clk, a, z);\n  input clk, a;\n  output z;\n  wire w, v, z;\n"
    for name, before, after in (("first", "a", "w"), ("\\last$2 ", "w", "v")):
        outer += f"  inner {name} (\n    .clk(clk),\n    .d({before}),\n    .q({after})\n  );\n"
    outer += "  BUFX2 _3_ (\n    .A(v),\n    .Y(z)\n  );\nendmodule\n"
    (tmp_path / NETLIST).write_text(inner + outer)
    found = static_timing(sta_command(), CELLS_018, "top", 4.0, tmp_path)
    assert {found.begins, found.ends} <= {"a", "first/count[3]", "last$2/count[3]", "z"}
    assert "/count[3]" in found.begins


@pytest.mark.slow
def test_without_opensta_an_area_has_a_note(capsys, monkeypatch):
    need_yosys()
    monkeypatch.setattr("siliconloom.evaluate.synth.sta_command", lambda: None)
    found = synth(capsys, *SMALL, "--liberty", str(LIBERTY))
    assert (found["fmax"], found["static_timing"]) == (None, None)
    assert "no Fmax: OpenSTA (sta) is not installed" in found["notes"]


@pytest.mark.slow(seconds=12)
def test_cells_are_chosen_for_speed_only_where_the_fewest_are_slower_than_the_clock(capsys):
    need_yosys()
    if sta_command() is None or not CELLS_018.exists():
        pytest.skip("OpenSTA or the cells are not installed")
    found = {
        clock: synth(capsys, *SMALL, "--set", f"clock={clock}", "--liberty", str(CELLS_018))
        for clock in ("1 MHz", "2 GHz")
    }
    slow, fast = found["1 MHz"], found["2 GHz"]
    assert [each["area"]["mapped_for"] for each in (slow, fast)] == ["area", "clock"]
    assert fast["fmax"]["max"] > 1.1 * slow["fmax"]["max"]
    assert fast["area"]["cells"] > slow["area"]["cells"]
    assert [any("for speed" in note for note in each["notes"]) for each in (slow, fast)] == [False, True]


@pytest.mark.slow(seconds=10)
def test_the_clock_of_the_fewest_cells_counts_their_registers(capsys):
    need_yosys()
    if sta_command() is None or not CELLS_018.exists():
        pytest.skip("OpenSTA or the cells are not installed")

    def at(mhz):
        return synth(capsys, *SMALL, "--set", f"clock={mhz} MHz", "--liberty", str(CELLS_018))

    slow = at(1)
    reached, missed = (at(share * slow["fmax"]["max"]) for share in (0.98, 1.05))
    assert (reached["area"], reached["cells"]) == (slow["area"], slow["cells"])
    assert missed["area"]["mapped_for"] == "clock"
    assert missed["static_timing"]["slack_ns"] > 0


@pytest.mark.slow(seconds=5)
def test_the_fewest_cells_stay_where_others_are_no_faster(capsys, monkeypatch):
    need_yosys()
    if not CELLS_018.exists():
        pytest.skip("the cells are not installed")
    fewest = synth(capsys, *SMALL, "--set", "clock=1 MHz", "--liberty", str(CELLS_018))
    slacks = iter([-0.5, -0.6])
    monkeypatch.setattr("siliconloom.rtl.synthesis.area.sta_command", lambda: "sta")
    monkeypatch.setattr(
        "siliconloom.rtl.synthesis.area.static_timing",
        lambda command, liberty, top, period_ns, folder: StaticTiming("x", period_ns, next(slacks), "a", "b", 1),
    )
    found = synth(capsys, *SMALL, "--set", "clock=1 MHz", "--liberty", str(CELLS_018))
    assert (found["area"], found["cells"]) == (fewest["area"], fewest["cells"])
    assert found["static_timing"]["slack_ns"] == -0.5
    assert "the fewest cells are slower than the clock, and those chosen for speed are no faster" in found["notes"]


@pytest.mark.slow(seconds=3)
@pytest.mark.usefixtures("yosys")
def test_the_fewest_cells_stay_where_others_cannot_be_chosen(capsys):
    few = Path(__file__).parent / "energy.lib"  # of four cells, at which ABC's other mapper stops
    assert synth(capsys, *SMALL, "--liberty", str(few))["area"]["mapped_for"] == "area"
